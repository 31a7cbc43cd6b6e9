"""Libraries with programs inside a switch: all their claims hold, and no signed change of their tables is accepted."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from support.changed import Changed, is_refused, linked

from collc.build.compile import Contents, generate
from collc.build.objects import compile_source
from collc.build.toolchain import find_cxx
from collc.checker.layout import FLAG_SWITCH_COPY, FLAG_SWITCH_SUM, When
from collc.checker.library import check_library, read_library, read_manifest
from collc.choose import in_switch
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.codegen.entry import Entry
from collc.collectives.model import Collective
from collc.errors import BuildError, CollcError
from collc.options import CUDA, HOST, Target
from collc.pipeline import Recorder, lower_in_switch
from collc.tune.candidates import read_offers

WANTED = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


@cache
def contents() -> Contents:
    """Three GPUs of an HGX H100, whose calls of all sizes are worth a switch here."""
    with mock.patch.object(in_switch, "GAIN", -1e9):
        request = LibraryRequest("hgx-h100", gpus="0-2", collectives=WANTED, in_switch=True)
        return library_contents(request, dataclasses.replace(CUDA, slots=2))


def with_tables(made: Contents, target: Target = CUDA) -> Path:
    source, _ = generate(made, target, find_cxx())
    return linked(compile_source(source, "tables", find_cxx(), ("-std=c++17", "-O0", "-fPIC", "-fvisibility=hidden")))


@cache
def library() -> Path:
    return with_tables(contents())


def test_it_holds_what_was_lowered() -> None:
    check_library(library())
    held = read_library(library()).tables.allocations[0]
    wanted = [entry.program for entry in contents().entries[0]]
    assert [one.in_switch for one in held.programs] == [one.in_switch for one in wanted]
    assert sum(one.in_switch for one in held.programs) == len(WANTED)
    for found, program in zip(held.programs, wanted, strict=True):
        assert [
            found.fifos[f].through for c in found.channels for s in c.steps for t in s for f in (*t.recv, *t.send)
        ] == [
            program.fifos[f].through for c in program.channels for s in c.steps for t in s for f in (*t.recv, *t.send)
        ]
    # Sums of all_reduce and of reduce_scatter, copies of all_reduce and of all_gather have the same slots.
    assert len(held.fifos) == len({fifo.place for program in wanted for fifo in program.fifos})


def test_tuning_is_of_the_other_programs() -> None:
    """A tuning file has one table for every machine that a library serves."""
    (offer,) = read_offers(read_manifest(library()))
    (entries,) = contents().entries
    assert [c.number for c in offer.candidates] == [n for n, e in enumerate(entries) if not e.program.in_switch]
    assert len(offer.candidates) < len(entries)


def test_no_signed_change_of_what_a_switch_does_is_accepted(tmp_path: Path) -> None:
    whole = Changed(library())
    fields = [field for field in whole.fields(100_000) if field.array == "steps" and field.name == "flags"]
    switched = [field for field in fields if whole.value(field) & (FLAG_SWITCH_SUM | FLAG_SWITCH_COPY)]
    assert len(switched) > len(WANTED)
    for field in (*switched[:6], *switched[-6:], *fields[:6]):
        for bit in (FLAG_SWITCH_SUM, FLAG_SWITCH_COPY):
            changed = Changed(library())
            changed.put(field, whole.value(field) ^ bit)
            assert is_refused(changed.write(tmp_path / "changed.so")), field.label()


@pytest.mark.parametrize(
    "array", ["refs", "fifos", "fifo_readers", "route_links", "shares", "programs", "rank_channels"]
)
def test_no_signed_change_of_rows_is_accepted(array: str, tmp_path: Path) -> None:
    whole = Changed(library())
    # Those of programs inside the switch are the last ones.
    last = [field for field in whole.fields(100_000) if field.array == array][-5:]
    for field in last:
        for value in whole.others(field)[:2]:
            changed = Changed(library())
            changed.put(field, value)
            assert is_refused(changed.write(tmp_path / "changed.so")), f"{field.label()} = {value}"


def changed_entries(change: object) -> Contents:
    (entries,) = contents().entries
    made = tuple(change(entry) if entry.program.in_switch else entry for entry in entries)  # type: ignore[operator]
    return dataclasses.replace(contents(), entries=(made,))


def test_heads_serve_what_the_plan_says() -> None:
    """A program of other heads than the plan's is right, and is not the plan's."""
    (document,) = contents().documents

    def other(entry: Entry) -> Entry:
        plan = document.plans[entry.plan]
        assert plan.in_switch is not None
        if plan.collective is not Collective.ALL_REDUCE:
            return entry
        heads = ((0, Fraction(1)), (1, Fraction(2)), (2, Fraction(1)))
        lie = dataclasses.replace(plan, in_switch=dataclasses.replace(plan.in_switch, heads=heads))
        program = lower_in_switch(lie, document.graph, CUDA, 1, Recorder()).replace(slots=2, chunk_bytes=16384)
        return dataclasses.replace(entry, program=program)

    with pytest.raises(CollcError, match="serves another part of block 0 than its weight in the plan says"):
        check_library(with_tables(changed_entries(other)))


def test_a_program_inside_a_switch_is_never_the_only_one() -> None:
    (entries,) = contents().entries
    only = tuple(
        dataclasses.replace(entry, when=When(0, entry.when.protocol)) for entry in entries if entry.program.in_switch
    )
    with pytest.raises(CollcError, match="needs a switch"):
        check_library(with_tables(dataclasses.replace(contents(), entries=(only,))))


def test_the_host_target_has_none() -> None:
    with pytest.raises(BuildError, match="no switch adds or copies for the host target"):
        generate(contents(), HOST, find_cxx())
