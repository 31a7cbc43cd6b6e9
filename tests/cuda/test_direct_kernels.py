"""Kernels that read each other's buffers where they stand, under the emulator.

Behind each call that is not in place every input is overwritten, as a user may do.
"""

from __future__ import annotations

import dataclasses
import random

import pytest
from cuda_emulator import Outcome, PackedTables, build_emulator, emulate
from emulated_calls import CHUNK_BYTES, differences, make_call, run_made, situation, small_program, with_lent_buffers
from planted_faults import NO_FAULT
from support.programs import TREE_COLLECTIVES
from test_planted_faults import FAULTS, SEEDS, seeds_of

from collc.bench.data import OPS, TYPES, Case
from collc.collectives.model import Collective

LENDING_FAULTS = {
    "LENT_WAIT": "a call ends before what it has lent is read",
    "UNREAD_PLACE": "a reader takes every chunk from its slot",
    "OLD_PLACE": "a chunk in a slot does not say so where one before it was lent",
}
NOT_THERE = "NOT_THERE"  # a chunk stays where a reader in another process has not mapped its buffer
NOTHING, INPUT, OUTPUT = 0, 1, 2
BOTH = INPUT | OUTPUT


def run(
    collective: Collective, type_name: str, op: str | None, seed: int, lent: list[int] | None = None
) -> tuple[Outcome, list[str]]:
    """Runs three calls in the situation of a seed. Ranks lend random buffers, other ones in each call."""
    kind = TYPES[type_name]
    at = situation(seed, kind.size)
    rng = random.Random(seed)
    program = small_program(collective, at.nranks, seed, slots=at.slots)
    made = []
    for count in (*at.counts, at.counts[0]):
        call, wanted = make_call(
            Case(collective, at.nranks, program.root or 0, count, kind, op),
            in_place=at.in_place,
            misplacement=kind.size if at.misplaced else 0,
        )
        lends = lent or [rng.choice([NOTHING, INPUT, OUTPUT, BOTH]) for _ in range(at.nranks)]
        made.append((with_lent_buffers(call, lends), wanted))
    return run_made(at, [program], made, seed, slots_between=seed % 3 == 0, processes=seed % 4 * (seed + 1))


def wrong(collective: Collective, type_name: str, op: str | None, seed: int) -> str:
    outcome, lines = run(collective, type_name, op, seed)
    return outcome.failure or "; ".join(lines)


CASES = [
    (collective, type_name, op)
    for collective in TREE_COLLECTIVES
    for type_name in TYPES
    for op in (OPS if collective.reduces else [None])
]


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
def test_every_type_and_operation(collective: Collective) -> None:
    for seed, case in enumerate(CASES):
        if case[0] == collective:
            assert wrong(*case, seed) == "", f"{case[1]} {case[2]}, seed {seed}"


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize(
    "first", [3000, *(pytest.param(first, marks=pytest.mark.slow) for first in range(3020, 3200, 20))]
)
def test_many_schedules(collective: Collective, first: int) -> None:
    for seed in range(first, first + 20):
        assert wrong(collective, "float", "sum" if collective.reduces else None, seed) == "", f"seed {seed}"


def outcome_of(fault: str | None, seed: int, *, report_races: bool = True, processes: int = 0) -> str:
    """Returns the error of three calls on three ranks, where the second rank lends nothing; "" without an error."""
    for collective, op in (
        (Collective.BROADCAST, None),
        (Collective.ALL_REDUCE, "sum"),
        (Collective.REDUCE_SCATTER, "sum"),
    ):
        program = small_program(collective, 3, 7)
        made = []
        for count, lends in ((900, BOTH), (403, NOTHING), (640, BOTH)):
            call, wanted = make_call(Case(collective, 3, program.root or 0, count, TYPES["float"], op))
            made.append((dataclasses.replace(call, lent=[lends] * 3), wanted))
        tables = PackedTables([program], CHUNK_BYTES)
        outcome = emulate(
            build_emulator(fault),
            tables,
            [c for c, _ in made],
            seed=seed,
            report_races=report_races,
            processes=processes,
        )
        if found := outcome.failure or "; ".join(differences(made)):
            return f"{collective.value}: {found}"
    return ""


def sent_to_nobody(lends: int, seed: int, *, abort_at: int = 0, timeout_ns: int = 0) -> Outcome:
    """A broadcast of no more chunks than there are slots, whose reader does not come."""
    program = small_program(Collective.BROADCAST, 2, 7)
    root = program.root or 0
    call, _ = make_call(Case(Collective.BROADCAST, 2, root, 20, TYPES["float"], None))
    made = [dataclasses.replace(call, lent=[lends] * 2)]
    tables = PackedTables([program], CHUNK_BYTES)
    reader = 1 - root
    return emulate(
        build_emulator(), tables, made, seed=seed, missing_rank=reader, abort_at=abort_at, timeout_ns=timeout_ns
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_the_wait_for_readers_is_limited_and_named(seed: int) -> None:
    """As a wait for data is (COLLC_TIMEOUT). Without it the root would end, as it does where it lends nothing."""
    late = sent_to_nobody(INPUT, seed, timeout_ns=5_000_000_000)
    assert late.failure == ""
    [(rank, (state, peer, _, _))] = late.reports.items()
    assert (state, peer) == (2, 1 - rank)
    assert sent_to_nobody(INPUT, seed).failure.startswith("deadlock")
    nothing = sent_to_nobody(NOTHING, seed, timeout_ns=5_000_000_000)
    assert (nothing.failure, nothing.reports) == ("", {})


@pytest.mark.parametrize("seed", SEEDS)
def test_an_abort_ends_the_wait_for_readers(seed: int) -> None:
    """The only wait there is, so that an abort meets nothing else, whenever it comes."""
    stuck = sent_to_nobody(INPUT, seed)
    for part in (1, 2, 3):
        outcome = sent_to_nobody(INPUT, seed, abort_at=max(1, stuck.switches * part // 4))
        assert outcome.failure == ""
        assert [report[0] for report in outcome.reports.values()] == [1]


@pytest.mark.parametrize("abort_at", [50, 300, 700])
def test_an_abort_ends_calls_that_lend_everything(abort_at: int) -> None:
    """Amid them, with a rank that does not come: all others end, wherever they are."""
    for collective in TREE_COLLECTIVES:
        program = small_program(collective, 3, 7)
        op = "sum" if collective.reduces else None
        made = []
        for count in (900, 403, 640):
            call, _ = make_call(Case(collective, 3, program.root or 0, count, TYPES["float"], op))
            made.append(dataclasses.replace(call, lent=[BOTH] * 3))
        outcome = emulate(
            build_emulator(),
            PackedTables([program], CHUNK_BYTES),
            made,
            seed=abort_at,
            abort_at=abort_at,
            report_races=False,
            missing_rank=2,
        )
        assert outcome.failure == "", collective.value
        assert {report[0] for report in outcome.reports.values()} == {1}, collective.value


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_fault_nothing_is_found(seed: int) -> None:
    for fault in (None, NO_FAULT):
        assert outcome_of(fault, seed) == ""
        assert outcome_of(fault, seed, report_races=False) == ""
        assert outcome_of(fault, seed, processes=1 + seed) == ""


@pytest.mark.parametrize("fault", [*FAULTS, *LENDING_FAULTS])
def test_a_fault_is_found(fault: str) -> None:
    found = {seed: outcome_of(fault, seed) for seed in seeds_of(fault)}
    assert all(found.values()), f"missed under seeds {[s for s in found if not found[s]]}"


@pytest.mark.parametrize("fault", LENDING_FAULTS)
def test_is_found_by_wrong_data_too(fault: str) -> None:
    """Without the emulator's check for races, the fault shows in the data, as an application would see it."""
    assert any(outcome_of(fault, seed, report_races=False) for seed in SEEDS)


@pytest.mark.parametrize("report_races", [True, False])
def test_a_chunk_that_a_reader_has_not_mapped_is_found(report_races: bool) -> None:
    """The emulator reports it, and the data are wrong. The mock driver tests that each reader gets its own address."""
    for seed in SEEDS:
        found = [outcome_of(NOT_THERE, seed, report_races=report_races, processes=one) for one in range(1, 7)]
        assert any(found), f"seed {seed}"
