"""CUDA libraries for GPUs of several servers, without device code, which the mock driver does not read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from support.libraries import CLUSTERS, topology_file
from test_cuda_runtime import compile_for_mock

from collc.build.cache import content_key
from collc.build.objects import compile_object
from collc.build.runtime import runtime_units
from collc.build.toolchain import find_cxx
from collc.options import TargetKind


def library_of(name: str) -> Path:
    """Returns the library of a machine of `CLUSTERS`, or of `machine:allocations`."""
    machine, _, sets = name.partition(":")
    return made_from(topology_file(machine), sum(CLUSTERS[machine]), sets)


@cache
def made_from(source: Path, ngpus: int, sets: str = "", chunk_bytes: int = 4096) -> Path:
    """Returns the library of all GPUs of a topology, or of some sets of them."""
    units = [compile_object(unit, find_cxx()).parent.name for unit in runtime_units(TargetKind.CUDA, find_cxx())]
    version = content_key([source.read_bytes(), sets, str(chunk_bytes), *units])[:12]
    gpus = None if sets else ",".join(f"gpu{g}" for g in range(ngpus))
    name = f"gpus-{source.stem}-{version}"
    return compile_for_mock(name, source, chunk_bytes=chunk_bytes, gpus=gpus, allocations=sets or None)
