"""All_reduces of one hop under the emulator: every rank reduces all inputs itself, in the order of the ranks."""

from __future__ import annotations

import dataclasses
import random
from functools import cache

import numpy as np
import pytest
from cuda_emulator import Call, Outcome, PackedTables, build_emulator, empty, emulate, same_bits
from emulated_calls import CHUNK_BYTES, differences, make_call, run_made, situation, with_lent_buffers
from planted_faults import NO_FAULT
from support.programs import final, schedule_of
from test_cuda_scaled import scaled_call
from test_planted_faults import LINE_FAULTS

from collc.bench.data import OPS, TYPES, Case
from collc.codegen.specialise import Written, specialise
from collc.collectives.model import Collective
from collc.ir.arithmetic import reduction
from collc.ir.interpret import run
from collc.ir.nodes import Program
from collc.ir.verify import verify
from collc.lowering.reduce_everywhere import reduce_everywhere
from collc.options import CUDA

PROTOCOLS = ("Simple", "LL", "LL128")
ALL_REDUCE = Collective.ALL_REDUCE
NOTHING, INPUT, OUTPUT = 0, 1, 2
SEEDS = range(12)
FIRST_SEEDS = (0, *(pytest.param(first, marks=pytest.mark.slow) for first in (40, 60)))


def program_of(nranks: int, channels: int, slots: int = 2) -> Program:
    stars = [[(root, rank) for rank in range(nranks) if rank != root] for root in range(nranks)]
    target = dataclasses.replace(CUDA, chunk_bytes=CHUNK_BYTES, slots=slots)
    program = reduce_everywhere(final(schedule_of(ALL_REDUCE, nranks, stars), target), channels)
    verify(program)
    return program


def run_case(type_name: str, op: str, seed: int, protocol: str, *, lends: bool = False) -> tuple[Outcome, list[str]]:
    """Calls of different sizes, one behind the other, in the situation of the seed; between them one of stars."""
    kind = TYPES[type_name]
    at = situation(seed, kind.size)
    rng = random.Random(seed)
    program = program_of(at.nranks, rng.randint(1, 3), at.slots)
    stars = [[(root, rank) for rank in range(at.nranks) if rank != root] for root in range(at.nranks)]
    target = dataclasses.replace(CUDA, chunk_bytes=CHUNK_BYTES, slots=at.slots)
    two_hops = final(schedule_of(ALL_REDUCE, at.nranks, stars), target)
    made = []
    for number, count in enumerate((at.counts[0], at.counts[1], *at.counts)):
        call, wanted = make_call(
            Case(ALL_REDUCE, at.nranks, 0, count, kind, op),
            1 if number == 1 else 0,
            in_place=at.in_place if number != 2 else not at.in_place,
            misplacement=kind.size if at.misplaced else 0,
        )
        lent = [rng.choice([NOTHING, INPUT, OUTPUT, INPUT | OUTPUT]) for _ in range(at.nranks)]
        made.append((with_lent_buffers(call, lent) if lends else call, wanted))
    return run_made(at, [program, two_hops], made, seed, protocol, processes=seed % 4 * (seed + 1) if lends else 0)


@pytest.mark.parametrize("first", FIRST_SEEDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("op", OPS)
def test_every_type_and_operation(op: str, protocol: str, first: int) -> None:
    for seed, type_name in enumerate(TYPES, first):
        outcome, wrong = run_case(type_name, op, seed, protocol)
        assert (outcome.failure, wrong) == ("", []), f"{type_name} {op}, {protocol}, seed {seed}"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(16, 320, 16))])
def test_many_schedules(first: int, protocol: str) -> None:
    for seed in range(700 + first, 716 + first):
        outcome, wrong = run_case("float", "sum", seed, protocol)
        assert (outcome.failure, wrong) == ("", []), f"{protocol}, seed {seed}"


@pytest.mark.parametrize("first", FIRST_SEEDS)
@pytest.mark.parametrize("op", OPS)
def test_inputs_are_read_where_they_stand(op: str, first: int) -> None:
    """Over Simple, whatever each rank lends of each call; in place, where results overwrite inputs, through slots."""
    for seed, type_name in enumerate(TYPES, first):
        outcome, wrong = run_case(type_name, op, seed, "Simple", lends=True)
        assert (outcome.failure, wrong) == ("", []), f"{type_name} {op}, seed {seed}"


@cache
def written() -> Written:
    """Of all ranks, wherever their own input stands, the steps are the same."""
    made = specialise("0", [(program_of(nranks, 2), protocol) for nranks in (3, 5) for protocol in PROTOCOLS])
    assert made is not None
    assert made.table[0] == 2
    return made


def rounded(
    fault: str | None,
    protocol: str,
    kernel: str = "sum_f32",
    nranks: int = 4,
    channels: int = 2,
    made: Written | None = None,
) -> list[bool]:
    """Returns for each rank whether it has the interpreter's bits. Sums round; written steps are used if present."""
    carrier = {"f32": "f4", "f64": "f8", "f16": "f2"}[kernel.split("_")[1]]
    rng = np.random.default_rng(3)
    program = program_of(nranks, channels)
    count, size = 1001, np.dtype(carrier).itemsize
    values = [rng.uniform(0.5, 2, count).astype(carrier) for _ in range(nranks)]
    wanted = [np.zeros(count, carrier) for _ in range(nranks)]
    combine = reduction(kernel.split("_")[0])
    run(program, values, wanted, combine, count=count, element_bytes=size)
    in_order = combine(values)
    assert all(same_bits(one, in_order) for one in wanted)
    outputs = [empty(count, carrier) for _ in range(nranks)]
    call = Call(0, kernel, count, values, outputs)
    library = build_emulator(fault, written=made)
    outcome = emulate(library, PackedTables([program], CHUNK_BYTES), [call], seed=2, protocol=protocol)
    assert (outcome.failure, outcome.written) == ("", 1 if made else 0)
    return [same_bits(got, right) for got, right in zip(outputs, wanted, strict=True)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kernel", ["sum_f32", "prod_f32", "sum_f64", "sum_f16", "prod_f16"])
def test_all_ranks_have_the_bits_of_one_order(kernel: str, protocol: str) -> None:
    for nranks in (2, 3, 5):
        assert all(rounded(None, protocol, kernel, nranks)), f"{nranks} ranks"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_own_inputs_first_are_found(protocol: str) -> None:
    """Programs of trees put a rank's own input first: then only rank 0 would have the right bits."""
    assert all(rounded(NO_FAULT, protocol))
    found = rounded("OWN_FIRST", protocol)
    assert found[0]
    assert not all(found[2:])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_steps_written_out_have_the_bits_of_one_order_too(protocol: str) -> None:
    for nranks in (3, 5):
        assert all(rounded(None, protocol, "sum_f32", nranks, made=written())), f"{nranks} ranks"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_own_inputs_first_are_found_in_steps_written_out(protocol: str) -> None:
    found = rounded("OWN_FIRST", protocol, nranks=5, made=written())
    assert found[0]
    assert not all(found[2:])


def wrong_with(fault: str | None, protocol: str, seed: int, *, scaled: bool = False, calls: int = 1) -> str:
    """Returns the error of calls of five ranks; "" without an error."""
    case = Case(ALL_REDUCE, 5, 0, 640, TYPES["float"], "sum")
    made = [scaled_call(case) if scaled else make_call(case) for _ in range(calls)]
    library, tables = build_emulator(fault), PackedTables([program_of(5, 1)], CHUNK_BYTES)
    outcome = emulate(library, tables, [one for one, _ in made], seed=seed, report_races=True, protocol=protocol)
    return outcome.failure or "; ".join(differences(made))


def test_flags_that_nobody_looks_at_where_several_are_read_at_once_are_found() -> None:
    assert not any(wrong_with(NO_FAULT, "LL", seed) for seed in SEEDS)
    assert all(wrong_with("ONE_FLAG", "LL", seed) for seed in SEEDS)


@pytest.mark.parametrize("protocol", ["LL", "LL128"])
@pytest.mark.parametrize("fault", LINE_FAULTS)
def test_what_protocols_with_flags_need_is_found_missing(fault: str, protocol: str) -> None:
    assert not any(wrong_with(NO_FAULT, protocol, seed) for seed in SEEDS)
    assert all(wrong_with(fault, protocol, seed, calls=2) for seed in SEEDS)


@pytest.mark.parametrize("nranks", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (6, 7, 9, 16, 72))])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.slow_for("LL-8", "LL128-8")
def test_as_many_ranks_as_one_hop_joins(protocol: str, nranks: int) -> None:
    """More sources than a thread loads at a time (8), too."""
    for number, (type_name, op) in enumerate((one, op) for one in TYPES for op in OPS):
        count = (1, 77, 640)[number % 3]
        tables = PackedTables([program_of(nranks, 1 + number % 2)], CHUNK_BYTES)
        made = [
            make_call(Case(ALL_REDUCE, nranks, 0, count + more, TYPES[type_name], op), in_place=number % 4 == 0)
            for more in (0, 1)
        ]
        calls = [call for call, _ in made]
        outcome = emulate(build_emulator(), tables, calls, seed=number, report_races=number % 2 == 0, protocol=protocol)
        assert (outcome.failure, differences(made)) == ("", []), f"{type_name} {op}, {nranks} ranks, {protocol}"


def test_an_own_input_that_is_read_before_others_have_scaled_it_is_found() -> None:
    assert not any(wrong_with(NO_FAULT, "Simple", seed, scaled=True) for seed in SEEDS)
    assert all(wrong_with("SCALED_BARRIER", "Simple", seed, scaled=True) for seed in SEEDS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sums_with_factors(protocol: str) -> None:
    """Each rank's own one, at its place among the others, in place or not, misplaced or not."""
    for number, kind in enumerate(TYPES.values()):
        program = program_of(4, 1 + number % 3)
        case = Case(ALL_REDUCE, 4, 0, 301 + number, kind, "sum")
        made = [
            scaled_call(case, in_place=number % 2 == 0, misplacement=number % 3 % 2 * kind.size),
            make_call(case, in_place=number % 2 == 1),
        ]
        made[0] = (dataclasses.replace(made[0][0], factors_in_memory=number % 3 == 0), made[0][1])
        tables = PackedTables([program], CHUNK_BYTES)
        calls = [call for call, _ in made]
        outcome = emulate(build_emulator(), tables, calls, seed=number, protocol=protocol)
        assert (outcome.failure, differences(made)) == ("", []), kind.name


def overwritten(fault: str | None, seed: int, report_races: bool) -> str:
    """Returns the error of a call in place by ranks that lend their inputs; "" without an error."""
    program = program_of(3, 1)
    call, wanted = make_call(Case(ALL_REDUCE, 3, 0, 640, TYPES["float"], "sum"), in_place=True)
    made = [(dataclasses.replace(call, lent=[INPUT] * 3), wanted)]
    outcome = emulate(
        build_emulator(fault),
        PackedTables([program], CHUNK_BYTES),
        [one for one, _ in made],
        seed=seed,
        report_races=report_races,
    )
    return outcome.failure or "; ".join(differences(made))


def test_an_input_that_is_overwritten_while_others_read_it_is_found() -> None:
    assert not any(overwritten(NO_FAULT, seed, report_races=True) for seed in SEEDS)
    assert all(overwritten("OVERWRITTEN", seed, report_races=True) for seed in SEEDS)
    assert any(overwritten("OVERWRITTEN", seed, report_races=False) for seed in SEEDS)
