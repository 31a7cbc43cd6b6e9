"""FIFOs between servers of the host target: what a chunk costs on its way, its rail, the slots that it keeps."""

from __future__ import annotations

import pytest
from support.libraries import cluster

from collc.collectives.model import COMPILED, Collective
from collc.ir.nodes import Program
from collc.options import HOST
from collc.packing.candidates.plans import BY_SERVERS
from collc.simulator import compiled, engine
from collc.simulator.couriers import joined_servers, with_couriers
from collc.simulator.engine import Outcome
from collc.simulator.lump import Lumper
from collc.simulator.model import Case
from collc.simulator.params import GENERIC, HOST_SERVERS, Courier, Machine, Protocol, with_couriers_of_hosts
from collc.simulator.rails import PARTS, Joined, Rails
from collc.simulator.run import Simulator, Variant, own_channels
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.model import LinkKind, PlanGraph

# Times that add up by hand: 1 us per step, 10 more for a courier's chunk, 25 for each look.
PLAIN = Machine(
    "plain", step_us=1.0, protocols=(Protocol("Simple", 0.0, 1.0, 1 << 20),), courier=Courier(4.0, 10.0, 25.0)
)
TWO_RAILS = """
format: collc-topology/1
name: two-rails
gpus: 2
nics: [a0, a1, b0, b1]
servers: {a: [gpu0, a0, a1], b: [gpu1, b0, b1]}
links:
  - {between: [gpu0, a0], kind: pcie, gbps: 12}
  - {between: [gpu0, a1], kind: pcie, gbps: 12}
  - {between: [gpu1, b0], kind: pcie, gbps: 12}
  - {between: [gpu1, b1], kind: pcie, gbps: 12}
  - {between: [a0, b0], kind: net, gbps: 0.01}
  - {between: [a1, b1], kind: net, gbps: 0.02}
"""


def graph_of(*sizes: int, gbps: str = "0.0125") -> PlanGraph:
    text = cluster(sizes).replace("kind: net, gbps: 10", f"kind: net, gbps: {gbps}")
    return plan_graph(loads_topology(text))


def case_of(
    graph: PlanGraph, collective: Collective, size: int, chunk: int, machine: Machine = PLAIN, kind: str = "trees",
    slots: int = HOST.slots, protocol: str = "Simple",
) -> tuple[Case, Program]:  # fmt: skip
    simulator = Simulator(graph, collective, None, machine, slots=slots)
    channels = own_channels(simulator.plan(kind))
    count = size // 4 // (graph.nranks if collective.per_rank else 1)
    return simulator.case(Variant(kind, protocol, chunk, channels), count), simulator.lowered(kind, channels)[1]


def test_one_chunk_pays_for_two_looks_and_its_bytes_and_its_writer_is_free_at_once() -> None:
    case, _ = case_of(graph_of(1, 1), Collective.BROADCAST, 12500, 12512)
    outcome = engine.run(case)
    # Written, seen, sent at 12.5 bytes per us, seen, stored.
    assert outcome.time == pytest.approx(1 + 25 + (1 + 10 + 1000) + 25 + 1)
    writer = next(row for row in outcome.executions if case.loops[row.loop].rank == 0)
    assert writer.end == pytest.approx(1)
    plain, _ = case_of(graph_of(1, 1), Collective.BROADCAST, 12500, 12512, PLAIN.replace(courier=None))
    assert engine.run(plain).executions[0].end == pytest.approx(1 + 1000)


# A GPU's: 4 us at each end where flags are apart from data; LL's lines are twice their data.
LINED = Machine(
    "lined",
    step_us=1.0,
    protocols=(Protocol("Simple", 0.0, 1.0, 1 << 20), Protocol("LL", 0.0, 0.5, 1 << 20)),
    courier=Courier(4.0, 10.0, 25.0, 4.0),
)


def test_lines_need_no_flags_of_their_own_and_do_not_cross_the_network() -> None:
    for protocol, apart in (("Simple", 4), ("LL", 0)):
        case, _ = case_of(graph_of(1, 1), Collective.BROADCAST, 12500, 12512, LINED, protocol=protocol)
        assert engine.run(case).time == pytest.approx(1 + (25 + apart) + (1 + 10 + 1000) + (25 + apart) + 1), protocol


def test_a_couriers_thread_moves_each_byte_of_lines_twice() -> None:
    for protocol, times in (("Simple", 1), ("LL", 2)):
        case, _ = case_of(
            graph_of(1, 1, gbps="1000"), Collective.ALL_REDUCE, 1 << 24, 1 << 18, LINED, protocol=protocol
        )
        assert engine.run(case).time == pytest.approx(times * 2 * (1 << 24) / 4000, rel=0.1)


@pytest.mark.parametrize("text", [TWO_RAILS, cluster((2, 2)), cluster((1, 1, 3))], ids=["rails", "2+2", "1+1+3"])
def test_lines_in_both_engines_lumped_and_above_the_floor(text: str) -> None:
    """On GPUs; what one rail and several make of the bytes."""
    graph, machine = plan_graph(loads_topology(text)), with_couriers_of_hosts(GENERIC)
    for collective in COMPILED:
        simulator = Simulator(graph, collective, None, machine, slots=4)
        for kind in ("trees", *filter(simulator.has, BY_SERVERS)):
            case, _ = case_of(graph, collective, 1 << 18, 1 << 13, machine, kind, protocol="LL")
            slow, lumped = engine.run(case), Lumper(case).lump(case.chunks)
            outcomes = [lumped.unfold(engine.run(lumped.case))]
            outcomes += [compiled.run(case)] if compiled.available() else []
            for outcome in outcomes:
                assert outcome.time == pytest.approx(slow.time, rel=1e-9)
                assert list(outcome.link_bytes) == pytest.approx(list(slow.link_bytes))
            for protocol in ("LL", "Simple"):
                variant = Variant(kind, protocol, 1 << 14, own_channels(simulator.plan(kind)))
                for size in (1 << 10, 1 << 18, 1 << 22):
                    assert simulator.floor_us(variant, size) <= simulator.predict(variant, size).time_us * (1 + 1e-9)


def test_a_slot_is_free_when_its_reader_is_done_and_the_writers_server_has_heard_it() -> None:
    """Two slots: the third chunk is written after the first one's whole way and the way back."""
    case, _ = case_of(graph_of(1, 1), Collective.BROADCAST, 48, 16, slots=2)
    crossing = 1 + 10 + 16 / 12.5
    once = 1 + 25 + crossing + 25 + 1
    assert engine.run(case).time == pytest.approx(once + 25 + once)
    free, _ = case_of(graph_of(1, 1), Collective.BROADCAST, 48, 16)
    assert engine.run(free).time == pytest.approx(1 + 25 + 3 * crossing + 25 + 1)


def net_links(graph: PlanGraph) -> dict[str, int]:
    """Links of the network by the names of their ends."""
    names = [v.name for v in graph.vertices]
    return {f"{names[k.src]} {names[k.dst]}": k.id for k in graph.links if k.kind is LinkKind.NET}


@pytest.mark.parametrize("size", [1 << 20, 1 << 23])
def test_what_crosses_between_two_servers_takes_all_rails_by_their_rates(size: int) -> None:
    graph = plan_graph(loads_topology(TWO_RAILS))
    case, program = case_of(graph, Collective.BROADCAST, size, 1 << 14)
    link = net_links(graph)
    (over,) = joined_servers(program, Rails(graph)).values()
    assert over == Joined((link["a0 b0"], link["a1 b1"]), (PARTS // 3, PARTS * 2 // 3), 0.0)
    for outcome in (engine.run(case), *([compiled.run(case)] if compiled.available() else [])):
        carried = [outcome.link_bytes[link[name]] / PARTS for name in ("a0 b0", "a1 b1", "b0 a0", "b1 a1")]
        assert carried == pytest.approx([size / 3, size * 2 / 3, 0, 0])
        assert outcome.time == pytest.approx(size / 30, rel=0.05)


def test_slow_rails_and_a_chunk_that_waits_for_the_slowest_piece() -> None:
    """A rail of a thousandth carries its share; a chunk is there when what the rail with the longest way brings is."""
    text = TWO_RAILS.replace("gbps: 0.01}", "gbps: 0.00002, latency_us: 500}").replace(
        "gbps: 0.02}", "gbps: 0.02, latency_us: 3}"
    )
    graph = plan_graph(loads_topology(text))
    _, program = case_of(graph, Collective.BROADCAST, 1 << 20, 1 << 14)
    (over,) = joined_servers(program, Rails(graph)).values()
    assert over.parts == (5, PARTS - 5)
    assert over.latency_us == 500


CROSSED = """
format: collc-topology/1
name: crossed
gpus: 3
nics: [a0, a1, b0, b1, c0]
switches: [left, right, net]
servers: {a: [gpu0, a0, a1], b: [gpu1, b0, b1], c: [gpu2, c0]}
links:
  - [gpu0, a0, pcie, 12]
  - [gpu0, a1, pcie, 12]
  - [gpu1, b0, pcie, 12]
  - [gpu1, b1, pcie, 12]
  - [gpu2, c0, pcie, 12]
  - [a0, left, net, 2]
  - [a1, right, net, 1]
  - [b0, right, net, 1]
  - [b1, left, net, 2]
  - [c0, right, net, 1]
"""


def test_rails_are_joined_where_the_network_joins_cards() -> None:
    """On the switch that both are on, never across; over a switch above, where there is one; each card once."""
    graph = plan_graph(loads_topology(CROSSED))
    link = net_links(graph)
    apart = Rails(graph)
    assert apart.between((0, 1)) == ((link["a0 left"], link["left b1"]), (link["a1 right"], link["right b0"]))
    assert apart.between((0, 2)) == ((link["a1 right"], link["right c0"]),)
    joined = plan_graph(loads_topology(CROSSED + "  - [left, net, net, 4]\n  - [net, right, net, 4]\n"))
    link = net_links(joined)
    above = Rails(joined).between((0, 2))
    assert above == ((link["a0 left"], link["left net"], link["net right"], link["right c0"]),)
    assert len(Rails(joined).between((0, 1))) == 2


def test_several_rails_in_both_engines_lumped_and_above_the_floor() -> None:
    graph = plan_graph(loads_topology(CROSSED))
    for collective in COMPILED:
        for kind in ("trees", *BY_SERVERS):
            case, _ = case_of(graph, collective, 1 << 18, 1 << 13, HOST_SERVERS, kind)
            slow = engine.run(case)
            lumped = Lumper(case).lump(case.chunks)
            outcomes = [lumped.unfold(engine.run(lumped.case))]
            outcomes += [compiled.run(case)] if compiled.available() else []
            for outcome in outcomes:
                assert outcome.time == pytest.approx(slow.time, rel=1e-9)
                assert list(outcome.link_bytes) == pytest.approx(list(slow.link_bytes))
            simulator = Simulator(graph, collective, None, HOST_SERVERS, slots=HOST.slots)
            variant = Variant(kind, "Simple", 1 << 13, own_channels(simulator.plan(kind)))
            for size in (1 << 10, 1 << 18, 1 << 22):
                assert simulator.floor_us(variant, size) <= simulator.predict(variant, size).time_us * (1 + 1e-9)


def test_a_couriers_thread_is_shared_by_all_that_its_server_sends_and_receives() -> None:
    """On a network without limits: an all_reduce of two servers passes every thread twice, in and out."""
    case, _ = case_of(graph_of(1, 1, gbps="1000"), Collective.ALL_REDUCE, 1 << 24, 1 << 16)
    assert engine.run(case).time == pytest.approx(2 * (1 << 24) / 4000, rel=0.1)


@pytest.mark.parametrize("sizes", [(2, 2), (1, 1, 3)], ids=str)
def test_both_engines_and_the_lumped_case_agree(sizes: tuple[int, ...]) -> None:
    graph = graph_of(*sizes)
    for collective in COMPILED:
        for kind in ("trees", *BY_SERVERS):
            case, _ = case_of(graph, collective, 1 << 18, 1 << 13, HOST_SERVERS, kind)
            slow = engine.run(case)
            outcomes: list[Outcome] = [
                Lumper(case).lump(case.chunks).unfold(engine.run(Lumper(case).lump(case.chunks).case))
            ]
            if compiled.available():
                outcomes.append(compiled.run(case))
            for outcome in outcomes:
                assert outcome.time == pytest.approx(slow.time, rel=1e-9)
                assert list(outcome.link_bytes) == pytest.approx(list(slow.link_bytes))


def test_no_courier_where_nothing_crosses() -> None:
    graph = plan_graph(loads_topology(cluster((2, 2))), ["gpu0", "gpu1"])
    case, program = case_of(graph, Collective.ALL_REDUCE, 1 << 16, 1 << 12)
    assert PLAIN.courier is not None
    assert with_couriers(case, program, Rails(graph), PLAIN.courier, PLAIN.protocol("Simple")) is case
