"""Shapes and libraries for the benchmarks of several servers, which run in the tests' lab of network namespaces."""

from __future__ import annotations

from pathlib import Path

from collc.compiler import CompileRequest, CompileResult, compile_topology
from collc.options import TargetKind
from collc.topology.load import loads_topology

TESTS = Path(__file__).resolve().parent.parent / "tests"
SHAPES = ["2+2", "2+2+2+2", "3+5", "1+1+6"]


def places(shape: str) -> tuple[str, str]:
    """Returns a letter for each server of ``3+5``, and the letter of each rank's server: ab, aaabbbbb."""
    counts = list(map(int, shape.split("+")))
    letters = "abcdefgh"[: len(counts)]
    return letters, "".join(letter * count for letter, count in zip(letters, counts, strict=True))


def topology_text(shape: str, rate_mbit: int) -> str:
    """Returns a topology file: servers with the shape's numbers of ranks, and links of that rate."""
    from support.libraries import cluster

    sizes = tuple(map(int, shape.split("+")))
    return cluster(sizes).replace("kind: net, gbps: 10", f"kind: net, gbps: {rate_mbit / 8000:g}")


def compiled(text: str, folder: Path) -> CompileResult:
    """Compiles the host library of a topology file into the folder."""
    source = folder / "topology.yaml"
    source.write_text(text, encoding="utf-8")
    return compile_topology(
        CompileRequest(
            topology=str(source),
            output=folder / "libcollc-servers.so",
            target=TargetKind.HOST,
            gpus=",".join(gpu.name for gpu in loads_topology(text).gpus),
            roots=[0],
        )
    )
