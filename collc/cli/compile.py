"""`collc compile`: compiles a topology into a library."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from collc.build.account import BUILT, CACHE, WHEEL, Part
from collc.build.plans import SolutionCache
from collc.choose.idle_links import AUTO
from collc.choose.servers import SEVERAL_SERVERS
from collc.cli import report
from collc.cli.losses import losses_json, losses_text
from collc.cli.report import debug_option, emit_json, json_option, note, progress, table
from collc.cli.sections import SectionedCommand
from collc.collectives.model import COMPILED, Collective
from collc.compiler import CompileRequest, CompileResult, KindsResult, compile_kinds, compile_topology
from collc.errors import UsageError
from collc.options import TARGETS, TargetKind
from collc.pipeline import Recorder, stage_names
from collc.simulator.generations import MACHINES

_ORIGINS = {BUILT: "built", CACHE: "from the build cache", WHEEL: "from the wheel of collc"}
_STAGES = sorted({name for target in TARGETS.values() for name in stage_names(target)})


@click.command("compile", cls=SectionedCommand)
@click.argument("topology", metavar="TOPO")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Library to write [libcollc-<name>.so]; for a topology of several servers the folder [libcollc-<name>], or "
    "one file *.so for all.",
)
@click.option(
    "--target", type=click.Choice([k.value for k in TargetKind]), help="cuda if its compiler is found, else host."
)
@click.option("--gpus", metavar="LIST", help="The GPUs in rank order, such as 0,1,4,7 or server0:0-2 [all].")
@click.option(
    "--allocations",
    metavar="WHICH",
    help="Sets of GPUs to serve: connected, all, N..M, or sets as in --gpus separated by /.",
)
@click.option("--links", metavar="CLASSES", help="Link classes to use instead of the fast one, or 'all'.")
@click.option(
    "--classes",
    metavar="CLASSES",
    default=AUTO,
    show_default=True,
    help="Classes of links that share large calls if the model predicts a gain, such as nvlink,pcie; nvlink: no others "
    "beside it; auto: pcie beside nvlink with half of its speed (target cuda).",
)
@click.option(
    "--relay", type=click.Choice(["idle"]), help="Let idle GPUs of the machine forward data (target host, with --gpus)."
)
@click.option(
    "--collective",
    "collectives",
    multiple=True,
    type=click.Choice([c.value for c in COMPILED]),
    help="Repeatable [all].",
)
@click.option("--root", "roots", multiple=True, type=click.IntRange(min=0), help="Roots of broadcast and reduce [all].")
@click.option(
    "--model",
    type=click.Choice(list(MACHINES)),
    help="GPU parameters used to choose programs by size (target cuda) [from the topology's gpu_model].",
)
@click.option(
    "--params", type=click.Path(path_type=Path), metavar="FILE", help="Take parameters from a file (target cuda)."
)
@click.option(
    "--cuda",
    type=click.Choice(["12"]),
    help="Build all device code with CUDA 12, for drivers from 525 on (target cuda) [13, and 12 for older GPUs].",
)
@click.option(
    "--counters", is_flag=True, help="Build kernels with counters for `collc bench --breakdown` (target cuda)."
)
@click.option(
    "--specialise",
    is_flag=True,
    help="Also build kernels whose steps are written out, for the programs that are used most (target cuda).",
)
@click.option(
    "--in-switch",
    is_flag=True,
    help="Also build programs that add and copy inside a switch (NVLS), for large calls (target cuda).",
)
@click.option(
    "--direct",
    is_flag=True,
    help="Let GPUs read each other's buffers of ncclMemAlloc directly (target cuda).",
)
@click.option("--tune-candidates", is_flag=True, help="Add the plans and chunk sizes that `collc tune` compares.")
@click.option(
    "--survive",
    type=click.IntRange(0, 1),
    default=0,
    show_default=True,
    help="1: also build programs for the machine after every single loss (link, switch plane, GPU).",
)
@click.option(
    "--plan",
    "plans",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take plans of your own from a file (collc-plan/1) instead of packing.",
)
@click.option(
    "--ir",
    "programs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take a program of your own from an IR text instead of lowering a plan; repeatable.",
)
@click.option("--keep-source", type=click.Path(path_type=Path), help="Also write the generated source to this file.")
@click.option(
    "--dump-after",
    "dump_after",
    multiple=True,
    type=click.Choice(_STAGES),
    help="Write the IR after this stage; repeatable.",
)
@click.option("--dump-dir", type=click.Path(path_type=Path), default=Path("collc-dump"), show_default=True)
@click.option(
    "--rebuild",
    is_flag=True,
    help="Build everything again, without the build cache and the parts that came with collc, and print each part.",
)
@click.option(
    "--time-stages", is_flag=True, help="Print the seconds that each stage took, and the parts that existed already."
)
@json_option
@debug_option
def command(
    topology: str,
    output: Path | None,
    target: str | None,
    gpus: str | None,
    allocations: str | None,
    links: str | None,
    classes: str,
    relay: str | None,
    collectives: tuple[str, ...],
    roots: tuple[int, ...],
    model: str | None,
    params: Path | None,
    cuda: str | None,
    counters: bool,
    specialise: bool,
    in_switch: bool,
    direct: bool,
    tune_candidates: bool,
    survive: int,
    plans: Path | None,
    programs: tuple[Path, ...],
    keep_source: Path | None,
    dump_after: tuple[str, ...],
    dump_dir: Path,
    rebuild: bool,
    time_stages: bool,
    as_json: bool,
) -> None:
    """Compile TOPO, a file or a machine of `collc topologies`, into a library with the NCCL API.

    A topology of several servers gives a folder with one library for each kind of server, and with -o FILE.so one
    library for all kinds. Each runs inside one server.
    """
    if dump_after and dump_dir.exists() and not dump_dir.is_dir():
        raise UsageError("is not a folder", where=f"--dump-dir {dump_dir}", hint="name a folder, which may be new")
    recorder = Recorder(frozenset(dump_after), dump_dir, store=SolutionCache())
    request = CompileRequest(
        topology=topology,
        output=output,
        target=TargetKind(target) if target else None,
        gpus=gpus,
        allocations=allocations,
        links=links,
        classes=classes,
        relay=relay is not None,
        collectives=tuple(map(Collective, collectives)) or COMPILED,
        roots=roots or None,
        keep_source=keep_source,
        model=model,
        params=params,
        tune_candidates=tune_candidates,
        survive=survive,
        plans=plans,
        programs=programs,
        cuda=int(cuda) if cuda else None,
        counters=counters,
        specialise=specialise,
        in_switch=in_switch,
        direct=direct,
        rebuild=rebuild,
    )
    status = progress("collc compile")
    start = time.perf_counter()
    kinds = compile_kinds(request, recorder, status)
    if kinds is not None:
        status("")
        elapsed = time.perf_counter() - start
        _report_kinds(kinds, recorder, elapsed, time_stages, as_json)
        if not as_json and (time_stages or rebuild):
            results = [kinds.built[0][1]] if kinds.folder is None else [result for _, result in kinds.built]
            _parts([part for result in results for part in result.parts])
        return
    result = compile_topology(request, recorder, status)
    status("")
    elapsed = time.perf_counter() - start
    for path in recorder.written:
        note(f"wrote {path}")
    if as_json:
        emit_json(_as_json(result, recorder, elapsed, time_stages))
        return
    if result.note:
        note(result.note)
    _text(result, f", {elapsed:.1f} s")
    _stages(recorder, time_stages)
    if time_stages or rebuild:
        _parts(result.parts)


def _report_kinds(found: KindsResult, recorder: Recorder, elapsed: float, time_stages: bool, as_json: bool) -> None:
    """Prints the library of each kind of server, and its servers; or the one library for all."""
    for path in recorder.written:
        note(f"wrote {path}")
    if found.folder is None:
        _report_one(found, recorder, elapsed, time_stages, as_json)
        return
    for path in found.others:
        note(f"{path} was here before; `collc run --lib {found.folder}` looks at it too")
    for text in dict.fromkeys(result.note for _, result in found.built if result.note):
        note(text)
    if as_json:
        libraries = [
            {"servers": list(kind.servers), **_as_json(result, recorder, elapsed, time_stages)}
            for kind, result in found.built
        ]
        emit_json({"folder": str(found.folder), "seconds": round(elapsed, 3), "libraries": libraries})
        return
    for kind, result in found.built:
        report.line(f"{_servers(kind.servers)}:")
        _text(result, "")
    report.line(
        f"{found.folder}: {len(found.built)} kind{'s' * (len(found.built) > 1)} of servers, {elapsed:.1f} s; "
        f"`collc run --lib {found.folder} -- CMD` picks the library of the server it runs on"
    )
    report.line(SEVERAL_SERVERS)
    _stages(recorder, time_stages)


def _report_one(found: KindsResult, recorder: Recorder, elapsed: float, time_stages: bool, as_json: bool) -> None:
    """Prints the one library for all kinds of servers."""
    result = found.built[0][1]
    if as_json:
        kinds = [{"servers": list(kind.servers), "fingerprint": kind.fingerprint} for kind, _ in found.built]
        emit_json({**_as_json(result, recorder, elapsed, time_stages), "kinds": kinds})
        return
    if result.note:
        note(result.note)
    for kind, _ in found.built:
        report.line(f"for {_servers(kind.servers)}")
    _text(result, f", {elapsed:.1f} s")
    if len(found.built) > 1:
        report.line(f"`collc run --lib {result.library.path} -- CMD` tells the library its machine")
    report.line(SEVERAL_SERVERS)
    _stages(recorder, time_stages)


def _servers(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"server {names[0]}"
    shown = ", ".join(names[:4]) + (f" ... {names[-1]}" if len(names) > 4 else "")
    return f"{len(names)} servers ({shown})"


def _as_json(result: CompileResult, recorder: Recorder, elapsed: float, time_stages: bool) -> dict[str, object]:
    value: dict[str, object] = {
        "library": str(result.library.path),
        "target": result.target.value,
        "build_id": result.library.build_id,
        "bytes": result.library.size,
        "seconds": round(elapsed, 3),
        "fingerprint": result.documents[0].fingerprint,
        "nranks": max(document.graph.nranks for document in result.documents),
        "allocations": len(result.documents),
        "gpu_sets": result.gpu_sets,
        "programs": result.nprograms,
        "tables": result.tables(),
        "parts": [part.row() for part in result.parts],
    }
    if result.gpu_sets_held.states:
        value["losses"] = losses_json(result.losses())
    if result.library.device:
        value["device_code"] = result.library.device.rows()
    if result.note:
        value["note"] = result.note
    if result.parameters:
        value["parameters"] = result.parameters
    if time_stages:
        value["stages"] = {name: round(seconds, 4) for name, seconds in recorder.seconds.items()}
    return value


def _text(result: CompileResult, seconds: str) -> None:
    report.text(result.summary())
    if result.gpu_sets_held.states:
        report.text(losses_text(result.losses()))
    if result.parameters:
        report.line(result.parameters)
    ranks = " or ".join(map(str, sorted({document.graph.nranks for document in result.documents})))
    report.line(
        f"wrote {result.library.path}: target {result.target.value}, {ranks} ranks, "
        f"{result.nprograms} programs, {result.library.size / 1e6:.1f} MB{seconds}"
    )
    if result.library.device:
        counting = ", which counts (collc bench --breakdown)" if result.library.device.counters else ""
        report.line(f"device code: {result.library.device.text}{counting}")


def _stages(recorder: Recorder, time_stages: bool) -> None:
    if time_stages:
        rows = [[name, f"{seconds:.3f}"] for name, seconds in recorder.seconds.items()]
        report.text(table(["stage", "seconds"], rows))


def _parts(parts: Sequence[Part]) -> None:
    """Prints where each part of a library came from; the time is empty for parts that existed already."""
    rows = [[part.name, part.origin, f"{part.seconds:.3f}" if part.seconds else ""] for part in parts]
    report.text(table(["part", "from", "seconds"], rows))
    counts = [f"{sum(part.origin == origin for part in parts)} {text}" for origin, text in _ORIGINS.items()]
    report.line(f"{len(parts)} parts: {', '.join(counts)}")
