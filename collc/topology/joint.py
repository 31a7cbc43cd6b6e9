"""All links of a machine at once: the joint graph of several classes, which `collc plan --classes` packs.

A GPU that is joined with another by NVLink reaches it by no other way on its own: PCIe carries data between them only
through memory of the host, to which one GPU writes and from which the other reads. NICs reach GPUs directly. So the
graph has PCIe twice, once on the way out of GPUs (``plx0+out``) and once on the way into them (``plx0+in``), and leads
from the one to the other through a CPU's memory or from NIC to NIC. Each direction of a PCIe link is on one side alone,
and its capacity is what all classes share.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from collc.errors import TopologyError, UsageError
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
from collc.topology.paths import on_shortest_paths
from collc.topology.prune import useful_links

NETWORK = "network"


def parse_classes(text: str) -> tuple[str, ...]:
    """``nvlink,pcie`` or ``all`` as names of `JOINT`, in its order.

    Raises:
        UsageError: there is no such class, or one is named twice.
    """
    words = [word.strip() for word in text.split(",")]
    if words == ["all"]:
        return JOINT
    for word in words:
        if word not in JOINT:
            near = difflib.get_close_matches(word, JOINT, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"classes: {', '.join(JOINT)}, or all"
            raise UsageError(f"no class of links is called `{word[:40]}`", where="--classes", hint=hint)
    if len(set(words)) < len(words):
        raise UsageError("a class is named twice", where="--classes", hint="name each once")
    return tuple(name for name in JOINT if name in words)


def joint_graph(topology: Topology, gpus: Sequence[str] | None, classes: Sequence[str]) -> PlanGraph:
    """The graph of all classes together for some GPUs.

    Args:
        topology: where a CPU has a `memory_gbps`, every byte through its memory crosses it twice; without one, memory
            is no limit. NICs need links of kind net, or a speed (``gbps``): then one network joins them all.
        gpus: names in rank order [all].
        classes: members of `JOINT`.

    Raises:
        UsageError: a GPU does not exist.
        TopologyError: the file does not say enough of a class, or the classes do not join the GPUs.
    """
    chosen = chosen_gpus(topology, gpus)
    machine = with_network(topology) if "net" in classes else topology
    parts = Parts(machine, chosen, False)
    picked: list[Link] = []
    rename: dict[tuple[str, str], str] = {}
    for island in parts.islands:
        if "nvlink" in classes:
            picked += parts.within(island, FAST)
        picked += _host_links(parts, island, classes, rename)
    if "net" in classes:
        picked += [renamed_net(link, rename) for link in parts.links if link.kind in NET]
    edges = useful_links(picked, chosen)
    if lost := lost_gpu(chosen, edges):
        problem = f"{lost} cannot be reached from {chosen[0]} over {' and '.join(classes)}"
        missing = ",".join(name for name in JOINT if name not in classes)
        hint = f"name more classes ({missing})" if missing else "choose other GPUs"
        raise TopologyError(problem, where=topology.name, hint=hint)
    return assemble(machine, parts, chosen, edges)


def with_network(topology: Topology) -> Topology:
    """The topology with one switch that joins its NICs, where no link says how they are joined.

    Raises:
        TopologyError: no NIC has a link or a speed.
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
    """PCIe of one island: out of GPUs to memory and NICs, and back. Adds the split of its vertices to `rename`.

    Memory is the reader's own socket's: stores across sockets are posted, loads wait for their answer.
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
        _collect(into, from_nearest(host, ends, set(cpus), middle))
    if "net" in classes:
        wired = {end for link in parts.links if link.kind in NET for end in (link.src, link.dst)}
        nics = {name for name in members if name in wired and parts.kind[name] is VertexKind.NIC}
        _collect(out, to_nearest(host, ends, nics, middle))
        _collect(into, from_nearest(host, ends, nics, middle))
        middle = middle | nics
    # A link that leads to a NIC or to memory leads away from GPUs; the same one cannot also lead to them.
    if both := sorted((a, b) for a, b, _ in out.keys() & into.keys()):
        problem = f"the link {both[0][0]} > {both[0][1]} would carry data both out of GPUs and into them"
        raise TopologyError(problem, where=parts.topology.name, hint="plan it with --links, which knows no sides")
    touched = {end for link in (*out.values(), *into.values()) for end in (link.src, link.dst)} & middle
    rename |= {(way, name): f"{name}+{way}" for name in touched for way in ("out", "in")}
    picked = [renamed(link, rename, "out") for link in out.values()]
    picked += [renamed(link, rename, "in") for link in into.values()]
    return picked + (_memory(parts, list(out.values()), cpus, rename) if "pcie" in classes else [])


def _memory(parts: Parts, out: Sequence[Link], cpus: Sequence[str], rename: dict[tuple[str, str], str]) -> list[Link]:
    """Per CPU what passes through its memory: half of what that moves, or no less than what can arrive."""
    memory = {v.name: v.memory_gbps for v in parts.topology.vertices if v.kind is VertexKind.CPU}
    arriving: dict[str, Fraction] = defaultdict(Fraction)
    for link in out:
        arriving[link.dst] += link.gbps
    found = []
    for cpu in cpus:
        if cpu in arriving:
            moved = memory[cpu]
            gbps = arriving[cpu] if moved is None else moved / 2
            found.append(Link(rename["out", cpu], rename["in", cpu], LinkKind.PCIE, gbps))
    return found


def _collect(found: dict[tuple[str, str, LinkKind], Link], links: Sequence[Link]) -> None:
    found.update({(link.src, link.dst, link.kind): link for link in links})
