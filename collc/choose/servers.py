"""Topologies of several servers: which servers are of one kind, and each server as a separate machine."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from collc.errors import CollcError, TopologyError, UsageError
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.model import LinkKind, PlanGraph, Topology, VertexKind
from collc.topology.names import name_problem

# Tells users how libraries of one server treat calls that cross servers.
SEVERAL_SERVERS = (
    "each library serves communicators inside one server; calls that cross servers go to NCCL "
    "(name GPUs of several servers with --gpus for a library that joins them)"
)
# These describe sets without naming GPUs, so they apply to each server. A list of GPUs names servers.
_ANY_SERVER = re.compile(r"connected|all|[0-9]{1,6}\.\.[0-9]{1,6}")


@dataclass(frozen=True)
class ServerKind:
    """Servers whose GPUs have the same plan graph up to names. The first of `servers` stands for all of them."""

    servers: tuple[str, ...]
    machine: Topology
    fingerprint: str


def wants_kinds(topology: Topology, gpus: str | None, allocations: str | None) -> bool:
    """Returns True if a request means one library for each kind of server: several servers, and no GPUs named."""
    many = len(_with_gpus(topology)) > 1
    return many and gpus is None and (allocations is None or _ANY_SERVER.fullmatch(allocations) is not None)


def server_kinds(topology: Topology, links: str | None = None) -> list[ServerKind]:
    """The servers of a topology by kind, in the order of their first servers.

    Args:
        links: as in ``--links``.

    Raises:
        TopologyError: the GPUs of some server are not joined inside it.
    """
    found: dict[str, tuple[Topology, list[str]]] = {}
    # Most servers of a cluster are equal to the letter, and labelling a graph costs more than comparing two.
    seen: dict[object, str] = {}
    for server in _with_gpus(topology):
        machine = only_server(topology, server)
        key = (machine.vertices, machine.links)
        if key not in seen:
            seen[key] = fingerprint(_graph(topology, machine, server, links))
            found.setdefault(seen[key], (machine, []))
        found[seen[key]][1].append(server)
    return [ServerKind(tuple(servers), machine, key) for key, (machine, servers) in found.items()]


def only_server(topology: Topology, server: str, *, plain: bool = True) -> Topology:
    """Returns one server as a separate machine, called ``TOPOLOGY-SERVER``; ``SERVER.gpu0`` becomes ``gpu0``.

    Switches of a rack, which are of no server, belong to it as far as its GPUs reach them without a network: the trays
    of a GB200 NVL72 have their NVLinks there.

    Args:
        plain: False keeps the names of the topology, of its vertices and of the server.

    Raises:
        UsageError: there is no such server.
    """
    if server not in topology.servers:
        known = ", ".join(list(topology.servers)[:8])
        raise UsageError(f"no server is called `{server}`", where=topology.name, hint=f"its servers are: {known}")
    rack = _rack_switches(topology, server)
    members = {*topology.servers[server], *rack}
    own = f"{server}."
    short = {name: name.removeprefix(own) for name in members}
    if not plain or len(set(short.values())) < len(short) or any(name_problem(name) for name in short.values()):
        # Servers side by side have a switch each.
        short = {name: own + name if name in rack else name for name in members}
    vertices = tuple(replace(v, name=short[v.name]) for v in topology.vertices if v.name in members)
    links = tuple(
        replace(k, src=short[k.src], dst=short[k.dst]) for k in topology.links if k.src in members and k.dst in members
    )
    name = f"{topology.name}-{server}" if plain else topology.name
    name = server if name_problem(name) else name
    servers = {"server0" if plain else server: tuple(v.name for v in vertices)}
    return Topology(name, vertices, links, servers, gpu_model=topology.models.get(server, topology.gpu_model))


def _rack_switches(topology: Topology, server: str) -> set[str]:
    inside = {name for names in topology.servers.values() for name in names}
    switches = {v.name for v in topology.vertices if v.kind is VertexKind.SWITCH and v.name not in inside}
    reached, at = set[str](), set(topology.servers[server])
    while at:
        near = [k.dst for k in topology.links if k.src in at and k.kind is not LinkKind.NET]
        at = switches.intersection(near) - reached
        reached |= at
    return reached


def _with_gpus(topology: Topology) -> list[str]:
    gpus = {v.name for v in topology.gpus}
    return [server for server, members in topology.servers.items() if not gpus.isdisjoint(members)]


def _graph(topology: Topology, machine: Topology, server: str, links: str | None) -> PlanGraph:
    try:
        return plan_graph(machine, None, links)
    except UsageError:
        raise
    except CollcError as error:
        raise TopologyError(
            f"server {server} alone: {error.what}",
            where=topology.name,
            hint="a library needs GPUs that are joined inside their server; add its PCIe links, or name GPUs by --gpus",
        ) from None
