"""The graph of a plan: which links an allocation uses."""

from __future__ import annotations

import itertools
from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collc.errors import TopologyError, UsageError
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import Link, LinkKind, PlanGraph, Topology, VertexKind
from collc.topology.paths import Adjacency, strongly_connected

HEAD = "format: collc-topology/1\nname: box\n"


def names(graph: PlanGraph) -> list[str]:
    return [v.name for v in graph.vertices]


def pairs(graph: PlanGraph) -> set[tuple[str, str]]:
    at = names(graph)
    return {(at[k.src], at[k.dst]) for k in graph.links}


def kinds(graph: PlanGraph) -> set[str]:
    return {k.kind.value for k in graph.links}


def bridge_box() -> Topology:
    """Four GPUs, NVLink bridges inside the pairs, each pair behind its PCIe switch."""
    text = HEAD + "gpus: 4\nswitches: [p0, p1]\ncpus: [cpu0]\nspeeds: {nvlink: 300, pcie: 25}\nlinks:\n"
    text += "  - [gpu0, gpu1, nvlink]\n  - [gpu2, gpu3, nvlink]\n"
    text += "".join(f"  - [gpu{i}, p{i // 2}, pcie]\n" for i in range(4))
    return loads_topology(text + "  - [p0, cpu0, pcie]\n  - [p1, cpu0, pcie]\n")


def two_servers(nics: int = 1) -> Topology:
    """Two servers of two GPUs with NVLink, behind one PCIe switch with the NICs."""
    text = HEAD + "servers: 2\ntemplate:\n  gpus: 2\n  switches: [p]\n"
    text += f"  nics: [{', '.join(f'n{i}' for i in range(nics))}]\n"
    text += "  speeds: {nvlink: 100, pcie: 25}\n  links:\n    - [gpu0, gpu1, nvlink]\n    - [gpu0, p, pcie]\n"
    text += "    - [gpu1, p, pcie]\n" + "".join(f"    - [n{i}, p, pcie]\n" for i in range(nics))
    text += "switches: [net]\nlinks:\n" + "".join(f"  - [each.n{i}, net, net, 12]\n" for i in range(nics))
    return loads_topology(text)


def test_the_fast_class_alone_where_it_connects() -> None:
    graph = plan_graph(load_topology("dgx1v"))
    assert graph.nranks == 8
    assert names(graph) == [f"gpu{i}" for i in range(8)]
    assert kinds(graph) == {"nvlink"}
    assert sum(k.gbps for k in graph.links) == 48 * 25


def test_ranks_follow_the_order_of_the_allocation() -> None:
    graph = plan_graph(load_topology("dgx1v"), ["gpu4", "gpu0", "gpu5"])
    assert names(graph) == ["gpu4", "gpu0", "gpu5"]
    assert pairs(graph) == {("gpu0", "gpu4"), ("gpu4", "gpu0"), ("gpu4", "gpu5"), ("gpu5", "gpu4")}


def test_a_switch_keeps_only_the_ports_in_use() -> None:
    graph = plan_graph(load_topology("dgx2"), ["gpu3", "gpu9"])
    assert names(graph) == ["gpu3", "gpu9", "nvs0"]
    assert len(graph.links) == 4


def test_pcie_where_nvlink_does_not_connect() -> None:
    graph = plan_graph(load_topology("dgx1v"), ["gpu0", "gpu6"])
    assert names(graph) == ["gpu0", "gpu6", "plx0", "plx3", "cpu0", "cpu1"]
    assert kinds(graph) == {"pcie"}
    assert len(graph.links) == 10


def test_bridges_inside_pairs_and_pcie_between() -> None:
    graph = plan_graph(bridge_box())
    assert kinds(graph) == {"nvlink", "pcie"}
    assert ("gpu0", "p0") in pairs(graph)
    assert ("p0", "cpu0") in pairs(graph)
    assert names(graph)[4:] == ["p0", "p1", "cpu0"]
    # A single pair needs no PCIe; two GPUs of different pairs need only PCIe.
    assert kinds(plan_graph(bridge_box(), ["gpu0", "gpu1"])) == {"nvlink"}
    assert kinds(plan_graph(bridge_box(), ["gpu0", "gpu2"])) == {"pcie"}


def test_only_pairs_without_a_direct_link_bring_their_pcie_path() -> None:
    text = HEAD + "gpus: 3\nswitches: [p, q]\nlinks:\n  - {from: gpu0, to: gpu1, kind: nvlink, gbps: 10}\n"
    text += "  - [gpu1, gpu2, nvlink, 10]\n  - [gpu0, p, pcie, 5]\n  - [gpu1, p, pcie, 5]\n  - [gpu2, p, pcie, 5]\n"
    text += "  - [gpu1, q, pcie, 5]\n"
    graph = plan_graph(loads_topology(text))
    assert pairs(graph) == {
        *(("gpu0", "gpu1"), ("gpu1", "gpu2"), ("gpu2", "gpu1")),
        # gpu1 -> gpu0, gpu0 -> gpu2 and gpu2 -> gpu0 go over p.
        *(("gpu1", "p"), ("p", "gpu0"), ("gpu0", "p"), ("p", "gpu2"), ("gpu2", "p")),
    }


def test_one_way_links_are_kept() -> None:
    text = HEAD + "gpus: [r, a, b]\nswitches: [s]\nlinks:\n  - {from: r, to: s, kind: nvswitch, gbps: 1}\n"
    text += "  - {from: s, to: a, kind: nvswitch, gbps: 1}\n  - {from: s, to: b, kind: nvswitch, gbps: 1}\n"
    assert pairs(plan_graph(loads_topology(text))) == {("r", "s"), ("s", "a"), ("s", "b")}


def test_dead_ends_are_pruned() -> None:
    text = HEAD + "gpus: 2\nswitches: [s, t, u, v]\nlinks:\n  - [gpu0, s, nvswitch, 10]\n  - [gpu1, s, nvswitch, 10]\n"
    text += "  - [s, t, nvswitch, 10]\n  - [gpu0, u, nvswitch, 10]\n  - {from: v, to: gpu1, kind: nvswitch, gbps: 1}\n"
    graph = plan_graph(loads_topology(text))
    assert names(graph) == ["gpu0", "gpu1", "s"]
    assert len(graph.links) == 4


def test_one_gpu_has_no_links() -> None:
    graph = plan_graph(load_topology("dgx1v"), ["gpu5"])
    assert (graph.nranks, names(graph), graph.links) == (1, ["gpu5"], ())


def test_relays() -> None:
    topology = load_topology("dgx1v")
    chosen = ["gpu0", "gpu1", "gpu2", "gpu3", "gpu6"]
    graph = plan_graph(topology, chosen, relay=True)
    assert names(graph) == [*chosen, "gpu4", "gpu5", "gpu7"]
    assert graph.nranks == 5
    assert len(graph.links) == 32
    # 0 and 6 are not joined, but idle GPUs join them.
    assert kinds(plan_graph(topology, ["gpu0", "gpu6"], relay=True)) == {"nvlink"}


def test_links_override() -> None:
    topology = load_topology("dgx1v")
    graph = plan_graph(topology, ["gpu0", "gpu1", "gpu2"], links="pcie")
    assert kinds(graph) == {"pcie"}
    assert names(graph)[3:] == ["plx0", "plx1", "cpu0"]
    both = plan_graph(topology, ["gpu0", "gpu1"], links="pcie,nvlink")
    assert kinds(both) == {"pcie", "nvlink"}
    assert pairs(plan_graph(topology, links="all")) >= {("gpu0", "plx0"), ("gpu0", "gpu1"), ("cpu0", "cpu1")}
    with pytest.raises(UsageError, match="did you mean `nvlink`"):
        plan_graph(topology, links="nvlnk")
    with pytest.raises(TopologyError, match="cannot be reached"):
        plan_graph(topology, links="xgmi")


def test_two_servers_use_nics_only_between_them() -> None:
    graph = plan_graph(two_servers(nics=2))
    assert graph.servers[:4] == ("server0", "server0", "server1", "server1")
    digraph = nx.DiGraph((k.src, k.dst) for k in graph.links if k.kind is not LinkKind.NVLINK)
    outside = nx.restricted_view(digraph, [names(graph).index("net")], [])
    # Without the network, PCIe leads from no GPU to the other one of its server.
    for a, b in ((0, 1), (1, 0), (2, 3), (3, 2)):
        assert not nx.has_path(outside, a, b)
    for a, b in itertools.permutations(range(4), 2):
        if graph.servers[a] != graph.servers[b]:
            assert nx.has_path(digraph, a, b)
    assert {v.name for v in graph.vertices if v.kind is VertexKind.NIC} == {
        f"server{s}.n{i}+{way}" for s in (0, 1) for i in (0, 1) for way in ("in", "out")
    }
    # No capacity is counted twice: every link of the files is there once.
    assert len(graph.links) == len(two_servers(nics=2).links)


def test_a_nic_of_one_gpu_needs_no_split() -> None:
    topology = two_servers()
    graph = plan_graph(topology, ["server0.gpu0", "server1.gpu1"])
    assert names(graph)[2:] == ["server0.p", "server1.p", "net", "server0.n0", "server1.n0"]


def test_servers_without_nvlink_share_pcie_inside_and_between() -> None:
    text = (
        HEAD + "servers: 2\ntemplate:\n  gpus: 2\n  switches: [p]\n  nics: [n]\n  links:\n    - [gpu0, p, pcie, 25]\n"
    )
    text += "    - [gpu1, p, pcie, 25]\n    - [n, p, pcie, 25]\nswitches: [net]\nlinks: [[each.n, net, net, 12]]\n"
    graph = plan_graph(loads_topology(text))
    assert sorted(names(graph)[4:]) == sorted(["net", *(f"server{s}.{v}" for s in (0, 1) for v in ("n", "p"))])
    assert ("server0.p", "server0.gpu1") in pairs(graph)


def test_gpus_on_the_network_without_nics() -> None:
    text = HEAD + "servers: 2\ntemplate:\n  gpus: 2\n  links: [[gpu0, gpu1, nvlink, 50]]\nswitches: [net]\n"
    text += "links: [[each.gpu0, net, net, 12], [each.gpu1, net, net, 12]]\n"
    graph = plan_graph(loads_topology(text))
    assert kinds(graph) == {"nvlink", "net"}
    assert len(graph.links) == 4 + 8
    # Inside one server the network is not used.
    assert kinds(plan_graph(loads_topology(text), ["server0.gpu0", "server0.gpu1"])) == {"nvlink"}


def test_far_nics_are_reached_from_the_nearest_gpus() -> None:
    topology = loads_topology(
        HEAD + "template: dgx1v\nservers: 2\nswitches: [ib]\nlinks:\n"
        "  - [each.mlx5_0, ib, net, 12.5]\n  - [each.mlx5_2, ib, net, 12.5]\n"
    )
    # All GPUs: GPUs of socket 0 use mlx5_0 (2 and 3 through the CPU), GPUs of socket 1 use mlx5_2.
    whole = plan_graph(topology)
    assert ("server0.cpu0+out", "server0.plx0+out") in pairs(whole)
    assert not any("cpu0" in a and "cpu1" in b for a, b in pairs(whole))
    # Only GPUs of one socket: the other socket's NIC is still useful.
    part = plan_graph(topology, parse_gpus(topology, "server0:0-1,server1:0-1"))
    assert ("server0.cpu0+out", "server0.cpu1+out") in pairs(part)


def test_nvlink_across_servers_is_one_island() -> None:
    text = HEAD + "servers: 2\ntemplate:\n  gpus: 2\nswitches: [nvs]\n"
    text += "links: [[each.gpu0, nvs, nvswitch, 900], [each.gpu1, nvs, nvswitch, 900]]\n"
    graph = plan_graph(loads_topology(text))
    assert kinds(graph) == {"nvswitch"}
    assert len(graph.links) == 8
    assert graph.servers == ("server0", "server0", "server1", "server1", "")


def test_servers_that_nothing_joins() -> None:
    topology = loads_topology(HEAD + "template: dgx1v\nservers: 2\n")
    with pytest.raises(TopologyError, match=r"server1\.gpu0 cannot be reached from server0\.gpu0"):
        plan_graph(topology)
    assert plan_graph(topology, ["server1.gpu0", "server1.gpu1"]).nranks == 2


def test_gpus_that_do_not_exist() -> None:
    topology = load_topology("dgx1v")
    for gpus, word in ((["gpu8"], "gpu8"), (["gpu1", "gpu1"], "twice"), ([], "no GPU"), (["plx0"], "plx0")):
        with pytest.raises(UsageError, match=word):
            plan_graph(topology, gpus)


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 7), min_size=1), st.booleans(), st.sampled_from([None, "all", "pcie"]))
def test_every_allocation_of_a_dgx1v(chosen: set[int], relay: bool, links: str | None) -> None:
    topology = load_topology("dgx1v")
    gpus = [f"gpu{i}" for i in sorted(chosen)]
    graph = plan_graph(topology, gpus, links, relay)
    known = {(k.src, k.dst, k.kind): k.gbps for k in topology.links}
    at = names(graph)
    assert at[: graph.nranks] == gpus
    for k in graph.links:
        assert known[at[k.src], at[k.dst], k.kind] == k.gbps
    digraph = nx.DiGraph((k.src, k.dst) for k in graph.links)
    digraph.add_nodes_from(graph.ranks)
    assert nx.is_strongly_connected(digraph)
    # No link is useless: each is on a simple path between two ranks without a third in between.
    undirected = digraph.to_undirected()
    for k in graph.links:
        others = set(graph.ranks) - {k.src, k.dst}
        assert any(_between(undirected, k.src, k.dst, a, b, others) for a, b in itertools.permutations(graph.ranks, 2))


def _between(graph: nx.Graph[int], src: int, dst: int, a: int, b: int, ranks: set[int]) -> bool:
    """Returns whether vertex-disjoint paths lead from a to src and from dst to b, through no other rank."""
    inner = graph.subgraph(set(graph) - (ranks - {a, b}))
    if not {a, b, src, dst} <= set(inner):
        return False
    flow: nx.DiGraph[tuple[int, str]] = nx.DiGraph()
    for v in inner:
        flow.add_edge((v, "in"), (v, "out"), capacity=1)
    for v, w in inner.edges:
        if {v, w} != {src, dst}:
            flow.add_edge((v, "out"), (w, "in"), capacity=1)
            flow.add_edge((w, "out"), (v, "in"), capacity=1)
    source, sink = (-1, "source"), (-1, "sink")
    for end in (src, dst):
        flow.add_edge(source, (end, "in"), capacity=1)
    for end in (a, b):
        flow.add_edge((end, "out"), sink, capacity=1)
    return nx.maximum_flow_value(flow, source, sink) == 2


def test_allocations() -> None:
    topology = load_topology("dgx1v")
    assert parse_gpus(topology, "0,1,4,7") == ["gpu0", "gpu1", "gpu4", "gpu7"]
    assert parse_gpus(topology, "7, 0-2") == ["gpu7", "gpu0", "gpu1", "gpu2"]
    assert parse_gpus(topology, "gpu3,0") == ["gpu3", "gpu0"]
    assert parse_gpus(topology, "server0:0-2") == ["gpu0", "gpu1", "gpu2"]
    double = two_servers()
    assert parse_gpus(double, "server0:0-1,server1:1") == ["server0.gpu0", "server0.gpu1", "server1.gpu1"]
    assert parse_gpus(double, "server1:gpu0,server0:gpu0") == ["server1.gpu0", "server0.gpu0"]
    assert parse_gpus(double, "0,3") == ["server0.gpu0", "server1.gpu1"]
    buses = loads_topology(HEAD + "gpus: ['0000:06:00.0', '0000:07:00.0']\n")
    assert parse_gpus(buses, "0000:07:00.0,0") == ["0000:07:00.0", "0000:06:00.0"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not a GPU of the topology"),
        ("0,,1", "not a GPU of the topology"),
        ("8", "GPUs 0 to 7"),
        ("6-9", "GPUs 0 to 7"),
        ("3-1", "backwards"),
        ("0,0", "twice"),
        ("0-2,1", "twice"),
        ("gpu9", "did you mean"),
        ("-1", "not a GPU of the topology"),
        ("server9:0", "no server"),
        ("server0:8", "server0 has GPUs 0 to 7"),
        ("server0:", "not a GPU of the topology"),
        ("server0:0,2", "of the whole topology or of a server"),
        ("99999999999999999999", "not a GPU of the topology"),
    ],
)
def test_wrong_allocations_are_usage_errors(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word) as caught:
        parse_gpus(load_topology("dgx1v"), text)
    assert caught.value.exit_code == 2


def test_speeds_stay_exact() -> None:
    text = HEAD + "gpus: 2\nlinks: [[gpu0, gpu1, nvlink x3, 0.1]]\n"
    assert plan_graph(loads_topology(text)).links[0].gbps == Fraction(3, 10)


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=16), st.integers(1, 6))
def test_strongly_connected_is_what_networkx_says(pairs: set[tuple[int, int]], count: int) -> None:
    links = [Link(f"v{a}", f"v{b}", LinkKind.NVLINK, Fraction(1)) for a, b in sorted(pairs) if a != b]
    chosen = [f"v{i}" for i in range(count)]
    graph: nx.DiGraph[str] = nx.DiGraph((link.src, link.dst) for link in links)
    graph.add_nodes_from(chosen)
    expected = any(set(chosen) <= part for part in nx.strongly_connected_components(graph))
    assert strongly_connected(Adjacency(links), chosen) == expected
