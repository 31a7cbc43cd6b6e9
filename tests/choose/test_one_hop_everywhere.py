"""One hop of all inputs as a candidate: small all_reduces of GPUs that are all joined, as the model or a rule says."""

from __future__ import annotations

from functools import cache

import pytest

from collc.build.memory import fifo_bytes_by_rank
from collc.choose.library import choose_programs
from collc.choose.programs import Chosen
from collc.choose.rules import everywhere_below
from collc.choose.strategy import Strategy
from collc.collectives.model import Collective
from collc.ir.verify import verify
from collc.options import CUDA
from collc.packing.candidates.plans import candidate, everywhere
from collc.packing.model import EVERYWHERE
from collc.pipeline import Recorder, pack
from collc.simulator.generations import MACHINES
from collc.simulator.run import EVERYWHERE_CHANNELS, Simulator, Variant
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph

ALL_REDUCE = Collective.ALL_REDUCE
FOUR = [f"gpu{number}" for number in range(4)]


def graph_of(name: str, gpus: list[str] | None = None) -> PlanGraph:
    return plan_graph(load_topology(name), gpus)


def chosen(graph: PlanGraph, strategy: Strategy, for_tuning: bool = False) -> Chosen:
    packed = pack(graph, [(ALL_REDUCE, None)], Recorder())
    return choose_programs(graph, packed, CUDA, strategy, machine=MACHINES["h100"], for_tuning=for_tuning)


@cache
def behind_a_switch(strategy: Strategy) -> Chosen:
    return chosen(graph_of("hgx-h100", FOUR), strategy)


@pytest.mark.parametrize("strategy", [Strategy.MODEL, Strategy.RULE], ids=lambda s: s.value)
def test_small_calls_behind_a_switch_take_it_and_large_ones_do_not(strategy: Strategy) -> None:
    found = behind_a_switch(strategy)
    first, *others = found.entries
    assert (first.everywhere, first.when.min_bytes) == (True, 0)
    assert first.kind(found.plans[first.plan]) == EVERYWHERE
    assert others
    assert not any(entry.everywhere for entry in others)
    assert 4 << 10 <= (others[0].when.min_bytes or 0) <= 64 << 10
    verify(first.program)
    assert len(first.program.shares) == first.spread in EVERYWHERE_CHANNELS
    assert max(fifo_bytes_by_rank(found.entries, len(FOUR))) <= CUDA.switched_bytes


def test_its_slots_are_those_of_other_programs() -> None:
    """Slots with equal ranks, links and numbers share memory with slots in other programs."""
    entries = behind_a_switch(Strategy.MODEL).entries
    theirs = {fifo.memory for entry in entries[1:] for fifo in entry.program.fifos}
    assert {fifo.memory for fifo in entries[0].program.fifos} <= theirs


def test_it_takes_one_hop_in_the_model_and_is_faster_for_it() -> None:
    simulator = Simulator(graph_of("hgx-h100"), ALL_REDUCE, None, MACHINES["h100"])
    assert simulator.heights(EVERYWHERE) == (1,) * 8
    for channels in EVERYWHERE_CHANNELS:
        one, two = (Variant(kind, "LL", 4 << 10, channels) for kind in (EVERYWHERE, "one-hop"))
        for size in (1 << 10, 16 << 10, 1 << 20):
            assert simulator.floor_us(one, size) <= simulator.predict(one, size).time_us * 1.0001
        assert simulator.predict(one, 1 << 10).time_us < simulator.predict(two, 1 << 10).time_us
        assert simulator.predict(one, 16 << 20).time_us > simulator.predict(two, 16 << 20).time_us


@pytest.mark.parametrize("name", ["dgx1v", "a100-pcie-bridged"])
def test_it_is_no_candidate_where_some_are_not_joined(name: str) -> None:
    graph = graph_of(name)
    joined = Simulator(graph, ALL_REDUCE).has("one-hop")
    assert Simulator(graph, ALL_REDUCE).has(EVERYWHERE) == joined
    if name != "a100-pcie-bridged":
        assert not joined
        assert not any(entry.everywhere for entry in chosen(graph, Strategy.RULE).entries)


def test_it_is_none_of_other_collectives_or_of_several_servers() -> None:
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.BROADCAST):
        assert not Simulator(graph_of("hgx-h100"), collective).has(EVERYWHERE)
    names = [gpu.name for gpu in load_topology("gb200-nvl72").gpus]
    over_two = Simulator(graph_of("gb200-nvl72", names[:8]), ALL_REDUCE)
    assert over_two.has("one-hop")
    assert not over_two.has(EVERYWHERE)


def test_the_rule_asks_for_the_hops_that_are_saved() -> None:
    graph = graph_of("hgx-h100")
    packed = pack(graph, [(ALL_REDUCE, None)], Recorder())[0]
    one = everywhere(graph, candidate(graph, ALL_REDUCE, None, "one-hop"))
    assert one.rate == packed.rate / 4 if packed.rate else False
    assert 0 < everywhere_below(packed, one, MACHINES["h100"]) <= 64 << 10
    # A launch of 18 us hides a hop of half of one.
    assert everywhere_below(packed, one, MACHINES["a100"]) == 0


def test_tuning_tries_it() -> None:
    found = chosen(graph_of("hgx-h100", FOUR), Strategy.MODEL, for_tuning=True)
    assert any(entry.everywhere and entry.when.min_bytes is None for entry in found.entries)
