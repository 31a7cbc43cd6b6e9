"""Reads hwloc's XML (`lstopo --of xml`): the PCIe tree, NUMA nodes, NICs, and the matrices of NVLink and xGMI.

hwloc writes bandwidth in MB/s per direction: 20,000, 25,000 or 50,000 for each NVLink, to GPUs, NVSwitches and CPUs
(topology-nvml.c). Older versions write 100,000 for each pair that xGMI joins, also over GPUs between
(open-mpi/hwloc#775), so such a matrix does not tell the links.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NoReturn

from collc.errors import TopologyError
from collc.topology.devices import known_device
from collc.topology.model import LinkKind, Port
from collc.topology.names import name_problem
from collc.topology.probe.lines import Text
from collc.topology.probe.machine import Machine, bus_order
from collc.topology.probe.models import find_model
from collc.topology.probe.sockets import X_BUS, socket_link
from collc.topology.probe.switches import adopt_links, set_islands
from collc.topology.probe.xmltree import Element, parse_xml

# The names of a GPU's software devices, the surest first, and the drivers that give them.
_GPU_NAMES = (re.compile("nvml([0-9]{1,3})"), re.compile("rsmi([0-9]{1,3})"), re.compile("cuda([0-9]{1,3})"))
_NVLINK_MBPS = (20_000, 25_000, 50_000)
_OLD_XGMI_MBPS = 100_000
_XGMI_LINK_MBPS = 50_000
# A GPU's own cell of a matrix.
_SELF_MBPS = 1_000_000
# Payload over raw rate: 12.5 GB/s of copies over 15.753846 GB/s, both for PCIe 3.0 x16.
_PAYLOAD = Fraction(12_500_000, 15_753_846)
_NVIDIA_SWITCH = re.compile(r"0680 \[10de:")
# Names of network devices that are not virtual; the first pattern: RDMA devices.
_RDMA = re.compile(r"(?:mlx[45]_|bnxt_re|efa_|rdmap|hfi1_)[\w.]*")
_INTERFACE = re.compile(r"(?:ib|en[opsx]|eth)[\w.]*")
_MAX_CELLS = 1 << 16


@dataclass
class _Objects:
    """The objects that matter, by hwloc's `gp_index`.

    Attributes:
        gpus: gp_index of a software device -> GPU.
        kinds: gp_index -> type of the object, for the ends of links.
    """

    gpus: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)


def looks_like_hwloc(text: Text) -> bool:
    """Returns True if a text is hwloc's XML."""
    return re.search(r"<topology\b[^>]*>\s*<object\b", text.whole) is not None


def read_hwloc(text: Text, name: str, table: Machine | None = None) -> Machine:
    """Returns the machine in a file.

    Args:
        table: the same machine in another dump, which tells the links between the GPUs.

    Raises:
        TopologyError: the file is damaged, has no GPU, does not tell the links of GPUs that may have some, or
            contradicts `table`.
    """
    root = parse_xml(text.as_xml, text.where)
    machine = _Reader(text, name).read(root, table is not None)
    if table is not None:
        if table.gpus != machine.gpus:
            what = f"{len(machine.gpus)} GPUs here, {len(table.gpus)} in the other dump"
            raise TopologyError(what, where=f"{text.where}:{root.line}", hint="are both of one machine?")
        adopt_links(machine, table, f"{text.where}:{root.line}")
    return machine


class _Reader:
    def __init__(self, text: Text, name: str) -> None:
        self.text = text
        self.machine = Machine(name)
        self.objects = _Objects()
        self.models: set[str] = set()

    def fail(self, what: str, element: Element, hint: str | None = None) -> NoReturn:
        raise TopologyError(what, where=f"{self.text.where}:{element.line}", hint=hint)

    def read(self, root: Element, has_links: bool) -> Machine:
        self.find_gpus(root)
        if not self.machine.gpus:
            hint = "hwloc names GPUs if it is built with NVML, CUDA or ROCm SMI; run `nvidia-smi topo -m` there"
            self.fail("hwloc's XML without GPUs", root, hint)
        for child in root.all("object"):
            self.place(child, None)
        for gpu in self.machine.gpus:
            if gpu not in self.machine.parent:
                self.machine.cpus = self.machine.cpus or ["cpu0"]
                self.machine.parent[gpu] = self.machine.cpus[0]
                self.machine.assume(f"no PCIe device of {gpu} in this file: placed directly at {self.machine.cpus[0]}")
        self.machine.cpus.sort(key=lambda cpu: int(cpu.removeprefix("cpu")))
        self.machine.socket = _socket(root)
        models = {find_model(model) for model in self.models}
        self.machine.model = models.pop() if len(models) == 1 else None
        self.machine.took(f"{self.text.at(1)} objects", f"{len(self.machine.gpus)} GPUs, {len(self.machine.nics)} NICs")
        self.links(root, has_links)
        return self.machine

    def find_gpus(self, root: Element) -> None:
        """Names GPUs by NVML's numbers, else by ROCm's, CUDA's, else by bus id."""
        numbers: dict[str, int] = {}
        for pattern in _GPU_NAMES:
            for element in root.walk():
                match = pattern.fullmatch(element.get("name")) if element.get("type") == "OSDev" else None
                if match and not numbers.get(element.get("gp_index")):
                    numbers[element.get("gp_index")] = int(match[1])
            if numbers:
                break
        buses = {}
        for pci in root.walk():
            if pci.get("type") != "PCIDev":
                continue
            for inside in pci.all("object"):
                if inside.get("gp_index") in numbers:
                    buses[inside.get("gp_index")] = pci.get("pci_busid")
            if not numbers and re.match("03(00|02|80) .10de", pci.get("pci_type")):
                buses[pci.get("gp_index")] = pci.get("pci_busid")
        order = sorted(numbers or buses, key=lambda i: (numbers.get(i, 0), bus_order(buses.get(i, ""))))
        for place, index in enumerate(order):
            name = f"gpu{numbers.get(index, place)}"
            if name in self.machine.gpus:
                self.fail(f"{name} is given twice", root, "describe one machine at a time")
            self.machine.gpus.append(name)
            self.objects.gpus[index] = name
            device = known_device(buses.get(index, "").lower(), "")
            if device.pci:
                self.machine.devices[name] = device
        for element in root.walk():
            if element.tag == "object":
                switch = "NVSwitch" in element.get("subtype") or _NVIDIA_SWITCH.match(element.get("pci_type"))
                self.objects.kinds[element.get("gp_index")] = "NVSwitch" if switch else element.get("type")
            elif element.tag == "info" and element.get("name") == "GPUModel":
                self.models.add(element.get("value"))

    def place(self, top: Element, cpu: str | None) -> None:
        """Places the devices below an object at the NUMA node of the object or of an object above it."""
        todo: list[tuple[Element, str]] = [(top, cpu or "cpu0")]
        while todo:
            element, above = todo.pop()
            kind = element.get("type")
            if kind in ("Bridge", "PCIDev"):
                if above not in self.machine.cpus and self.names(element):
                    self.machine.cpus.append(above)
                self.pci(element, above)
                continue
            nodes = [child for child in element.all("object") if child.get("type") == "NUMANode"]
            number = (nodes[0] if nodes else element).get("os_index")
            if (nodes or kind == "NUMANode") and re.fullmatch("[0-9]{1,4}", number):
                above = f"cpu{int(number)}"
            todo += [(child, above) for child in reversed(list(element.all("object")))]

    def names(self, device: Element) -> list[str]:
        """Returns the GPUs and NICs at or below a PCI object."""
        below = list(device.walk())
        gpus = [self.objects.gpus[e.get("gp_index")] for e in below if e.get("gp_index") in self.objects.gpus]
        return gpus + [e.get("name") for e in below if _is_nic(e)]

    def pci(self, top: Element, parent: str) -> None:
        todo: list[tuple[Element, str, Fraction | None]] = [(top, parent, None)]
        while todo:
            device, above, before = todo.pop()
            least = min((s for s in (before, _speed(device)) if s is not None), default=None)
            below = [c for c in device.all("object") if c.get("type") in ("Bridge", "PCIDev") and self.names(c)]
            if device.get("type") == "PCIDev" and (names := self.names(device)):
                self.attach(device, names, above, least)
            elif len(below) > 1 and device.get("bridge_type") != "0-1":
                switch = f"pcie{len(self.machine.switches)}"
                self.machine.switches.append(switch)
                self.set_parent(switch, above, least)
                todo += [(child, switch, None) for child in reversed(below)]
            else:
                todo += [(child, above, least) for child in reversed(below)]

    def attach(self, device: Element, names: list[str], above: str, speed: Fraction | None) -> None:
        name = names[0]
        if name not in self.machine.gpus:
            rdma = [n for n in names if _RDMA.fullmatch(n)]
            interface = next((n for n in names if n not in rdma and not name_problem(n)), None)
            name = (rdma or names)[0]
            if name_problem(name) or name in self.machine.nics:
                name = f"nic{len(self.machine.nics)}"
            self.machine.nics.append(name)
            self.machine.ports[name] = Port(interface=interface, pci=known_device(device.get("pci_busid"), "").pci)
        self.set_parent(name, above, speed)

    def set_parent(self, name: str, above: str, speed: Fraction | None) -> None:
        self.machine.parent[name] = above
        if speed is not None:
            self.machine.pcie[name] = speed
            self.machine.assume(
                "PCIe speeds are those at the time of the dump, as hwloc reads them; an idle device may be slower"
            )

    def links(self, root: Element, has_links: bool) -> None:
        found = False
        for element in root.children:
            if not element.tag.startswith("distances"):
                continue
            name = element.get("name")
            title = f"{self.text.where}:{element.line} {name or element.tag}"
            if name in ("NVLinkBandwidth", "XGMIBandwidth"):
                found = True
                cells = self.matrix(element)
                (self.nvlinks if name == "NVLinkBandwidth" else self.xgmi)(element, cells, has_links)
                self.machine.took(title, "the links between GPUs")
            else:
                self.machine.took(title, "not used")
        if found or has_links or len(self.machine.gpus) == 1:
            return
        models = {find_model(model) for model in self.models}
        if not models or any(model is None or model.links for model in models):
            what = "hwloc's XML without a matrix of NVLink or xGMI bandwidth, and these GPUs may have such links"
            self.fail(what, root, "add --from a file with `nvidia-smi topo -m`, or `amd-smi topology`")

    def matrix(self, element: Element) -> dict[tuple[str, str], int]:
        """Returns (gp_index, gp_index) -> MB/s."""
        names = " ".join(e.text for e in element.all("indexes")).split()
        values = " ".join(e.text for e in element.all("u64values")).split()
        indexes = [name.rpartition(":")[2] for name in names]
        count = len(indexes)
        if count * count != len(values) or len(values) > _MAX_CELLS or not all(v.isdecimal() for v in values):
            self.fail(f"a matrix of {len(values)} values for {count} objects", element, "is the file complete?")
        by_index = {(indexes[i // count], indexes[i % count]): int(v[:12]) for i, v in enumerate(values)}
        return {pair: value for pair, value in by_index.items() if value and pair[0] != pair[1]}

    def nvlinks(self, element: Element, cells: dict[tuple[str, str], int], has_links: bool) -> None:
        if not cells:
            return
        least = min(cells.values())
        link = next((rate for rate in reversed(_NVLINK_MBPS) if all(v % rate == 0 for v in cells.values())), least)
        self.machine.link_gbps = Fraction(link, 1000)
        self.machine.assume(f"NVLink speed: {link / 1000:g} GB/s per link and direction, from hwloc's matrix")
        switches_of: dict[str, set[str]] = {}
        for (a, b), value in cells.items():
            gpu, other = self.objects.gpus.get(a), self.objects.gpus.get(b)
            if gpu is None:
                continue
            count = value // link
            if other is not None:
                if cells.get((b, a)) != value:
                    self.fail(f"{gpu} and {other} do not say the same of each other", element, "is the file damaged?")
                if self.machine.gpus.index(gpu) < self.machine.gpus.index(other):
                    self.machine.direct[gpu, other] = count
            elif self.objects.kinds.get(b) == "NVSwitch":
                self.machine.switched[gpu] = self.machine.switched.get(gpu, 0) + count
                switches_of.setdefault(gpu, set()).add(b)
            elif self.objects.kinds.get(b) in ("Package", "NUMANode", "Socket"):
                self.machine.host_kind[gpu] = LinkKind.C2C
                self.machine.pcie[gpu] = Fraction(value, 1000)
            else:
                self.machine.assume(f"{gpu} has NVLinks to an object that is no GPU, switch or CPU; they are left out")
        set_islands(self.machine, switches_of)

    def xgmi(self, element: Element, cells: dict[tuple[str, str], int], has_links: bool) -> None:
        self.machine.kind = LinkKind.XGMI
        gpus = self.objects.gpus
        pairs = {(gpus[a], gpus[b]): value for (a, b), value in cells.items() if a in gpus and b in gpus}
        if set(pairs.values()) == {_OLD_XGMI_MBPS}:
            if not has_links:
                what = "hwloc's matrix has 100 GB/s for each pair that xGMI joins, also over GPUs between"
                self.fail(what, element, "add --from a file with `amd-smi topology` or `rocm-smi --showtopo`")
            return
        for (a, b), value in pairs.items():
            if self.machine.gpus.index(a) < self.machine.gpus.index(b):
                if value % _XGMI_LINK_MBPS:
                    self.machine.direct[a, b] = 1
                    self.machine.pair_gbps[a, b] = Fraction(value, 1000)
                else:
                    self.machine.direct[a, b] = value // _XGMI_LINK_MBPS
        self.machine.printed_gbps = Fraction(_XGMI_LINK_MBPS, 1000)


def _is_nic(element: Element) -> bool:
    """Returns True for a network interface or RDMA device that is not virtual."""
    name = element.get("name")
    return element.get("type") == "OSDev" and bool(_RDMA.fullmatch(name) or _INTERFACE.fullmatch(name))


def _speed(device: Element) -> Fraction | None:
    """Returns the payload of a device's PCIe link in GB/s; None if the file does not have it."""
    text = device.get("pci_link_speed")
    if not re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,6}", text) or not Fraction(text):
        return None
    gbps = Fraction(round(Fraction(text) * _PAYLOAD * 1000), 1000)
    return gbps or None


def _socket(root: Element) -> tuple[Fraction, str] | None:
    """Returns the link between CPUs, by the generation of the first CPU."""
    infos = {e.get("name"): e.get("value") for e in reversed(list(root.walk())) if e.tag == "info"}
    if infos.get("CPUModel", "").startswith("POWER9"):
        return X_BUS
    family, model = infos.get("CPUFamilyNumber", ""), infos.get("CPUModelNumber", "")
    if not (re.fullmatch("[0-9]{1,4}", family) and re.fullmatch("[0-9]{1,4}", model)):
        return None
    return socket_link(infos.get("CPUVendor", ""), int(family), int(model))
