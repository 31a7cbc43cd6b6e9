"""`collc plan --expand`: writes every tree, one at a time, because all of them may not fit in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from collc.cli import report
from collc.packing.document import PlanFile, plan_file, to_json, tree_json
from collc.packing.model import Plan
from collc.packing.symmetry.orbits import all_trees
from collc.topology.model import PlanGraph

FORMAT = "collc-trees/1"


def emit_expanded(graph: PlanGraph, plans: Sequence[Plan], root: int | None) -> None:
    """Prints the plans with all their trees as a plan file; with `root` the trees of that rank, as `collc-trees/1`."""
    for piece in _pieces(graph, plans, root):
        report.raw_json(piece)


def document_pieces(file: PlanFile) -> Iterator[str]:
    """Yields a plan document in pieces, one tree per line, because hundreds of GPUs have millions of hops."""
    document = to_json(replace(file, plans=tuple(replace(p, trees=()) for p in file.plans)))
    heads = document.pop("plans")
    yield json.dumps(document)[:-1] + ',\n"plans": ['
    for i, (head, plan) in enumerate(zip(heads, file.plans, strict=True)):
        trees = head.pop("trees", None)
        yield ("," if i else "") + "\n" + json.dumps(head)[:-1]
        if trees is not None:
            yield ', "trees": ['
            for k, tree in enumerate(plan.trees):
                yield ("," if k else "") + "\n" + json.dumps(tree_json(tree, plan.collective))
            yield "]"
        yield "}"
    yield "]}"


def _pieces(graph: PlanGraph, plans: Sequence[Plan], root: int | None) -> Iterator[str]:
    """Yields the document in pieces, one tree per line."""
    document = to_json(plan_file(graph, tuple(replace(p, trees=(), orbits=None) for p in plans)))
    heads = document.pop("plans")
    if root is not None:
        topology = document["topology"]
        document = {"format": FORMAT, "topology": topology, "root": root}
        heads = [{"collective": h["collective"], "rate_gbps": h["rate_gbps"]} for h in heads]
    yield json.dumps(document)[:-1] + ',\n"plans": ['
    for i, (head, plan) in enumerate(zip(heads, plans, strict=True)):
        head.pop("trees", None)
        yield ("," if i else "") + "\n" + json.dumps(head)[:-1]
        if plan.collective.uses_trees:
            yield ', "trees": ['
            for k, tree in enumerate(all_trees(graph, plan, root)):
                yield ("," if k else "") + "\n" + json.dumps(tree_json(tree, plan.collective))
            yield "]"
        yield "}"
    yield "]}\n"
