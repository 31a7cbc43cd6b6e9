"""Servers whose NVLinks are not one uniform switch: links that are down, bridges of 18 links, islands, partitions."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support import nccl_text
from support.machines import fast_links
from support.topo_text import Table, render

from collc.errors import TopologyError
from collc.topology.graph import plan_graph
from collc.topology.model import Topology
from collc.topology.probe.dumps import topology_from_dumps


def probe(*texts: str, model: str | None = None) -> Topology:
    return topology_from_dumps([(f"file{i}", text) for i, text in enumerate(texts)], gpu_model=model)


def through(links: list[int], islands: list[int] | None = None, far: str = "NODE") -> str:
    """`nvidia-smi topo -m` of GPUs with these links into the switch of their island."""
    homes = islands or [0] * len(links)
    cells = {
        (i, j): f"NV{min(links[i], links[j])}" if homes[i] == homes[j] and links[i] and links[j] else far
        for i in range(len(links))
        for j in range(i + 1, len(links))
    }
    return render(Table(len(links), cells=cells))


def nvlink_s(links: list[int], name: str) -> str:
    return "".join(
        f"GPU {i}: {name} (UUID: GPU-{i})\n" + "".join(f"\t Link {k}: 26.562 GB/s\n" for k in range(count))
        for i, count in enumerate(links)
    )


def xml(links: Mapping[int, Mapping[str, int]]) -> str:
    """NCCL's XML of GPUs with links into switches, by bus id."""
    gpus = [
        nccl_text.pci(nccl_text.bus(dev), nccl_text.gpu(dev, dict(switches), sm=90).replace("0x030200", "0x068000"))
        for dev, switches in links.items()
    ]
    return nccl_text.system(nccl_text.cpu(0, *gpus))


FULL = [18] * 8


@pytest.mark.parametrize(
    ("text", "links", "notes"),
    [
        (through([18, 18, 18, 17, 18, 18, 18, 18]), "nvswitch 425x1 450x7", ["gpu3: 17 of 18 NVLinks"]),
        (through([18, 14, 18, 17]), "nvswitch 350x1 425x1 450x2", ["gpu1: 14 of 18", "gpu3: 17 of 18"]),
        (through([12, 11, 12, 10, 10]), "nvswitch 250x2 275x1 300x2", ["gpu3, gpu4: 10 of 12", "gpu1: 11 of 12"]),
        (through([17] * 8), "nvswitch 425x8", ["gpu7: 17 of 18 NVLinks into the NVSwitches"]),
        (through([6] * 15 + [5]), "nvswitch 125x1 150x15", ["gpu15: 5 of 6 NVLinks"]),
        (through([18] * 7 + [0]), "nvswitch 450x7", ["no NVLinks of gpu7"]),
        (through([18] * 8, [0, 0, 0, 0, 1, 1, 1, 1]), "nvswitch 450x8", ["2 groups of GPUs (gpu0 gpu1 gpu2 gpu3 |"]),
        (through([18] * 8, [0, 0, 0, 0, 1, 1, 2, 2]), "nvswitch 450x8", ["3 groups of GPUs"]),
        (through([12] * 16, [0] * 8 + [1] * 8, "SYS"), "nvswitch 300x16", ["2 groups of GPUs (gpu0 gpu1"]),
        (through([18] * 4, [0, 0, 1, 1]), "nvlink 450x2", []),
        (through([18] * 4, [0, 0, 1, 2]), "nvlink 450x1", []),
        (through([17] * 4, [0, 0, 1, 1]), "nvlink 425x2", ["gpu0-gpu1: 17 of 18 NVLinks of its bridge"]),
        (nvlink_s([18] * 7 + [14], "NVIDIA H200"), "nvswitch 350x1 450x7", ["gpu7: 14 of 18"]),
    ],
)  # fmt: skip
def test_what_was_lost_is_named(text: str, links: str, notes: list[str]) -> None:
    topology = probe(text)
    assert fast_links(topology) == links
    for words in notes:
        assert any(words in note for note in topology.notes), topology.notes
    assert any("NVLinks into" in n or "of its bridge" in n or "NVLinks of" in n for n in topology.notes) is (
        any(" of " in words and "groups" not in words for words in notes)
    )
    plan_graph(topology)


def test_the_model_says_how_many_links_are_whole() -> None:
    topology = probe(through([8] * 8), model="H100")
    assert any("8 of 18 NVLinks" in note for note in topology.notes)
    assert not any(" of 8 NVLinks" in note for note in probe(through([8] * 8), model="H800").notes)


def test_states_tell_the_one_gpu_that_has_more_links() -> None:
    topology = probe(through([17] * 8), nvlink_s([17, 18] + [17] * 6, "NVIDIA H100 80GB HBM3"))
    assert fast_links(topology) == "nvswitch 425x7 450x1"


def test_cards_that_may_have_bridges() -> None:
    with pytest.raises(TopologyError, match="does not say which GPUs are joined"):
        probe(nvlink_s([18] * 4, "NVIDIA H200 NVL"))


def test_counts_of_no_switch_are_refused() -> None:
    text = through(FULL).replace("NV18", "NV17", 1)
    with pytest.raises(TopologyError, match="row GPU1 says NV18 to GPU0"):
        probe(text)
    cells = {(i, j): "NV18" for i in range(4) for j in range(i + 1, 4)} | {(0, 1): "NV9"}
    with pytest.raises(TopologyError, match=r"the counts fit no switch .*nvlink -R"):
        probe(render(Table(4, cells=cells)))


def test_switches_of_the_xml() -> None:
    whole = {"0000:c1:00.0": 5, "0000:c2:00.0": 4}
    lost = probe(xml({0: whole, 1: whole, 2: {"0000:c1:00.0": 5}}))
    assert fast_links(lost) == "nvswitch 125x1 225x2"
    assert any("gpu2: 5 of 12 NVLinks" in note for note in lost.notes)
    apart = probe(xml({0: whole, 1: whole, 2: {"0000:c3:00.0": 9}, 3: {"0000:c3:00.0": 9}}))
    assert [v.name for v in apart.vertices if v.name.startswith("nvs")] == ["nvs0", "nvs1"]
    boards = probe(xml({i: {f"0000:c{i // 8}:00.0": 12} for i in range(16)}))
    assert [v.name for v in boards.vertices if v.name.startswith("nvs")] == ["nvs0"]
    assert any("two boards of 8 GPUs" in note for note in boards.notes)
