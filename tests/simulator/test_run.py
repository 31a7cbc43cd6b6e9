"""Predictions on whole machines: rates that they must approach, extrapolation against full runs, choices."""

from __future__ import annotations

import math
import time

import pytest
from support.machines import WIDE

from collc.choose.table import choose, in_turns
from collc.collectives.model import Collective
from collc.errors import UsageError
from collc.simulator import compiled, run
from collc.simulator.generations import MACHINES
from collc.simulator.params import GENERIC, Machine
from collc.simulator.report import critical_path
from collc.simulator.run import Simulator, Variant, variants
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

GIB = 1 << 30


def simulator(
    name: str, collective: Collective, gpus: list[str] | None = None, machine: Machine = GENERIC
) -> Simulator:
    return Simulator(plan_graph(load_topology(name), gpus), collective, None, machine)


@pytest.mark.parametrize(
    ("name", "collective", "variant", "rate"),
    [
        ("dgx1v", Collective.ALL_REDUCE, Variant("rings", "Simple", 512 << 10, 12), 600 / 7),
        ("dgx1v", Collective.ALL_GATHER, Variant("rings", "Simple", 512 << 10, 12), 1200 / 7),
        ("dgx1v", Collective.BROADCAST, Variant("trees", "Simple", 512 << 10, 6), 150),
        ("dgx2", Collective.ALL_REDUCE, Variant("trees", "Simple", 256 << 10, 16), 80),
        ("dgx-a100", Collective.ALL_REDUCE, Variant("trees", "Simple", 256 << 10, 8), 1200 / 7),
        ("dgx-a100", Collective.ALL_GATHER, Variant("trees", "Simple", 512 << 10, 16), 2400 / 7),
    ],
)
def test_large_calls_approach_the_rate_of_the_packing(
    name: str, collective: Collective, variant: Variant, rate: int
) -> None:
    model = simulator(name, collective, machine=WIDE)
    assert float(model.plan("trees").rate or 0) == pytest.approx(rate)
    found = model.predict(variant, GIB)
    assert 0.95 * rate < found.algbw_gbps <= rate * 1.0001
    assert max(found.utilization(model.graph)) <= 1.0001


def test_eight_gpus_one_gib_all_trees_in_under_a_second() -> None:
    if not compiled.available():
        pytest.skip("no C++ compiler")
    model = simulator("dgx1v", Collective.ALL_REDUCE)
    variant = Variant("trees", "Simple", 512 << 10, 32)
    model.case(variant, 1)
    begin = time.process_time()
    model.predict(variant, GIB)
    assert time.process_time() - begin < 1.0


@pytest.mark.parametrize(
    ("name", "collective", "variant"),
    [
        ("dgx1v", Collective.ALL_REDUCE, Variant("rings", "LL128", 64 << 10, 12)),
        ("dgx1v", Collective.BROADCAST, Variant("trees", "Simple", 64 << 10, 6)),
        ("dgx2", Collective.BROADCAST, Variant("trees", "LL", 16 << 10, 15)),
        ("dgx-a100", Collective.REDUCE_SCATTER, Variant("one-hop", "Simple", 32 << 10, 8)),
    ],
)
def test_extrapolation_meets_the_full_run(
    monkeypatch: pytest.MonkeyPatch, name: str, collective: Collective, variant: Variant
) -> None:
    monkeypatch.setattr(run, "WHOLE_RUN", {True: 20_000, False: 20_000})
    monkeypatch.setattr(run, "LUMPED_FROM", math.inf)
    model = simulator(name, collective)
    short = model.predict(variant, 256 << 20)
    whole = model.predict(variant, 256 << 20, whole=True)
    assert short.extrapolated
    assert not whole.extrapolated
    assert short.time_us == pytest.approx(whole.time_us, rel=0.01)
    assert short.period_us(GENERIC) == pytest.approx(whole.period_us(GENERIC), rel=0.01)
    for a, b in zip(short.utilization(model.graph), whole.utilization(model.graph), strict=True):
        assert a == pytest.approx(b, abs=0.02)


def test_times_at_one_gib_are_what_two_smaller_calls_say() -> None:
    """Exactly for rings, and within some hundredths for trees, whose blocks fall in and out of step."""
    model = simulator("dgx1v", Collective.ALL_REDUCE, machine=MACHINES["v100"])
    for variant, near in (
        (Variant("trees", "Simple", 64 << 10, 32), 0.03),
        (Variant("rings", "Simple", 64 << 10, 6), 0.001),
    ):
        found, run_whole = model.extended(variant, GIB, 256 << 20), model.predict(variant, GIB)
        assert found.bytes == run_whole.bytes
        assert found.time_us == pytest.approx(run_whole.time_us, rel=near)


def test_a_limit_of_slots_is_a_candidate_itself() -> None:
    model = simulator("dgx1v", Collective.ALL_REDUCE)
    whole, limited = ({v.chunk_bytes for v in variants(model, ["trees"], most)} for most in (1 << 30, 96 << 10))
    assert whole == {4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10} | {p.max_chunk for p in model.protocols}
    assert limited == {4 << 10, 16 << 10, 64 << 10, 96 << 10}
    turns = {v.chunk_bytes for v in in_turns(model, ["trees"], 96 << 10)}
    assert turns == {16 << 10, 32 << 10, 64 << 10, 96 << 10}


def test_python_and_cpp_give_the_same_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    model = simulator("dgx1v", Collective.BROADCAST)
    variant = Variant("trees", "LL128", 16 << 10, 12)
    first = model.predict(variant, 3 << 20)
    monkeypatch.setenv("COLLC_SIMULATE", "python")
    second = model.predict(variant, 3 << 20)
    assert first.time_us == second.time_us
    assert first.period_us(GENERIC) == second.period_us(GENERIC)
    assert critical_path(first) == critical_path(second)


def test_no_run_undercuts_the_floor_that_the_choice_prunes_by() -> None:
    for name, collective in (("dgx2", Collective.ALL_REDUCE), ("dgx1v", Collective.BROADCAST)):
        model = simulator(name, collective, [f"gpu{i}" for i in range(4)])
        for variant in variants(model):
            for size in (1 << 10, 1 << 20, 64 << 20):
                if size / variant.chunk_bytes < 500:
                    assert model.predict(variant, size).time_us >= model.floor_us(variant, size)


def test_choices_start_at_nothing_and_ascend() -> None:
    model = simulator("dgx1v", Collective.ALL_GATHER, [f"gpu{i}" for i in range(4)])
    table = choose(model, [1 << 10, 64 << 10, 4 << 20, 256 << 20])
    starts = [choice.min_bytes for choice in table.choices]
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    small, large = table.choices[0].variant, table.choices[-1].variant
    assert small.protocol == "LL"
    assert large.protocol == "Simple"


def test_the_best_of_the_grid_is_chosen() -> None:
    model = simulator("dgx-a100", Collective.BROADCAST, [f"gpu{i}" for i in range(3)])
    for size in (4 << 10, 1 << 20):
        (best,) = choose(model, [size]).predictions
        assert best.time_us == pytest.approx(min(model.predict(v, size).time_us for v in variants(model)))


def test_calls_in_a_row_do_not_wait_for_the_end_of_a_broadcast() -> None:
    model = simulator("dgx1v", Collective.BROADCAST)
    found = model.predict(Variant("ring", "LL", 16 << 10, 1), 1 << 10)
    # One call crosses 7 hops; no rank works for longer than two of them.
    assert found.time_us > GENERIC.launch_us + 7
    assert found.period_us(GENERIC) < GENERIC.launch_us + 2
    assert found.period_us(GENERIC.replace(issue_us=20.0), together=2) == 40.0


def test_protocols_and_plans_that_do_not_exist_are_refused() -> None:
    model = simulator("dgx1v", Collective.ALL_REDUCE)
    with pytest.raises(UsageError, match="no protocol"):
        model.predict(Variant("trees", "LL256", 1 << 19, 9), GIB)
    with pytest.raises(UsageError, match="no plan"):
        model.predict(Variant("mesh", "LL", 1 << 19, 9), GIB)
    with pytest.raises(UsageError, match="no program"):
        simulator("dgx1v", Collective.ALLTOALL)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda m: m.name)
def test_parameters_make_sense(machine: Machine) -> None:
    assert {"Simple", "LL"} <= {p.name for p in machine.protocols}
    for protocol in machine.protocols:
        assert 0 < protocol.hop_us < 15
        assert 0 < protocol.efficiency <= 1
        assert protocol.max_chunk % 16 == 0
    assert all(0 < c.efficiency <= 1 for c in machine.classes.values())


def test_what_is_too_large_to_simulate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = simulator("dgx1v", Collective.ALL_REDUCE)
    variant = Variant("rings", "Simple", 512 << 10, 12)
    monkeypatch.setattr(run, "MOST_WORK", 1000)
    with pytest.raises(UsageError, match="loops that all differ"):
        model.predict(variant, GIB)
    monkeypatch.setattr(run, "LARGEST_PROGRAM", 1000)
    with pytest.raises(UsageError, match="FIFOs, too large"):
        model.predict(Variant("rings", "Simple", 512 << 10, 24), GIB)


def test_candidates_with_too_many_fifos_keep_their_fewest_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    model = simulator("dgx1v", Collective.ALL_REDUCE)
    assert {v.channels for v in variants(model, ["rings"])} == {6, 12, 24, 30}
    monkeypatch.setattr(run, "MOST_FIFOS", 1400)
    assert {v.channels for v in variants(model, ["rings"])} == {6, 12}
    monkeypatch.setattr(run, "MOST_FIFOS", 1)
    assert {v.channels for v in variants(model, ["rings"])} == {6}
