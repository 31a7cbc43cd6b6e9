"""Reads the output of `lldpctl -f json`, `json0` and `keyvalue` on a server: the switch that each interface sees.

Source of the formats: lldpcli(8) of lldpd, section "Output formats".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from collc.errors import TopologyError
from collc.topology.probe.lines import Text

_KEY = re.compile(
    r"lldp\.(.+?)\.(via|rid|age|chassis|port|vlan|ppvid|pi|lldp-med|unknown-tlvs|custom|mgmt|power|mau)\b"
)


@dataclass(frozen=True)
class Neighbor:
    """A switch that an interface of a server sees.

    Attributes:
        chassis: the chassis id, or the name if there is no id.
        name: the name, or "".
    """

    interface: str
    chassis: str
    name: str


def looks_like_lldp(content: Text) -> bool:
    """Returns True if a text is in one of the three formats."""
    head = content.whole.lstrip()
    return bool(re.match(r"lldp\.", head, re.MULTILINE)) or (head.startswith("{") and '"lldp"' in head)


def read_lldp(content: Text) -> list[Neighbor]:
    """Returns the neighbors of one server.

    Raises:
        TopologyError: the text is no output of lldpctl, or has no neighbor.
    """
    is_json = content.whole.lstrip().startswith("{")
    neighbors = _read_json(content) if is_json else list(_read_lines(content))
    if not neighbors:
        raise TopologyError("lldpd saw no neighbor", where=content.at(1), hint="is LLDP on at the switches?")
    return neighbors


def _read_json(content: Text) -> list[Neighbor]:
    bad = "is the output of `lldpctl -f json` whole?"
    try:
        value = json.loads(content.whole)
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise TopologyError("this is not JSON", where=content.at(line), hint=bad) from None
    neighbors = []
    for interface, fields in _interfaces(_only(value.get("lldp"))):
        chassis = _only(fields.get("chassis"))
        if not isinstance(chassis, dict):
            continue
        # json: {NAME: {id: ...}} or without a name {id: ...}; json0: {name: [{value: NAME}], id: [...]}.
        name = _value(chassis.get("name"))
        if "id" not in chassis and len(chassis) == 1:
            name, chassis = next(iter(chassis.items()))
        ident = _value(chassis.get("id")) if isinstance(chassis, dict) else ""
        if ident or name:
            neighbors.append(Neighbor(interface, ident or name, name))
    return neighbors


def _interfaces(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the interfaces of json (a mapping by name, or a list of such) and of json0 (mappings with a name)."""
    entries = value.get("interface") if isinstance(value, dict) else None
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, dict):
            continue
        if isinstance(entry.get("name"), str):
            yield entry["name"], entry
            continue
        for name, fields in entry.items():
            if isinstance(fields, dict):
                yield name, fields


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _value(value: Any) -> str:
    value = _only(value)
    value = value.get("value") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""


def _read_lines(content: Text) -> Iterator[Neighbor]:
    by_interface: dict[str, dict[str, str]] = {}
    for number, line in enumerate(content.lines, 1):
        key, equals, value = line.strip().partition("=")
        if not key.startswith("lldp."):
            continue  # a description may have several lines
        match = _KEY.match(key)
        if not equals or not match:
            where = content.at(number)
            raise TopologyError("this is no line of `lldpctl -f keyvalue`", where=where, hint="is it damaged?")
        fields = by_interface.setdefault(match[1], {})
        fields.setdefault(key[len(match[1]) + 6 :], value.strip().strip('"'))
    for interface, fields in by_interface.items():
        ident = next((v for k, v in fields.items() if re.fullmatch(r"chassis\.(mac|local|ifname|ip|id)", k) and v), "")
        name = fields.get("chassis.name", "")
        if ident or name:
            yield Neighbor(interface, ident or name, name)
