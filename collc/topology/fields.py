"""Reads single fields of a topology file. Errors name the problem, the file and the line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn

from collc.errors import TopologyError
from collc.topology.model import LinkKind, Port, Vertex, VertexKind
from collc.topology.names import MAX_GBPS, MIN_GBPS, model_problem, name_problem, parse_decimal
from collc.topology.yamltree import Items, Node, Scalar, Table

MAX_LANES = 1000
MAX_LATENCY_US = Fraction(10**7)

_LINK_KEYS = ("from", "to", "between", "kind", "gbps", "latency_us", "count")
_SHORT_KIND = re.compile(r"(\S+)(?:\s+x([0-9]{1,6}))?")
_NOT_WORDS = ("~", "null", "true", "false")
PCI_FORM = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
PCI_HINT = 'a PCI bus id in lower case and in quotes, such as "0000:3b:00.0"'
_GUID_HINT = 'the InfiniBand node GUID as 16 hex digits in quotes, such as "0002c90300293e1e"'
_DOMAIN_HINT = "the NVLink domain as `collc probe` writes it: CLUSTER-UUID/CLIQUE"
_SHORT_HINT = "the short form is [a, b, nvlink], [a, b, nvlink x2] or [a, b, nvlink x2, 25]"


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a link in GB/s, all lanes together, its latency in microseconds, and its lanes."""

    gbps: Fraction
    latency_us: Fraction = Fraction(0)
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """One entry of `links`: the ends as written, and the `speed` of all lanes together."""

    a: Scalar
    b: Scalar
    both: bool
    kind: LinkKind
    speed: Speed
    line: int


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the fields of one file, which messages call `where`."""

    where: str

    def at(self, node: Node) -> str:
        return f"{self.where}:{node.line}"

    def fail(self, what: str, node: Node, hint: str | None = None) -> NoReturn:
        raise TopologyError(what, where=self.at(node), hint=hint)

    def unknown(self, what: str, node: Node, word: str, known: Iterable[str]) -> NoReturn:
        """Raises an error; the hint is the most similar known word, else some known words."""
        words = list(known)
        near = difflib.get_close_matches(word[:80], words[:5000], n=1)
        choices = ", ".join(words[:12]) + (", ..." if len(words) > 12 else "")
        self.fail(what, node, f"did you mean `{near[0]}`?" if near else f"known: {choices}" if words else None)

    def known_keys(self, table: Table, known: Sequence[str]) -> None:
        for key, _ in table.entries:
            if key.text not in known:
                self.unknown(f"unknown key `{key.text}`", key, key.text, known)

    def table(self, node: Node, hint: str) -> Table:
        if not isinstance(node, Table):
            self.fail("expected a mapping here", node, hint)
        return node

    def items(self, node: Node, hint: str) -> Items:
        if not isinstance(node, Items):
            self.fail("expected a list here", node, hint)
        return node

    def text(self, node: Node, hint: str) -> str:
        if not isinstance(node, Scalar) or not node.text or (node.plain and node.text in _NOT_WORDS):
            self.fail("expected a word here", node, hint)
        return node.text

    def name(self, node: Node, what: str) -> str:
        text = self.text(node, f"expected a {what}")
        problem = name_problem(text)
        if problem:
            self.fail(f"the {what} {_shown(text)} {problem}", node, "choose a plain name such as gpu0")
        return text

    def model_name(self, node: Node) -> str:
        """Returns the maker's name of a GPU: one line of plain characters, such as ``NVIDIA H100 80GB HBM3``."""
        text = self.text(node, "name the GPUs, for example `gpu_model: H100`")
        if problem := model_problem(text):
            self.fail(f"the `gpu_model` {_shown(text)} {problem}", node, "write a name such as H100")
        return text

    def count(self, node: Node, what: str, most: int) -> int:
        """Returns a plain whole number from 1 to `most`."""
        hint = f"`{what}` is a whole number from 1 to {most}"
        if not isinstance(node, Scalar) or not node.plain or not re.fullmatch(r"[0-9]{1,9}", node.text):
            self.fail(f"{_shown_node(node)} is not a whole number", node, hint)
        value = int(node.text)
        if not 1 <= value <= most:
            self.fail(f"`{what}` cannot be {value}", node, hint)
        return value

    def flag(self, node: Node, what: str) -> bool:
        if not isinstance(node, Scalar) or node.text not in ("true", "false"):
            self.fail(f"`{what}` is true or false, not {_shown_node(node)}", node)
        return node.text == "true"

    def decimal(self, node: Node, what: str) -> Fraction:
        value = parse_decimal(node.text) if isinstance(node, Scalar) else None
        if value is None:
            self.fail(f"`{what}` cannot be {_shown_node(node)}", node, "write a decimal number such as 25 or 12.5")
        return value

    def gbps(self, node: Node, key: str = "gbps") -> Fraction:
        value = self.decimal(node, key)
        if not MIN_GBPS <= value <= MAX_GBPS:
            each = " per direction" if key == "gbps" else ""
            self.fail(f"`{key}` cannot be {_shown_node(node)}", node, f"it is GB/s{each}, from 1e-6 to 1e7")
        return value

    def latency(self, node: Node) -> Fraction:
        value = self.decimal(node, "latency_us")
        if value > MAX_LATENCY_US:
            self.fail(f"`latency_us` cannot be {_shown_node(node)}", node, "it is microseconds, at most 1e7")
        return value

    def speed(self, node: Node) -> Speed:
        """Returns the speed in `25` or `{gbps: 25, latency_us: 1}`."""
        if not isinstance(node, Table):
            return Speed(self.gbps(node))
        self.known_keys(node, ("gbps", "latency_us"))
        gbps, latency = node.get("gbps"), node.get("latency_us")
        if gbps is None:
            self.fail("`gbps` is missing", node)
        return Speed(self.gbps(gbps), self.latency(latency) if latency else Fraction(0))

    def kind(self, node: Node, text: str) -> LinkKind:
        try:
            return LinkKind(text)
        except ValueError:
            self.unknown(f"no kind of link is called {_shown(text)}", node, text, [kind.value for kind in LinkKind])

    def vertex(self, node: Node, kind: VertexKind) -> Vertex:
        """Returns the vertex in a name or a mapping.

        Mappings are `{name: nvs0, multicast: true, reduce: true}`, `{name: cpu0, memory_gbps: 9}` or
        `{name: nic0, gbps: 50}`.
        """
        if not isinstance(node, Table):
            return Vertex(self.name(node, "name"), kind)
        if kind is VertexKind.CPU:
            return self._cpu(node)
        if kind is VertexKind.NIC:
            return self._nic(node)
        if kind is not VertexKind.SWITCH:
            self.fail("expected a name here", node, "only switches, CPUs and NICs have more than a name")
        self.known_keys(node, ("name", "multicast", "reduce", "domain"))
        name = node.get("name")
        if name is None:
            self.fail("the switch has no name", node, "write {name: nvs0, multicast: true}")
        multicast, reduce = (bool(value and self.flag(value, key)) for key, value in _flags(node))
        domain = node.get("domain")
        text = self.text(domain, _DOMAIN_HINT) if domain is not None else None
        if domain is not None and not re.fullmatch(r"[\w.-]{1,64}(?:/[0-9]{1,10})?", text or "", re.ASCII):
            self.fail(f"`domain` cannot be {_shown_node(domain)}", domain, _DOMAIN_HINT)
        return Vertex(self.name(name, "name"), kind, multicast, reduce, domain=text)

    def _cpu(self, node: Table) -> Vertex:
        self.known_keys(node, ("name", "memory_gbps"))
        name, memory = node.get("name"), node.get("memory_gbps")
        if name is None:
            self.fail("the CPU has no name", node, "write {name: cpu0, memory_gbps: 20}")
        return Vertex(
            self.name(name, "name"), VertexKind.CPU, memory_gbps=self.gbps(memory, "memory_gbps") if memory else None
        )

    def _nic(self, node: Table) -> Vertex:
        self.known_keys(node, ("name", "gbps", "guid", "interface", "pci", "up"))
        name, gbps, guid, interface, pci, up = (
            node.get(key) for key in ("name", "gbps", "guid", "interface", "pci", "up")
        )
        if name is None:
            self.fail("the NIC has no name", node, "write {name: nic0, gbps: 50}")
        if guid is not None and not re.fullmatch("[0-9a-f]{16}", self.text(guid, _GUID_HINT)):
            self.fail(f"`guid` cannot be {_shown_node(guid)}", guid, _GUID_HINT)
        if pci is not None and not PCI_FORM.fullmatch(self.text(pci, PCI_HINT)):
            self.fail(f"`pci` cannot be {_shown_node(pci)}", pci, PCI_HINT)
        port = Port(
            self.gbps(gbps) if gbps else None,
            self.text(guid, _GUID_HINT) if guid else None,
            self.name(interface, "network interface") if interface else None,
            up is None or self.flag(up, "up"),
            self.text(pci, PCI_HINT) if pci else None,
        )
        return Vertex(self.name(name, "name"), VertexKind.NIC, port=port)

    def link(self, node: Node, speeds: Mapping[LinkKind, Speed]) -> LinkSpec:
        """Returns an entry of `links` in either form; `speeds` are the file's defaults."""
        if isinstance(node, Scalar):
            self.fail("a link is a mapping or a list", node, _SHORT_HINT)
        return self._long_link(node, speeds) if isinstance(node, Table) else self._short_link(node, speeds)

    def _long_link(self, node: Table, speeds: Mapping[LinkKind, Speed]) -> LinkSpec:
        self.known_keys(node, _LINK_KEYS)
        between, src, dst = node.get("between"), node.get("from"), node.get("to")
        if between and not src and not dst:
            pair = self.items(between, "between: [one end, other end]").items
            if len(pair) != 2:
                self.fail(f"`between` joins two vertices, not {len(pair)}", between, "between: [one end, other end]")
            a, b = pair
        elif src and dst and not between:
            a, b = src, dst
        else:
            self.fail("a link has either `between`, or `from` and `to`", node, "`between` is both directions")
        kind_node = node.get("kind")
        if kind_node is None:
            self.fail("the link has no `kind`", node, "kinds: " + ", ".join(kind.value for kind in LinkKind))
        kind = self.kind(kind_node, self.text(kind_node, "a kind of link"))
        gbps, latency, count = node.get("gbps"), node.get("latency_us"), node.get("count")
        speed = self._speed(node, kind, gbps, latency, speeds)
        lanes = self.count(count, "count", MAX_LANES) if count else 1
        return self._spec(node, (a, b), bool(between), kind, speed, lanes)

    def _short_link(self, node: Items, speeds: Mapping[LinkKind, Speed]) -> LinkSpec:
        if not 3 <= len(node.items) <= 4:
            self.fail(f"a link of {len(node.items)} parts", node, _SHORT_HINT)
        a, b, what, *gbps = node.items
        match = _SHORT_KIND.fullmatch(self.text(what, _SHORT_HINT))
        if not match:
            self.fail(f"{_shown_node(what)} is not a kind of link", what, _SHORT_HINT)
        kind = self.kind(what, match[1])
        lanes = self.count(Scalar(match[2], True, what.line), "count", MAX_LANES) if match[2] else 1
        speed = self._speed(node, kind, gbps[0] if gbps else None, None, speeds)
        return self._spec(node, (a, b), True, kind, speed, lanes)

    def _speed(
        self, node: Node, kind: LinkKind, gbps: Node | None, latency: Node | None, speeds: Mapping[LinkKind, Speed]
    ) -> Speed:
        default = speeds.get(kind)
        if gbps is None and default is None:
            hint = f"give it here, or for all links by `speeds: {{{kind.value}: ...}}`"
            self.fail(f"the {kind.value} link has no `gbps`", node, hint)
        value = self.gbps(gbps) if gbps else default.gbps if default else Fraction(0)
        delay = self.latency(latency) if latency else default.latency_us if default else Fraction(0)
        return Speed(value, delay)

    def _spec(
        self, node: Node, ends: tuple[Node, Node], both: bool, kind: LinkKind, speed: Speed, lanes: int
    ) -> LinkSpec:
        for end in ends:
            self.name(end, "name")
        a, b = ends
        assert isinstance(a, Scalar)
        assert isinstance(b, Scalar)
        return LinkSpec(a, b, both, kind, Speed(speed.gbps * lanes, speed.latency_us, lanes), node.line)


def _flags(node: Table) -> list[tuple[str, Node | None]]:
    return [(key, node.get(key)) for key in ("multicast", "reduce")]


def _shown(text: str) -> str:
    """Returns input in quotes for a message; long input is shortened."""
    return f"`{text if len(text) <= 40 else text[:37] + '...'}`"


def _shown_node(node: Node) -> str:
    return _shown(node.text) if isinstance(node, Scalar) else "a list" if isinstance(node, Items) else "a mapping"
