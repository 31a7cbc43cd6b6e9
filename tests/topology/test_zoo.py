"""The machines that come with collc: each loads, names its source, is connected, and has the published links."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from support.cli import collc
from support.machines import fast_links, nics, sockets

from collc.topology import zoo
from collc.topology.canonical import fingerprint
from collc.topology.dump import dumps_topology
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import PlanGraph

# Machine -> servers, NICs, what joins the GPUs (GB/s x pairs, or x GPUs into a switch), GPUs by CPU ("" where none).
HALVES = "0,1,2,3|4,5,6,7"
MACHINES: dict[str, tuple[int, int, str, str]] = {
    "a100-pcie-bridged": (1, 0, "nvlink 300x4", HALVES),
    "a100x4-nv4": (1, 1, "nvlink 100x6", "0,1|2,3"),
    "ac922": (1, 2, "nvlink 75x2", "0,1|2,3"),
    "aws-p3-16xlarge": (1, 1, "nvlink 25x8 50x8", HALVES),
    "aws-p4d-24xlarge": (1, 4, "nvswitch 300x8", HALVES),
    "aws-p5-48xlarge": (1, 32, "nvswitch 450x8", HALVES),
    "azure-ndv2": (1, 1, "nvlink 25x8 50x8", HALVES),
    "azure-ndv4": (1, 8, "nvswitch 300x8", "0,1|2,3|4,5|6,7"),
    "azure-ndv5": (1, 8, "nvswitch 450x8", HALVES),
    "dgx-a100": (1, 8, "nvswitch 300x8", HALVES),
    "dgx1p": (1, 4, "nvlink 20x16", HALVES),
    "dgx1v": (1, 4, "nvlink 25x8 50x8", HALVES),
    "dgx2": (1, 8, "nvswitch 150x16", "0,1,2,3,4,5,6,7|8,9,10,11,12,13,14,15"),
    "gb200-nvl72": (18, 72, "nvswitch 900x72", ""),
    "gb300-nvl72": (18, 72, "nvswitch 900x72", ""),
    "hgx-a800": (1, 8, "nvswitch 200x8", HALVES),
    "hgx-b200": (1, 8, "nvswitch 900x8", HALVES),
    "hgx-h100": (1, 8, "nvswitch 450x8", HALVES),
    "hgx-h20": (1, 8, "nvswitch 450x8", HALVES),
    "hgx-h200": (1, 8, "nvswitch 450x8", HALVES),
    "hgx-h800": (1, 8, "nvswitch 200x8", HALVES),
    "mi250": (1, 8, "xgmi 50x16 100x4 200x8", "0,1,2,3|4,5,6,7|8,9,10,11|12,13,14,15"),
    "mi250x": (1, 4, "xgmi 50x6 100x2 200x4", "0,1,2,3,4,5,6,7"),
    "mi300x": (1, 0, "xgmi 64x28", HALVES),
    "pcie-4xl40s": (1, 0, "", "0,1,2,3"),
    "pcie-8x4090": (1, 0, "", HALVES),
    "pcie-8xl40s": (1, 4, "", HALVES),
}


def reached(graph: PlanGraph, start: int, forwards: bool) -> set[int]:
    """Vertices reached from `start`, or that reach it."""
    found, todo = {start}, [start]
    while todo:
        at = todo.pop()
        for link in graph.links:
            here, there = (link.src, link.dst) if forwards else (link.dst, link.src)
            if here == at and there not in found:
                found.add(there)
                todo.append(there)
    return found


def test_the_table_names_every_machine() -> None:
    assert set(MACHINES) == set(zoo.names())


@pytest.mark.parametrize("name", MACHINES)
def test_machine(name: str) -> None:
    topology = load_topology(name)
    servers, count, joins, groups = MACHINES[name]
    assert topology.name == name
    assert (len(topology.servers), len(nics(topology)), fast_links(topology)) == (servers, count, joins)
    if groups:
        assert sockets(topology) == groups
    source = zoo.source(name)
    assert "Source: " in source
    assert len(zoo.title(name)) > 8
    first = Path(zoo.directory() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert loads_topology(dumps_topology(topology)) == topology


@pytest.mark.parametrize("name", MACHINES)
def test_plan_graph_is_strongly_connected(name: str) -> None:
    graph = plan_graph(load_topology(name))
    everything = set(range(len(graph.vertices)))
    assert reached(graph, 0, True) == everything
    assert reached(graph, 0, False) == everything
    # Every switch has equal capacity in and out, so the closed formulas hold on all machines here.
    balance = dict.fromkeys(graph.forwarders, Fraction(0))
    for link in graph.links:
        for vertex, sign in ((link.src, 1), (link.dst, -1)):
            if vertex in balance:
                balance[vertex] += sign * link.gbps
    assert not any(balance.values())


@pytest.mark.parametrize(
    ("family", "same"),
    [
        (["dgx1v", "aws-p3-16xlarge", "azure-ndv2"], True),
        (["hgx-h100", "hgx-h200", "azure-ndv5", "aws-p5-48xlarge"], True),
        (["dgx-a100", "aws-p4d-24xlarge", "azure-ndv4"], True),
        (["dgx1p", "dgx1v"], False),
        (["hgx-h100", "hgx-h800", "hgx-b200", "dgx-a100", "gb200-nvl72"], False),
    ],
)
def test_fingerprints_of_families(family: list[str], same: bool) -> None:
    prints = {fingerprint(plan_graph(load_topology(name))) for name in family}
    assert len(prints) == (1 if same else len(family))


def test_a_bridged_box_uses_pcie_between_the_pairs() -> None:
    assert {link.kind.value for link in plan_graph(load_topology("a100-pcie-bridged")).links} == {"nvlink", "pcie"}
    assert {link.kind.value for link in plan_graph(load_topology("dgx1v")).links} == {"nvlink"}


def test_the_command_lists_all() -> None:
    result = collc("topologies")
    assert result.code == 0
    rows = [line.split()[0] for line in result.out.splitlines()[1:]]
    assert rows == sorted(MACHINES)
