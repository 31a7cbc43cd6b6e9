"""Random jobs of three processes on the mock driver, on machines that allow and forbid them different things.

A seed determines the actions of a job (mock_random.py) and their sizes; 20 seeds are one job. `make chaos-jobs` runs
the seeds JOB_SEEDS (0..500), on machines whose GPUs reach each other and on machines whose GPUs do not.
"""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
from mock_jobs import job
from mock_random import SHAPES
from test_cuda_runtime import library

NRANKS, TOGETHER = 3, 20
Machine = dict[int, dict[str, str]]


def same(**settings: str) -> Machine:
    return dict.fromkeys(range(NRANKS), settings)


def one_each(**settings: str) -> Machine:
    """One visible GPU per process."""
    return {rank: {"CUDA_VISIBLE_DEVICES": str(rank), **settings} for rank in range(NRANKS)}


# How processes reach each other's GPU memory, and how they are kept from it.
MACHINES: dict[str, list[Machine]] = {
    "peers": [
        same(),
        one_each(),
        same(CUDA_VISIBLE_DEVICES="2,0,1"),
        same(MOCK_VMM="0"),
        one_each(MOCK_NO_VMM="0-2"),
    ],
    "host": [
        same(MOCK_NO_PEER="all"),
        same(MOCK_NO_PEER="0-1"),
        same(MOCK_NO_PEER="0-2,1-2"),
        same(MOCK_IPC="0", MOCK_VMM="0"),
        same(MOCK_NO_IPC="1-2", MOCK_NO_VMM="1-2"),
        same(MOCK_GARBLED="0-1,1-2"),
        one_each(MOCK_NO_PEER="all"),
        one_each(MOCK_NO_PEER="1-2", MOCK_VMM="0"),
    ],
}
PROTOCOLS = ("", "Simple", "LL", "LL128")


def check(kind: str, sweep: int, seeds: range) -> None:
    """Protocol, chunks, streams' queues and the scheduler change from sweep to sweep."""
    protocols = PROTOCOLS if kind == "peers" else PROTOCOLS[:3]
    settings = {"MOCK_SEED": str(1 + sweep), "COLLC_CHUNK": "176" if sweep % 3 == 2 else "1024"}
    if protocol := protocols[sweep % len(protocols)]:
        settings["COLLC_PROTO"] = protocol
    machine = MACHINES[kind][sweep % len(MACHINES[kind])]
    if "CUDA_VISIBLE_DEVICES" in machine[0] and protocol == "LL128":
        del settings["COLLC_PROTO"]  # without NVML nobody knows which links join GPUs that a process does not see
    own = {rank: {**settings, **one} for rank, one in machine.items()}
    made = library(allocations="1..3")
    answers = job("random_jobs", given={"seeds": list(seeds)}, made=made, own=own, seconds=60 + 10 * len(seeds))
    assert answers == [[], [], []], (kind, sweep, own, answers)


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("sweep", [0, 1])
def test_random_jobs_of_every_shape(kind: str, sweep: int) -> None:
    """The second time on the machine whose processes see one GPU each, or where one pair is without peer access."""
    check(kind, sweep, range(len(SHAPES)))


def sweeps() -> list[range]:
    """Those of JOB_SEEDS ("0..500": the last one is not in it), in pieces that begin at multiples of 20."""
    first, last = map(int, os.environ.get("JOB_SEEDS", "0..500").split(".."))
    begins = [first, *range(first // TOGETHER * TOGETHER + TOGETHER, last, TOGETHER), last]
    return [range(*both) for both in pairwise(begins)]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", sweeps(), ids=lambda seeds: f"{seeds[0]}..{seeds[-1] + 1}")
@pytest.mark.parametrize("kind", MACHINES)
def test_many_random_jobs(kind: str, seeds: range) -> None:
    check(kind, seeds[0] // TOGETHER, seeds)


def test_seeds_reach_every_shape_on_every_machine() -> None:
    """In the first 500: none of the two is left out because its number goes with the other's."""
    for machines in MACHINES.values():
        met = {(seed % len(SHAPES), seed // TOGETHER % len(machines)) for seed in range(500)}
        assert len(met) == len(SHAPES) * len(machines)


@pytest.mark.parametrize("machine", [same(MOCK_BAD_LINK="0-1"), same(MOCK_BAD_LINK="0-1", MOCK_VMM="0")])
@pytest.mark.slow_for("machine1")
def test_wrong_bytes_are_found(machine: Machine) -> None:
    """A link that flips bits of 16-byte stores. Calls that run only over LL do not use such stores."""
    answers = job(
        "random_jobs", given={"seeds": list(range(len(SHAPES)))}, made=library(allocations="1..3"), own=machine
    )
    wrong = {line.split(":")[0].split()[1] for answer in answers for line in answer}
    by_ll = {"two_in_a_group", "creation_beside_a_waiting_kernel", "collectives"}
    assert set(SHAPES) - wrong <= by_ll
