"""Plans when each step of a round begins, so that the load of every link is even over the round: a modulo schedule.

A round is one iteration of the loops of all thread blocks. It takes `_ROUND_TICKS` ticks, and rounds follow each other,
so the ticks of a round form a circle. A step takes ticks in proportion to `_accesses`. The busiest thread block works
for nine tenths of the round.

The planner handles one channel after the other, and the steps of a channel in the order of their hops. Each step
begins after its chunks have arrived, at the tick of least cost: other steps of its thread block cost most, and the load
of its links costs less. A delay has a small cost, because a pipeline takes longer to fill if its hops wait. This is
Rau's iterative modulo scheduling (1994) without backtracking. Thread blocks are its functional units, and links can
carry several steps at once. The times differ from those on a GPU; a program keeps only the order of the steps and their
lags.

If all steps of the program only forward chunks, a step begins less than one round after its chunk has arrived. If some
step combines chunks, a step after h hops begins at least h times `hop` ticks after its part begins, and less than one
round after that time. So a chunk waits less than one round and one hop in any order, and two slots are enough.

`collc.lowering.take_turns` shows a program before and after.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from collc.ir.nodes import Channel, Program, Step
from collc.lowering.depth import hops_before

# The length of a round, and the work of the busiest thread block in it.
_ROUND_TICKS = 128
_BUSY_TICKS = 116
# The time from the end of a step until another rank can use its chunk.
_ARRIVAL_TICKS = 38
# The costs of a start one round later, of an overlap with one other step of the thread block, and of a link that has
# its mean load.
_DELAY_COST, _OVERLAP_COST, _LOAD_COST = 0.15, 4.0, 1.0

_Loads = npt.NDArray[np.float64]


class EvenRounds:
    """Plans the times of the steps of all thread blocks.

    Args:
        groups: the channels of each thread block.
    """

    def __init__(self, program: Program, groups: Sequence[Sequence[Channel]]) -> None:
        self.program, self.groups = program, groups
        ranks = range(program.nranks)
        work = [[sum(_accesses(s) for channel in group for s in channel.steps[r]) for r in ranks] for group in groups]
        self.unit = _BUSY_TICKS / max(map(max, work))
        all_steps = [s for group in groups for channel in group for steps in channel.steps for s in steps]
        self.combines = any(step.reduces or len(step.recv) > 1 for step in all_steps)
        crossings: dict[object, int] = {}
        for step in all_steps:
            for link in self._links(step):
                crossings[link] = crossings.get(link, 0) + 1
        # Per link: the mean number of chunks that cross it per tick, and this number for each tick.
        self.mean_load = {link: number / _ROUND_TICKS for link, number in crossings.items()}
        self.load = {link: np.zeros(_ROUND_TICKS) for link in crossings}
        # Per thread block and rank: the number of steps in each tick.
        self.block = [[np.zeros(_ROUND_TICKS) for _ in ranks] for _ in groups]

    def times(self) -> list[list[list[tuple[int, Step]]]]:
        """Returns (time, step) of all steps, per group and rank; times are in ticks from the start of round 0."""
        result: list[list[list[tuple[int, Step]]]] = [[[] for _ in range(self.program.nranks)] for _ in self.groups]
        group_size = max(map(len, self.groups))
        for number in range(group_size):
            for block, group in enumerate(self.groups):
                if number < len(group):
                    begin = _ROUND_TICKS * (number * len(self.groups) + block) // (group_size * len(self.groups))
                    for rank, time, step in self._part_times(block, group[number], begin):
                        result[block][rank].append((time, step))
        return result

    def _part_times(self, block: int, channel: Channel, begin: int) -> Iterator[tuple[int, int, Step]]:
        """Plans the steps of one channel, from tick `begin` on, and yields (rank, time, step)."""
        hops_to = hops_before(self.program, channel)
        rows = [(hops_to(rank, step), rank, step) for rank, steps in enumerate(channel.steps) for step in steps]
        hop = _ARRIVAL_TICKS + max((self._length(step) for _, _, step in rows), default=0)
        # A receive begins less than `hop` + `within` ticks after its send, which is less than `slots` rounds.
        within = max(1, min(_ROUND_TICKS, self.program.slots * _ROUND_TICKS - hop - 1))
        arrival: dict[int, int] = {}
        for hops, rank, step in sorted(rows, key=lambda row: row[:2]):
            earliest = begin + hops * hop if self.combines or not step.recv else arrival[step.recv[0]]
            first = max([earliest, *(arrival[f] for f in step.recv)])
            time = first + self._best_delay(block, rank, step, first, earliest + within - first)
            self._reserve(block, rank, step, time)
            arrival.update(dict.fromkeys(step.send, time + self._length(step) + _ARRIVAL_TICKS))
            yield rank, time, step

    def _best_delay(self, block: int, rank: int, step: Step, first: int, choices: int) -> int:
        """Returns the delay of a step after `first` that costs least, in ticks.

        Args:
            first: the earliest tick, counted from the start of round 0.
            choices: the number of delays to compare, from 0 up; at least the delay 0 is possible.
        """
        length = self._length(step)
        cost = _OVERLAP_COST * _window(self.block[block][rank], length)
        for link in self._links(step):
            cost = cost + _LOAD_COST / self.mean_load[link] * _window(self.load[link], length)
        cost = np.roll(cost, -(first % _ROUND_TICKS)) + _DELAY_COST / _ROUND_TICKS * np.arange(_ROUND_TICKS)
        return int(np.argmin(cost[: max(1, choices)]))

    def _reserve(self, block: int, rank: int, step: Step, time: int) -> None:
        """Adds a step that begins at `time` to the loads of its thread block and its links."""
        length = self._length(step)
        ticks = np.arange(time, time + length) % _ROUND_TICKS
        self.block[block][rank][ticks] += 1
        for link in self._links(step):
            self.load[link][ticks] += 1 / length

    def _length(self, step: Step) -> int:
        """Returns the length of a step, in ticks."""
        return min(_ROUND_TICKS, max(1, round(_accesses(step) * self.unit)))

    def _links(self, step: Step) -> Iterator[object]:
        """Yields the links that the chunks of a step cross, or the source and destinations of a FIFO without routes."""
        for f in step.send:
            fifo = self.program.fifos[f]
            yield from (link for route in fifo.routes for link in route)
            if not fifo.routes:
                yield fifo.src, fifo.dsts


def _accesses(step: Step) -> int:
    """Returns the number of accesses of a step to each byte of its chunk.

    Unlike `Program.touches`, this counts a sum or copy of a switch once for each of its FIFOs.
    """
    return len(step.recv) + step.input + step.output + len(step.send)


def _window(load: _Loads, length: int) -> _Loads:
    """Returns, for each tick, the mean load of the `length` ticks that begin with it, around the circle."""
    total = np.concatenate(([0.0], np.cumsum(np.concatenate((load, load[:length])))))
    return (total[length : length + _ROUND_TICKS] - total[:_ROUND_TICKS]) / length


def even_rounds(program: Program, groups: Sequence[Sequence[Channel]]) -> Iterator[Channel]:
    """Yields one channel for each group: its steps in the order of their ticks in the round, with their lags."""
    for ranks in EvenRounds(program, groups).times():
        rounds = (sorted(rows, key=lambda row: row[0] % _ROUND_TICKS) for rows in ranks)
        yield Channel(
            tuple(tuple(dataclasses.replace(step, lag=time // _ROUND_TICKS) for time, step in rows) for rows in rounds)
        )
