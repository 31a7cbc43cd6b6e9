"""Each pass keeps its promises beyond correctness, which tests/ir checks for all passes."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import CUDA, HOST, TREE_COLLECTIVES, chain, lowered, random_schedule, schedule_of

from collc.collectives.model import Collective
from collc.errors import IRError
from collc.ir.arithmetic import reduction
from collc.ir.interpret import run, run_on_sets
from collc.ir.nodes import Channel, Program
from collc.ir.printer import parse_program, print_program
from collc.ir.verify import verify
from collc.lowering.depth import depths
from collc.lowering.merge_channels import merge_channels
from collc.lowering.reduce_everywhere import reduce_everywhere
from collc.lowering.take_turns import take_turns
from collc.pipeline import passes


def names(program: Program, rank: int) -> list[str]:
    return [step.name for channel in program.channels for step in channel.steps[rank]]


def test_build_keeps_phases_apart() -> None:
    schedule = schedule_of(Collective.ALL_REDUCE, 3, [chain(3, 0)])
    program = dict(lowered(schedule))["build"]
    assert [names(program, r) for r in range(3)] == [
        ["recvReduceCopySend"],
        ["recvReduceSend", "recvCopySend"],
        ["send", "recv"],
    ]


def one_hop(nranks: int) -> Program:
    stars = [[(root, rank) for rank in range(nranks) if rank != root] for root in range(nranks)]
    return dict(lowered(schedule_of(Collective.ALL_REDUCE, nranks, stars)))["share_slots"]


@pytest.mark.parametrize("channels", [0, 1, 3])
@pytest.mark.parametrize("nranks", [2, 3, 8])
def test_reduce_everywhere_reduces_in_the_order_of_the_ranks_at_every_rank(nranks: int, channels: int) -> None:
    program = reduce_everywhere(one_hop(nranks), channels)
    verify(program)
    assert all(names(program, rank) == ["send", "recvReduceCopy"] * (channels or 1) for rank in range(nranks))
    assert len(program.fifos) == (nranks if channels == 0 else channels * nranks * (nranks - 1))
    count = 37
    inputs = [np.array([f"({rank},{i})" for i in range(count)], dtype=object) for rank in range(nranks)]
    outputs = [np.empty(count, dtype=object) for _ in range(nranks)]
    for seed in range(4):
        run(program, inputs, outputs, reduction("sum"), count=count, element_bytes=4, seed=seed)
        for output in outputs:
            assert list(output) == ["".join(f"({rank},{i})" for rank in range(nranks)) for i in range(count)]


def test_another_order_at_one_rank_is_found() -> None:
    program = reduce_everywhere(one_hop(3))
    steps = list(program.channels[0].steps)
    send, reduce = steps[2]
    steps[2] = (send, dataclasses.replace(reduce, input_at=0))
    with pytest.raises(IRError, match=r"rank 2, step 1 .*reduces in another order than channel 0, rank \d"):
        verify(program.replace(channels=(Channel(tuple(steps)),)))


def test_reduce_everywhere_is_printed_and_read_back() -> None:
    program = reduce_everywhere(one_hop(3))
    text = print_program(program)
    assert "recvReduceCopy share 0 lag 0 recv 0,1 input-after 2\n" in text
    assert parse_program(text) == program
    with pytest.raises(IRError, match="no own input after 3"):
        parse_program(text.replace("input-after 2", "input-after 3"))


def test_pipeline_hops_counts_hops() -> None:
    schedule = schedule_of(Collective.ALL_REDUCE, 4, [chain(4, 0)])
    program = dict(lowered(schedule, CUDA))["pipeline_hops"]
    lags = [[step.lag for step in program.channels[0].steps[rank]] for rank in range(4)]
    slack = CUDA.slots - 2
    assert lags == [[3], [2, 4 + slack], [1, 5 + slack], [0, 6 + slack]]


@given(st.sampled_from(TREE_COLLECTIVES), st.integers(2, 8), st.integers(0, 99))
def test_after_pipeline_hops_every_wait_is_for_an_earlier_iteration(
    collective: Collective, nranks: int, seed: int
) -> None:
    program = dict(lowered(random_schedule(collective, nranks, seed), CUDA))["pipeline_hops"]
    lag = {}
    for channel in program.channels:
        for rank, steps in enumerate(channel.steps):
            for step in steps:
                lag.update({("send", f, rank): step.lag for f in step.send})
                lag.update({("recv", f, rank): step.lag for f in step.recv})
    for f, fifo in enumerate(program.fifos):
        for dst in fifo.dsts:
            ahead = lag["recv", f, dst] - lag["send", f, fifo.src]
            assert 1 <= ahead <= program.slots - 1


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_merge_channels_keeps_every_step(limit: int) -> None:
    schedule = random_schedule(Collective.ALL_GATHER, 6, 4)
    before = dict(lowered(schedule, CUDA))["pipeline_hops"]
    after = merge_channels(before, limit=limit)
    verify(after)
    assert len(after.channels) == min(limit, len(before.channels))
    for rank in range(6):
        steps = [step for channel in before.channels for step in channel.steps[rank]]
        merged = [step for channel in after.channels for step in channel.steps[rank]]
        assert sorted(map(repr, steps)) == sorted(map(repr, merged))


def test_depths_follow_both_phases() -> None:
    program = dict(lowered(schedule_of(Collective.ALL_REDUCE, 4, [chain(4, 1)])))["build"]
    assert depths(program, program.channels[0], finished=False) == {(0, 0): 1, (1, 0): 0, (2, 0): 1, (3, 0): 2}
    assert depths(program, program.channels[0], finished=True) == {(0, 0): 1, (1, 0): 0, (2, 0): 1, (3, 0): 2}


@given(st.sampled_from(TREE_COLLECTIVES), st.integers(2, 8), st.integers(0, 99), st.integers(1, 5))
def test_take_turns_keeps_every_step_and_always_waits_for_an_earlier_moment(
    collective: Collective, nranks: int, seed: int, limit: int
) -> None:
    before = dict(lowered(random_schedule(collective, nranks, seed, trees=6), CUDA))["pipeline_hops"]
    after = take_turns(before, limit=limit)
    verify(after)
    # Three slots are enough: nobody is more than three iterations ahead.
    verify(after.replace(slots=3) if len(before.channels) > limit else after)
    assert len(after.channels) == min(limit, len(before.channels))

    def bare(program: Program, rank: int) -> list[str]:
        steps = [step for channel in program.channels for step in channel.steps[rank]]
        return sorted(repr(dataclasses.replace(step, lag=0)) for step in steps)

    for rank in range(nranks):
        assert bare(after, rank) == bare(before, rank)


@settings(max_examples=20)
@given(st.sampled_from(TREE_COLLECTIVES), st.integers(2, 6), st.integers(0, 99))
def test_programs_that_take_turns_compute_their_collective(collective: Collective, nranks: int, seed: int) -> None:
    before = dict(lowered(random_schedule(collective, nranks, seed, trees=6), CUDA))["pipeline_hops"]
    after = take_turns(before, limit=2)
    wanted = run_on_sets(before, chunks=7, seed=seed)
    for resident in (1, None):
        for got, want in zip(run_on_sets(after, chunks=7, seed=seed, resident=resident), wanted, strict=True):
            assert list(got) == list(want)


def test_take_turns_gives_each_block_an_order_of_its_own() -> None:
    schedule = schedule_of(Collective.ALL_REDUCE, 4, [chain(4, 1)] * 24)
    program = take_turns(dict(lowered(schedule, CUDA))["pipeline_hops"], limit=8)
    assert {len(channel.steps[0]) for channel in program.channels} == {6}

    def order(channel: Channel) -> str:
        return "".join("U" if step.input else "D" for step in channel.steps[0])

    assert len({order(channel) for channel in program.channels}) > 3
    # The same bits every time.
    assert program == take_turns(dict(lowered(schedule, CUDA))["pipeline_hops"], limit=8)
    # Pipelines fill in fewer rounds than there are hops.
    assert max(step.lag for channel in program.channels for steps in channel.steps for step in steps) <= 4


def touched(channel: Channel, rank: int) -> int:
    return sum(len(s.recv) + s.input + s.output + len(s.send) for s in channel.steps[rank])


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize("nranks", [5, 6, 7, 8, 16])
def test_parts_of_stars_are_dealt_so_that_no_block_has_most_of_a_roots_work(
    collective: Collective, nranks: int
) -> None:
    copies, limit = 6, 2 * nranks
    stars = [[(hub, rank) for rank in range(nranks) if rank != hub] for hub in range(nranks) for _ in range(copies)]
    root = 0 if collective.rooted else None
    if root is not None:
        stars = [
            [(0, hub), *((hub, r) for r in range(1, nranks) if r != hub)] for hub in range(1, nranks) for _ in range(6)
        ]
        limit = 2 * (nranks - 1)
    before = dict(lowered(schedule_of(collective, nranks, stars, root=root), CUDA))["pipeline_hops"]
    after = take_turns(before, limit=limit)
    verify(after)
    verify(after.replace(slots=3))
    assert len(after.channels) == limit
    # Two stars of a hub would be 2/3 of the work of its block and leave other blocks idle.
    most = max(touched(channel, rank) for channel in after.channels for rank in range(nranks))
    together = max(touched(c, r) + touched(d, r) for c, d in itertools.pairwise(before.channels) for r in range(nranks))
    assert most < together
    assert after == take_turns(before, limit=limit)


def test_turns_are_for_blocks_that_have_slots_of_their_own() -> None:
    assert "take_turns" in [name for name, _ in passes(CUDA)]
    assert "take_turns" not in [name for name, _ in passes(CUDA, turns=False)]
    assert "take_turns" not in [name for name, _ in passes(HOST)]
