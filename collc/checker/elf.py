"""Reads the parts of a shared library that a loader reads: segments and dynamic symbols. Computes digests of them.

Sections are ignored, because loaders do not need them, `strip` moves them, and a file may write anything into them.
"""

from __future__ import annotations

import hashlib
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from collc.errors import RunError

MOST_BYTES = 1 << 28  # the largest library
_MOST_SEGMENTS, _MOST_SYMBOLS, _MOST_ENTRIES = 64, 1 << 16, 1 << 10
_MOST_STRINGS, _MOST_OBJECT = 1 << 20, 1 << 24
_PAGE, _BLOCK = 4096, 1 << 20
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LOAD, _DYNAMIC = 1, 2
_EXECUTABLE, _WRITABLE = 1, 2
_STRINGS, _SYMBOLS, _TEXT_RELOCATIONS, _FLAGS = 5, 6, 22, 30
_MOVES_TEXT = 4
# The bytes of the file's header that locate sections.
_SECTIONS = ((40, 48), (58, 64))
PARTS = ("constants", "code", "data")


class Segment(NamedTuple):
    """A program header: `offset` and `stored` bytes in the file, `address` and `size` in memory."""

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    stored: int
    size: int
    alignment: int

    @property
    def part(self) -> str:
        return "code" if self.flags & _EXECUTABLE else "data" if self.flags & _WRITABLE else "constants"


class Elf:
    """A 64-bit little-endian shared library, open for reading.

    Raises:
        RunError: the file is no such library, or its parts contradict each other.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise self.error("is not a regular file")
        self.size = found.st_size
        self.file = path.open("rb")
        try:
            if self.size > MOST_BYTES:
                raise self.error(f"is larger than {MOST_BYTES >> 20} MiB, which no library of collc is")
            self.segments = self._segments()
            self.loaded = [segment for segment in self.segments if segment.kind == _LOAD]
            self._check_loaded()
            self._dynamic = self._read_dynamic()
        except BaseException:
            self.file.close()
            raise

    def __enter__(self) -> Elf:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def error(self, what: str, hint: str = "give a whole file that `collc compile` wrote") -> RunError:
        return RunError(what, where=str(self.path), hint=hint)

    def _read(self, offset: int, size: int) -> bytes:
        self.file.seek(offset)
        data = self.file.read(size)
        if len(data) != size:
            raise self.error("is not a whole shared library: it ends too early")
        return data

    def _segments(self) -> list[Segment]:
        head = self._read(0, min(self.size, _HEADER.size))
        if len(head) < _HEADER.size or head[:7] != b"\x7fELF\x02\x01\x01":
            raise self.error("is not a shared library")
        _, kind, _, _, _, at, _, _, own, each, count, *_ = _HEADER.unpack(head)
        if kind != 3 or own != _HEADER.size or each != _SEGMENT.size or count > _MOST_SEGMENTS:
            raise self.error("is not a shared library")
        if at + count * each > self.size:
            raise self.error("is not a whole shared library: its segments lie behind its end")
        return [Segment(*row) for row in _SEGMENT.iter_unpack(self._read(at, count * each))]

    def _check_loaded(self) -> None:
        """Checks that segments are in the file, ascending, without common pages, and that none is writable code."""
        end = 0
        for segment in self.loaded:
            if segment.stored > segment.size or segment.offset + segment.stored > self.size:
                raise self.error("is not a whole shared library: a segment lies behind its end")
            if segment.address // _PAGE * _PAGE < end or segment.address % _PAGE != segment.offset % _PAGE:
                raise self.error("is not a library of a linker: its segments overlap or are out of order")
            if segment.flags & _EXECUTABLE and segment.flags & _WRITABLE:
                raise self.error("has a segment that is both writable and executable")
            end = segment.address + segment.size
            end = -(-end // _PAGE) * _PAGE
        if end >= 1 << 47:
            raise self.error("is not a library of a linker: it is larger than any memory")
        if sum(segment.stored for segment in self.loaded) > self.size + len(self.loaded) * _PAGE:
            raise self.error("is not a library of a linker: its segments share bytes of the file")

    def _segment_of(self, address: int, size: int) -> Segment:
        for segment in self.loaded:
            if segment.address <= address and address + size <= segment.address + segment.stored:
                return segment
        raise self.error("has an address outside its segments")

    def _at(self, address: int, size: int) -> bytes:
        segment = self._segment_of(address, size)
        return self._read(segment.offset + address - segment.address, size)

    def _read_dynamic(self) -> dict[int, int]:
        """Returns the entries of the dynamic section. Relevant entries may occur only once."""
        found: dict[int, int] = {}
        for segment in self.segments:
            if segment.kind != _DYNAMIC:
                continue
            if found or segment.size > _MOST_ENTRIES * 16 or segment.size % 16:
                raise self.error("is not a shared library: its dynamic section is malformed")
            for tag, value in struct.iter_unpack("<QQ", self._at(segment.address, segment.size)):
                if tag == 0:
                    break
                if tag in found and tag in (_STRINGS, _SYMBOLS, _TEXT_RELOCATIONS, _FLAGS):
                    raise self.error("is not a shared library: its dynamic section is malformed")
                found[tag] = value
        if _STRINGS not in found or _SYMBOLS not in found:
            raise self.error("is not a library of collc", "it exports nothing")
        if _TEXT_RELOCATIONS in found or found.get(_FLAGS, 0) & _MOVES_TEXT:
            raise self.error("lets the loader change its constants, such as the tables")
        return found

    def objects(self, names: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        """Returns the constant objects that it exports under these names, as (offset in the file, bytes)."""
        table = self._segment_of(self._dynamic[_SYMBOLS], _SYMBOL.size)
        start = self._dynamic[_SYMBOLS] - table.address
        count = min((table.stored - start) // _SYMBOL.size, _MOST_SYMBOLS)
        strings = self._segment_of(self._dynamic[_STRINGS], 1)
        behind = strings.stored - (self._dynamic[_STRINGS] - strings.address)
        text = self._at(self._dynamic[_STRINGS], min(behind, _MOST_STRINGS))
        wanted = {name.encode() + b"\0": name for name in names}
        longest = max(map(len, wanted))
        found: dict[str, tuple[int, bytes]] = {}
        for at, _, _, _, address, size in _SYMBOL.iter_unpack(self._at(self._dynamic[_SYMBOLS], count * _SYMBOL.size)):
            name = wanted.get(text[at : text.find(b"\0", at, at + longest) + 1])
            if name is None or name in found:
                continue
            segment = self._segment_of(address, size)
            if segment.part == "data":
                raise self.error(f"its {name} can be changed while it runs")
            if size > _MOST_OBJECT:
                raise self.error(f"its {name} has more than {_MOST_OBJECT >> 20} MiB, more than any library of collc")
            found[name] = (segment.offset + address - segment.address, self._at(address, size))
            if len(found) == len(wanted):
                return found
        missing = next(name for name in names if name not in found)
        raise self.error("is not a library of collc", f"it exports no {missing}")

    def digests(self, blank: tuple[int, int]) -> dict[str, str]:
        """Returns the SHA-256 of each part that is loaded: constants, code, data.

        Args:
            blank: a range of the file whose bytes count as zeros, as do the bytes that locate sections.
        """
        made = {part: hashlib.sha256() for part in PARTS}
        for segment in self.loaded:
            into = made[segment.part]
            into.update(struct.pack("<QQQI", segment.address, segment.stored, segment.size, segment.flags))
            for at in range(segment.offset, segment.offset + segment.stored, _BLOCK):
                block = bytearray(self._read(at, min(_BLOCK, segment.offset + segment.stored - at)))
                for first, last in (blank, *_SECTIONS):
                    low, high = max(first - at, 0), min(last - at, len(block))
                    if low < high:
                        block[low:high] = bytes(high - low)
                into.update(block)
        return {part: digest.hexdigest() for part, digest in made.items()}
