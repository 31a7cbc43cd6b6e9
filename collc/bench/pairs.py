"""Reads the results of a library's check of links (COLLC_CHECK) when a communicator is created.

templates/runtime/communicator/link_check.h is the counterpart in the runtime.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from collc.topology.model import CLASSES

_LINKS = ("unknown links", *(kind.value for kind in CLASSES))  # by LinkClass of tables.h
_NOT_CHECKED, _SLOW = "not checked", "slow"
_VERDICTS = (_NOT_CHECKED, "good", _SLOW)


class _CheckedPair(ctypes.Structure):
    _fields_ = (
        ("source", ctypes.c_uint32),
        ("target", ctypes.c_uint32),
        ("link", ctypes.c_uint32),
        ("verdict", ctypes.c_uint32),
        ("bytes", ctypes.c_uint64),
        ("seconds", ctypes.c_double),
        ("gbps", ctypes.c_double),
    )


@dataclass(frozen=True)
class Pair:
    """One direction between two ranks that the plan joins. All sent data has arrived unchanged.

    Attributes:
        link: the slowest class of the links between them.
        verdict: "good", "slow" (far slower than in the topology) or "not checked" (the two share a GPU).
        bytes: the size of the largest message.
        gbps: the GB/s of that message; None if nothing was sent.
        topology_gbps: the GB/s of the topology; None if it cannot be compared.
    """

    source: int
    target: int
    link: str
    verdict: str
    bytes: int
    gbps: float | None
    topology_gbps: float | None

    @property
    def slow(self) -> bool:
        """True if it is far slower than in the topology."""
        return self.verdict == _SLOW


def read_pairs(lib: ctypes.CDLL, comm: ctypes.c_void_p) -> list[tuple[float, ...]]:
    """Returns the pairs of a communicator as numbers, which processes can exchange. `pair_of` reads them."""
    ask = getattr(lib, "collc_checked", None)
    if ask is None:
        return []
    ask.argtypes = [ctypes.c_void_p, ctypes.POINTER(_CheckedPair), ctypes.c_uint32]
    ask.restype = ctypes.c_uint32
    count = ask(comm, None, 0)
    found = (_CheckedPair * max(count, 1))()
    count = min(ask(comm, found, count), count)
    names = [name for name, _ in _CheckedPair._fields_]
    return [tuple(getattr(found[i], name) for name in names) for i in range(count)]


def pair_of(row: Sequence[float]) -> Pair:
    """Returns the pair of a row of `read_pairs`."""
    source, target, link, verdict, size = map(int, row[:5])
    seconds, gbps = row[5:]
    return Pair(
        source=source,
        target=target,
        link=_LINKS[link] if link < len(_LINKS) else _LINKS[0],
        verdict=_VERDICTS[verdict] if verdict < len(_VERDICTS) else _NOT_CHECKED,
        bytes=size,
        gbps=size / seconds / 1e9 if seconds else None,
        topology_gbps=gbps or None,
    )
