"""Kernels of programs inside a switch, under the emulator: a multicast address is a set of memories there.

Their kernels and the layout of their memory are those that a library of `collc compile --in-switch` has.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from functools import cache

import pytest
from cuda_emulator import PackedTables, build_emulator, emulate
from emulated_calls import CHUNK_BYTES, differences, make_call, run_made, situation
from planted_faults import NO_FAULT
from support.programs import TREE_COLLECTIVES
from test_planted_faults import FAULTS, SEEDS, is_found_by, seeds_of

from collc import packing
from collc.bench.data import OPS, TYPES, Case
from collc.collectives.model import Collective
from collc.ir.nodes import Program
from collc.options import CUDA
from collc.pipeline import Recorder, lower_in_switch
from collc.topology.model import GraphLink, LinkKind, PlanGraph, Vertex, VertexKind

SWITCH_FAULTS = {
    "SWITCH_MEMBER": "the switch knows the memories of all ranks but one",
}


def box(nranks: int) -> PlanGraph:
    switch = Vertex("nvs0", VertexKind.SWITCH, multicast=True, reduce=True)
    links = []
    for r in range(nranks):
        links.append(GraphLink(2 * r, r, nranks, LinkKind.NVSWITCH, Fraction(4)))
        links.append(GraphLink(2 * r + 1, nranks, r, LinkKind.NVSWITCH, Fraction(4)))
    gpus = tuple(Vertex(f"gpu{r}", VertexKind.GPU) for r in range(nranks))
    return PlanGraph("box", nranks, (*gpus, switch), ("",) * (nranks + 1), tuple(links))


@cache
def program(collective: Collective, nranks: int, root: int | None, slots: int, channels: int) -> Program:
    graph = box(nranks)
    target = dataclasses.replace(CUDA, chunk_bytes=CHUNK_BYTES, slots=slots)
    return lower_in_switch(packing.plan(graph, collective, root), graph, target, channels, Recorder())


def adds(type_name: str, op: str | None) -> bool:
    """Returns whether the hardware reduces this: no products, no bytes; max and min of integers and 16-bit floats."""
    kind = TYPES[type_name]
    if op in (None, "sum", "avg"):
        return op is None or kind.size > 1
    return op in ("max", "min") and kind.size > 1 and type_name not in ("float", "double")


CASES = [
    (collective, type_name, op)
    for collective in TREE_COLLECTIVES
    for type_name in TYPES
    for op in (OPS if collective.reduces else [None])
    if adds(type_name, op)
]


def wrong(collective: Collective, type_name: str, op: str | None, seed: int) -> str:
    """Returns the error of two successive calls of different sizes in the situation of a seed."""
    kind = TYPES[type_name]
    at = situation(seed, kind.size)
    root = seed % at.nranks if collective.rooted else None
    made = [
        make_call(
            Case(collective, at.nranks, root or 0, count, kind, op),
            in_place=at.in_place,
            misplacement=kind.size if at.misplaced else 0,
        )
        for count in at.counts
    ]
    made_program = program(collective, at.nranks, root, at.slots, 1 + seed % 2)
    outcome, lines = run_made(at, [made_program], made, seed, None)
    return outcome.failure or "; ".join(lines)


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
def test_every_type_and_operation_that_switches_add(collective: Collective) -> None:
    for seed, case in enumerate(CASES):
        if case[0] == collective:
            assert wrong(*case, seed) == "", f"{case[1]} {case[2]}, seed {seed}"


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize(
    "first", [2000, *(pytest.param(first, marks=pytest.mark.slow) for first in range(2010, 2100, 10))]
)
def test_many_schedules(collective: Collective, first: int) -> None:
    for seed in range(first, first + 10):
        assert wrong(collective, "float", "sum" if collective.reduces else None, seed) == "", f"seed {seed}"


def outcome_of(fault: str | None, seed: int, *, report_races: bool = True) -> str:
    """Returns the error of two calls of a collective on three ranks under a fault; "" without an error.

    An all_reduce waits for free slots by waiting for its results, which follow the sums of the data in the slots.
    """
    for collective, op in (
        (Collective.ALL_REDUCE, "sum"),
        (Collective.REDUCE_SCATTER, "sum"),
        (Collective.ALL_GATHER, None),
    ):
        made = [make_call(Case(collective, 3, 0, count, TYPES["float"], op)) for count in (901, 405)]
        tables = PackedTables([program(collective, 3, None, 2, 1)], CHUNK_BYTES)
        calls = [call for call, _ in made]
        outcome = emulate(build_emulator(fault), tables, calls, seed=seed, report_races=report_races, protocol=None)
        if found := outcome.failure or "; ".join(differences(made)):
            return f"{collective.value}: {found}"
    return ""


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_fault_nothing_is_found(seed: int) -> None:
    for fault in (None, NO_FAULT):
        assert outcome_of(fault, seed) == ""
        assert outcome_of(fault, seed, report_races=False) == ""


@pytest.mark.parametrize("fault", [*FAULTS, *SWITCH_FAULTS])
def test_a_fault_is_found(fault: str) -> None:
    found = {seed: outcome_of(fault, seed) for seed in seeds_of(fault)}
    assert is_found_by(fault, found), f"missed under seeds {[s for s in found if not found[s]]}"


@pytest.mark.parametrize("fault", SWITCH_FAULTS)
def test_is_found_by_wrong_data_too(fault: str) -> None:
    """Without the emulator's check for races, the fault shows in the data, as an application would see it."""
    assert any(outcome_of(fault, seed, report_races=False) for seed in SEEDS)
