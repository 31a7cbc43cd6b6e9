"""Random graphs: every plan equals the optimum by a separate method; and properties that any optimum has."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from graphs import graph
from hypothesis import given, settings
from hypothesis import strategies as st
from second_opinion import best_rate, random_graph

from collc.collectives.model import Collective
from collc.packing import plan
from collc.packing.check import check_packing
from collc.topology.model import PlanGraph

TREES = [c for c in Collective if c.uses_trees]


def agree(machine: PlanGraph, collective: Collective, root: int) -> None:
    made = plan(machine, collective, root if collective.rooted else None)
    check_packing(machine, made)
    assert made.optimal
    assert made.rate is not None
    assert float(made.rate) == pytest.approx(best_rate(machine, collective, root), rel=1e-6), (machine.name, collective)


@pytest.mark.parametrize("seed", range(30))
def test_every_collective_is_optimal(seed: int) -> None:
    machine = random_graph(seed, 6)
    for collective in Collective:
        agree(machine, collective, seed % machine.nranks)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 20))
def test_a_thousand_graphs(first: int) -> None:
    for seed in range(first, first + 20):
        machine = random_graph(seed, 12)
        for collective in Collective:
            agree(machine, collective, seed % machine.nranks)


@pytest.mark.parametrize("seed", range(100, 112))
def test_speeds_of_nine_orders_of_magnitude(seed: int) -> None:
    machine = random_graph(seed, 5, ("0.001", "0.03", "1", "47", "20000", "1000000"))
    for collective in TREES:
        made = plan(machine, collective)
        check_packing(machine, made)
        assert made.optimal


def rate(machine: PlanGraph, collective: Collective) -> Fraction:
    found = plan(machine, collective).rate
    assert found is not None
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(TREES), st.randoms(use_true_random=False))
def test_relabelling_keeps_the_rate(seed: int, collective: Collective, rng: object) -> None:
    machine = random_graph(seed, 5)
    order = list(range(machine.nranks))
    rng.shuffle(order)  # type: ignore[attr-defined]
    place = {old: new for new, old in enumerate(order)}
    links = [(place.get(x.src, x.src), place.get(x.dst, x.dst), x.gbps) for x in reversed(machine.links)]
    other = graph(machine.nranks, links, forwarders=len(machine.forwarders))
    before = plan(machine, collective, order[0] if collective.rooted else None)
    after = plan(other, collective, 0 if collective.rooted else None)
    assert before.rate == after.rate


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(TREES), st.fractions(Fraction(1, 1000), 1000, max_denominator=1000))
def test_scaling_scales_the_rate(seed: int, collective: Collective, factor: Fraction) -> None:
    machine = random_graph(seed, 5)
    scaled = replace(machine, links=tuple(replace(x, gbps=x.gbps * factor) for x in machine.links))
    assert rate(scaled, collective) == rate(machine, collective) * factor


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(TREES), st.integers(0, 99), st.integers(1, 9))
def test_more_speed_never_lowers_the_rate(seed: int, collective: Collective, which: int, more: int) -> None:
    machine = random_graph(seed, 5)
    chosen = which % len(machine.links)
    faster = tuple(replace(x, gbps=x.gbps + more) if x.id == chosen else x for x in machine.links)
    assert rate(replace(machine, links=faster), collective) >= rate(machine, collective)
