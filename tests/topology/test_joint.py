"""The joint graph of several classes: PCIe leads through memory, NICs share its links, nothing is counted twice."""

from __future__ import annotations

import itertools
from collections import defaultdict
from fractions import Fraction

import pytest

from collc.errors import TopologyError, UsageError
from collc.topology import zoo
from collc.topology.joint import joint_graph, parse_classes, usable_classes
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import JOINT, LinkKind, PlanGraph, Topology, VertexKind

HEAD = "format: collc-topology/1\nname: box\n"
SETS = [("nvlink",), ("pcie",), ("net",), ("nvlink", "pcie"), ("nvlink", "net"), ("pcie", "net"), JOINT]
MACHINES = [name for name in zoo.names() if len(load_topology(name).gpus) <= 16]


def pair(memory: str = "", nics: str = "") -> Topology:
    """Two GPUs with NVLink of 10 GB/s and PCIe of 4 to one switch below one CPU."""
    text = f"gpus: 2\nswitches: [p]\ncpus: [{memory or 'cpu0'}]\n{nics}links:\n  - [gpu0, gpu1, nvlink, 10]\n"
    text += "  - [gpu0, p, pcie, 4]\n  - [gpu1, p, pcie, 4]\n  - [p, cpu0, pcie, 8]\n"
    if nics:
        text += "  - [nic0, p, pcie, 4]\n  - [nic1, p, pcie, 4]\n"
    return loads_topology(HEAD + text)


def own(name: str) -> str:
    return name.removesuffix("+in").removesuffix("+out")


def capacities(graph: PlanGraph) -> dict[tuple[str, str], Fraction]:
    """GB/s between the topology's own vertices; the memory of a CPU is a link to itself."""
    found: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for link in graph.links:
        found[own(graph.vertices[link.src].name), own(graph.vertices[link.dst].name)] += link.gbps
    return found


@pytest.mark.parametrize("name", MACHINES)
def test_no_link_is_counted_twice(name: str) -> None:
    machine = load_topology(name)
    has = {(link.src, link.dst): Fraction(0) for link in machine.links}
    for link in machine.links:
        has[link.src, link.dst] += link.gbps
    joined = 0
    for classes in SETS:
        try:
            graph = joint_graph(machine, None, classes)
        except TopologyError:
            continue
        joined += 1
        for (src, dst), gbps in capacities(graph).items():
            if src != dst and "network" not in (src, dst):
                assert gbps <= has[src, dst], (classes, src, dst)
    assert joined


@pytest.mark.parametrize("name", MACHINES)
def test_pcie_leads_through_the_memory_of_a_cpu_alone(name: str) -> None:
    try:
        graph = joint_graph(load_topology(name), None, ("pcie",))
    except TopologyError as error:
        pytest.skip(str(error))
    out: dict[int, list[int]] = defaultdict(list)
    crossed = 0
    for link in graph.links:
        if own(graph.vertices[link.src].name) == own(graph.vertices[link.dst].name):
            assert graph.vertices[link.src].kind is VertexKind.CPU
            crossed += 1
            continue
        out[link.src].append(link.dst)
    assert crossed
    for rank in graph.ranks:
        todo, seen = [rank], {rank}
        while todo:
            for other in out[todo.pop()]:
                assert other >= graph.nranks, "a GPU reaches another without memory"
                if other not in seen:
                    seen.add(other)
                    todo.append(other)


def test_a_byte_crosses_memory_twice() -> None:
    graph = joint_graph(pair("{name: cpu0, memory_gbps: 6}"), None, ("pcie",))
    assert capacities(graph)["cpu0", "cpu0"] == 3
    # Without a speed, memory takes whatever can arrive: both GPUs at once, through the switch.
    graph = joint_graph(pair(), None, ("pcie",))
    assert capacities(graph)["cpu0", "cpu0"] == 8


def test_one_network_joins_nics_that_have_a_speed() -> None:
    nics = "nics: [{name: nic0, gbps: 3}, {name: nic1, gbps: 3}]\n"
    graph = joint_graph(pair(nics=nics), None, JOINT)
    found = capacities(graph)
    assert found["nic0", "network"] == found["network", "nic1"] == 3
    # The way from a GPU to memory and to a NIC is one and the same link.
    assert found["gpu0", "p"] == 4
    names = [v.name for v in graph.vertices]
    assert "p+out" in names
    assert "p+in" in names
    assert {link.kind for link in graph.links} == {LinkKind.NVLINK, LinkKind.PCIE, LinkKind.NET}


def test_a_file_that_says_too_little_is_told_what_is_missing() -> None:
    with pytest.raises(TopologyError, match="no network between its NICs is known") as error:
        joint_graph(pair(nics="nics: [nic0, nic1]\n"), None, JOINT)
    assert "gbps: 50" in str(error.value)
    with pytest.raises(TopologyError, match="gpu1 cannot be reached from gpu0 over pcie") as error:
        joint_graph(loads_topology(HEAD + "gpus: 2\nlinks:\n  - [gpu0, gpu1, nvlink, 10]\n"), None, ("pcie",))
    assert "name more classes" in str(error.value)


def test_classes_are_read_in_their_order() -> None:
    assert parse_classes("pcie, nvlink") == ("nvlink", "pcie")
    assert parse_classes("all") == JOINT
    for text in ("pcx", "", "nvlink,nvlink", "nvlink,,pcie", "all,net"):
        with pytest.raises(UsageError):
            parse_classes(text)


def sockets(*depths: int, cpus: int = 2, ring: bool = False) -> Topology:
    """A GPU below each of the first CPUs, with `depths` PCIe switches between; CPUs form a mesh or a ring."""
    lines = [f"gpus: {len(depths)}", f"cpus: [{', '.join(f'cpu{i}' for i in range(cpus))}]"]
    lines.append(f"switches: [{', '.join(f'p{g}x{i}' for g, d in enumerate(depths) for i in range(d))}]")
    lines.append("links:")
    lines += [f"  - [gpu{a}, gpu{b}, nvlink, 300]" for a in range(len(depths)) for b in range(a + 1, len(depths))]
    for gpu, depth in enumerate(depths):
        way = [f"gpu{gpu}", *(f"p{gpu}x{i}" for i in range(depth)), f"cpu{gpu}"]
        lines += [f"  - [{a}, {b}, pcie, 25]" for a, b in itertools.pairwise(way)]
    every = list(itertools.combinations(range(cpus), 2))
    joined = [(i, (i + 1) % cpus) for i in range(cpus)] if ring else every
    lines += [f"  - [cpu{a}, cpu{b}, pcie, 75]" for a, b in joined]
    return loads_topology(HEAD + "\n".join(lines) + "\n")


@pytest.mark.parametrize("depths", [(0, 0), (1, 0), (0, 1), (2, 0), (0, 3), (1, 0, 2), (2, 2, 0, 1)])
@pytest.mark.parametrize("more", [0, 1, 2])
def test_gpus_at_unequal_depth_read_the_memory_of_their_own_cpus(depths: tuple[int, ...], more: int) -> None:
    for ring in (False, True):
        cpus = len(depths) + more
        if ring and cpus < 3:
            continue
        graph = joint_graph(sockets(*depths, cpus=cpus, ring=ring), None, ("nvlink", "pcie"))
        found = capacities(graph)
        arriving = {f"gpu{g}": Fraction(0) for g in range(len(depths))}
        for (src, dst), gbps in found.items():
            if dst in arriving and not src.startswith("gpu"):
                arriving[dst] += gbps
        assert set(arriving.values()) == {25}
        memories = {src for src, dst in found if src == dst}
        assert memories >= {f"cpu{i}" for i in range(len(depths) if ring else cpus)}


def test_nics_without_a_network_are_left_out_and_named() -> None:
    unknown = pair(nics="nics: [nic0, nic1]\n")
    classes, notes = usable_classes(unknown, "all")
    assert classes == ("nvlink", "pcie")
    assert "nic0, nic1" in notes[0]
    # If the class net is named, `with_network` raises its error.
    assert usable_classes(unknown, "nvlink,net")[0] == ("nvlink", "net")
    known = pair(nics="nics: [{name: nic0, gbps: 3}, {name: nic1, gbps: 3}]\n")
    assert usable_classes(known, "all") == (JOINT, [])
    assert usable_classes(unknown, "nvlink,pcie") == (("nvlink", "pcie"), [])
