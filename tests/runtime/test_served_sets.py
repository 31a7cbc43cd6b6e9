"""Libraries with several allocations: any order of any served GPUs runs, and parts of a communicator find theirs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.libraries import client, library

from collc.build.numbering import live_numbering
from collc.checker.library import read_library
from collc.topology.load import load_topology
from collc.topology.model import LinkKind

HERE = Path(__file__).parent
# All GPUs of a DGX-1P, and sets of 3 and 4 with different links.
SETS = "dgx1p:0,1,2,3,4,5,6,7/0,1,4/0,1,2,3/0,1,4,6"


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [client(HERE / program, SETS), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "COLLC_NCCL": "/nowhere", **environment},
    )


@pytest.mark.parametrize(
    "gpus",
    ["5,4,1", "gpu7,6,2", "5,7,6,4", *(pytest.param(one, marks=pytest.mark.slow) for one in ("0,1,4", "6,1,4,0"))],
)
def test_any_order_of_the_gpus(gpus: str) -> None:
    done = run("client.c", "processes", str(len(gpus.split(","))), COLLC_GPUS=gpus)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 1_000_000


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ("0,1,2,4", "compiled without the GPUs 0,1,2,4"),
        ("0,1,99", "99 is no GPU of this library's topology, which has 8"),
        ("0,1,1", "names GPU 1 twice"),
        ("0,1,'; DROP", "is no GPU"),
    ],
)
def test_gpus_that_are_not_served(gpus: str, words: str) -> None:
    done = run("client.c", "processes", str(len(gpus.split(","))), COLLC_GPUS=gpus)
    assert done.returncode == 1
    assert words in done.stderr


@pytest.mark.parametrize("ways", ["threads", "processes"])
def test_splits_and_shrinks_find_their_allocations(ways: str) -> None:
    done = run("parts.c", ways, "8")
    assert done.returncode == 0, done.stderr
    assert "elements right" in done.stdout


def test_a_machine_that_numbers_its_gpus_otherwise(tmp_path: Path) -> None:
    """GPU i of this machine is GPU order[i] of the one that the library was compiled for."""
    order = [3, 0, 6, 5, 1, 7, 2, 4]
    here = [order.index(g) for g in range(8)]
    machine = load_topology("dgx1p")
    links = [k for k in machine.links if k.kind is LinkKind.NVLINK]
    number = {v.name: i for i, v in enumerate(machine.gpus)}
    rows = "".join(
        f"  - {{from: gpu{here[number[k.src]]}, to: gpu{here[number[k.dst]]}, kind: nvlink, gbps: {k.gbps}}}\n"
        for k in links
    )
    live = tmp_path / "live.yaml"
    live.write_text(f"format: collc-topology/1\nname: live\ngpus: 8\nlinks:\n{rows}", encoding="utf-8")
    numbering = live_numbering(read_library(library(SETS)), library(SETS), load_topology(str(live)))
    speeds = {(number[k.src], number[k.dst]) for k in links}
    assert {(numbering[here[a]], numbering[here[b]]) for a, b in speeds} == speeds
    # A set that is served there under its own numbers, and one that is not.
    served = [here[g] for g in (0, 1, 4, 6)]
    gpus = {"COLLC_NUMBERING": ",".join(map(str, numbering)), "COLLC_GPUS": ",".join(map(str, served))}
    done = run("client.c", "processes", "4", **gpus)
    assert done.returncode == 0, done.stderr
    gpus["COLLC_GPUS"] = ",".join(str(here[g]) for g in (0, 1, 2, 4))
    assert "compiled without the GPUs" in run("client.c", "processes", "4", **gpus).stderr
