"""Kernels that count where their time goes (COLLC_COUNTERS), on the emulator with its virtual clock."""

from __future__ import annotations

import pytest
from cuda_emulator import NOBODY, Outcome, PackedTables, build_emulator, emulate
from emulated_calls import CHUNK_BYTES, differences, make_call, small_program
from support.programs import TREE_COLLECTIVES

from collc.bench.data import TYPES, Case
from collc.collectives.model import Collective

PROTOCOLS = ("Simple", "LL", "LL128")
WAITING, COPYING, REDUCING_PART, NANOSECONDS = range(4)
TICKS_PER_NS = 10  # of the emulator
SECOND = 1_000_000_000


def counted(
    collective: Collective, protocol: str, seed: int, *, late: int = NOBODY, missing: int = NOBODY, trees: int = 2
) -> Outcome:
    """One call on three ranks whose results are right."""
    program = small_program(collective, 3, seed, trees=trees)
    op = "sum" if collective.reduces else None
    made = [make_call(Case(collective, 3, program.root or 0, 301, TYPES["float"], op))]
    outcome = emulate(
        build_emulator(counters=True),
        PackedTables([program], CHUNK_BYTES),
        [call for call, _ in made],
        seed=seed,
        protocol=protocol,
        late_rank=late,
        missing_rank=missing,
        timeout_ns=2 * SECOND if missing != NOBODY else 0,
    )
    assert outcome.failure == ""
    assert missing != NOBODY or differences(made) == []
    return outcome


def parts(rank: list[tuple[int, ...]]) -> tuple[int, ...]:
    """A rank's sums over its channels."""
    return tuple(sum(row[i] for row in rank) for i in range(4))


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_parts_add_up_to_the_time_of_the_block(collective: Collective, protocol: str) -> None:
    for seed in range(4):
        outcome = counted(collective, protocol, seed)
        ran = [row for rank in outcome.ticks for row in rank if row[NANOSECONDS]]
        assert ran
        for row in ran:
            assert sum(row[:NANOSECONDS]) == TICKS_PER_NS * row[NANOSECONDS]
            # No block takes longer than the run. The clock advances by one with every switch.
            assert row[NANOSECONDS] <= outcome.switches
        assert all(parts(rank)[COPYING] + parts(rank)[REDUCING_PART] > 0 for rank in outcome.ticks)


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_reductions_reduce(collective: Collective, protocol: str) -> None:
    total = [parts(rank) for rank in counted(collective, protocol, 5).ticks]
    if collective.reduces:
        assert sum(rank[REDUCING_PART] for rank in total) > 0
    else:
        assert all(rank[REDUCING_PART] == 0 for rank in total)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(3))
def test_who_waits_for_a_late_rank_waits(protocol: str, seed: int) -> None:
    """The root of a broadcast comes a second late: that second is waiting on the others, and nothing on the root."""
    program = small_program(Collective.BROADCAST, 3, seed)
    root = program.root or 0
    outcome = counted(Collective.BROADCAST, protocol, seed, late=root)
    for rank, channels in enumerate(outcome.ticks):
        for row in channels:
            if not row[NANOSECONDS]:
                continue
            late = row[WAITING] >= SECOND * TICKS_PER_NS
            assert late == (rank != root)
            if rank != root:
                assert row[WAITING] > 0.99 * sum(row[:NANOSECONDS])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_wait_that_ends_without_data_counts_too(protocol: str) -> None:
    program = small_program(Collective.BROADCAST, 3, 2)
    root = program.root or 0
    outcome = counted(Collective.BROADCAST, protocol, 2, missing=root)
    assert set(outcome.reports) == {0, 1, 2} - {root}
    for rank in outcome.reports:
        assert parts(outcome.ticks[rank])[WAITING] > SECOND * TICKS_PER_NS


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_calls_add_up(protocol: str) -> None:
    """Two calls count what both took."""
    program = small_program(Collective.ALL_REDUCE, 3, 7)
    found = []
    for times in (1, 2):
        made = [make_call(Case(Collective.ALL_REDUCE, 3, 0, 301, TYPES["float"], "sum")) for _ in range(times)]
        calls = [call for call, _ in made]
        tables = PackedTables([program], CHUNK_BYTES)
        outcome = emulate(build_emulator(counters=True), tables, calls, seed=0, protocol=protocol)
        assert (outcome.failure, differences(made)) == ("", [])
        found.append([parts(rank)[REDUCING_PART] for rank in outcome.ticks])
    assert all(1.2 * one < two < 5 * one for one, two in zip(*found, strict=True) if one)


def test_kernels_that_do_not_count_leave_the_counters_alone() -> None:
    made = [make_call(Case(Collective.ALL_REDUCE, 3, 0, 301, TYPES["float"], "sum"))]
    tables = PackedTables([small_program(Collective.ALL_REDUCE, 3, 7)], CHUNK_BYTES)
    outcome = emulate(build_emulator(), tables, [call for call, _ in made], seed=0)
    assert (outcome.failure, differences(made)) == ("", [])
    assert all(row == (0, 0, 0, 0) for rank in outcome.ticks for row in rank)
