"""A protocol without one of its parts must fail in the emulator: the tests above it would notice."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from cuda_emulator import PackedTables, build_emulator, emulate, exchange
from emulated_calls import CHUNK_BYTES, differences, make_call, small_program
from planted_faults import EDITS, FOLDER, NO_FAULT, Edit, header, plant

from collc.bench.data import TYPES, Case
from collc.collectives.model import Collective
from collc.resources import resource_dir

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
    "EARLY_ACQUIRE": "the acquire stands before the polls instead of behind them",
    "TAIL_FREED": "a chunk is announced by the verb that frees a slot",
}
# Faults of the protocols whose data carry flags.
LINE_FAULTS = {
    "LINE_WAIT_BARRIER": "no barrier between the waits and the data",
    "LINE_SLOT_WAIT": "a writer does not wait for a free slot",
    "FLAG_CHECK": "data are taken without a look at their flags",
    "SAME_FLAG": "a slot's flags are the same each time that it is used",
    "EARLY_HEAD": "a slot is said to be free before it is read",
    "LINE_PUBLISH_BARRIER": "no barrier between reading a slot and saying that it is free",
}
TRANSFER_FAULTS = {
    "EXCHANGE_LOOK_BARRIER": "no barrier after the looks",
    "EXCHANGE_MOVE_BARRIER": "no barrier after the moves",
    "EXCHANGE_SLOT_WAIT": "a sender does not wait for a free slot",
    "EXCHANGE_CHUNK_WAIT": "a receiver does not wait for the chunk",
    "EXCHANGE_FLAG": "no flag is stored",
    "EXCHANGE_ACQUIRE": "no acquire behind the poll",
}
OF_ALL = ("SHARES_BARRIER", "FINISH_BARRIER", "HEAD_STORE", "POSITION")
SEEDS = range(12)
# Blocks of every fourth seed read their tables where they lie (driver.cpp); the others have copies, whose positions no
# call begins with.
UNSTAGED = range(3, 48, 4)


def seeds_of(fault: str) -> range:
    return UNSTAGED if fault == "FINISH_BARRIER" else SEEDS


def is_found_by(fault: str, found: dict[int, str]) -> bool:
    """Under every seed; where the last warp itself puts back the positions that it has read, no barrier is missing."""
    return sum(map(bool, found.values())) >= len(found) / (2 if fault == "FINISH_BARRIER" else 1)


def outcome_of(
    fault: str | None, seed: int, report_races: bool, pre_volta: bool = False, protocol: str = "Simple"
) -> str:
    """Returns the error of two calls under a fault; "" without an error."""
    program = small_program(Collective.ALL_REDUCE, 3, 7)
    made = [make_call(Case(Collective.ALL_REDUCE, 3, 0, count, TYPES["float"], "sum")) for count in (901, 405)]
    tables = PackedTables([program], CHUNK_BYTES)
    calls = [call for call, _ in made]
    library = build_emulator(fault, pre_volta)
    outcome = emulate(library, tables, calls, seed=seed, report_races=report_races, protocol=protocol)
    return outcome.failure or "; ".join(differences(made))


def flags_come_again(fault: str | None, seed: int) -> str:
    """Returns the error of a chunk that fills its slots, after 64 short chunks. LL has 64 flags here."""
    program = small_program(Collective.ALL_REDUCE, 3, 7)
    counts = [96, *[12] * 63, 96]
    made = [make_call(Case(Collective.ALL_REDUCE, 3, 0, count, TYPES["float"], "sum")) for count in counts]
    tables = PackedTables([program], CHUNK_BYTES)
    outcome = emulate(build_emulator(fault), tables, [call for call, _ in made], seed=seed, protocol="LL")
    return outcome.failure or "; ".join(differences(made))


# Faults that other tests plant.
ELSEWHERE = {
    # Chunks of other sizes than their slots between servers: test_cuda_servers.py and test_lined_servers.py.
    *("CHUNK_BYTES", "LINE_BYTES"),
    # Offsets of more than 32 bits: test_large_calls_cuda.py.
    "SHORT_OFFSETS",
    # Buffers that peers read in place: test_direct_kernels.py and test_direct_jobs.py.
    *("LENT_WAIT", "UNREAD_PLACE", "OLD_PLACE", "NOT_THERE", "OTHER_BUFFER"),
    # An all_reduce of one hop: test_reduced_everywhere.py.
    *("OWN_FIRST", "OVERWRITTEN", "SCALED_BARRIER", "ONE_FLAG"),
    # FIFOs that several shares use in turns: test_shared_hops.py.
    "TURNS",
    # Sums inside a switch: test_in_switch_kernels.py and test_in_switch_jobs.py.
    "SWITCH_MEMBER",
    # Below.
    "CLEANING",
}
# Verbs that a protocol needs, and how often the kernels call each.
NEEDED_CALLS = {"barrier": 9, "barrier_or": 2, "wait_for": 3, "flag_store": 2, "flag_acquire": 2, "free_slot": 2}


def test_the_list_is_complete() -> None:
    """Every fault is planted by a test, and no shipped header knows of faults."""
    headers = [path.read_text() for path in (resource_dir("templates") / "include").rglob("*.h")]
    assert not any("planted" in text for text in headers)
    assert set(EDITS) == {*FAULTS, *LINE_FAULTS, *TRANSFER_FAULTS, *ELSEWHERE}


@pytest.mark.parametrize("fault", EDITS)
def test_an_edit_stands_for_one_place_of_its_header(fault: str) -> None:
    for edit in EDITS[fault]:
        assert "PLANTED" in edit.after
        assert header(edit.header).count(edit.before) == 1


def test_all_faults_fit_into_one_copy_of_the_headers(tmp_path: Path) -> None:
    plant(tmp_path)
    planted = "".join(path.read_text() for path in tmp_path.rglob("*.h"))
    assert "PLANTED" not in planted
    numbers = re.findall(r"emulation::planted == (\d+)", planted)
    assert set(map(int, numbers)) == set(range(1, 1 + len(EDITS)))


def test_an_edit_that_does_not_fit_is_refused() -> None:
    with pytest.raises(AssertionError, match="contains 0 times"):
        Edit("ll.h", "no such text", "PLANTED").apply(header("ll.h"), 1)


def edited_lines(name: str) -> set[int]:
    """The numbers of a header's lines that some fault changes, and of those next to its insertions."""
    text = header(name)
    lines: set[int] = set()
    for edit in itertools.chain(*EDITS.values()):
        if edit.header == name:
            first = text[: text.index(edit.before)].count("\n")
            lines |= set(range(first, first + edit.before.rstrip("\n").count("\n") + 2))
    return lines


def test_every_barrier_wait_and_flag_store_can_be_left_out() -> None:
    """Each such call stands in a line that a fault changes, or in the line after it."""
    calls = []
    for path in sorted((resource_dir("templates") / "include" / FOLDER).iterdir()):
        lines, edited = path.read_text().splitlines(), edited_lines(path.name)
        for number, line in enumerate(lines):
            code = line.split("//")[0]
            called = re.search(rf"(?<![\w:])({'|'.join(NEEDED_CALLS)})\(", code)
            # device.h has the verbs themselves; the rest of these lines are definitions.
            if path.name != "device.h" and called and not line.lstrip().startswith("COLLC_DEVICE"):
                calls.append(called[1])
                first = path.name == "exchange.h" and "*stop_ = 0" in lines[number - 1]  # before any look
                assert number in edited or first, f"{path.name}:{number + 1}: {line.strip()}"
    assert {name: calls.count(name) for name in NEEDED_CALLS} == NEEDED_CALLS


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", [None, NO_FAULT])
def test_without_a_fault_nothing_is_found(fault: str | None, seed: int) -> None:
    """Neither in the kernels as they are, nor in those that can have every fault."""
    for protocol in ("Simple", "LL", "LL128"):
        assert outcome_of(fault, seed, report_races=seed % 2 == 0, protocol=protocol) == ""
    assert flags_come_again(fault, seed) == ""


@pytest.mark.parametrize("size", [1, 61, 64, 200, 1000])
def test_transfers_without_a_fault(size: int) -> None:
    for seed in SEEDS:
        for report_races in (True, False):
            for fault in (None, NO_FAULT):
                library = build_emulator(fault)
                assert exchange(library, seed, size=size, messages=4, report_races=report_races) == ""


@pytest.mark.parametrize("fault", TRANSFER_FAULTS)
def test_a_transfer_with_a_fault_is_found(fault: str) -> None:
    found = {seed: exchange(build_emulator(fault), seed, size=1000) for seed in SEEDS}
    assert all(found.values()), f"missed under seeds {[s for s in found if not found[s]]}"


def test_messages_that_differ_are_told() -> None:
    for seed in SEEDS:
        assert exchange(build_emulator(), seed, size=200, wrong_size=True) == "messages differ"


@pytest.mark.parametrize("fault", FAULTS)
def test_is_found(fault: str) -> None:
    found = {seed: outcome_of(fault, seed, report_races=True) for seed in seeds_of(fault)}
    missed = [seed for seed in found if not found[seed]]
    assert is_found_by(fault, found), f"{fault} ({FAULTS[fault]}) was missed under seeds {missed}"


@pytest.mark.parametrize("protocol", ["LL", "LL128"])
@pytest.mark.parametrize("fault", [*LINE_FAULTS, *OF_ALL])
def test_is_found_where_data_carry_flags(fault: str, protocol: str) -> None:
    found = {seed: outcome_of(fault, seed, report_races=True, protocol=protocol) for seed in seeds_of(fault)}
    assert is_found_by(fault, found), f"{fault} was missed under seeds {[s for s in found if not found[s]]}"


@pytest.mark.parametrize("protocol", ["LL", "LL128"])
@pytest.mark.parametrize("fault", ["FLAG_CHECK", "LINE_SLOT_WAIT", "SAME_FLAG"])
def test_is_found_by_wrong_data_too(fault: str, protocol: str) -> None:
    """Without the emulator's check for races, the fault shows in the data, as an application would see it."""
    assert any(outcome_of(fault, seed, report_races=False, protocol=protocol) for seed in SEEDS)


def test_old_flags_are_found() -> None:
    assert all(flags_come_again("CLEANING", seed) for seed in SEEDS)
