"""The kernels of the CUDA target on a CPU: every tree collective, type and operation under hostile schedules.

The emulator switches between threads inside every verb and between the words of a wide access, caps how many blocks are
resident, checks that no two accesses race, and in other runs hands out the old value wherever nothing forbids it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_emulator import NOBODY, Call, PackedTables, build_emulator, empty, emulate, same_bits
from emulated_calls import CHUNK_BYTES, differences, make_call, run_case, small_program
from support.programs import TREE_COLLECTIVES, final, lowered, random_schedule, schedule_of

from collc.bench.data import OPS, TYPES, Case
from collc.checker.layout import When
from collc.collectives.model import Collective
from collc.ir.arithmetic import reduction
from collc.ir.interpret import run
from collc.ir.nodes import Program
from collc.options import CUDA

Array = npt.NDArray[Any]

CASES = [
    (collective, type_name, op)
    for collective in TREE_COLLECTIVES
    for type_name in TYPES
    for op in (OPS if collective.reduces else [None])
]


PROTOCOLS = ("Simple", "LL", "LL128")


def check(collective: Collective, type_name: str, op: str | None, seed: int, protocol: str) -> None:
    outcome, wrong = run_case(collective, type_name, op, seed, protocol)
    assert (outcome.failure, wrong) == ("", []), f"{collective.value} {type_name} {op}, {protocol}, seed {seed}"


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.slow_for("Simple-all_reduce")
def test_every_type_and_operation(collective: Collective, protocol: str) -> None:
    for number, case in enumerate(CASES):
        if case[0] == collective:
            check(*case, number, protocol)


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_schedules(collective: Collective, protocol: str) -> None:
    for seed in range(1000, 1024):
        check(collective, "float", "sum" if collective.reduces else None, seed, protocol)


@pytest.mark.parametrize("sweep", range(2))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_cases_under_more_seeds(sweep: int, protocol: str) -> None:
    for number, case in enumerate(CASES):
        check(*case, 10_000 + 1000 * sweep + number, protocol)


@pytest.mark.slow
@pytest.mark.parametrize("sweep", range(2, 43))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_cases_under_many_more_seeds(sweep: int, protocol: str) -> None:
    test_all_cases_under_more_seeds(sweep, protocol)


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_more_trees_than_channels_take_turns(collective: Collective, protocol: str) -> None:
    for seed in range(3):
        target = dataclasses.replace(CUDA, chunk_bytes=CHUNK_BYTES, slots=2 + seed, max_channels=2)
        stages = lowered(random_schedule(collective, 4, seed, trees=7), target)
        assert "take_turns" in [name for name, _ in stages]
        check_calls(stages[-1][1], collective, (901, 77), seed, protocol, in_place=seed == 1)


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE], ids=str)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_more_ends_of_a_step_than_lanes(collective: Collective, protocol: str) -> None:
    """A star of 12 ranks, where the emulator's warps have 8 lanes."""
    root = None if collective is Collective.ALL_REDUCE else 0
    star = schedule_of(collective, 12, [[(0, rank) for rank in range(1, 12)]], root)
    program = final(star, dataclasses.replace(CUDA, chunk_bytes=CHUNK_BYTES, slots=2))
    check_calls(program, collective, (301, 77), 5, protocol)


def check_calls(
    program: Program, collective: Collective, counts: tuple[int, ...], seed: int, protocol: str, in_place: bool = False
) -> None:
    op = "sum" if collective.reduces else None
    cases = [Case(collective, program.nranks, program.root or 0, count, TYPES["float"], op) for count in counts]
    made = [make_call(case, in_place=in_place) for case in cases]
    tables = PackedTables([program], CHUNK_BYTES)
    resident = 1 + seed if seed else 0
    outcome = emulate(
        build_emulator(), tables, [call for call, _ in made], seed=seed, protocol=protocol, resident=resident
    )
    assert (outcome.failure, differences(made)) == ("", [])


def test_the_same_seed_is_the_same_run() -> None:
    first, _ = run_case(Collective.ALL_REDUCE, "float", "sum", 11)
    again, _ = run_case(Collective.ALL_REDUCE, "float", "sum", 11)
    assert first.switches == again.switches > 1000


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kernel", ["sum_f32", "prod_f32", "sum_f64", "sum_f16", "prod_f16", "sum_bf16"])
def test_floats_have_the_interpreters_bits(kernel: str, protocol: str) -> None:
    """Inputs whose sums round: the order of reduction is the program's, on every target."""
    carrier = {"f32": "f4", "f64": "f8", "f16": "f2", "bf16": "f4"}[kernel.split("_")[1]]
    rng = np.random.default_rng(3)
    program = small_program(Collective.ALL_REDUCE, 4, 5)
    count = 1001
    values = [rng.uniform(0.5, 2, count).astype(carrier) for _ in range(4)]
    if kernel.endswith("bf16"):
        values = [_bfloat16(v) for v in values]

    def combine(operands: Sequence[Array]) -> Array:
        result = reduction(kernel.split("_")[0])(operands)
        return _bfloat16(result) if kernel.endswith("bf16") else result

    wanted = [np.zeros(count, carrier) for _ in range(4)]
    size = 2 if "16" in kernel else np.dtype(carrier).itemsize
    run(program, values, wanted, combine, count=count, element_bytes=size)

    def raw(array: Array) -> Array:
        return (array.view("u4") >> 16).astype("u2") if kernel.endswith("bf16") else array

    outputs = [empty(count, "u2" if size == 2 else carrier) for _ in range(4)]
    call = Call(0, kernel, count, [raw(v) for v in values], outputs)
    outcome = emulate(build_emulator(), PackedTables([program], CHUNK_BYTES), [call], seed=2, protocol=protocol)
    assert outcome.failure == ""
    assert all(same_bits(got, raw(right)) for got, right in zip(outputs, wanted, strict=True))


def _bfloat16(array: Array) -> Array:
    bits = array.astype("f4").view("u4")
    rounded: Array = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).astype("u4").view("f4")
    return rounded


def three_calls(
    nranks: int = 3,
    seed: int = 1,
    slots: tuple[int, int] = (2, 2),
    chunks: tuple[int, int] = (CHUNK_BYTES, CHUNK_BYTES),
) -> tuple[PackedTables, list[tuple[Call, list[Any]]]]:
    collectives = (Collective.ALL_REDUCE, Collective.ALL_GATHER)
    programs = [
        small_program(collective, nranks, seed, slots=number).replace(chunk_bytes=bytes_)
        for collective, number, bytes_ in zip(collectives, slots, chunks, strict=True)
    ]
    cases = [
        Case(Collective.ALL_REDUCE, nranks, 0, 501, TYPES["float"], "sum"),
        Case(Collective.ALL_GATHER, nranks, 0, 77, TYPES["float"], None),
        Case(Collective.ALL_REDUCE, nranks, 0, 333, TYPES["float"], "max"),
    ]
    made = [make_call(case, number) for case, number in zip(cases, (0, 1, 0), strict=True)]
    return PackedTables(programs, CHUNK_BYTES), made


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_programs_of_one_communicator_share_its_memory(seed: int, protocol: str) -> None:
    tables, made = three_calls()
    outcome = emulate(build_emulator(), tables, [call for call, _ in made], seed=seed, protocol=protocol)
    assert (outcome.failure, differences(made)) == ("", [])


@pytest.mark.parametrize(("slots", "chunks"), [((2, 4), (256, 96)), ((4, 2), (96, 256)), ((3, 2), (256, 256))])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fifos_have_the_slots_that_their_programs_need(
    slots: tuple[int, int], chunks: tuple[int, int], protocol: str
) -> None:
    """Other numbers of slots and other chunks in programs that have some FIFOs in common."""
    for seed in range(4):
        tables, made = three_calls(seed=seed, slots=slots, chunks=chunks)
        outcome = emulate(build_emulator(), tables, [call for call, _ in made], seed=seed, protocol=protocol)
        assert (outcome.failure, differences(made)) == ("", [])


@pytest.mark.parametrize("abort_at", [50, 300, 700])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_abort_ends_every_wait(abort_at: int, protocol: str) -> None:
    tables, made = three_calls()
    outcome = emulate(
        build_emulator(),
        tables,
        [call for call, _ in made],
        seed=4,
        abort_at=abort_at,
        report_races=False,
        missing_rank=2,
        protocol=protocol,
    )
    assert outcome.failure == ""
    assert outcome.reports
    assert {report[0] for report in outcome.reports.values()} == {1}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_silent_peer_is_named_after_the_time_limit(protocol: str) -> None:
    tables, made = three_calls(2)
    outcome = emulate(
        build_emulator(), tables, [made[0][0]], seed=3, protocol=protocol, timeout_ns=5_000_000_000, missing_rank=1
    )
    assert outcome.failure == ""
    state, peer, _, _ = outcome.reports[0]
    assert (state, peer) == (2, 1)
    assert NOBODY not in outcome.reports


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_a_time_limit_a_silent_peer_is_a_deadlock_here(protocol: str) -> None:
    tables, made = three_calls(2)
    outcome = emulate(build_emulator(), tables, [made[0][0]], seed=3, missing_rank=1, protocol=protocol)
    assert outcome.failure.startswith("deadlock")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("chunk_bytes", "channels"), [(48, 0), (1008, 1), (0, 2)])
def test_chunks_and_channels_can_be_others_than_the_programs(protocol: str, chunk_bytes: int, channels: int) -> None:
    programs = [small_program(Collective.ALL_REDUCE, 4, 21, trees=5)]
    made = [make_call(Case(Collective.ALL_REDUCE, 4, 0, count, TYPES["half"], "sum")) for count in (1201, 77)]
    outcome = emulate(
        build_emulator(),
        PackedTables(programs, CHUNK_BYTES),
        [call for call, _ in made],
        seed=5,
        protocol=protocol,
        chunk_bytes=chunk_bytes,
        channels=channels,
    )
    assert (outcome.failure, differences(made)) == ("", [])


@pytest.mark.parametrize("seed", range(4))
def test_protocols_of_one_communicator_keep_apart(seed: int) -> None:
    """Programs that name their protocols in the tables, on the same FIFOs, call after call."""
    program = small_program(Collective.ALL_REDUCE, 3, 8)
    when = [When(0, "LL"), When(1000, "LL128"), When(2000, "Simple")]
    cases = [Case(Collective.ALL_REDUCE, 3, 0, count, TYPES["float"], "sum") for count in (5, 400, 900, 3, 333, 701)]
    made = [make_call(case, number % 3) for number, case in enumerate(cases)]
    tables = PackedTables([program] * 3, CHUNK_BYTES, when)
    outcome = emulate(build_emulator(), tables, [call for call, _ in made], seed=seed, protocol=None)
    assert (outcome.failure, differences(made)) == ("", [])
