"""Writes solutions of solvers as text for a store, so that another process can read, check and use them.

A store is outside `collc.packing`, such as a cache on disk. Its contents are not trusted: the caller expands a stored
solution, passes it to `check_packing` like a new one, and solves the problem again if the check fails.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from collc.packing.model import Certificate, Cut, Flow, Partition, Prices
from collc.packing.solvers.columns import Column
from collc.packing.solvers.exact import Solution
from collc.packing.solvers.flows import FlowSolution
from collc.packing.solvers.highs import solver_version
from collc.packing.solvers.network import Net, Out
from collc.packing.symmetry.groups import orbits
from collc.packing.symmetry.refine import Automorphism


class SolutionStore(Protocol):
    """A mapping from keys to texts. Stores that compare equal have the same contents."""

    def __hash__(self) -> int: ...

    def get(self, key: str) -> str | None:
        """Returns the text stored under `key`, or None."""

    def put(self, key: str, text: str) -> None:
        """Stores `text` under `key`, if possible."""


class WriteOnly:
    """A store that is written but not read, to replace a wrong solution."""

    def __init__(self, store: SolutionStore) -> None:
        self.put = store.put

    def get(self, key: str) -> str | None:
        """Returns None, because stored solutions are not read."""
        return None


def problem_key(net: Net, servers: Sequence[str], *options: object) -> str:
    """Returns a key for everything that a solution depends on: the net without names, the options, and the solvers.

    Args:
        servers: the name of the server of every vertex. Only equality of names affects the key.
    """
    first: dict[str, int] = {}
    places = [first.setdefault(name, len(first)) for name in servers]
    caps = [str(c) for c in net.caps]
    text = json.dumps(
        [_sources(), net.nranks, net.nverts, net.tails, net.heads, caps, places, [str(x) for x in options]]
    )
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _sources() -> str:
    """Returns a digest of the sources of `collc.packing` and HiGHS's version, because others may find other plans."""
    digest = hashlib.sha256(solver_version().encode())
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def solution_text(solved: Solution, remark: str) -> str:
    """Returns the text of a solution of a tree collective. `read_solution` reads it."""
    return json.dumps(
        {
            "rate": str(solved.rate),
            "bound": str(solved.bound),
            "weights": [[c.group, c.root, c.out, c.back, str(w)] for c, w in solved.weights],
            "certificate": _certificate_json(solved.certificate),
            "symmetry": [[g.order, g.vertices, g.links] for g in solved.symmetry.generators],
            "remark": remark,
        },
        separators=(",", ":"),
    )


def read_solution(net: Net, text: str) -> tuple[Solution, str]:
    """Returns (the solution, its remark) of a text. Any exception means that the text is not valid."""
    row = json.loads(text)
    generators = [Automorphism(tuple(v), tuple(x), order) for order, v, x in row["symmetry"]]
    if any(not 1 < g.order <= net.nverts for g in generators):
        raise ValueError("no order of a rotation")
    weights = tuple(
        (Column(group, root, _out(out), _out(back)), Fraction(weight))
        for group, root, out, back, weight in row["weights"]
    )
    return Solution(
        Fraction(row["rate"]),
        Fraction(row["bound"]),
        weights,
        _certificate(row["certificate"]),
        orbits(net, generators),
    ), str(row["remark"])


def flows_text(solved: FlowSolution) -> str:
    """Returns the text of a solution of a flow collective. `read_flows` reads it."""
    return json.dumps(
        {
            "rate": str(solved.rate),
            "bound": str(solved.bound),
            "flows": [[f.src, f.dst, str(f.weight), f.links] for f in solved.flows],
            "certificate": _certificate_json(solved.prices),
        },
        separators=(",", ":"),
    )


def read_flows(text: str) -> FlowSolution:
    """Returns the solution of a text. Any exception means that the text is not valid."""
    row = json.loads(text)
    prices = _certificate(row["certificate"])
    assert isinstance(prices, Prices)
    flows = tuple(Flow(src, dst, Fraction(weight), tuple(links)) for src, dst, weight, links in row["flows"])
    return FlowSolution(Fraction(row["rate"]), Fraction(row["bound"]), flows, prices)


def _out(rows: Any) -> Out:
    return tuple((u, v, tuple(path)) for u, v, path in rows)


def _certificate_json(certificate: Certificate) -> dict[str, Any]:
    if isinstance(certificate, Cut):
        return {"side": certificate.side}
    if isinstance(certificate, Partition):
        return {"parts": certificate.parts}
    return {"prices": [[link, str(price)] for link, price in certificate.prices]}


def _certificate(row: Any) -> Certificate:
    if "side" in row:
        return Cut(tuple(row["side"]))
    if "parts" in row:
        return Partition(tuple(tuple(part) for part in row["parts"]))
    return Prices(tuple((link, Fraction(price)) for link, price in row["prices"]))
