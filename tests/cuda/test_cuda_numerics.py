"""Floats at the ends of their types on the emulator: averages, maxima, minima, and how often a step rounds."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_emulator import Array, Call, PackedTables, build_emulator, empty, emulate
from emulated_calls import CHUNK_BYTES, factor_bits, small_program
from support.programs import CUDA, final, schedule_of

from collc.bench.data import TYPES
from collc.collectives.model import Collective
from collc.ir.arithmetic import canonical_nan, reduction

PROTOCOLS = ("Simple", "LL", "LL128")
KINDS: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}

NAMES_OF_TYPES = {"f16": "half", "f32": "float", "f64": "double", "bf16": "bfloat16"}


def limits_of(kind: np.dtype[Any]) -> Any:
    return ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]


def raw(array: Array) -> Array:
    return array.view(f"u{array.itemsize}")


def all_reduce(protocol: str, op: str, name: str, inputs: list[Array], **how: Any) -> list[Array]:
    """Every rank's result."""
    kind, count = inputs[0].dtype, len(inputs[0])
    program = small_program(Collective.ALL_REDUCE, len(inputs), 7)
    outputs = [empty(count, f"u{kind.itemsize}") for _ in inputs]
    call = Call(0, f"{op}_{name}", count, [raw(one) for one in inputs], outputs, **how)
    outcome = emulate(build_emulator(), PackedTables([program], CHUNK_BYTES), [call], seed=3, protocol=protocol)
    assert outcome.failure == ""
    return [output.view(kind) for output in outputs]


def extremes(kind: np.dtype[Any]) -> Array:
    """Zeros, the smallest and the largest denormals and numbers, NaN of several payloads, with both signs."""
    limits = limits_of(kind)
    nan = int(raw(canonical_nan(kind).reshape(1))[0])
    smallest_nan = int(raw(np.array([limits.max]))[0]) + (1 if kind == KINDS["e4m3"] else 2)
    bits = [0, 1, int(raw(np.array([limits.tiny]))[0]) - 1, int(raw(np.array([limits.max]))[0]), smallest_nan, nan]
    sign = 1 << (8 * kind.itemsize - 1)
    return np.array([b | s for b in bits for s in (0, sign)], f"u{kind.itemsize}").view(kind)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", KINDS)
def test_a_nan_loses_and_zeros_have_an_order(name: str, protocol: str) -> None:
    """Every combination of three ranks, at every place of a unit. Only NaN as inputs give the canonical NaN."""
    places = np.array(list(itertools.product(range(12), repeat=3))).T
    inputs = [extremes(KINDS[name])[place] for place in places]
    for op, misplaced in (("max", 0), ("min", 0), ("max", KINDS[name].itemsize), ("min", KINDS[name].itemsize)):
        wanted = reduction(op)(inputs)
        for got in all_reduce(protocol, op, name, inputs, misplacement=misplaced):
            wrong = np.flatnonzero(raw(got) != raw(wanted))
            assert not wrong.size, [hex(int(raw(a)[wrong[0]])) for a in (*inputs, got, wanted)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("name", "type_name"), NAMES_OF_TYPES.items())
def test_averages_do_not_overflow(name: str, type_name: str, protocol: str) -> None:
    kind = KINDS[name]
    largest = np.full(301, 2.0 ** (np.frexp(float(limits_of(kind).max))[1] - 1)).astype(kind)
    factors = [factor_bits(8, TYPES[type_name])] * 8
    for got in all_reduce(protocol, "sum", name, [largest] * 8, factors=factors):
        assert np.array_equal(raw(got), raw(largest))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_data_of_two_bytes_that_only_move_keep_their_bits(protocol: str) -> None:
    """They run on the kernel of f16, which would replace a NaN if it computed."""
    program = small_program(Collective.BROADCAST, 3, 5)
    every = np.arange(0, 1 << 16, 7, dtype=np.uint16)
    outputs = [empty(len(every), "u2") for _ in range(3)]
    call = Call(0, "sum_f16", len(every), [every] * 3, outputs, misplacement=2)
    aligned = dataclasses.replace(call, outputs=[empty(len(every), "u2") for _ in range(3)], misplacement=0)
    outcome = emulate(
        build_emulator(), PackedTables([program], CHUNK_BYTES), [call, aligned], seed=1, protocol=protocol
    )
    assert outcome.failure == ""
    for got in (*outputs, *aligned.outputs):
        assert np.array_equal(got, every)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2"])
def test_a_step_rounds_once(name: str, protocol: str) -> None:
    """The error against a sum in double precision is the error of one rounding; a rounding per add has twice that."""
    kind, nranks, count = KINDS[name], 12, 1001
    star = schedule_of(Collective.REDUCE, nranks, [[(0, rank) for rank in range(1, nranks)]], 0)
    program = final(star, dataclasses.replace(CUDA, chunk_bytes=CHUNK_BYTES, slots=2))
    rng = np.random.default_rng(5)
    inputs = [rng.uniform(0.5, 2, count).astype(kind) for _ in range(nranks)]
    outputs = [empty(count, f"u{kind.itemsize}") for _ in inputs]
    call = Call(0, f"sum_{name}", count, [raw(one) for one in inputs], outputs)
    outcome = emulate(build_emulator(), PackedTables([program], CHUNK_BYTES), [call], seed=2, protocol=protocol)
    assert outcome.failure == ""
    exact = np.sum([one.astype(np.float64) for one in inputs], axis=0)
    once = exact.astype(kind).astype(np.float64)
    each = inputs[0]
    for one in inputs[1:]:
        each = (each.astype(np.float32) + one.astype(np.float32)).astype(kind)

    def error(result: Array) -> float:
        return float(np.sqrt(np.mean((result.astype(np.float64) - exact) ** 2)))

    assert error(outputs[0].view(kind)) <= 1.01 * error(once)
    assert error(each) > 1.5 * error(once), "the inputs would show a rounding after each add"
