"""Runs a library with one process per rank and measures it as nccl-tests does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collc.bench.breakdown import ChannelShare, shares
from collc.bench.data import TYPES
from collc.bench.launchers import Place
from collc.bench.memory import check_memory
from collc.bench.team import gpu_team_of, team_of
from collc.checker.library import read_manifest
from collc.collectives.model import Collective
from collc.collectives.sizes import buffer_bytes, call_bytes, element_count, size_series
from collc.errors import UsageError


@dataclass(frozen=True)
class BenchRequest:
    """A request to measure, with the meanings and defaults of nccl-tests unless stated otherwise."""

    library: Path
    collectives: Sequence[Collective]
    min_bytes: int
    max_bytes: int
    step_bytes: int
    step_factor: int
    iters: int
    warmup: int
    check: int
    types: Sequence[str]
    ops: Sequence[str]
    root: int | None  # None: all roots
    ranks: int | None
    ranks_here: int | None = None  # the number of ranks on this machine; None: all


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        wrong: the number of wrong elements over all ranks and checks; None if unchecked.
        breakdown: the times of channels; empty unless the library has counters (`collc.bench.breakdown`).
    """

    collective: str
    type: str
    op: str
    root: int
    in_place: bool
    bytes: int
    count: int
    plan: str
    proto: str
    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: int | None
    breakdown: Sequence[ChannelShare] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the row as JSON values, with times in microseconds and rates in GB/s."""
        hidden = {"count"} if self.breakdown else {"count", "breakdown"}
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in hidden}


def library_ranks(manifest: dict[str, Any], wanted: int | None) -> int:
    """Returns the number of ranks to start: `wanted`, or the largest number that the library serves.

    Raises:
        UsageError: the library does not serve this number.
    """
    held = sorted({allocation["nranks"] for allocation in manifest["allocations"]})
    if wanted is None:
        return int(held[-1])
    if wanted not in held:
        raise UsageError(f"the library serves {', '.join(map(str, held))} ranks, not {wanted}")
    return wanted


def cases(request: BenchRequest) -> list[dict[str, Any]]:
    """Returns the orders for all cases, in the format of collc.bench.worker.

    Raises:
        UsageError: the library does not support the request, or its buffers do not fit in memory.
    """
    manifest = read_manifest(request.library)
    nranks = library_ranks(manifest, request.ranks)
    held = {p["collective"] for a in manifest["allocations"] if a["nranks"] == nranks for p in a["programs"]}
    sizes = size_series(request.min_bytes, request.max_bytes, request.step_factor, request.step_bytes)
    here = nranks if request.ranks_here is None else request.ranks_here
    check_memory(buffer_bytes(request.collectives, sizes[-1], nranks) * here // nranks, str(request.library))
    return list(_orders(request, sizes, nranks, held))


@dataclass(frozen=True)
class Serving:
    """The plan that serves the ranks.

    Attributes:
        allocation: the number of the allocation in the library.
        lost: the loss of its machine; "nothing" for the whole machine, empty if the library does not report it.
        machines: the number of machines of the ranks.
    """

    allocation: int
    fingerprint: str
    lost: str
    machines: int

    def text(self) -> str:
        return f"plan {self.fingerprint}, lost: {self.lost}" if self.lost else f"plan {self.fingerprint}"


def _serving(manifest: dict[str, Any], told: dict[str, Any], machines: int) -> Serving | None:
    allocations, states = manifest["allocations"], manifest.get("states", [])
    number, state = told.get("allocation", -1), told.get("state", -1)
    if not 0 <= number < len(allocations):
        return None
    lost = states[state] if 0 <= state < len(states) else ""
    return Serving(number, allocations[number]["fingerprint"], lost, machines)


def run_bench(
    request: BenchRequest,
    report: Callable[[Row], None],
    place: Place | None = None,
    served: Callable[[Serving], None] = lambda serving: None,
) -> list[Row]:
    """Measures every case, calls `report` with each row, and returns all rows.

    Args:
        place: the place of this process, rank 0, if a launcher started the ranks. `request.ranks` is then its size.
        served: is called once with the plan that serves the ranks, if the library reports it.

    Raises:
        RunError: a rank failed or died. All ranks have been ended.
    """
    orders = cases(request)
    manifest = read_manifest(request.library)
    nranks = library_ranks(manifest, request.ranks)
    programs = [program for allocation in manifest["allocations"] for program in allocation["programs"]]
    rows: list[Row] = []
    on_gpus = manifest["target"] == "cuda"
    with gpu_team_of(request.library, nranks) if on_gpus else team_of(request.library, nranks, place) as team:
        serving = _serving(manifest, team.serves, team.machines)
        if serving is not None:
            served(serving)
        for order in orders:
            answers = team.all(order)
            row = _row(order, answers, nranks, programs)
            rows.append(row)
            report(row)
    return rows


def _orders(request: BenchRequest, sizes: Sequence[int], nranks: int, held: set[str]) -> Iterator[dict[str, Any]]:
    for collective in request.collectives:
        if collective.value not in held:
            raise UsageError(f"the library has no {collective.value}", hint=f"it has {', '.join(sorted(held))}")
        roots: Sequence[int] = [-1]
        if collective.rooted:
            roots = range(nranks) if request.root is None else [request.root]
            if request.root is not None and not 0 <= request.root < nranks:
                raise UsageError(f"root {request.root} is not a rank of 0..{nranks - 1}")
        for kind in request.types:
            for op in request.ops if collective.reduces else [None]:
                for root in roots:
                    for size in sizes:
                        count = element_count(collective, size, TYPES[kind].size, nranks)
                        for in_place in (False, True):
                            yield {
                                "do": "case",
                                "collective": collective.value,
                                "type": kind,
                                "op": op,
                                "root": root,
                                "count": count,
                                "in_place": in_place,
                                "warmup": request.warmup,
                                "iters": request.iters,
                                "check": request.check,
                            }


def _row(
    order: dict[str, Any], answers: Sequence[dict[str, Any]], nranks: int, programs: Sequence[dict[str, Any]]
) -> Row:
    """Returns the row of a case.

    Args:
        programs: the manifest's programs of all allocations. The answers have the number of the one that ran.
    """
    collective = Collective(order["collective"])
    size = call_bytes(collective, order["count"], TYPES[order["type"]].size, nranks)
    seconds = sum(answer["seconds"] for answer in answers) / len(answers)
    algbw = size / seconds / 1e9 if seconds else 0.0
    checked = [answer["wrong"] for answer in answers if answer["wrong"] is not None]
    number = answers[0]["program"]
    ran = programs[number] if 0 <= number < len(programs) else {}
    plan = ran.get("plan", "-") + ("+everywhere" if ran.get("everywhere") else "")
    return Row(
        collective=collective.value,
        type=order["type"],
        op=order["op"] or "none",
        root=order["root"],
        in_place=order["in_place"],
        bytes=size,
        count=order["count"],
        plan=plan,
        proto=answers[0]["proto"] or ran.get("proto", "-"),
        time_us=seconds * 1e6,
        algbw_gbps=algbw,
        busbw_gbps=algbw * collective.bus_factor(nranks),
        wrong=sum(checked) if checked else None,
        breakdown=shares(answers, max(1, order["iters"])),
    )
