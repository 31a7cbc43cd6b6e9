"""A protocol without one of its parts must fail in the emulator: the tests above it would notice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cuda_emulator import PackedTables, build_emulator, emulate
from emulated_calls import CHUNK_BYTES, differences, make_call, small_program

from collc.bench.data import TYPES, Case
from collc.packing.model import Collective
from collc.resources import resource_dir

# What each is: the header names the place.
FAULTS = {
    "SHARES_BARRIER": "no barrier between cutting the shares and using them",
    "WAIT_BARRIER": "no barrier between the waits and the data",
    "PUBLISH_BARRIER": "no barrier between the data and the flags",
    "FINISH_BARRIER": "no barrier before the counters' new start",
    "SLOT_WAIT": "a writer does not wait for a free slot",
    "CHUNK_WAIT": "a reader does not wait for the chunk",
    "TAIL_STORE": "a writer does not say that the chunk is there",
    "HEAD_STORE": "a reader does not say that the slot is free",
    "EARLY_FLAG": "flags before the data",
    "POSITION": "counters start anew with every call",
    "RELAXED_LOAD": "flags are loaded without acquire",
    "RELAXED_STORE": "flags are stored without release",
}
SEEDS = range(12)


def outcome_of(fault: str | None, seed: int, report_races: bool, pre_volta: bool = False) -> str:
    """What is wrong with two calls under a fault; "" if nothing shows."""
    program = small_program(Collective.ALL_REDUCE, 3, 7)
    made = [make_call(Case(Collective.ALL_REDUCE, 3, 0, count, TYPES["float"], "sum")) for count in (901, 405)]
    tables = PackedTables([program], CHUNK_BYTES)
    outcome = emulate(
        build_emulator(fault, pre_volta), tables, [c for c, _ in made], seed=seed, report_races=report_races
    )
    return outcome.failure or "; ".join(differences(made))


def test_the_list_is_complete():
    """Every place in the sources that a fault can be planted at is planted here."""
    folders = [resource_dir("templates") / "include" / "collc" / "cuda", Path(__file__).parent / "emulation"]
    text = "".join(path.read_text() for folder in folders for path in sorted(folder.iterdir()))
    assert set(re.findall(r"defined\(COLLC_FAULT_(\w+)\)", text)) == set(FAULTS)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_fault_nothing_is_found(seed):
    assert outcome_of(None, seed, report_races=seed % 2 == 0) == ""


@pytest.mark.parametrize("fault", FAULTS)
def test_is_found(fault):
    found = {seed: outcome_of(fault, seed, report_races=True) for seed in SEEDS}
    assert all(found.values()), f"{fault} ({FAULTS[fault]}) was missed under seeds {[s for s in found if not found[s]]}"
