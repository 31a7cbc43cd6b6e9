"""The arithmetic of nccl-tests: series of sizes, counts of elements, bytes of buffers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from collc.collectives.model import Collective
from collc.errors import UsageError

MOST_BYTES = 1 << 43
MOST_SIZES = 10_000
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_series(least: int, most: int, factor: int, step: int = 0) -> list[int]:
    """Returns sizes in bytes from `least` to at most `most`.

    Args:
        least, most: bytes; `most` is at most 8 TiB.
        factor: each size is the previous one times this factor.
        step: if the factor is 1, each size is the previous one plus this step, in bytes.

    Raises:
        UsageError: the series would be empty, infinite, or longer than `MOST_SIZES`.
    """
    if least < 0 or most < least:
        raise UsageError(f"-e {most} is below -b {least}", hint="-b is the smallest size and -e the largest")
    if most > MOST_BYTES:
        raise UsageError(f"-e {most} is beyond 8 TiB", hint="choose a smaller -e")
    if factor < 1:
        raise UsageError(f"-f {factor} makes no larger sizes", hint="use -f 2 or more, or -f 1 with -i BYTES")
    if factor > 1 and least == 0:
        raise UsageError("-b 0 cannot grow by a factor", hint="use -b 8, or -f 1 -i BYTES where the command has it")
    if factor == 1 and step < 1:
        raise UsageError("sizes that grow by -f 1 and no step never end", hint="use -f 2 or more, or -i BYTES")
    if factor == 1 and (most - least) // step >= MOST_SIZES:
        raise UsageError(f"{(most - least) // step + 1} sizes are too many", hint="use a larger -i or a factor -f")
    sizes = []
    size = least
    while size <= most:
        sizes.append(size)
        size = size * factor if factor > 1 else size + step
    return sizes


def parse_size(text: str) -> int | None:
    """Returns the bytes of a size in the notation of nccl-tests (8, 64K, 16M, 1G); None if the text is no size."""
    match = re.fullmatch(r"(\d{1,15})([KMG]?)B?", text, re.IGNORECASE | re.ASCII)
    return int(match[1]) * _UNITS[match[2].upper()] if match else None


def short_size(size: int) -> str:
    """Returns an exact size such as 64K or 1M; in bytes if it is no multiple of 1024."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


def near_size(size: int) -> str:
    """Returns a size for people, with four digits: 64K, 1.5M; 256M for the 268435440 bytes of seven equal blocks."""
    for letter in "GMK":
        if round(100 * size / _UNITS[letter]) >= 100:
            return f"{size / _UNITS[letter]:.4g}{letter}"
    return str(size)


def element_count(collective: Collective, size: int, element_bytes: int, nranks: int) -> int:
    """Returns NCCL's count for a total size in bytes.

    In per-rank collectives, blocks are multiples of 16 bytes, as in nccl-tests.
    """
    count = size // element_bytes
    if collective.per_rank:
        unit = 16 // element_bytes
        return count // nranks // unit * unit
    return count


def call_bytes(collective: Collective, count: int, element_bytes: int, nranks: int) -> int:
    """Returns the size of a call as nccl-tests reports it: the larger of a rank's buffers, in bytes."""
    return count * element_bytes * (nranks if collective.per_rank else 1)


def bytes_per_call(collective: Collective, size: int, nranks: int) -> int:
    """Returns NCCL's count in bytes for a size of nccl-tests: if `Collective.per_rank`, a rank's share, rounded up."""
    return -(-size // nranks) if collective.per_rank else size


def buffer_bytes(collectives: Iterable[Collective], size: int, nranks: int) -> int:
    """Returns the largest total of all ranks' buffers, in bytes, over out-of-place calls of one size."""
    return max((nranks * size + size * (1 if c.per_rank else nranks) for c in collectives), default=0)
