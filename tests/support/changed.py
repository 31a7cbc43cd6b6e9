"""Libraries without a runtime, quick to build, and changes of their bytes: what the checker has to refuse."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from support.libraries import library, topology_file

from collc.build.cache import cached, content_key
from collc.build.compile import EXPORTS, generate
from collc.build.manifest import sign
from collc.build.objects import compile_source
from collc.build.toolchain import find_cxx
from collc.checker import layout
from collc.checker.elf import Elf
from collc.checker.layout import ARRAYS, STRUCTS
from collc.checker.library import OBJECTS, check_library
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.collectives.model import COMPILED, Collective
from collc.errors import CollcError
from collc.options import TARGETS, TargetKind


@cache
def tables_library(
    machine: str,
    kind: TargetKind = TargetKind.HOST,
    collectives: tuple[Collective, ...] = COMPILED,
    gpus: str | None = None,
    allocations: str | None = None,
    tuning: bool = False,
    survive: int = 0,
) -> Path:
    """Compiles a machine to a library with tables, manifest and plans, but without code."""
    rooted = any(collective.rooted for collective in collectives)
    request = LibraryRequest(
        str(topology_file(machine)),
        gpus=gpus,
        allocations=allocations,
        collectives=collectives,
        roots=(0,) if rooted else None,
        tune_candidates=tuning,
        survive=survive,
    )
    contents = library_contents(request, TARGETS[kind])
    source, _ = generate(contents, TARGETS[kind], find_cxx())
    return linked(compile_source(source, "tables", find_cxx(), ("-std=c++17", "-O0", "-fPIC", "-fvisibility=hidden")))


REDUCED, SENT = (Collective.ALL_REDUCE,), (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE_SCATTER)
# The arguments of `built`: machine, target, collectives, GPUs, allocations.
LIBRARIES = {
    "three unequal GPUs": ("odd", TargetKind.HOST, tuple(Collective(c) for c in ("broadcast", "reduce")), None, None),
    "everywhere": ("cores", TargetKind.HOST, REDUCED, None, None),
    "dgx1v": ("dgx1v", TargetKind.HOST, SENT, None, None),
    "dgx1v for cuda": ("dgx1v", TargetKind.CUDA, SENT, "0,1,2,3", None),
    "switch machine": ("hgx-h100", TargetKind.CUDA, SENT, None, "0-1/0-3"),
    "two servers": ("two-servers", TargetKind.CUDA, REDUCED, None, None),
    "cards": ("cards", TargetKind.HOST, REDUCED, None, None),
    "bus ids": ("probed", TargetKind.CUDA, REDUCED, None, None),
    "survives": ("odd", TargetKind.HOST, REDUCED, None, None),
    "allocations": ("dgx1p", TargetKind.HOST, SENT, None, "0,1,2,3/0,1,4/0,1,4,6"),
}
SURVIVING = {"survives"}  # compiled with --survive 1


@cache
def built(name: str) -> Path:
    """The library of `LIBRARIES` that has this name."""
    machine, kind, collectives, gpus, allocations = LIBRARIES[name]
    survive = int(name in SURVIVING)
    return tables_library(machine, kind, collectives, gpus, allocations, survive=survive)


def is_refused(path: Path) -> bool:
    """Returns whether the checker refuses a library with a CollcError. Any other exception is a fault."""
    try:
        check_library(path)
    except CollcError:
        return True
    return False


def linked(unit: Path) -> Path:
    """A signed library of one object file."""
    compiler = find_cxx()

    def make(made: Path) -> None:
        exports = made.with_suffix(".map")
        exports.write_text(EXPORTS)
        script = f"-Wl,--version-script={exports}"
        subprocess.run([compiler.path, "-shared", script, str(unit), "-o", str(made)], check=True)
        sign(made)

    return cached(content_key(["tables library", compiler.version, str(unit)]), "library.so", make)


@dataclass(frozen=True)
class Field:
    """One field of one row of the tables of a library."""

    array: str
    row: int
    name: str
    at: int  # first byte in the object
    code: str

    def label(self) -> str:
        return f"{self.array}[{self.row}].{self.name}"


class Changed:
    """The bytes of a library, to be changed and written to a file."""

    def __init__(self, library: Path) -> None:
        self.data = bytearray(library.read_bytes())
        with Elf(library) as elf:
            self.objects = elf.objects(OBJECTS)
            self.loaded = [(s.offset, s.offset + s.stored) for s in elf.loaded]
        self.tables_at, image = self.objects["collc_tables"]
        self.size = len(image)
        self.extents = layout.extents(image)

    def image(self) -> bytes:
        return bytes(self.data[self.tables_at : self.tables_at + self.size])

    def fields(self, rows: int) -> Iterator[Field]:
        """Yields each field of each struct, in at most `rows` rows of each array, the first and last included."""
        for array, (first, count) in self.extents.items():
            each = layout.row_layout(array).size
            chosen = {count * i // max(rows - 1, 1) for i in range(rows)} if rows > 1 else {count // 2}
            for row in sorted({min(r, count - 1) for r in chosen if count}):
                at = first + row * each
                for name, code in STRUCTS[ARRAYS[array][0]]:
                    yield Field(array, row, name, at, code)
                    at += struct.calcsize(code)
        for i, array in enumerate(ARRAYS):
            yield Field("header", 0, f"{array}.at", 16 + 8 * i, "I")
            yield Field("header", 0, f"{array}.count", 20 + 8 * i, "I")
        yield Field("header", 0, "bytes", 8, "Q")

    def value(self, field: Field) -> int:
        found: int = struct.unpack_from("<" + field.code, self.data, self.tables_at + field.at)[0]
        return found

    def others(self, field: Field) -> list[int]:
        """Returns other values of a field: 0, 1, minimum, maximum, neighbors, one bit changed, the double."""
        value, bits = self.value(field), 8 * struct.calcsize(field.code)
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if field.code == "i" else (0, (1 << bits) - 1)
        found = [value + 1, value - 1, 0, 1, high, low, value ^ 4, value * 2]
        return [v for v in dict.fromkeys(found) if low <= v <= high and v != value]

    def put(self, field: Field, value: int) -> None:
        struct.pack_into("<" + field.code, self.data, self.tables_at + field.at, value)

    def write(self, path: Path, *, signed: bool = True) -> Path:
        """Writes it; `signed`: with digests that fit, as a forger would."""
        if signed:
            struct.pack_into("<Q", self.data, self.tables_at, layout.digest(self.image()))
        path.write_bytes(self.data)
        if signed:
            sign(path)
        return path


# Where the file's header says that the sections lie: no loader reads it, and `strip` moves them.
_SECTIONS = {*range(40, 48), *range(58, 64)}


def byte_case(seed: int, folder: Path) -> dict[str, object]:
    """Changes one byte of a whole library: refused, outside of the loaded bytes, or accepted, which is a fault."""
    generator = random.Random(seed)
    whole = Changed(library("pair"))
    at = generator.randrange(len(whole.data))
    case: dict[str, object] = {"kind": "byte", "seed": seed, "at": at}
    if at in _SECTIONS or not any(first <= at < last for first, last in whole.loaded):
        return case | {"verdict": "outside"}
    whole.data[at] ^= generator.randrange(1, 256)
    path = folder / "changed.so"
    path.write_bytes(whole.data)
    return case | {"verdict": "refused" if is_refused(path) else "accepted"}


def field_case(seed: int, folder: Path, names: Sequence[str] = tuple(LIBRARIES)) -> dict[str, object]:
    """Tables with one field of one row changed, signed by a forger and not: refused both times, or it is a fault."""
    generator = random.Random(seed)
    name = generator.choice(names)
    whole = Changed(built(name))
    array = generator.choice([array for array, (_, count) in whole.extents.items() if count])
    field = generator.choice([field for field in whole.fields(50) if field.array == array])
    bits = 8 * struct.calcsize(field.code) - (field.code == "i")
    value = generator.choice([generator.randrange(1 << bits), *whole.others(field)])
    if value == whole.value(field):
        value = whole.others(field)[0]
    verdict = "refused"
    for signed in (True, False):
        changed = Changed(built(name))
        changed.put(field, value)
        if not is_refused(changed.write(folder / "changed.so", signed=signed)):
            verdict = "accepted"
    case = {"kind": "field", "seed": seed, "library": name, "field": field.label(), "was": whole.value(field)}
    return case | {"value": value, "verdict": verdict}


def crafted(
    name: str, *, tables: bytes = b"", manifest: bytes = b"", plan: bytes = b"", sizes: Sequence[int] | None = None
) -> Path:
    """A library that exports these objects, whatever they are; `sizes` are said of the manifest and the plan."""
    compiler = find_cxx()
    said = sizes if sizes is not None else (len(manifest), len(plan))
    lines = [".section .rodata"]
    files = {"collc_tables": tables, "collc_manifest": manifest, "collc_plan": plan}
    files |= {f"collc_{n}_size": struct.pack("<Q", size) for n, size in zip(("manifest", "plan"), said, strict=True)}
    for symbol in files:
        lines += [".balign 16", f".globl {symbol}", f".type {symbol}, @object", f"{symbol}:", f'.incbin "{symbol}"']
        lines += [f".size {symbol}, . - {symbol}"]
    text = "\n".join([*lines, '.section .note.GNU-stack,"",%progbits', ""])

    def make(made: Path) -> None:
        for symbol, data in files.items():
            made.with_name(symbol).write_bytes(data)
        made.with_name("crafted.s").write_text(text)
        command = [compiler.path, "-shared", "-nostdlib", "crafted.s", "-o", str(made)]
        subprocess.run(command, check=True, cwd=made.parent)

    return cached(content_key([name, compiler.version, text, *files.values()]), "library.so", make)
