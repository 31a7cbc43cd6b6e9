"""The search for rings ends within its budget, and near the number of rings that an LP allows."""

from __future__ import annotations

import os
import time
from fractions import Fraction
from random import Random

import pytest
from graphs import both, graph
from sweep import wide_machine

from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing import plan
from collc.packing.candidates.paths import shortest_paths
from collc.packing.candidates.plans import KINDS, candidate
from collc.packing.candidates.ring_rates import Load, most_rings
from collc.packing.candidates.ring_search import disjoint_rings
from collc.topology.model import PlanGraph

# CPU seconds of all plans and candidates of one machine. The slowest takes about 15 on a busy 3 GHz core.
LIMIT_S = 60
SEEDS = range(int(os.environ.get("COLLC_WIDE_SEEDS", "50")))


def uneven_rails() -> PlanGraph:
    """Servers of 4, 4 and 1 GPUs, fully joined at 10 GB/s; every GPU reaches its server's three NICs, of unequal rails.

    The slowest link fits 2,667 times into the fastest one.
    """
    sizes, rails = (4, 4, 1), ("0.015", "0.0075", "0.00375")
    n = sum(sizes)
    nic, pairs = n, []
    ranks = iter(range(n))
    for size in sizes:
        own = [next(ranks) for _ in range(size)]
        pairs += [(a, b, "10") for a in own for b in own if a < b]
        for rail, gbps in enumerate(rails):
            pairs += [(gpu, nic, "10") for gpu in own]
            pairs.append((nic, n + 3 * len(sizes) + rail, gbps))
            nic += 1
    return graph(n, both(pairs), forwarders=4 * len(rails))


def cpu_seconds_of_all_candidates(machine: PlanGraph) -> float:
    start = time.process_time()
    for collective in (c for c in Collective if c.uses_trees):
        best = plan(machine, collective)
        assert best.bound is not None
        for kind in KINDS:
            try:
                found = candidate(machine, collective, None, kind)
            except PackingError:
                continue
            assert found.rate is not None
            assert 0 < found.rate <= best.bound
    return time.process_time() - start


@pytest.mark.parametrize("seed", [2, 11, 28])
def test_candidates_of_wide_speeds_end(seed: int) -> None:
    assert cpu_seconds_of_all_candidates(wide_machine(seed)) < LIMIT_S


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_candidates_of_all_wide_speeds_end(seed: int) -> None:
    assert cpu_seconds_of_all_candidates(wide_machine(seed)) < LIMIT_S


def test_rings_of_uneven_rails_end() -> None:
    machine = uneven_rails()
    start = time.process_time()
    rings = disjoint_rings(machine, shortest_paths(machine))
    assert time.process_time() - start < LIMIT_S
    # Two hops of every ring leave and enter the server of one GPU. The NICs of that server can carry 7 rings. Shortest
    # paths use only its fastest NIC, which can carry 4.
    assert len(rings) == 4


def crowded(rings: int, links: int, room: int, seed: int) -> tuple[list[Load], list[int]]:
    """Random rings over links with much room: too many sets to look at all."""
    rng = Random(seed)
    loads = [tuple((link, 1) for link in sorted(rng.sample(range(links), links // 3))) for _ in range(rings)]
    return loads, [rng.randint(1, room) for _ in range(links)]


@pytest.mark.parametrize("seed", range(2))
def test_many_rings_reach_the_bound_of_an_lp(seed: int) -> None:
    loads, room = crowded(800, 24, 40, seed)
    start = time.process_time()
    taken = most_rings(loads, room)
    assert time.process_time() - start < LIMIT_S
    used = [0] * len(room)
    for load, count in zip(loads, taken, strict=True):
        for link, times in load:
            used[link] += times * count
    assert all(u <= hops for u, hops in zip(used, room, strict=True))
    assert sum(taken) >= 0.93 * relaxed(loads, room)


def relaxed(loads: list[Load], room: list[int]) -> float:
    """The most fractions of rings, by scipy."""
    from scipy.optimize import linprog
    from scipy.sparse import lil_matrix

    matrix = lil_matrix((len(room), len(loads)))
    for column, load in enumerate(loads):
        for link, times in load:
            matrix[link, column] = times
    return -float(linprog([-1.0] * len(loads), A_ub=matrix.tocsr(), b_ub=room).fun)


def test_one_slow_link_does_not_cut_the_others_into_thousands_of_rings() -> None:
    pairs = [(a, b, "100") for a in range(4) for b in range(a)]
    fast = graph(4, both(pairs))
    slow = graph(4, both([*pairs, (0, 4, "0.1"), (1, 4, "0.1")]), forwarders=1)
    found = disjoint_rings(slow, shortest_paths(slow))
    assert found == disjoint_rings(fast, shortest_paths(fast))
    # The 12 directed links of four joined GPUs are no three rings (Tillson 1980).
    assert len(found) == 2
    assert candidate(slow, Collective.BROADCAST, 0, "rings").rate == Fraction(200)
