"""Joins the servers of one NVLink domain: the NVSwitches of a rack (NVL72) are one vertex, which belongs to no server.

`collc probe` writes the domain of a server's switch as CLUSTER-UUID/CLIQUE. Servers with equal domains are joined. A
file of another tray with Grace CPUs does not tell whether NVLinks lead to other trays; `--domain` or the blocks of
Slurm's topology tell it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from collc.errors import TopologyError, UsageError, first_few
from collc.topology.cluster.model import Domain, Server
from collc.topology.model import LinkKind, Topology, Vertex

EACH, ALL = "each", "all"
_OPTION = "--domain"
_GRACE = re.compile(r"\bG[BH][0-9]00\b")
_MAX_NAMES = 6


@dataclass(frozen=True)
class _Tray:
    """A server whose GPUs have NVLinks into a switch that may be part of a larger domain."""

    server: Server
    switch: Vertex


def join_domains(
    servers: Sequence[Server], options: Sequence[str], blocks: Mapping[str, Sequence[str]]
) -> tuple[list[Server], tuple[Domain, ...], list[str]]:
    """Returns the servers without the switches of domains that several servers share, the domains, and notes.

    Args:
        options: the values of --domain: ``all``, ``each``, or names of servers with commas, one value for each domain.
        blocks: the blocks of Slurm's topology: name -> servers.

    Raises:
        UsageError: an option names no server, or names one twice.
        TopologyError: nothing tells which trays share a domain.
    """
    trays = [tray for server in servers for tray in _trays(server)]
    domain_of = _given(servers, trays, options) or _from_files(trays, blocks)
    groups: dict[str, list[_Tray]] = {}
    for tray in trays:
        if (domain := domain_of.get(tray.server.name)) is not None:
            groups.setdefault(domain, []).append(tray)
    shared = {name: group for name, group in groups.items() if len(group) > 1}
    taken = {v.name for server in servers for v in server.machine.vertices} | {server.name for server in servers}
    names = (name for i in count() if (name := f"nvl{i}") not in taken)
    found: list[Domain] = []
    without: dict[str, Server] = {}
    for group in shared.values():
        links = [
            (tray.server.name, link)
            for tray in group
            for link in tray.server.machine.links
            if link.kind is LinkKind.NVSWITCH and link.dst == tray.switch.name
        ]
        can_add = all(tray.switch.multicast and tray.switch.reduce for tray in group)
        vertex = Vertex(next(names), group[0].switch.kind, can_add, can_add)
        found.append(Domain(vertex, tuple(links)))
        without |= {tray.server.name: _without(tray) for tray in group}
    notes = [_note(domain, shared[name]) for domain, name in zip(found, shared, strict=True)]
    return [without.get(server.name, server) for server in servers], tuple(found), notes


def _note(domain: Domain, group: Sequence[_Tray]) -> str:
    names = first_few([tray.server.name for tray in group], _MAX_NAMES)
    return (
        f"NVLink domain {domain.switch.name}: {names}, {len(domain.links)} GPUs; jobs over several of these servers "
        f"need IMEX on each, without it say {_OPTION} {EACH}"
    )


def _trays(server: Server) -> list[_Tray]:
    """Returns the tray of a server, with the switch that most of its GPUs have NVLinks into; none for other servers."""
    machine = server.machine
    gpus_at: dict[str, int] = {}
    for link in machine.links:
        if link.kind is LinkKind.NVSWITCH:
            gpus_at[link.dst] = gpus_at.get(link.dst, 0) + 1
    switches = [v for v in machine.vertices if v.name.startswith("nvs") and v.name in gpus_at]
    has_grace = any(link.kind is LinkKind.C2C for link in machine.links)
    may_span = has_grace or _GRACE.search(machine.gpu_model or "") or any(v.domain for v in switches)
    if not switches or not may_span:
        return []
    return [_Tray(server, max(switches, key=lambda v: (v.domain is not None, gpus_at[v.name])))]


def _given(servers: Sequence[Server], trays: Sequence[_Tray], options: Sequence[str]) -> dict[str, str]:
    """Returns server -> domain, by the options; empty without options."""
    if not options:
        return {}
    if ALL in options or EACH in options:
        if len(options) > 1:
            raise UsageError(f"`{ALL}` and `{EACH}` stand alone", where=_OPTION, hint="or name the servers")
        return {tray.server.name: ALL if ALL in options else tray.server.name for tray in trays}
    names = {tray.server.name for tray in trays}
    domains: dict[str, str] = {}
    for number, option in enumerate(options):
        for name in option.split(","):
            if name not in names:
                known = name in {server.name for server in servers}
                what = f"no NVSwitch in {name[:40]}" if known else f"no server is called {name[:40]!r}"
                raise UsageError(what, where=_OPTION, hint=f"such servers: {first_few(sorted(names), _MAX_NAMES)}")
            if name in domains:
                raise UsageError(f"{name} is named twice", where=_OPTION, hint="a server is in one domain")
            domains[name] = str(number)
    return {name: domains.get(name, name) for name in names}


def _from_files(trays: Sequence[_Tray], blocks: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns server -> domain, as probes or Slurm's blocks tell.

    Raises:
        TopologyError: there are several trays, and they do not tell it of some.
    """
    block_of = {server: f"block {name}" for name, members in blocks.items() for server in members}
    domains = {t.server.name: d for t in trays if (d := t.switch.domain or block_of.get(t.server.name))}
    unknown = [tray for tray in trays if tray.server.name not in domains]
    if unknown and len(trays) > 1:
        names = first_few([tray.server.name for tray in unknown], _MAX_NAMES)
        what = f"{names}: whether their GPUs share an NVLink domain with those of other servers is in no file"
        hint = f"say {_OPTION} {ALL}, {_OPTION} {EACH} or {_OPTION} {trays[0].server.name},{trays[1].server.name}"
        raise TopologyError(what, where=unknown[0].server.source, hint=hint)
    return domains


def _without(tray: _Tray) -> Server:
    """Returns the server without the switch of its domain and the links into it."""
    machine = tray.server.machine
    name = tray.switch.name
    vertices = tuple(v for v in machine.vertices if v.name != name)
    links = tuple(link for link in machine.links if name not in (link.src, link.dst))
    inside = {server: tuple(m for m in members if m != name) for server, members in machine.servers.items()}
    small: Topology = replace(machine, vertices=vertices, links=links, servers=inside)
    return replace(tray.server, machine=small)
