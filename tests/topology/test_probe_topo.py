"""`nvidia-smi topo -m`: every form of a pasted table gives the same result, and a damaged table is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machines import fast_links, nics, pairs, sockets
from support.topo_text import ACCIDENTS, DGX1P, DGX1V, STYLES, Table, dgx1, render, shuffled

from collc.errors import TopologyError, UsageError
from collc.topology.canonical import fingerprint, match
from collc.topology.dump import dumps_topology
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import Topology
from collc.topology.probe.dumps import topology_from_dumps


def probe(text: str, model: str | None = None, name: str = "box.txt") -> Topology:
    return topology_from_dumps([(name, text)], gpu_model=model)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Bridge pairs at random among 1 to 16 GPUs, the rest by PCIe."""
    gpus = draw(st.integers(1, 16))
    count = draw(st.integers(0, 3))
    cells = {}
    free = list(range(gpus))
    for _ in range(draw(st.integers(0, gpus // 2))):
        a, b = free.pop(0), free.pop(draw(st.integers(0, len(free) - 1)))
        cells[a, b] = f"NV{draw(st.integers(1, 12))}"
    level = st.sampled_from(["NODE", "PHB", "SYS"])
    for n in range(count):
        cells |= {(i, gpus + n): draw(level) for i in range(gpus + n)}
    half = (gpus + 1) // 2
    numa = ["0"] * half + ["1"] * (gpus - half)
    return Table(gpus, count, cells, [f"{n}-{int(n) + 3}" for n in numa], numa)


@settings(max_examples=60, deadline=None)
@given(tables(), st.sampled_from(STYLES))
def test_every_style_says_the_same(table: Table, style: str) -> None:
    plain = probe(render(table))
    assert probe(render(table, style)) == plain
    assert len(plain.gpus) == table.gpus
    assert len(nics(plain)) == table.nics
    joined = {k: v for k, v in table.cells.items() if v.startswith("NV")}
    found = {key for key, _ in pairs(plain).items() if key[0] < key[1] or key[::-1] not in pairs(plain)}
    assert len(found) == len(joined)
    assert {(f"gpu{a}", f"gpu{b}") for a, b in joined} <= set(pairs(plain))


@settings(max_examples=80, deadline=None)
@given(tables(), st.sets(st.sampled_from(list(ACCIDENTS))))
def test_accidents_add_up(table: Table, names: set[str]) -> None:
    text = render(table)
    for name in ACCIDENTS:
        if name in names:
            text = ACCIDENTS[name](text)
    assert probe(text) == probe(render(table))


@settings(max_examples=20, deadline=None)
@given(tables())
def test_what_probe_writes_loads_again(table: Table) -> None:
    topology = probe(render(table))
    assert loads_topology(dumps_topology(topology)) == topology


def test_dgx1_by_counts() -> None:
    assert fast_links(probe(render(dgx1(DGX1V)))) == "nvlink 25x8 50x8"
    assert fast_links(probe(render(dgx1(DGX1P)))) == "nvlink 20x16"
    assert fast_links(probe(render(dgx1(DGX1P)), "V100")) == "nvlink 25x16"


@pytest.mark.parametrize("seed", range(6))
def test_numbering_does_not_matter(seed: int) -> None:
    ours = plan_graph(probe(render(dgx1(DGX1V, shuffled(seed)))))
    known = plan_graph(load_topology("dgx1v"))
    assert fingerprint(ours) == fingerprint(known)
    assert match(ours, known) is not None
    assert fingerprint(ours) != fingerprint(plan_graph(probe(render(dgx1(DGX1P)))))


@pytest.mark.parametrize(
    ("gpus", "cell", "expected", "note"),
    [
        (4, "NV4", "nvlink 100x6", "12 per GPU: A100 or H100 class"),
        (8, "NV12", "nvswitch 300x8", "12 links of each into one NVSwitch"),
        (16, "NV6", "nvswitch 150x16", "at most 6 per GPU: V100"),
        (8, "NV18", "nvswitch 450x8", "5.0 x16"),
        (2, "NV18", "nvswitch 450x2", "18 links of each into one NVSwitch"),
        (2, "NV12", "nvlink 300x1", "12 per GPU"),
        (4, "NV1", "nvlink 20x6", "P100"),
        (2, "NV1", "nvlink 25x1", "V100"),
        (3, "NV2", "nvlink 50x3", "at most 6 per GPU: V100"),
    ],
)
def test_the_stated_rules(gpus: int, cell: str, expected: str, note: str) -> None:
    table = Table(gpus, cells={(i, j): cell for i in range(gpus) for j in range(i + 1, gpus)})
    topology = probe(render(table))
    assert fast_links(topology) == expected
    assert any(note in n for n in topology.notes), topology.notes


@pytest.mark.parametrize(
    ("gpus", "cell", "model", "expected"),
    [
        (3, "NV6", None, "nvlink 150x3"),
        (3, "NV6", "V100", "nvswitch 150x3"),
        (3, "NV6", "GH200", "nvlink 150x3"),
        (3, "NV8", None, "nvswitch 200x3"),
        (3, "NV8", "H800", "nvswitch 200x3"),
        (2, "NV8", "H800", "nvlink 200x1"),
        (4, "NV2", "V100", "nvlink 50x6"),
        (3, "NV12", "A100", "nvswitch 300x3"),
    ],
)
def test_a_few_gpus_of_a_larger_machine(gpus: int, cell: str, model: str | None, expected: str) -> None:
    table = Table(gpus, cells={(i, j): cell for i in range(gpus) for j in range(i + 1, gpus)})
    topology = probe(render(table), model)
    assert fast_links(topology) == expected
    assert any("for GPUs of a DGX-2" in n for n in topology.notes) is (model is None and cell == "NV6")


def test_assumptions_are_comments_of_the_file() -> None:
    text = dumps_topology(probe(render(dgx1(DGX1V))))
    comments = [line for line in text.splitlines() if line.startswith("# ")]
    assert any("NVLink speed: assumed 25" in line for line in comments)
    assert any("PCIe: assumed 3.0 x16" in line for line in comments)
    told = dumps_topology(probe(render(dgx1(DGX1V)), "V100"))
    assert "assumed 25 GB/s" not in told
    assert "as V100 has" in told


def test_pcie_tree() -> None:
    level = {(0, 1): "PIX", (2, 3): "PIX", (0, 2): "PXB", (0, 3): "PXB", (1, 2): "PXB", (1, 3): "PXB"}
    level |= {(4, 5): "PIX", (6, 7): "PIX"} | {(a, b): "NODE" for a in (4, 5) for b in (6, 7)}
    topology = probe(render(Table(8, cells=level)), "T4")
    assert sockets(topology) == "0,1,2,3|4,5,6,7"
    up = {k.src: k.dst for k in topology.links if k.src.startswith("gpu")}
    assert up["gpu0"] == up["gpu1"] != up["gpu2"] == up["gpu3"]
    joins = {(k.src, k.dst) for k in topology.links}
    above = next(v.name for v in topology.vertices if (up["gpu0"], v.name) in joins and v.kind.value == "switch")
    assert (up["gpu2"], above) in joins, "PXB: one switch above both"
    assert {k.dst for k in topology.links if k.src == up["gpu4"]} >= {"cpu1"}


def test_nic_names_come_from_the_legend() -> None:
    table = Table(2, 2, {(0, 1): "NV4", (0, 2): "PIX", (1, 3): "PIX"})
    assert nics(probe(render(table, nic_names=("mlx5_0", "rocep1s0")))) == ["mlx5_0", "rocep1s0"]
    assert nics(probe(render(table))) == ["nic0", "nic1"]


def test_bridges_inside_pairs_keep_pcie_between() -> None:
    graph = plan_graph(probe(render(Table(4, cells={(0, 1): "NV12", (2, 3): "NV12", (0, 2): "NODE"})), "A100"))
    kinds = {link.kind.value for link in graph.links}
    assert kinds == {"nvlink", "pcie"}


GOOD = render(Table(4, 1, {(0, 1): "NV4", (2, 3): "NV4"}, ["0-3"] * 4, ["0", "0", "1", "1"]), "tabs")


def edited(line: int, old: str, new: str) -> str:
    lines = GOOD.splitlines()
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (edited(1, "GPU2", "GPU1"), 1, "the header names GPU1 twice"),
        (edited(3, "GPU1", "GPU9"), 3, "the header does not name GPU9"),
        (edited(4, "GPU2", "GPU1"), 4, "a second row of GPU1"),
        (edited(2, "NV4", "NVX"), 2, "row GPU0 has `NVX` in column 2 of 5"),
        (edited(2, "NV4", "NV0"), 2, "row GPU0 has NV0"),
        (edited(2, "NV4", "NV2"), 3, "row GPU1 says NV4 to GPU0"),
        (edited(3, "SYS", "PIX"), 4, "row GPU2 says SYS to GPU1"),
        (edited(2, " X ", "SYS"), 2, "column GPU0 of row GPU0 is SYS"),
        (edited(2, "NV4", " X "), 2, "an X outside its own column"),
        (edited(5, "\tNV4\t X \tSYS\t0-3\t1", ""), 5, "row GPU3 has 2 cells, the header names 5 devices"),
        ("\n".join(GOOD.splitlines()[:4]), 5, "the row of GPU3 is missing"),
        (GOOD.replace("SYS", "NV4"), 2, "row GPU0 says NV4 to NIC0"),
        (GOOD.partition("\nLegend")[0] + GOOD, 7, "a second table begins here"),
    ],
)
def test_damage_is_refused_with_the_line(text: str, line: int, words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        probe(text)
    assert str(caught.value).startswith(f"box.txt:{line}: "), caught.value
    assert words in str(caught.value)


def test_counts_that_fit_nothing() -> None:
    cells = {(i, j): "NV6" if (i, j) != (0, 1) else "NV4" for i in range(8) for j in range(i + 1, 8)}
    with pytest.raises(TopologyError, match=r"box.txt:1: gpu2 would have 42 NVLinks, and the counts fit no switch"):
        probe(render(Table(8, cells=cells)))


def test_models() -> None:
    with pytest.raises(UsageError, match="no GPU model is known as `X9`"):
        probe(GOOD, "X9")
    with pytest.raises(TopologyError, match="gpu0 has 6 links to other GPUs, a P100 has at most 4"):
        probe(render(dgx1(DGX1V)), "P100")
    with pytest.raises(TopologyError, match="has at most none"):
        probe(render(dgx1(DGX1V)), "T4")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "collc does not recognize this dump"),
        ("hello\n", "collc does not recognize this dump"),
        ("format: collc-topology/1\nname: x\ngpus: 2\n", "this is a topology file already"),
        ("x" * (1 << 17), "the line is too long for a dump"),
        ("a\n" * (3 << 20), "the file is larger than 4 MiB"),
    ],
)
def test_other_files(text: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        probe(text)
