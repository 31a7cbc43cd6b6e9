"""`tune`: measures a library on this machine and writes the table of its fastest programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collc.bench.launchers import Place
from collc.bench.memory import check_memory
from collc.bench.runner import library_ranks
from collc.bench.team import GpuTeam, Team, gpu_team_of, team_of
from collc.checker.library import read_manifest
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import buffer_bytes, short_size, size_series
from collc.errors import RunError, UsageError
from collc.outputs import check_output
from collc.process import environment
from collc.topology.model import JOINT
from collc.tune.candidates import Candidate, Offer, read_offers
from collc.tune.files import FileTable, State, tuning_text, write_whole
from collc.tune.meter import Guard, TeamMeter
from collc.tune.search import Point, Problem, Row, Rules, table

WORKER, GPU_WORKER = "collc.tune.worker", "collc.tune.gpus"


@dataclass(frozen=True)
class TuneRequest:
    """A request to tune.

    Attributes:
        output: the tuning file; None for the library's name with .tuning instead of .so.
        ranks: the number of ranks; with a `place`, the size of the launcher's job.
        fresh: ignore the measurements of an interrupted run.
        place: the place of this process, rank 0, if a launcher started the ranks.
    """

    library: Path
    output: Path | None = None
    collectives: Sequence[Collective] = ()
    ranks: int | None = None
    min_bytes: int = 1 << 10
    max_bytes: int = 16 << 20
    factor: int = 4
    fresh: bool = False
    place: Place | None = None
    guard: Guard = field(default_factory=lambda: Guard())
    rules: Rules = field(default_factory=Rules)


@dataclass(frozen=True)
class Tuned:
    """The result for one collective: the result at each size, and the table."""

    collective: Collective
    points: tuple[Point, ...]
    rows: tuple[Row, ...]
    candidates: tuple[Candidate, ...]

    def label(self, number: int) -> str:
        return next(c.label() for c in self.candidates if c.number == number)

    def to_json(self) -> dict[str, Any]:
        return {
            "collective": self.collective.value,
            "points": [
                {
                    "bytes": p.bytes,
                    "before": self.label(p.embedded),
                    "before_us": p.embedded_us,
                    "after": self.label(p.chosen),
                    "after_us": p.chosen_us,
                    "settled": p.settled,
                }
                for p in self.points
            ],
            "table": [
                {
                    "min_bytes": row.min_bytes,
                    "program": self.label(row.program),
                    **({"weights": dict(zip(JOINT, row.weights, strict=True))} if row.weights else {}),
                }
                for row in self.rows
            ],
        }


@dataclass(frozen=True)
class TuneReport:
    """The result of a run.

    Attributes:
        resumed: the number of points from an interrupted run.
        unsettled: the number of measurements that did not settle.
    """

    output: Path
    machine: str
    nranks: int
    tuned: tuple[Tuned, ...]
    resumed: int
    unsettled: int
    machines: int

    def to_json(self) -> dict[str, Any]:
        return {
            "tuning": str(self.output),
            "machine": self.machine,
            "ranks": self.nranks,
            "machines": self.machines,
            "resumed": self.resumed,
            "unsettled": self.unsettled,
            "collectives": [one.to_json() for one in self.tuned],
        }


def tune(request: TuneRequest, status: Callable[[str], None] = lambda text: None) -> TuneReport:
    """Measures a library and writes a tuning file.

    Raises:
        UsageError: there is only one program to choose from.
        RunError: a rank failed or died. The next run uses the measurements so far.
    """
    manifest, nranks, sizes = check_request(request)
    output = request.output or request.library.with_suffix(".tuning")
    check_output(output)
    offers = read_offers(manifest)
    # The workers use the embedded table, even if COLLC_TUNING is set here.
    on_gpus = manifest["target"] == "cuda"
    started = (
        gpu_team_of(request.library, nranks, GPU_WORKER)
        if on_gpus
        else team_of(request.library, nranks, request.place, WORKER)
    )
    with environment("COLLC_TUNING", None), started as team:
        machine = _kind_of_machines(team)
        offer = _offer_in_use(team, offers, nranks)
        collectives = _collectives(request, offer)
        run = {
            "library": manifest["build_id"],
            "machine": machine,
            "ranks": nranks,
            "allocation": offer.allocation,
            "guard": dataclasses.asdict(request.guard),
            "rules": dataclasses.asdict(request.rules),
        }
        state = State(output, run)
        resumed = 0 if request.fresh else state.load()
        meter = TeamMeter(team, request.guard, offer.first_program)
        tuned, tables = [], []
        for number, collective in enumerate(collectives):
            progress = _Progress(collective, number, len(collectives), sizes, status)
            problem = _problem(team, offer, collective, nranks, meter, request.rules)
            found = _tune_one(problem, sizes, state, progress)
            tuned.append(found)
            tables += file_tables(offer, found)
        remark = f"{nranks} ranks, {short_size(sizes[0])} to {short_size(sizes[-1])}"
        write_whole(output, tuning_text(manifest["build_id"], machine, tables, remark))
        state.remove()
    return TuneReport(output, machine, nranks, tuple(tuned), resumed, meter.unsettled, team.machines)


def check_request(request: TuneRequest) -> tuple[dict[str, Any], int, list[int]]:
    """Checks a request, and returns the manifest, the number of ranks, and the sizes in bytes.

    Every rank of a launcher's job calls this.

    Raises:
        UsageError: the library cannot be tuned in this way, or its buffers do not fit in memory.
    """
    manifest = read_manifest(request.library)
    if manifest["target"] == "cuda" and request.place is not None:
        what = "ranks on GPUs are tuned in one process, not by a launcher"
        raise UsageError(what, where=str(request.library), hint="--launcher none, on one server")
    nranks = library_ranks(manifest, request.ranks)
    sizes = list(size_series(request.min_bytes, request.max_bytes, request.factor))
    offers = read_offers(manifest)
    wanted = request.collectives or [c for c in COMPILED if any(offer.roots(c) for offer in offers)]
    here = request.place.here if request.place and request.place.here else nranks
    check_memory(buffer_bytes(wanted, sizes[-1], nranks) * here // nranks, str(request.library))
    return manifest, nranks, sizes


def _kind_of_machines(team: Team | GpuTeam) -> str:
    """Returns the kind of machine of all ranks. A file is for one kind, and all ranks use the same file.

    Raises:
        RunError: the machines of two ranks are of different kinds.
    """
    kinds = [str(answer["machine"]) for answer in team.all({"do": "machine"})]
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            what = f"the machines of ranks 0 and {rank} are of different kinds: {kinds[0]}, {kind}"
            raise RunError(what, where="tune", hint="a tuning file is for one kind of machine")
    return kinds[0]


class _Progress:
    """Reports the progress of a run as a bar over collectives and sizes."""

    def __init__(
        self, collective: Collective, number: int, count: int, sizes: Sequence[int], status: Callable[[str], None]
    ) -> None:
        self.collective, self.sizes, self.status = collective, sizes, status
        self.at, self.count = number * len(sizes), count * len(sizes)

    def __call__(self, done: int) -> None:
        at = self.at + done
        bar = "#" * (24 * at // self.count)
        size = short_size(self.sizes[min(done, len(self.sizes) - 1)])
        self.status(f"[{bar:<24}] {at}/{self.count} {self.collective.value} {size}")


def _offer_in_use(team: Team | GpuTeam, offers: Sequence[Offer], nranks: int) -> Offer:
    """Returns the allocation of the communicator, as the library reports it.

    Raises:
        RunError: the library does not serve the ranks.
    """
    for collective in COMPILED:
        program = team.one(0, {"do": "program", "collective": collective.value, "root": _root(collective), "bytes": 64})
        for offer in offers:
            if 0 <= program["program"] - offer.first_program < len(offer.candidates):
                return offer
    raise RunError(f"the library does not serve {nranks} ranks here", hint="COLLC_DEBUG=INFO says more")


def _root(collective: Collective) -> int:
    return 0 if collective.rooted else -1


def _collectives(request: TuneRequest, offer: Offer) -> list[Collective]:
    held = [c for c in COMPILED if offer.roots(c)]
    wanted = list(request.collectives) or held
    for collective in wanted:
        if collective not in held:
            names = ", ".join(c.value for c in held)
            raise UsageError(f"the library has no {collective.value}", hint=f"it has {names}")
    first = {c: offer.of(c, offer.roots(c)[0]) for c in wanted}
    if all(len(one) == 1 and not one[0].weights for one in first.values()):
        raise UsageError(
            "the library has one program per collective, so there is nothing to choose from",
            where=str(request.library),
            hint="compile it with --tune-candidates",
        )
    return wanted


def _problem(
    team: Team | GpuTeam, offer: Offer, collective: Collective, nranks: int, meter: TeamMeter, rules: Rules
) -> Problem:
    """Returns the problem of a collective with NCCL's rank 0 as the root. The library chooses its rank in the plan."""
    root = _root(collective)
    order = {"do": "program", "collective": collective.value, "root": root, "bytes": 64}
    number = team.one(0, order)["program"] - offer.first_program
    plan_root = offer.candidates[number].root
    return Problem(collective, root, nranks, offer.of(collective, plan_root), meter, rules, meter)


def _tune_one(problem: Problem, sizes: Sequence[int], state: State, progress: _Progress) -> Tuned:
    name = problem.collective.value
    known = {size: point for size, point in state.points.get(name, {}).items() if size in sizes}
    numbers = {c.number for c in problem.candidates}
    known = {size: p for size, p in known.items() if {p.chosen, p.embedded} <= numbers}
    progress(len(known))

    def done(point: Point) -> None:
        state.add(name, point)
        progress(sizes.index(point.bytes) + 1)

    rows, points = table(problem, sizes, known, done)
    return Tuned(problem.collective, tuple(points), tuple(rows), tuple(problem.candidates))


def file_tables(offer: Offer, found: Tuned) -> list[FileTable]:
    """Returns the table of one root for all roots, which have the same variants if their plans exist."""
    keys = {c.number: c.key for c in found.candidates}
    tables = []
    for root in offer.roots(found.collective):
        own = offer.of(found.collective, root)
        by_key = {c.key: c.number for c in reversed(own)}
        rows: list[Row] = []
        for row in found.rows:
            number = by_key.get(keys[row.program], None if rows else own[0].number)
            if number is not None and (not rows or number != rows[-1].program):
                rows.append(Row(row.min_bytes, number, row.weights if keys[row.program] in by_key else ()))
        tables.append(FileTable(offer.allocation, own, rows))
    return tables
