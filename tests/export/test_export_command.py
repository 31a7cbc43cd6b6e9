"""`collc export`: every format is read back by a reader that is not ours, and says what NCCL can carry."""

from __future__ import annotations

import csv
import io
import json
from fractions import Fraction
from pathlib import Path

import networkx
import pytest
from support.cli import collc, refused

from collc.export.nccl_graph import read_graphs
from collc.topology.load import load_topology


def test_the_graph_file_goes_to_standard_output_and_what_it_carries_beside_it(tmp_path: Path) -> None:
    result = collc("export", "dgx1v", "--format", "nccl-graph")
    assert result.code == 0
    assert set(read_graphs(result.out, "out")) == {0, 1}
    assert "rings: 6 x 25 = 150 GB/s; no others carry more" in result.err
    path = tmp_path / "graph.xml"
    again = collc("export", "dgx1v", "--format", "nccl-graph", "-o", path)
    assert again.out == ""
    assert path.read_text() == result.out


def rates(*argv: object) -> dict[str, tuple[Fraction, Fraction]]:
    made = json.loads(collc("export", *argv, "--format", "nccl-graph", "--json").out)
    assert read_graphs(made["text"], "text")[0].gbps == pytest.approx(float(Fraction(made["ring_gbps"])), rel=1e-5)
    return {r["collective"]: (Fraction(r["nccl_gbps"]), Fraction(r["optimum_gbps"])) for r in made["rates"]}


def test_what_nccl_can_carry_beside_the_optimum() -> None:
    assert rates("dgx1v") == {
        "all_reduce": (Fraction(600, 7), Fraction(600, 7)),
        "all_gather": (Fraction(1200, 7), Fraction(1200, 7)),
        "reduce_scatter": (Fraction(1200, 7), Fraction(1200, 7)),
        "broadcast": (Fraction(150), Fraction(150)),
        "reduce": (Fraction(150), Fraction(150)),
    }
    # GPUs 0 to 4 have no ring of NVLinks: one that closes over PCIe carries 25 of 62.5.
    odd = rates("dgx1v", "--gpus", "0-4")
    assert odd["broadcast"] == (Fraction(25), Fraction(125, 2))
    for collective, (nccl, optimum) in odd.items():
        assert nccl <= optimum, collective
    note = collc("export", "dgx1v", "--gpus", "0-4", "--format", "nccl-graph").err
    assert "no ring closes over nvlink links alone: these rings take PCIe where they must" in note


@pytest.mark.parametrize(
    ("argv", "words", "code"),
    [
        (["dgx1v", "--format", "xml"], "nccl-graph", 2),
        (["dgx1v"], "missing option '--format'", 2),
        (["dgx1v", "--format", "nccl-graph", "--collective", "broadcast"], "serves every collective", 2),
        (["dgx1v", "--format", "nccl-graph", "--gpus", "3"], "joins two GPUs or more", 2),
        (["dgx1v", "--format", "nccl-graph", "--gpus", "0-4", "--links", "nvlink"], "no ring closes over nvlink", 1),
        (["gb200-nvl72", "--format", "nccl-graph"], "a graph file is about one server", 1),
        (["mi250", "--format", "nccl-graph"], "too many to list", 2),
        (["dgx1v", "--format", "dot", "--root", "1"], "--root belongs to a rooted --collective", 2),
        (["dgx1v", "--format", "dot", "--collective", "broadcast", "--root", "8"], "no rank 8", 2),
        (["dgx1v", "--format", "csv", "-o", "no/such/folder/x.csv"], "no folder", 1),
    ],
)
def test_what_cannot_be_is_one_line(argv: list[str], words: str, code: int) -> None:
    assert words in refused(collc("export", *argv), code=code)


def test_graphml_is_read_by_networkx(tmp_path: Path) -> None:
    path = tmp_path / "a.graphml"
    assert collc("export", "dgx1v", "--format", "graphml", "-o", path).code == 0
    found = networkx.read_graphml(path, force_multigraph=True)
    machine = load_topology("dgx1v")
    assert set(found) == {v.name for v in machine.vertices}
    speeds = {(a, b, d["kind"]): d["gbps"] for a, b, d in found.edges(data=True)}
    assert speeds == {(x.src, x.dst, x.kind.value): float(x.gbps) for x in machine.links}
    trees = networkx.parse_graphml(collc("export", "dgx1v", "--format", "graphml", "--collective", "all_gather").out)
    assert trees.graph["collective"] == "all_gather"
    assert {d["phase"] for _, _, d in trees.edges(data=True)} == {"broadcast"}


def test_csv_has_a_row_per_link() -> None:
    rows = list(csv.DictReader(io.StringIO(collc("export", "dgx1v", "--format", "csv", "--gpus", "0,1,2").out)))
    found = {(r["from"], r["to"]): (r["kind"], r["gbps"]) for r in rows}
    assert found["gpu1", "gpu2"] == ("nvlink", "50")
    assert len(found) == 6
    hops = collc("export", "dgx1v", "--format", "csv", "--collective", "reduce", "--root", "3").out.splitlines()
    assert hops[0] == "from,to,tree,phase,weight"
    assert all(",reduce," in line for line in hops[1:])


def test_dot_names_every_vertex_and_link() -> None:
    lines = collc("export", "hgx-h100", "--format", "dot", "--gpus", "0,1").out.splitlines()
    assert lines[0] == 'digraph "hgx-h100" {'
    assert '  "0" [label="gpu0", shape=box];' in lines
    assert '  "0" -> "2" [label="450", kind="nvswitch"];' in lines
    assert lines[-1] == "}"
