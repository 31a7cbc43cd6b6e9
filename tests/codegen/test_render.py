"""The template of the generated source uses only fields of its context, and no text of a topology."""

from __future__ import annotations

import dataclasses
import json
import struct
import subprocess
import sys
from pathlib import Path

import jinja2
import jinja2.meta
import pytest
from support.programs import CUDA, HOST, TREE_COLLECTIVES, final, random_schedule

from collc.build.toolchain import find_cxx
from collc.checker import layout
from collc.checker.layout import ARRAYS, STRUCTS
from collc.checker.tables import decode
from collc.codegen.context import SourceContext, TableBuilder, layouts, link_classes
from collc.codegen.render import TEMPLATE, environment, render
from collc.ir.nodes import Program
from collc.ir.verify import verify
from collc.options import Target
from collc.resources import resource_dir


def context(programs: list[Program]) -> SourceContext:
    tables = TableBuilder()
    tables.add_allocation(programs, slot_bytes=programs[0].chunk_bytes)
    image = tables.image()
    digest = layout.digest(image)
    return SourceContext("0", "g", layouts(), link_classes(), tables.tables(), len(image), digest, ("0",), 0, ("0",), 1)


def programs(seed: int = 5, target: Target = HOST) -> list[Program]:
    return [final(random_schedule(collective, 4, seed), target) for collective in TREE_COLLECTIVES]


def test_the_template_uses_exactly_the_context() -> None:
    source = (resource_dir("templates") / TEMPLATE).read_text()
    asked = jinja2.meta.find_undeclared_variables(environment().parse(source))
    assert asked == {field.name for field in dataclasses.fields(SourceContext)}


def test_an_undefined_value_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ missing }}").render()


@pytest.mark.parametrize("target", [HOST, CUDA], ids=["host", "cuda"])
def test_tables_decode_to_the_programs_they_came_from(target: Target) -> None:
    """A built library contains the verified programs, except for the numbers of FIFOs."""
    made = programs(target=target)
    built = TableBuilder()
    built.add_allocation(made, slot_bytes=made[0].chunk_bytes)
    decoded = decode(built.image()).allocations[0].programs
    assert len(decoded) == len(made)
    for before, after in zip(made, decoded, strict=True):
        verify(after)
        assert (after.collective, after.root, after.slots, after.shares) == (
            before.collective,
            before.root,
            before.slots,
            before.shares,
        )
        assert shape(after) == shape(before)


def test_a_fifo_has_the_slots_of_its_neediest_program() -> None:
    few, many = (final(random_schedule(c, 4, 5), dataclasses.replace(CUDA, slots=slots)) for c, slots in
                 zip(TREE_COLLECTIVES[:2], (2, 4), strict=True))  # fmt: skip
    built = TableBuilder()
    built.add_allocation([few, many], slot_bytes=few.chunk_bytes)
    held = decode(built.image()).allocations[0]
    needed = {fifo.memory: 2 for fifo in few.fifos} | {fifo.memory: 4 for fifo in many.fifos}
    rows = next(table.rows for table in built.tables() if table.name == "fifos")
    slots = [name for name, _ in STRUCTS["Fifo"]].index("slots")
    assert [int(row.cells.split(",")[slots]) for row in rows] == list(needed.values())
    assert {2, 4} == set(needed.values())
    assert (held.slots, [program.slots for program in held.programs]) == (4, [2, 4])


def shape(program: Program) -> list[object]:
    """Every step with its FIFOs spelled out."""
    return [
        (step.name, step.share, step.lag, [ends(program, f) for f in step.recv], [ends(program, f) for f in step.send])
        for channel in program.channels
        for steps in channel.steps
        for step in steps
    ]


def ends(program: Program, f: int) -> tuple[int, tuple[int, ...]]:
    return program.fifos[f].src, program.fifos[f].dsts


def test_struct_codes_have_no_hidden_padding() -> None:
    for one in layouts()[1:]:
        name = next(s for s, element in ARRAYS.values() if element == one.element)
        codes = "".join(code for _, code in STRUCTS[name])
        assert struct.calcsize("<" + codes) == struct.calcsize("@" + codes) == one.size


def test_the_source_compiles_without_warnings(tmp_path: Path) -> None:
    unit = tmp_path / "tables.cpp"
    unit.write_text(render(context(programs())))
    include = resource_dir("templates") / "include"
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{include}"]
    done = subprocess.run([find_cxx().path, *flags, str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_one_rank_has_tables_without_rows(tmp_path: Path) -> None:
    alone = [final(random_schedule(collective, 1, 0)) for collective in TREE_COLLECTIVES]
    made = TableBuilder()
    made.add_allocation(alone, slot_bytes=alone[0].chunk_bytes)
    assert made.counts()["fifos"] == 0
    assert "{ 0, 0, 0, collc::LinkClass(0), 0, 0, 0 },  // unused" in render(context(alone))


def test_same_input_same_bytes_under_two_hash_seeds() -> None:
    """Sets and dictionaries must not leak their order into what is shipped."""
    script = (
        "from support.programs import *; from collc.codegen.render import render; import test_render as t;"
        "import hashlib; print(hashlib.sha256(t.render(t.context(t.programs())).encode()).hexdigest())"
    )
    digests = set()
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(p for p in sys.path if p), "PATH": "/usr/bin:/bin"}
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1


def test_comments_hold_no_text_of_a_user() -> None:
    """Comments are made of numbers and our own words; names of vertices never get there."""
    text = json.dumps([row.comment for table in context(programs()).tables for row in table.rows])
    assert "gpu" not in text
