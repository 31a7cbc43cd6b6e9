"""Machines at the edges: two GPUs, a rack on one switch, several tiers, clusters with holes, whole clusters."""

from __future__ import annotations

from fractions import Fraction

import pytest
from graphs import both, graph, rails, star
from second_opinion import best_rate

from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing import plan
from collc.packing.check import check_packing
from collc.packing.explain import plan_depth
from collc.packing.model import Plan
from collc.packing.solvers.network import Net
from collc.packing.symmetry.groups import find_symmetry
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph

C = Collective
TREES = [c for c in Collective if c.uses_trees]


def proven(machine: PlanGraph, collective: Collective, root: int | None = None) -> Plan:
    made = plan(machine, collective, root)
    check_packing(machine, made)
    assert made.optimal
    return made


def without(machine: PlanGraph, missing: set[int]) -> PlanGraph:
    """The machine without some of its ranks."""
    keep = [v for v in range(len(machine.vertices)) if v not in missing]
    place = {v: i for i, v in enumerate(keep)}
    links = [(place[x.src], place[x.dst], x.gbps) for x in machine.links if x.src in place and x.dst in place]
    return graph(
        machine.nranks - len(missing),
        links,
        forwarders=len(machine.forwarders),
        servers=[machine.servers[v] for v in keep],
    )


def fat_tree(servers: int, over: int) -> PlanGraph:
    """8 GPUs a server at 450 GB/s, a 50 GB/s NIC each, a leaf switch for two servers, a spine `over` times too thin."""
    n, leaves = 8 * servers, servers // 2
    pairs = [(v, n + v // 8, Fraction(450)) for v in range(n)]
    pairs += [(v, n + servers + v // 16, Fraction(50)) for v in range(n)]
    pairs += [(n + servers + leaf, n + servers + leaves, Fraction(800, over)) for leaf in range(leaves)]
    where = [f"server{v // 8}" for v in range(n)] + [f"server{s}" for s in range(servers)] + ["fabric"] * (leaves + 1)
    return graph(n, both(pairs), forwarders=servers + leaves + 1, servers=where)


@pytest.mark.parametrize("collective", list(Collective))
def test_two_gpus(collective: Collective) -> None:
    made = proven(graph(2, [(0, 1, 3), (1, 0, 5)]), collective, 1 if collective.rooted else None)
    expected = {
        C.BROADCAST: 5, C.REDUCE: 3, C.ALL_GATHER: 6, C.REDUCE_SCATTER: 6, C.ALL_REDUCE: 3,
        C.SCATTER: 10, C.GATHER: 6, C.ALLTOALL: 6, C.SENDRECV: 3,
    }[collective]  # fmt: skip
    assert made.rate == expected


def test_two_gpus_with_a_link_of_one_direction() -> None:
    with pytest.raises(PackingError, match="cannot be reached from"):
        plan(graph(2, [(0, 1, 1)]), C.BROADCAST)


@pytest.mark.parametrize("collective", TREES)
def test_a_rack_of_72_on_one_switch(collective: Collective) -> None:
    made = proven(star(72, 900), collective)
    if collective.rooted:
        assert (made.rate, plan_depth(made)) == (Fraction(900), 2)
    else:
        share = Fraction(900 * 72, 71)
        assert made.rate == (share / 2 if collective is C.ALL_REDUCE else share)
        assert (plan_depth(made), len(made.trees)) == (1, 72)


def test_speeds_from_a_thousandth_to_a_million_in_one_graph() -> None:
    machine = graph(4, both([(0, 1, "0.001"), (1, 2, 1000000), (2, 3, "0.07"), (3, 0, 25), (0, 2, "12.5")]))
    for collective in Collective:
        made = proven(machine, collective)
        assert float(made.rate or 0) == pytest.approx(best_rate(machine, collective), rel=1e-6)


def test_pcie_boxes_with_bridges_use_both() -> None:
    # 8 x A100 PCIe in bridged pairs: 300 GB/s inside a pair, 25 GB/s of PCIe between pairs.
    machine = plan_graph(load_topology("a100-pcie-bridged"))
    made = proven(machine, C.ALL_REDUCE)
    bridges = {x.id for x in machine.links if x.kind.value == "nvlink"}
    used = {x for t in made.trees for h in (*t.reduce, *t.broadcast) for x in h.links}
    assert used & bridges
    assert used - bridges
    pair = plan(plan_graph(load_topology("a100-pcie-bridged"), ["gpu0", "gpu1"]), C.ALL_REDUCE)
    assert pair.rate is not None
    assert made.rate is not None
    assert pair.rate > 10 * made.rate


@pytest.mark.parametrize(("servers", "over", "expected"), [(2, 1, "1600/3"), (4, 2, "16000/31"), (4, 8, "200")])
def test_oversubscribed_fat_trees(servers: int, over: int, expected: str) -> None:
    assert proven(fat_tree(servers, over), C.ALL_GATHER).rate == Fraction(expected)
    assert proven(fat_tree(servers, over), C.ALL_REDUCE).rate == Fraction(expected) / 2


def test_an_unbalanced_switch_between_servers() -> None:
    # Twice as much leads into the fabric as out of it, on one side only.
    n = 8
    links = [link for v in range(n) for link in ((v, n + v // 4, 100), (n + v // 4, v, 100))]
    links += [link for v in range(n) for link in ((v, n + 2, 20), (n + 2, v, 10 if v < 4 else 20))]
    machine = graph(n, links, forwarders=3, servers=[f"server{v // 4}" for v in range(n)] + ["server0", "server1", ""])
    for collective in TREES:
        made = proven(machine, collective)
        assert float(made.rate or 0) == pytest.approx(best_rate(machine, collective), rel=1e-6)


@pytest.mark.parametrize(("servers", "all_gather"), [(2, "1040/3"), (3, "300"), (4, "800/3"), (8, "1600/7")])
def test_a100_clusters(servers: int, all_gather: str) -> None:
    machine = rails(servers, 8)
    gathered, reduced = proven(machine, C.ALL_GATHER), proven(machine, C.ALL_REDUCE)
    assert (gathered.rate, reduced.rate) == (Fraction(all_gather), Fraction(all_gather) / 2)
    assert plan_depth(gathered) == plan_depth(reduced) == 2


@pytest.mark.parametrize("missing", [{3}, {3, 17}, {0, 1, 2, 8, 9, 10, 11, 12}])
def test_clusters_with_holes(missing: set[int]) -> None:
    machine = without(rails(4, 8), missing)
    for collective in (C.ALL_GATHER, C.ALL_REDUCE, C.BROADCAST):
        proven(machine, collective)


def test_holes_leave_servers_and_twins_alike() -> None:
    machine = without(rails(4, 8), {3})
    symmetry = find_symmetry(Net.of(machine), machine.servers, None)
    # 7 GPUs on one server: 4 and 3 of them on the two rails; on the other servers 4 and 4, alike across servers.
    assert len(set(symmetry.rank_orbit)) == 4
    rooted = find_symmetry(Net.of(machine), machine.servers, 0)
    assert rooted.rank_orbit.count(0) == 1


@pytest.mark.slow
def test_a_thousand_gpus() -> None:
    machine = rails(128, 8)
    for collective in (C.ALL_GATHER, C.ALL_REDUCE):
        made = proven(machine, collective)
        assert made.rate == Fraction(25600, 127) / (2 if collective is C.ALL_REDUCE else 1)


@pytest.mark.parametrize(
    ("machine", "collective"),
    [(rails(2, 8), C.ALLTOALL), (rails(2, 8), C.SENDRECV), (without(rails(3, 8), {1}), C.SENDRECV)],
)
def test_flows_up_to_symmetry_are_optimal(machine: PlanGraph, collective: Collective) -> None:
    made = proven(machine, collective)
    assert float(made.rate or 0) == pytest.approx(best_rate(machine, collective), rel=1e-6)


def test_a_ring_of_ranks_that_the_machine_does_not_turn_with_keeps_its_own_rate() -> None:
    # Ranks alternate between two servers: every send crosses, and turning one server's GPUs would break the ring.
    machine = rails(2, 8)
    order = [v for pair in zip(range(8), range(8, 16), strict=True) for v in pair]
    place = {v: i for i, v in enumerate(order)} | {v: v for v in machine.forwarders}
    links = [(place[x.src], place[x.dst], x.gbps) for x in machine.links]
    where = [machine.servers[v] for v in order] + list(machine.servers[16:])
    mixed = graph(16, links, forwarders=len(machine.forwarders), servers=where)
    made = proven(mixed, C.SENDRECV)
    assert made.rate is not None
    assert float(made.rate) == pytest.approx(best_rate(mixed, C.SENDRECV), rel=1e-6)
    assert made.rate < 200
