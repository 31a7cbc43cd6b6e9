"""Reads a library back without running it: manifest, plans, and the programs that its tables really hold."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from collc.build.manifest import FORMAT
from collc.codegen.context import ARRAYS, FLAG_INPUT, FLAG_OUTPUT, NEVER, PROTOCOLS, STRUCTS, When
from collc.collectives.model import Collective
from collc.errors import RunError
from collc.ir.nodes import Channel, Fifo, Program, Share, Step
from collc.packing.document import PlanFile, from_json
from collc.packing.gpu_sets import GpuSet

_COLLECTIVE_OF = {collective.traits.number: collective for collective in Collective}
_PROTOCOL_OF = {number: protocol for protocol, number in PROTOCOLS.items()}
_MOST_PLAN_BYTES = 1 << 30


@dataclass(frozen=True)
class LibraryContents:
    """What a library holds: its manifest, and for every allocation its plans, and programs in the manifest's order.

    `when` is parallel to `programs`.
    """

    manifest: dict[str, Any]
    documents: tuple[PlanFile, ...]
    programs: tuple[tuple[Program, ...], ...]
    when: tuple[tuple[When, ...], ...]
    gpu_sets: tuple[GpuSet, ...]


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest alone.

    Raises:
        RunError: if the file is no library of collc.
    """
    with _Elf(path) as elf:
        return elf.manifest()


def read_library(path: Path) -> LibraryContents:
    """Everything; the programs are decoded from the tables that the runtime runs.

    Raises:
        RunError: if the file is no library of collc, or its tables are inconsistent.
        CertificateError, IRError: if a part is malformed.
    """
    with _Elf(path) as elf:
        manifest = elf.manifest()
        size = elf.number("collc_plan_size")
        try:
            unpack = zlib.decompressobj()
            text = unpack.decompress(elf.data("collc_plan")[:size], _MOST_PLAN_BYTES)
            documents = _documents(json.loads(text), path)
        except (zlib.error, ValueError) as error:
            raise RunError(f"its plan cannot be read: {error}", where=str(path)) from None
        counts = manifest.get("counts")
        if not isinstance(counts, dict) or set(counts) != set(ARRAYS):
            raise RunError("its manifest does not tell the sizes of the tables", where=str(path))
        tables = {symbol: elf.table(symbol, counts[symbol]) for symbol in ARRAYS}
    try:
        programs = tuple(tuple(_decode(tables, allocation)) for allocation in tables["collc_allocations"])
        when = tuple(tuple(_decode_when(tables, allocation)) for allocation in tables["collc_allocations"])
        gpu_sets = tuple(_decode_set(tables, row) for row in tables["collc_gpu_sets"])
    except (IndexError, KeyError, ZeroDivisionError) as error:
        raise RunError(f"its step tables are inconsistent ({error})", where=str(path)) from None
    return LibraryContents(manifest, documents, programs, when, gpu_sets)


class _Elf:
    """The exported objects of a shared library."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = open(path, "rb")  # noqa: SIM115 - closed by __exit__
        try:
            self.elf = ELFFile(self.file)
            symbols = self.elf.get_section_by_name(".dynsym")
        except (ELFError, ValueError, KeyError, IndexError):
            self.file.close()
            raise RunError(
                "is not a shared library", where=str(path), hint="name one that `collc compile` wrote, whole"
            ) from None
        self.symbols = symbols if isinstance(symbols, SymbolTableSection) else None

    def __enter__(self) -> _Elf:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def data(self, symbol: str) -> bytes:
        """The bytes of an exported object."""
        found = self.symbols.get_symbol_by_name(symbol) if self.symbols else None
        if not found:
            raise RunError("is no library of collc", where=str(self.path), hint=f"it exports no {symbol}")
        address, size = found[0]["st_value"], found[0]["st_size"]
        for segment in self.elf.iter_segments(type="PT_LOAD"):
            start = segment["p_vaddr"]
            if start <= address and address + size <= start + segment["p_filesz"]:
                self.file.seek(segment["p_offset"] + address - start)
                return self.file.read(size)
        raise RunError(f"its symbol {symbol} points nowhere", where=str(self.path))

    def number(self, symbol: str) -> int:
        data = self.data(symbol)
        if len(data) != 8:
            raise RunError(f"its symbol {symbol} has {len(data)} bytes, not 8", where=str(self.path))
        return int.from_bytes(data, "little")

    def manifest(self) -> dict[str, Any]:
        try:
            manifest = json.loads(self.data("collc_manifest")[: self.number("collc_manifest_size")])
        except ValueError as error:
            raise RunError(f"its manifest cannot be read: {error}", where=str(self.path)) from None
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise RunError(f"its manifest is not of the format {FORMAT}", where=str(self.path))
        return manifest

    def table(self, symbol: str, count: object) -> list[dict[str, int]]:
        fields = STRUCTS[ARRAYS[symbol][0]]
        layout = struct.Struct("<" + "".join(code for _, code in fields))
        data = self.data(symbol)
        if not isinstance(count, int) or not 0 <= count <= len(data) // layout.size:
            raise RunError(f"its table {symbol} does not hold {count} rows", where=str(self.path))
        names = [name for name, _ in fields]
        return [dict(zip(names, row, strict=True)) for row in layout.iter_unpack(data[: count * layout.size])]


Tables = dict[str, list[dict[str, int]]]


def _documents(value: object, path: Path) -> tuple[PlanFile, ...]:
    if not isinstance(value, list) or not value:
        raise RunError("it holds no list of plans", where=str(path))
    return tuple(from_json(one, f"{path}: plan {number}") for number, one in enumerate(value))


def _decode_set(tables: Tables, row: dict[str, int]) -> GpuSet:
    gpus, ranks = (
        tuple(cell["value"] for cell in _slice(tables[name], row["first"], row["nranks"]))
        for name in ("collc_set_gpus", "collc_set_ranks")
    )
    return GpuSet(gpus, row["allocation"], ranks)


def _program_rows(tables: Tables, allocation: dict[str, int]) -> list[dict[str, int]]:
    return _slice(tables["collc_programs"], allocation["first_program"], allocation["nprograms"])


def _decode(tables: Tables, allocation: dict[str, int]) -> Iterator[Program]:
    """Rows that share their steps yield programs that share their objects."""
    seen: dict[tuple[int, ...], Program] = {}
    for row in _program_rows(tables, allocation):
        own = ("min_bytes", "chunk_bytes", "protocol")
        key = tuple(value for name, value in row.items() if name not in own)
        if key not in seen:
            seen[key] = _decode_program(tables, allocation, row)
        yield seen[key].replace(chunk_bytes=row["chunk_bytes"])


def _decode_when(tables: Tables, allocation: dict[str, int]) -> Iterator[When]:
    for row in _program_rows(tables, allocation):
        yield When(None if row["min_bytes"] == NEVER else row["min_bytes"], _PROTOCOL_OF[row["protocol"]])


def _decode_program(tables: Tables, allocation: dict[str, int], row: dict[str, int]) -> Program:
    nranks, nchannels = allocation["nranks"], row["nchannels"]
    shares = tuple(
        Share(share["block"], Fraction(share["lo_num"], share["den"]), Fraction(share["hi_num"], share["den"]))
        for share in _slice(tables["collc_shares"], row["first_share"], row["nshares"])
    )
    local: dict[int, int] = {}
    fifos: list[Fifo] = []

    def fifo(ref: dict[str, int], share: int) -> int:
        number = ref["fifo"]
        if number not in local:
            local[number] = len(fifos)
            fifos.append(_decode_fifo(tables, allocation, number, share))
        return local[number]

    channels = []
    for channel in range(nchannels):
        ranks = []
        for rank in range(nranks):
            place = tables["collc_rank_channels"][row["first_rank_channel"] + rank * nchannels + channel]
            steps = []
            for step in _slice(tables["collc_steps"], place["first_step"], place["nsteps"]):
                refs = _slice(tables["collc_refs"], step["first_ref"], step["nrecv"] + step["nsend"])
                ids = tuple(fifo(ref, step["share"]) for ref in refs)
                recv, send = ids[: step["nrecv"]], ids[step["nrecv"] :]
                flags = step["flags"]
                reads, stores = bool(flags & FLAG_INPUT), bool(flags & FLAG_OUTPUT)
                steps.append(Step(step["share"], step["lag"], reads, recv, stores, send, step["input_at"]))
            ranks.append(tuple(steps))
        channels.append(Channel(tuple(ranks)))
    return Program(
        collective=_COLLECTIVE_OF[row["collective"]],
        root=None if row["root"] < 0 else row["root"],
        nranks=nranks,
        slots=allocation["slots"],
        chunk_bytes=row["chunk_bytes"],
        shares=shares,
        fifos=tuple(fifos),
        channels=tuple(channels),
    )


def _decode_fifo(tables: Tables, allocation: dict[str, int], number: int, share: int) -> Fifo:
    if number >= allocation["nfifos"]:
        raise IndexError(f"FIFO {number} of {allocation['nfifos']}")
    row = tables["collc_fifos"][allocation["first_fifo"] + number]
    readers = _slice(tables["collc_fifo_readers"], row["first_reader"], row["nreaders"])
    # The index only has to tell FIFOs apart, and the number does.
    return Fifo(row["src"], tuple(reader["rank"] for reader in readers), share, number)


def _slice(rows: list[dict[str, int]], first: int, count: int) -> list[dict[str, int]]:
    if first + count > len(rows):
        raise IndexError(f"rows {first}..{first + count} of {len(rows)}")
    return rows[first : first + count]
