"""Splits of a call over classes: all end together, slow ones are dropped, no rate is above the proven one."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collc.choose.split import Curve, end_together, split_by_size
from collc.collectives.model import Collective
from collc.packing.sets.classes import plan_classes
from collc.simulator.generations import machine_for
from collc.topology.load import load_topology

RATES = st.floats(10.0, 1e6)
COSTS = st.floats(0.5, 500.0)
SIZES = st.integers(1 << 10, 1 << 34)


def line(cost_us: float, rate: float) -> Curve:
    """A class that takes `cost_us` and then moves `rate` bytes per microsecond."""
    least, most = 1.0, 1e12
    return Curve((int(least), int(most)), (cost_us + least / rate, cost_us + most / rate))


@given(st.lists(st.tuples(COSTS, RATES), min_size=1, max_size=4), SIZES)
def test_equation_8_with_the_cost_of_every_path(paths: list[tuple[float, float]], size: int) -> None:
    """T = (S + sum of rate x cost) / sum of rates over the classes whose cost is below T (Blink, equation 8)."""
    curves = {str(i): line(cost, rate) for i, (cost, rate) in enumerate(paths)}
    time, shares = end_together(curves, size)
    used = [(cost, rate) for i, (cost, rate) in enumerate(paths) if shares[str(i)] > 0]
    expected = (size + sum(cost * rate for cost, rate in used)) / sum(rate for _, rate in used)
    assert time == pytest.approx(expected, rel=1e-3, abs=1e-2)
    assert sum(shares.values()) == pytest.approx(1)
    for cost, rate in paths:
        if (cost, rate) not in used:
            assert cost + 1 / rate >= time * (1 - 1e-6)
    # Never slower than any single class.
    assert all(time <= (cost + size / rate) * (1 + 1e-3) + 1e-2 for cost, rate in paths)


def test_a_class_whose_smallest_call_takes_longer_carries_nothing() -> None:
    time, shares = end_together({"fast": line(5, 1000), "slow": line(400, 1000)}, 100_000)
    assert shares == {"fast": 1.0, "slow": 0.0}
    assert time == pytest.approx(105, rel=1e-3)


@pytest.mark.parametrize(("name", "collective"), [("hgx-h800", Collective.ALL_GATHER), ("dgx1v", Collective.BROADCAST)])
@pytest.mark.slow_for("hgx-h800-Collective.ALL_GATHER")
def test_the_models_split_stays_below_the_proof(name: str, collective: Collective) -> None:
    machine = load_topology(name)
    plans = plan_classes(machine, None, ("nvlink", "pcie"), collective)
    parameters, _ = machine_for(None, machine.gpu_model)
    found = split_by_size(plans, parameters, [64 << 10, 256 << 20])
    assert plans.joint.bound is not None
    for one in found:
        assert one.bytes / one.time_us / 1e3 <= plans.joint.bound
        assert one.gain >= 0
        assert sum(one.shares.values()) == pytest.approx(1)
    rates = {own.name: own.rate for own in plans.classes}
    assert found[1].shares["pcie"] == pytest.approx(float(rates["pcie"] / sum(rates.values(), Fraction(0))), rel=0.35)
