"""Lists of RDMA ports as NCCL_IB_HCA takes them: NCCL's own rule (parseStringList, matchIfList in src/misc/utils.cc).

`templates/runtime/wire/hca_filter.h` is the same rule in C++; a test compares the two.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ANY = -1
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")


@dataclass(frozen=True)
class HcaFilter:
    """Entries with commas between: a prefix of devices, and after a colon the number of a port, compared as a number.

    ``=`` before the list: whole names of devices. ``^`` before it: all others. Without entries every port is named,
    so that ``^`` alone leaves none.
    """

    text: str

    @property
    def chooses(self) -> bool:
        """Whether it says which ports to use, not only which ones not to."""
        entries = self.text.removeprefix("=").split(",")
        return not self.text.startswith("^") and any(entry and not entry.startswith(":") for entry in entries)

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


def rdma_interfaces(rdma: Path) -> list[tuple[str, str]]:
    """RDMA ports with the network interface that goes over each, as ("mlx5_0:1", "ib0").

    Where several interfaces are bonded it is the one above them.

    Args:
        rdma: the kernel's folder of RDMA devices.
    """
    found = []
    with suppress(OSError):
        for device in sorted(rdma.iterdir()):
            for interface in sorted((device / "device/net").glob("*")):
                port, above = 0, interface / "master"
                with suppress(OSError, ValueError):
                    port = int((interface / "dev_port").read_text(encoding="ascii"))
                found.append((f"{device.name}:{port + 1}", (above.resolve() if above.exists() else interface).name))
    return found
