"""The machines of examples/machines use only rules of docs/topology.md. Each plan has the rate computed by hand."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from collc.collectives.model import Collective
from collc.packing import plan
from collc.packing.limit_text import limit_in_words, own_names
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology

FOLDER = Path(__file__).parents[2] / "examples" / "machines"
# Name -> GPUs and the rate of an all_reduce, by hand.
RATES = {
    # The third GPU has 12.5 GB/s: all bytes that it reduces cross that link once in each direction.
    "workstation": (3, Fraction(25, 2)),
    # Parts gpu0, gpu1, gpu2 and the pair of the second socket: 3 x 25 and 16 out of them, over 2 x 3.
    "lopsided": (5, Fraction(91, 6)),
    # A card of 50 GB/s in each direction.
    "two-superchips": (2, Fraction(50)),
    # A star of 6 x 300 and 250, over 2 x 6.
    "dgx-a100-worn": (7, Fraction(2050, 12)),
    # The slower server's only card.
    "unequal-servers": (6, Fraction(25, 8)),
    # 50 + 25 into gpu5.
    "one-way": (6, Fraction(75)),
    # Sixteen GPUs with 5 links of 25 each: 16 x 125 out of them, over 2 x 15.
    "tesseract": (16, Fraction(2000, 30)),
    # Parts gpu0, gpu1 and everything below the lower switch: 150 + 150 + 250 out of them, over 2 x 2.
    "two-switches": (6, Fraction(550, 4)),
    # The uplink, of 6.25 in each direction, between gpu7 and all others.
    "chassis": (8, Fraction(25, 4)),
    # A server receives 12.5 from its NIC on the switch and 12.5 from the cable, whose NICs are on PCIe 3.0.
    "ladder": (15, Fraction(25)),
    # Links between CPUs: 2 x (3 x 100 + 50) out of four of them, over 2 x 3.
    "quad-grace": (4, Fraction(700, 6)),
    # The last GPU has 20 GB/s in each direction.
    "downhill": (4, Fraction(20)),
}


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the examples are not beside these tests")
def test_every_machine_is_here() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(RATES)


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the examples are not beside these tests")
@pytest.mark.parametrize("name", RATES)
def test_a_machine(name: str) -> None:
    topology = load_topology(FOLDER / f"{name}.yaml")
    assert topology.name == name
    gpus, rate = RATES[name]
    assert len(topology.gpus) == gpus
    found = plan(plan_graph(topology), Collective.ALL_REDUCE)
    assert (found.rate, found.optimal) == (rate, True)


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the examples are not beside these tests")
@pytest.mark.parametrize("name", RATES)
def test_its_limit_is_told_in_its_own_names(name: str) -> None:
    """A graph may have two vertices, one per direction, for one vertex of the file."""
    topology = load_topology(FOLDER / f"{name}.yaml")
    known = {v.name for v in topology.vertices} | set(topology.servers)
    graph = plan_graph(topology)
    assert set(own_names(graph, range(len(graph.vertices)))) <= known
    words = limit_in_words(graph, plan(graph, Collective.ALL_GATHER))
    told = re.findall(r"(\S+) > ([^\s,)]+)", words)
    assert {end.lstrip("(") for link in told for end in link} <= known, words


def test_names_that_end_as_split_ones_do_stay() -> None:
    """The user's own `up+out` is no half of a vertex `up`."""
    text = """
        format: collc-topology/1
        name: marked
        gpus: [a+in, b+out]
        switches: [up+out]
        speeds: {pcie: 12.5}
        links: [[a+in, up+out, pcie], [b+out, up+out, pcie]]
    """
    graph = plan_graph(loads_topology(text))
    assert own_names(graph, range(3)) == ["a+in", "b+out", "up+out"]
