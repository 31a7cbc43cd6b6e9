"""Default libraries for more GPUs than one server usually has: chosen by the model within a budget of work."""

from __future__ import annotations

import pytest

from collc.choose.library import choose_programs
from collc.choose.modeled import RUN_WORK, TABLE_WORK, ModelTables, call_time
from collc.choose.search import Search
from collc.choose.strategy import Strategy, strategy_for
from collc.collectives.model import Collective
from collc.collectives.sizes import bytes_per_call
from collc.options import CUDA
from collc.pipeline import Recorder, pack
from collc.simulator.generations import MACHINES
from collc.simulator.run import Prediction, Simulator, Variant, variants
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import PlanGraph


def switch(ngpus: int) -> PlanGraph:
    """GPUs behind one switch of 450 GB/s each way and GPU."""
    links = "\n".join(f"  - [gpu{i}, s, nvswitch, 450]" for i in range(ngpus))
    text = f"format: collc-topology/1\nname: switch{ngpus}\ngpu_model: H100\ngpus: {ngpus}\nswitches: [s]\nlinks:\n"
    return plan_graph(loads_topology(text + links))


@pytest.mark.slow
def test_seventeen_gpus_behind_a_switch_reach_what_rings_reach() -> None:
    """194 GB/s at 1 GiB; packed trees as they are reach 54."""
    graph = switch(17)
    assert strategy_for(CUDA, graph, 1) is Strategy.MODEL
    plans = pack(graph, [(Collective.ALL_REDUCE, None)], Recorder())
    found = choose_programs(graph, plans, CUDA, Strategy.MODEL, machine=MACHINES["h100"])
    last = found.entries[-1]
    model = Simulator(graph, Collective.ALL_REDUCE, None, MACHINES["h100"])
    variant = Variant(last.kind(found.plans[last.plan]), last.when.protocol, last.program.chunk_bytes, last.spread)
    assert (last.when.min_bytes or 0) <= bytes_per_call(Collective.ALL_REDUCE, 1 << 30, 17)
    assert model.predict(variant, 1 << 30).algbw_gbps >= 193


def test_the_number_of_gpus_is_no_reason_to_leave_the_model() -> None:
    for ngpus in (8, 17, 72):
        assert strategy_for(CUDA, switch(ngpus), 1) is Strategy.MODEL


def test_a_budget_ends_the_search_but_every_size_has_a_choice() -> None:
    """With no work to spend, one variant is simulated at the first size, and stays."""
    graph = switch(4)
    model = Simulator(graph, Collective.ALL_REDUCE, None, MACHINES["h100"])
    grid = variants(model)
    asked: list[int] = []

    def timed(variant: Variant, size: int) -> Prediction:
        asked.append(size)
        return model.predict(variant, size)

    search = Search(model, timed, 0.0)
    search.share_with(2)
    first = search.fastest(grid, 1 << 10)
    assert asked == [1 << 10]
    search.share_with(1)
    assert search.fastest(grid, 64 << 10, model.predict(first.variant, 64 << 10)).variant == first.variant
    whole = Search(model, timed)
    assert whole.fastest(grid, 1 << 10).time_us <= first.time_us


def test_a_budget_counts_work_and_no_time() -> None:
    """Two searches of one machine spend the same work, to the step, and choose the same."""
    graph = plan_graph(load_topology("a100x4-nv4"))
    found = []
    for _ in range(2):
        plans = pack(graph, [(Collective.ALL_GATHER, None)], Recorder())
        model = ModelTables(graph, plans, CUDA, MACHINES["a100"])
        table = model.table(plans[0])
        found.append((table.choices, model.simulators[Collective.ALL_GATHER].work))
    assert found[0] == found[1]
    assert 0 < found[0][1] < TABLE_WORK


def test_a_call_of_much_work_is_extended_from_smaller_ones() -> None:
    """Of 16 GPUs, rings over 32 channels: within a twentieth of the call that is simulated as a whole."""
    simulator = Simulator(switch(16), Collective.ALL_GATHER, None, MACHINES["h100"])
    variant = Variant("rings", "Simple", 64 << 10, 32)
    found = call_time(simulator, False, variant, 1 << 30)
    spent = simulator.work
    assert spent < 2 * RUN_WORK
    assert found.bytes >= (1 << 30) - 64
    assert found.time_us == pytest.approx(simulator.predict(variant, 1 << 30).time_us, rel=0.05)
    assert simulator.work > spent
