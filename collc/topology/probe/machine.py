"""Holds the facts about one server from any source of a probe.

A source fills in a `Machine`: devices with their place in the PCIe tree, and the counts of NVLinks or xGMI links
between GPUs or into a switch. `collc.topology.probe.build` converts it to a topology.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from collc.errors import first_few
from collc.topology.model import Device, LinkKind, Port
from collc.topology.probe.models import GpuModel

# Pairs of GPUs that a note names.
_MAX_PAIRS = 4


@dataclass
class Machine:
    """One server, as far as a source describes it.

    Attributes:
        gpus, nics, switches, cpus: vertex names; `gpus` in rank order.
        parent: in the PCIe tree: device or switch -> switch or CPU above it.
        pcie: device or switch -> GB/s of the link to its parent, if the source gives it.
        direct: the number of NVLinks or xGMI links between two GPUs, by pair of names in the order of `gpus`.
        switched: GPU -> the number of its NVLinks into the NVSwitches.
        islands: GPU in `switched` -> the number of the switch vertex that it is at; default 0.
        no_nvlink: GPU -> 0 for GPUs that cannot use NVLinks, such as those in MIG mode; a note tells why.
        link_gbps: GB/s of one NVLink or xGMI link, if the source gives it.
        pair_gbps: GB/s of one link of a pair, if the source gives it.
        gpu_gbps: GPU -> GB/s of one link into the NVSwitches, if the source gives it.
        kind: the kind of links between GPUs: NVLINK or XGMI.
        ports: NIC -> its connection to the network, if the source gives it.
        devices: GPU -> its bus id and UUID, if the source gives them.
        fabrics: GPU -> (cluster UUID, clique id) of the NVLink domain that spans servers, if the source gives them.
        multicast: True if the NVSwitches support multicast and reduction.
        host_kind: GPU -> the kind of its link to the parent, if it is not PCIe.
        socket: GB/s and name of the link between two CPUs, if the source gives the CPU's generation.
        model: the GPUs' model, if the source names them.
        printed_gbps: GB/s of one link as the source prints it, if this is less sure than `link_gbps`.
        notes: the assumptions.
        assumes: the kinds of links whose speed or number is assumed.
        tables: (table of the source, what was taken from it), for `collc probe --explain`.
    """

    name: str
    gpus: list[str] = field(default_factory=list)
    nics: list[str] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    cpus: list[str] = field(default_factory=list)
    parent: dict[str, str] = field(default_factory=dict)
    pcie: dict[str, Fraction] = field(default_factory=dict)
    direct: dict[tuple[str, str], int] = field(default_factory=dict)
    switched: dict[str, int] = field(default_factory=dict)
    islands: dict[str, int] = field(default_factory=dict)
    no_nvlink: dict[str, int] = field(default_factory=dict)
    link_gbps: Fraction | None = None
    pair_gbps: dict[tuple[str, str], Fraction] = field(default_factory=dict)
    gpu_gbps: dict[str, Fraction] = field(default_factory=dict)
    kind: LinkKind = LinkKind.NVLINK
    ports: dict[str, Port] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    fabrics: dict[str, tuple[str, int]] = field(default_factory=dict)
    multicast: bool = False
    host_kind: dict[str, LinkKind] = field(default_factory=dict)
    socket: tuple[Fraction, str] | None = None
    model: GpuModel | None = None
    printed_gbps: Fraction | None = None
    notes: list[str] = field(default_factory=list)
    assumes: dict[LinkKind, None] = field(default_factory=dict)
    tables: list[tuple[str, str]] = field(default_factory=list)

    def assume(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def guess(self, kind: LinkKind, note: str) -> None:
        """Adds a note about links whose speed or number no source gives. Plans over such links name the assumption."""
        self.assume(note)
        self.assumes[kind] = None

    def drop_nvlinks(self, gpu: str) -> None:
        """Removes the NVLinks of a GPU in MIG mode."""
        self.switched.pop(gpu, None)
        self.direct = {pair: count for pair, count in self.direct.items() if gpu not in pair}
        self.no_nvlink[gpu] = 0
        self.assume(f"{gpu} is in MIG mode, in which its NVLinks cannot be used")

    def switch_of(self, gpu: str) -> str:
        """Returns the switch vertex that a GPU's NVLinks lead into."""
        return f"nvs{self.islands.get(gpu, 0)}"

    def took(self, table: str, what: str) -> None:
        """Records what was taken from a table of the source, or that it is not used."""
        self.tables.append((table, what))


def pair_names(pairs: Sequence[tuple[str, str]]) -> str:
    """Returns the first pairs for a note, such as ``gpu0-gpu1, gpu0-gpu2``."""
    return first_few([f"{a}-{b}" for a, b in pairs], _MAX_PAIRS)


def bus_order(bus: str) -> list[str]:
    """Returns a key that sorts bus ids as NVML does: by domain, bus, device and function, as numbers."""
    return [part.rjust(16, "0") for part in re.split("[:.]", bus) if part]
