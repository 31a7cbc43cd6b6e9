"""Clusters are never symmetric: what a loss leaves alike is still used, and plans stay proven and small."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from graphs import cluster, lacking, nic_links
from second_opinion import best_rate

from collc.checker import certificates
from collc.packing import Collective, plan
from collc.packing.check import check_packing
from collc.packing.model import Plan
from collc.packing.solvers.generate import Generator
from collc.packing.solvers.lp import FloatSolution
from collc.packing.solvers.network import Net
from collc.packing.symmetry.groups import Symmetry, find_symmetry
from collc.topology.model import LinkKind, PlanGraph

C = Collective
SERVERS = 8
FULL = cluster([8] * SERVERS)
LOSSES = {
    "nic": lacking(FULL, links=nic_links(FULL, 3)),
    "link": lacking(FULL, links=[min(nic_links(FULL, 3))]),
    "gpu": lacking(FULL, vertices=[3]),
    "rail": lacking(FULL, vertices=[64 + SERVERS + 3]),
    "three": lacking(FULL, links=nic_links(FULL, 3) | nic_links(FULL, 13) | nic_links(FULL, 17)),
}


def symmetry_of(machine: PlanGraph, root: int | None = None) -> Symmetry:
    return find_symmetry(Net.of(machine), machine.servers, root)


def proven(machine: PlanGraph, collective: Collective) -> Plan:
    made = plan(machine, collective)
    check_packing(machine, made)
    assert made.optimal
    assert len(made.trees) <= 4 * (machine.nranks + len(machine.links))
    return made


def random_cluster(seed: int, most: int) -> PlanGraph:
    """Up to 6 servers of unequal sizes, some alike, on 1 to 4 rails, with up to 2 NICs or GPUs lost."""
    rng = Random(seed)
    kinds = [rng.randint(1, 4) for _ in range(2)]
    sizes = [rng.choice(kinds) for _ in range(rng.randint(3, 6))]
    while sum(sizes) > most:
        sizes.pop()
    made = cluster(sizes, rails=rng.choice((1, 2, 4)), local=rng.choice((100, 450)), nic=rng.choice((25, 50)))
    for _ in range(rng.randint(0, 2)):
        gpu = rng.randrange(made.nranks)
        lost = lacking(made, vertices=[gpu]) if rng.random() < 0.5 else lacking(made, links=nic_links(made, gpu))
        if joined(lost):
            made = lost
    return made


def joined(machine: PlanGraph) -> bool:
    net = Net.of(machine)
    return machine.nranks > 1 and all(set(range(machine.nranks)) <= view.reach(0) for view in (net, net.reversed()))


@pytest.mark.parametrize(
    ("loss", "orbits"), [("nic", 4), ("link", 4), ("gpu", 3), ("rail", 2), ("three", 16)], ids=lambda x: str(x)
)
def test_a_loss_leaves_the_rest_alike(loss: str, orbits: int) -> None:
    assert len(set(symmetry_of(LOSSES[loss]).rank_orbit)) <= orbits


@pytest.mark.parametrize("collective", [C.ALL_GATHER, C.ALL_REDUCE, C.REDUCE_SCATTER, C.BROADCAST])
@pytest.mark.parametrize("loss", ["nic", "link", "gpu", "rail"])
def test_every_single_loss_is_proven(loss: str, collective: Collective) -> None:
    made = proven(LOSSES[loss], collective)
    if loss == "nic" and collective is C.ALL_GATHER:
        assert made.rate == Fraction(64 * 350, 56)  # what enters the odd server limits it


@pytest.mark.parametrize("lost", ["a GPU's NVLinks", "all NICs of a server but one"])
def test_what_hangs_on_little_bounds_a_large_all_reduce_at_once(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 64 GPUs no best partition is searched for; a cut proves the rate, and not the LP over all trees."""
    whole = cluster([8] * 10)
    links = {k.id for k in whole.links if k.kind is LinkKind.NVSWITCH and 3 in (k.src, k.dst)}
    if lost != "a GPU's NVLinks":
        links = {link for gpu in range(7) for link in nic_links(whole, gpu)}
    monkeypatch.delattr(Generator, "prove")
    made = proven(lacking(whole, links=links), C.ALL_REDUCE)
    assert made.rate == 50


@pytest.mark.slow
@pytest.mark.parametrize("collective", [C.ALL_GATHER, C.ALL_REDUCE, C.REDUCE_SCATTER, C.BROADCAST])
def test_three_losses_are_proven(collective: Collective) -> None:
    proven(LOSSES["three"], collective)


@pytest.mark.parametrize("collective", [C.ALL_GATHER, C.ALL_REDUCE, C.REDUCE_SCATTER, C.BROADCAST, C.REDUCE])
def test_servers_of_one_to_eight_gpus_take_few_trees(collective: Collective) -> None:
    assert len(proven(cluster(range(1, 9), rails=1), collective).trees) < 1000


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=pytest.mark.slow) if s in (0, 5, 6, 9) else s for s in range(12)]
)
def test_odd_clusters_reach_the_optimum_of_another_method(seed: int) -> None:
    machine = random_cluster(seed, 14)
    for collective in (C.ALL_GATHER, C.ALL_REDUCE, C.BROADCAST, C.ALLTOALL):
        made = proven(machine, collective)
        assert float(made.rate or 0) == pytest.approx(best_rate(machine, collective), rel=1e-6)


@pytest.mark.parametrize("root", [None, 1])
@pytest.mark.parametrize("seed", range(20))
def test_elements_spread_links_and_ranks_evenly(seed: int, root: int | None) -> None:
    machine = [*LOSSES.values(), cluster(range(1, 9), rails=1)][seed] if seed < 6 else random_cluster(seed, 24)
    net = Net.of(machine)
    symmetry = symmetry_of(machine, root)
    elements = symmetry.elements()
    assert sum(weight for weight, _, _ in elements) == 1
    for orbit, part in ((symmetry.link_orbit, 2), (symmetry.rank_orbit, 1)):
        size = {start: orbit.count(start) for start in set(orbit)}
        share: dict[tuple[int, int], Fraction] = {}
        for element in elements:
            for x in range(len(orbit)):
                image = element[part][x]  # type: ignore[index]
                share[x, image] = share.get((x, image), Fraction(0)) + element[0]
        assert all(orbit[x] == orbit[y] and weight == Fraction(1, size[orbit[x]]) for (x, y), weight in share.items())
        assert len(share) == sum(size[start] for start in orbit)
    for _, vertices, links in elements:
        assert sorted(vertices) == list(range(net.nverts))
        assert root is None or vertices[root] == root
        for link, image in enumerate(links):
            assert (net.tails[image], net.heads[image]) == (vertices[net.tails[link]], vertices[net.heads[link]])
            assert net.caps[image] == net.caps[link]


@pytest.mark.parametrize("seed", range(12))
def test_ranks_that_cost_nothing_from_each_to_the_other_count_as_one(seed: int) -> None:
    """The checker's cost per unit equals the cost of the plain algorithm, which takes one root after the other."""
    rng = Random(seed)
    graph = cluster([4, *(rng.randint(1, 4) for _ in range(3))], rails=rng.choice((1, 2)))
    free = {x.id for x in graph.links if x.kind is LinkKind.NVSWITCH and {x.src, x.dst} & {0, 1}}
    price = [0 if x.id in free else rng.choice((0, 0, 0, 1, 2, 5)) for x in graph.links]
    cost = certificates._costs(graph, price, False, graph.ranks)
    back = certificates._costs(graph, price, True, graph.ranks)
    each = [certificates._arborescence(cost, r) for r in graph.ranks]
    inward = [certificates._arborescence(back, r) for r in graph.ranks]
    merged, place = certificates._merged(cost)
    assert len(merged) == len(set(place)) < graph.nranks
    expected = {
        C.ALL_GATHER: Fraction(sum(map(int, each)), graph.nranks),
        C.REDUCE_SCATTER: Fraction(sum(map(int, inward)), graph.nranks),
        C.ALL_REDUCE: min(map(sum, zip(each, inward, strict=True))),
        C.BROADCAST: each[0],
        C.REDUCE: inward[0],
    }
    for collective, unit in expected.items():
        assert certificates._unit_cost(graph, price, collective, 0 if collective.rooted else None) == unit


def test_sendrecv_of_an_odd_cluster_is_proved_in_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring of 71 ranks has no rotation, and prices name only one bottleneck in each round."""
    rounds = []
    solve = Generator.solve

    def counted(self: Generator) -> FloatSolution:
        rounds.append(1)
        return solve(self)

    monkeypatch.setattr(Generator, "solve", counted)
    made = plan(lacking(cluster([8] * 9), vertices=[3]), C.SENDRECV)
    assert made.optimal
    assert made.rate == 350
    assert len(rounds) < 30
