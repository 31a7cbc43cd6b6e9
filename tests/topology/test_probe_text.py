"""`nvidia-smi nvlink -s` and `-R`, `rocm-smi --showtopo`: alone, together, and damaged."""

from __future__ import annotations

import pytest
from support.machines import fast_links, pairs
from support.topo_text import DGX1V, Table, dgx1, render

from collc.errors import TopologyError
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import Topology
from collc.topology.probe.dumps import topology_from_dumps


def probe(*texts: str) -> Topology:
    return topology_from_dumps([(f"file{i}.txt", text) for i, text in enumerate(texts)])


def head(number: int, name: str = "Tesla V100-SXM2-16GB") -> str:
    return f"GPU {number}: {name} (UUID: GPU-{number:08x}-0000-0000-0000-000000000000)\n"


def states(gpus: int, links: int, *, dead: int = 0, speed: str = "25.781", name: str = "Tesla V100-SXM2-16GB") -> str:
    """`nvlink -s`: the last `dead` links of every GPU are down."""
    text = ""
    for i in range(gpus):
        text += head(i, name)
        for k in range(links):
            text += f"\t Link {k}: " + ("<inactive>" if k >= links - dead else f"{speed} GB/s") + "\n"
    return text


def remotes(links: list[list[str]]) -> str:
    """`nvlink -R` for the bus ids at the other ends."""
    text = ""
    for i, ends in enumerate(links):
        text += head(i)
        text += "".join(f"\t Link {k}: Remote Device {end}: Link {k}\n" for k, end in enumerate(ends))
    return text


def bus(number: int) -> str:
    return f"00000000:{number + 6:02X}:00.0"


def dgx1v_remotes() -> str:
    ends: list[list[str]] = [[] for _ in range(8)]
    for (a, b), n in DGX1V.items():
        ends[a] += [bus(b)] * n
        ends[b] += [bus(a)] * n
    return remotes(ends)


def test_remotes_alone_are_the_whole_mesh() -> None:
    topology = probe(dgx1v_remotes())
    assert fast_links(topology) == "nvlink 25x8 50x8"
    assert fingerprint(plan_graph(topology)) == fingerprint(plan_graph(load_topology("dgx1v")))
    assert probe(dgx1v_remotes(), states(8, 6)) == topology


def test_remotes_that_are_switches() -> None:
    ends = [[f"00000000:{0xC0 + k:02X}:00.0" for k in range(6)] for _ in range(16)]
    assert fast_links(probe(remotes(ends))) == "nvswitch 150x16"


def test_states_alone() -> None:
    assert fast_links(probe(states(8, 18, name="NVIDIA H100 80GB HBM3"))) == "nvswitch 450x8"
    assert fast_links(probe(states(2, 18, dead=6, name="NVIDIA H100 PCIe"))) == "nvlink 300x1"
    with pytest.raises(TopologyError, match=r"does not say which GPUs are joined .*nvlink -R"):
        probe(states(8, 6))


def test_speed_as_printed_where_the_name_is_unknown() -> None:
    topology = probe(states(2, 2, speed="12.5", name="Graphics Device"))
    assert pairs(topology)["gpu0", "gpu1"] == "25"
    assert any("as printed" in note for note in topology.notes)


def test_states_beside_a_table() -> None:
    topology = probe(render(dgx1(DGX1V)), states(8, 6))
    assert fast_links(topology) == "nvlink 25x8 50x8"
    assert any("as V100 has" in note for note in topology.notes)
    with pytest.raises(TopologyError, match="GPU 0 has 5 active links here and 6 in the other dump"):
        probe(render(dgx1(DGX1V)), states(8, 6, dead=1))
    with pytest.raises(TopologyError, match="GPU 8 has"):
        probe(render(dgx1(DGX1V)), states(9, 6))


def test_names_in_front_of_the_table() -> None:
    listing = "".join(head(i, "NVIDIA A100-SXM4-40GB") for i in range(4))
    table = render(Table(4, cells={(i, j): "NV4" for i in range(4) for j in range(i + 1, 4)}))
    topology = probe(listing + table)
    assert any("as A100 has" in note for note in topology.notes)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (head(0) + "\t Link 0: 25 GB/s\n\t Link 0: 25 GB/s\n", 3, "link 0 of GPU 0 is given twice"),
        (head(0) + "\t Link 0: 25 furlongs\n", 2, "no line of `nvlink -s` or `-R`"),
        (" Link 0: 25 GB/s\n" + head(0), 1, "a link before any GPU"),
        (head(0) + head(0, "A100"), 2, "GPU 0 has two names"),
        (remotes([[bus(0)] * 2, [bus(5)]]), None, "neither these GPUs nor shared switches"),
    ],
)
def test_damaged_nvlink(text: str, line: int | None, words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        probe(text)
    assert str(caught.value).startswith("file0.txt:" if line is None else f"file0.txt:{line}: "), caught.value
    assert words in str(caught.value)
