"""When each step of a round begins, so that every link has about as much to carry at any time: a modulo schedule.

All blocks go round circles of one length. A step takes as much of it as its block reads and writes; the busiest block
is at work for nine tenths. Part after part, each step gets the time at which its own block is free and its links have
least to do, in the round after the chunk has arrived: late steps cost a little, for every hop that waits makes
pipelines longer to fill. This is Rau's iterative modulo scheduling (1994) without going back: blocks are its units,
links are shared. Time on a GPU runs otherwise, but a program keeps the order and the lags.

Where chunks are only handed on, a step begins within a round from the arrival of its own. Where those of several ranks
meet, a step after h hops begins from h times `hop` after its part, within one round from there. So a chunk waits for
less than a round and a hop, whatever the order, and two slots are enough.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from collc.ir.nodes import Channel, Program, Step
from collc.lowering.depth import hops_before

# Into so many parts a circle is cut, and how many of them the busiest block works.
_CIRCLE = 128
_WORKED = 116
# From the end of a step until another rank can use its chunk, at least.
_ARRIVES = 38
# What it costs to begin a round later, to begin while the block is at work, and on a link that has as much to do as it
# has on average.
_LATE, _BUSY, _LOADED = 0.15, 4.0, 1.0

_Loads = npt.NDArray[np.float64]


class EvenRounds:
    """The times of the steps of all blocks, each of which has one group of channels.

    Args:
        groups: the channels that take turns in each block.
    """

    def __init__(self, program: Program, groups: Sequence[Sequence[Channel]]) -> None:
        self.program, self.groups = program, groups
        ranks = range(program.nranks)
        work = [[sum(_touched(s) for channel in group for s in channel.steps[r]) for r in ranks] for group in groups]
        self.unit = _WORKED / max(map(max, work))
        every = [s for group in groups for channel in group for steps in channel.steps for s in steps]
        self.meets = any(step.reduces or len(step.recv) > 1 for step in every)
        flows: dict[object, int] = {}
        for step in every:
            for link in self._links(step):
                flows[link] = flows.get(link, 0) + 1
        self.mean = {link: number / _CIRCLE for link, number in flows.items()}
        self.load = {link: np.zeros(_CIRCLE) for link in flows}
        self.block = [[np.zeros(_CIRCLE) for _ in ranks] for _ in groups]

    def times(self) -> list[list[list[tuple[int, Step]]]]:
        """Per group and rank: (time, step), where a circle takes `_CIRCLE`."""
        found: list[list[list[tuple[int, Step]]]] = [[[] for _ in range(self.program.nranks)] for _ in self.groups]
        most = max(map(len, self.groups))
        for turn in range(most):
            for block, group in enumerate(self.groups):
                if turn < len(group):
                    begin = _CIRCLE * (turn * len(self.groups) + block) // (most * len(self.groups))
                    for rank, time, step in self._part(block, group[turn], begin):
                        found[block][rank].append((time, step))
        return found

    def _part(self, block: int, channel: Channel, begin: int) -> Iterator[tuple[int, int, Step]]:
        """(rank, time, step) of one part that begins at a time."""
        before = hops_before(self.program, channel)
        rows = [(before(rank, step), rank, step) for rank, steps in enumerate(channel.steps) for step in steps]
        hop = _ARRIVES + max((self._length(step) for _, _, step in rows), default=0)
        within = max(1, min(_CIRCLE, self.program.slots * _CIRCLE - hop - 1))
        arrived: dict[int, int] = {}
        for hops, rank, step in sorted(rows, key=lambda row: row[:2]):
            least = begin + hops * hop if self.meets or not step.recv else arrived[step.recv[0]]
            first = max([least, *(arrived[f] for f in step.recv)])
            time = first + self._best(block, rank, step, first, least + within - first)
            self._take(block, rank, step, time)
            arrived.update(dict.fromkeys(step.send, time + self._length(step) + _ARRIVES))
            yield rank, time, step

    def _best(self, block: int, rank: int, step: Step, first: int, choices: int) -> int:
        """How long after `first` the step begins best."""
        length = self._length(step)
        cost = _BUSY * _window(self.block[block][rank], length)
        for link in self._links(step):
            cost = cost + _LOADED / self.mean[link] * _window(self.load[link], length)
        cost = np.roll(cost, -(first % _CIRCLE)) + _LATE / _CIRCLE * np.arange(_CIRCLE)
        return int(np.argmin(cost[: max(1, choices)]))

    def _take(self, block: int, rank: int, step: Step, time: int) -> None:
        length = self._length(step)
        places = np.arange(time, time + length) % _CIRCLE
        self.block[block][rank][places] += 1
        for link in self._links(step):
            self.load[link][places] += 1 / length

    def _length(self, step: Step) -> int:
        return min(_CIRCLE, max(1, round(_touched(step) * self.unit)))

    def _links(self, step: Step) -> Iterator[object]:
        """What the step's chunks cross; without routes, from which rank to which they go."""
        for f in step.send:
            fifo = self.program.fifos[f]
            yield from (link for route in fifo.routes for link in route)
            if not fifo.routes:
                yield fifo.src, fifo.dsts


def _touched(step: Step) -> int:
    """Unlike `Program.touches`, each rank that a switch serves counts."""
    return len(step.recv) + step.input + step.output + len(step.send)


def _window(load: _Loads, length: int) -> _Loads:
    """The mean of a circle's load over so many places from each place on."""
    total = np.concatenate(([0.0], np.cumsum(np.concatenate((load, load[:length])))))
    return (total[length : length + _CIRCLE] - total[:_CIRCLE]) / length


def even_rounds(program: Program, groups: Sequence[Sequence[Channel]]) -> Iterator[Channel]:
    """A channel for each group: its steps in the order of the round, with their lags."""
    for ranks in EvenRounds(program, groups).times():
        rounds = (sorted(rows, key=lambda row: row[0] % _CIRCLE) for rows in ranks)
        yield Channel(
            tuple(tuple(dataclasses.replace(step, lag=time // _CIRCLE) for time, step in rows) for rows in rounds)
        )
