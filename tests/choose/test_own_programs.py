"""`compile --ir`: programs of the user's own are verified and their plans read off them; wrong ones are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli import collc, refused

from collc.checker.library import check_follows
from collc.checker.packing import check_packing
from collc.choose.library import library_contents
from collc.choose.own_programs import fitted, plan_of, read_programs
from collc.choose.request import LibraryRequest
from collc.collectives.model import COMPILED
from collc.errors import CollcError, IRError
from collc.ir.build import build
from collc.ir.printer import print_program
from collc.lowering.reduce_everywhere import reduce_everywhere
from collc.options import TARGETS, TargetKind
from collc.packing import plan
from collc.pipeline import Recorder, lower
from collc.schedule.trees import schedule_trees
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph

SETS = {
    "dgx1v": [["gpu0", "gpu1", "gpu2", "gpu3"], ["gpu5", "gpu0", "gpu1", "gpu4", "gpu6"]],
    "hgx-h100": [["gpu0", "gpu3", "gpu7"]],
    "pcie-8xl40s": [["gpu0", "gpu1", "gpu6"]],
}
GRAPHS = [plan_graph(load_topology(name), gpus) for name, sets in SETS.items() for gpus in sets]

# A chain over the NVLinks of GPUs 0, 1 and 2 of a DGX-1V: 50 GB/s into GPU 1 by two of them, 50 out of it.
CHAIN = """collc-ir/1 broadcast root=0 ranks=3 slots=2 chunk=65536
share 0: block 0 [0, 1)
fifo 0: 0 -> 1 share 0 index 0 over nvlink {first}
fifo 1: 1 -> 2 share 0 index 0 over nvlink {second}
channel 0
  rank 0
    copySend share 0 lag 0 send 0
  rank 1
    recvCopySend share 0 lag 0 recv 0 send 1
  rank 2
    recv share 0 lag 0 recv 1
"""
THREE = plan_graph(load_topology("dgx1v"), ["gpu0", "gpu1", "gpu2"])


def link(src: int, dst: int) -> int:
    return next(x.id for x in THREE.links if (x.src, x.dst) == (src, dst))


def chain() -> str:
    return CHAIN.format(first=link(0, 1), second=link(1, 2))


@pytest.mark.parametrize("kind", list(TargetKind))
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: f"{g.name}-{g.nranks}")
def test_the_plan_of_every_program_of_ours_is_found_again(tmp_path: Path, graph: PlanGraph, kind: TargetKind) -> None:
    seen = 0
    for collective in (c for c in COMPILED if c.uses_trees):
        for root in (0, graph.nranks - 1) if collective.rooted else (None,):
            packed = plan(graph, collective, root)
            first = build(schedule_trees(packed, graph.nranks), chunk_bytes=65536, graph=graph)
            for program in (first, lower(packed, graph, TARGETS[kind], Recorder())):
                path = tmp_path / "own.ir"
                path.write_text(print_program(program))
                plans, programs = fitted(read_programs([path]), graph, [packed], TARGETS[kind])
                assert plans[0].rate == packed.rate
                assert plans[0].optimal == packed.optimal
                check_packing(graph, plans[0])
                check_follows(programs[0], plans[0], graph)
                seen += 1
    assert seen == 14


def test_a_program_by_hand_becomes_a_library_that_moves_data(tmp_path: Path) -> None:
    path, out = tmp_path / "chain.ir", tmp_path / "own.so"
    path.write_text(chain())
    made = collc("compile", "dgx1v", "--gpus", "0-2", "--target", "host", "--ir", path, "-o", out)
    assert made.code == 0, made.err
    verified = collc("verify", out)
    assert verified.code == 0, verified.err
    assert "broadcast from rank 0: 25 GB/s, at most" in verified.out or "broadcast from rank 0: 50" in verified.out
    rows = json.loads(collc("bench", out, "--collective", "broadcast", "-b", "64K", "-e", "64K", "--json").out)["rows"]
    assert rows
    assert all(row["wrong"] == 0 for row in rows)


def test_other_collectives_and_roots_stay_ours(tmp_path: Path) -> None:
    path = tmp_path / "chain.ir"
    path.write_text(chain())
    for kind in TargetKind:
        contents = library_contents(LibraryRequest("dgx1v", gpus="0-2", programs=[path]), TARGETS[kind])
        plans, entries = contents.documents[0].plans, contents.entries[0]
        given = [entry for entry in entries if entry.why == "as given"]
        assert [entry.program.chunk_bytes for entry in given] == [65536]
        assert [(plans[e.plan].collective.value, plans[e.plan].root) for e in given] == [("broadcast", 0)]
        served = {(plans[e.plan].collective, plans[e.plan].root) for e in entries}
        assert len(served) == 9
        assert sum((plans[e.plan].collective.value, plans[e.plan].root) == ("broadcast", 0) for e in entries) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("recv share 0 lag 0 recv 1", "recv share 0 lag 0 recv 0"), "does not lead here"),
        (("[0, 1)", "[0, 1/2)"), ""),
        (("copySend", "send"), ""),
        ((" over nvlink {second}", ""), "has no route"),
        (("over nvlink {second}", "over nvlink {first}"), "does not go on from"),
        (("over nvlink {second}", "over nvlink 99"), "does not go on from"),
        (("over nvlink {second}", "over pcie {second}"), "not of the class"),
        (("root=0", "root=1"), ""),
        (("broadcast root=0", "alltoall"), "hold no programs for"),
        (("ranks=3", "ranks=4"), "is for 4 ranks, the library has 3"),
        (("collc-ir/1", "collc-ir/9"), "expected"),
    ],
)
def test_wrong_programs_are_refused(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    old, new = change
    text = CHAIN.replace(old, new).format(first=link(0, 1), second=link(1, 2))
    assert text != chain()
    path = tmp_path / "wrong.ir"
    path.write_text(text)
    packed = [plan(THREE, c, 0 if c.rooted else None) for c in COMPILED if c.uses_trees]
    with pytest.raises(CollcError) as error:
        fitted(read_programs([path]), THREE, packed, TARGETS[TargetKind.HOST])
    assert words in str(error.value)
    assert str(path) in str(error.value)


def test_what_runs_along_no_tree_has_no_plan() -> None:
    collective = next(c for c in COMPILED if c.reduces and c.spreads)
    packed = plan(THREE, collective, None)
    everywhere = reduce_everywhere(lower(packed, THREE, TARGETS[TargetKind.HOST], Recorder()))
    with pytest.raises(IRError, match="tree"):
        plan_of(everywhere, THREE, packed)


def test_the_wrong_places_for_a_program_are_one_line(tmp_path: Path) -> None:
    path, out = tmp_path / "chain.ir", tmp_path / "x.so"
    path.write_text(chain())

    def line(*argv: object, code: int = 2) -> str:
        return refused(collc("compile", *argv, "--target", "host", "--ir", path, "-o", out), code=code)

    assert "--ir is for one set of GPUs" in line("dgx1v", "--allocations", "3..4")
    assert "--ir is for one set of GPUs" in line("dgx1v", "--survive", "1")
    assert "is for 3 ranks, the library has 4" in line("dgx1v", "--gpus", "0-3")
    assert "of this root is not in the library" in line("dgx1v", "--gpus", "0-2", "--root", "1")
    assert "for the same collective and root as" in line("dgx1v", "--gpus", "0-2", "--ir", path)
    assert not out.exists()
