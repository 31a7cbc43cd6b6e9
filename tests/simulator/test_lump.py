"""Lumped runs equal whole runs, weighted flows equal copies, and lumping makes machines of 256 GPUs feasible."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from fractions import Fraction

import pytest

from collc.collectives.model import Collective
from collc.simulator import compiled, engine
from collc.simulator.lump import Lumper
from collc.simulator.model import Case, CaseFifo, CaseStep, Loop
from collc.simulator.params import GENERIC, Machine, Protocol
from collc.simulator.run import Simulator, Variant
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import GraphLink, LinkKind, PlanGraph, Vertex, VertexKind

REAL = Machine(
    "m",
    launch_us=5.0,
    step_us=0.3,
    credit_us=0.7,
    memory_gbps=300.0,
    protocols=(Protocol("Simple", 6.0, 0.97, 1 << 20, block_gbps=120.0),),
)


def rails(servers: int) -> PlanGraph:
    """Servers of 8 GPUs on a switch of 450 GB/s each, a NIC of 50 GB/s per GPU on the rail of its number."""
    n = 8 * servers
    pairs = [(v, n + v // 8, 450, LinkKind.NVSWITCH) for v in range(n)]
    pairs += [(v, n + servers + v % 8, 50, LinkKind.NET) for v in range(n)]
    ends = [(a, b, gbps, kind) for x, y, gbps, kind in pairs for a, b in ((x, y), (y, x))]
    vertices = [Vertex(f"gpu{v}", VertexKind.GPU) for v in range(n)]
    vertices += [Vertex(f"switch{s}", VertexKind.SWITCH) for s in range(servers + 8)]
    names = [f"server{v // 8}" for v in range(n)] + [f"server{s}" for s in range(servers)] + ["fabric"] * 8
    links = tuple(GraphLink(i, a, b, kind, Fraction(gbps)) for i, (a, b, gbps, kind) in enumerate(ends))
    return PlanGraph("rails", n, tuple(vertices), tuple(names), links)


def graph(name: str) -> PlanGraph:
    return rails(int(name[6:])) if name.startswith("rails-") else plan_graph(load_topology(name))


@pytest.mark.parametrize(
    ("name", "collective", "variant", "smaller"),
    [
        ("dgx2", Collective.ALL_REDUCE, Variant("trees", "Simple", 64 << 10, 16), 10),
        ("dgx2", Collective.BROADCAST, Variant("one-hop", "Simple", 64 << 10, 12), 10),
        ("dgx-a100", Collective.ALL_GATHER, Variant("one-hop", "Simple", 32 << 10, 8), 2),
        ("hgx-h100", Collective.ALL_REDUCE, Variant("double-binary", "Simple", 64 << 10, 12), 2),
        ("dgx1v", Collective.REDUCE, Variant("rings", "Simple", 64 << 10, 12), 1),
        ("pcie-8x4090", Collective.ALL_REDUCE, Variant("trees", "Simple", 64 << 10, 8), 2),
        ("rails-2", Collective.ALL_REDUCE, Variant("trees", "Simple", 64 << 10, 16), 4),
        ("rails-3", Collective.REDUCE_SCATTER, Variant("trees", "Simple", 64 << 10, 24), 4),
    ],
)
@pytest.mark.parametrize("uneven", [0, 1001])
def test_a_lumped_run_is_the_whole_run(
    name: str, collective: Collective, variant: Variant, smaller: int, uneven: int
) -> None:
    # With fewer slots, two times in the last case differ by so little that rounding shifts all later times by 1e-8.
    model = Simulator(graph(name), collective, None, REAL, slots=8)
    case = model.case(variant, (1 << 20) + uneven)
    lumped = Lumper(case).lump(case.chunks)
    if not uneven:
        assert len(lumped.case.loops) * smaller <= len(case.loops)
    whole, short = compiled.run_fastest(case), lumped.unfold(compiled.run_fastest(lumped.case))
    assert short.time == pytest.approx(whole.time, rel=1e-9)
    assert short.link_bytes == pytest.approx(whole.link_bytes, rel=1e-12)
    # Compares every step of every loop, and takes the times of a lumped loop from its representative. The engine treats
    # times closer than 1e-9 as equal, and such differences add up along a chain of steps: hence the tolerance.
    stands = {loop: first for first, loops in short.alike.items() for loop in loops}
    times = {(row.loop, row.step, row.chunk): (row.begin, row.end) for row in short.executions}
    for row in whole.executions:
        begin, end = times[stands.get(row.loop, row.loop), row.step, row.chunk]
        assert (begin, end) == pytest.approx((row.begin, row.end), rel=1e-7)


def test_what_differs_in_one_number_is_not_lumped() -> None:
    model = Simulator(graph("dgx-a100"), Collective.ALL_GATHER, None, REAL)
    case = model.case(Variant("one-hop", "Simple", 64 << 10, 8), 1 << 20)
    classes = len(Lumper(case).lump(case.chunks).case.loops)
    slow = dataclasses.replace(case, capacity=(case.capacity[0] / 2, *case.capacity[1:]))
    late = dataclasses.replace(case, fifos=(dataclasses.replace(case.fifos[0], delay=9.0), *case.fifos[1:]))
    fewer = dataclasses.replace(case, chunks=((1, 16, 16), *case.chunks[1:]))
    for other in (slow, late, fewer):
        lumped = Lumper(other).lump(other.chunks)
        assert len(lumped.case.loops) > classes
        whole = compiled.run_fastest(other)
        assert lumped.unfold(compiled.run_fastest(lumped.case)).time == pytest.approx(whole.time, rel=1e-9)


def test_one_lumper_serves_all_sizes_of_a_program() -> None:
    model = Simulator(graph("dgx2"), Collective.ALL_REDUCE, None, REAL)
    lumper = Lumper(model.case(Variant("trees", "Simple", 64 << 10, 16), 1 << 20))
    for count in (1 << 16, 300_001, 1 << 20):
        case = model.case(Variant("trees", "Simple", 64 << 10, 16), count)
        lumped = lumper.lump(case.chunks)
        found = lumped.unfold(compiled.run_fastest(lumped.case))
        assert found.time == pytest.approx(compiled.run_fastest(case).time, rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_a_weighted_flow_is_as_many_flows(seed: int) -> None:
    rng = random.Random(seed)
    capacity = [rng.uniform(1, 10) for _ in range(5)]
    paths = [rng.sample(range(5), rng.randint(1, 3)) for _ in range(rng.randint(2, 8))]
    copies = [rng.randint(1, 4) for _ in paths]
    single = [[(r, 1) for r in path] for path, n in zip(paths, copies, strict=True) for _ in range(n)]
    weighted = [[(r, n) for r in path] for path, n in zip(paths, copies, strict=True)]
    expected = engine.fair_rates(single, capacity)
    starts = [sum(copies[:i]) for i in range(len(copies))]
    assert engine.fair_rates(weighted, capacity) == pytest.approx([expected[s] for s in starts], rel=1e-9)


Run = Callable[[Case], engine.Outcome]


@pytest.mark.parametrize("run", [engine.run, compiled.run], ids=["python", "c++"])
def test_weights_and_copies_take_their_part_of_links_and_blocks(run: Run) -> None:
    if run is compiled.run and not compiled.available():
        pytest.skip("no C++ compiler")

    def time(weights: tuple[int, ...], copies: int, rate: float) -> float:
        loops = (
            Loop(0, 0, (CaseStep(0, 0, (), (0,), rate),)),
            Loop(1, 0, (CaseStep(0, 0, (0,), (), math.inf),)),
        )
        fifo = CaseFifo(0, 1, (0,), 0.0, weights, copies)
        outcome = run(Case(loops, (fifo,), ((1, 6000, 6000),), (2,), (1000.0,), 2, 0.0, 0.0, 0.0))
        assert outcome.link_bytes == (6000 * (weights or (1,))[0],)
        return outcome.time

    assert time((), 1, math.inf) == pytest.approx(6)
    assert time((3,), 1, math.inf) == pytest.approx(18)
    assert time((1,), 2, 400.0) == pytest.approx(30)


@pytest.mark.slow
def test_256_gpus_keep_symmetry_and_the_rate() -> None:
    model = Simulator(rails(32), Collective.ALL_REDUCE, None, GENERIC)
    variant = Variant("trees", "Simple", 512 << 10, 256)
    case = model.case(variant, (1 << 30) // 4)
    assert len(case.loops) == 1 << 16
    assert len(Lumper(case).lump(case.chunks).case.loops) < 64
    found = model.predict(variant, 1 << 30)
    rate = float(model.plan("trees").rate or 0)
    assert 0.5 * rate < found.algbw_gbps <= rate * 1.0001
    assert max(found.utilization(model.graph)) <= 1.0001
