"""The manifest: what a library says about itself, as JSON that anyone can read without running it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from collc import __version__
from collc.ir.nodes import Program
from collc.options import Target
from collc.packing.document import PlanFile
from collc.packing.gpu_sets import GpuSets
from collc.packing.model import Plan, Tree

FORMAT = "collc-library/1"


def tree_depth(tree: Tree) -> int:
    """The most hops that a chunk makes: to the root in the reduce phase plus from it in the broadcast phase."""
    up: dict[int, int] = {hop.src: hop.dst for hop in tree.reduce}
    down: dict[int, int] = {hop.dst: hop.src for hop in tree.broadcast}
    return _height(up, tree.root) + _height(down, tree.root)


def _height(parent: Mapping[int, int], root: int) -> int:
    def hops(rank: int) -> int:
        count = 0
        while rank != root:
            rank, count = parent[rank], count + 1
        return count

    return max((hops(rank) for rank in parent), default=0)


def make_manifest(
    documents: Sequence[PlanFile],
    programs: Sequence[Sequence[Program]],
    gpu_sets: GpuSets,
    target: Target,
    compiler: str,
    build_id: str,
    counts: Mapping[str, int],
) -> dict[str, Any]:
    """The manifest of a library; `programs` and `documents` are parallel."""
    served = [sum(one.allocation == number for one in gpu_sets.sets) for number in range(len(documents))]
    return {
        "format": FORMAT,
        "name": documents[0].name,
        "collc": __version__,
        "target": target.kind.value,
        "build_id": build_id,
        "compiler": compiler,
        "gpus": list(gpu_sets.names),
        "allocations": [
            {
                "fingerprint": document.fingerprint,
                "nranks": document.graph.nranks,
                "gpus": [document.graph.vertices[r].name for r in document.graph.ranks],
                "gpu_sets": sets,
                "slots": target.slots,
                "slot_bytes": target.chunk_bytes,
                "fifo_bytes": len({(f.src, f.dsts, f.index) for p in made for f in p.fifos})
                * target.slots
                * target.chunk_bytes,
                "programs": [_program(plan, program) for plan, program in zip(document.plans, made, strict=True)],
            }
            for document, made, sets in zip(documents, programs, served, strict=True)
        ],
        "counts": dict(counts),
    }


def _program(plan: Plan, program: Program) -> dict[str, Any]:
    return {
        "collective": plan.collective.value,
        "root": plan.root,
        "rate_gbps": None if plan.rate is None else str(plan.rate),
        "bound_gbps": None if plan.bound is None else str(plan.bound),
        "optimal": plan.optimal,
        "trees": len(plan.trees),
        "depth": max((tree_depth(tree) for tree in plan.trees), default=0),
        "channels": len(program.channels),
        "fifos": len(program.fifos),
    }


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """ASCII JSON, the same bytes for the same manifest."""
    return json.dumps(manifest, indent=1, ensure_ascii=True)
