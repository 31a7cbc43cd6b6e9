"""Host libraries over several servers: plans by size, as the model with couriers has them."""

from __future__ import annotations

import itertools
import time
from fractions import Fraction

import pytest
from support.libraries import cluster

from collc.choose.library import choose_programs
from collc.choose.programs import Chosen
from collc.choose.rules import SIZES
from collc.choose.search import GAIN, sensible
from collc.choose.strategy import Strategy, strategy_for
from collc.choose.table import FEW_CHUNKS, choose
from collc.choose.turned import equal_both_ways
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import bytes_per_call
from collc.options import CUDA, HOST
from collc.packing.candidates.plans import BY_SERVERS
from collc.pipeline import Recorder, pack, wanted_programs
from collc.simulator.params import GENERIC, HOST_SERVERS, with_couriers_of_hosts
from collc.simulator.run import Prediction, Simulator, Variant, own_channels, variants
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.model import PlanGraph

MOST_BYTES_OVER_LEAST = Fraction(110, 100)


def graph_of(*sizes: int, gbps: str = "0.0125") -> PlanGraph:
    text = cluster(sizes).replace("kind: net, gbps: 10", f"kind: net, gbps: {gbps}")
    return plan_graph(loads_topology(text))


def chosen_for(graph: PlanGraph) -> Chosen:
    plans = pack(graph, wanted_programs(COMPILED, graph.nranks, [0]), Recorder())
    return choose_programs(graph, plans, HOST, strategy_for(HOST, graph, 1))


def test_the_model_chooses_over_servers() -> None:
    graph = graph_of(2, 2)
    assert strategy_for(HOST, graph, 1) is Strategy.SERVERS
    assert strategy_for(HOST, graph, 2) is Strategy.PACKED
    assert strategy_for(HOST, graph_of(9, 8), 1) is Strategy.SERVERS
    assert strategy_for(HOST, graph_of(33, 32), 1) is Strategy.PACKED  # too many ranks for plans by servers
    assert strategy_for(CUDA, graph, 1) is Strategy.SERVERS
    inside = plan_graph(loads_topology(cluster((2, 2))), ["gpu0", "gpu1"])
    assert strategy_for(HOST, inside, 1) is Strategy.PACKED
    assert strategy_for(CUDA, inside, 1) is Strategy.MODEL


@pytest.mark.parametrize(
    "sizes", [(2, 2), (1, 1, 3), *(pytest.param(s, marks=pytest.mark.slow) for s in [(2, 2, 2, 2), (3, 5), (1, 1, 6)])]
)
@pytest.mark.parametrize("gbps", ["0.0125", pytest.param("1.25", marks=pytest.mark.slow)])
def test_from_1_mib_on_plans_send_at_most_a_tenth_more_than_they_must(sizes: tuple[int, ...], gbps: str) -> None:
    graph = graph_of(*sizes, gbps=gbps)
    found = chosen_for(graph)
    served = set()
    for collective in COMPILED:
        mine = [entry for entry in found.entries if found.plans[entry.plan].collective is collective]
        least = bytes_per_call(collective, 1 << 20, graph.nranks)
        # The last that starts before 1 MiB serves it, and all later ones.
        first = max(i for i, entry in enumerate(mine) if (entry.when.min_bytes or 0) <= least)
        for entry in mine[first:]:
            plan = found.plans[entry.plan]
            assert plan.rate is not None
            assert plan.bound is not None
            assert plan.rate * MOST_BYTES_OVER_LEAST >= plan.bound, f"{collective.value}: {plan.kind}"
            served.add(collective)
    assert served == set(COMPILED)


def test_one_hop_more_over_the_network_is_worth_it_from_some_size_on() -> None:
    """1 + 1 + 3: a star sends two copies of a small broadcast; of a large one every card carries one."""
    graph = graph_of(1, 1, 3)
    found = chosen_for(graph)
    kinds = [found.plans[e.plan].kind for e in found.entries if found.plans[e.plan].collective is Collective.BROADCAST]
    assert kinds[0] == "three-phase"
    assert kinds[-1] != "three-phase"


def test_packed_trees_stay_where_other_plans_are_as_fast_in_the_model() -> None:
    """1 + 1 + 6: three phases of an all_gather send 1.7 times as many bytes. Chunks of trees that share a connection
    arrive earlier than in the model, where they arrive together."""
    graph = graph_of(1, 1, 6)
    found = chosen_for(graph)
    mine = [entry for entry in found.entries if found.plans[entry.plan].collective is Collective.ALL_GATHER]
    assert found.plans[mine[0].plan].kind == "three-phase"
    least = bytes_per_call(Collective.ALL_GATHER, 64 << 10, graph.nranks)
    # The last that starts before 64 KiB serves it, and all later ones.
    first = max(i for i, entry in enumerate(mine) if (entry.when.min_bytes or 0) <= least)
    assert {found.plans[entry.plan].kind for entry in mine[first:]} == {"trees"}


@pytest.mark.parametrize("sizes", [(2, 2), (3, 5)])
def test_on_gpus_small_calls_run_over_lines_as_long_as_that_is_faster_in_the_model(sizes: tuple[int, ...]) -> None:
    graph = graph_of(*sizes, gbps="10")
    plans = pack(graph, wanted_programs(COMPILED, graph.nranks, [0]), Recorder())
    found = choose_programs(graph, plans, CUDA, Strategy.SERVERS)
    for collective in COMPILED:
        mine = [e.when for e in found.entries if found.plans[e.plan].collective is collective]
        assert mine[0].protocol == "LL", collective
        assert mine[-1].protocol == "Simple", collective
        assert {when.protocol for when in mine} == {"Simple", "LL"}, collective
        model = Simulator(graph, collective, None, with_couriers_of_hosts(GENERIC), slots=CUDA.slots)
        channels = own_channels(model.plan("trees"))
        small, large = (
            [model.predict(Variant("trees", name, chunk, channels), size).time_us for name, chunk in tried]
            for size, tried in (
                (1 << 10, (("LL", 16 << 10), ("Simple", 16 << 10))),
                (64 << 20, (("LL", 16 << 10), ("Simple", 256 << 10))),
            )
        )
        assert small[0] < small[1] - 9, collective  # a hop over the network, and one inside a server
        assert large[0] > large[1], collective


def model_of(graph: PlanGraph, collective: Collective) -> Simulator:
    return Simulator(graph, collective, None, HOST_SERVERS, slots=HOST.slots)


def by_running_all(model: Simulator, kinds: list[str], most: int) -> list[tuple[int, Variant]]:
    """The choices when every candidate runs at every size: by the definition of `choose`, without floors."""
    found: list[tuple[int, Variant]] = []
    before: Prediction | None = None
    last = 0
    for size in (size for size in SIZES if size <= most):
        every = [model.predict(v, size) for v in sensible(model, offered(model, kinds), size)]
        best = min(every, key=lambda p: p.time_us)
        own = min((p for p in every if p.variant.plan == "trees"), key=lambda p: p.time_us)
        if before is not None:
            kept = model.predict(before.variant, size)
            best = kept if kept.time_us <= best.time_us * (1 + GAIN) else best
            own = kept if kept.variant.plan == "trees" and kept.time_us <= own.time_us * (1 + GAIN) else own
        first = before is None or size <= FEW_CHUNKS
        if first and best.variant.plan != "trees" and own.time_us <= best.time_us * (1 + GAIN):
            best = own
        if before is None or best.variant != before.variant:
            found.append((0 if before is None else round((last * size) ** 0.5), best.variant))
        before, last = best, size
    return found


def offered(model: Simulator, kinds: list[str]) -> list[Variant]:
    every = variants(model, kinds)
    return [v for v in every if v.channels <= own_channels(model.plan(v.plan)) and v.chunk_bytes >= 16 << 10]


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ((1, 1, 3), 1 << 20),
        pytest.param((3, 5), 32 << 20, marks=pytest.mark.slow),
        pytest.param((8,) * 4, 1 << 20, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("gbps", ["0.0125", "10"])
def test_candidates_that_are_not_run_would_not_have_won(sizes: tuple[int, ...], most: int, gbps: str) -> None:
    graph = graph_of(*sizes, gbps=gbps)
    for collective in (Collective.BROADCAST, Collective.ALL_GATHER, Collective.ALL_REDUCE):
        model = model_of(graph, collective)
        kinds = ["trees", *filter(model.has, BY_SERVERS)]
        table = choose(
            model,
            [size for size in SIZES if size <= most],
            kinds=kinds,
            only=lambda v, model=model, kinds=kinds: v in offered(model, kinds),  # type: ignore[misc]
            favored="trees",
        )
        assert [(c.min_bytes, c.variant) for c in table.choices] == by_running_all(model, kinds, most)


@pytest.mark.parametrize("sizes", [(2, 2), (1, 1, 3), pytest.param((2, 2, 2, 2), marks=pytest.mark.slow)])
def test_no_call_over_servers_undercuts_its_floor(sizes: tuple[int, ...]) -> None:
    for gbps, collective in itertools.product(("0.0125", "10"), COMPILED):
        model = model_of(graph_of(*sizes, gbps=gbps), collective)
        for variant in offered(model, ["trees", *filter(model.has, BY_SERVERS)]):
            for size in (1 << 10, 3000, 64 << 10, 1 << 20, 16 << 20):
                share = model.floor_us(variant, size) / model.predict(variant, size).time_us
                assert share <= 1, (collective, variant, size)
                assert share > 0.3


@pytest.mark.parametrize("gbps", ["0.0125", pytest.param("10", marks=pytest.mark.slow)])
def test_large_calls_of_many_ranks_are_estimated_from_smaller_ones_within_a_tenth(gbps: str) -> None:
    graph = graph_of(3, 5, gbps=gbps)
    shortened = 0
    for collective in (Collective.BROADCAST, Collective.ALL_GATHER):
        model = model_of(graph, collective)
        for variant in offered(model, ["trees", *filter(model.has, BY_SERVERS)]):
            whole, short = model.predict(variant, 32 << 20), model.estimate(variant, 32 << 20, 10_000)
            assert short.bytes == whole.bytes
            assert short.time_us == pytest.approx(whole.time_us, rel=0.1), variant.label()
            shortened += short.case.executions < whole.case.executions
    assert shortened


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(8,) * 4, (16, 16), (7, 9, 16), (8,) * 8, (20, 24, 20)])
def test_up_to_64_ranks_get_their_choice_in_half_a_minute_of_one_core(sizes: tuple[int, ...]) -> None:
    graph = graph_of(*sizes, gbps="10")
    assert strategy_for(HOST, graph, 1) is Strategy.SERVERS
    plans = pack(graph, wanted_programs(COMPILED, graph.nranks, [0]), Recorder())
    begin = time.process_time()
    choose_programs(graph, plans, HOST, Strategy.PACKED)
    middle = time.process_time()
    found = choose_programs(graph, plans, HOST, Strategy.SERVERS)
    assert time.process_time() - middle < middle - begin + 30
    assert {found.plans[entry.plan].collective for entry in found.entries} == set(COMPILED)


# Three machines of one GPU with two ports each, cabled as a triangle: 12.5 GB/s a port.
TRIANGLE = """\
format: collc-topology/1
name: triangle
gpus: [gpu0, gpu1, gpu2]
cpus: [cpu0, cpu1, cpu2]
nics: [a0, b0, a1, b1, a2, b2]
servers: {s0: [gpu0, cpu0, a0, b0], s1: [gpu1, cpu1, a1, b1], s2: [gpu2, cpu2, a2, b2]}
links:
"""


def test_large_calls_do_not_run_over_a_plan_of_a_lower_proven_rate() -> None:
    """Threads of 4 GB/s limit both in the model, where rings send fewer bytes and gain 4%. Trees are proven to carry
    twice as much over the links."""
    links = [(f"gpu{s}", f"cpu{s}", "c2c", "300") for s in range(3)]
    links += [(f"{port}{s}", f"cpu{s}", "pcie", "12.5") for s in range(3) for port in "ab"]
    links += [(f"a{s}", f"b{(s + 1) % 3}", "net", "12.5") for s in range(3)]
    rows = [f"  - {{between: [{a}, {b}], kind: {kind}, gbps: {gbps}}}" for a, b, kind, gbps in links]
    graph = plan_graph(loads_topology(TRIANGLE + "\n".join(rows)))
    plans = pack(graph, wanted_programs(COMPILED, graph.nranks, [0]), Recorder())
    found = choose_programs(graph, plans, CUDA, Strategy.SERVERS)
    best = {plan.collective: plan.rate for plan in plans}
    last = {found.plans[entry.plan].collective: found.plans[entry.plan].rate for entry in found.entries}
    assert last == best


def test_links_that_are_equal_both_ways() -> None:
    assert equal_both_ways(graph_of(2, 2))
    link = "{between: [nic0, net], kind: net, gbps: 10}"
    slower = "{from: nic0, to: net, kind: net, gbps: 5}\n  - {from: net, to: nic0, kind: net, gbps: 10}"
    assert not equal_both_ways(plan_graph(loads_topology(cluster((2, 2)).replace(link, slower))))
