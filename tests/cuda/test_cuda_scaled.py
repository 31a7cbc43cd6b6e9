"""Sums before which each rank multiplies its input by its own factor, on the emulator: all types and collectives."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from cuda_emulator import Array, Call, PackedTables, build_emulator, empty, emulate, same_bits
from emulated_calls import CHUNK_BYTES, differences, make_call, small_program
from float8 import FORMATS, Float8
from support.programs import TREE_COLLECTIVES

from collc.bench.data import TYPES, Case
from collc.collectives.model import Collective
from collc.ir.arithmetic import reduction
from collc.ir.interpret import run

PROTOCOLS = ("Simple", "LL", "LL128")
REDUCING = [collective for collective in TREE_COLLECTIVES if collective.reduces]
RANKS = 4


def undone(data: Array, rank: int, type_name: str) -> tuple[Array, int]:
    """Returns data that give exactly `data` when multiplied by the rank's factor, and the bits of that factor."""
    bits = 8 * data.dtype.itemsize
    if "int" in type_name:
        # Odd numbers have an inverse modulo powers of two.
        odd, unsigned = 2 * rank + 3, f"u{data.dtype.itemsize}"
        inverse = np.array(pow(odd, -1, 1 << bits), dtype=unsigned)
        return (data.view(unsigned) * inverse).astype(unsigned).view(data.dtype), odd
    factor = 2.0 ** (rank - 1)
    if type_name == "bfloat16":
        wide = (data.astype("u4") << 16).view("f4") / np.float32(factor)
        return (wide.view("u4") >> 16).astype("u2"), int(np.float32(factor).view("u4") >> 16)
    number = data.dtype.type(factor)
    return (data / number).astype(data.dtype), int(number.view(f"u{data.dtype.itemsize}"))


def scaled_call(case: Case, *, in_place: bool = False, misplacement: int = 0) -> tuple[Call, list[Array]]:
    """Returns the call of a scaled sum whose scaled inputs equal the inputs of the case, and its results."""
    call, wanted = make_call(case, in_place=in_place, misplacement=misplacement)
    made = [undone(data, rank, case.kind.name) for rank, data in enumerate(call.inputs)]
    if in_place:
        assert call.in_offset is not None
        for (data, _), output, at in zip(made, call.outputs, call.in_offset, strict=True):
            start = at // case.kind.size
            output[start : start + len(data)] = data
    call = dataclasses.replace(call, inputs=[data for data, _ in made], factors=[factor for _, factor in made])
    return call, wanted


@pytest.mark.parametrize("collective", REDUCING, ids=lambda c: c.value)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_type(collective: Collective, protocol: str) -> None:
    program = small_program(collective, RANKS, 11)
    tables = PackedTables([program], CHUNK_BYTES)
    for number, kind in enumerate(TYPES.values()):
        case = Case(collective, RANKS, program.root or 0, 301 + number, kind, "sum")
        call, wanted = scaled_call(case, misplacement=number % 2 * kind.size)
        call = dataclasses.replace(call, factors_in_memory=number % 3 == 0)
        outcome = emulate(build_emulator(), tables, [call], seed=number, protocol=protocol)
        assert (outcome.failure, differences([(call, wanted)])) == ("", []), kind.name


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_in_place_and_beside_plain_sums(protocol: str) -> None:
    """A factor belongs to only one call."""
    program = small_program(Collective.ALL_REDUCE, RANKS, 12)
    case = Case(Collective.ALL_REDUCE, RANKS, 0, 601, TYPES["float"], "sum")
    made = [make_call(case), scaled_call(case, in_place=True), make_call(case, in_place=True)]
    tables = PackedTables([program], CHUNK_BYTES)
    outcome = emulate(build_emulator(), tables, [call for call, _ in made], seed=3, protocol=protocol)
    assert (outcome.failure, differences(made)) == ("", [])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("carrier", ["f4", "f8", "f2"])
def test_products_are_rounded_before_they_are_added(carrier: str, protocol: str) -> None:
    """Factors and inputs whose products round: no fused multiply and add."""
    rng, count = np.random.default_rng(7), 601
    program = small_program(Collective.ALL_REDUCE, RANKS, 5)
    values = [rng.uniform(0.5, 2, count).astype(carrier) for _ in range(RANKS)]
    factors = rng.uniform(0.5, 2, RANKS).astype(carrier)
    wanted = [np.zeros(count, carrier) for _ in range(RANKS)]
    size = np.dtype(carrier).itemsize
    products = [value * factor for value, factor in zip(values, factors, strict=True)]
    run(program, products, wanted, reduction("sum"), count=count, element_bytes=size)
    bits = [int(factor.view(f"u{size}")) for factor in factors]
    outputs = [empty(count, carrier) for _ in range(RANKS)]
    call = Call(0, f"sum_f{8 * size}", count, values, outputs, factors=bits)
    outcome = emulate(build_emulator(), PackedTables([program], CHUNK_BYTES), [call], seed=2, protocol=protocol)
    assert outcome.failure == ""
    assert all(same_bits(got, right) for got, right in zip(outputs, wanted, strict=True))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_floats_of_8_bits(kind: Float8, protocol: str) -> None:
    program = small_program(Collective.ALL_REDUCE, 2, 3, trees=1)
    inputs = [np.random.default_rng(rank).integers(0, 256, 1001, dtype=np.uint8) for rank in range(2)]
    factors = kind.nearest(np.array([1.75, -0.375]))
    products = [by_factor(kind, data, int(factor)) for data, factor in zip(inputs, factors, strict=True)]
    with np.errstate(invalid="ignore"):
        wanted = kind.nearest(kind.values[products[0]] + kind.values[products[1]])
    outputs = [empty(1001, "u1") for _ in range(2)]
    call = Call(0, f"sum_{kind.name}", 1001, inputs, outputs, factors=[int(f) for f in factors])
    outcome = emulate(build_emulator(), PackedTables([program], CHUNK_BYTES), [call], seed=4, protocol=protocol)
    assert outcome.failure == ""
    assert all(kind.same(got, wanted).all() for got in outputs)


def by_factor(kind: Float8, data: Array, factor: int) -> Array:
    with np.errstate(invalid="ignore"):
        return kind.nearest(kind.values[data] * kind.values[factor])
