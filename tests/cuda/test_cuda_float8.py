"""Reductions of both 8-bit floats: every pair of bytes, every operation, over every protocol."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_emulator import Call, PackedTables, build_emulator, empty, emulate
from emulated_calls import CHUNK_BYTES, small_program
from float8 import FORMATS, Array, Float8
from support.programs import TREE_COLLECTIVES

from collc.collectives.model import Collective
from collc.ir.arithmetic import reduction

PROTOCOLS = ("Simple", "LL", "LL128")
REDUCING = [collective for collective in TREE_COLLECTIVES if collective.reduces]


def all_pairs() -> tuple[Array, Array]:
    every = np.arange(256, dtype=np.uint8)
    return np.repeat(every, 256), np.tile(every, 256)


def combined(kind: Float8, op: str, a: Array, b: Array) -> Array:
    x, y = kind.values[a], kind.values[b]
    with np.errstate(invalid="ignore", over="ignore"):
        return kind.nearest(reduction(op)([x, y]))


def run(kind: Float8, op: str, inputs: list[Array], protocol: str, *, misplaced: int = 0) -> list[Array]:
    """All ranks' results of an all_reduce."""
    program = small_program(Collective.ALL_REDUCE, len(inputs), 3, trees=1, slots=4)
    outputs = [empty(len(inputs[0]), "u1") for _ in inputs]
    call = Call(0, f"{op}_{kind.name}", len(inputs[0]), inputs, outputs, misplacement=misplaced)
    tables = PackedTables([program], CHUNK_BYTES)
    outcome = emulate(build_emulator(), tables, [call], seed=1, protocol=protocol, report_races=False)
    assert outcome.failure == ""
    return outputs


def check(kind: Float8, op: str, a: Array, b: Array, protocol: str, misplaced: int) -> None:
    wanted = combined(kind, op, a, b)
    for got in run(kind, op, [a, b], protocol, misplaced=misplaced):
        wrong = np.flatnonzero(got != wanted)
        assert not wrong.size, [(hex(a[i]), hex(b[i]), hex(got[i]), hex(wanted[i])) for i in wrong[:5]]


def some_pairs(seed: int, count: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    odd = np.array([0, 0x80, 1, 0x81, 7, 8, 0x7B, 0x7C, 0x7E, 0x7F, 0xFE, 0xFF], dtype=np.uint8)
    a, b = np.repeat(odd, len(odd)), np.tile(odd, len(odd))
    left, right = rng.integers(0, 256, (2, count - len(a)), dtype=np.uint8)
    return np.concatenate([a, left]), np.concatenate([b, right])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_pairs(kind: Float8, protocol: str) -> None:
    for number, op in enumerate(("sum", "prod", "max", "min")):
        check(kind, op, *some_pairs(number, 1501), protocol, number % 2)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_every_pair(kind: Float8, protocol: str, op: str) -> None:
    check(kind, op, *all_pairs(), protocol, 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("collective", REDUCING, ids=lambda c: c.value)
def test_collectives(collective: Collective, protocol: str) -> None:
    """Sums of four integers up to 2, which both types hold exactly."""
    nranks, count = 4, 301
    program = small_program(collective, nranks, 7)
    many = nranks if collective is Collective.REDUCE_SCATTER else 1
    for kind in FORMATS:
        numbers = np.random.default_rng(5).integers(0, 3, (nranks, count * many))
        inputs = [kind.nearest(row.astype("f8")) for row in numbers]
        outputs = [empty(count, "u1") for _ in range(nranks)]
        call = Call(0, f"sum_{kind.name}", count, inputs, outputs)
        outcome = emulate(build_emulator(), PackedTables([program], CHUNK_BYTES), [call], seed=2, protocol=protocol)
        assert outcome.failure == ""
        total = kind.nearest(numbers.sum(axis=0).astype("f8"))
        for rank, got in enumerate(outputs):
            if collective is not Collective.REDUCE or rank == program.root:
                assert np.array_equal(got, total[rank * count : (rank + 1) * count] if many > 1 else total)
