"""Copy engines over PCIe (COLLC_COPY_ENGINES): beside NVLink in programs cut into classes, and between GPUs that do not
reach each other, on the mock driver."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mock_copies import ROOT
from mock_jobs import job
from support.libraries import fake_nccl
from test_copy_engines import CALLS, COPIES, OWNERS, WAITS, copied, staged
from test_cuda_classes import BALANCED, FAKE, KINDS, NRANKS, all_end_alike, changes, library, system_faults
from test_cuda_runtime import run

SMALL: dict[str, Any] = {"COLLC_COPY_ENGINES": "1", "COLLC_CHUNK": "512"}
COUNTS = [1, 37, 777, 2500]
ALONE: dict[str, Any] = {"MOCK_NO_PEER": "all"}  # no GPU reaches another one
SUMS = 3  # of the five collectives of a scenario, which kernels do


def classes(scenario: str, given: dict[str, Any], log: list[str] | None = None, **settings: str) -> list[Any]:
    own = {rank: {**SMALL, **settings} for rank in range(NRANKS)}
    return job(scenario, NRANKS, given=given, made=library(), own=own, log=log)


def only_sums(given: dict[str, Any]) -> dict[str, Any]:
    return {"wrong": [], "Simple": SUMS * len(given["kinds"]) * len(given["counts"]), "LL": 0, "LL128": 0}


@pytest.mark.parametrize(
    ("weights", "settings"),
    [
        ("random:1", {}),
        *(
            pytest.param(weights, settings, marks=pytest.mark.slow)
            for weights, settings in [
                ("nvlink:2,pcie:1", {"COLLC_CHUNK": "64"}),
                ("random:2", {"MOCK_QUEUES": "1"}),
                ("pcie:1", {}),
                ("nvlink:1", {}),
                ("random:3", {"MOCK_NO_PEER": "0-3"}),
                ("random:4", {"COLLC_CHUNK": "8192", "MOCK_VMM": "0"}),
            ]
        ),
    ],
)
@pytest.mark.slow_for("random:1-settings0")
def test_every_weighting_of_calls_by_copies(weights: str, settings: dict[str, Any]) -> None:
    """Each call has other weights, zeros included. Kernels compute only the sums."""
    given = {"scenario": "weighted_calls", "kinds": KINDS[5:7], "counts": COUNTS}
    assert classes("kernels", given, COLLC_WEIGHTS=weights, **settings) == [only_sums(given)] * NRANKS


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_weights_that_ranks_agree_on_while_calls_run(seed: int) -> None:
    given = {"scenario": "weighted_calls", "kinds": KINDS[5:8], "counts": COUNTS}
    log: list[str] = []
    settings = {**BALANCED, "COLLC_BALANCE": f"random:{seed}"}
    assert classes("kernels", given, log, **settings) == [only_sums(given)] * NRANKS
    assert len(changes(log)) > 10


@pytest.mark.slow
def test_nothing_is_balanced_by_calls_that_nothing_times() -> None:
    log: list[str] = []
    given = {"count": 1 << 18, "calls": 12}
    assert classes("same_call", given, log, COLLC_DEBUG="INFO", COLLC_CHUNK="65536") == [[]] * NRANKS
    assert changes(log) == []


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["random:5", "pcie:1", "nvlink:1,pcie:1"])
def test_graphs_with_copies_over_classes(weights: str) -> None:
    assert classes("weighted_graphs", {"count": 999}, COLLC_WEIGHTS=weights) == [[]] * NRANKS


@pytest.mark.parametrize("name", ["pcie", pytest.param("nvlink", marks=pytest.mark.slow)])
def test_a_class_lost_between_calls_by_copies(name: str) -> None:
    """The other one carries all: for each class of an all_gather a GPU makes five copies, two of its own block."""
    log: list[str] = []
    given = {"name": name, "count": 100}
    answers = classes("lost_copies", given, log, COLLC_WEIGHTS="nvlink:1,pcie:1", COLLC_DEBUG="WARN")
    assert [one[0] for one in answers] == [[]] * NRANKS
    assert {(one[1][0], one[1][2]) for one in answers} == {(10, 5)}
    assert "".join(log).count(f"{name} has failed, reported by collc_lose_class: calls from call ") == 1


FOUR = [
    ([[0], [1], [2], [3]], False),
    ([[0, 1, 2, 3]], False),
    ([[0, 1], [2, 3]], False),
    ([[0, 3], [1, 2]], True),
    ([[0, 1, 2, 3]], True),
]


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["nvlink:1,pcie:1", "random:6"])
@pytest.mark.parametrize(("owners", "grouped"), FOUR)
def test_processes_and_threads_with_classes(owners: list[list[int]], grouped: bool, weights: str) -> None:
    """Copies and kernels in turn, in graphs, and in a communicator with another order of ranks."""
    settings: dict[str, Any] = {"COLLC_WEIGHTS": weights, "COLLC_CHUNK": "512", "MOCK_GPUS": str(NRANKS)}
    staged(owners, grouped, library(), **settings)


@pytest.mark.parametrize(
    ("owners", "grouped"),
    [OWNERS[0], *(pytest.param(*one, marks=pytest.mark.slow) for one in OWNERS[1:])],
)
def test_gpus_that_do_not_reach_each_other(owners: list[list[int]], grouped: bool) -> None:
    staged(owners, grouped, **ALONE)


@pytest.mark.slow
def test_every_root_and_size_through_host_memory() -> None:
    answer = run(CALLS, [0, 1, 2], MOCK_GPUS="3", **{**COPIES, **ALONE})
    assert answer.get("wrong") == [], answer
    assert (answer["calls"]["launch"], answer["calls"]["launch_cooperative"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"MOCK_NO_PEER": "0-1"}, {"MOCK_QUEUES": "1"}, {"COLLC_CHUNK": "64"}])
@pytest.mark.parametrize(("owners", "grouped"), OWNERS)
def test_such_gpus_on_other_machines(owners: list[list[int]], grouped: bool, settings: dict[str, Any]) -> None:
    for seed in range(1, 3):
        staged(owners, grouped, MOCK_SEED=str(seed), **{**ALONE, **settings})


@pytest.mark.parametrize(
    ("how", "graph"),
    [
        ("timeout", False),
        *(
            pytest.param(how, graph, marks=pytest.mark.slow)
            for how, graph in itertools.product(WAITS, (True, False))
            if (how, graph) != ("timeout", False)
        ),
    ],
)
def test_streams_that_wait_for_host_memory_of_ranks_that_do_not_come(how: str, graph: bool) -> None:
    settings: dict[str, Any] = {**SMALL, **ALONE, **({"COLLC_TIMEOUT": "1"} if how == "timeout" else {})}
    said = job("waiting_copies", given={"how": how, "graph": graph}, **settings)
    again: dict[str, Any] = {} if how in ("kill", "leave") else {"wrong": []}
    wanted = WAITS[how].replace(", by", " through pinned host memory, by")
    assert wanted in said[0].pop("text")
    assert said[0] == {"stands": 600, "soon": True, "kernels": 0, **again}
    assert said[1:] == ["status -9: " if how == "kill" else again, again]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nvlink", "pcie"])
def test_an_error_says_over_which_memory_a_part_stands_still(name: str) -> None:
    texts = classes("missing_rank", {}, COLLC_WEIGHTS=f"{name}:1", COLLC_TIMEOUT="0.5")
    assert texts[0] == ""
    through = " through pinned host memory" if name == "pcie" else ""
    assert all(f"to copy their part{through}, by copy engines" in text for text in texts[1:]), texts


# The settings of one process for a call of four ranks over both classes, or of three only over host memory.
BOTH: dict[str, Any] = {"COLLC_WEIGHTS": "nvlink:1,pcie:1", "MOCK_GPUS": str(NRANKS)}


def without(scenario: str, given: dict[str, Any], seconds: float = 120, **settings: str) -> list[Any]:
    made = library() if "COLLC_WEIGHTS" in settings else None
    nranks = NRANKS if made else 3
    return list(copied(scenario, {"nranks": nranks, "apart": True, **given}, made, seconds, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["all_gather", "broadcast"])
@pytest.mark.parametrize("settings", [BOTH, ALONE], ids=["classes", "host"])
def test_every_wait_between_the_streams_of_a_rank_counts(what: str, settings: dict[str, Any]) -> None:
    """Each internal stream of a rank waits for the caller's stream, whose later work waits for each internal stream.

    Two kinds of waits are not needed: for a stream that fills no slot, as in a broadcast's other ranks, and for the
    call before (0), because both calls use the same internal streams.
    """
    nranks, sides = (NRANKS, 3) if settings is BOTH else (3, 2)
    each = 1 + 2 * sides
    waits, filling = nranks * each, (sides - 1, 2 * sides - 1)
    spare = {rank * each for rank in range(nranks)}
    if what == "broadcast":
        spare |= {rank * each + at for rank in range(nranks) if rank != ROOT for at in filling}
    answers = without("dropped_stream_waits", {"what": what, "waits": waits}, **settings)
    assert {at for at, answer in enumerate(answers[:-1]) if answer == "right"} == spare
    assert answers[-1] == "right"


# A call of three ranks through host memory: the number of operations on memory, the number for a rank of each kind, and
# the operations that only the watcher reads.
OPERATIONS = {"all_gather": (48, 16, list[int]()), "broadcast": (18, 13, [3])}


@pytest.mark.slow
@pytest.mark.parametrize("what", OPERATIONS)
def test_every_operation_on_memory_counts(what: str) -> None:
    operations, rows, spare = OPERATIONS[what]
    for first in range(0, rows, 6):
        drops = list(range(first, min(first + 6, rows)))
        given = {"what": what, "operations": operations, "drops": [*drops, -1]}
        answers = without("dropped_operations", given, MOCK_PATIENCE_MS="300", **ALONE)
        assert answers[-1] == "right"
        found = [at for at, answer in zip(drops, answers, strict=False) if answer == "right"]
        assert found == [at for at in spare if at in drops]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["all_gather", "broadcast"])
@pytest.mark.parametrize("settings", [BOTH, ALONE], ids=["classes", "host"])
def test_every_call_of_the_driver_fails_once(what: str, settings: dict[str, Any]) -> None:
    """Then the call fails, on all ranks, and no stream waits for ever; the next communicator is right."""
    most = {"most": 80} if settings is BOTH else {}  # of two ranks, the root and another one
    said = without("failing_steps", {"what": what, **most}, 400, **settings)
    assert {name for name, _ in said} >= {"memory_operations", "copy", "record", "wait", "is_capturing"}
    for name, outcome in said:
        assert (outcome == "right") == (name == "stream_id"), said


@pytest.mark.slow
def test_every_step_of_a_creation_through_host_memory_fails_once() -> None:
    given: dict[str, Any] = {**SMALL, **ALONE, "COLLC_NCCL": "/nowhere/libnccl.so.2"}
    (*first, last) = job("failing_steps", seconds=240, **given)[0]
    assert last == ["", "ours"]
    for name, text in first:
        assert text == "ours" or "no NCCL was found to take it" in text or "need pinned host memory" in text, (
            name,
            text,
        )
    assert {name for name, text in first if text == "ours"} >= {"stream_create", "register_host", "host_address"}


@pytest.mark.slow
@pytest.mark.parametrize("planted", [0, 1])
def test_every_call_of_the_system_for_host_slots_fails_once(planted: int, tmp_path: Path) -> None:
    """All ranks get the same result. If only the copies lack memory, kernels run all calls."""
    log: list[str] = []
    calls = ["memfd_create", "posix_fallocate", "mmap"] if planted == 0 else ["posix_fallocate", "mmap"]
    answers = classes(
        "failing_system_calls",
        {"planted": planted, "calls": calls},
        log,
        COLLC_NCCL=str(fake_nccl(FAKE)),
        COLLC_BOOTSTRAP_TIMEOUT="10",
        COLLC_DEBUG="WARN",
        LD_PRELOAD=str(system_faults(tmp_path)),
    )
    all_end_alike(answers)
    for why in ("cannot reserve", "cannot map", *(["no shared memory"] if planted == 0 else [])):
        assert f"COLLC_COPY_ENGINES is not followed: rank {planted}: {why}" in log[0], (why, log)


# The GPU of a rank is next to memory 0, as the machine's system says.
NEAR = """
set -e
mount -t tmpfs none /sys/bus/pci/devices
mkdir -p /sys/bus/pci/devices/0000:1RANK:00.0
echo 0 > /sys/bus/pci/devices/0000:1RANK:00.0/numa_node
exec "$@"
"""


def policies(file: str, rank: int | None = None) -> list[list[str]]:
    within = [] if rank is None else ["unshare", "-m", "sh", "-c", NEAR.replace("RANK", str(rank)), "sh"]
    if within and subprocess.run([*within, "true"], check=False).returncode != 0:
        pytest.skip("no namespace for mounts")
    found = job("slot_policies", given={"file": file}, within=tuple(within), **SMALL, **ALONE)
    return [sorted(said) for said in found]


@pytest.mark.slow
def test_slots_are_next_to_the_gpu_that_fills_them() -> None:
    """Each rank maps the slots of all ranks as one piece, and its policy is the policy of its first byte."""
    assert policies("collc-slots", 0) == [["default", "prefer:0"], *[["prefer:0"]] * 2]
    assert policies("collc-slots") == [["default"]] * 3


@pytest.mark.slow
def test_fifos_in_host_memory_are_next_to_one_gpu_of_their_pair() -> None:
    assert policies("collc-pinned", 1) == [["default", "prefer:0"]] * 2 + [["default"] * 2]
    assert policies("collc-pinned", 2) == [["default", "prefer:0"]] * 2 + [["prefer:0"] * 2]
    assert policies("collc-pinned") == [["default"] * 2] * 3
