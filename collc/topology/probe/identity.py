"""Reads what tells GPUs apart, but not their links: `nvidia-smi -L`, `-q -x`, and `--query-gpu` as CSV.

These outputs have the name, bus id and PCIe link of each GPU. They add to a dump of the links. Alone they describe a
machine only if no GPU can have NVLinks: a table that is missing says nothing.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field

from collc.errors import TopologyError
from collc.topology.devices import known_device
from collc.topology.probe.lines import Text
from collc.topology.probe.machine import Machine
from collc.topology.probe.models import GpuModel, find_model, pcie_gbps
from collc.topology.probe.nvlink_text import looks_like_nvlink
from collc.topology.probe.nvml import bus_id
from collc.topology.probe.xmltree import Element, parse_xml

_LISTED = re.compile(r"\s*GPU ([0-9]{1,3}): (.*?)(?: \(UUID: (.*)\))?$")
_MIG_LISTED = re.compile(r"\s*MIG \S+\s+Device\s+[0-9]+:")
# Columns of --query-gpu that are used; a column has a unit in brackets unless `nounits` is given.
_INDEX, _NAME, _BUS = ("index",), ("name", "gpu_name"), ("pci.bus_id", "gpu_bus_id")
_UUID, _MIG = ("uuid", "gpu_uuid"), ("mig.mode.current",)
_GENERATION = ("pcie.link.gen.max", "pcie.link.gen.gpumax", "pcie.link.gen.hostmax")
_WIDTH = ("pcie.link.width.max",)
_COLUMN = re.compile(r"[a-z_]+(?:\.[a-z_]+)*(?: \[[^\]]*\])?")
_KNOWN_COLUMNS = {*_INDEX, *_NAME, *_BUS, *_UUID, *_MIG, *_GENERATION, *_WIDTH}
_MAX_GPUS = 128
_NO_LINKS = "add --from a file with `nvidia-smi topo -m`"


@dataclass
class Identity:
    """One GPU: its name, bus id, UUID, PCIe generation and width, NVLink fabric (cluster, clique), and MIG mode."""

    name: str = ""
    bus: str = ""
    uuid: str = ""
    generation: int = 0
    width: int = 0
    fabric: tuple[str, int] | None = None
    mig: bool = False


@dataclass
class Identities:
    """The GPUs of a machine by nvidia-smi's number, and the outputs that name them: (where, what they are)."""

    gpus: dict[int, Identity] = field(default_factory=dict)
    sources: list[tuple[str, str]] = field(default_factory=list)

    def add(self, number: int, identity: Identity, where: str) -> None:
        """Adds a GPU, or facts about one that is there.

        Raises:
            TopologyError: two outputs say different things of one GPU.
        """
        known = self.gpus.setdefault(number, Identity())
        for key, value in vars(identity).items():
            if not value:
                continue
            if getattr(known, key) not in ("", 0, None, False, value):
                what = f"GPU {number} has two names" if key == "name" else f"GPU {number} has two values of {key}"
                raise TopologyError(what, where=where, hint="are all of one machine?")
            setattr(known, key, value)

    @property
    def model(self) -> GpuModel | None:
        """The model of all GPUs, if all their names give the same one; else None."""
        models = {find_model(gpu.name) for gpu in self.gpus.values() if gpu.name}
        return models.pop() if len(models) == 1 else None


def looks_like_list(text: Text) -> bool:
    """Returns True if a text has lines of `nvidia-smi -L`."""
    return any(_LISTED.fullmatch(line) for line in text.lines) and not looks_like_nvlink(text)


def read_list(text: Text, into: Identities) -> None:
    """Adds the GPUs of `nvidia-smi -L`, whose lines `nvidia-smi nvlink` prints too.

    Raises:
        TopologyError: a GPU has two names.
    """
    number = None
    for line, content in enumerate(text.lines, 1):
        if match := _LISTED.fullmatch(content):
            number = int(match[1])
            into.add(number, Identity(match[2], uuid=(match[3] or "").strip()), text.at(line))
        elif number is not None and _MIG_LISTED.match(content):
            into.add(number, Identity(mig=True), text.at(line))
    into.sources.append((text.at(1), "nvidia-smi -L"))


def looks_like_smi_xml(text: Text) -> bool:
    """Returns True if a text is the output of `nvidia-smi -q -x`."""
    return "<nvidia_smi_log" in text.whole


def read_smi_xml(text: Text, into: Identities) -> None:
    """Adds the GPUs of `nvidia-smi -q -x`.

    Raises:
        TopologyError: the XML is damaged or has no GPU.
    """
    root = parse_xml(text.as_xml, text.where)
    gpus = list(root.all("gpu"))[:_MAX_GPUS]
    if not gpus:
        raise TopologyError("there are no GPUs in it", where=f"{text.where}:{root.line}", hint="is it complete?")
    for number, gpu in enumerate(gpus):
        link = ("pci", "pci_gpu_link_info")
        into.add(
            number,
            Identity(
                gpu.inner("product_name"),
                bus_id(gpu.inner("pci", "pci_bus_id") or gpu.get("id")),
                gpu.inner("uuid"),
                _number(gpu.inner(*link, "pcie_gen", "max_link_gen")),
                _number(gpu.inner(*link, "link_widths", "max_link_width").removesuffix("x")),
                _fabric(gpu),
                gpu.inner("mig_mode", "current_mig") == "Enabled",
            ),
            f"{text.where}:{gpu.line}",
        )
    into.sources.append((f"{text.where}:{root.line}", "nvidia-smi -q -x"))


def _fabric(gpu: Element) -> tuple[str, int] | None:
    cluster = gpu.inner("fabric", "clusterUuid").replace("-", "").lower()
    clique = gpu.inner("fabric", "cliqueId")
    known = re.fullmatch("[0-9a-f]{32}", cluster) and cluster.strip("0") and re.fullmatch("[0-9]{1,9}", clique)
    return (cluster, int(clique)) if known and gpu.inner("fabric", "state") == "Completed" else None


def looks_like_query(text: Text) -> bool:
    """Returns True if a text is the CSV of `nvidia-smi --query-gpu` with its header."""
    return _query_header(text) is not None


def _query_header(text: Text) -> int | None:
    for number, line in enumerate(text.lines):
        columns = [column.strip() for column in line.split(",")]
        names = {column.partition(" ")[0] for column in columns}
        is_plain = len(columns) == 1 and "." not in columns[0]
        if not is_plain and all(map(_COLUMN.fullmatch, columns)) and names & _KNOWN_COLUMNS:
            return number
    return None


def read_query(text: Text, into: Identities) -> None:
    """Adds the GPUs of `nvidia-smi --query-gpu=... --format=csv`.

    Raises:
        TopologyError: a row does not fit the header.
    """
    header = _query_header(text)
    assert header is not None
    columns = [column.strip().partition(" ")[0] for column in text.lines[header].split(",")]
    numbers = 0
    for number, line in enumerate(text.lines[header + 1 :], header + 2):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in next(csv.reader([line]))]
        if len(cells) != len(columns):
            if numbers:
                break
            what = f"{len(cells)} values under {len(columns)} columns"
            raise TopologyError(what, where=text.at(number), hint="run --query-gpu with --format=csv")
        row = dict(zip(columns, cells, strict=True))
        index = _first(row, _INDEX)
        generations = [n for key in _GENERATION if (n := _number(row.get(key, "")))]
        into.add(
            _number(index) if index else numbers,
            Identity(
                _first(row, _NAME),
                bus_id(_first(row, _BUS)) if _first(row, _BUS) else "",
                _first(row, _UUID),
                min(generations, default=0),
                _number(_first(row, _WIDTH)),
                mig=_first(row, _MIG) == "Enabled",
            ),
            text.at(number),
        )
        numbers += 1
    if not numbers:
        raise TopologyError("there are no GPUs in it", where=text.at(header + 1), hint="is it complete?")
    into.sources.append((text.at(header + 1), "nvidia-smi --query-gpu"))


def _first(row: dict[str, str], keys: tuple[str, ...]) -> str:
    return next((row[key] for key in keys if key in row), "")


def _number(text: str) -> int:
    return int(text) if re.fullmatch("[0-9]{1,3}", text) else 0


def apply_identities(found: Identities, machine: Machine) -> None:
    """Adds bus ids, UUIDs and PCIe speeds to a machine that another dump describes.

    Raises:
        TopologyError: a GPU is missing in the machine.
    """
    for number, gpu in found.gpus.items():
        name = f"gpu{number}"
        if name not in machine.gpus:
            where, what = found.sources[0]
            raise TopologyError(f"GPU {number} of {what} is not in the other dump", where=where, hint="one machine?")
        if gpu.bus or gpu.uuid:
            device = known_device(gpu.bus, gpu.uuid)
            machine.devices[name] = machine.devices.get(name, device) if not (device.pci or device.uuid) else device
        if name in machine.parent and name not in machine.pcie and gpu.generation and gpu.width:
            machine.pcie[name] = pcie_gbps(min(gpu.generation, 7), min(gpu.width, 32))
        if gpu.fabric is not None:
            machine.fabrics[name] = gpu.fabric
        if gpu.mig:
            machine.drop_nvlinks(name)
    for where, what in found.sources:
        machine.took(f"{where} {what}", "names, bus ids and PCIe links of GPUs")


def machine_of_identities(found: Identities, name: str, model: GpuModel | None) -> Machine:
    """Returns the machine of GPUs that cannot have NVLinks, or of one GPU.

    Raises:
        TopologyError: a GPU may have NVLinks, which these outputs do not tell.
    """
    where, what = found.sources[0]
    models = [model or find_model(gpu.name) for gpu in found.gpus.values()]
    if len(found.gpus) > 1 and any(m is None or m.links for m in models):
        raise TopologyError(f"{what} names GPUs, but not the links between them", where=where, hint=_NO_LINKS)
    machine = Machine(name, gpus=[f"gpu{number}" for number in sorted(found.gpus)])
    machine.cpus = ["cpu0"]
    machine.parent = dict.fromkeys(machine.gpus, "cpu0")
    if len(found.gpus) > 1:
        machine.assume(f"which GPUs share a CPU or PCIe switch is not in {what}: all are placed directly at one CPU")
    return machine
