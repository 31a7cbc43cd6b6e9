"""Whatever bytes a library has, it is read or refused in one line, with little memory."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from support.changed import Changed, crafted, tables_library
from support.cli import collc, refused

from collc.checker.library import check_library, read_manifest
from collc.checker.manifest import read_claims
from collc.errors import CollcError

MEMORY = 256 << 20  # what Python's objects take, above the interpreter's own
OTHERS: tuple[object, ...] = (None, True, -1, 1.5, "x", [], {}, [[]], 1 << 80)


def whole() -> tuple[bytes, bytes, bytes]:
    """Tables, manifest and plans of a small library."""
    found = Changed(tables_library("odd")).objects
    return found["collc_tables"][1], found["collc_manifest"][1].rstrip(b"\0"), found["collc_plan"][1]


def answer(read: Callable[..., object], *arguments: object) -> None:
    """Reads, or refuses in one line; anything else that is raised is a failure."""
    said = ""
    try:
        read(*arguments)
    except CollcError as error:
        said = str(error)
    assert "\n" not in said


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    found = [path] if path else []
    for key in keys:
        found += places(value[key], (*path, key))  # type: ignore[index]
    return found


def test_every_key_of_a_manifest_missing_or_of_another_type() -> None:
    text = whole()[1]
    tried = 0
    for path in places(json.loads(text)):
        for other in (*OTHERS, "missing"):
            manifest = json.loads(text)
            holder = manifest
            for key in path[:-1]:
                holder = holder[key]
            if other == "missing":
                del holder[path[-1]]
            else:
                holder[path[-1]] = other
            tried += 1
            answer(read_claims, json.dumps(manifest).encode(), Path("lib"))
    assert tried > 500


@pytest.mark.parametrize(
    "manifest",
    [b"", b"\xff\xfe", b"{", b"[" * 100_000, b'{"format": "collc-library/1"}', b"NaN", b"{}", b'{"a": 1, "a": 2}'],
)
def test_manifests_that_are_none(manifest: bytes) -> None:
    tables, _, plan = whole()
    path = crafted("manifest", tables=tables, manifest=manifest, plan=plan)
    for command in (["verify", path], ["inspect", path], ["bench", path], ["run", "--lib", path, "--", "true"]):
        refused(collc(*command))


@pytest.mark.parametrize(
    "text",
    [
        b"[" * (1 << 27),
        b"[" + b"{}," * (1 << 24) + b"{}]",
        b'{"plans": [' + b"[]," * (1 << 22) + b"1]}",
        b"\0" * (1 << 27),
    ],
    ids=["nested", "objects", "lists", "zeros"],
)
def test_packed_plans_that_are_large(text: bytes) -> None:
    tables, manifest, _ = whole()
    path = crafted("bomb", tables=tables, manifest=manifest, plan=zlib.compress(text, 9))
    del text
    tracemalloc.start()
    with pytest.raises(CollcError):
        check_library(path)
    assert tracemalloc.get_traced_memory()[1] < MEMORY
    tracemalloc.stop()


def test_headers_that_lie(tmp_path: Path) -> None:
    """Segments behind the end, of 4 GB, overlapping: every word of the headers changed, and files that end early."""
    found = Changed(tables_library("odd"))
    data = found.data
    count = struct.unpack_from("<H", data, 56)[0]
    generator = random.Random(3)
    path = tmp_path / "changed.so"
    for at in range(16, 64 + 56 * count, 4):
        for value in (0, 0xFFFFFFFF, 1 << 31, generator.randrange(1 << 32)):
            changed = bytearray(data)
            struct.pack_into("<I", changed, at, value)
            path.write_bytes(changed)
            for read in (read_manifest, check_library):
                answer(read, path)
    for end in range(0, max(last for _, last in found.loaded), 97):
        path.write_bytes(data[:end])
        with pytest.raises(CollcError):
            check_library(path)
