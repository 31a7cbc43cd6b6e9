"""Steps of blocks that take turns, planned so that links have about as much to carry at any time."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs import CUDA, TREE_COLLECTIVES, lowered, random_schedule

from collc.collectives.model import Collective
from collc.ir.build import build
from collc.ir.verify import verify
from collc.lowering.even_rounds import EvenRounds
from collc.lowering.pipeline_hops import pipeline_hops
from collc.lowering.take_turns import take_turns
from collc.packing import plan as packed_plan
from collc.packing.candidates.plans import spread
from collc.schedule.trees import schedule_trees
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology


def test_links_have_about_as_much_to_carry_at_any_time() -> None:
    graph = plan_graph(load_topology("mi250x"))
    plan = packed_plan(graph, Collective.ALL_GATHER, None)
    schedule = schedule_trees(spread(plan, 160), graph.nranks)
    program = pipeline_hops(build(schedule, chunk_bytes=64 << 10, graph=graph), slots=4)
    rounds = EvenRounds(program, [program.channels[c::32] for c in range(32)])
    rows = rounds.times()
    assert sum(len(ranks) for group in rows for ranks in group) == sum(
        len(steps) for channel in program.channels for steps in channel.steps
    )
    for link, load in rounds.load.items():
        assert load.sum() == pytest.approx(rounds.mean_load[link] * len(load))
    over = [(load / rounds.mean_load[link] - 1).clip(0).mean() for link, load in rounds.load.items()]
    assert sum(over) / len(over) < 0.08
    busy = [block for group in rounds.block for block in group]
    assert sum((block > 1).mean() for block in busy) / len(busy) < 0.02


@given(st.sampled_from(TREE_COLLECTIVES), st.integers(2, 8), st.integers(0, 99), st.integers(1, 5), st.integers(2, 4))
def test_no_chunk_waits_longer_than_two_slots_allow(
    collective: Collective, nranks: int, seed: int, limit: int, slots: int
) -> None:
    target = dataclasses.replace(CUDA, slots=slots)
    before = dict(lowered(random_schedule(collective, nranks, seed, trees=6), target))["pipeline_hops"]
    after = take_turns(before, limit=limit)
    verify(after)
    place = defaultdict[int, list[tuple[int, int]]](list)
    for channel in after.channels:
        for steps in channel.steps:
            for at, step in enumerate(steps):
                for f in step.send:
                    place[f].insert(0, (step.lag, at))
                for f in step.recv:
                    place[f].append((step.lag, at))
    if len(before.channels) > limit:
        assert all(0 <= read[0] - written[0] <= min(slots, 3) for written, read in place.values())
