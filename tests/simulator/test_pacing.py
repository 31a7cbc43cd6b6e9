"""Packed trees reach their proven rate in the model: parts that take turns keep up and down links busy at once."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from support.machines import WIDE

from collc.build.manifest import fifo_memory
from collc.build.memory import fifo_bytes_by_rank
from collc.choose.library import choose_programs
from collc.choose.rules import chunk_rule, rules
from collc.choose.strategy import Strategy
from collc.choose.table import choose, in_turns
from collc.collectives.model import Collective
from collc.options import CUDA, HOST
from collc.packing.candidates import plans as candidates
from collc.packing.candidates.plans import MOST_CHANNELS, TURNS, rings_of
from collc.pipeline import Recorder, pack
from collc.simulator import compiled
from collc.simulator.generations import machine_for
from collc.simulator.run import Simulator, Variant
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

PARTS = TURNS * MOST_CHANNELS
CHUNK = 64 << 10
LARGE = 256 << 20


def model(machine: str, gpus: str | None = None, collective: Collective = Collective.ALL_REDUCE) -> Simulator:
    topology = load_topology(machine)
    return Simulator(plan_graph(topology, parse_gpus(topology, gpus) if gpus else None), collective, None, WIDE)


def reached(simulator: Simulator, channels: int) -> float:
    bound = simulator.plan("trees").bound
    assert bound is not None
    found = simulator.predict(Variant("trees", "Simple", CHUNK, channels), LARGE)
    return found.algbw_gbps / float(bound)


@pytest.mark.skipif(not compiled.available(), reason="no C++ compiler: minutes")
@pytest.mark.parametrize(
    ("machine", "gpus"), [("dgx1v", None), ("dgx1v", "0-4"), ("dgx1v", "0-5"), ("dgx1p", None), ("ac922", None)]
)
def test_all_reduce_reaches_nine_tenths_of_its_bound(machine: str, gpus: str | None) -> None:
    simulator = model(machine, gpus)
    assert reached(simulator, PARTS) > 0.89
    assert reached(simulator, MOST_CHANNELS) < 0.75


def test_one_tree_with_blocks_in_step_reaches_half() -> None:
    assert 0.45 < reached(model("dgx1v", "0-4"), MOST_CHANNELS) < 0.52


@pytest.mark.skipif(not compiled.available(), reason="no C++ compiler: minutes")
@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER], ids=lambda c: c.value)
def test_parts_of_equal_width_end_together(collective: Collective) -> None:
    simulator = model("dgx1v", None, collective)
    assert reached(simulator, PARTS) > 0.93


def test_turns_are_in_the_grid_where_trees_are_few() -> None:
    grid = [v for v in in_turns(model("dgx1v")) if v.channels == PARTS]
    assert {v.protocol for v in grid} == {"Simple", "LL128"}
    assert in_turns(model("dgx1v"), ["rings"]) == []
    assert {v.protocol for v in in_turns(model("pcie-8x4090"))} == {"Simple"}


@pytest.mark.parametrize(
    ("machine", "collective", "channels", "sizes"),
    [
        ("hgx-b200", Collective.BROADCAST, MOST_CHANNELS, 9),
        ("hgx-b200", Collective.ALL_GATHER, 2 * MOST_CHANNELS, 9),
        ("mi300x", Collective.ALL_REDUCE, 28, 4),
        ("mi300x", Collective.ALL_GATHER, 56, 8),
        ("mi300x", Collective.BROADCAST, 7, 1),
    ],
)
def test_parts_of_a_ring_differ_a_little(machine: str, collective: Collective, channels: int, sizes: int) -> None:
    simulator = Simulator(plan_graph(load_topology(machine)), collective, 0 if collective.rooted else None)
    plan, cut = simulator.plan("rings"), simulator.spread("rings", channels)
    assert sum(tree.weight for tree in cut.trees) == plan.rate
    copies = channels // rings_of(plan)
    for at, tree in enumerate(plan.trees):
        parts = [part.weight * copies / tree.weight for part in cut.trees[at * copies :][:copies]]
        assert len(set(parts)) == sizes
        assert sum(parts) == copies
        assert max(abs(part - 1) for part in parts) <= Fraction(1, 48)


def test_parts_of_trees_are_equal() -> None:
    assert len({tree.weight for tree in model("dgx1v", "0-4").spread("trees", PARTS).trees}) == 1


@pytest.mark.skipif(not compiled.available(), reason="no C++ compiler: minutes")
@pytest.mark.parametrize(
    ("machine", "collective", "channels", "gain"),
    [
        ("hgx-b200", Collective.BROADCAST, MOST_CHANNELS, 1.06),
        ("hgx-b200", Collective.REDUCE_SCATTER, 2 * MOST_CHANNELS, 1.06),
        ("mi300x", Collective.ALL_REDUCE, 28, 1.04),
        ("mi300x", Collective.REDUCE_SCATTER, 56, 1.04),
    ],
)
def test_blocks_of_a_ring_that_keep_step_leave_links_idle(
    machine: str, collective: Collective, channels: int, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = Variant("rings", "Simple", 2 * CHUNK, channels)
    graph = plan_graph(load_topology(machine))

    def time_us() -> float:
        root = 0 if collective.rooted else None
        simulator = Simulator(graph, collective, root, machine_for(None, graph.gpu_model)[0])
        return simulator.predict(variant, 4 * LARGE).time_us

    uneven = time_us()
    monkeypatch.setattr(candidates, "_APART", 0)
    assert time_us() > gain * uneven


def test_the_reason_names_turns() -> None:
    simulator = model("dgx1v")

    def fixed(variant: Variant) -> bool:
        return (variant.protocol, variant.chunk_bytes) == ("Simple", CHUNK)

    table = choose(simulator, [64 << 10, LARGE], kinds=["trees"], only=fixed)
    assert table.choices[-1].variant.channels == PARTS
    assert "96 parts that take turns in 32 channels" in "".join(choice.why for choice in table.choices)


@pytest.mark.skipif(not compiled.available(), reason="no C++ compiler: minutes")
def test_a_library_holds_turns_within_its_memory_and_is_chosen_for_it() -> None:
    topology = load_topology("dgx1v")
    graph = plan_graph(topology, parse_gpus(topology, "0-4"))
    plans = pack(graph, [(Collective.ALL_REDUCE, None), (Collective.BROADCAST, 0)], Recorder())
    tight = dataclasses.replace(CUDA, fifo_bytes=128 << 20)
    held = choose_programs(graph, plans, tight, Strategy.MODEL)
    turning = [e for e in held.entries if e.spread == PARTS]
    assert turning
    assert all(len(e.program.channels) == MOST_CHANNELS and len(e.program.shares) == PARTS for e in turning)
    assert max(fifo_bytes_by_rank(held.entries, graph.nranks)) <= tight.fifo_bytes
    # Chosen for small slots, not cut afterwards.
    assert not any("for memory" in e.why for e in held.entries)


def test_by_rule_turns_are_for_trees_whose_blocks_would_go_up_and_down_by_turns() -> None:
    topology = load_topology("dgx1v")
    graph = plan_graph(topology, parse_gpus(topology, "0-4"))
    reduce, gather = pack(graph, [(Collective.ALL_REDUCE, None), (Collective.ALL_GATHER, None)], Recorder())
    found = rules(reduce, CUDA)
    assert [rule.channels for rule in found[-2:]] == [PARTS, PARTS]
    assert [rule.min_bytes for rule in found] == sorted({rule.min_bytes for rule in found})
    assert found[0].channels == 0
    assert rules(gather, CUDA) == chunk_rule(gather, CUDA)
    assert rules(reduce, HOST) == chunk_rule(reduce, HOST)
    # Stars of one hop: no rank both hands up and down.
    mesh = plan_graph(load_topology("a100x4-nv4"), None)
    (stars,) = pack(mesh, [(Collective.ALL_REDUCE, None)], Recorder())
    assert rules(stars, CUDA) == chunk_rule(stars, CUDA)

    held = choose_programs(graph, [reduce], CUDA, Strategy.RULE)
    assert [len(e.program.channels) for e in held.entries][-1] == MOST_CHANNELS
    assert all("by a rule" in e.why for e in held.entries)


def test_turns_are_left_out_where_their_slots_do_not_fit() -> None:
    topology = load_topology("dgx1v")
    graph = plan_graph(topology, parse_gpus(topology, "0-4"))
    plans = pack(graph, [(Collective.ALL_REDUCE, None)], Recorder())
    held = choose_programs(graph, plans, dataclasses.replace(CUDA, fifo_bytes=4 << 20), Strategy.RULE)
    assert all(e.spread <= MOST_CHANNELS for e in held.entries)
    assert fifo_memory(held.entries, CUDA.slots) <= (4 << 20) * graph.nranks
