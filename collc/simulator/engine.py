"""The event-driven engine: the definition of the model. `engine.cpp` computes the same, faster.

A loop runs its steps in order. A step waits until every chunk that it receives has arrived and every FIFO that it sends
into has a free slot; then it works for the machine's fixed time, then its flows start, one per FIFO sent into (or one
local flow). Flows share links and their own thread block max-min fairly. When the last flow of a step ends, the slots
that it received are credited to their writers after `credit` and the FIFO's own, together with those that were kept
behind them, and its chunks arrive after the FIFO's delay; the loop goes on.

Complexity: each event costs one water-filling over the flows in flight.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collc.errors import IRError
from collc.simulator.model import Case, CaseStep

START, ARRIVE, CREDIT = 0, 1, 2
# Causes of an execution: what it waited for last.
BY_LAUNCH, BY_ORDER, BY_DATA, BY_SLOT = 0, 1, 2, 3
# Times closer than this (relative) are one moment; so are flows this close to their end.
EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Execution:
    """One step on one chunk. `cause` is the execution that released it (-1: the launch), `why` a BY_ constant."""

    loop: int
    step: int
    chunk: int
    begin: float
    end: float
    cause: int
    why: int


@dataclass(frozen=True)
class Outcome:
    """A run: total microseconds, bytes carried by each link, and every execution in order of its end.

    If loops that behave alike were simulated once, only one of them has executions, and `alike` names all loops that it
    represents. A loop that is absent from `alike` represents only itself.
    """

    time: float
    link_bytes: tuple[float, ...]
    executions: Sequence[Execution]
    alike: Mapping[int, Sequence[int]] = field(default_factory=dict)


def fair_rates(paths: Sequence[Sequence[tuple[int, int]]], capacity: Sequence[float]) -> list[float]:
    """Max-min fair rates of flows by water-filling (Bertsekas and Gallager, Data Networks, chapter 6).

    Args:
        paths: the resources that each flow uses, each once, and how often it counts there: a flow that stands for
            several like it takes its rate times this number.
        capacity: of each resource.
    """
    rates = [math.inf] * len(paths)
    left = list(capacity)
    users: dict[int, list[int]] = {}
    count: dict[int, int] = {}
    for flow, path in enumerate(paths):
        for resource, weight in path:
            users.setdefault(resource, []).append(flow)
            count[resource] = count.get(resource, 0) + weight
    while count:
        tight = min(count, key=lambda resource: (left[resource] / count[resource], resource))
        share = left[tight] / count[tight]
        if share == math.inf:
            break
        for flow in users[tight]:
            if rates[flow] == math.inf:
                rates[flow] = share
                for resource, weight in paths[flow]:
                    left[resource] = max(0.0, left[resource] - share * weight)
                    count[resource] -= weight
                    if not count[resource]:
                        del count[resource]
    return rates


@dataclass(slots=True)
class _Flow:
    loop: int
    path: tuple[tuple[int, int], ...]
    left: float
    total: float
    rate: float = 0.0


class Engine:
    """One run of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        n = len(case.loops)
        self.now = case.launch
        self.heap: list[tuple[float, int, int, int, int]] = []
        self.sequence = 0
        self.flows: list[_Flow] = []
        self.changed = False
        self.ended: list[int] = []
        # The state of each loop: iteration, step, whether it is active, flows in progress, last execution, its start.
        self.iteration, self.at = [0] * n, [0] * n
        self.busy, self.pending = [False] * n, [0] * n
        self.last, self.began, self.because = [-1] * n, [0.0] * n, [(-1, BY_LAUNCH)] * n
        self.iterations = [
            max((case.chunks[s.share][0] + s.lag for s in loop.steps if case.chunks[s.share][0]), default=0)
            for loop in case.loops
        ]
        m = len(case.fifos)
        self.queue = [f if fifo.queue < 0 else fifo.queue for f, fifo in enumerate(case.fifos)]
        self.written, self.freed, self.arrived, self.read = [0] * m, [0] * m, [0] * m, [0] * m
        self.kept = {fifo.behind for fifo in case.fifos}
        self.executions: list[Execution] = []
        self.link_bytes = [0.0] * len(case.capacity)
        self.capacity = [*case.capacity, *([math.inf] * n)]
        self.end = case.launch if n else 0.0

    def run(self) -> Outcome:
        """Runs to the end.

        Raises:
            IRError: steps remain that nothing can release.
        """
        for loop in range(len(self.case.loops)):
            self._advance(loop, -1, BY_LAUNCH)
            self._resume()
        while self.heap or self.flows:
            self._move()
        left = self.case.executions - len(self.executions)
        if left:
            raise IRError(f"the simulated program stops with {left} steps left to run")
        return Outcome(self.end, tuple(self.link_bytes), tuple(self.executions))

    def _move(self) -> None:
        """To the next moment: ends flows, then handles events."""
        if self.changed:
            for flow, rate in zip(
                self.flows, fair_rates([f.path for f in self.flows], self._capacities()), strict=True
            ):
                flow.rate = rate
            self.changed = False
        soonest = min((flow.left / flow.rate for flow in self.flows), default=math.inf)
        at = min(self.now + soonest, self.heap[0][0] if self.heap else math.inf)
        span = at - self.now
        self.now = at
        done: list[_Flow] = []
        still: list[_Flow] = []
        for flow in self.flows:
            flow.left -= flow.rate * span if flow.rate != math.inf else flow.left
            # The remainder may take less time than `now` can resolve, and would never finish.
            ended = flow.left <= EPSILON * flow.total or self.now + flow.left / flow.rate <= self.now
            (done if ended else still).append(flow)
        self.flows = still
        self.changed = bool(done)
        for flow in done:
            self.pending[flow.loop] -= 1
            if not self.pending[flow.loop]:
                self._finish(flow.loop)
                self._resume()
        while self.heap and self.heap[0][0] <= self.now * (1 + EPSILON):
            _, _, kind, which, cause = heapq.heappop(self.heap)
            if kind == START:
                self._start(which)
            elif kind == ARRIVE:
                self.arrived[self.queue[which]] += 1
                self._advance(self.case.fifos[which].reader, cause, BY_DATA)
            else:
                for fifo in (which, self.case.fifos[which].behind):
                    if fifo >= 0:
                        self.freed[self.queue[fifo]] += 1
                        self._advance(self.case.fifos[fifo].writer, cause, BY_SLOT)
            self._resume()

    def _resume(self) -> None:
        """Loops that have just ended a step go on: a list, not recursion, as steps without flows take no time."""
        while self.ended:
            loop = self.ended.pop()
            self._advance(loop, self.last[loop], BY_ORDER)

    def _capacities(self) -> list[float]:
        """The block limits of active steps, in addition to the links."""
        for flow in self.flows:
            self.capacity[len(self.case.capacity) + flow.loop] = self._step(flow.loop).rate
        return self.capacity

    def _step(self, loop: int) -> CaseStep:
        return self.case.loops[loop].steps[self.at[loop]]

    def _push(self, delay: float, kind: int, which: int, cause: int) -> None:
        heapq.heappush(self.heap, (self.now + delay, self.sequence, kind, which, cause))
        self.sequence += 1

    def _advance(self, loop: int, cause: int, why: int) -> None:
        """Starts the loop's next step if it has nothing to wait for."""
        if self.busy[loop]:
            return
        case = self.case
        steps = case.loops[loop].steps
        while self.iteration[loop] < self.iterations[loop]:
            step = steps[self.at[loop]]
            if 0 <= self.iteration[loop] - step.lag < case.chunks[step.share][0]:
                break
            self._next(loop, len(steps))
        else:
            return
        recv, send = ([self.queue[f] for f in fifos] for fifos in (step.recv, step.send))
        if any(self.arrived[q] <= self.read[q] for q in recv):
            return
        if any(self.written[q] - self.freed[q] >= case.slots for q in send):
            return
        for q in recv:
            self.read[q] += 1
        for q in send:
            self.written[q] += 1
        self.busy[loop] = True
        self.began[loop], self.because[loop] = self.now, (cause, why)
        if case.step + step.launch > 0:
            self._push(case.step + step.launch, START, loop, -1)
        else:
            self._start(loop)

    def _next(self, loop: int, nsteps: int) -> None:
        self.at[loop] += 1
        if self.at[loop] == nsteps:
            self.at[loop] = 0
            self.iteration[loop] += 1

    def _start(self, loop: int) -> None:
        case = self.case
        step = self._step(loop)
        size = float(case.size(step.share, self.iteration[loop] - step.lag))
        limited = step.rate != math.inf
        paths = []
        for fifo in (case.fifos[f] for f in step.send):
            path = list(zip(fifo.links, fifo.weights or (1,) * len(fifo.links), strict=True))
            for link, weight in path:
                self.link_bytes[link] += size * weight
            paths.append((*path, *([(len(case.capacity) + loop, fifo.copies)] if limited else [])))
        if not step.send and limited:
            paths.append(((len(case.capacity) + loop, 1),))
        paths = [path for path in paths if path]
        self.pending[loop] = len(paths)
        if not paths or not size:
            self.pending[loop] = 0
            self._finish(loop)
            return
        self.flows += [_Flow(loop, path, size, size) for path in paths]
        self.changed = True

    def _finish(self, loop: int) -> None:
        step = self._step(loop)
        me = len(self.executions)
        cause, why = self.because[loop]
        chunk = self.iteration[loop] - step.lag
        self.executions.append(Execution(loop, self.at[loop], chunk, self.began[loop], self.now, cause, why))
        self.last[loop] = me
        self.end = max(self.end, self.now)
        for f in step.recv:
            if f not in self.kept:
                self._push(self.case.credit + self.case.fifos[f].credit, CREDIT, f, me)
        for f in step.send:
            self._push(self.case.fifos[f].delay, ARRIVE, f, me)
        self.busy[loop] = False
        self._next(loop, len(self.case.loops[loop].steps))
        self.ended.append(loop)


def run(case: Case) -> Outcome:
    """Runs a case in Python."""
    return Engine(case).run()
