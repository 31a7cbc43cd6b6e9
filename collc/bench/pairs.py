"""What the check of links (COLLC_CHECK) of a library found when its communicator was made.

The counterpart of templates/runtime/communicator/link_check.h.
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
    """One direction between two ranks that the plan joins; all that was sent has arrived as it was.

    Args:
        link: the slowest class of links between them.
        verdict: "good", "slow" (far slower than the topology says) or "not checked" (the two share a GPU).
        bytes: of the largest message.
        gbps: GB/s of that message; None where nothing was sent.
        topology_gbps: GB/s of the topology, None where it has nothing to compare with.
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
        """Whether it is far slower than the topology says."""
        return self.verdict == _SLOW


def read_pairs(lib: ctypes.CDLL, comm: ctypes.c_void_p) -> list[tuple[float, ...]]:
    """The pairs of a communicator as numbers, for the way between processes (`pair_of` there)."""
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
    """One row of `read_pairs`."""
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
