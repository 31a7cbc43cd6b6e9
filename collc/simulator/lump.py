"""Simulates parts that behave alike only once: a program for hundreds of GPUs shrinks to its distinct parts.

Loops, FIFOs and links get colors. The first color follows from a part's numbers (chunks, lags, rates, delays,
capacities). Each refinement adds the colors of the parts that it touches, until no color splits. The result is the
coarsest equitable partition (color refinement; Paige and Tarjan 1987). Then FIFOs of each color cross all links of one
color equally often, and all loops of one color wait for and release equal colors. So parts of one color that are in the
same state at one time are in the same state at the next: max-min fair rates are unique, hence equal within a color, and
the next step of a loop depends on nothing else. One part of each color is simulated, and a link carries the flow of a
color as often as FIFOs of that color cross it. The result is exact for every plan: without symmetry each color has one
part.

Colors are 64-bit hashes, and sums of hashes for multisets. With a million colors, two collide with a chance of 3e-8.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collc.simulator import compiled
from collc.simulator.engine import Outcome
from collc.simulator.model import Case, CaseFifo, CaseStep, Loop, steps_of

_Ints = npt.NDArray[np.int64]
_Colors = npt.NDArray[np.uint64]
_Chunks = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Lumped:
    """A case whose loops, FIFOs and links stand for classes of another's.

    Args:
        first: the loop of each class that is simulated.
        alike: that loop -> all loops of its class, where there are more.
        class_of: per link of the other case, its class.
    """

    case: Case
    first: _Ints
    alike: dict[int, tuple[int, ...]]
    class_of: _Ints

    def unfold(self, outcome: Outcome) -> Outcome:
        """The outcome in loops and links of the other case."""
        if not self.alike:
            return outcome
        rows: Sequence[Any] = outcome.executions
        if isinstance(rows, compiled.Executions):
            rows = compiled.Executions([self.first[rows.columns[0]], *rows.columns[1:]])
        else:
            rows = [dataclasses.replace(row, loop=int(self.first[row.loop])) for row in rows]
        carried = np.array(outcome.link_bytes)[self.class_of] if len(self.class_of) else np.zeros(0)
        return Outcome(outcome.time, tuple(carried.tolist()), rows, self.alike)


@dataclass(frozen=True)
class _Classes:
    """The class of every loop, step, FIFO and link."""

    loops: _Ints
    steps: _Ints
    fifos: _Ints
    links: _Ints


def unlumped(case: Case) -> Lumped:
    """Every loop for itself."""
    return Lumped(case, np.arange(len(case.loops)), {}, np.arange(len(case.capacity)))


class Lumper:
    """Lumps the calls of one program: what of it does not depend on the size is read once."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.kept: dict[tuple[int, ...], Lumped] = {}
        steps = [(number, step) for loop in case.loops for number, step in enumerate(loop.steps)]
        self.loop_of_step = _ints(i for i, loop in enumerate(case.loops) for _ in loop.steps)
        self.share_of_step = _ints(step.share for _, step in steps)
        self.kind_of_step = _numbered((number, step.lag, step.rate, step.launch) for number, step in steps)
        self.writer, self.reader = _ints([-1] * len(case.fifos)), _ints([-1] * len(case.fifos))
        self.writer[_ints(f for _, step in steps for f in step.send)] = _ints(
            i for i, (_, step) in enumerate(steps) for _ in step.send
        )
        self.reader[_ints(f for _, step in steps for f in step.recv)] = _ints(
            i for i, (_, step) in enumerate(steps) for _ in step.recv
        )
        self.behind = _ints(fifo.behind for fifo in case.fifos)
        self.queue = _ints(fifo.queue for fifo in case.fifos)
        # A crossing is a FIFO on one link of its way.
        self.crossing_link = _ints(link for fifo in case.fifos for link in fifo.links)
        self.crossing_fifo = _ints(f for f, fifo in enumerate(case.fifos) for _ in fifo.links)
        self.crossing_weight = _mixed(
            _ints(weight for fifo in case.fifos for weight in fifo.weights or (1,) * len(fifo.links)), 15
        )

    def lump(self, chunks: _Chunks) -> Lumped:
        """The call with these chunks per share."""
        pattern = tuple(_numbered(chunks).tolist())
        if pattern not in self.kept:
            self.kept[pattern] = self._lump(np.array(pattern, np.int64))
        found = self.kept[pattern]
        return dataclasses.replace(found, case=dataclasses.replace(found.case, chunks=chunks))

    def _lump(self, pattern: _Ints) -> Lumped:
        steps, fifos, links = self._refined(pattern)
        loops = _sums(_mixed(steps), self.loop_of_step, len(self.case.loops))
        classes = _Classes(*(np.unique(c, return_inverse=True)[1] for c in (loops, steps, fifos, links)))
        first = np.unique(classes.loops, return_index=True)[1]
        if len(first) == len(loops):
            return unlumped(self.case)
        small = self._quotient(classes, first)
        groups = np.split(np.argsort(classes.loops, kind="stable"), np.cumsum(np.bincount(classes.loops))[:-1])
        alike = {int(group[0]): tuple(group.tolist()) for group in groups if len(group) > 1}
        return Lumped(small, first, alike, classes.links)

    def _refined(self, pattern: _Ints) -> tuple[_Colors, _Colors, _Colors]:
        """Returns the stable colors of steps, FIFOs and links; a loop has the colors of its steps."""
        case = self.case
        steps = _mixed(_numbered(zip(self.kind_of_step.tolist(), pattern[self.share_of_step].tolist(), strict=True)))
        fifos = _mixed(_numbered((fifo.delay, fifo.weights, fifo.copies, fifo.credit) for fifo in case.fifos))
        links = _mixed(_numbered(case.capacity))
        count = 0
        while True:
            found = sum(len(np.unique(colors)) for colors in (steps, fifos, links))
            if found == count:
                return steps, fifos, links
            count = found
            seen = _sums(_mixed(fifos, 1), self.writer, len(steps)) + _sums(_mixed(fifos, 2), self.reader, len(steps))
            steps = _mixed(steps, 3) + _mixed(seen, 4)
            loops = _sums(_mixed(steps), self.loop_of_step, len(case.loops))
            steps = _mixed(steps, 5) + _mixed(loops[self.loop_of_step], 6)
            crossing = _mixed(_mixed(fifos, 7)[self.crossing_fifo] + self.crossing_weight)
            crossed = _sums(crossing, self.crossing_link, len(links))
            links = _mixed(links, 8) + _mixed(crossed, 9)
            passed = _mixed(_mixed(links, 10)[self.crossing_link] + self.crossing_weight)
            way = _sums(passed, self.crossing_fifo, len(fifos))
            ends = _mixed(steps[self.writer], 11) + _mixed(steps[self.reader], 12)
            behind = np.where(self.behind < 0, np.uint64(0), _mixed(fifos, 16)[self.behind])
            queue = np.where(self.queue < 0, np.uint64(0), _mixed(fifos, 17)[self.queue])
            fifos = _mixed(fifos, 13) + ends + _mixed(way, 14) + behind + queue

    def _quotient(self, classes: _Classes, first: _Ints) -> Case:
        """The case of the classes; loop `first[i]` stands for class i."""
        case = self.case
        fifo_class = classes.fifos.tolist()

        def of(ids: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(dict.fromkeys(fifo_class[f] for f in ids))

        loops = []
        for old in (case.loops[i] for i in first):
            made = (CaseStep(s.share, s.lag, of(s.recv), of(s.send), s.rate, s.launch) for s in old.steps)
            loops.append(Loop(old.rank, old.channel, tuple(made)))
        capacity = np.zeros(classes.links.max(initial=-1) + 1)
        capacity[classes.links] = case.capacity
        return dataclasses.replace(
            case,
            loops=tuple(loops),
            fifos=self._fifos(classes),
            steps_of=steps_of(loops, len(case.chunks)),
            capacity=tuple(capacity.tolist()),
        )

    def _fifos(self, classes: _Classes) -> tuple[CaseFifo, ...]:
        """One FIFO per class, with how many of it cross a link and leave a step."""
        fifos, links, steps = (np.bincount(c).tolist() for c in (classes.fifos, classes.links, classes.steps))
        made = []
        for number, f in enumerate(np.unique(classes.fifos, return_index=True)[1].tolist()):
            old = self.case.fifos[f]
            crossed: Counter[int] = Counter()
            for link, weight in zip(old.links, old.weights or (1,) * len(old.links), strict=True):
                crossed[int(classes.links[link])] += weight
            weights = tuple(fifos[number] * times // links[link] for link, times in crossed.items())
            copies = old.copies * fifos[number] // steps[classes.steps[self.writer[f]]]
            writer, reader = (int(classes.loops[self.loop_of_step[ends[f]]]) for ends in (self.writer, self.reader))
            behind, queue = (-1 if other < 0 else int(classes.fifos[other]) for other in (old.behind, old.queue))
            made.append(CaseFifo(writer, reader, tuple(crossed), old.delay, weights, copies, old.credit, behind, queue))
        return tuple(made)


def _ints(values: Iterable[int]) -> _Ints:
    return np.fromiter(values, np.int64)


def _numbered(values: Iterable[Hashable]) -> _Ints:
    """Equal values get equal numbers, in order of their first appearance."""
    numbers: dict[Hashable, int] = {}
    return _ints(numbers.setdefault(value, len(numbers)) for value in values)


def _mixed(values: npt.NDArray[Any], salt: int = 0) -> _Colors:
    """Scatters numbers over 64 bits (the finalizer of SplitMix64; Steele, Lea and Flood 2014)."""
    mixed: _Colors = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15 * (salt + 1) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _sums(values: _Colors, where: _Ints, count: int) -> _Colors:
    """Returns for each place the sum of the values there, which is a hash of a multiset."""
    found = np.zeros(count, np.uint64)
    np.add.at(found, where, values)
    return found
