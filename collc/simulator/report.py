"""Reports of a run: its critical path, and a Chrome trace that Perfetto opens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from collc.errors import UsageError
from collc.ir.nodes import Program, Step
from collc.simulator.engine import BY_DATA, BY_LAUNCH, BY_ORDER, BY_SLOT, Execution
from collc.simulator.run import Prediction
from collc.topology.model import PlanGraph

# Perfetto accepts more, but a file of hundreds of megabytes is of no use.
MOST_EVENTS = 500_000
_WHY = {BY_LAUNCH: "launch", BY_ORDER: "order", BY_DATA: "data", BY_SLOT: "slot"}


@dataclass(frozen=True)
class CriticalPath:
    """The chain of steps that the end waited for, first to last, and where its time went, in microseconds.

    launch + work + hop = the whole time: `work` is time inside the chain's steps, `hop` between them (delays of chunks
    and credits). `waits` counts what released the steps: launch, order (the same channel was busy), data, slot.
    """

    steps: tuple[Execution, ...]
    launch: float
    work: float
    hop: float
    waits: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """The path as JSON values; times in microseconds."""
        return {
            "steps": len(self.steps),
            "launch_us": self.launch,
            "work_us": self.work,
            "hop_us": self.hop,
            "waits": self.waits,
        }


def critical_path(prediction: Prediction) -> CriticalPath:
    """Follows causes back from the last step to end."""
    rows = prediction.outcome.executions
    launch = prediction.case.launch
    if not len(rows):
        return CriticalPath((), launch, 0.0, 0.0, {})
    path = [rows[len(rows) - 1]]
    while path[-1].cause >= 0:
        path.append(rows[path[-1].cause])
    path.reverse()
    work = sum(step.end - step.begin for step in path)
    hop = sum(after.begin - before.end for before, after in pairwise(path))
    waits = Counter(_WHY[step.why] for step in path)
    return CriticalPath(tuple(path), launch, work, hop, {name: waits[name] for name in _WHY.values() if waits[name]})


def chrome_trace(prediction: Prediction, program: Program, graph: PlanGraph | None = None) -> dict[str, Any]:
    """Trace Event Format: a process per rank, a thread per channel, a slice per step; times in microseconds.

    With the plan's graph, a step that sends also names the links of its chunks.

    Raises:
        UsageError: too many steps for a trace.
    """
    rows = prediction.outcome.executions
    if len(rows) > MOST_EVENTS:
        raise UsageError(f"{len(rows)} steps are too many for a trace", hint="choose a smaller size with -b and -e")
    loops = prediction.case.loops
    names = _link_names(graph)
    events: list[dict[str, Any]] = []
    for rank in sorted({loop.rank for loop in loops}):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
    for loop in loops:
        name = {"name": f"channel {loop.channel}"}
        events.append({"ph": "M", "name": "thread_name", "pid": loop.rank, "tid": loop.channel, "args": name})
    critical = {(s.loop, s.step, s.chunk) for s in critical_path(prediction).steps}
    for row in rows:
        loop = loops[row.loop]
        step = program.channels[loop.channel].steps[loop.rank][row.step]
        on_path = (row.loop, row.step, row.chunk) in critical
        events.append(
            {
                "ph": "X",
                "name": step.name,
                "cat": "critical" if on_path else "step",
                "pid": loop.rank,
                "tid": loop.channel,
                "ts": row.begin,
                "dur": row.end - row.begin,
                "args": {
                    "share": step.share,
                    "chunk": row.chunk,
                    "bytes": prediction.case.size(step.share, row.chunk),
                    "released_by": _WHY[row.why],
                    "from": [program.fifos[f].src for f in step.recv],
                    "to": [dst for f in step.send for dst in program.fifos[f].dsts],
                    **({"over": _over(program, step, names)} if names else {}),
                },
            }
        )
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _link_names(graph: PlanGraph | None) -> list[str]:
    if graph is None:
        return []
    return [f"{graph.vertices[x.src].name} > {graph.vertices[x.dst].name}" for x in graph.links]


def _over(program: Program, step: Step, names: Sequence[str]) -> list[str]:
    """The links that a step's chunks travel over, each once."""
    links = (link for f in step.send for route in program.fifos[f].routes for link in route)
    return [names[link] for link in dict.fromkeys(links)]
