"""A host library with the candidates that `collc tune` compares, built once per suite."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from support.libraries import CLUSTERS, ODD, cluster

from collc.build.cache import cache_dir, content_key
from collc.build.objects import compile_object
from collc.build.runtime import runtime_units
from collc.build.toolchain import find_cxx
from collc.compiler import CompileRequest, compile_topology
from collc.options import TargetKind


@cache
def tunable(name: str = "odd") -> Path:
    """Packed trees, rings, double binary trees and stars, each with several chunks.

    For three GPUs with unequal links, or for the servers of one of CLUSTERS.
    """
    servers = CLUSTERS.get(name)
    text = cluster(servers) if servers else ODD
    units = runtime_units(TargetKind.HOST, find_cxx())
    version = content_key([text, *(compile_object(unit, find_cxx()).parent.name for unit in units)])[:12]
    out = cache_dir() / "tests" / f"libcollc-tunable-{version}.so"
    out.parent.mkdir(parents=True, exist_ok=True)
    source = out.with_suffix(".yaml")
    source.write_text(text)
    gpus = ",".join(f"gpu{g}" for g in range(sum(servers))) if servers else None
    compile_topology(CompileRequest(str(source), output=out, target=TargetKind.HOST, tune_candidates=True, gpus=gpus))
    return out
