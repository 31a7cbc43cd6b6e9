"""The benchmark's reference is right: exact in every type, and it would show a wrong element."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from collc.bench.data import OPS, PERIOD, TYPES, Case, combined, encode, fill, period_of, values
from collc.collectives.model import Collective


def as_numbers(bits: np.ndarray, name: str) -> np.ndarray:
    if name == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.astype(np.float64)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("nranks", [1, 2, 3, 8, 16, 72])
def test_results_and_every_partial_result_are_exact(name: str, op: str, nranks: int) -> None:
    kind = TYPES[name]
    signed = name in ("int8", "int32", "int64") or name in ("half", "float", "double", "bfloat16")
    inputs = np.stack([values(r, nranks, op, signed) for r in range(nranks)])
    if name not in ("half", "float", "double", "bfloat16"):
        return  # integers wrap alike in any order
    limit = {"half": 2048, "bfloat16": 256}.get(name, 1 << 24)
    if op in ("sum", "avg"):
        assert np.abs(inputs).sum(axis=0).max() <= limit
    elif op == "prod":
        magnitude = np.abs(inputs).prod(axis=0)
        assert (magnitude & (magnitude - 1) == 0).all()  # powers of two
        assert magnitude.max() <= 64
    else:
        assert np.abs(inputs).max() <= limit
    for r in range(nranks):
        np.testing.assert_array_equal(as_numbers(period_of(r, nranks, op, kind), name), inputs[r])


@pytest.mark.parametrize("op", OPS)
def test_combined_agrees_with_numpy(op: str) -> None:
    inputs = np.stack([values(r, 8, op, True) for r in range(8)]).astype(np.float64)
    want = {
        "sum": inputs.sum(0),
        "prod": inputs.prod(0),
        "max": inputs.max(0),
        "min": inputs.min(0),
        "avg": inputs.mean(0),
    }[op]
    np.testing.assert_array_equal(combined(8, op, TYPES["double"]), want)


def test_averages_of_floats_have_the_rounded_inverse_of_the_ranks() -> None:
    """By numpy's own types: 11 times the half next to 1/11 is not 1, 3 times the one next to 1/3 is."""
    for name, carrier in (("half", np.float16), ("float", np.float32), ("double", np.float64)):
        for nranks in range(1, 80):
            product = carrier(nranks) * carrier(1 / nranks)
            assert combined(nranks, "avg", TYPES[name]).max() == product
    assert combined(11, "avg", TYPES["half"]).max() < 1
    assert combined(3, "avg", TYPES["half"]).max() == 1


@pytest.mark.parametrize("op", OPS)
def test_a_missing_or_doubled_rank_shows(op: str) -> None:
    """For every operation some element of one period depends on each rank."""
    for nranks in (2, 3, 8):
        inputs = np.stack([values(r, nranks, op, True) for r in range(nranks)])
        for left_out in range(nranks):
            others = np.delete(inputs, left_out, axis=0)
            want = combined(nranks, op, TYPES["double"])
            got = {
                "sum": others.sum(0),
                "prod": others.prod(0),
                "max": others.max(0),
                "min": others.min(0),
                "avg": others.sum(0) // nranks,
            }[op]
            assert (got != want).any()


def test_shifted_data_shows() -> None:
    period = period_of(0, 8, "sum", TYPES["float"])
    for shift in itertools.chain(range(1, 40), (1 << k for k in range(6, 20))):
        assert (fill(period, 4096) != fill(period, 4096, shift)).any()
    assert (fill(period, 10, PERIOD) == fill(period, 10)).all()


def test_bf16_encoding_keeps_the_upper_half() -> None:
    assert encode(np.array([1, -2, 240]), TYPES["bfloat16"]).tolist() == [0x3F80, 0xC000, 0x4370]


def test_reduce_scatter_expects_its_own_block() -> None:
    case = Case(Collective.REDUCE_SCATTER, 4, -1, 1000, TYPES["int32"], "sum")
    whole = np.sum([case.send_data(r) for r in range(4)], axis=0)
    for rank in range(4):
        np.testing.assert_array_equal(case.expected(rank), whole[rank * 1000 : (rank + 1) * 1000])
