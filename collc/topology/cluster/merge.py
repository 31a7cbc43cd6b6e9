"""Merges probed servers into one cluster, for `collc probe --merge` and `--cluster`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collc.errors import TopologyError, UsageError
from collc.topology.cluster.domains import join_domains
from collc.topology.cluster.fabric import fabric_network
from collc.topology.cluster.fold import fold, odd_lines
from collc.topology.cluster.model import Cluster, Server
from collc.topology.cluster.network import (
    assumed_network,
    fast_nics,
    natural,
    prune_switches,
    usable_nics,
    with_spine,
)
from collc.topology.cluster.rails import rails_network
from collc.topology.cluster.slurm import slurm_network, split_slurm
from collc.topology.load import MAX_SERVERS
from collc.topology.model import Topology
from collc.topology.names import MAX_NAME, name_problem


@dataclass(frozen=True)
class Described:
    """The user's description: of the network, a file of rails or dumps, each (name, text); of NVLink domains, options.

    Attributes:
        domains: as in `join_domains`.
    """

    rails: tuple[str, str] | None = None
    dumps: Sequence[tuple[str, str]] = ()
    domains: Sequence[str] = ()


def server_of(path: Path, machine: Topology) -> Server:
    """Returns the server that a file describes. Its name is the file's name without the last suffix.

    Raises:
        UsageError: the file describes several servers, or its name is no valid name of a server.
    """
    if len(machine.servers) > 1:
        raise UsageError(
            f"describes {len(machine.servers)} servers, and --merge takes one server per file",
            where=str(path),
            hint="probe each server, or merge the files that this one was made of",
        )
    name = path.stem
    if problem := name_problem(name):
        raise UsageError(f"the name {name[:40]!r} {problem}", where=str(path), hint="name the file after its server")
    return Server(name, machine, str(path))


def merge(servers: Sequence[Server], described: Described, name: str) -> Cluster:
    """Folds servers into kinds and adds the network between them.

    Args:
        described: the network; if it is empty, a network between the fast NICs of the servers is assumed.
        name: the name of the cluster.

    Raises:
        UsageError: two servers have one name, a name is not possible, or there are more than `MAX_SERVERS`.
        TopologyError: a file about the network is wrong, or two servers have a NIC of the same GUID.
    """
    _check(servers)
    dumps, slurm = split_slurm(described.dumps)
    servers, domains, domain_notes = join_domains(servers, described.domains, slurm.blocks)
    kinds = fold(sorted(servers, key=lambda server: natural(server.name)))
    nics, notes = usable_nics(kinds)
    if described.rails is not None:
        network = with_spine(rails_network(described.rails[1], described.rails[0], nics))
    elif dumps:
        network = fabric_network(dumps, nics)
    elif slurm.switches:
        network = with_spine(prune_switches(slurm_network(slurm, nics)))
    else:
        nics, slow = fast_nics(nics)
        network, notes = assumed_network(nics), [*notes, *slow]
    if network.cables and any(nic.is_assumed for nic in nics):
        network = replace(network, assumed=True)
    servers_on_network = {cable.server for cable in network.cables}
    isolated = [server.name for server in servers if server.name not in servers_on_network]
    isolated = [name for name in isolated if not any(name == server for d in domains for server, _ in d.links)]
    if isolated and len(servers) > 1:
        what = f"{', '.join(isolated[:8])}{' ...' if len(isolated) > 8 else ''}"
        notes.append(
            f"{what}: no link to the network, so no plan can use {'it' if len(isolated) == 1 else 'them'} with others"
        )
    return Cluster(name, kinds, network, (*domain_notes, *notes, *_probe_notes(servers)), domains)


def _check(servers: Sequence[Server]) -> None:
    if len(servers) > MAX_SERVERS:
        raise UsageError(f"{len(servers)} servers are more than {MAX_SERVERS}", where="--merge")
    by_name: dict[str, Server] = {}
    guids: dict[str, Server] = {}
    for server in servers:
        if server.name == "each":
            raise UsageError("`each` cannot be the name of a server", where=server.source, hint="rename the file")
        other = by_name.setdefault(server.name, server)
        if other is not server:
            raise UsageError(
                f"server {server.name} is in {other.source} already",
                where=server.source,
                hint="give each its own name",
            )
        for vertex in server.machine.vertices:
            if len(server.name) + 1 + len(vertex.name) > MAX_NAME:
                what = f"{server.name}.{vertex.name} is longer than {MAX_NAME} characters"
                raise UsageError(what, where=server.source, hint="give the server a shorter name")
            guid = vertex.port.guid if vertex.port else None
            if guid and guids.setdefault(guid, server) is not server:
                what = f"its NIC {vertex.name} is that of {guids[guid].source} too, by its GUID"
                raise TopologyError(what, where=server.source, hint="is it the same server twice?")


def _probe_notes(servers: Sequence[Server]) -> list[str]:
    """Returns the notes of the servers' probes, each once; before it the names of its servers, if not all have it."""
    count: Counter[str] = Counter(note for server in servers for note in dict.fromkeys(server.machine.notes))
    notes = []
    for note, number in count.items():
        if number == len(servers):
            notes.append(note)
            continue
        names = [server.name for server in servers if note in server.machine.notes]
        notes.append(f"{', '.join(names[:6])}{f' and {number - 6} more' if number > 6 else ''}: {note}")
    return notes


def lines_for_people(cluster: Cluster) -> list[str]:
    """Returns the lines that the command prints to standard error: odd servers, then notes of network and servers."""
    return [*odd_lines(cluster.kinds), *cluster.network.notes, *cluster.notes]
