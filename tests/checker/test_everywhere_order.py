"""The verifier and the checker refuse wrong programs of an all_reduce that every rank computes."""

from __future__ import annotations

import dataclasses

import pytest

from collc.checker.library import check_everywhere
from collc.collectives.model import Collective
from collc.errors import IRError
from collc.ir.nodes import Channel, Program
from collc.ir.verify import verify
from collc.options import CUDA
from collc.packing.candidates.plans import candidate
from collc.packing.model import Plan
from collc.pipeline import Recorder, lower_everywhere
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

RANKS = 4


def made() -> tuple[Program, Plan]:
    graph = plan_graph(load_topology("a100x4-nv4"))
    plan = candidate(graph, Collective.ALL_REDUCE, None, "one-hop")
    return lower_everywhere(plan, 2, graph, CUDA, Recorder()), plan


def in_order(program: Program, order: tuple[int, ...], ranks: set[int], channel: int) -> Program:
    """The same where some ranks reduce a share in another order."""
    channels = list(program.channels)
    steps = list(channels[channel].steps)
    for rank in ranks:
        send, reduce = steps[rank]
        from_rank = {program.fifos[f].src: f for f in reduce.recv}
        recv = tuple(from_rank[one] for one in order if one != rank)
        steps[rank] = (send, dataclasses.replace(reduce, recv=recv, input_at=order.index(rank)))
    channels[channel] = Channel(tuple(steps))
    return program.replace(channels=tuple(channels))


def test_what_is_lowered_holds() -> None:
    program, plan = made()
    verify(program)
    check_everywhere(program, plan, 2)


@pytest.mark.parametrize("channel", [0, 1])
@pytest.mark.parametrize("rank", range(RANKS))
def test_one_rank_in_another_order_is_found(rank: int, channel: int) -> None:
    program, plan = made()
    wrong = in_order(program, (1, 0, 2, 3), {rank}, channel)
    with pytest.raises(IRError, match="reduces in another order than channel"):
        verify(wrong)
    with pytest.raises(IRError, match="do not reduce in the order of the ranks"):
        check_everywhere(wrong, plan, 2)


def test_another_order_at_all_ranks_is_found() -> None:
    """All ranks have equal bits, but in another order of summation than the other shares, which no plan states."""
    program, plan = made()
    wrong = in_order(program, (0, 1, 3, 2), set(range(RANKS)), 1)
    verify(wrong)
    with pytest.raises(IRError, match="do not reduce in the order of the ranks"):
        check_everywhere(wrong, plan, 2)


def test_links_that_no_hop_of_the_plan_takes_are_found() -> None:
    program, plan = made()
    other = dataclasses.replace(plan, trees=plan.trees[:1])
    with pytest.raises(IRError, match="do not hand each other their whole inputs"):
        check_everywhere(program, other, 2)


@pytest.mark.parametrize("spread", [0, 1, 3])
def test_another_spread_than_the_manifest_says_is_found(spread: int) -> None:
    program, plan = made()
    with pytest.raises(IRError, match=f"it has 2 shares, its manifest says {spread}"):
        check_everywhere(program, plan, spread)
