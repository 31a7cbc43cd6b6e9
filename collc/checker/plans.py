"""Reads plans from JSON in format ``collc-plan/1``, and checks them.

Reading is strict: an unknown key, a float, a missing link or an invalid fraction is a CertificateError that names the
place, such as ``plans[0].trees[3].weight_gbps``. `verify_document` checks the claims of the plans.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

from collc.checker.packing import check_packing
from collc.checker.staging import host_limit
from collc.checker.values import Reader, parse_json, short
from collc.collectives.model import Collective
from collc.errors import CertificateError
from collc.packing import model
from collc.topology.canonical import fingerprint
from collc.topology.model import JOINT, GraphLink, LinkKind, PlanGraph, Vertex, VertexKind, joint_class
from collc.topology.staging import staged_pairs

FORMAT = "collc-plan/1"
_IDENTIFIER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class HostClaims:
    """The claims of a file about host memory: the pairs of ranks that it joins, and the rate limit of each plan.

    None if the file has no such claim.
    """

    pairs: tuple[tuple[int, int], ...] | None
    rates: tuple[Fraction | None, ...]


@dataclass(frozen=True)
class PlanFile:
    """The plans of one graph, with its name and fingerprint. `host` is None if they were not read from a file."""

    name: str
    fingerprint: str
    graph: PlanGraph
    plans: tuple[model.Plan, ...]
    host: HostClaims | None = None


def verify_document(file: PlanFile) -> None:
    """Checks every claim of the document.

    Raises:
        CertificateError: a claim does not hold.
    """
    actual = fingerprint(file.graph)
    if actual != file.fingerprint:
        raise CertificateError(f"the links have the fingerprint {actual}", where="topology.fingerprint")
    for i, made in enumerate(file.plans):
        check_packing(file.graph, made, where=f"plans[{i}]")
    if file.host is not None:
        _check_host(file, file.host)


def _check_host(file: PlanFile, host: HostClaims) -> None:
    if host.pairs not in (None, staged_pairs(file.graph)):
        raise CertificateError("these are not the pairs whose data a CPU stages in its memory", where="host_pairs")
    for i, (made, rate) in enumerate(zip(file.plans, host.rates, strict=True)):
        if rate is None:
            continue
        found = host_limit(file.graph, made)
        if found is None or rate != found[0]:
            limit = "do not limit it" if found is None else f"limit it to {found[0]}"
            raise CertificateError(f"the memories of the CPUs {limit}", where=f"plans[{i}].host_rate_gbps")


def parse_plan(text: str, where: str = "plan") -> PlanFile:
    """Returns the document of a JSON text, like `from_json`.

    Raises:
        CertificateError: the text is not exactly of this format, has a repeated key or NaN, or is nested too deeply.
    """

    def fail(what: str) -> NoReturn:
        raise CertificateError(what, where=where, hint=f"a plan is JSON of the format {FORMAT}")

    return from_json(parse_json(text, fail), where)


def from_json(obj: object, where: str = "plan") -> PlanFile:
    """Returns the document of a parsed JSON value.

    Args:
        where: the name of the file, which precedes every place in messages.

    Raises:
        CertificateError: `obj` is not exactly of this format.
    """
    reader = Reader(where, CertificateError)
    pairs = isinstance(obj, dict) and "host_pairs" in obj
    parts = ("format", "topology", "ranks", "switches", "links", *["host_pairs"] * pairs, "plans")
    top = reader.table(obj, "", parts)
    if top["format"] != FORMAT:
        reader.fail("format", f"expected {FORMAT!r}, got {short(top['format'])}")
    head = reader.read(top["topology"], "topology", {"name": reader.text, "fingerprint": reader.text})
    graph = _graph(reader, head["name"], top)
    plans = _Plans(reader, graph)
    made = tuple(reader.read(top["plans"], "plans", [plans.plan]))
    found = reader.read(top["host_pairs"], "host_pairs", [(plans.rank, plans.rank)]) if pairs else None
    host = HostClaims(None if found is None else tuple((a, b) for a, b in found), tuple(plans.host_rates))
    return PlanFile(head["name"], head["fingerprint"], graph, made, host)


def _graph(reader: Reader, name: str, top: Mapping[str, Any]) -> PlanGraph:
    text, number, kind = reader.text, reader.integer, reader.member
    ranks = reader.read(top["ranks"], "ranks", [{"rank": number, "gpu": text, "server": text}])
    forwarder = {"name": text, "kind": kind(VertexKind), "multicast": reader.boolean, "reduce": reader.boolean}

    def switch(obj: object, place: str) -> Any:
        memory = {"memory_gbps": reader.fraction} if isinstance(obj, dict) and "memory_gbps" in obj else {}
        row = reader.read(obj, place, forwarder | memory)
        if memory and (row["memory_gbps"] <= 0 or row["kind"] is not VertexKind.CPU):
            reader.fail(f"{place}.memory_gbps", "it is above 0, and of a CPU")
        return row

    switches = reader.read(top["switches"], "switches", [switch])
    if not ranks:
        reader.fail("ranks", "a plan has at least one rank")
    vertices = [Vertex(rank["gpu"], VertexKind.GPU) for rank in ranks] + [Vertex(**switch) for switch in switches]
    for i, rank in enumerate(ranks):
        if rank["rank"] != i:
            reader.fail(f"ranks[{i}].rank", f"ranks are listed in order; this one must be {i}")
    names = [v.name for v in vertices]
    if len(set(names)) != len(names):
        i, twice = next((i, name) for i, name in enumerate(names) if name in names[:i])
        reader.fail("ranks" if i < len(ranks) else "switches", f"the name {short(twice)} is used twice")
    vertex = reader.name_of(names, "vertex")
    link = {"id": number, "src": vertex, "dst": vertex, "kind": kind(LinkKind), "gbps": reader.fraction}
    links = [GraphLink(**row) for row in reader.read(top["links"], "links", [link])]
    joined: set[tuple[int, int, LinkKind]] = set()
    for i, found in enumerate(links):
        if found.id != i:
            reader.fail(f"links[{i}].id", f"links are numbered in order; this one must be {i}")
        if found.src == found.dst:
            reader.fail(f"links[{i}]", "a link joins two different vertices")
        if found.gbps <= 0:
            reader.fail(f"links[{i}].gbps", f"{found.gbps} is not positive")
        if (found.src, found.dst, found.kind) in joined:
            reader.fail(f"links[{i}]", "the same pair and kind is listed twice")
        joined.add((found.src, found.dst, found.kind))
    servers = tuple(rank["server"] for rank in ranks) + ("",) * len(switches)
    return PlanGraph(name, len(ranks), tuple(vertices), servers, tuple(links))


def _tree(row: Mapping[str, Any]) -> model.Tree:
    return model.Tree(row["root"], row["weight_gbps"], tuple(row.get("reduce", ())), tuple(row.get("broadcast", ())))


class _Plans:
    """Reads the plans of one graph."""

    def __init__(self, reader: Reader, graph: PlanGraph) -> None:
        self.reader, self.nlinks = reader, len(graph.links)
        self.kinds = [link.kind for link in graph.links]
        self.host_rates: list[Fraction | None] = []  # the claims of the plans read so far
        self.rank, self.link = reader.below(graph.nranks, "rank"), reader.below(len(graph.links), "link")
        self.vertex, self.nvertices = reader.name_of([v.name for v in graph.vertices], "vertex"), len(graph.vertices)

    def stopped(self, obj: object, place: str) -> bool:
        """Returns True for "time", the only valid value: a clock ended the search."""
        if obj != "time":
            self.reader.fail(place, f"expected 'time', got {short(obj)}")
        return True

    def plan(self, obj: object, place: str) -> model.Plan:
        reader = self.reader
        if not isinstance(obj, dict):
            reader.fail(place, f"expected an object, got {short(obj)}")
        collective = reader.member(Collective)(obj.get("collective"), f"{place}.collective")
        phases = {"reduce": collective.reduces, "broadcast": collective.spreads}
        tree: dict[str, Any] = {"root": self.rank, "weight_gbps": reader.fraction}
        tree |= {phase: [self.hop] for phase, needed in phases.items() if needed}
        by_class = "classes" in obj
        tree |= {"class": reader.text} if by_class else {}
        moves: dict[str, Any] = {"trees": [tree]} if collective.uses_trees else {"flows": [self.flow]}
        if collective.uses_trees and "orbits" in obj:
            load = {"link": reader.integer, "count": reader.integer, "load_gbps": reader.fraction}
            orbit = {"count": reader.integer, **tree}
            moves |= {"orbits": {"generators": [self.generator], "trees": [orbit], "loads": [load]}}
        rate = reader.maybe(reader.fraction)
        shape: dict[str, Any] = {"collective": reader.text, "root": reader.maybe(self.rank), "solver": reader.text}
        shape |= {"rate_gbps": rate, "bound_gbps": rate, "optimal": reader.boolean}
        shape |= {"certificate": reader.maybe(self.certificate), **moves}
        optional = {"host_rate_gbps": reader.fraction, "stopped": self.stopped, "assumes": [reader.text]}
        optional |= {"in_switch": self.in_switch}
        shape |= {key: found for key, found in optional.items() if key in obj}
        if by_class:
            shape |= {"classes": [{"class": reader.text, "rate_gbps": reader.fraction, "full_links": [self.link]}]}
        row = reader.read(obj, place, shape)
        self.host_rates.append(row.get("host_rate_gbps"))
        if by_class:
            self.check_classes(row, place)
        orbits = None
        if "orbits" in row:
            members = [model.Orbit(_tree(one), one["count"]) for one in row["orbits"]["trees"]]
            loads = [model.OrbitLoad(one["link"], one["count"], one["load_gbps"]) for one in row["orbits"]["loads"]]
            orbits = model.Orbits(tuple(row["orbits"]["generators"]), tuple(members), tuple(loads))
        return model.Plan(
            collective, row["root"], *model.parse_origin(row["solver"]), row["rate_gbps"], row["bound_gbps"],
            row["optimal"], row["certificate"], tuple(map(_tree, row.get("trees", ()))), tuple(row.get("flows", ())),
            orbits, row.get("in_switch"), row.get("stopped", False),
        )  # fmt: skip

    def in_switch(self, obj: object, place: str) -> model.InSwitch:
        reader = self.reader
        row = reader.read(obj, place, {
            "switch": self.vertex, "rate_gbps": reader.fraction, "bound_gbps": reader.fraction,
            "optimal": reader.boolean, "certificate": self.certificate, "cut_gbps": reader.fraction,
            "cut": self.certificate, "heads": [(self.rank, reader.fraction)],
        })  # fmt: skip
        prices, cut = row["certificate"], row["cut"]
        if not isinstance(prices, model.Prices) or not isinstance(cut, model.Cut):
            reader.fail(place, "expected prices as the certificate, and a cut")
        heads = tuple((rank, weight) for rank, weight in row["heads"])
        rate, bound = row["rate_gbps"], row["bound_gbps"]
        return model.InSwitch(row["switch"], rate, bound, row["optimal"], prices, row["cut_gbps"], cut, heads)

    def check_classes(self, row: Mapping[str, Any], place: str) -> None:
        """Checks that path classes are distinct, that their rates do not exceed the rate, and each tree's class."""
        names = [found["class"] for found in row["classes"]]
        if len(set(names)) < len(names) or not set(names) <= set(JOINT):
            self.reader.fail(f"{place}.classes", f"expected some of {', '.join(JOINT)}, each once")
        if sum(found["rate_gbps"] for found in row["classes"]) > (row["rate_gbps"] or 0):
            self.reader.fail(f"{place}.classes", "their rates add up to more than that of all together")
        for i, tree in enumerate(row.get("trees", ())):
            hops = (*tree.get("reduce", ()), *tree.get("broadcast", ()))
            found = joint_class([self.kinds[link] for link in hop.links] for hop in hops)
            if tree["class"] != found:
                self.reader.fail(f"{place}.trees[{i}].class", f"its links are of {found}, not {short(tree['class'])}")

    def generator(self, obj: object, place: str) -> tuple[int, ...]:
        """Reads cycles of names and returns the image of every vertex."""
        image = list(range(self.nvertices))
        for i, cycle in enumerate(self.reader.read(obj, place, [[self.vertex]])):
            if len(cycle) < 2:
                self.reader.fail(f"{place}[{i}]", "a cycle has two vertices or more")
            for v, w in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
                if image[v] != v or v == w:
                    self.reader.fail(f"{place}[{i}]", "a vertex stands in one cycle, and once")
                image[v] = w
        return tuple(image)

    def hop(self, obj: object, place: str) -> model.Hop:
        if not isinstance(obj, list) or len(obj) != 3:
            self.reader.fail(place, f"expected [rank, rank, [link ids]], got {short(obj)}")
        src, dst, links = self.reader.read(obj, place, (self.rank, self.rank, [self.link]))
        return model.Hop(src, dst, tuple(links))

    def flow(self, obj: object, place: str) -> model.Flow:
        if not isinstance(obj, list) or len(obj) != 4:
            self.reader.fail(place, f"expected [rank, rank, weight, [link ids]], got {short(obj)}")
        shape = (self.rank, self.rank, self.reader.fraction, [self.link])
        src, dst, weight, links = self.reader.read(obj, place, shape)
        return model.Flow(src, dst, weight, tuple(links))

    def certificate(self, obj: object, place: str) -> model.Certificate:
        reader = self.reader
        if not isinstance(obj, dict):
            reader.fail(place, f"expected an object, got {short(obj)}")
        side, prices = [self.vertex], self.prices
        shapes: dict[object, tuple[str, Any]]
        shapes = {"cut": ("side", side), "partition": ("parts", [side]), "prices": ("prices", prices)}
        kind = obj.get("kind")
        if kind not in [*shapes]:
            reader.fail(f"{place}.kind", f"expected cut, partition or prices, got {short(kind)}")
        key, shape = shapes[kind]
        found = reader.read(obj, place, {"kind": reader.text, key: shape})[key]
        if kind == "partition":
            return model.Partition(tuple(map(tuple, found)))
        return model.Cut(tuple(found)) if kind == "cut" else model.Prices(found)

    def prices(self, obj: object, place: str) -> tuple[tuple[int, Any], ...]:
        if not isinstance(obj, dict):
            self.reader.fail(place, "expected an object of link ids and prices")
        prices = {}
        for key, value in obj.items():
            if not _IDENTIFIER.fullmatch(key) or int(key) >= self.nlinks:
                self.reader.fail(place, f"no link {short(key)}")
            if int(key) in prices:
                self.reader.fail(place, f"link {int(key)} is listed twice")
            prices[int(key)] = self.reader.fraction(value, f"{place}.{key}")
        return tuple(sorted(prices.items()))
