"""Reads the machine of a library, and proves that each set of GPUs has the links of the plan that it runs.

A library lists the vertices and links of its machine. For each set of GPUs, its tables list the vertices that
correspond to the forwarders of the plan. If a library survives losses, its tables also list what each loss takes from
the machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from collc.checker.layout import LINKS
from collc.checker.plans import PlanFile
from collc.checker.tables import Contents, Row, State, TableSet
from collc.checker.values import Reader
from collc.errors import RunError
from collc.limits import spend
from collc.topology.model import LinkKind, VertexKind

# The start of the text about a state, if the state is one kind of server in a library for several.
ALL_BUT = "all but "

_PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])")
_FAST = (LinkKind.NVLINK, LinkKind.NVSWITCH, LinkKind.XGMI)


@dataclass(frozen=True)
class Machine:
    """The machine of a library.

    Attributes:
        vertices: (name, kind, server) of each vertex, GPUs first.
        links: (source, destination, kind) -> GB/s.
        cards: the NICs that are up: vertex -> (interface or None, PCI bus id or None).
        buses: the bus ids of the GPUs as in the tables, 0 if unknown; empty if all are unknown.
    """

    vertices: tuple[tuple[str, VertexKind, str], ...]
    links: dict[tuple[int, int, LinkKind], Fraction]
    cards: dict[int, tuple[str | None, str | None]]
    buses: tuple[int, ...]


def read_machine(obj: object, where: str) -> Machine:
    """Returns the machine of a JSON value.

    Raises:
        RunError: the value is no machine.
    """
    reader = Reader(where, RunError)
    top = reader.table(obj, "", ("vertices", "links", "buses", "cards"))
    own, kind = (reader.text, reader.member(VertexKind), reader.text), reader.member(LinkKind)
    vertices = [tuple(row) for row in reader.read(top["vertices"], "vertices", [own])]
    vertex = reader.below(len(vertices), "vertex")
    links: dict[tuple[int, int, LinkKind], Fraction] = {}
    for i, (*key, gbps) in enumerate(reader.read(top["links"], "links", [(vertex, vertex, kind, reader.fraction)])):
        if tuple(key) in links:
            reader.fail(f"links[{i}]", "the same pair and kind is listed twice")
        links[tuple(key)] = gbps
    name, cards = reader.maybe(reader.text), {}
    for i, (card, interface, pci) in enumerate(reader.read(top["cards"], "cards", [(vertex, name, name)])):
        if card in cards or vertices[card][1] is not VertexKind.NIC:
            reader.fail(f"cards[{i}]", "it is listed twice, or is none")
        cards[card] = interface, pci
    # The runtime identifies a GPU by domain, bus and device. The lowest byte, for the function, is always 1.
    texts = reader.read(top["buses"], "buses", [name])
    buses = tuple(packed_bus(pci, where) // 256 * 256 + 1 if pci else 0 for pci in texts)
    return Machine(tuple(vertices), links, cards, buses)


def packed_bus(pci: str, where: str) -> int:
    """Returns a PCI bus id as a number, as `GpuPlace::bus` of the runtime packs it.

    Raises:
        RunError: the text is no bus id.
    """
    found = _PCI.fullmatch(pci)
    if found is None:
        raise RunError("a bus id of its machine is malformed", where=where)
    domain, bus, device, function = (int(part, 16) for part in found.groups())
    return domain << 32 | bus << 16 | device << 8 | function + 1


def check_sets(machine: Machine, tables: Contents, documents: Sequence[PlanFile], path: Path) -> None:
    """Checks that every set of GPUs in the tables has the links of the plan that it runs.

    Raises:
        RunError: the tables and the machine disagree.
    """
    gpus = [v for v in machine.vertices if v[1] is VertexKind.GPU]
    names = tuple(name for name, _, _ in machine.vertices)
    if names != tables.names or len(gpus) != tables.ngpus or machine.vertices[: len(gpus)] != tuple(gpus):
        raise RunError("its tables name other vertices than its machine has", where=str(path))
    if tables.buses != machine.buses:
        raise RunError("its tables give its GPUs other bus ids than its machine has", where=str(path))
    rows = tables.vertices, tables.links
    if rows != _rows(machine) and (any(rows) or len(tables.states) > 1):
        raise RunError("its tables describe another machine than its own", where=str(path))
    for number, state in enumerate(tables.states):
        if bool(state.changes) != bool(number):
            raise RunError("its first state has lost nothing, and each of the others something", where=str(path))
        left, what = after_loss(machine, state.changes, path)
        where = f"{path}: without {what}" if number else str(path)
        if len({one.gpus for one in state.sets}) != len(state.sets):
            raise RunError("its sets of GPUs are listed twice", where=where)
        if state.classes != _classes(left, documents, len(gpus)) and not (
            len(state.sets) <= 1 and state.classes == tuple(range(len(gpus)))
        ):
            raise RunError("its classes are not the GPUs that may change places freely", where=where)
        for one in state.sets:
            problem = _problem(left, state, documents, one)
            if problem:
                raise RunError(f"its GPU set {list(one.gpus)} {problem}", where=where)


def _rows(machine: Machine) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Returns the machine's vertices and links as rows of the tables."""
    links = ((*gbps.as_integer_ratio(), src, dst, LINKS[kind]) for (src, dst, kind), gbps in machine.links.items())
    return tuple((list(VertexKind).index(kind),) for _, kind, _ in machine.vertices), tuple(links)


def after_loss(machine: Machine, changes: Sequence[Row], path: Path) -> tuple[Machine, str]:
    """Returns the machine after a loss, and a text about the loss.

    If whole servers are gone and others are left, the text names the remaining servers instead of the lost ones. Such a
    state is for machines that consist of the remaining servers.

    Raises:
        RunError: the machine does not have the lost part.
    """
    spend(len(machine.links))
    links, left, gone = list(machine.links.items()), dict(machine.links), set()
    lost: dict[str, None] = {}
    for num, den, vertex, number in changes:
        speed = Fraction(num, den or 1)
        if speed.as_integer_ratio() == (num, den) == (0, 1) and vertex == 1 and number < len(machine.vertices):
            gone.add(number)
            lost[machine.vertices[number][0]] = None
        elif speed.as_integer_ratio() == (num, den) and not vertex and number < len(links) and speed < links[number][1]:
            (src, dst, kind), gbps = links[number]
            left[src, dst, kind] = speed
            ends = sorted((machine.vertices[src][0], machine.vertices[dst][0]))
            lost[f"{'-'.join(ends)} {kind.value}, {speed} of {gbps} GB/s left"] = None
        else:
            raise RunError("a state loses a vertex or link that its machine does not have", where=str(path))
    kept = {key: gbps for key, gbps in left.items() if gbps and gone.isdisjoint(key[:2])}
    standing = {server for v, (_, _, server) in enumerate(machine.vertices) if v not in gone}
    absent = {name for name, _, server in machine.vertices if standing and server not in standing}
    lost = {what: None for what in lost if what not in absent}
    whole = ALL_BUT + ", ".join(sorted(standing)) if absent else "nothing"
    what = next(iter(lost), whole) + (f" and {len(lost) - 1} more" if len(lost) > 1 else "")
    return replace(machine, links=kept), what


def _problem(machine: Machine, state: State, documents: Sequence[PlanFile], one: TableSet) -> str:
    if one.allocation >= len(documents):
        return "runs a plan that the library does not have"
    graph = documents[one.allocation].graph
    spend(len(machine.vertices) + len(machine.links) + len(graph.links))
    if sorted(one.ranks) != list(graph.ranks) or any(g >= len(state.classes) for g in one.gpus):
        return "does not give every rank of its plan one GPU"
    members: dict[int, list[int]] = {}
    for gpu, number in enumerate(state.classes):
        members.setdefault(number, []).append(gpu)
    chosen = set(one.gpus)
    first = [g for own in members.values() for g in own[: len(chosen.intersection(own))]]
    if list(one.gpus) != sorted(chosen) or chosen != set(first):
        return "does not have the first GPUs of their classes, in order"
    gpu_of = dict(zip(one.ranks, one.gpus, strict=True))
    at = [*(gpu_of[rank] for rank in graph.ranks), *one.forwarders]
    if not chosen.isdisjoint(one.forwarders) or len(at) != len(graph.vertices) or max(at) >= len(machine.vertices):
        return "does not give every vertex of its plan one of its own"
    if any(machine.vertices[v][1] is not vertex.kind for v, vertex in zip(at, graph.vertices, strict=True)):
        return "has vertices of another kind than its plan"
    used = {(at[link.src], at[link.dst], link.kind): link.gbps for link in graph.links}
    # Two vertices of a plan may be one vertex of the machine, as the two halves of a NIC are. Links must be distinct.
    if len(used) != len(graph.links) or any(machine.links.get(key) != gbps for key, gbps in used.items()):
        return "lacks links of the plan that it runs"
    kinds = {link.kind for link in graph.links}.intersection(_FAST)
    # A plan that was made for this set would also use these links between its GPUs.
    if any(k in kinds and a in chosen and b in chosen and (a, b, k) not in used for a, b, k in machine.links):
        return "has links that the plan that it runs does not know"
    return ""


def _classes(machine: Machine, documents: Sequence[PlanFile], ngpus: int) -> tuple[int, ...]:
    """Returns the class of each GPU. GPUs of a class have the same server and equal links to the same vertices.

    Only links of kinds that plans use count.
    """
    kinds = {link.kind for document in documents for link in document.graph.links}
    ends: list[list[tuple[int, str, str, Fraction]]] = [[] for _ in machine.vertices]
    for (src, dst, kind), gbps in machine.links.items():
        if kind in kinds:
            ends[src].append((dst, "out", kind.value, gbps))
            ends[dst].append((src, "in", kind.value, gbps))
    number: dict[object, int] = {}
    found = []
    for gpu in range(ngpus):
        key = machine.vertices[gpu][2], tuple(sorted(ends[gpu]))
        found.append(number.setdefault(key, len(number)))
    return tuple(found)
