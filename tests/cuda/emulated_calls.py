"""Calls for the emulator with known results, and the check of their output."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cuda_emulator import KERNEL_TYPES, NOBODY, Array, Call, Outcome, PackedTables, build_emulator, empty, emulate
from support.programs import final, random_schedule

from collc.bench.data import TYPES, Case, DataType, encode, nearest
from collc.collectives.blocks import in_place_offsets
from collc.collectives.model import Collective
from collc.ir.nodes import Program
from collc.options import CUDA

CHUNK_BYTES = 256  # small, so that a few kilobytes go round the slots several times


def small_program(collective: Collective, nranks: int, seed: int, *, trees: int = 2, slots: int = 2) -> Program:
    """A lowered program of random trees whose FIFOs are short and whose chunks are small."""
    target = dataclasses.replace(CUDA, chunk_bytes=CHUNK_BYTES, slots=slots)
    return final(random_schedule(collective, nranks, seed, trees), target)


def factor_bits(nranks: int, kind: DataType) -> int:
    """Returns the bits of 1 / `nranks` in a float type. To average, every rank multiplies its input by this factor."""
    assert kind.mantissa_bits is not None
    return int(encode(np.array([nearest(1 / nranks, kind.mantissa_bits)]), kind).view(f"u{kind.size}")[0])


def make_call(
    case: Case, program: int = 0, *, in_place: bool = False, misplacement: int = 0
) -> tuple[Call, list[Array]]:
    """Returns the call of a case, and the expected output memory of every rank, byte by byte."""
    size, ranks = case.kind.size, range(case.nranks)
    inputs = [case.send_data(r) for r in ranks]
    many = max(case.send_elements, case.recv_elements)
    outputs = [empty(many if in_place else case.recv_elements, case.kind.carrier) for _ in ranks]
    places = [in_place_offsets(case.collective, r) if in_place else (0, 0) for r in ranks]
    in_at, out_at = ([at * case.count for at in column] for column in zip(*places, strict=True))
    wanted = []
    for r in ranks:
        if in_place:
            outputs[r][in_at[r] : in_at[r] + case.send_elements] = inputs[r]
        result = case.expected(r)
        after = outputs[r].copy()
        if result is not None:
            after[out_at[r] : out_at[r] + case.recv_elements] = result
        wanted.append(after)
    kernel = (
        f"sum_u{8 * size}"
        if not case.collective.reduces
        else f"{'sum' if case.op == 'avg' else case.op}_{KERNEL_TYPES[case.kind.name]}"
    )
    kernel = kernel if kernel != "sum_u16" else "sum_f16"
    averages = case.op == "avg"
    call = Call(
        program,
        kernel,
        case.count,
        inputs,
        outputs,
        divisor=case.nranks if averages and case.kind.mantissa_bits is None else 0,
        factors=[factor_bits(case.nranks, case.kind)] * case.nranks if averages and case.kind.mantissa_bits else None,
        misplacement=misplacement,
        in_offset=[at * size for at in in_at] if in_place else None,
        out_offset=[at * size for at in out_at],
    )
    return call, wanted


def with_lent_buffers(call: Call, lent: Sequence[int] | None) -> Call:
    """Returns the call in which rank i lends the buffers of `lent[i]`; None: no rank lends a buffer.

    A call with a factor stays as it is, as in the runtime: readers would find inputs that are not multiplied yet.
    """
    return call if call.factors else dataclasses.replace(call, lent=lent)


@dataclass(frozen=True)
class Situation:
    """Everything that a seed decides about one run of a case."""

    nranks: int
    slots: int
    threads: int
    resident: int
    one_device: bool
    report_races: bool
    in_place: bool
    misplaced: bool
    counts: tuple[int, int]
    pinned_pairs: int


def situation(seed: int, size: int) -> Situation:
    rng = random.Random(seed)
    most = 3 * CHUNK_BYTES // size
    return Situation(
        nranks=rng.randint(2, 4),
        slots=rng.choice([2, 3, 4]),
        threads=rng.choice([8, 16]),
        resident=rng.choice([0, 1, 2]),
        one_device=rng.random() < 0.25,
        report_races=rng.random() < 0.5,
        in_place=rng.random() < 0.4,
        misplaced=rng.random() < 0.3,
        counts=(2 * rng.randint(0, most) + 1, rng.choice([1, 2, 3, 17, most])),
        pinned_pairs=rng.choice([0, NOBODY, seed]),
    )


def run_case(
    collective: Collective,
    type_name: str,
    op: str | None,
    seed: int,
    protocol: str = "Simple",
    *,
    pre_volta: bool = False,
) -> tuple[Outcome, list[str]]:
    """Two calls of different sizes, one behind the other, in the situation of the seed. Returns what differs."""
    kind = TYPES[type_name]
    at = situation(seed, kind.size)
    program = small_program(collective, at.nranks, seed, slots=at.slots)
    root = program.root if program.root is not None else 0
    made = [
        make_call(
            Case(collective, at.nranks, root, count, kind, op),
            in_place=at.in_place,
            misplacement=kind.size if at.misplaced else 0,
        )
        for count in at.counts
    ]
    return run_made(at, [program], made, seed, protocol, pre_volta=pre_volta)


def run_made(
    at: Situation,
    programs: Sequence[Program],
    made: list[tuple[Call, list[Array]]],
    seed: int,
    protocol: str | None = "Simple",
    *,
    pre_volta: bool = False,
    slots_between: bool = False,
    processes: int = 0,
) -> tuple[Outcome, list[str]]:
    """Runs calls one behind the other in a situation; the rest is as `emulate` has it. Returns what differs."""
    outcome = emulate(
        build_emulator(pre_volta=pre_volta),
        PackedTables(programs, CHUNK_BYTES),
        [call for call, _ in made],
        seed=seed,
        # All blocks of a cooperative launch are resident, or it is refused.
        resident=0 if at.one_device else at.resident,
        report_races=at.report_races,
        threads=at.threads,
        one_device=at.one_device,
        protocol=protocol,
        # LL128 and sums inside switches run where all pairs have NVLinks, and nobody is far from itself.
        pinned_pairs=0 if protocol in (None, "LL128") or at.one_device else at.pinned_pairs,
        slots_between=slots_between,
        processes=processes,
    )
    return outcome, differences(made)


def differences(made: list[tuple[Call, list[Array]]]) -> list[str]:
    """One line per rank whose output memory is not what it must be."""
    lines = []
    for number, (call, wanted) in enumerate(made):
        for rank, (got, right) in enumerate(zip(call.outputs, wanted, strict=True)):
            raw, truth = (np.frombuffer(a.tobytes(), dtype=np.uint8) for a in (got, right))
            wrong = np.flatnonzero(raw != truth)
            if wrong.size:
                lines.append(f"call {number}, rank {rank}: {wrong.size} bytes, first at {wrong[0]} of {raw.size}")
    return lines
