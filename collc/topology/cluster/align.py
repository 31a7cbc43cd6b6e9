"""One server's names made those of another: what is at the same place in the PCIe tree has the same name.

A server that lost a device numbers the others of its kind anew: without one HCA, mlx5_4 becomes mlx5_3. And a PCIe
switch under which one device is left is no fork any more, so that the probe does not list it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from collc.topology.model import Link, LinkKind, Topology, VertexKind

# Ways to place the devices that are left; a server that lost more is no longer compared device by device.
_MOST_WAYS = 400


def align(machine: Topology, model: Topology) -> tuple[Topology, dict[str, str]]:
    """`machine` with the names of `model`, and where a device's own name differs: new name -> own name."""
    names = {v.name: v.name for v in machine.vertices}
    for kind in (VertexKind.GPU, VertexKind.NIC):
        names |= _placed(machine, model, kind, names)
    names |= _switches(renamed(machine, names), model, names)
    aligned = _with_lone_switches(renamed(machine, names), model)
    return aligned, {new: own for own, new in names.items() if new != own and not own.startswith("pcie")}


def renamed(machine: Topology, names: Mapping[str, str]) -> Topology:
    """The same machine under other names; `names` is one to one."""
    vertices = tuple(replace(v, name=names[v.name]) for v in machine.vertices)
    links = tuple(replace(k, src=names[k.src], dst=names[k.dst]) for k in machine.links)
    servers = {server: tuple(names[m] for m in members) for server, members in machine.servers.items()}
    return Topology(machine.name, vertices, links, servers, machine.notes, machine.gpu_model)


def _above(machine: Topology) -> dict[str, frozenset[str]]:
    """For every device the CPU above it; for both GPUs and NICs the devices that share a switch with it."""
    kinds = {v.name: v.kind for v in machine.vertices}
    near: dict[str, set[str]] = {name: set() for name in kinds}
    for link in machine.links:
        if link.kind in (LinkKind.PCIE, LinkKind.C2C):
            near[link.src].add(link.dst)
    found = {}
    for name in kinds:
        seen, todo = {name}, [name]
        while todo:
            for other in near[todo.pop()]:
                if other not in seen:
                    seen.add(other)
                    if kinds[other] is VertexKind.SWITCH:
                        todo.append(other)
        # Through a CPU the rest of the machine follows, which says nothing of the place.
        found[name] = frozenset(other for other in seen - {name} if kinds[other] is not VertexKind.SWITCH)
    return found


def _placed(machine: Topology, model: Topology, kind: VertexKind, before: Mapping[str, str]) -> dict[str, str]:
    """Own name -> name in the model, for devices of a kind, in order, so that as many as can be are at their place."""
    own = [v.name for v in machine.vertices if v.kind is kind]
    places = [v.name for v in model.vertices if v.kind is kind]
    if not own or len(own) >= len(places) or math.comb(len(places), len(own)) > _MOST_WAYS:
        return {}
    here, there = _above(machine), _above(model)
    direct: dict[tuple[str, str, LinkKind], Fraction]
    direct = {(k.src, k.dst, k.kind): k.gbps for k in model.links if k.kind not in (LinkKind.PCIE, LinkKind.C2C)}
    wires = [k for k in machine.links if k.kind not in (LinkKind.PCIE, LinkKind.C2C)]

    def wrong(names: Mapping[str, str]) -> int:
        full = {**before, **names}
        count = sum(len(frozenset(full[o] for o in here[a]) ^ (there[b] - lost(names))) for a, b in names.items())
        return count + sum(direct.get((full[k.src], full[k.dst], k.kind)) != k.gbps for k in wires)

    def lost(names: Mapping[str, str]) -> set[str]:
        return set(places) - set(names.values())

    ways = [dict(zip(own, chosen, strict=True)) for chosen in itertools.combinations(places, len(own))]
    if set(own) <= set(places):
        ways.insert(0, {name: name for name in own})
    return min(ways, key=wrong)


def _switches(machine: Topology, model: Topology, before: Mapping[str, str]) -> dict[str, str]:
    """Own name -> name in the model, for PCIe switches by the devices around them; others get names of their own."""
    here, there = _above(machine), _above(model)
    own = [v.name for v in machine.vertices if v.kind is VertexKind.SWITCH and v.name.startswith("pcie")]
    free = [v.name for v in model.vertices if v.kind is VertexKind.SWITCH and v.name.startswith("pcie")]
    taken = {v.name for v in model.vertices} | set(before.values())
    found: dict[str, str] = {}
    ranked = sorted(
        ((len(here[a] & there[b]) - len(here[a] ^ there[b]), a == b, a, b) for a in own for b in free), reverse=True
    )
    for score, _, a, b in ranked:
        if score > 0 and a not in found and b not in found.values():
            found[a] = b
    for a in own:
        if a not in found:
            fresh = (f"pcie{i}" for i in itertools.count())
            found[a] = next(name for name in fresh if name not in taken and name not in found.values())
    return found


def _with_lone_switches(machine: Topology, model: Topology) -> Topology:
    """Puts back switches of the model under which one device is left, and which the probe took for its cable."""
    names = {v.name for v in machine.vertices}
    links = {(k.src, k.dst, k.kind): k for k in machine.links}
    vertices = list(machine.vertices)
    wanted = {(k.src, k.dst, k.kind): k for k in model.links}
    for switch in model.vertices:
        if switch.kind is not VertexKind.SWITCH or switch.name in names:
            continue
        around = [k.dst for k in model.links if k.src == switch.name and k.kind is LinkKind.PCIE and k.dst in names]
        joined = [(a, b) for a, b in itertools.combinations(around, 2) if (a, b, LinkKind.PCIE) in links]
        if len(around) != 2 or len(joined) != 1:
            continue
        a, b = joined[0]
        for src, dst in ((a, b), (b, a)):
            seen = links.pop((src, dst, LinkKind.PCIE))
            ways = [wanted[src, switch.name, LinkKind.PCIE], wanted[switch.name, dst, LinkKind.PCIE]]
            same = min(k.gbps for k in ways) == seen.gbps
            for k in ways:
                links[k.src, k.dst, k.kind] = k if same else Link(k.src, k.dst, k.kind, seen.gbps, seen.latency_us)
        vertices.append(switch)
        names.add(switch.name)
    servers = {"server0": tuple(v.name for v in vertices)}
    return Topology(machine.name, tuple(vertices), tuple(links.values()), servers, machine.notes, machine.gpu_model)
