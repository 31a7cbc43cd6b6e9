"""Probes the GPUs of this machine with NVML and sysfs, for `collc probe` without `--from`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from collc.errors import TopologyError
from collc.topology.devices import known_device
from collc.topology.model import LinkKind, Topology
from collc.topology.probe.build import build
from collc.topology.probe.machine import Machine
from collc.topology.probe.models import GpuModel, find_model, model_by_name, pcie_gbps
from collc.topology.probe.nvml import Gpu, NvLink, nominal_by_version, read_nvml
from collc.topology.probe.pcitree import place, read_tree
from collc.topology.probe.sockets import socket_link_here
from collc.topology.probe.switches import set_islands
from collc.topology.probe.visible import Visible, choose

_WHERE = "probe"


@dataclass(frozen=True)
class Live:
    """This machine: its topology, and the PCI bus id of each GPU in rank order."""

    topology: Topology
    bus_ids: tuple[str, ...]


def probe_machine(
    *,
    visible: str | None = None,
    gpu_model: str | None = None,
    name: str = "probed",
    sysfs: Path = Path("/sys"),
) -> Live:
    """Returns the topology of the GPUs that CUDA programs see on this machine.

    Vertex ``gpu3`` is the GPU that nvidia-smi calls 3, whatever CUDA calls it; rank order is CUDA's.

    Args:
        visible: the value of CUDA_VISIBLE_DEVICES, None if it is not set.
        gpu_model: a model such as ``V100``, in place of the driver's name of the GPUs.

    Raises:
        CollcError: there is no driver or no GPU, or NVML fails during the probe.
        UsageError: `visible` or `gpu_model` is wrong.
    """
    model = model_by_name(gpu_model) if gpu_model is not None else None
    return assemble(read_nvml(), visible, model, name, sysfs)


def assemble(every: Sequence[Gpu], visible: str | None, model: GpuModel | None, name: str, sysfs: Path) -> Live:
    """Returns the result of `probe_machine` for the GPUs that NVML lists (`every`)."""
    if not every:
        raise TopologyError("the driver shows no GPU", where=_WHERE, hint="does nvidia-smi list one?")
    chosen, notes = choose(every, visible)
    machine = Machine(name, gpus=[f"gpu{device.gpu.index}" for device in chosen])
    for note in notes:
        machine.assume(note)
    _nvlinks(machine, every, chosen, model)
    tree, ports = read_tree(sysfs, {device.gpu.bus: f"gpu{device.gpu.index}" for device in chosen})
    place(tree, machine)
    machine.ports = ports
    machine.devices = {f"gpu{device.gpu.index}": known_device(device.gpu.bus, device.gpu.uuid) for device in chosen}
    machine.socket = socket_link_here(sysfs.parent / "proc" / "cpuinfo")
    for nic, port in sorted(ports.items()):
        if not port.up:
            machine.assume(f"NIC {nic} is down")
    for device in chosen:
        _host_link(machine, device.gpu)
    speeds = [*machine.pair_gbps.values(), *machine.gpu_gbps.values()]
    machine.link_gbps = min(speeds, default=None)
    topology = build(machine, model or _common_model(machine, chosen), _WHERE)
    return Live(topology, tuple(device.gpu.bus for device in chosen))


def _common_model(machine: Machine, chosen: Sequence[Visible]) -> GpuModel | None:
    """Returns the model that the driver's names agree on, unless a GPU has more links than the model."""
    models = {find_model(device.gpu.name) for device in chosen}
    model = models.pop() if len(models) == 1 else None
    most = max((len(device.gpu.links) for device in chosen if not device.mig), default=0)
    return model if model and most <= model.links else None


def _nvlinks(machine: Machine, every: Sequence[Gpu], chosen: Sequence[Visible], model: GpuModel | None) -> None:
    """Adds the counts and speeds of NVLinks, except those to GPUs that are not chosen."""
    owner = {gpu.bus: gpu for gpu in every}
    counts: dict[tuple[int, int], list[Fraction]] = {}
    switched: dict[int, list[Fraction]] = {}
    switches_of: dict[str, set[str]] = {}
    usable = {device.gpu.index for device in chosen if not device.mig}
    for device in chosen:
        gpu = device.gpu
        if device.mig:
            machine.drop_nvlinks(f"gpu{gpu.index}")
            continue
        if gpu.down and gpu.links:
            machine.assume(f"gpu{gpu.index}: NVLink {_numbers(gpu.down)} of it {_are(gpu.down)} down")
        for link in gpu.links:
            gbps = _speed(machine, gpu, link, model)
            remote = owner.get(link.remote)
            if remote is not None and remote is not gpu:
                if remote.index in usable:
                    counts.setdefault((gpu.index, remote.index), []).append(gbps)
            elif link.to == "gpu" and link.remote:
                machine.assume(f"gpu{gpu.index} has NVLinks to GPUs that NVML does not list here; they are left out")
            elif link.to == "cpu":
                name = f"gpu{gpu.index}"
                machine.host_kind[name] = LinkKind.C2C
                machine.pcie[name] = machine.pcie.get(name, Fraction(0)) + gbps
            else:
                switched.setdefault(gpu.index, []).append(gbps)
                switches_of.setdefault(f"gpu{gpu.index}", set()).add(link.remote)
                if not link.remote:
                    machine.assume(
                        "the other ends of NVLinks are hidden, as in virtual machines: taken as links into an NVSwitch"
                    )
    bare = [f"gpu{d.gpu.index}" for d in chosen if d.gpu.down and not d.gpu.links and not d.mig]
    if bare:
        machine.no_nvlink |= dict.fromkeys(bare, 0)
        machine.assume(f"no NVLink of {', '.join(bare)} is up")
    _pairs(machine, counts)
    _switches(machine, every, switched)
    set_islands(machine, switches_of)


def _pairs(machine: Machine, counts: dict[tuple[int, int], list[Fraction]]) -> None:
    """Adds the links that both ends report as active; if one end reports fewer, the others are dead."""
    for (a, b), mine in sorted(counts.items()):
        theirs = counts.get((b, a), [])
        if a > b and theirs:
            continue
        alive = min(len(mine), len(theirs))
        low, high = sorted((a, b), key=lambda i: machine.gpus.index(f"gpu{i}"))
        if len(mine) != len(theirs):
            machine.assume(
                f"gpu{a} counts {len(mine)} NVLinks to gpu{b}, which counts {len(theirs)} back: {alive} used"
            )
        if alive:
            pair = (f"gpu{low}", f"gpu{high}")
            machine.direct[pair] = alive
            machine.pair_gbps[pair] = min(mine + theirs)


def _switches(machine: Machine, every: Sequence[Gpu], switched: dict[int, list[Fraction]]) -> None:
    for index, speeds in switched.items():
        machine.switched[f"gpu{index}"] = len(speeds)
        machine.gpu_gbps[f"gpu{index}"] = sum(speeds, Fraction(0)) / len(speeds)
    gpus = [gpu for gpu in every if gpu.index in switched]
    # In-switch multicast and reduction came with the third NVSwitch, for Hopper.
    machine.multicast = bool(gpus) and all(gpu.capability >= (9, 0) for gpu in gpus)
    machine.fabrics = {f"gpu{gpu.index}": gpu.fabric for gpu in gpus if gpu.fabric}
    fabrics = Counter(machine.fabrics.values())
    for (cluster, clique), count in sorted(fabrics.items()):
        machine.assume(
            f"{count} GPUs belong to clique {clique} of NVLink fabric {cluster[:8]}: GPUs of other hosts on it do not "
            "show here; `collc probe --merge` joins its hosts, gb200-nvl72 of `collc topologies` is a whole rack"
        )


def _speed(machine: Machine, gpu: Gpu, link: NvLink, told: GpuModel | None) -> Fraction:
    """Returns the GB/s of one link: the nominal value of its model, else of its link version, or the driver's rate.

    The driver's rate counts if it differs from the nominal value by more than 10%.
    """
    model = told or find_model(gpu.name)
    nominal = model.gbps if model else None
    if link.gbps is None:
        nominal = nominal or nominal_by_version(link.version)
        if nominal is None:
            raise TopologyError(
                "the driver does not tell the speed of its NVLinks",
                where=f"{_WHERE}: GPU {gpu.index}, {gpu.name}",
                hint="say --gpu-model",
            )
        why = f"as {model.name} has" if model and model.gbps else f"by NVML's link version {link.version}"
        machine.assume(f"NVLink speed: {float(nominal):g} GB/s per link and direction, {why}")
        return nominal
    if nominal and abs(link.gbps - nominal) * 10 <= nominal:
        return nominal
    by_version = nominal_by_version(link.version)
    if nominal is None and by_version and abs(link.gbps - by_version) * 10 <= by_version:
        return by_version
    machine.assume(f"NVLink speed: {float(link.gbps):g} GB/s per link and direction, as the driver gives it")
    return link.gbps


def _host_link(machine: Machine, gpu: Gpu) -> None:
    """Replaces PCIe by chip-to-chip links; uses NVML's PCIe link if sysfs has none."""
    name = f"gpu{gpu.index}"
    if gpu.c2c is not None:
        machine.host_kind[name] = LinkKind.C2C
        machine.pcie[name] = gpu.c2c
    elif name not in machine.pcie and gpu.pcie is not None:
        machine.pcie[name] = pcie_gbps(*gpu.pcie)


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _are(numbers: Sequence[int]) -> str:
    return "is" if len(numbers) == 1 else "are"
