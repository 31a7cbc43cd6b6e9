"""Pascal's verbs (volatile flags, system fences, warps in step) in the emulator, with faults planted there too."""

from __future__ import annotations

import pytest
from cuda_emulator import build_emulator, lane_waits
from emulated_calls import run_case
from planted_faults import NO_FAULT
from support.programs import TREE_COLLECTIVES
from test_planted_faults import FAULTS, SEEDS, outcome_of, seeds_of

from collc.collectives.model import Collective


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
@pytest.mark.slow_for("Simple-all_reduce")
def test_every_collective_under_many_schedules(collective: Collective, protocol: str) -> None:
    for seed in range(3000, 3032):
        op = ("sum", "max")[seed % 2] if collective.reduces else None
        outcome, wrong = run_case(collective, "float", op, seed, protocol, pre_volta=True)
        assert (outcome.failure, wrong) == ("", []), f"{collective.value}, seed {seed}"


# Those that the verbs have a part in; the others are in the protocol, which is the same.
OF_THE_VERBS = ("RELAXED_LOAD", "RELAXED_STORE", "PUBLISH_BARRIER", "WAIT_BARRIER")


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault in OF_THE_VERBS else pytest.mark.slow) for fault in FAULTS]
)
@pytest.mark.slow_for("PUBLISH_BARRIER", "RELAXED_STORE")
def test_a_fault_is_found(fault: str) -> None:
    assert not any(outcome_of(NO_FAULT, seed, report_races=True, pre_volta=True) for seed in SEEDS)
    found = {seed: outcome_of(fault, seed, report_races=True, pre_volta=True) for seed in seeds_of(fault)}
    assert all(found.values()), f"{fault} was missed under seeds {[s for s in found if not found[s]]}"


@pytest.mark.parametrize("seed", range(8))
def test_a_lane_that_waits_for_its_own_warp_is_a_deadlock_on_pascal_alone(seed: int) -> None:
    pascal, volta = build_emulator(pre_volta=True), build_emulator()
    assert lane_waits(pascal, seed, own_warp=True).startswith("deadlock")
    assert lane_waits(pascal, seed, own_warp=False) == ""
    assert lane_waits(volta, seed, own_warp=True) == ""
