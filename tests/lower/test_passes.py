"""What each pass promises beyond being correct (tests/ir runs them all)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs import CUDA, HOST, TREE_COLLECTIVES, chain, lowered, random_schedule, schedule_of

from collc.ir.nodes import Program
from collc.ir.verify import verify
from collc.lower.depth import depths
from collc.lower.merge_channels import merge_channels
from collc.packing.model import Collective


def names(program: Program, rank: int) -> list[str]:
    return [step.name for channel in program.channels for step in channel.steps[rank]]


def test_build_keeps_phases_apart():
    schedule = schedule_of(Collective.ALL_REDUCE, 3, [chain(3, 0)])
    program = dict(lowered(schedule))["build"]
    assert [names(program, r) for r in range(3)] == [
        ["recvReduceCopySend"],
        ["recvReduceSend", "recvCopySend"],
        ["send", "recv"],
    ]


def test_fuse_copies_leaves_one_pass_over_memory():
    schedule = schedule_of(Collective.BROADCAST, 3, [chain(3, 1)], root=1)
    stages = dict(lowered(schedule))
    assert names(stages["build"], 1) == ["send", "copy"]
    assert names(stages["fuse_copies"], 1) == ["copySend"]


def test_pipeline_hops_counts_hops():
    schedule = schedule_of(Collective.ALL_REDUCE, 4, [chain(4, 0)])
    program = dict(lowered(schedule, CUDA))["pipeline_hops"]
    lags = [[step.lag for step in program.channels[0].steps[rank]] for rank in range(4)]
    slack = CUDA.slots - 2
    assert lags == [[3], [2, 4 + slack], [1, 5 + slack], [0, 6 + slack]]


@given(st.sampled_from(TREE_COLLECTIVES), st.integers(2, 8), st.integers(0, 99))
def test_after_pipeline_hops_every_wait_is_for_an_earlier_iteration(collective, nranks, seed):
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
def test_merge_channels_keeps_every_step(limit):
    schedule = random_schedule(Collective.ALL_GATHER, 6, 4)
    before = dict(lowered(schedule, CUDA))["pipeline_hops"]
    after = merge_channels(before, limit=limit)
    verify(after)
    assert len(after.channels) == min(limit, len(before.channels))
    for rank in range(6):
        steps = [step for channel in before.channels for step in channel.steps[rank]]
        merged = [step for channel in after.channels for step in channel.steps[rank]]
        assert sorted(map(repr, steps)) == sorted(map(repr, merged))


def test_share_slots_writes_a_chunk_once_for_all_children():
    schedule = schedule_of(Collective.BROADCAST, 5, [[(0, r) for r in range(1, 5)]], root=0)
    stages = dict(lowered(schedule, HOST))
    assert len(stages["merge_channels"].fifos) == 4
    assert [(f.src, f.dsts) for f in stages["share_slots"].fifos] == [(0, (1, 2, 3, 4))]


def test_depths_follow_both_phases():
    program = dict(lowered(schedule_of(Collective.ALL_REDUCE, 4, [chain(4, 1)])))["build"]
    assert depths(program, program.channels[0], finished=False) == {(0, 0): 1, (1, 0): 0, (2, 0): 1, (3, 0): 2}
    assert depths(program, program.channels[0], finished=True) == {(0, 0): 1, (1, 0): 0, (2, 0): 1, (3, 0): 2}
