"""Plans as JSON, format ``collc-plan/1``: what `collc plan --json` prints and `collc verify` reads.

Reading is strict: an unknown key, a float, a missing link, a fraction that is none are CertificateErrors that name
the place,
such as ``plans[0].trees[3].weight_gbps``. Whether the plans hold is `verify_document`'s question, not the reader's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from collc.collectives.model import Collective
from collc.errors import CertificateError
from collc.packing.check import check_packing
from collc.packing.fields import FieldReader, short
from collc.packing.model import Certificate, Cut, Flow, Hop, Orbit, OrbitLoad, Orbits, Partition, Plan, Prices, Tree
from collc.topology.canonical import fingerprint
from collc.topology.model import GraphLink, LinkKind, PlanGraph, Vertex, VertexKind

FORMAT = "collc-plan/1"

_IDENTIFIER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class PlanFile:
    """The plans of one graph, with its name and fingerprint."""

    name: str
    fingerprint: str
    graph: PlanGraph
    plans: tuple[Plan, ...]


def plan_file(graph: PlanGraph, plans: tuple[Plan, ...]) -> PlanFile:
    """Plans of `graph` with the fingerprint computed."""
    return PlanFile(graph.name, fingerprint(graph), graph, plans)


def verify_document(file: PlanFile) -> None:
    """Recomputes everything that the document claims; raises CertificateError at the first thing that does not hold."""
    actual = fingerprint(file.graph)
    if actual != file.fingerprint:
        raise CertificateError(f"the links have the fingerprint {actual}", where="topology.fingerprint")
    for i, made in enumerate(file.plans):
        check_packing(file.graph, made, where=f"plans[{i}]")


# Writing


def to_json(file: PlanFile) -> dict[str, Any]:
    """The document as JSON values, keys in the order of the format."""
    graph = file.graph
    names = [v.name for v in graph.vertices]
    return {
        "format": FORMAT,
        "topology": {"name": file.name, "fingerprint": file.fingerprint},
        "ranks": [{"rank": r, "gpu": names[r], "server": graph.servers[r]} for r in graph.ranks],
        "switches": [
            {"name": v.name, "kind": v.kind.value, "multicast": v.multicast, "reduce": v.reduce}
            for v in graph.vertices[graph.nranks :]
        ],
        "links": [
            {"id": x.id, "src": names[x.src], "dst": names[x.dst], "kind": x.kind.value, "gbps": str(x.gbps)}
            for x in graph.links
        ],
        "plans": [_plan_json(made, names) for made in file.plans],
    }


def _plan_json(made: Plan, names: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "collective": made.collective.value,
        "root": made.root,
        "solver": made.solver,
        "rate_gbps": None if made.rate is None else str(made.rate),
        "bound_gbps": None if made.bound is None else str(made.bound),
        "optimal": made.optimal,
        "certificate": None if made.certificate is None else _certificate_json(made.certificate, names),
    }
    if made.collective.uses_trees:
        result["trees"] = [tree_json(tree, made.collective) for tree in made.trees]
        if made.orbits is not None:
            result["orbits"] = orbits_json(made.orbits, made.collective, names)
    else:
        result["flows"] = [[f.src, f.dst, str(f.weight), list(f.links)] for f in made.flows]
    return result


def _certificate_json(certificate: Certificate, names: list[str]) -> dict[str, Any]:
    if isinstance(certificate, Cut):
        return {"kind": "cut", "side": [names[v] for v in certificate.side]}
    if isinstance(certificate, Partition):
        return {"kind": "partition", "parts": [[names[v] for v in part] for part in certificate.parts]}
    return {"kind": "prices", "prices": {str(link): str(price) for link, price in certificate.prices}}


def tree_json(tree: Tree, collective: Collective) -> dict[str, Any]:
    """A tree with the phases that its collective has."""
    result: dict[str, Any] = {"root": tree.root, "weight_gbps": str(tree.weight)}
    if collective.reduces:
        result["reduce"] = [[h.src, h.dst, list(h.links)] for h in tree.reduce]
    if collective.spreads:
        result["broadcast"] = [[h.src, h.dst, list(h.links)] for h in tree.broadcast]
    return result


def orbits_json(orbits: Orbits, collective: Collective, names: list[str]) -> dict[str, Any]:
    """Generators as cycles of names, each tree with the count of its images, the load of every orbit of links."""
    return {
        "generators": [[[names[v] for v in cycle] for cycle in cycles_of(g)] for g in orbits.generators],
        "trees": [{"count": orbit.count, **tree_json(orbit.tree, collective)} for orbit in orbits.orbits],
        "loads": [{"link": x.link, "count": x.count, "load_gbps": str(x.load)} for x in orbits.loads],
    }


def cycles_of(image: tuple[int, ...]) -> list[list[int]]:
    """The cycles of a permutation, those of one element left out."""
    cycles, seen = [], set()
    for start, after in enumerate(image):
        if after != start and start not in seen:
            cycle = [start]
            while (after := image[cycle[-1]]) != start:
                cycle.append(after)
            seen.update(cycle)
            cycles.append(cycle)
    return cycles


# Reading


def parse_plan(text: str, where: str = "plan") -> PlanFile:
    """`from_json` of a JSON text; also refuses what `json.loads` lets pass: a key given twice, NaN, endless nesting."""

    def fail(what: str) -> NoReturn:
        raise CertificateError(what, where=where, hint=f"a plan is JSON of the format {FORMAT}")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(items)
        if len(table) != len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            fail(f"the key {short(twice)} is given twice in one object")
        return table

    try:
        obj = json.loads(text, object_pairs_hook=pairs, parse_constant=lambda name: fail(f"{name} is no JSON"))
    except RecursionError:
        fail("nested too deeply")
    except ValueError as error:
        fail(f"not JSON: {error}")
    return from_json(obj, where)


def from_json(obj: object, where: str = "plan") -> PlanFile:
    """The document that `obj`, parsed JSON, stands for.

    Args:
        obj: what `json.loads` returned.
        where: the name of the file, put before every place in messages.

    Raises:
        CertificateError: `obj` is not exactly of this format.
    """
    return _Reader(where).file(obj)


class _Reader(FieldReader):
    """The objects of a plan file."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self._vertex: dict[str, int] = {}
        self._nranks = 0
        self._nlinks = 0

    def file(self, obj: object) -> PlanFile:
        top = self.table(obj, "", ("format", "topology", "ranks", "switches", "links", "plans"))
        if top["format"] != FORMAT:
            self.fail("format", f"expected {FORMAT!r}, got {short(top['format'])}")
        head = self.table(top["topology"], "topology", ("name", "fingerprint"))
        name = self.text(head["name"], "topology.name")
        print_ = self.text(head["fingerprint"], "topology.fingerprint")
        graph = self.graph(name, top)
        plans = self.items(top["plans"], "plans", self.plan)
        return PlanFile(name, print_, graph, tuple(plans))

    def graph(self, name: str, top: Mapping[str, Any]) -> PlanGraph:
        ranks = self.items(top["ranks"], "ranks", self.rank)
        switches = self.items(top["switches"], "switches", self.switch)
        if not ranks:
            self.fail("ranks", "a plan has at least one rank")
        vertices = [*(v for v, _ in ranks), *switches]
        for i, vertex in enumerate(vertices):
            if vertex.name in self._vertex:
                self.fail("ranks" if i < len(ranks) else "switches", f"the name {short(vertex.name)} is used twice")
            self._vertex[vertex.name] = i
        self._nranks = len(ranks)
        links = self.items(top["links"], "links", self.link)
        self._nlinks = len(links)
        joined: set[tuple[int, int, LinkKind]] = set()
        for link in links:
            if (link.src, link.dst, link.kind) in joined:
                self.fail(f"links[{link.id}]", "the same pair and kind is listed twice")
            joined.add((link.src, link.dst, link.kind))
        servers = tuple(s for _, s in ranks) + ("",) * len(switches)
        return PlanGraph(name, len(ranks), tuple(vertices), servers, tuple(links))

    def rank(self, obj: object, place: str, index: int) -> tuple[Vertex, str]:
        item = self.table(obj, place, ("rank", "gpu", "server"))
        if self.integer(item["rank"], f"{place}.rank") != index:
            self.fail(f"{place}.rank", f"ranks are listed in order; this one must be {index}")
        return Vertex(self.text(item["gpu"], f"{place}.gpu"), VertexKind.GPU), self.text(
            item["server"], f"{place}.server"
        )

    def switch(self, obj: object, place: str, _: int) -> Vertex:
        item = self.table(obj, place, ("name", "kind", "multicast", "reduce"))
        return Vertex(
            self.text(item["name"], f"{place}.name"),
            self.enum(item["kind"], f"{place}.kind", VertexKind),
            self.boolean(item["multicast"], f"{place}.multicast"),
            self.boolean(item["reduce"], f"{place}.reduce"),
        )

    def link(self, obj: object, place: str, index: int) -> GraphLink:
        item = self.table(obj, place, ("id", "src", "dst", "kind", "gbps"))
        if self.integer(item["id"], f"{place}.id") != index:
            self.fail(f"{place}.id", f"links are numbered in order; this one must be {index}")
        src, dst = self.vertex(item["src"], f"{place}.src"), self.vertex(item["dst"], f"{place}.dst")
        if src == dst:
            self.fail(place, "a link joins two different vertices")
        gbps = self.fraction(item["gbps"], f"{place}.gbps")
        if gbps <= 0:
            self.fail(f"{place}.gbps", f"{gbps} is not positive")
        return GraphLink(index, src, dst, self.enum(item["kind"], f"{place}.kind", LinkKind), gbps)

    def plan(self, obj: object, place: str, _: int) -> Plan:
        common = ("collective", "root", "solver", "rate_gbps", "bound_gbps", "optimal", "certificate")
        if not isinstance(obj, dict):
            self.fail(place, f"expected an object, got {short(obj)}")
        collective = self.enum(obj.get("collective"), f"{place}.collective", Collective)
        moves = "trees" if collective.uses_trees else "flows"
        orbits = ("orbits",) if collective.uses_trees and "orbits" in obj else ()
        item = self.table(obj, place, (*common, moves, *orbits))
        trees: list[Tree] = []
        flows: list[Flow] = []
        if collective.uses_trees:
            trees = self.items(item["trees"], f"{place}.trees", lambda o, p, _: self.tree(o, p, collective))
        else:
            flows = self.items(item["flows"], f"{place}.flows", self.flow)
        return Plan(
            collective,
            self.optional(item["root"], f"{place}.root", self.rank_number),
            self.text(item["solver"], f"{place}.solver"),
            self.optional(item["rate_gbps"], f"{place}.rate_gbps", self.fraction),
            self.optional(item["bound_gbps"], f"{place}.bound_gbps", self.fraction),
            self.boolean(item["optimal"], f"{place}.optimal"),
            self.optional(item["certificate"], f"{place}.certificate", self.certificate),
            tuple(trees),
            tuple(flows),
            self.orbits(item["orbits"], f"{place}.orbits", collective) if orbits else None,
        )

    def certificate(self, obj: object, place: str) -> Certificate:
        if not isinstance(obj, dict):
            self.fail(place, f"expected an object, got {short(obj)}")
        kind = obj.get("kind")
        if kind == "cut":
            item = self.table(obj, place, ("kind", "side"))
            return Cut(tuple(self.vertices(item["side"], f"{place}.side")))
        if kind == "partition":
            item = self.table(obj, place, ("kind", "parts"))
            parts = self.items(item["parts"], f"{place}.parts", lambda o, p, _: tuple(self.vertices(o, p)))
            return Partition(tuple(parts))
        if kind != "prices":
            self.fail(f"{place}.kind", f"expected cut, partition or prices, got {short(kind)}")
        item = self.table(obj, place, ("kind", "prices"))
        if not isinstance(item["prices"], dict):
            self.fail(f"{place}.prices", "expected an object of link ids and prices")
        prices = {}
        for key, value in item["prices"].items():
            if not _IDENTIFIER.fullmatch(key) or int(key) >= self._nlinks:
                self.fail(f"{place}.prices", f"no link {short(key)}")
            if int(key) in prices:
                self.fail(f"{place}.prices", f"link {int(key)} is listed twice")
            prices[int(key)] = self.fraction(value, f"{place}.prices.{key}")
        return Prices(tuple(sorted(prices.items())))

    def vertices(self, obj: object, place: str) -> list[int]:
        return self.items(obj, place, lambda o, p, _: self.vertex(o, p))

    def tree(self, obj: object, place: str, collective: Collective) -> Tree:
        phases = [p for p, has in (("reduce", collective.reduces), ("broadcast", collective.spreads)) if has]
        item = self.table(obj, place, ("root", "weight_gbps", *phases))
        hops = {p: tuple(self.items(item[p], f"{place}.{p}", self.hop)) for p in phases}
        root = self.rank_number(item["root"], f"{place}.root")
        weight = self.fraction(item["weight_gbps"], f"{place}.weight_gbps")
        return Tree(root, weight, hops.get("reduce", ()), hops.get("broadcast", ()))

    def orbits(self, obj: object, place: str, collective: Collective) -> Orbits:
        item = self.table(obj, place, ("generators", "trees", "loads"))
        return Orbits(
            tuple(self.items(item["generators"], f"{place}.generators", self.generator)),
            tuple(self.items(item["trees"], f"{place}.trees", lambda o, p, _: self.orbit(o, p, collective))),
            tuple(self.items(item["loads"], f"{place}.loads", self.orbit_load)),
        )

    def generator(self, obj: object, place: str, _: int) -> tuple[int, ...]:
        cycles = self.items(obj, place, lambda o, p, _: self.vertices(o, p))
        image = list(range(len(self._vertex)))
        for i, cycle in enumerate(cycles):
            if len(cycle) < 2:
                self.fail(f"{place}[{i}]", "a cycle has two vertices or more")
            for v, w in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
                if image[v] != v or v == w:
                    self.fail(f"{place}[{i}]", "a vertex stands in one cycle, and once")
                image[v] = w
        return tuple(image)

    def orbit(self, obj: object, place: str, collective: Collective) -> Orbit:
        if not isinstance(obj, dict) or "count" not in obj:
            self.fail(place, "expected a tree with a count of its images")
        rest = {key: value for key, value in obj.items() if key != "count"}
        return Orbit(self.tree(rest, place, collective), self.integer(obj["count"], f"{place}.count"))

    def orbit_load(self, obj: object, place: str, _: int) -> OrbitLoad:
        item = self.table(obj, place, ("link", "count", "load_gbps"))
        count = self.integer(item["count"], f"{place}.count")
        return OrbitLoad(
            self.integer(item["link"], f"{place}.link"), count, self.fraction(item["load_gbps"], f"{place}.load_gbps")
        )

    def hop(self, obj: object, place: str, _: int) -> Hop:
        if not isinstance(obj, list) or len(obj) != 3:
            self.fail(place, f"expected [rank, rank, [link ids]], got {short(obj)}")
        return Hop(
            self.rank_number(obj[0], f"{place}[0]"), self.rank_number(obj[1], f"{place}[1]"), self.path(obj[2], place)
        )

    def flow(self, obj: object, place: str, _: int) -> Flow:
        if not isinstance(obj, list) or len(obj) != 4:
            self.fail(place, f"expected [rank, rank, weight, [link ids]], got {short(obj)}")
        src, dst = self.rank_number(obj[0], f"{place}[0]"), self.rank_number(obj[1], f"{place}[1]")
        return Flow(src, dst, self.fraction(obj[2], f"{place}[2]"), self.path(obj[3], place))

    def path(self, obj: object, place: str) -> tuple[int, ...]:
        links = self.items(obj, place, lambda o, p, _: self.integer(o, p))
        for link in links:
            if not 0 <= link < self._nlinks:
                self.fail(place, f"no link {link}")
        return tuple(links)

    def rank_number(self, obj: object, place: str) -> int:
        rank = self.integer(obj, place)
        if not 0 <= rank < self._nranks:
            self.fail(place, f"no rank {rank}")
        return rank

    def vertex(self, obj: object, place: str) -> int:
        name = self.text(obj, place)
        if name not in self._vertex:
            self.fail(place, f"no vertex {short(name)}")
        return self._vertex[name]
