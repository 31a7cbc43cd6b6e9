"""Builds the multi-path graph, which has the links of several classes at once. `collc plan --classes` packs it.

GPUs that NVLink joins use PCIe between them only through host memory: one GPU writes to it and the other reads from it.
NICs reach GPUs directly. So the graph has the vertices of PCIe twice, once on paths out of GPUs (``plx0+out``) and once
on paths into GPUs (``plx0+in``). A path changes sides through a CPU's memory or over the network, from NIC to NIC. Each
direction of a PCIe link is only on one side, and all classes share its capacity.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import replace
from fractions import Fraction

from collc.errors import TopologyError, UsageError, first_few
from collc.topology.graph import (
    FAST,
    HOST,
    NET,
    Parts,
    assemble,
    chosen_gpus,
    from_nearest,
    lost_gpu,
    renamed,
    renamed_net,
    to_nearest,
)
from collc.topology.model import JOINT, Link, LinkKind, PlanGraph, Topology, Vertex, VertexKind
from collc.topology.paths import Adjacency, on_shortest_paths, turned
from collc.topology.prune import useful_links

NETWORK = "network"
# NICs that a note names.
_MAX_NAMES = 8


def parse_classes(text: str) -> tuple[str, ...]:
    """Returns the classes that a text such as ``nvlink,pcie`` or ``all`` names, in the order of `JOINT`.

    Raises:
        UsageError: a class does not exist or is named twice.
    """
    words = [word.strip() for word in text.split(",")]
    if words == ["all"]:
        return JOINT
    for word in words:
        if word not in JOINT:
            matches = difflib.get_close_matches(word, JOINT, n=1)
            hint = f"did you mean `{matches[0]}`?" if matches else f"classes: {', '.join(JOINT)}, or all"
            raise UsageError(f"no class of links is called `{word[:40]}`", where="--classes", hint=hint)
    if len(set(words)) < len(words):
        raise UsageError("a class is named twice", where="--classes", hint="name each once")
    return tuple(name for name in JOINT if name in words)


def joint_graph(topology: Topology, gpus: Sequence[str] | None, classes: Sequence[str]) -> PlanGraph:
    """Returns the graph of several classes together for some GPUs.

    Args:
        topology: if a CPU has a `memory_gbps`, every byte through its memory crosses it twice, and else memory is no
            limit. For the class net, NICs need links of kind net or a speed (``gbps``); with only speeds, one switch
            joins all NICs.
        gpus: names in rank order; default: all.
        classes: members of `JOINT`.

    Raises:
        UsageError: a GPU does not exist.
        TopologyError: the topology has no network for the class net, a link would be on both sides of the GPUs, or the
            classes do not connect the GPUs.
    """
    gpu_names = chosen_gpus(topology, gpus)
    machine = with_network(topology) if "net" in classes else topology
    parts = Parts(machine, gpu_names, False)
    links: list[Link] = []
    rename: dict[tuple[str, str], str] = {}
    for island in parts.islands:
        if "nvlink" in classes:
            links += parts.within(island, FAST)
        links += _host_links(parts, island, classes, rename)
    if "net" in classes:
        links += [renamed_net(link, rename) for link in parts.links if link.kind in NET]
    edges = useful_links(links, gpu_names)
    if lost := lost_gpu(gpu_names, edges):
        problem = f"{lost} cannot be reached from {gpu_names[0]} over {' and '.join(classes)}"
        others = ",".join(name for name in JOINT if name not in classes)
        hint = f"name more classes ({others})" if others else "choose other GPUs"
        raise TopologyError(problem, where=topology.name, hint=hint)
    return assemble(machine, parts, gpu_names, edges)


def usable_classes(topology: Topology, text: str) -> tuple[tuple[str, ...], list[str]]:
    """Returns the classes of ``--classes TEXT``, and notes about NICs that no class uses.

    ``all`` leaves out the class net if the network between the NICs is unknown.

    Raises:
        UsageError: a class does not exist or is named twice.
    """
    classes = parse_classes(text)
    on_network = {end for link in topology.links if link.kind in NET for end in (link.src, link.dst)}
    nics = [v for v in topology.vertices if v.kind is VertexKind.NIC]
    unknown = [v.name for v in nics if v.name not in on_network and not (v.port and v.port.gbps and not on_network)]
    if "net" not in classes or not unknown:
        return classes, []
    names = first_few(unknown, _MAX_NAMES)
    note = f"network unknown, left out: {names}; a speed, as {{name: nic0, gbps: 50}}, or links of kind net would tell"
    if on_network or len(nics) - len(unknown) >= 2:
        return classes, [note]
    if text.strip() != "all":
        return classes, []  # the caller asked for a network that does not exist, and gets an error
    return tuple(name for name in classes if name != "net"), [note]


def with_network(topology: Topology) -> Topology:
    """Returns the topology with one switch that joins its NICs, unless it has links of kind net already.

    Raises:
        TopologyError: there is no link of kind net, and fewer than two NICs are up and have a speed.
    """
    if any(link.kind in NET for link in topology.links):
        return topology
    speeds = [(v.name, v.port.gbps) for v in topology.vertices if v.port is not None and v.port.up and v.port.gbps]
    if len(speeds) < 2:
        hint = "give NICs a speed, as {name: nic0, gbps: 50}, or links of kind net, or leave net out"
        raise TopologyError("no network between its NICs is known", where=topology.name, hint=hint)
    name = NETWORK
    while any(v.name == name for v in topology.vertices):
        name += "-"
    links = [
        Link(*ends, LinkKind.NET, gbps)
        for nic, gbps in speeds
        for ends in ((nic, name), (name, nic))
        if gbps is not None
    ]
    vertices = (*topology.vertices, Vertex(name, VertexKind.SWITCH))
    return replace(topology, vertices=vertices, links=(*topology.links, *links))


def _host_links(parts: Parts, island: str, classes: Sequence[str], rename: dict[tuple[str, str], str]) -> list[Link]:
    """Returns the PCIe links of one island: from GPUs to memory and NICs, and back. Adds split vertices to `rename`.

    GPUs write to the memory of every CPU, and read from the memory of their nearest CPUs. Stores across sockets do not
    wait for an answer, but loads do.
    """
    host = [link for link in parts.links_of(island) if link.kind in HOST]
    middle = parts.middle_of(island)
    members = parts.members[island]
    ends = {name for name in members if name in parts.ends}
    out: dict[tuple[str, str, LinkKind], Link] = {}
    into: dict[tuple[str, str, LinkKind], Link] = {}
    cpus = [name for name in members if parts.kind[name] is VertexKind.CPU]
    if "pcie" in classes:
        _collect(out, on_shortest_paths(host, [(gpu, cpu) for gpu in sorted(ends) for cpu in cpus], middle))
        near, far = _memory_pairs(host, sorted(ends), cpus, middle)
        _collect(into, on_shortest_paths(host, [*near, *far], middle))
        if out.keys() & into.keys():
            # A CPU without GPUs is on the way between two others (CPUs in a ring), so its memory is not read.
            into.clear()
            _collect(into, on_shortest_paths(host, near, middle))
    if "net" in classes:
        net_ends = {end for link in parts.links if link.kind in NET for end in (link.src, link.dst)}
        nics = {name for name in members if name in net_ends and parts.kind[name] is VertexKind.NIC}
        _collect(out, to_nearest(host, ends, nics, middle))
        _collect(into, from_nearest(host, ends, nics, middle))
        middle = middle | nics
    # A link on a path from GPUs to a NIC or to memory cannot also be on a path to GPUs.
    if conflicts := sorted((a, b) for a, b, _ in out.keys() & into.keys()):
        problem = f"the link {conflicts[0][0]} > {conflicts[0][1]} would carry data both out of GPUs and into them"
        raise TopologyError(problem, where=parts.topology.name, hint="plan it with --links, which knows no sides")
    split = {end for link in (*out.values(), *into.values()) for end in (link.src, link.dst)} & middle
    rename |= {(way, name): f"{name}+{way}" for name in split for way in ("out", "in")}
    picked = [renamed(link, rename, "out") for link in out.values()]
    picked += [renamed(link, rename, "in") for link in into.values()]
    return picked + (_memory(parts, list(out.values()), cpus, rename) if "pcie" in classes else [])


def _memory_pairs(
    host: Sequence[Link], ends: Sequence[str], cpus: Sequence[str], middle: Set[str]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Returns each (CPU, GPU) where the GPU reads the CPU's memory: its nearest CPUs, and then further ones.

    The memory of a CPU that is no GPU's nearest is read by the GPUs of the nearest CPUs that are. The depth of GPUs
    below their CPUs does not count, because reads of shallow GPUs from another GPU's CPU would take a link between CPUs
    on which data leave that GPU.
    """
    down, up = Adjacency(host), Adjacency(turned(host))
    homes: dict[str, list[str]] = {}
    for gpu in ends:
        hops = up.hops(gpu, middle)
        near = {cpu: hops[cpu] for cpu in cpus if cpu in hops}
        homes[gpu] = [cpu for cpu, count in near.items() if count == min(near.values())]
    pairs = [(cpu, gpu) for gpu, own in homes.items() for cpu in own]
    taken = {cpu for cpu, _ in pairs}
    further: list[tuple[str, str]] = []
    for cpu in cpus:
        if cpu in taken:
            continue
        hops = down.hops(cpu, middle)
        near = {home: hops[home] for home in taken if home in hops}
        nearest = {home for home, count in near.items() if count == min(near.values())}
        further += [(cpu, gpu) for gpu, own in homes.items() if nearest & set(own)]
    return pairs, further


def _memory(parts: Parts, out: Sequence[Link], cpus: Sequence[str], rename: dict[tuple[str, str], str]) -> list[Link]:
    """Returns a link through the memory of each CPU: half of its `memory_gbps`, or, without it, all arriving GB/s."""
    memory = {v.name: v.memory_gbps for v in parts.topology.vertices if v.kind is VertexKind.CPU}
    arrival_gbps: dict[str, Fraction] = defaultdict(Fraction)
    for link in out:
        arrival_gbps[link.dst] += link.gbps
    links = []
    for cpu in cpus:
        if cpu in arrival_gbps:
            limit_gbps = memory[cpu]
            gbps = arrival_gbps[cpu] if limit_gbps is None else limit_gbps / 2
            links.append(Link(rename["out", cpu], rename["in", cpu], LinkKind.PCIE, gbps))
    return links


def _collect(by_ends: dict[tuple[str, str, LinkKind], Link], links: Sequence[Link]) -> None:
    by_ends.update({(link.src, link.dst, link.kind): link for link in links})
