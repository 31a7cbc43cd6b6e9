"""Rings whose parts take turns in blocks, and whose roots share the FIFO of a hop: as modeled and as a choice."""

from __future__ import annotations

import pytest

from collc.build.memory import fifo_bytes_by_rank
from collc.choose.table import in_turns
from collc.codegen.entry import Entry
from collc.collectives.model import Collective
from collc.packing.candidates.plans import MOST_CHANNELS, rings_of
from collc.simulator import compiled, engine
from collc.simulator.generations import machine_for
from collc.simulator.lump import Lumper
from collc.simulator.run import Simulator, Variant
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

RINGS = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


def simulator(name: str, collective: Collective) -> Simulator:
    topology = load_topology(name)
    return Simulator(plan_graph(topology), collective, None, machine_for(None, topology.gpu_model)[0])


def rounds(model: Simulator) -> list[Variant]:
    return [v for v in in_turns(model) if v.plan in ("ring", "rings")]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("pcie-4xl40s", Collective.ALL_GATHER),
        ("pcie-4xl40s", Collective.REDUCE_SCATTER),
        *(pytest.param(name, one, marks=SLOW) for name in ("dgx1v", "mi300x") for one in RINGS),
    ],
)
def test_engines_agree_and_no_run_undercuts_its_floor(name: str, collective: Collective) -> None:
    if not compiled.available():
        pytest.skip("no C++ compiler")
    model = simulator(name, collective)
    for variant in rounds(model)[-1:]:
        case = model.case(variant, 400_001)
        whole, python = compiled.run(case), engine.run(case)
        assert (whole.time, whole.link_bytes) == (python.time, python.link_bytes)
        assert list(whole.executions) == list(python.executions)
        lumped = Lumper(case).lump(case.chunks)
        # Where rings differ too, nothing is alike.
        assert (len(lumped.case.loops) < len(case.loops)) == (rings_of(model.plan(variant.plan)) == 1)
        short = lumped.unfold(compiled.run(lumped.case))
        assert short.time == pytest.approx(whole.time, rel=1e-9)
        assert short.link_bytes == pytest.approx(whole.link_bytes, rel=1e-12)
    for variant in rounds(model):
        for size in (1 << 20, 16 << 20):
            assert model.predict(variant, size).time_us >= model.floor_us(variant, size)


@pytest.mark.parametrize(
    ("name", "parts"),
    [("hgx-b200", 64), *(pytest.param(*one, marks=SLOW) for one in (("dgx1v", 60), ("mi300x", 56), ("dgx2", 50)))],
)
@pytest.mark.parametrize("collective", RINGS)
def test_they_take_a_part_of_the_memory_and_hardly_more_time(name: str, parts: int, collective: Collective) -> None:
    """Compares with the same number of blocks and a FIFO for each root. The parts of a single ring differ in both, and
    at 64 MiB blocks with a FIFO for each root gain more from that."""
    model = simulator(name, collective)
    grid = rounds(model)
    assert {v.channels for v in grid} == {parts}
    assert {v.protocol for v in grid} <= {"Simple", "LL128"}
    kind = grid[0].plan
    programs = [model.lowered(kind, channels)[1] for channels in (parts // 2, parts)]
    assert [len(program.channels) for program in programs] == [parts // 2] * 2
    n = model.graph.nranks
    apart, shared = (max(fifo_bytes_by_rank([Entry(program, 0)], n)) for program in programs)
    assert shared * (n - 1) == pytest.approx(apart * 2, rel=0.01)
    for size, chunk in ((1 << 20, 64 << 10), (16 << 20, 64 << 10), (64 << 20, 128 << 10)):
        times = [model.predict(Variant(kind, "Simple", chunk, c), size).time_us for c in (parts // 2, parts)]
        assert times[1] <= (1.07 if (name, size) == ("hgx-b200", 64 << 20) else 1.02) * times[0]


def test_both_collectives_have_the_same_slots() -> None:
    programs = [simulator("dgx1v", collective).lowered("rings", 60)[1] for collective in RINGS]
    assert {fifo.place for fifo in programs[0].fifos} == {fifo.place for fifo in programs[1].fifos}


def test_where_they_are_no_choice() -> None:
    assert rounds(simulator("dgx1v", Collective.ALL_REDUCE)) == []  # its roots' shares are of other sizes
    assert rounds(simulator("dgx1v", Collective.BROADCAST)) == []
    assert all(v.channels > MOST_CHANNELS for v in rounds(simulator("hgx-h100", Collective.ALL_GATHER)))
