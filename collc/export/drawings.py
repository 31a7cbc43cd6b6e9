"""Writes a topology, a plan's graph, or a plan as DOT (Graphviz), GraphML or CSV, given as a graph of `to_networkx`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from collc.errors import visible

# The columns of CSV, which has a row per link or hop. GB/s are decimal numbers.
_COLUMNS = ("from", "to", "kind", "gbps", "latency_us", "tree", "phase", "weight")


def dot_text(made: Any) -> str:
    """Returns a graph in Graphviz's language: a node per vertex, and an edge per link or hop with its GB/s as label."""
    lines = [f"digraph {_quoted(made.graph.get('name', ''))} {{"]
    for node, data in made.nodes(data=True):
        shape = "box" if data.get("kind") == "gpu" else "ellipse"
        lines.append(f"  {_quoted(node)} [label={_quoted(data.get('name', node))}, shape={shape}];")
    for src, dst, data in made.edges(data=True):
        attributes = {"label": _plain(data.get("gbps", data.get("weight", "")))}
        attributes |= {key: _plain(data[key]) for key in ("kind", "tree", "phase") if key in data}
        inner = ", ".join(f"{key}={_quoted(value)}" for key, value in attributes.items())
        lines.append(f"  {_quoted(src)} -> {_quoted(dst)} [{inner}];")
    return "\n".join([*lines, "}"]) + "\n"


def graphml_text(made: Any) -> str:
    """Returns a graph as GraphML of networkx, for tools such as Gephi and yEd.

    Fractions become decimal numbers, and lists become text.
    """
    import networkx

    plain: networkx.MultiDiGraph[str] = networkx.MultiDiGraph(**_strings(made.graph))
    for node, data in made.nodes(data=True):
        plain.add_node(str(node), **_strings(data))
    for src, dst, data in made.edges(data=True):
        plain.add_edge(str(src), str(dst), **_strings(data))
    return "\n".join(networkx.generate_graphml(plain)) + "\n"


def csv_text(made: Any) -> str:
    """Returns a graph as CSV with a header and one row per link or hop."""
    names = {node: data.get("name", node) for node, data in made.nodes(data=True)}
    edges = list(made.edges(data=True))
    columns = ["from", "to", *(c for c in _COLUMNS[2:] if any(c in data for _, _, data in edges))]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(columns)
    for src, dst, data in edges:
        rows.writerow([names[src], names[dst], *(_plain(data.get(c, "")) for c in columns[2:])])
    return text.getvalue()


def _plain(value: object) -> str:
    if isinstance(value, Fraction):
        return str(value.numerator) if value.denominator == 1 else f"{float(value):.9g}"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _strings(data: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in data.items():
        if value is not None:
            simple = isinstance(value, bool | int | str)
            found[key] = value if simple else float(value) if isinstance(value, Fraction) else _plain(value)
    return found


def _quoted(value: object) -> str:
    """Returns a text in DOT's quotes. Names of topologies need no escapes, but titles of graphs may."""
    text = visible(str(value)).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
