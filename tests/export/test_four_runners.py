"""The same all_gather and all_reduce of a DGX-1V by four runners: a library, MSCCL++'s plan, NCCL's rings, MPI."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.cli import collc as command
from support.libraries import library

import collc
from collc.export.mscclpp_run import read_plan, run_plan
from collc.export.nccl_graph import RING, read_graphs

HERE = Path(__file__).parent
RANKS = 8
# A multiple of the number of pieces of each runner: 512 and 32 chunks of MSCCL++, 6 rings, 8 ranks.
COUNT = 512 * 3

Arrays = list[np.ndarray]


def by_the_library(inputs: Arrays, folder: Path) -> tuple[Arrays, Arrays]:
    with collc.Library(library("dgx1v")) as loaded:
        return loaded.all_reduce(inputs), loaded.all_gather(inputs)


def by_mscclpp(inputs: Arrays, folder: Path) -> tuple[Arrays, Arrays]:
    found = []
    for collective in ("all_reduce", "all_gather"):
        made = read_plan(command("export", "dgx1v", "--format", "mscclpp", "--collective", collective).out)
        units = COUNT // made["gpus"][0]["input_chunks"]
        found.append(run_plan(made, units, [inputs], 5)[0])
    return found[0], found[1]


def by_nccls_rings(inputs: Arrays, folder: Path) -> tuple[Arrays, Arrays]:
    """NCCL's ring algorithm over the channels of the graph file, each with its part of the buffer."""
    rings = read_graphs(command("export", "dgx1v", "--format", "nccl-graph").out, "graph")[RING].channels
    sums = [np.empty_like(array) for array in inputs]
    alls = [np.empty(COUNT * RANKS, dtype=np.int64) for _ in inputs]
    for ring, part in zip(rings, np.split(np.arange(COUNT), len(rings)), strict=True):
        # A rank's device number is its rank here.
        pieces = np.split(part, RANKS)
        for place, piece in enumerate(pieces):
            value = inputs[ring[place]][piece].copy()
            for step in range(1, RANKS):
                value += inputs[ring[(place + step) % RANKS]][piece]
            for rank in ring:
                sums[rank][piece] = value
        for place, source in enumerate(ring):
            passed = inputs[source][part]
            for step in range(RANKS):
                alls[ring[(place + step) % RANKS]][source * COUNT + part] = passed
    return sums, alls


def by_mpi(inputs: Arrays, folder: Path) -> tuple[Arrays, Arrays]:
    compiler, launcher = shutil.which("mpicc"), shutil.which("mpirun")
    if compiler is None or launcher is None:
        pytest.skip("mpicc or mpirun is not installed (Debian: libopenmpi-dev, openmpi-bin)")
    if "Open MPI" not in subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False).stdout:
        pytest.skip("mpirun is not that of Open MPI, whose options this test gives")
    program = folder / "program"
    subprocess.run([compiler, "-O1", HERE / "allreduce_gather.c", "-o", program], check=True)
    for rank, array in enumerate(inputs):
        array.tofile(folder / f"in-{rank}")
    start = [launcher, "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader", "-n", str(RANKS)]
    subprocess.run([*start, program, folder, str(COUNT)], check=True, capture_output=True)
    found = [[np.fromfile(folder / f"{what}-{rank}", np.int64) for rank in range(RANKS)] for what in ("sum", "all")]
    return found[0], found[1]


@pytest.mark.parametrize("runner", [by_the_library, by_mscclpp, by_nccls_rings, by_mpi])
def test_the_same_calls_give_the_same_results(
    runner: Callable[[Arrays, Path], tuple[Arrays, Arrays]], tmp_path: Path
) -> None:
    numbers = np.random.default_rng(7)
    inputs = [numbers.integers(-(1 << 40), 1 << 40, COUNT) for _ in range(RANKS)]
    sums, alls = runner([array.copy() for array in inputs], tmp_path)
    assert len(sums) == len(alls) == RANKS
    for rank in range(RANKS):
        assert np.array_equal(sums[rank], np.sum(inputs, axis=0)), rank
        assert np.array_equal(alls[rank], np.concatenate(inputs)), rank
