"""The engine against times worked out by hand, and the C++ engine against the Python one."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest

from collc.collectives.model import Collective
from collc.errors import IRError
from collc.options import CUDA
from collc.packing.candidates.plans import candidate, spread
from collc.packing.model import Hop, Plan, PlanType, Tree
from collc.pipeline import Recorder, lower
from collc.simulator import compiled, engine
from collc.simulator.engine import Outcome
from collc.simulator.model import Case, CaseFifo, CaseStep, Loop, fifo_routes, make_case
from collc.simulator.params import LL, SIMPLE, CopyEngine, LinkClass, Machine, Protocol
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import GraphLink, LinkKind, PlanGraph, Vertex, VertexKind

# No cost but the bytes and 3 us per hop.
BARE = Machine("bare", launch_us=10.0)
HOP = Protocol("Simple", 3.0, 1.0, 1 << 20)

Run = Callable[[Case], Outcome]
ENGINES = [engine.run, compiled.run]


@pytest.fixture(params=["python", "c++"])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "c++" and not compiled.available():
        pytest.skip("no C++ compiler")
    chosen: Run = ENGINES[request.param == "c++"]
    return chosen


def line(*gbps: int) -> PlanGraph:
    """A chain of ranks, links both ways."""
    n = len(gbps) + 1
    links: list[GraphLink] = []
    for i, speed in enumerate(gbps):
        for a, b in ((i, i + 1), (i + 1, i)):
            links.append(GraphLink(len(links), a, b, LinkKind.NVLINK, Fraction(speed)))
    vertices = tuple(Vertex(f"gpu{i}", VertexKind.GPU) for i in range(n))
    return PlanGraph("line", n, vertices, ("server0",) * n, tuple(links))


def chain(graph: PlanGraph, collective: Collective = Collective.BROADCAST) -> Plan:
    """Rank 0 to the last, hop by hop."""
    by_ends = {(x.src, x.dst): x.id for x in graph.links}
    down = tuple(Hop(i, i + 1, (by_ends[i, i + 1],)) for i in range(graph.nranks - 1))
    up = tuple(Hop(i + 1, i, (by_ends[i + 1, i],)) for i in reversed(range(graph.nranks - 1)))
    if collective is Collective.BROADCAST:
        up = ()
    root = 0 if collective.rooted else None
    return Plan(
        collective, root, PlanType.TREES, "test", Fraction(1), None, False, None, (Tree(0, Fraction(1), up, down),)
    )


def simulate(
    run: Run, graph: PlanGraph, plan: Plan, size: int, chunk: int, machine: Machine = BARE, protocol: Protocol = HOP
) -> Outcome:
    program = lower(plan, graph, CUDA, Recorder()).replace(chunk_bytes=chunk)
    return run(make_case(program, graph, machine, protocol, size // 4, 4))


def test_one_link_is_latency_plus_bytes_over_bandwidth(run: Run) -> None:
    graph = line(25)
    outcome = simulate(run, graph, chain(graph), 1 << 20, 1 << 20)
    assert outcome.time == pytest.approx(10 + (1 << 20) / 25e3 + 3, rel=1e-12)
    assert outcome.link_bytes == (1 << 20, 0)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("chunks", [1, 2, 7, 64])
def test_a_chain_is_pipelined(run: Run, ranks: int, chunks: int) -> None:
    graph = line(*[25] * (ranks - 1))
    outcome = simulate(run, graph, chain(graph), chunks << 16, 1 << 16)
    each = (1 << 16) / 25e3
    # The first chunk pays every hop; the others follow one by one.
    assert outcome.time == pytest.approx(10 + (ranks - 1) * (each + 3) + (chunks - 1) * each, rel=1e-12)


def test_a_chain_runs_at_its_slowest_link(run: Run) -> None:
    graph = line(50, 10, 25)
    outcome = simulate(run, graph, chain(graph), 64 << 16, 1 << 16)
    each = (1 << 16) / 1e3
    expected = 10 + each / 50 + 3 + 64 * each / 10 + 3 + each / 25 + 3
    assert outcome.time == pytest.approx(expected, rel=1e-12)


def test_all_reduce_of_two_goes_up_and_down(run: Run) -> None:
    graph = line(25)
    outcome = simulate(run, graph, chain(graph, Collective.ALL_REDUCE), 1 << 16, 1 << 16)
    assert outcome.time == pytest.approx(10 + 2 * ((1 << 16) / 25e3 + 3), rel=1e-12)


def test_protocol_efficiency_link_latency_and_class_count(run: Run) -> None:
    graph = line(25)
    slow = PlanGraph(
        graph.name,
        2,
        graph.vertices,
        graph.servers,
        tuple(GraphLink(x.id, x.src, x.dst, LinkKind.PCIE, x.gbps, Fraction(2)) for x in graph.links),
    )
    machine = Machine("m", launch_us=10.0, classes={LinkKind.PCIE: LinkClass(efficiency=0.8, hop_us=4.0)})
    outcome = simulate(run, slow, chain(slow), 16 << 10, 16 << 10, machine, LL)
    # The reader's block then copies the chunk: read and written at 60 GB/s.
    copied = 2 * (16 << 10) / 60e3
    assert outcome.time == pytest.approx(10 + (16 << 10) / (25e3 * 0.5 * 0.8) + 1 + 2 + 4 + copied, rel=1e-12)


def test_a_step_takes_its_fixed_time_and_the_hop_includes_it(run: Run) -> None:
    graph = line(25)
    machine = Machine("m", launch_us=10.0, step_us=0.5)
    outcome = simulate(run, graph, chain(graph), 4 << 16, 1 << 16, machine)
    each = (1 << 16) / 25e3
    # The receiver's own step is the last thing that happens; the sender needs 0.5 us before each chunk.
    assert outcome.time == pytest.approx(10 + 4 * (0.5 + each) + (3 - 0.5) + 0.5, rel=1e-12)


def test_a_block_pays_for_every_byte_that_it_reads_and_writes(run: Run) -> None:
    graph = line(100)
    machine = Machine("m", launch_us=10.0)
    protocol = Protocol("Simple", 3.0, 1.0, 1 << 20, block_gbps=60.0)
    outcome = simulate(run, graph, chain(graph, Collective.ALL_REDUCE), 1 << 16, 1 << 16, machine, protocol)
    size = (1 << 16) / 1e3
    # Up: input read, slot written. The root reads slot and input, writes output and slot. The last copy: read, written.
    assert outcome.time == pytest.approx(10 + 2 * size / 60 + 3 + 4 * size / 60 + 3 + 2 * size / 60, rel=1e-12)


def test_fan_out_costs_the_block_a_byte_per_reader(run: Run) -> None:
    graph = star_of(8, 1000)
    plan = candidate(graph, Collective.BROADCAST, 0, "one-hop")
    machine = Machine("m")
    protocol = Protocol("Simple", 0.0, 1.0, 1 << 20, block_gbps=60.0)
    outcome = simulate(run, graph, plan, 1 << 16, 1 << 16, machine, protocol)
    size = (1 << 16) / 1e3
    # The root reads its input once, writes it to its output and into seven slots; a reader then reads and writes it.
    assert outcome.time == pytest.approx(9 * size / 60 + 2 * size / 60, rel=1e-12)


def test_the_memory_of_a_card_limits_all_its_channels_together(run: Run) -> None:
    graph = star_of(3, 1000)
    plan = candidate(graph, Collective.BROADCAST, 0, "one-hop")
    machine = Machine("m", memory_gbps=10.0)
    protocol = Protocol("Simple", 0.0, 1.0, 1 << 20)
    outcome = simulate(run, graph, plan, 1 << 16, 1 << 16, machine, protocol)
    # A reader's memory takes its slot in, is read again, and takes the output.
    assert outcome.time == pytest.approx(3 * (1 << 16) / 10e3, rel=1e-12)
    wide = simulate(run, graph, plan, 1 << 16, 1 << 16, machine.replace(memory_gbps=20_000.0), protocol)
    assert wide.time == pytest.approx((1 << 17) / 1e6, rel=1e-12)


def test_what_is_staged_crosses_the_memory_of_a_cpu_twice(run: Run) -> None:
    cpu = Vertex("cpu0", VertexKind.CPU, memory_gbps=Fraction(10))
    ends = [(0, 2), (2, 1), (1, 2), (2, 0)]
    links = tuple(GraphLink(i, a, b, LinkKind.PCIE, Fraction(25)) for i, (a, b) in enumerate(ends))
    gpus = tuple(Vertex(f"gpu{i}", VertexKind.GPU) for i in range(2))
    graph = PlanGraph("staged", 2, (*gpus, cpu), ("server0",) * 3, links)
    plan = candidate(graph, Collective.BROADCAST, 0, "chain")
    protocol = Protocol("Simple", 0.0, 1.0, 1 << 20)
    outcome = simulate(run, graph, plan, 1 << 16, 1 << 16, Machine("m"), protocol)
    assert outcome.time == pytest.approx(2 * (1 << 16) / 10e3, rel=1e-12)


def star_of(n: int, gbps: int) -> PlanGraph:
    """GPUs on one switch."""
    ends = [pair for v in range(n) for pair in ((v, n), (n, v))]
    links = tuple(GraphLink(i, a, b, LinkKind.NVSWITCH, Fraction(gbps)) for i, (a, b) in enumerate(ends))
    gpus = tuple(Vertex(f"gpu{i}", VertexKind.GPU) for i in range(n))
    return PlanGraph("star", n, (*gpus, Vertex("nvs0", VertexKind.SWITCH)), ("server0",) * (n + 1), links)


def pcie_star(gbps: int = 25) -> PlanGraph:
    """Rank 0 with a PCIe link to each of two others and back."""
    ends = [(0, 1), (0, 2), (1, 0), (2, 0)]
    links = tuple(GraphLink(i, a, b, LinkKind.PCIE, Fraction(gbps)) for i, (a, b) in enumerate(ends))
    return PlanGraph("star", 3, tuple(Vertex(f"gpu{i}", VertexKind.GPU) for i in range(3)), ("server0",) * 3, links)


def star() -> Plan:
    """Rank 0 to both others at once."""
    hops = (Hop(0, 1, (0,)), Hop(0, 2, (1,)))
    return Plan(
        Collective.BROADCAST,
        0,
        PlanType.TREES,
        "test",
        Fraction(1),
        None,
        False,
        None,
        (Tree(0, Fraction(1), (), hops),),
    )


def test_a_copy_engine_launches_a_copy_per_chunk_and_hop(run: Run) -> None:
    copies = BARE.replace(copies=CopyEngine(launch_us=6.0))
    each = (1 << 20) / 25e3
    # Two copies are launched per chunk, then both links are busy at once.
    outcome = simulate(run, pcie_star(), star(), 4 << 20, 1 << 20, copies)
    assert outcome.time == pytest.approx(10 + 4 * (2 * 6 + each) + 3, rel=1e-12)
    # Stores of kernels launch nothing.
    assert simulate(run, pcie_star(), star(), 4 << 20, 1 << 20).time == pytest.approx(10 + 4 * each + 3, rel=1e-12)
    # NVLink needs no copy engine.
    graph = line(25)
    assert simulate(run, graph, chain(graph), 1 << 20, 1 << 20, copies).time == pytest.approx(10 + each + 3, rel=1e-12)


def test_a_gpu_has_one_copy_engine_for_all_its_copies(run: Run) -> None:
    copies = BARE.replace(copies=CopyEngine(launch_us=6.0, gbps=20.0))
    outcome = simulate(run, pcie_star(), star(), 1 << 20, 1 << 20, copies)
    assert outcome.time == pytest.approx(10 + 2 * 6 + (1 << 20) / 10e3 + 3, rel=1e-12)
    # All channels share the copy engine, which moves their bytes one after the other.
    twice = spread(star(), 2)
    outcome = simulate(run, pcie_star(), twice, 1 << 20, 1 << 20, copies)
    assert outcome.time == pytest.approx(10 + 2 * 6 + (1 << 20) / 10e3 + 3, rel=1e-12)
    assert outcome.link_bytes == (1 << 20, 1 << 20, 0, 0, 2 << 20, 0, 0)


def flows_over_one_link(sizes: Sequence[int], capacity: float = 1000.0) -> Case:
    """Independent loops that each send one chunk over link 0 to a reader that does nothing with it."""
    loops, fifos, chunks = [], [], []
    for i, size in enumerate(sizes):
        loops.append(Loop(0, i, (CaseStep(i, 0, (), (i,), math.inf),)))
        chunks.append((1, size, size))
        fifos.append(CaseFifo(i, len(sizes) + i, (0,), 0.0))
    for i in range(len(sizes)):
        loops.append(Loop(1, i, (CaseStep(i, 0, (i,), (), math.inf),)))
    return Case(tuple(loops), tuple(fifos), tuple(chunks), (2,) * len(sizes), (capacity,), 2, 0.0, 0.0, 0.0)


def test_two_flows_share_a_link_evenly(run: Run) -> None:
    size = 1_000_000
    outcome = run(flows_over_one_link([size, size]))
    assert [row.end for row in outcome.executions] == pytest.approx([2000.0] * 4)
    # Each flow has half of the link until the shorter flow ends. Then the longer flow has the whole link.
    outcome = run(flows_over_one_link([size, 2 * size]))
    assert outcome.executions[0].end == pytest.approx(2000.0)
    assert outcome.time == pytest.approx(3000.0)


@pytest.mark.parametrize("seed", range(20))
def test_rates_are_max_min_fair(seed: int) -> None:
    rng = random.Random(seed)
    capacity = [rng.uniform(1, 10) for _ in range(6)]
    paths = [sorted(rng.sample(range(6), rng.randint(1, 3))) for _ in range(rng.randint(1, 12))]
    rates = engine.fair_rates([[(r, 1) for r in path] for path in paths], capacity)
    used = [sum(rate for rate, path in zip(rates, paths, strict=True) if r in path) for r in range(6)]
    assert all(u <= c * (1 + 1e-12) for u, c in zip(used, capacity, strict=True))
    for rate, path in zip(rates, paths, strict=True):
        # Every flow has a full resource on which no flow is faster: the definition of max-min fairness.
        assert any(
            used[r] >= capacity[r] * (1 - 1e-9)
            and rate >= max(x for x, p in zip(rates, paths, strict=True) if r in p) * (1 - 1e-9)
            for r in path
        )


@pytest.mark.parametrize(
    ("machine", "kind", "collective"),
    [
        ("dgx1v", "rings", Collective.ALL_REDUCE),
        ("dgx1v", "chain", Collective.ALL_REDUCE),
        ("dgx2", "double-binary", Collective.BROADCAST),
        ("dgx-a100", "one-hop", Collective.ALL_GATHER),
        ("pcie-8x4090", "ring", Collective.REDUCE_SCATTER),
    ],
)
def test_both_engines_agree_to_the_last_digit(machine: str, kind: str, collective: Collective) -> None:
    if not compiled.available():
        pytest.skip("no C++ compiler")
    graph = plan_graph(load_topology(machine))
    plan = spread(candidate(graph, collective, None, kind), 12)
    program = lower(plan, graph, CUDA, Recorder()).replace(chunk_bytes=32 << 10)
    real = Machine("m", launch_us=5.0, step_us=0.3, credit_us=0.7, memory_gbps=300.0)
    protocol = Protocol("Simple", 6.0, 0.97, 1 << 20, block_gbps=120.0)
    case = make_case(program, graph, real, protocol, 300_001, 4)
    a, b = engine.run(case), compiled.run(case)
    assert (a.time, a.link_bytes) == (b.time, b.link_bytes)
    assert list(a.executions) == list(b.executions)


def test_every_chunk_runs_once_and_no_step_overlaps_another_of_its_loop(run: Run) -> None:
    graph = plan_graph(load_topology("dgx1v"))
    plan = spread(candidate(graph, Collective.ALL_REDUCE, None, "rings"), 6)
    outcome = simulate(run, graph, plan, 10 << 20, 64 << 10, protocol=SIMPLE)
    seen = set()
    ends: dict[int, float] = {}
    for row in outcome.executions:
        key = (row.loop, row.step, row.chunk)
        assert key not in seen
        seen.add(key)
        assert row.begin >= ends.get(row.loop, 0.0)
        assert row.end >= row.begin
        ends[row.loop] = row.end
        if row.cause >= 0:
            assert outcome.executions[row.cause].end <= row.begin * (1 + 1e-9)


def test_a_call_of_nothing_ends_at_the_launch(run: Run) -> None:
    graph = line(25)
    assert simulate(run, graph, chain(graph), 0, 1 << 16).time == 10.0


def test_a_program_that_stalls_is_refused(run: Run) -> None:
    # A reader without a writer that ever runs: its share has no chunk on the writing side.
    steps = (CaseStep(0, 0, (), (0,), math.inf),), (CaseStep(1, 0, (0,), (), math.inf),)
    loops = (Loop(0, 0, steps[0]), Loop(1, 0, steps[1]))
    case = Case(loops, (CaseFifo(0, 1, (0,), 0.0),), ((0, 0, 0), (1, 8, 8)), (1, 1), (1000.0,), 2, 0.0, 0.0, 0.0)
    with pytest.raises(IRError, match="1 steps left"):
        run(case)


def test_routes_are_those_of_the_fifos() -> None:
    graph = line(25, 25)
    plan = chain(graph)
    program = lower(plan, graph, CUDA, Recorder())
    assert fifo_routes(program) == ((0,), (2,))
    bare = program.replace(fifos=tuple(dataclasses.replace(f, routes=(), link=None) for f in program.fifos))
    with pytest.raises(IRError, match="has no route"):
        fifo_routes(bare)
