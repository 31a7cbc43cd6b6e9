"""The machine of a library, and the proof that each set of GPUs has the links of the plan that it runs.

A library names its machine's vertices and links; its tables name per set of GPUs the vertices that play what only
forwards in the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from collc.checker.plans import PlanFile
from collc.checker.tables import Contents, TableSet
from collc.checker.values import Reader
from collc.errors import RunError
from collc.limits import spend
from collc.topology.model import LinkKind, VertexKind

_FAST = (LinkKind.NVLINK, LinkKind.NVSWITCH, LinkKind.XGMI)


@dataclass(frozen=True)
class Machine:
    """Vertices (name, kind, server), GPUs first in the order of their numbers; links between vertex numbers."""

    vertices: tuple[tuple[str, VertexKind, str], ...]
    links: dict[tuple[int, int, LinkKind], Fraction]


def read_machine(obj: object, where: str) -> Machine:
    """The machine that a JSON value stands for; raises RunError."""
    reader = Reader(where, RunError)
    top = reader.table(obj, "", ("vertices", "links"))
    own, kind = (reader.text, reader.member(VertexKind), reader.text), reader.member(LinkKind)
    vertices = [tuple(row) for row in reader.read(top["vertices"], "vertices", [own])]
    vertex = reader.below(len(vertices), "vertex")
    links: dict[tuple[int, int, LinkKind], Fraction] = {}
    for i, (*key, gbps) in enumerate(reader.read(top["links"], "links", [(vertex, vertex, kind, reader.fraction)])):
        if tuple(key) in links:
            reader.fail(f"links[{i}]", "the same pair and kind is listed twice")
        links[tuple(key)] = gbps
    return Machine(tuple(vertices), links)


def check_sets(machine: Machine, tables: Contents, documents: Sequence[PlanFile], path: Path) -> None:
    """Raises RunError unless every set of GPUs that the tables list has the links of the plan that they give it."""
    gpus = [v for v in machine.vertices if v[1] is VertexKind.GPU]
    names = tuple(name for name, _, _ in machine.vertices)
    if names != tables.names or len(gpus) != len(tables.classes) or machine.vertices[: len(gpus)] != tuple(gpus):
        raise RunError("its tables name other vertices than its machine has", where=str(path))
    if len({one.gpus for one in tables.sets}) != len(tables.sets):
        raise RunError("its sets of GPUs are listed twice", where=str(path))
    classes = _classes(machine, documents, len(gpus))
    if tables.classes != classes and not (len(tables.sets) == 1 and tables.classes == tuple(range(len(gpus)))):
        raise RunError("its classes are not the GPUs that may change places freely", where=str(path))
    for one in tables.sets:
        problem = _problem(machine, tables, documents, one)
        if problem:
            raise RunError(f"its GPU set {list(one.gpus)} {problem}", where=str(path))


def _problem(machine: Machine, tables: Contents, documents: Sequence[PlanFile], one: TableSet) -> str:
    if one.allocation >= len(documents):
        return "runs a plan that is not there"
    graph = documents[one.allocation].graph
    spend(len(machine.vertices) + len(machine.links) + len(graph.links))
    if sorted(one.ranks) != list(graph.ranks) or any(g >= len(tables.classes) for g in one.gpus):
        return "does not give every rank of its plan one GPU"
    members: dict[int, list[int]] = {}
    for gpu, number in enumerate(tables.classes):
        members.setdefault(number, []).append(gpu)
    chosen = set(one.gpus)
    first = [g for own in members.values() for g in own[: len(chosen.intersection(own))]]
    if list(one.gpus) != sorted(chosen) or chosen != set(first):
        return "is not that of the first GPUs of their classes, in order"
    gpu_of = dict(zip(one.ranks, one.gpus, strict=True))
    at = [*(gpu_of[rank] for rank in graph.ranks), *one.forwarders]
    if not chosen.isdisjoint(one.forwarders) or len(at) != len(graph.vertices) or max(at) >= len(machine.vertices):
        return "does not give every vertex of its plan one of its own"
    if any(machine.vertices[v][1] is not vertex.kind for v, vertex in zip(at, graph.vertices, strict=True)):
        return "has vertices of another kind than its plan"
    used = {(at[link.src], at[link.dst], link.kind): link.gbps for link in graph.links}
    # Two vertices of a plan may be one of the machine, as the two ways through a NIC are, but no two links are one.
    if len(used) != len(graph.links) or any(machine.links.get(key) != gbps for key, gbps in used.items()):
        return "lacks links of the plan that it runs"
    kinds = {link.kind for link in graph.links}.intersection(_FAST)
    # Links between its GPUs that a plan of its own would use.
    if any(k in kinds and a in chosen and b in chosen and (a, b, k) not in used for a, b, k in machine.links):
        return "has links that the plan that it runs does not know"
    return ""


def _classes(machine: Machine, documents: Sequence[PlanFile], ngpus: int) -> tuple[int, ...]:
    """Numbers of GPUs with the same server and links, of the kinds that plans use, to the same vertices."""
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
