"""Checks the NICs that the tables of a library list. The runtime connects servers over these NICs.

The list comes from `collc.packing.sets.nics`, so that module is not used here.
"""

from __future__ import annotations

from pathlib import Path

from collc.checker.machine import Machine, packed_bus
from collc.checker.plans import PlanFile
from collc.checker.tables import Contents, Row
from collc.errors import RunError
from collc.limits import spend
from collc.topology.model import LinkKind, VertexKind

_NAME_BYTES = 16


def check_cards(machine: Machine, tables: Contents, documents: tuple[PlanFile, ...], path: Path) -> None:
    """Checks that the tables list exactly the NICs of the plan, with their names and bus ids in the machine.

    Raises:
        RunError: the lists differ.
    """
    expected = _rows(machine, documents[0], path) if len(documents) == 1 else ()
    if tables.cards == expected:
        return
    place = next((i for i, (a, b) in enumerate(zip(tables.cards, expected, strict=False)) if a != b), None)
    what = f"of {len(tables.cards)} network cards where its plan's topology has {len(expected)}"
    if place is not None:
        what = f"of network card {place} otherwise than its plan's topology"
    raise RunError(f"its tables tell {what}", where=str(path))


def _rows(machine: Machine, document: PlanFile, path: Path) -> tuple[Row, ...]:
    graph = document.graph
    servers = list(dict.fromkeys(graph.rank_servers))
    if len(servers) < 2:
        return ()
    spend(len(machine.vertices) + len(machine.links) + len(graph.vertices))
    places = {name: place for place, (name, _, _) in enumerate(machine.vertices)}
    fabrics = _fabrics(machine)
    rows: dict[int, Row] = {}
    for vertex in graph.vertices:
        # A NIC may be split into two vertices of the graph, NAME+in and NAME+out.
        place = places.get(vertex.name, places.get(vertex.name.rpartition("+")[0]))
        if vertex.kind is not VertexKind.NIC or place is None or place not in machine.cards or place in rows:
            continue
        server = machine.vertices[place][2]
        interface, pci = machine.cards[place]
        name = (interface or "").encode()
        name = name if len(name) <= _NAME_BYTES else b""
        if (name or pci) and place in fabrics and server in servers:
            packed = int.from_bytes(name, "little")
            rows[place] = (
                packed_bus(pci, str(path)) if pci else 0,
                packed % (1 << 64),
                packed >> 64,
                servers.index(server),
                fabrics[place],
            )
    return tuple(rows.values())


def _fabrics(machine: Machine) -> dict[int, int]:
    """Returns the number of the network of each vertex, except GPUs, that has a link of a network.

    Networks are numbered from 1, in the order of their first links.
    """
    gpus = {place for place, (_, kind, _) in enumerate(machine.vertices) if kind is VertexKind.GPU}
    links = [
        (src, dst) for src, dst, kind in machine.links if kind is LinkKind.NET and src not in gpus and dst not in gpus
    ]
    beside: dict[int, list[int]] = {}
    for src, dst in links:
        beside.setdefault(src, []).append(dst)
        beside.setdefault(dst, []).append(src)
    found: dict[int, int] = {}
    number = 0
    for start in (end for link in links for end in link):
        if start in found:
            continue
        number += 1
        found[start] = number
        todo = [start]
        while todo:
            for other in beside[todo.pop()]:
                if other not in found:
                    found[other] = number
                    todo.append(other)
    return found
