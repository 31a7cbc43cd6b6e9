"""Rings whose roots share the FIFO of a hop, under the emulator: all protocols, programs one behind another."""

from __future__ import annotations

import dataclasses
import random

import pytest
from cuda_emulator import PackedTables, build_emulator, emulate
from emulated_calls import CHUNK_BYTES, differences, make_call, run_made, situation, with_lent_buffers
from planted_faults import NO_FAULT
from support.programs import in_rounds

from collc.bench.data import OPS, TYPES, Case
from collc.collectives.model import Collective
from collc.ir.nodes import Program

PROTOCOLS = ("Simple", "LL", "LL128")
RINGS = (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
CASES = [(type_name, op) for type_name in TYPES for op in OPS]


def rings(nranks: int, seed: int, slots: int) -> list[Program]:
    """Of both collectives, in some order of the ranks; both have the same FIFOs."""
    rng = random.Random(seed)
    order = rng.sample(range(nranks), nranks)
    parts, channels = rng.choice([(1, 1), (2, 1), (2, 2), (4, 2), (3, 1), (6, 2)])
    return [in_rounds(collective, order, parts, channels, slots, CHUNK_BYTES) for collective in RINGS]


def wrong(type_name: str, op: str, seed: int, protocol: str, *, lends: bool = False) -> str:
    """Returns the error of calls of both collectives in turn; "" without an error."""
    kind = TYPES[type_name]
    at = dataclasses.replace(situation(seed, kind.size), nranks=2 + seed % 5)
    rng = random.Random(seed)
    made = []
    for number, count in ((0, at.counts[0]), (1, at.counts[1]), (1, at.counts[0]), (0, at.counts[1])):
        case = Case(RINGS[number], at.nranks, 0, count, kind, op if number == 0 else None)
        misplacement = kind.size if at.misplaced else 0
        call, wanted = make_call(case, number, in_place=at.in_place, misplacement=misplacement)
        lent = [rng.randrange(4) for _ in range(at.nranks)] if lends else None
        made.append((with_lent_buffers(call, lent), wanted))
    between = seed % 3 == 0 if lends else False
    processes = seed % 4 * (seed + 1) if lends else 0
    programs = rings(at.nranks, seed, at.slots)
    outcome, lines = run_made(at, programs, made, seed, protocol, slots_between=between, processes=processes)
    return outcome.failure or "; ".join(lines)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_type_and_operation(protocol: str) -> None:
    for seed, case in enumerate(CASES):
        assert wrong(*case, seed, protocol) == "", f"{case}, seed {seed}"


def test_buffers_that_peers_read() -> None:
    for seed, case in enumerate(CASES):
        assert wrong(*case, 500 + seed, "Simple", lends=True) == "", f"{case}, seed {500 + seed}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1800, 100))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_schedules(protocol: str, first: int) -> None:
    for seed in range(first, first + 100):
        assert wrong("float", "sum", seed, protocol) == "", f"seed {seed}"
        if protocol == "Simple":
            assert wrong("half", "sum", seed, protocol, lends=True) == "", f"seed {seed}"


def outcome_of(fault: str | None, seed: int, protocol: str, *, chunk_bytes: int = 0, channels: int = 0) -> str:
    programs = rings(4, seed, 2)
    counts = ((0, 901), (1, 405), (0, 77))
    made = [
        make_call(Case(RINGS[number], 4, 0, count, TYPES["float"], "sum" if number == 0 else None), number)
        for number, count in counts
    ]
    tables = PackedTables(programs, CHUNK_BYTES)
    outcome = emulate(
        build_emulator(fault),
        tables,
        [call for call, _ in made],
        seed=seed,
        protocol=protocol,
        chunk_bytes=chunk_bytes,
        channels=channels,
    )
    return outcome.failure or "; ".join(differences(made))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("chunk_bytes", "channels"), [(0, 1), (48, 0), (1008, 1)])
def test_chunks_and_channels_can_be_others_than_the_programs(protocol: str, chunk_bytes: int, channels: int) -> None:
    for seed in range(2):
        assert outcome_of(None, seed, protocol, chunk_bytes=chunk_bytes, channels=channels) == ""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numbers_without_turns_are_found(protocol: str) -> None:
    assert not any(outcome_of(NO_FAULT, seed, protocol) for seed in range(6))
    assert all(outcome_of("TURNS", seed, protocol) for seed in range(6))
