"""Signed and unsigned integers of one width share a kernel: every byte, and words at the ends of their ranges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cuda_emulator import KERNEL_TYPES, Array, Call, PackedTables, build_emulator, empty, emulate, same_bits
from emulated_calls import CHUNK_BYTES, small_program

from collc.collectives.model import Collective

INTEGERS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
OPERATIONS = ("sum", "prod", "max", "min")
PROTOCOLS = ("Simple", "LL", "LL128")
# Powers of two, their neighbors, what no byte holds, and as many ranks as there may be.
DIVISORS = (
    1,
    2,
    3,
    5,
    7,
    8,
    9,
    16,
    31,
    64,
    85,
    100,
    127,
    128,
    129,
    200,
    254,
    255,
    256,
    257,
    300,
    1000,
    32768,
    65535,
    65536,
)


def reduced(op: str, inputs: list[Array]) -> Array:
    """The reduction by numpy, whose integers wrap; an average is the sum."""
    function = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op]
    result = inputs[0]
    for other in inputs[1:]:
        result = function(result, other)
    return result


def toward_zero(sums: Array, divisor: int) -> Array:
    """Quotients by Python's integers, of every magnitude, with the sign put back."""
    signs = [-1 if int(v) < 0 else 1 for v in sums]
    return np.array([s * (abs(int(v)) // divisor) for s, v in zip(signs, sums, strict=True)], sums.dtype)


def run(
    protocol: str, op: str, inputs: list[Array], divisors: tuple[int, ...] = (0,), misplaced: bool = False
) -> list[list[Array]]:
    """All_reduces of the same inputs, one per divisor (0: none): the outputs of all ranks."""
    kind = inputs[0].dtype
    count = len(inputs[0])
    program = small_program(Collective.ALL_REDUCE, len(inputs), 7)
    calls = [
        Call(
            0,
            f"{op}_{KERNEL_TYPES[kind.name]}",
            count,
            inputs,
            [empty(count, kind.str) for _ in inputs],
            divisor=divisor,
            misplacement=kind.itemsize if misplaced else 0,
        )
        for divisor in divisors
    ]
    tables = PackedTables([program], CHUNK_BYTES)
    outcome = emulate(build_emulator(), tables, calls, seed=3, report_races=False, protocol=protocol, chunk_bytes=4080)
    assert outcome.failure == ""
    return [list(call.outputs) for call in calls]


def interesting(kind: str, seed: int, count: int) -> Array:
    """Values around zero, around the ends of the range and around the sign's bit, then any."""
    info = np.iinfo(kind)
    middle = 1 << (info.bits - 1)
    mask = (1 << info.bits) - 1
    near = [at + step & mask for at in (0, middle, mask, middle >> 1) for step in (-3, -2, -1, 0, 1, 2, 3)]
    rng = np.random.default_rng(seed)
    unsigned = np.dtype(f"u{info.bits // 8}")
    picked = rng.choice(np.array(near, unsigned), count)
    any_bits = rng.integers(0, mask, count, dtype=unsigned, endpoint=True)
    return np.where(rng.random(count) < 0.6, picked, any_bits).astype(unsigned).view(kind)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_every_pair_of_bytes(kind: str, op: str, protocol: str) -> None:
    every = np.arange(256, dtype=np.uint8).view(kind)
    # One more than all pairs, so that bytes lie at every place of a word and the last unit is not whole.
    inputs = [np.append(np.repeat(every, 256), every[:1]), np.append(np.tile(every, 256), every[-1:])]
    inputs = [np.concatenate([i, i[:300:7]]) for i in inputs]
    wanted = reduced(op, inputs)
    (outputs,) = run(protocol, op, inputs)
    assert all(same_bits(got, wanted) for got in outputs)


@pytest.mark.parametrize("misplaced", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_every_byte_over_every_divisor(kind: str, protocol: str, misplaced: bool) -> None:
    every = np.arange(257).astype(np.uint8).view(kind)
    divisors = DIVISORS if misplaced else tuple(sorted({*DIVISORS, *range(1, 130)}))
    all_outputs = run(protocol, "sum", [every, np.zeros_like(every)], divisors, misplaced)
    for divisor, outputs in zip(divisors, all_outputs, strict=True):
        assert all(same_bits(got, toward_zero(every, divisor)) for got in outputs), divisor


@pytest.mark.parametrize("misplaced", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", INTEGERS)
def test_negative_and_huge_values(kind: str, protocol: str, misplaced: bool) -> None:
    for number, (op, nranks) in enumerate(itertools.product(OPERATIONS, (2, 3))):
        inputs = [interesting(kind, 10 * number + rank, 501 + 2 * number) for rank in range(nranks)]
        (outputs,) = run(protocol, op, inputs, misplaced=misplaced)
        assert all(same_bits(got, reduced(op, inputs)) for got in outputs), (op, nranks)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", INTEGERS)
def test_averages_of_negative_and_huge_values(kind: str, protocol: str) -> None:
    inputs = [interesting(kind, 77 + rank, 333) for rank in range(3)]
    sums = reduced("sum", inputs)
    for divisor, outputs in zip(DIVISORS, run(protocol, "sum", inputs, DIVISORS), strict=True):
        assert all(same_bits(got, toward_zero(sums, divisor)) for got in outputs), divisor


@pytest.mark.parametrize("op", ["max", "min"])
def test_the_inputs_tell_signed_from_unsigned(op: str) -> None:
    """The tests above need this: with the other order, or divided as the other type, results differ."""
    for signed, unsigned in (("int8", "uint8"), ("int32", "uint32"), ("int64", "uint64")):
        inputs = [interesting(signed, rank, 501) for rank in range(2)]
        right, other = reduced(op, inputs), reduced(op, [i.view(unsigned) for i in inputs])
        assert not same_bits(right, other)
        assert not same_bits(toward_zero(inputs[0], 3), toward_zero(inputs[0].view(unsigned), 3))
