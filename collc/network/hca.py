"""Reads lists of RDMA ports in NCCL_IB_HCA by NCCL's rule (parseStringList, matchIfList in src/misc/utils.cc).

`templates/runtime/wire/hca_filter.h` has the same rule in C++. A test compares the two.
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
    """A list of RDMA ports, separated by commas.

    An entry is a prefix of device names and may have a colon and the number of a port. ``=`` before the list: entries
    are whole names of devices. ``^`` before it: the list names the ports not to use. An empty list names every port, so
    ``^`` by itself leaves none.
    """

    text: str

    @property
    def chooses(self) -> bool:
        """True if it names the ports to use, and not only ports not to use."""
        entries = self.text.removeprefix("=").split(",")
        return not self.text.startswith("^") and any(entry and not entry.startswith(":") for entry in entries)

    def takes(self, port: str) -> bool:
        """Returns whether a port such as "mlx5_0:1" may be used."""
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
    """Returns a device and its port, read as C reads numbers: 0, which no port has, if there is no number."""
    device, colon, after = entry.partition(":")
    if not colon:
        return device, _ANY
    number = _NUMBER.match(after)
    return device, int(number[1]) if number else 0


def rdma_interfaces(rdma: Path) -> list[tuple[str, str]]:
    """Returns RDMA ports with their network interfaces, such as ("mlx5_0:1", "ib0").

    If the interface is part of a bond, it is the interface of the bond.

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
