"""Reads NCCL topology XML (NCCL_TOPO_DUMP_FILE) and RCCL's models of AMD machines.

The file holds the PCIe tree below each CPU, and for each GPU its NVLinks or xGMI links by the bus id of the other end.
Clouds ship skeletons of such files with only the PCIe tree: they get a clear line, or serve together with
`nvidia-smi topo -m`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NoReturn

from collc.errors import TopologyError
from collc.topology.model import LinkKind
from collc.topology.names import name_problem
from collc.topology.probe.lines import Text
from collc.topology.probe.machine import Machine, bus_order
from collc.topology.probe.sockets import GRACE, X_BUS, socket_link
from collc.topology.probe.switches import adopt_links, set_islands
from collc.topology.probe.xmltree import Element, parse_xml

# GB/s per link and direction, by compute capability, or for AMD by architecture.
_NVLINK = {60: "20", 70: "25", 72: "25", 75: "25", 80: "25", 86: "14.0625", 90: "25", 100: "50", 103: "50"}
_XGMI = {"906": "46", "908": "46", "910": "50", "940": "64", "941": "64", "942": "64", "950": "76.8"}
_GTS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*GT/s")
_WIDTHS = ("1", "2", "4", "8", "12", "16", "32")
_VIRTUAL = re.compile(r"lo$|docker|br-|lxc|veth|virbr|bond|dummy|tap|tun")
_COMBINE = (
    "combine it with the table of this machine: --from FILE --from TOPO.txt, where `nvidia-smi topo -m > TOPO.txt`"
)
_NO_CLASSES = (
    "its PCIe devices do not say which are GPUs: take the table of this machine alone, --from TOPO.txt, "
    "where `nvidia-smi topo -m > TOPO.txt`"
)
# Between a bus id and the number of a partition.
_PART = "#"
_NO_NVLINKS = "no NVLinks in this file; if the machine has some, add --from `nvidia-smi topo -m`"
_NO_XGMI = "no xGMI links in this file; if the machine has some, use --from `rocm-smi --showtopo` instead"


@dataclass
class _Found:
    """The GPUs of a file by bus id.

    Attributes:
        gpus: bus id -> ((dev, number at this bus id), element); the bus id of a second GPU at it has a suffix.
        parts: bus id -> the number of GPUs, if there are several: the partitions of one GPU.
        skeleton: the PCI devices of a GPU class without a gpu element.
    """

    gpus: dict[str, tuple[tuple[int, int], Element]] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    skeleton: dict[str, Element] = field(default_factory=dict)


def looks_like_nccl(text: Text) -> bool:
    """Returns True if a text is XML of NCCL or RCCL, its graph file included."""
    first = re.match(r"\s*(?:<[?!][^>]*>\s*)*<(\w*)", text.as_xml)
    return first is not None and first[1] not in ("topology", "nvidia_smi_log")


def read_nccl(text: Text, name: str, table: Machine | None = None) -> Machine:
    """Returns the machine in an NCCL topology file.

    Args:
        table: what `nvidia-smi topo -m` says of the same machine: supplies NVLinks (and GPUs) that the file lacks.

    Raises:
        TopologyError: the file is damaged, holds no GPUs, or does not fit `table`; most errors name the line.
    """
    return _Reader(text.where, name).read(parse_xml(text.as_xml, text.where), table)


class _Reader:
    def __init__(self, where: str, name: str) -> None:
        self.where = where
        self.machine = Machine(name)
        self.found = _Found()
        self.names: dict[str, str] = {}
        # GPU -> the number of its NVLinks whose other end is given as the GPU itself.
        self.own: dict[str, int] = {}
        # GPU -> bus ids of the switches that its NVLinks lead into.
        self.switches_of: dict[str, set[str]] = {}
        self.dropped: list[str] = []

    def fail(self, what: str, element: Element, hint: str | None = None) -> NoReturn:
        raise TopologyError(what, where=f"{self.where}:{element.line}", hint=hint)

    def read(self, root: Element, table: Machine | None) -> Machine:
        if root.tag == "graphs":
            hint = "this is NCCL_GRAPH_DUMP_FILE; the links are in the file of NCCL_TOPO_DUMP_FILE"
            self.fail("rings and trees that NCCL chose, not the links of a machine", root, hint)
        if root.tag != "system":
            self.fail(f"the outermost element is <{root.tag[:30]}>, not <system>", root, "is this NCCL topology XML?")
        cpus = list(root.all("cpu"))
        if not cpus:
            self.fail("there is no CPU in it", root, "is the file complete?")
        hosts = {cpu.get("host_hash") for cpu in cpus}
        if len(hosts) > 1:
            hint = "NCCL writes the hosts of one NVLink domain together: probe each, then `collc probe --merge`"
            self.fail(f"it holds {len(hosts)} hosts", root, hint)
        self.find_gpus(root)
        self.check_gpus(root, table)
        for cpu in cpus:
            self.cpu(cpu)
        self.machine.socket = _socket(cpus)
        found = (
            f"{len(self.machine.gpus)} GPUs, {len(self.machine.nics)} NICs, {len(self.machine.switches)} PCIe switches"
        )
        self.machine.took(f"{self.where}:{root.line} NCCL's XML", f"{found}, links")
        if self.dropped:
            self.machine.assume(f"virtual network devices are left out: {', '.join(self.dropped)}")
        self.links(table)
        return self.machine

    def find_gpus(self, root: Element) -> None:
        for pci in root.walk():
            if pci.tag != "pci":
                continue
            bus = _bus(pci.get("busid"))
            inside = list(pci.all("gpu"))
            for number, gpu in enumerate(inside):
                dev = gpu.get("dev")
                if not re.fullmatch("[0-9]{1,4}", dev):
                    self.fail(f"the GPU's dev is `{dev[:20]}`, not a number", gpu)
                place = (int(dev), number)
                key = f"{bus}{_PART}{number}" if number else bus
                others = {d for k, (d, _) in self.found.gpus.items() if k.partition(_PART)[0] != bus}
                if key in self.found.gpus or place[0] in {d for d, _ in others}:
                    self.fail(f"GPU {dev} at {bus} is given twice", gpu, "dump each host alone")
                self.found.gpus[key] = (place, gpu)
            if len(inside) > 1:
                self.found.parts[bus] = len(inside)
            if not inside and re.match("0x(03|12)", pci.get("class")) and not pci.children:
                self.found.skeleton[bus] = pci

    def check_gpus(self, root: Element, table: Machine | None) -> None:
        """Names the GPUs: by `dev`, or by bus id (NVML's order) in a skeleton that comes with a table."""
        if self.found.gpus:
            order = sorted(self.found.gpus, key=lambda bus: self.found.gpus[bus][0])
            dev = {bus: self.found.gpus[bus][0][0] for bus in order}
            # CUDA counts the partitions of GPUs one after another.
            self.names = {bus: f"gpu{i if self.found.parts else dev[bus]}" for i, bus in enumerate(order)}
        else:
            what = "there are no GPUs in it: a skeleton of the PCIe tree as clouds ship it"
            if table is None or not self.found.skeleton:
                self.fail(what, root, _COMBINE if self.found.skeleton else _NO_CLASSES)
            order = sorted(self.found.skeleton, key=bus_order)
            self.names = dict(zip(order, table.gpus, strict=False))
            self.machine.assume("GPUs of the skeleton are numbered by bus id, as NVML does")
        self.machine.gpus = [self.names[bus] for bus in order if bus in self.names]
        if table is not None and (len(order) != len(table.gpus) or self.machine.gpus != table.gpus):
            self.fail(f"{len(order)} GPUs here, {len(table.gpus)} in the table", root, "are both of one machine?")

    def cpu(self, cpu: Element) -> None:
        numa = cpu.get("numaid")
        name = f"cpu{numa}" if re.fullmatch("[0-9]{1,4}", numa) else f"cpu{len(self.machine.cpus)}"
        if name in self.machine.cpus:
            self.fail(f"NUMA node {numa} is given twice", cpu)
        self.machine.cpus.append(name)
        for child in cpu.children:
            if child.tag == "pci":
                self.pci(child, name, None)
            elif child.tag == "nic":
                for net in child.all("net"):
                    self.nic_without_pci(net, name)

    def pci(self, pci: Element, above: str, speed: Fraction | None) -> None:
        """Places a PCI device and all below it under `above`; `speed`: the least of the bridges that were left out."""
        todo = [(pci, above, speed)]
        while todo:
            device, parent, before = todo.pop()
            own = _pcie_speed(device)
            least = min((s for s in (before, own) if s is not None), default=None)
            bus = _bus(device.get("busid"))
            if bus in self.found.parts:
                self.partitions(bus, parent, least)
                continue
            if bus in self.names:
                self.attach(self.names[bus], parent, least)
                continue
            if self.is_bare_nic(device):
                name = f"nic{len(self.machine.nics)}"
                self.machine.nics.append(name)
                self.attach(name, parent, least)
                continue
            nets = [net for nic in device.all("nic") for net in nic.all("net")]
            bridge = device.get("class").startswith("0x06")
            if nets:
                self.nics(nets, parent, least, apart=bridge)
                continue
            below = [child for child in device.all("pci") if self.useful(child)]
            if len(below) > 1:
                switch = f"pcie{len(self.machine.switches)}"
                self.machine.switches.append(switch)
                self.attach(switch, parent, least)
                todo += [(child, switch, None) for child in reversed(below)]
            else:
                todo += [(child, parent, least) for child in below]

    def partitions(self, bus: str, parent: str, speed: Fraction | None) -> None:
        """Places the partitions of one GPU (MLOPart, MIG) below a switch vertex, because they share its PCIe link."""
        names = [self.names[key] for key in self.names if key.partition(_PART)[0] == bus]
        switch = f"pcie{len(self.machine.switches)}"
        self.machine.switches.append(switch)
        self.attach(switch, parent, speed)
        for name in names:
            self.attach(name, switch, speed)
        listed = ", ".join(names)
        self.machine.assume(f"{listed} are partitions of one GPU at {bus}: each gets its share of the NVLinks")

    def useful(self, device: Element) -> bool:
        return any(
            e.tag == "net" or (e.tag == "pci" and (_bus(e.get("busid")) in self.names or self.is_bare_nic(e)))
            for e in device.walk()
        )

    def is_bare_nic(self, device: Element) -> bool:
        """Returns True if a device is a NIC without a nic element, as in files that give only its PCI class."""
        return not self.found.gpus and device.get("class").startswith("0x02") and not device.children

    def attach(self, name: str, parent: str, speed: Fraction | None) -> None:
        self.machine.parent[name] = parent
        if speed is not None:
            self.machine.pcie[name] = speed

    def nics(self, nets: list[Element], parent: str, speed: Fraction | None, *, apart: bool) -> None:
        """Adds the NICs of one PCI device as one vertex; each as a vertex if `apart`, as at the host bridge of a VM."""
        for net in nets if apart else nets[:1]:
            name = self.nic_name(net)
            if name:
                self.machine.nics.append(name)
                self.attach(name, parent, speed)

    def nic_without_pci(self, net: Element, cpu: str) -> None:
        mbps = net.get("speed")
        if _VIRTUAL.match(net.get("name")):
            if name_problem(net.get("name")) is None and net.get("name") not in ("lo", *self.dropped):
                self.dropped.append(net.get("name"))
            return
        if not re.fullmatch("[1-9][0-9]{0,8}", mbps):
            return
        name = self.nic_name(net)
        if name:
            self.machine.nics.append(name)
            self.attach(name, cpu, Fraction(int(mbps), 8000))
            self.machine.assume(f"{name} is on no PCI device in this file: its own speed stands for its PCIe link")

    def nic_name(self, net: Element) -> str | None:
        name = net.get("name")
        if name_problem(name) is not None:
            name = f"nic{len(self.machine.nics)}"
        return None if name in self.machine.nics else name

    def links(self, table: Machine | None) -> None:
        direct: dict[tuple[str, str], int] = {}
        for bus, (_, gpu) in self.found.gpus.items():
            for link in gpu.children:
                if link.tag in ("nvlink", "xgmi"):
                    self.link(bus, link, direct)
                elif link.tag == "c2c":
                    self.chip_to_chip(self.names[bus], link)
        for (a, b), count in direct.items():
            back = direct.get((b, a), 0)
            if back != count:
                element = next(g for bus, (_, g) in self.found.gpus.items() if self.names[bus] == a)
                self.fail(f"{a} has {count} links to {b}, which has {back} back", element, "the file is damaged")
        place = {gpu: i for i, gpu in enumerate(self.machine.gpus)}
        self.machine.direct = {pair: n for pair, n in direct.items() if place[pair[0]] < place[pair[1]]}
        set_islands(self.machine, self.switches_of)
        if table is not None:
            adopt_links(self.machine, table, self.where)
        elif self.own:
            self.own_ends()
        elif not self.machine.direct and not self.machine.switched and len(self.machine.gpus) > 1:
            self.machine.assume(_NO_XGMI if any(g.get("gcn") for _, g in self.found.gpus.values()) else _NO_NVLINKS)
        self.speeds()

    def link(self, bus: str, link: Element, direct: dict[tuple[str, str], int]) -> None:
        text, target, kind = link.get("count"), _bus(link.get("target")), link.get("tclass")
        if not re.fullmatch("[1-9][0-9]{0,2}", text):
            self.fail(f"`{text[:20]}` is not a count of links", link)
        count, gpu = int(text), self.names[bus]
        if link.tag == "xgmi":
            self.machine.kind = LinkKind.XGMI
        if target in self.names:
            if self.names[target] == gpu:
                self.own[gpu] = self.own.get(gpu, 0) + count
                return
            direct[gpu, self.names[target]] = direct.get((gpu, self.names[target]), 0) + count
        elif kind.startswith("0x068001"):
            self.machine.host_kind[gpu] = LinkKind.C2C
            self.machine.pcie[gpu] = Fraction(25) * count
            self.machine.assume(f"NVLinks to the CPU: {count} per GPU of 25 GB/s, in place of PCIe")
        elif kind.startswith("0x0680") or set(target) <= set("f:."):
            self.machine.switched[gpu] = self.machine.switched.get(gpu, 0) + count
            self.switches_of.setdefault(gpu, set()).add("hidden" if set(target) <= set("f:.") else target)
        else:
            self.machine.assume(f"{gpu} has links to a device that is not in this file; they are left out")

    def chip_to_chip(self, gpu: str, link: Element) -> None:
        """Replaces a GPU's PCIe link by its `count` links to the CPU; `bw` is the MB/s of one link."""
        bw, count = link.get("bw"), link.get("count")
        if not re.fullmatch("[1-9][0-9]{0,7}", bw) or not re.fullmatch("[1-9][0-9]?", count):
            self.fail(f"`{bw[:20]}` times `{count[:20]}` is no bandwidth of chip-to-chip links", link)
        self.machine.host_kind[gpu] = LinkKind.C2C
        self.machine.pcie[gpu] = Fraction(int(bw) * int(count), 1000)

    def own_ends(self) -> None:
        """Some virtual machines report a GPU's own bus id as the other end (Azure's NC A100 v4)."""
        names = self.machine.gpus
        gpu = next(iter(self.own))
        element = next(e for bus, (_, e) in self.found.gpus.items() if self.names[bus] == gpu)
        if len(names) != 2 or len(set(self.own.values())) != 1 or len(self.own) != 2 or self.machine.direct:
            hint = "add --from a file with `nvidia-smi topo -m`, which says what is at the other end"
            self.fail(f"the NVLinks of {gpu} lead to itself", element, hint)
        self.machine.direct[names[0], names[1]] = self.own[gpu]
        self.machine.assume("each GPU's NVLinks name itself as the other end: taken as links between the two")

    def speeds(self) -> None:
        gpus = [gpu for _, gpu in self.found.gpus.values()]
        if self.machine.kind is LinkKind.XGMI:
            known = {_XGMI.get(gpu.get("gcn").removeprefix("gfx")[:3]) for gpu in gpus}
            word = "xGMI"
        else:
            known = {
                _NVLINK.get(int(sm)) if (sm := gpu.get("sm")).isdecimal() and len(sm) < 5 else None for gpu in gpus
            }
            word = "NVLink"
        value = known.pop() if len(known) == 1 else None
        if value is None or not (self.machine.direct or self.machine.switched):
            return
        self.machine.link_gbps = Fraction(value)
        for bus, count in self.found.parts.items():
            for key in self.names:
                if key.partition(_PART)[0] == bus:
                    self.machine.gpu_gbps[self.names[key]] = Fraction(value) / count
        self.machine.assume(f"{word} speed: {value} GB/s per link and direction, from the GPU generation in the file")


def _bus(text: str) -> str:
    """Returns a bus id in a form that does not depend on case and on leading zeros of the domain."""
    domain, colon, rest = text.strip().lower().partition(":")
    return f"{domain.lstrip('0') or '0'}{colon}{rest}" if not set(domain) <= {"f"} else f"{domain}{colon}{rest}"


def _pcie_speed(device: Element) -> Fraction | None:
    """Returns the payload of a device's link in GB/s, 12.5 for 8 GT/s x16; None if the file does not have it."""
    match = _GTS.match(device.get("link_speed"))
    width = device.get("link_width")
    if not match or width not in _WIDTHS or not Fraction(match[1]):
        return None
    return Fraction(25, 2) * Fraction(match[1]) / 8 * int(width) / 16


def _socket(cpus: list[Element]) -> tuple[Fraction, str] | None:
    """Returns the link between the CPUs, by the generation of the first CPU."""
    first = cpus[0]
    if first.get("arch") == "ppc64":
        return X_BUS
    if first.get("arch") == "arm64" and any(e.tag == "c2c" for cpu in cpus for e in cpu.walk()):
        return GRACE
    family, model = first.get("familyid"), first.get("modelid")
    if not re.fullmatch("[0-9]{1,4}", family) or not re.fullmatch("[0-9]{1,4}", model):
        return None
    return socket_link(first.get("vendor"), int(family), int(model))
