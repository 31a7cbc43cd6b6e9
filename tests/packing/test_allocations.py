"""Allocations of a machine: each class of GPU sets once, plans that depend on no numbering, speedup over rings."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest

from collc.collectives.model import Collective
from collc.errors import TopologyError, UsageError
from collc.packing import plan
from collc.packing.candidates.ring_rates import best_rings, ring_rate
from collc.packing.check import check_packing
from collc.packing.explain import plan_depth
from collc.packing.sets.allocations import allocations, connected_allocations
from collc.packing.solvers.cuts import gather_cut
from collc.packing.solvers.network import Net
from collc.packing.symmetry.relabel import canonical_graph, relabel_plan
from collc.topology.canonical import fingerprint, match
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import Link, LinkKind, Topology, Vertex, VertexKind

C = Collective
COMPARED = (C.BROADCAST, C.ALL_GATHER, C.ALL_REDUCE)


def sizes(machine: str, text: str) -> list[int]:
    found = allocations(load_topology(machine), text)
    return [sum(1 for a in found if len(a.gpus) == k) for k in range(1, 17)]


@pytest.mark.parametrize(
    ("machine", "text", "expected"),
    [
        ("dgx1v", "connected", [0, 0, 5, 14, 14, 10, 2, 1]),
        ("dgx1p", "connected", [0, 0, 2, 4, 3, 3, 1, 1]),
        ("dgx1v", "2..4", [0, 3, 9, 19]),
        ("pcie-8x4090", "2..3", [0, 2, 2]),
        ("dgx1v", "1..1", [1]),
        ("dgx2", "connected", [0, 0] + [1] * 14),
        ("mi300x", "all", [0] + [1] * 7),
        ("pcie-8x4090", "all", [0, 2, 2, 3, 2, 2, 1, 1]),
    ],
)
def test_each_class_of_gpu_sets_comes_once(machine: str, text: str, expected: list[int]) -> None:
    assert sizes(machine, text) == expected + [0] * (16 - len(expected))


@pytest.mark.parametrize("machine", ["dgx1v", "dgx1p"])
def test_growing_sets_misses_none(machine: str) -> None:
    topology = load_topology(machine)
    found = {a.fingerprint for a in connected_allocations(topology)}
    every = set()
    for size in range(3, 9):
        for gpus in combinations([v.name for v in topology.gpus], size):
            try:
                every.add(fingerprint(plan_graph(topology, gpus, "nvlink")))
            except TopologyError:
                continue
    assert found == every


def test_all_misses_none_either() -> None:
    topology = load_topology("dgx1p")
    names = [v.name for v in topology.gpus]
    every = {fingerprint(plan_graph(topology, gpus)) for size in range(2, 9) for gpus in combinations(names, size)}
    assert {a.fingerprint for a in allocations(topology, "all")} == every


def test_sets_by_name_keep_their_order_and_alike_ones_come_once() -> None:
    found = allocations(load_topology("dgx1v"), "4,0,3/1,5,6/gpu0,gpu1,gpu2/2")
    assert [a.gpus for a in found] == [
        ("gpu4", "gpu0", "gpu3"),  # 1,5,6 looks the same: two double links
        ("gpu0", "gpu1", "gpu2"),
        ("gpu2",),
    ]


@pytest.mark.parametrize("text", ["", " ", "connect", "0..4", "3..9", "4..3", "..", "3..", "0,1//2", "0,0"])
def test_what_is_no_allocation_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        allocations(load_topology("dgx1v"), text)


def test_a_single_number_is_refused_with_both_meanings() -> None:
    with pytest.raises(UsageError, match=r"sets of 5 GPUs are 5\.\.5; the set of GPU 5 alone is --gpus 5"):
        allocations(load_topology("dgx1v"), "5")


def test_too_many_sets_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collc.packing.sets.allocations._MAX_SETS", 300)
    rng = random.Random(3)
    gpus = tuple(Vertex(f"gpu{i}", VertexKind.GPU) for i in range(20))
    links = tuple(
        Link(f"gpu{a}", f"gpu{b}", LinkKind.NVLINK, Fraction(rng.randint(1, 10**6)))
        for a in range(20)
        for b in range(20)
        if a != b
    )
    machine = Topology("wild", gpus, links, {"server0": tuple(v.name for v in gpus)})
    with pytest.raises(UsageError, match="more than 300 sets"):
        allocations(machine, "connected")


def test_a_set_that_only_one_way_links_join_is_left_out() -> None:
    gpus = tuple(Vertex(f"gpu{i}", VertexKind.GPU) for i in range(4))
    ring = tuple(Link(f"gpu{i}", f"gpu{(i + 1) % 4}", LinkKind.NVLINK, Fraction(1)) for i in range(4))
    machine = Topology("ring", gpus, ring, {"server0": tuple(v.name for v in gpus)})
    assert [a.gpus for a in allocations(machine, "all")] == [("gpu0", "gpu1", "gpu2", "gpu3")]


def test_72_gpus_on_a_switch_are_72_allocations() -> None:
    gpus = tuple(Vertex(f"gpu{i}", VertexKind.GPU) for i in range(72))
    switch = Vertex("nvs", VertexKind.SWITCH)
    links = tuple(
        link
        for v in gpus
        for link in (
            Link(v.name, "nvs", LinkKind.NVSWITCH, Fraction(900)),
            Link("nvs", v.name, LinkKind.NVSWITCH, Fraction(900)),
        )
    )
    machine = Topology("nvl72", (*gpus, switch), links, {"rack": (*(v.name for v in gpus), "nvs")})
    assert [len(a.gpus) for a in allocations(machine, "all")] == list(range(2, 73))


def test_the_order_of_gpus_changes_nothing_but_names() -> None:
    topology = load_topology("dgx1v")
    names = [v.name for v in topology.gpus]
    rng = random.Random(5)
    seen = set()
    for _ in range(4):
        gpus = rng.sample(names, 8)
        graph = plan_graph(topology, gpus)
        for collective, root in ((C.ALL_REDUCE, None), (C.ALL_GATHER, None), (C.BROADCAST, gpus.index("gpu3"))):
            made = plan(graph, collective, root)
            weights = tuple(sorted(t.weight for t in made.trees))
            seen.add((collective, made.rate, plan_depth(made), weights))
    assert len(seen) == 3


def test_a_plan_travels_along_an_isomorphism() -> None:
    topology = load_topology("dgx1v")
    here = plan_graph(topology, ["gpu0", "gpu1", "gpu2", "gpu4", "gpu5"])
    there = plan_graph(topology, ["gpu7", "gpu5", "gpu4", "gpu1", "gpu0"])
    mapping = match(here, there)
    assert mapping is not None
    assert list(mapping) != list(range(5))
    for collective in Collective:
        if collective is C.SENDRECV:
            continue  # the ring of ranks is not part of the graph
        made = plan(here, collective)
        moved = relabel_plan(made, here, there, mapping)
        check_packing(there, moved)
        assert moved.rate == made.rate
        assert moved.root == (None if made.root is None else mapping[made.root])


def test_alike_graphs_share_a_canonical_form_and_unlike_roots_do_not() -> None:
    topology = load_topology("dgx1v")
    graph = plan_graph(topology)
    turned = plan_graph(topology, [f"gpu{i}" for i in (7, 6, 5, 4, 3, 2, 1, 0)])
    assert canonical_graph(graph, None)[0] == canonical_graph(turned, None)[0]

    def root_form(rank: int) -> tuple[object, int]:
        form, names = canonical_graph(graph, rank)
        return form, names.index(rank)

    # GPUs 0, 1, 4, 5 and GPUs 2, 3, 6, 7 have different neighborhoods.
    assert len({root_form(r) for r in range(8)}) == 2
    assert root_form(0) == root_form(5)


@pytest.mark.parametrize(("machine", "unit", "largest"), [("dgx1v", 25, 46), ("dgx1p", 20, 14)])
@pytest.mark.slow_for("dgx1v-25-46")
def test_trees_are_never_slower_than_rings(machine: str, unit: int, largest: int) -> None:
    found = connected_allocations(load_topology(machine))
    assert len(found) == largest
    for allocation in found:
        rings = best_rings(allocation.graph, Fraction(unit))
        for collective in COMPARED:
            made = plan(allocation.graph, collective)
            assert made.optimal
            assert made.rate is not None
            assert made.rate >= ring_rate(collective, len(allocation.gpus), rings, Fraction(unit)), allocation.gpus


@pytest.mark.parametrize(
    ("gpus", "rings"),
    [
        ("0,1,2", 2), ("0,3,4", 0), ("0,1,2,3", 4), ("0,1,4,6", 0), ("0,3,4,7", 2), ("0,1,2,4,5", 2),
        ("0,2,3,4,7", 2), ("0,1,2,4,5,6", 4), ("0,1,2,4,6,7", 2), ("0-6", 4), ("0-7", 6),
    ],
)  # fmt: skip
def test_rings_as_nccl_finds_them(gpus: str, rings: int) -> None:
    (one,) = allocations(load_topology("dgx1v"), gpus)
    assert best_rings(one.graph, Fraction(25)) == rings


def test_rings_of_many_gpus_are_refused() -> None:
    with pytest.raises(UsageError, match="too many to list"):
        best_rings(plan_graph(load_topology("dgx2")), Fraction(25))


def test_idle_gpus_forward_where_they_may() -> None:
    topology = load_topology("dgx1v")
    gpus = ["gpu0", "gpu1", "gpu2", "gpu3", "gpu6"]
    alone, helped = plan_graph(topology, gpus), plan_graph(topology, gpus, relay=True)
    assert plan(alone, C.ALL_GATHER).rate == Fraction(125, 4)
    made = plan(helped, C.ALL_GATHER)
    assert (made.rate, made.optimal) == (Fraction(375, 2), True)
    check_packing(helped, made)
    idle = {v for v in helped.forwarders if helped.vertices[v].kind is VertexKind.GPU}
    assert {helped.vertices[v].name for v in idle} == {"gpu4", "gpu5", "gpu7"}
    through = {helped.links[x].dst for t in made.trees for h in t.broadcast for x in h.links[:-1]}
    assert through == idle


def test_relays_copy_nothing() -> None:
    # One link into the idle GPU and two out of it: a copy there would bring 1 GB/s to both, forwarding 1/2.
    gpus = tuple(Vertex(f"gpu{i}", VertexKind.GPU) for i in range(4))
    pairs = [(0, 3), (3, 1), (3, 2), (1, 0), (2, 0)]
    links = tuple(Link(f"gpu{a}", f"gpu{b}", LinkKind.NVLINK, Fraction(1)) for a, b in pairs)
    machine = Topology("relay", gpus, links, {"server0": tuple(v.name for v in gpus)})
    graph = plan_graph(machine, ["gpu0", "gpu1", "gpu2"], relay=True)
    assert plan(graph, C.BROADCAST).rate == Fraction(1, 2)


def test_relays_help_every_allocation_of_a_dgx1v() -> None:
    topology = load_topology("dgx1v")
    for allocation in allocations(topology, "2..7"):
        helped = plan_graph(topology, allocation.gpus, "nvlink", relay=True)
        assert gather_cut(Net.of(helped))[0] > gather_cut(Net.of(allocation.graph))[0], allocation.gpus


def test_two_kinds_of_link_in_one_pair_keep_their_plans() -> None:
    topology = load_topology("dgx1v")
    graph = plan_graph(topology, ["gpu0", "gpu1", "gpu2"], "all")
    both = replace(graph, name="other")
    assert plan(both, C.ALL_REDUCE).trees == plan(graph, C.ALL_REDUCE).trees
