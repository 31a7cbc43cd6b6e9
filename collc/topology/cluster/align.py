"""Renames the devices of a server, so that devices at the same place in the PCIe tree have another server's names.

A server that lost a device gives other numbers to the rest of its kind: without one HCA, mlx5_4 becomes mlx5_3. The
probe also omits a PCIe switch that has only one device left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from collc.topology.cluster.network import natural
from collc.topology.model import Link, LinkKind, Topology, VertexKind

# Two servers of one kind share at least this part of all vertices and links that either has.
MIN_SHARED_RATIO = Fraction(3, 5)
# Assignments of a server's devices to the places of the model. A server with more is not compared device by device.
_MAX_ASSIGNMENTS = 400


def align(machine: Topology, model: Topology) -> tuple[Topology, dict[str, str]]:
    """Returns `machine` with the names of `model`, and new name -> own name of each device whose name changes.

    PCIe switches are missing in the map of names.
    """
    names = {v.name: v.name for v in machine.vertices}
    for kind in (VertexKind.GPU, VertexKind.NIC):
        names |= _assign(machine, model, kind, names)
    names |= _switches(renamed(machine, names), model, names)
    result = _with_lone_switches(renamed(machine, names), model)
    return result, {new: own for own, new in names.items() if new != own and not own.startswith("pcie")}


def renamed(machine: Topology, names: Mapping[str, str]) -> Topology:
    """Returns the machine with other names; `names` maps them one to one."""
    vertices = tuple(replace(v, name=names[v.name]) for v in machine.vertices)
    links = tuple(replace(k, src=names[k.src], dst=names[k.dst]) for k in machine.links)
    servers = {server: tuple(names[m] for m in members) for server, members in machine.servers.items()}
    return replace(machine, vertices=vertices, links=links, servers=servers)


def _above(machine: Topology) -> dict[str, frozenset[str]]:
    """Returns for each vertex the CPUs, GPUs and NICs that it reaches over PCIe or C2C through switches only."""
    kinds = {v.name: v.kind for v in machine.vertices}
    neighbors: dict[str, set[str]] = {name: set() for name in kinds}
    for link in machine.links:
        if link.kind in (LinkKind.PCIE, LinkKind.C2C):
            neighbors[link.src].add(link.dst)
    above = {}
    for name in kinds:
        reached, todo = {name}, [name]
        while todo:
            for other in neighbors[todo.pop()]:
                if other not in reached:
                    reached.add(other)
                    if kinds[other] is VertexKind.SWITCH:
                        todo.append(other)
        # The search stops at CPUs, because the rest of the machine behind a CPU does not describe the place.
        above[name] = frozenset(other for other in reached - {name} if kinds[other] is not VertexKind.SWITCH)
    return above


def _assign(machine: Topology, model: Topology, kind: VertexKind, other_names: Mapping[str, str]) -> dict[str, str]:
    """Returns own name -> name in the model for the devices of a kind, in order, with the fewest differences.

    NICs of equal number, most under other names, get the names of the model in order. Returns an empty map if the
    server lacks no device of the kind otherwise, has none, or has more than `_MAX_ASSIGNMENTS` assignments.
    """
    own = [v.name for v in machine.vertices if v.kind is kind]
    places = [v.name for v in model.vertices if v.kind is kind]
    shared = len(set(own) & set(places))
    if kind is VertexKind.NIC and len(own) == len(places) and shared < MIN_SHARED_RATIO * len(set(own) | set(places)):
        return dict(zip(sorted(own, key=natural), sorted(places, key=natural), strict=True))
    if not own or len(own) >= len(places) or math.comb(len(places), len(own)) > _MAX_ASSIGNMENTS:
        return {}
    own_above, model_above = _above(machine), _above(model)
    direct: dict[tuple[str, str, LinkKind], Fraction]
    direct = {(k.src, k.dst, k.kind): k.gbps for k in model.links if k.kind not in (LinkKind.PCIE, LinkKind.C2C)}
    wires = [k for k in machine.links if k.kind not in (LinkKind.PCIE, LinkKind.C2C)]

    def differences(names: Mapping[str, str]) -> int:
        full = {**other_names, **names}
        count = sum(
            len(frozenset(full[o] for o in own_above[a]) ^ (model_above[b] - free_places(names)))
            for a, b in names.items()
        )
        return count + sum(direct.get((full[k.src], full[k.dst], k.kind)) != k.gbps for k in wires)

    def free_places(names: Mapping[str, str]) -> set[str]:
        return set(places) - set(names.values())

    ways = [dict(zip(own, subset, strict=True)) for subset in itertools.combinations(places, len(own))]
    if set(own) <= set(places):
        ways.insert(0, {name: name for name in own})
    return min(ways, key=differences)


def _switches(machine: Topology, model: Topology, device_names: Mapping[str, str]) -> dict[str, str]:
    """Returns own name -> new name of each PCIe switch.

    The new name is the name of the switch in the model with the most similar devices, or a free name.
    """
    own_above, model_above = _above(machine), _above(model)
    own = [v.name for v in machine.vertices if v.kind is VertexKind.SWITCH and v.name.startswith("pcie")]
    free = [v.name for v in model.vertices if v.kind is VertexKind.SWITCH and v.name.startswith("pcie")]
    taken = {v.name for v in model.vertices} | set(device_names.values())
    new_names: dict[str, str] = {}
    scores = sorted(
        (
            (len(own_above[a] & model_above[b]) - len(own_above[a] ^ model_above[b]), a == b, a, b)
            for a in own
            for b in free
        ),
        reverse=True,
    )
    for score, _, a, b in scores:
        if score > 0 and a not in new_names and b not in new_names.values():
            new_names[a] = b
    for a in own:
        if a not in new_names:
            candidates = (f"pcie{i}" for i in itertools.count())
            new_names[a] = next(name for name in candidates if name not in taken and name not in new_names.values())
    return new_names


def _with_lone_switches(machine: Topology, model: Topology) -> Topology:
    """Returns the machine with the model's switches that have one device left, merged by the probe into its link."""
    names = {v.name for v in machine.vertices}
    links = {(k.src, k.dst, k.kind): k for k in machine.links}
    vertices = list(machine.vertices)
    wanted = {(k.src, k.dst, k.kind): k for k in model.links}
    for switch in model.vertices:
        if switch.kind is not VertexKind.SWITCH or switch.name in names:
            continue
        neighbors = [k.dst for k in model.links if k.src == switch.name and k.kind is LinkKind.PCIE and k.dst in names]
        pairs = [(a, b) for a, b in itertools.combinations(neighbors, 2) if (a, b, LinkKind.PCIE) in links]
        if len(neighbors) != 2 or len(pairs) != 1:
            continue
        a, b = pairs[0]
        for src, dst in ((a, b), (b, a)):
            link = links.pop((src, dst, LinkKind.PCIE))
            ways = [wanted[src, switch.name, LinkKind.PCIE], wanted[switch.name, dst, LinkKind.PCIE]]
            is_equal = min(k.gbps for k in ways) == link.gbps
            for k in ways:
                links[k.src, k.dst, k.kind] = k if is_equal else Link(k.src, k.dst, k.kind, link.gbps, link.latency_us)
        vertices.append(switch)
        names.add(switch.name)
    servers = {"server0": tuple(v.name for v in vertices)}
    return replace(machine, vertices=tuple(vertices), links=tuple(links.values()), servers=servers)
