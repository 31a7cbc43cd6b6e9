"""The exact solver on known machines: the rates of the literature, with their proofs."""

from __future__ import annotations

from fractions import Fraction

import pytest
from graphs import both, dgx1, graph, planes, rails, star

from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing import plan
from collc.packing.check import check_packing
from collc.packing.model import Cut, Partition, Plan, Prices
from collc.topology.model import PlanGraph

C = Collective
TREES = (C.BROADCAST, C.REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER, C.ALL_REDUCE)


def depth(made: Plan) -> int:
    """Hops from the root to the farthest rank, over all trees and phases."""
    deepest = 0
    for tree in made.trees:
        for parent in (
            {h.dst: h.src for h in tree.broadcast},
            {h.src: h.dst for h in tree.reduce},
        ):
            for v in parent:
                steps = 0
                while v != tree.root:
                    v, steps = parent[v], steps + 1
                deepest = max(deepest, steps)
    return deepest


def optimum(made: PlanGraph, collective: Collective, root: int | None = None) -> Fraction:
    found = plan(made, collective, root)
    check_packing(made, found)
    assert found.optimal
    assert found.rate is not None
    return found.rate


@pytest.mark.parametrize(
    ("machine", "broadcast", "all_gather", "all_reduce"),
    [
        (dgx1(), "150", "1200/7", "600/7"),
        (dgx1(volta=False), "80", "640/7", "320/7"),
        (star(16), "150", "160", "80"),
        (planes(16, 6), "150", "160", "80"),
        (rails(1, 8), "300", "2400/7", "1200/7"),
        (rails(2, 8), "200", "1040/3", "520/3"),
    ],
    ids=["dgx1v", "dgx1p", "dgx2", "dgx2-planes", "a100", "a100x2"],
)
def test_known_machines(machine: PlanGraph, broadcast: str, all_gather: str, all_reduce: str) -> None:
    assert optimum(machine, C.BROADCAST) == optimum(machine, C.REDUCE) == Fraction(broadcast)
    assert optimum(machine, C.ALL_GATHER) == optimum(machine, C.REDUCE_SCATTER) == Fraction(all_gather)
    assert optimum(machine, C.ALL_REDUCE) == Fraction(all_reduce)


@pytest.mark.parametrize(
    ("gpus", "broadcast", "all_gather", "all_reduce"),
    [
        ((0, 1, 2), "2", "3", "2"),
        ((0, 3, 4), "2", "3", "2"),
        ((0, 1, 2, 3), "4", "16/3", "3"),
        ((0, 1, 4, 6), "1", "4/3", "1"),
        ((0, 3, 4, 7), "3", "4", "7/3"),
        ((0, 1, 2, 4, 5), "3", "15/4", "9/4"),
        ((0, 2, 3, 4, 7), "3", "15/4", "5/2"),
        ((0, 1, 2, 4, 5, 6), "4", "24/5", "13/5"),
        ((0, 1, 2, 4, 6, 7), "3", "18/5", "7/3"),
        ((0, 1, 2, 3, 4, 5, 6), "4", "14/3", "3"),
    ],
)
def test_dgx1v_allocations_in_links(gpus: tuple[int, ...], broadcast: str, all_gather: str, all_reduce: str) -> None:
    machine = dgx1(gpus)
    assert optimum(machine, C.BROADCAST) == 25 * Fraction(broadcast)
    assert optimum(machine, C.ALL_GATHER) == 25 * Fraction(all_gather)
    assert optimum(machine, C.ALL_REDUCE) == 25 * Fraction(all_reduce)


@pytest.mark.parametrize(("root", "least"), list(enumerate([4, 4, 5, 5, 4, 4, 5, 5])))
def test_dgx1v_broadcast_has_the_least_depth_from_every_root(root: int, least: int) -> None:
    # Among all 3,456 spanning trees, the trees with depth 4 reach only 143.75 GB/s from GPUs 2, 3, 6 and 7.
    made = plan(dgx1(), C.BROADCAST, root)
    assert made.rate == 150
    assert depth(made) == least


@pytest.mark.parametrize("collective", [C.ALL_GATHER, C.REDUCE_SCATTER, C.ALL_REDUCE])
def test_a_star_needs_depth_one(collective: Collective) -> None:
    made = plan(star(16), collective)
    assert depth(made) == 1
    assert len(made.trees) == 16


@pytest.mark.parametrize("collective", [C.BROADCAST, C.REDUCE])
def test_a_star_broadcasts_at_depth_two(collective: Collective) -> None:
    assert depth(plan(star(16), collective)) == 2


def test_certificates_of_a_balanced_machine_are_cuts_and_partitions() -> None:
    assert isinstance(plan(dgx1(), C.BROADCAST).certificate, Cut)
    assert isinstance(plan(dgx1(), C.REDUCE_SCATTER).certificate, Cut)
    assert isinstance(plan(dgx1(), C.ALL_REDUCE).certificate, Partition)


def test_an_unbalanced_switch_is_certified_by_prices() -> None:
    # r -> s -> {a, b}: every cut says 1, but what enters the switch can leave it once.
    machine = graph(3, [(0, 3, 1), (3, 1, 1), (3, 2, 1), (1, 0, 1), (2, 0, 1)], forwarders=1)
    made = plan(machine, C.BROADCAST)
    assert made.rate == Fraction(1, 2)
    assert isinstance(made.certificate, Prices)
    assert optimum(machine, C.REDUCE) == 1
    assert optimum(machine, C.ALL_REDUCE) == Fraction(1, 2)


def test_one_gpu_has_nothing_to_pack() -> None:
    for collective in TREES:
        made = plan(graph(1, []), collective)
        assert (made.rate, made.bound, made.trees, made.optimal) == (None, None, (), True)


def test_capacities_of_nine_orders_of_magnitude() -> None:
    machine = graph(3, both([(0, 1, "0.001"), (1, 2, 1000000), (0, 2, "0.002")]))
    assert optimum(machine, C.BROADCAST) == Fraction(3, 1000)
    assert optimum(machine, C.BROADCAST, 1) == Fraction(3, 1000)
    assert optimum(machine, C.ALL_REDUCE) == Fraction(3, 1000)
    assert optimum(machine, C.ALL_GATHER) == Fraction(9, 2000)


def test_a_disconnected_graph_is_one_clear_line() -> None:
    with pytest.raises(PackingError, match=r"rank 0 \(gpu0\) cannot reach rank 2 \(gpu2\)"):
        plan(graph(4, both([(0, 1, 1), (2, 3, 1)])), C.ALL_REDUCE)
    with pytest.raises(PackingError, match=r"rank 0 \(gpu0\) cannot be reached from rank 1 \(gpu1\)"):
        plan(graph(2, [(0, 1, 1)]), C.ALL_REDUCE)


def test_one_way_links_make_a_ring() -> None:
    ring = graph(5, [(i, (i + 1) % 5, 3) for i in range(5)])
    assert optimum(ring, C.BROADCAST) == 3
    assert optimum(ring, C.ALL_GATHER) == Fraction(15, 4)
    assert optimum(ring, C.ALL_REDUCE) == Fraction(15, 8)
