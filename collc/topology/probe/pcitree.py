"""Reads the PCIe tree, link speeds, NUMA nodes and NICs of this machine from sysfs.

/sys/bus/pci/devices/<bus id> is a link into the tree. Every folder of its path is a bridge, and the first is the host
bridge. A fork is a PCIe switch. A chain without a fork is one link with the speed of its slowest part. The maximum
speed of a link counts, not the current speed, which decreases while a device is idle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from collc.topology.devices import known_device
from collc.topology.model import Port
from collc.topology.names import name_problem
from collc.topology.probe.machine import Machine

_BUS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GTS = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s")
_GBITS = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,2})?) Gb/sec")
# Slower Ethernet serves logins, not collectives.
_MIN_MBPS = 10_000


@dataclass
class _Node:
    """A bridge or device on the path to a GPU or NIC."""

    path: Path
    children: dict[str, _Node] = field(default_factory=dict)
    device: str | None = None


@dataclass
class PciTree:
    """The part of the tree that leads to GPUs and NICs. `lost` has the GPUs that sysfs does not show."""

    roots: dict[str, _Node] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    sysfs: Path = Path("/sys")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def speed_of(device: Path) -> Fraction | None:
    """Returns the payload of a device's link at maximum speed, in GB/s; None if sysfs lacks it (virtual machines)."""
    match = _GTS.match(_text(device / "max_link_speed"))
    width = _text(device / "max_link_width")
    # 255 stands for an unknown width.
    if not match or not re.fullmatch("[1-9][0-9]?", width) or not Fraction(match[1]):
        return None
    return Fraction(25, 2) * Fraction(match[1]) / 8 * int(width) / 16


def read_tree(sysfs: Path, gpus: dict[str, str]) -> tuple[PciTree, dict[str, Port]]:
    """Returns the tree above some GPUs and above all NICs.

    Args:
        gpus: bus id -> vertex name.

    Returns:
        The tree, and name -> port of the NICs.
    """
    tree = PciTree(sysfs=sysfs)
    nics = _nics(sysfs)
    for bus, name in {**gpus, **{bus: name for bus, (name, _) in nics.items()}}.items():
        if not _add(tree, bus, name) and bus in gpus:
            tree.lost.append(name)
    return tree, dict(nics.values())


def _nics(sysfs: Path) -> dict[str, tuple[str, Port]]:
    """Returns the NICs by bus id, one per card: InfiniBand, RoCE and EFA, and Ethernet of 10 Gb/s or more."""
    found: dict[str, tuple[str, str, Port]] = {}
    for kind in ("infiniband", "net"):
        folder = sysfs / "class" / kind
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        for name in names:
            bus = (folder / name / "device").resolve().name
            if not _BUS.fullmatch(bus) or name_problem(name):
                continue
            mbps = _text(folder / name / "speed")
            if kind == "net" and not (mbps.isdecimal() and int(mbps) >= _MIN_MBPS):
                continue
            # Functions of one card share its PCIe link.
            card = bus.rpartition(".")[0]
            if card not in found:
                found[card] = (bus, name, _port(sysfs, kind, name, bus))
            elif not found[card][2].up and (other := _port(sysfs, kind, name, bus)).up:
                found[card] = (*found[card][:2], replace(other, guid=found[card][2].guid))
    # A NIC must not have a name that other vertices may have.
    taken = re.compile("(gpu|cpu|pcie|nvs)[0-9]+")
    return {
        bus: (f"nic-{name}" if taken.fullmatch(name) else name, port) for _, (bus, name, port) in sorted(found.items())
    }


def _port(sysfs: Path, kind: str, name: str, bus: str) -> Port:
    """Returns the port of a device. Its speed is the sum over active ports, or, if none is active, of the first."""
    folder = sysfs / "class" / kind / name
    interfaces = sorted(path.name for path in (folder / "device" / "net").glob("*"))
    if kind == "net":
        mbps, state = _text(folder / "speed"), _text(folder / "operstate")
        up = state not in ("down", "lowerlayerdown", "notpresent")
        return Port(Fraction(int(mbps), 8000), interface=name, up=up, pci=known_device(bus, "").pci)
    ports = sorted((folder / "ports").glob("[0-9]*"))
    rates = [(_GBITS.match(_text(port / "rate")), "ACTIVE" in _text(port / "state")) for port in ports]
    active = [Fraction(rate[1]) / 8 for rate, up in rates if rate and up]
    all_of = active or [Fraction(rate[1]) / 8 for rate, _ in rates[:1] if rate]
    guid = _text(folder / "node_guid").replace(":", "").lower()
    known = bool(re.fullmatch("[0-9a-f]{16}", guid)) and guid.strip("0") != ""
    interface = next((name for name in interfaces if not name_problem(name)), None)
    gbps = sum(all_of, Fraction(0)) or None
    return Port(gbps, guid if known else None, interface, up=bool(active) or not ports, pci=known_device(bus, "").pci)


def _add(tree: PciTree, bus: str, name: str) -> bool:
    """Adds a device and the path to it to the tree. Returns False if sysfs does not have the device."""
    link = tree.sysfs / "bus" / "pci" / "devices" / bus
    if not link.exists():
        return False
    path = link.resolve()
    way = [path, *path.parents]
    while way and not re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", way[-1].name):
        way.pop()
    # A device on a hypervisor's bus may be below another folder than a PCI host bridge.
    way = way or [path]
    level = tree.roots
    for step in reversed(way):
        node = level.setdefault(step.name, _Node(step))
        level = node.children
    node.device = name
    return True


def place(tree: PciTree, machine: Machine) -> None:
    """Adds CPUs, PCIe switches, NICs, and the parent and link speed of each device to the machine."""
    for root in tree.roots.values():
        for child in root.children.values() if root.device is None else [root]:
            _below(child, _cpu(tree, child, machine), machine)
    for name in tree.lost:
        machine.cpus = machine.cpus or ["cpu0"]
        machine.parent[name] = machine.cpus[0]
    if tree.lost:
        who = tree.lost[0] if len(tree.lost) == 1 else f"{len(tree.lost)} GPUs"
        machine.assume(f"sysfs does not show {who}: placed directly at {machine.cpus[0]}")
    machine.cpus.sort(key=lambda cpu: int(cpu.removeprefix("cpu")))


def _cpu(tree: PciTree, node: _Node, machine: Machine) -> str:
    """Returns the CPU of a root port by its NUMA node. Node -1 means a machine with one node, or a hypervisor."""
    numa = _text(node.path / "numa_node")
    known = re.fullmatch("[0-9]{1,4}", numa)
    name = f"cpu{int(numa)}" if known else "cpu0"
    if name not in machine.cpus:
        machine.cpus.append(name)
    if not known and len(_numa_nodes(tree.sysfs)) > 1:
        machine.assume("PCIe devices without a NUMA node are placed at cpu0")
    return name


def _numa_nodes(sysfs: Path) -> list[Path]:
    return sorted((sysfs / "devices" / "system" / "node").glob("node[0-9]*"))


def _below(top: _Node, parent: str, machine: Machine) -> None:
    """Adds the vertices of `top` and below it. A link has the least speed on the path to the vertex above."""
    todo: list[tuple[_Node, str, Fraction | None]] = [(top, parent, None)]
    while todo:
        node, above, path_speed = todo.pop()
        speeds = [speed for speed in (path_speed, speed_of(node.path)) if speed is not None]
        least = min(speeds, default=None)
        name = node.device
        if name is None and len(node.children) > 1:
            name = f"pcie{len(machine.switches)}"
            machine.switches.append(name)
        if name is None:
            todo += [(child, above, least) for child in node.children.values()]
            continue
        machine.parent[name] = above
        if least is not None:
            machine.pcie[name] = least
        if node.device is None:
            todo += [(child, name, None) for child in reversed(node.children.values())]
        elif node.device not in machine.gpus:
            machine.nics.append(node.device)
