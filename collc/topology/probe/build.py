"""Converts a `Machine` to a topology: adds speeds, from the source, from the GPU model, or by a rule.

Every assumption is a note of the topology.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from collc.errors import TopologyError
from collc.topology.model import Link, LinkKind, Topology, Vertex, VertexKind
from collc.topology.probe.machine import Machine
from collc.topology.probe.models import GpuModel, pcie_gbps
from collc.topology.probe.sockets import QPI, UPI
from collc.topology.probe.switches import note_nvlinks, split_by_fabric

PCIE_NAMES = {1: "1.0", 2: "2.0", 3: "3.0", 4: "4.0", 5: "5.0", 6: "6.0"}


def build(machine: Machine, model: GpuModel | None, where: str) -> Topology:
    """Returns the topology of a machine, with a speed for every link.

    Raises:
        TopologyError: there is no GPU, or a GPU has more links than its model.
    """
    model = model or machine.model
    if not machine.gpus:
        raise TopologyError("there are no GPUs in it", where=where)
    lanes = _lanes(machine)
    _check_model(lanes, model, where)
    links: list[Link] = []
    if lanes:
        gbps = _link_speed(machine, model, lanes)
        split_by_fabric(machine)
        for (a, b), count in machine.direct.items():
            links += _both(a, b, machine.kind, machine.pair_gbps.get((a, b), gbps) * count)
        for gpu, count in machine.switched.items():
            links += _both(gpu, machine.switch_of(gpu), LinkKind.NVSWITCH, machine.gpu_gbps.get(gpu, gbps) * count)
        note_nvlinks(machine, model, gbps)
    links += _pcie_links(machine, model, lanes)
    vertices = [Vertex(name, VertexKind.GPU, device=machine.devices.get(name)) for name in machine.gpus]
    domains = _domains(machine)
    for switch in dict.fromkeys(map(machine.switch_of, machine.switched)):
        vertices.append(
            Vertex(switch, VertexKind.SWITCH, machine.multicast, machine.multicast, domain=domains.get(switch))
        )
    vertices += [Vertex(name, VertexKind.SWITCH) for name in machine.switches]
    vertices += [Vertex(name, VertexKind.CPU) for name in machine.cpus]
    vertices += [Vertex(name, VertexKind.NIC, port=machine.ports.get(name)) for name in machine.nics]
    servers = {"server0": tuple(v.name for v in vertices)}
    name = None if model is None else model.name
    kinds = {link.kind for link in links}
    assumes = tuple(kind for kind in LinkKind if kind in machine.assumes and kind in kinds)
    return Topology(machine.name, tuple(vertices), tuple(links), servers, tuple(machine.notes), name, assumes=assumes)


def _domains(machine: Machine) -> dict[str, str]:
    """Returns the NVLink domain of each switch whose GPUs belong to one that may span servers."""
    found = {}
    for gpu in machine.switched:
        if gpu in machine.fabrics:
            cluster, clique = machine.fabrics[gpu]
            found[machine.switch_of(gpu)] = f"{cluster}/{clique}"
    return found


def _both(a: str, b: str, kind: LinkKind, gbps: Fraction) -> list[Link]:
    return [Link(a, b, kind, gbps), Link(b, a, kind, gbps)]


def _lanes(machine: Machine) -> dict[str, int]:
    """Returns the number of NVLinks or xGMI links of each GPU that has any."""
    lanes: Counter[str] = Counter(machine.switched)
    for (a, b), count in machine.direct.items():
        lanes[a] += count
        lanes[b] += count
    return dict(lanes)


def _check_model(lanes: dict[str, int], model: GpuModel | None, where: str) -> None:
    most = max(lanes.values(), default=0)
    if model and most > model.links:
        who = next(gpu for gpu, count in lanes.items() if count == most)
        has = f"{model.links} links" if model.links else "none"
        raise TopologyError(
            f"{who} has {most} links to other GPUs, a {model.name} has at most {has}",
            where=where,
            hint="is --gpu-model right?",
        )


def _link_speed(machine: Machine, model: GpuModel | None, lanes: dict[str, int]) -> Fraction:
    """Returns the GB/s of one link: from the source, else from the model, else by a rule on the counts."""
    if machine.link_gbps is not None:
        return machine.link_gbps
    word = "xGMI" if machine.kind is LinkKind.XGMI else "NVLink"
    if model and model.gbps is not None:
        machine.assume(f"{word} speed: {_text(model.gbps)} GB/s per link and direction, as {model.name} has")
        return model.gbps
    kind = LinkKind.NVSWITCH if machine.switched else machine.kind
    if machine.kind is LinkKind.XGMI:
        gbps, why = (Fraction(64), "a full mesh of 8: MI300X") if _mesh_of_8(lanes) else (Fraction(50), "MI200 series")
        printed = machine.printed_gbps
        other = f", where the dump says {_text(printed)}" if printed and abs(printed - gbps) * 10 > gbps else ""
        machine.guess(
            kind, f"xGMI speed: assumed {gbps} GB/s per link and direction ({why}){other}; --gpu-model would tell"
        )
        return gbps
    most = max(lanes.values())
    single = all(count == 1 for count in machine.direct.values()) and not machine.switched
    if single and most <= 4 and len(machine.gpus) > 2:
        machine.guess(
            kind,
            "NVLink speed: assumed 20 GB/s per link and direction (one link per pair and at most 4 per GPU: P100); "
            "--gpu-model would tell",
        )
        return Fraction(20)
    why = "at most 6 per GPU: V100" if most <= 6 else f"{most} per GPU: A100 or H100 class"
    if most > 12:
        why = f"{most} per GPU: H100 class; of the B200 class, 50"
    machine.guess(kind, f"NVLink speed: assumed 25 GB/s per link and direction ({why}); --gpu-model would tell")
    return Fraction(25)


def _mesh_of_8(lanes: dict[str, int]) -> bool:
    return len(lanes) == 8 and min(lanes.values()) == 7


def _pcie_links(machine: Machine, model: GpuModel | None, lanes: dict[str, int]) -> list[Link]:
    guess = None
    links = []
    for child in [*machine.gpus, *machine.nics, *machine.switches]:
        above = machine.parent.get(child)
        if above is None:
            continue
        kind = machine.host_kind.get(child, LinkKind.PCIE)
        gbps = machine.pcie.get(child)
        if gbps is None:
            guess = guess or _pcie_guess(machine, model, lanes)
            gbps = guess
        links += _both(child, above, kind, gbps)
    socket, what = machine.socket or _socket_guess(machine, guess)
    if len(machine.cpus) > 1:
        note = f"socket link: assumed {_text(socket)} GB/s per direction ({what})"
        if machine.socket is None:
            machine.guess(LinkKind.PCIE, note)
        else:
            machine.assume(note)
    if len(machine.cpus) > 2:
        machine.assume(f"{len(machine.cpus)} CPUs: taken as joined by a socket link for every pair")
    for i, a in enumerate(machine.cpus):
        for b in machine.cpus[i + 1 :]:
            links += _both(a, b, LinkKind.PCIE, socket)
    return links


def _socket_guess(machine: Machine, guess: Fraction | None) -> tuple[Fraction, str]:
    """Returns the link between CPUs of unknown generation, by the PCIe generation of the GPUs."""
    gpus = [machine.pcie.get(gpu, guess) for gpu in machine.gpus if gpu in machine.parent]
    fastest = max((gbps for gbps in gpus if gbps is not None), default=Fraction(25))
    return QPI if fastest < 25 else UPI


def _pcie_guess(machine: Machine, model: GpuModel | None, lanes: dict[str, int]) -> Fraction:
    most = max(lanes.values(), default=0)
    if model:
        generation, why = model.pcie, f"as {model.name} has"
    elif machine.kind is LinkKind.NVLINK and most:
        generation = 3 if most <= 6 else 4 if most <= 12 else 5
        why = f"{most} NVLinks per GPU; --gpu-model would tell"
    elif most:
        generation, why = (5, "MI300X") if _mesh_of_8(lanes) else (4, "MI200 series")
    else:
        generation, why = 3, "the least that such machines have; --gpu-model would tell"
    gbps = pcie_gbps(generation)
    machine.guess(
        LinkKind.PCIE,
        f"PCIe: assumed {PCIE_NAMES[generation]} x16, {_text(gbps)} GB/s of payload per direction ({why})",
    )
    return gbps


def _text(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):g}"
