"""Compares the output of every stage for small machines with tests/golden/; `--update-golden` rewrites the files."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import GOLDEN, Golden
from support.machines import two_servers
from support.programs import CUDA, HOST, chain, lowered, schedule_of

from collc.build.compile import Contents, generate
from collc.build.toolchain import Compiler
from collc.codegen.entry import Entry
from collc.collectives.model import Collective
from collc.ir.printer import print_program
from collc.options import Target
from collc.packing.document import PlanFile
from collc.packing.sets.gpu_sets import written_set
from collc.pipeline import Recorder, lower, lower_in_switch, pack
from collc.schedule.model import Schedule
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

STAR = [(0, 1), (0, 2), (0, 3)]


def _stage(name: str, target: Target = HOST, schedule: Schedule | None = None) -> Callable[[], str]:
    """The text after a stage, for an all_reduce over a chain and a star of four GPUs."""
    schedule = schedule or schedule_of(Collective.ALL_REDUCE, 4, [chain(4, 1), STAR])
    return lambda: print_program(dict(lowered(schedule, target))[name])


def _merged() -> str:
    schedule = schedule_of(Collective.BROADCAST, 4, [chain(4, 0), STAR, chain(4, 0)], root=0)
    from collc.lowering.merge_channels import merge_channels

    return print_program(merge_channels(dict(lowered(schedule, CUDA))["pipeline_hops"], limit=2))


def _document(machine: str, collective: Collective, gpus: list[str] | None = None) -> PlanFile:
    graph = plan_graph(load_topology(machine), gpus)
    plans = pack(graph, [(collective, 0 if collective.rooted else None)], Recorder())
    return PlanFile(machine, fingerprint(graph), graph, plans)


def _source() -> str:
    """The generated source of a small library: an all_gather over three GPUs of a DGX-1V."""
    document = _document("dgx1v", Collective.ALL_GATHER, ["gpu0", "gpu1", "gpu2"])
    programs = [lower(plan, document.graph, HOST, Recorder()) for plan in document.plans]
    sets = written_set(load_topology("dgx1v"), ["gpu0", "gpu1", "gpu2"])
    contents = Contents((document,), (tuple(Entry(program, n) for n, program in enumerate(programs)),), sets)
    text, build_id = generate(contents, HOST, Compiler("g++", "g++ (golden) 0.0"))
    # The build id covers the runtime's sources, which change more often than the tables; the manifest and the plan
    # follow it byte by byte and are tested where they are read back.
    assert len(build_id) == 32
    return text[: text.index("// JSON: what")]


def _routed() -> str:
    """A broadcast over two servers: the class and the links of each FIFO. Slots are shared only inside a server."""
    graph = plan_graph(two_servers())
    (plan,) = pack(graph, [(Collective.BROADCAST, 0)], Recorder())
    return print_program(lower(plan, graph, HOST, Recorder()))


def _in_switch() -> str:
    """An all_reduce that a switch adds up and copies, for three GPUs of an HGX H100."""
    graph = plan_graph(load_topology("hgx-h100"), ["gpu0", "gpu1", "gpu2"])
    (plan,) = pack(graph, [(Collective.ALL_REDUCE, None)], Recorder())
    return print_program(lower_in_switch(plan, graph, CUDA, 2, Recorder()))


GOLDENS: dict[str, Callable[[], str]] = {
    "build/all_reduce.ir": _stage("build"),
    "lower/fuse_copies-broadcast.ir": _stage(
        "fuse_copies", schedule=schedule_of(Collective.BROADCAST, 4, [chain(4, 1)], root=1)
    ),
    "lower/pipeline_hops-all_reduce.ir": _stage("pipeline_hops"),
    "lower/merge_channels-broadcast.ir": _merged,
    "lower/share_slots-all_reduce.ir": _stage("share_slots"),
    "lower/cuda-all_reduce.ir": _stage("merge_channels", CUDA),
    "lower/two-servers-broadcast.ir": _routed,
    "lower/in-switch-all_reduce.ir": _in_switch,
    "codegen/all_gather-3.cpp": _source,
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str, golden: Golden) -> None:
    golden.check(name, GOLDENS[name]())


def test_no_orphans() -> None:
    present = {str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*") if path.is_file()}
    assert present == set(GOLDENS), "files under tests/golden/ and the list above differ"
