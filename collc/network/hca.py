"""Lists of RDMA ports as NCCL_IB_HCA takes them: NCCL's own rule (parseStringList, matchIfList in src/misc/utils.cc).

`templates/runtime/wire/hca_filter.h` is the same rule in C++; a test compares the two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANY = -1
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")


@dataclass(frozen=True)
class HcaFilter:
    """Entries with commas between: a prefix of devices, and after a colon the number of a port, compared as a number.

    ``=`` before the list: whole names of devices. ``^`` before it: all others. Without entries every port is named,
    so that ``^`` alone leaves none.
    """

    text: str

    def takes(self, port: str) -> bool:
        """Whether a port ("mlx5_0:1") may be used."""
        entries = self.text.removeprefix("^")
        whole = entries.startswith("=")
        device, number = _split(port)
        named = [_split(entry) for entry in entries.removeprefix("=").split(",") if entry and not entry.startswith(":")]
        found = any(
            (device == name if whole else device.startswith(name)) and wanted in (_ANY, number)
            for name, wanted in named
        )
        return (found or not named) != self.text.startswith("^")


def _split(entry: str) -> tuple[str, int]:
    """A device and its port, as C reads numbers: 0, which no port has, where it is none."""
    device, colon, after = entry.partition(":")
    if not colon:
        return device, _ANY
    number = _NUMBER.match(after)
    return device, int(number[1]) if number else 0
