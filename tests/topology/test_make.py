"""Topologies made to measure: each kind is what its source says, and plans of it are proved."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from support.cli import collc, refused

from collc.errors import UsageError
from collc.packing import Collective, plan
from collc.packing.check import check_packing
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.make import KINDS, make
from collc.topology.model import Topology

SMALL = {
    "fat-tree": {"ports": 4},
    "rails": {"servers": 3},
    "dragonfly": {"routers": 2, "gpus": 1, "channels": 1},
    "torus": {"x": 3, "y": 3, "z": 2},
    "superpod": {"units": 2, "servers": 4, "spines": 2, "gpus": 4},
    "nvl72": {"servers": 2, "gpus": 8},
    "frontier": {"nodes": 2},
    "lumi": {"nodes": 2},
    "mixed": {"a100": 1, "h100": 2},
}


def made(kind: str, **values: int | Fraction) -> Topology:
    return loads_topology(make(kind, values))


def degrees(topology: Topology) -> Counter[str]:
    return Counter(link.src for link in topology.links)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_planned_and_proved(kind: str) -> None:
    graph = plan_graph(made(kind, **SMALL[kind]))
    for collective in (Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.BROADCAST):
        found = plan(graph, collective)
        check_packing(graph, found)
        assert found.optimal
        assert len(found.trees) <= 4 * (graph.nranks + len(graph.links))


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_comment_names_the_source(kind: str) -> None:
    text = make(kind, {})
    assert text.startswith("# ")
    assert "# Source: " in text
    assert max(map(len, text.splitlines())) <= 120
    assert len(loads_topology(text).gpus) > 8


def test_sizes_are_those_of_the_sources() -> None:
    assert len(made("fat-tree", ports=8).gpus) == 8**3 // 4
    assert len(made("superpod").gpus) == 4 * 32 * 8
    assert len(made("nvl72").gpus) == 576
    assert len(made("frontier").gpus) == 64 * 8
    assert len(made("torus").gpus) == 64
    assert len(made("dragonfly").gpus) == (4 * 2 + 1) * 4 * 2
    assert len(made("rails", servers=2048).gpus) == 16384
    assert len(made("mixed").gpus) == 32


def test_every_switch_of_a_fat_tree_uses_all_its_ports() -> None:
    topology = made("fat-tree", ports=6, gpus=3)
    degree = degrees(topology)
    switches = [v.name for v in topology.vertices if v.name.startswith(("edge", "agg", "core"))]
    assert len(switches) == 6 * 3 + 6 * 3 + 9
    assert {degree[name] for name in switches} == {6}


def test_any_two_groups_of_a_dragonfly_have_one_channel() -> None:
    topology = made("dragonfly", routers=3, gpus=2, channels=2)
    between = Counter(
        frozenset((link.src.split(".")[0], link.dst.split(".")[0]))
        for link in topology.links
        if link.src[0] == link.dst[0] == "r" and link.src.split(".")[0] != link.dst.split(".")[0]
    )
    assert len(between) == 7 * 6 // 2
    assert set(between.values()) == {2}  # one, both ways
    degree = degrees(topology)
    assert {degree[v.name] for v in topology.vertices if v.name.startswith("r")} == {2 + 2 + 2}


def test_a_torus_has_six_neighbors_and_no_link_twice() -> None:
    assert set(degrees(made("torus", x=3, y=4, z=5)).values()) == {6}
    assert set(degrees(made("torus", x=2, y=3, z=1)).values()) == {3}


def test_the_command_writes_the_file() -> None:
    result = collc("topologies", "--make", "rails", "servers=2", "gpus=4")
    assert (result.code, result.err) == (0, "")
    assert result.out == make("rails", {"servers": 2, "gpus": 4})


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--make", "ring"], "choose one of fat-tree"),
        (["--make", "rails", "racks=2"], "servers=4"),
        (["--make", "rails", "servers=0"], "between 1 and"),
        (["--make", "rails", "servers=1e3"], "KEY=NUMBER"),
        (["--make", "rails", "servers"], "KEY=NUMBER"),
        (["--make", "rails", "servers=2.5"], "servers=2.5 is not a whole number"),
        (["--make", "rails", "nic=0.0"], "nic=0 is not between"),
        (["--make", "rails", "servers=2", "servers=3"], "twice"),
        (["--make", "fat-tree", "ports=5"], "as many ports up as down"),
        (["--make", "fat-tree", "ports=4", "gpus=3"], "are not servers"),
        (["--make", "fat-tree", "ports=100"], "makes 250000 GPUs"),
        (["--make", "superpod", "servers=1", "spines=3"], "no decimal number"),
        (["servers=2"], "--make"),
        (["--make", "rails", "--json"], "--json"),
    ],
)
def test_what_cannot_be_made_is_told_in_one_line(argv: list[str], words: str) -> None:
    assert words in refused(collc("topologies", *argv), code=2)


def test_the_library_says_what_is_wrong() -> None:
    with pytest.raises(UsageError, match="1 GPUs are no torus"):
        make("torus", {"x": 1, "y": 1, "z": 1})


def test_what_is_made_can_be_read_whatever_its_size() -> None:
    """More servers, and more GPUs in one, than a cluster of 8 GPUs a server has."""
    assert len(made("fat-tree", ports=32).servers) == 8192
    assert len(made("torus", x=20, y=16, z=16).gpus) == 5120


def test_speeds_may_be_decimal_numbers() -> None:
    text = collc("topologies", "--make", "rails", "nic=12.5", "servers=2").out
    topology = loads_topology(text)
    assert topology.name == "rails-2-8-8-450-12.5"
    assert {float(k.gbps) for k in topology.links if k.kind.value == "net"} == {12.5}
    assert {float(k.gbps) for k in made("superpod", units=1, spines=8, nic=Fraction(25, 2)).links} == {450, 12.5, 50}
