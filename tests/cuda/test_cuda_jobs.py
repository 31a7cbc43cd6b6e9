"""Jobs of several processes on the mock driver, as real programs run them, on machines with restrictions."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from mock_jobs import job
from support.cli import collc
from support.libraries import BRIDGED
from support.ranks import INVALID_USAGE, REMOTE_ERROR
from test_cuda_runtime import compile_for_mock, library, written
from test_gpu_places import made_for

from collc.build.memory import most_pinned_bytes, transfer_bytes
from collc.build.toolchain import find_cxx, run_tool
from collc.checker.library import read_manifest

TRANSFERS = ("neighbors", "pipeline", "experts", "ring_attention", "crossed", "many_to_one", "coalesced")


@pytest.mark.parametrize("scenario", TRANSFERS)
@pytest.mark.slow_for("neighbors")
def test_transfers_between_processes(scenario: str) -> None:
    assert job(scenario) == [True] * 3


@pytest.mark.slow
@pytest.mark.parametrize("scenario", TRANSFERS)
@pytest.mark.parametrize("seed", ["2", "3", "4", "5", "6", "7", "8"])
def test_transfers_under_other_schedules(scenario: str, seed: str) -> None:
    assert job(scenario, MOCK_SEED=seed) == [True] * 3


@pytest.mark.parametrize("settings", [{}, {"MOCK_NO_PEER": "all"}], ids=["peers", "pinned"])
def test_more_transfers_in_a_group_than_arguments_of_a_kernel_hold(settings: dict[str, str]) -> None:
    assert job("many_in_a_group", given={"tensors": 70}, own=dict.fromkeys(range(3), settings)) == [True] * 3


@pytest.mark.slow
def test_more_transfers_in_a_group_than_a_table_holds() -> None:
    given = {"tensors": 1100, "count": 1, "once": True}  # 4,400 of each rank
    assert job("many_in_a_group", given=given, seconds=500) == [True] * 3


def check_random_transfers(seeds: range) -> None:
    answers = job(
        "random_transfers", given={"seeds": list(seeds)}, MOCK_SEED=str(seeds[0]), seconds=60 + 20 * len(seeds)
    )
    assert answers == [[], [], []]


def test_random_transfers() -> None:
    check_random_transfers(range(6))


@pytest.mark.slow
@pytest.mark.parametrize("sweep", range(1, 26))
def test_many_random_transfers(sweep: int) -> None:
    check_random_transfers(range(20 * sweep, 20 * sweep + 20))


def test_messages_that_differ_end_the_communicator_with_both_sizes() -> None:
    for answer in job("different_sizes"):
        words = "calls differ: rank 1 receives 101 elements of float32 from rank 0, which sends 100 elements of float32"
        assert answer["code"] == INVALID_USAGE
        assert words in answer["text"]


def test_what_was_sent_before_a_rank_left_arrives_and_no_more() -> None:
    answer = job("sender_leaves")[1]
    assert answer["first"] is True
    assert answer["code"] == REMOTE_ERROR
    assert "rank 0 has destroyed its communicator before a transfer with rank 1" in answer["text"]


def test_a_refused_call_changes_nothing() -> None:
    for answer in job("refused_calls"):
        assert all(said == [True, True] for said in answer.values()), answer


@pytest.mark.parametrize("check", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_a_communicator_is_made_beside_a_waiting_kernel(check: str) -> None:
    assert job("creation_beside_a_waiting_kernel", COLLC_CHECK=check) == [True] * 3


@pytest.mark.parametrize("end", ["abort", "destroy"])
@pytest.mark.parametrize("settings", [{}, {"MOCK_NO_PEER": "all"}], ids=["peers", "pinned"])
def test_a_communicator_ends_beside_a_waiting_kernel(end: str, settings: dict[str, str]) -> None:
    """And what it had is free once that kernel has ended."""
    answers = job("end_beside_a_waiting_kernel", given={"end": end}, own=dict.fromkeys(range(3), settings))
    assert answers == ["right, and all is free"] * 3


@pytest.mark.slow
def test_as_many_ranks_of_one_gpu_have_transfers_in_a_group_as_fit_into_a_launch() -> None:
    """28; a group of more is refused, and the communicator goes on."""
    star = "format: collc-topology/1\nname: wide\ngpus: 29\nswitches: [nvs0]\nlinks:\n"
    star += "".join(f"  - [gpu{i}, nvs0, nvswitch, 100]\n" for i in range(29))
    made = compile_for_mock("wide", written("wide", star), chunk_bytes=4 << 10)
    given = {"ranks": 29, "rings": [28, 29, 28]}
    one = {"COLLC_SHARE_GPU": "1", "COLLC_CHANNELS": "1", "MOCK_GPUS": "1"}
    ((first, refused, again),) = job("rings_on_one_gpu", 1, given=given, made=made, own={0: one})
    assert (first, again) == (True, True)
    assert "more than 28 ranks that share GPU 0 have transfers in one group" in refused


@pytest.mark.parametrize(("end", "behind"), [("abort", False), ("abort", True), ("destroy", False)])
def test_the_end_of_a_communicator_takes_less_than_a_second(end: str, behind: bool) -> None:
    """While a kernel of another one waits for a call that comes later; one that is waited for would take for ever."""
    answers = job("ends_in_time", given={"end": end, "behind": behind})
    assert all(isinstance(seconds, float) and seconds < 1 for seconds in answers), answers


def test_a_call_behind_a_waiting_kernel_is_aborted() -> None:
    """It begins long after its communicator has gone, and touches nothing that is not there."""
    assert job("abort_behind_a_waiting_kernel") == ["right, and all is free"] * 3


def test_a_communicator_ends_while_a_stream_is_captured() -> None:
    assert job("end_in_a_capture") == [True] * 3


@pytest.mark.parametrize("scenario", ["two_in_a_group", "transfers_of_two_in_a_group"])
def test_two_communicators_in_one_group_in_every_order(scenario: str) -> None:
    assert job(scenario, seconds=60) == [True] * 3


@pytest.mark.parametrize("pairs", ["all", "0-1"])
@pytest.mark.slow_for("0-1")
def test_gpus_without_peer_access(pairs: str) -> None:
    assert job("collectives", MOCK_NO_PEER=pairs) == [[], [], []]


def everywhere(**settings: str) -> dict[int, dict[str, str]]:
    return dict.fromkeys(range(3), settings)


@pytest.mark.parametrize("protocol", ["", "Simple", "LL", "LL128"])
def test_processes_without_file_descriptors_share_memory_by_ipc_handles(protocol: str) -> None:
    log: list[str] = []
    own = everywhere(**{"COLLC_PROTO": protocol} if protocol else {})
    assert job("collectives", log=log, own=own, COLLC_DEBUG="INFO", MOCK_VMM="0") == [[], [], []]
    for rank, said in enumerate(log):
        first, second = (other for other in range(3) if other != rank)
        why = "no file descriptor of its memory can be made"
        assert f"rank {rank}: GPU memory joins it with rank(s) {first}, {second}" in said
        assert f"rank {rank}: IPC handles share GPU memory (rank {first}: {why}, rank {second}: {why})" in said
        assert "pinned" not in said


def test_processes_without_ipc_and_descriptors() -> None:
    assert job("collectives", MOCK_IPC="0", MOCK_VMM="0") == [[], [], []]


def test_transfers_by_ipc_handles() -> None:
    assert job("random_transfers", given={"seeds": [0, 1]}, MOCK_VMM="0") == [[], [], []]


@pytest.mark.parametrize("visible", ["0", "all"])
def test_ipc_handles_of_gpus_that_processes_do_not_see(visible: str) -> None:
    own = {rank: {"CUDA_VISIBLE_DEVICES": str(rank)} for rank in range(3)} if visible == "0" else None
    log: list[str] = []
    assert job("regions", log=log, own=own, MOCK_NO_VMM="0-1", COLLC_DEBUG="INFO") == [0] * 3
    why = "the file descriptor of its memory cannot be mapped"
    assert f"rank 0: IPC handles share GPU memory (rank 1: {why})" in log[0]


@pytest.mark.parametrize("way", [{}, {"MOCK_VMM": "0"}], ids=["descriptors", "handles"])
def test_several_gpus_of_one_process(way: dict[str, Any]) -> None:
    log: list[str] = []
    assert job("two_here", 2, log=log, MOCK_GPUS="3", COLLC_DEBUG="INFO", **way) == [True, True]
    assert ("rank 0: IPC handles share GPU memory (" in log[0]) == bool(way)
    assert "pinned" not in log[0]
    log.clear()
    own = {0: {"MOCK_NO_PEER": "0-1"}, 1: {}}
    assert job("two_here", 2, log=log, own=own, MOCK_GPUS="3", COLLC_DEBUG="INFO", **way) == [True, True]
    assert "rank 0: pinned host memory joins it with rank 1 (no peer access between the GPUs)" in log[0]


def test_file_descriptors_join_what_they_can() -> None:
    """Without IPC anywhere, and no descriptors for one pair; and where descriptors join no more pairs than IPC does."""
    log: list[str] = []
    assert job("regions", log=log, COLLC_DEBUG="INFO", MOCK_NO_VMM="0-1", MOCK_IPC="0") == [1, 1, 0]
    assert "memory cannot be mapped; no IPC handle of its memory can be made)" in log[0]
    assert "IPC handles share" not in log[0]
    log.clear()
    assert job("regions", log=log, COLLC_DEBUG="INFO", MOCK_NO_IPC="0-1", MOCK_NO_VMM="1-2") == [0, 1, 1]
    assert "cannot be mapped, and IPC handles join no more pairs)" in log[2]
    assert "rank 0: GPU memory joins it with rank(s) 1, 2" in log[0]


OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@cache
def has_pid_namespaces() -> bool:
    try:
        return subprocess.run([*OWN_PIDS, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "rank 0: GPU memory joins it with rank(s) 1, 2"),
        ({"MOCK_NO_PEER": "all"}, "pinned host memory joins it with rank 1 (no peer access between the GPUs)"),
    ],
    ids=["peers", "pinned"],
)
def test_processes_with_pid_namespaces_of_their_own(settings: dict[str, str], words: str) -> None:
    """As containers are that share neither that nor IPC: every process has the number 1."""
    if not has_pid_namespaces():
        pytest.skip("no namespace of processes can be made here")
    log: list[str] = []
    own = everywhere(**settings)
    assert job("collectives", within=OWN_PIDS, log=log, own=own, COLLC_DEBUG="INFO") == [[], [], []]
    assert words in log[0]
    assert job("random_transfers", within=OWN_PIDS, given={"seeds": [0]}, own=own) == [[], [], []]
    # One that ends without a word is missed by the others.
    answers = job("left_without_destroy", within=OWN_PIDS, given={"leave": [1], "call": True}, own=own)
    assert answers == [[True, REMOTE_ERROR], True, [True, REMOTE_ERROR]]


@pytest.mark.parametrize("end", ["abort", "destroy"])
def test_memory_behind_ipc_handles_is_freed(end: str) -> None:
    answers = job("end_beside_a_waiting_kernel", given={"end": end}, MOCK_VMM="0")
    assert answers == ["right, and all is free"] * 3


WAYS = [
    ({"MOCK_NO_PEER": "0-1"}, "no peer access between the GPUs"),
    (
        {"MOCK_NO_IPC": "0-1", "MOCK_VMM": "0"},
        "no file descriptor of its memory can be made; the IPC handle of its memory cannot be opened",
    ),
    (
        {"MOCK_NO_IPC": "0-1", "MOCK_NO_VMM": "0-1"},
        "the file descriptor of its memory cannot be mapped; the IPC handle of its memory cannot be opened",
    ),
    ({"MOCK_GARBLED": "0-1"}, "its memory gives wrong data"),
    (
        {"MOCK_GARBLED": "0-1", "MOCK_VMM": "0"},
        "no file descriptor of its memory can be made; its memory gives wrong data",
    ),
]


@pytest.mark.parametrize(("settings", "why"), WAYS)
def test_a_pair_without_access_has_pinned_memory_and_says_why(settings: dict[str, str], why: str) -> None:
    log: list[str] = []
    assert job("regions", log=log, COLLC_DEBUG="INFO", own=dict.fromkeys(range(3), settings)) == [1, 1, 0]
    for rank in (0, 1):
        assert f"rank {rank}: pinned host memory joins it with rank {1 - rank} ({why}" in log[rank]
        assert f"rank {rank}: GPU memory joins it with rank(s) 2" in log[rank]
    assert "rank 2: GPU memory joins it with rank(s) 0, 1" in log[2]
    assert "pinned" not in log[2]


def test_a_program_that_only_called_cuda_set_device(tmp_path: Path) -> None:
    source, runtime = tmp_path / "cudart.c", tmp_path / "libcudart.so"
    source.write_text(
        "static int chosen;\n"
        "int cudaSetDevice(int device) { chosen = device; return 0; }\n"
        "int cudaGetDevice(int *device) { *device = chosen; return 0; }\n"
    )
    run_tool([find_cxx().path, "-xc", "-shared", "-fPIC", str(source), "-o", str(runtime)])
    assert job("chosen_in_the_runtime", given={"runtime": str(runtime)}) == [[0, 0], [1, 0], [2, 0]]


@pytest.mark.parametrize("wish", [{"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "loc"}])
def test_a_rank_whose_user_forbids_peer_access_has_pinned_memory(wish: dict[str, str]) -> None:
    log: list[str] = []
    # The wish of one rank is enough; the others go on as they are.
    assert job("regions", log=log, COLLC_DEBUG="INFO", own={1: wish}) == [1, 2, 1]
    why = "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL forbids peer access"
    for rank, peer in ((0, 1), (1, 0), (2, 1)):
        assert re.search(rf"rank {rank}: pinned host memory joins it with.* rank {peer} \({why}\)", log[rank]), log[
            rank
        ]
    assert "rank 0: GPU memory joins it with rank(s) 2" in log[0]
    assert "is not followed" not in "".join(log)


def test_processes_on_one_gpu_may_be_forbidden_its_memory() -> None:
    """Each finds the two others behind pinned memory."""
    for value, pinned in (("0", 0), ("1", 2)):
        wish = {"COLLC_SHARE_GPU": "1", "COLLC_CHANNELS": "1", "MOCK_GPUS": "1", "NCCL_P2P_DISABLE": value}
        assert job("regions", own=dict.fromkeys(range(3), wish)) == [pinned] * 3


@pytest.mark.parametrize("value", ["0", "many"])
def test_a_wish_that_forbids_nothing(value: str) -> None:
    log: list[str] = []
    assert job("regions", log=log, COLLC_DEBUG="INFO", NCCL_P2P_DISABLE=value) == [0, 0, 0]
    assert ("NCCL_P2P_DISABLE is not followed" in "".join(log)) == (value == "many")


@pytest.mark.parametrize("pairs", ["all", "0-2"])
def test_gpus_of_one_process_without_peer_access(pairs: str) -> None:
    log: list[str] = []
    assert job("one_process", 1, log=log, MOCK_GPUS="3", MOCK_NO_PEER=pairs, COLLC_DEBUG="INFO") == [True]
    found = re.search("rank 0: pinned host memory joins it with.* rank 2 .no peer access between the GPUs.", log[0])
    assert found, log[0]


def test_transfers_over_pinned_memory() -> None:
    answers = job("random_transfers", given={"seeds": [0, 1]}, MOCK_NO_PEER="all")
    assert answers == [[], [], []]


def test_pinned_memory_is_no_more_than_inspect_says() -> None:
    allocation = read_manifest(library())["allocations"][0]
    pinned = sum(job("pinned_memory", MOCK_NO_PEER="all"))
    assert pinned % 2 == 0  # two ranks have every region
    assert 0 < pinned // 2 <= most_pinned_bytes(allocation["gpu_bytes"], 3)


def test_inspect_knows_which_pairs_have_pinned_memory_and_how_much(tmp_path: Path) -> None:
    """GPU 2 is attached to a CPU that stages all data, both in the topology and on the mock's machine."""
    (tmp_path / "staged.yaml").write_text(BRIDGED)
    made = made_for(str(tmp_path / "staged.yaml"), "0,1,2")
    allocation = read_manifest(made)["allocations"][0]
    assert allocation["host_pairs"] == ["0-2", "1-2"]
    pinned = job("pinned_memory", made=made, MOCK_NO_PEER="0-2,1-2")
    assert sum(pinned) == 2 * allocation["host_bytes"] > 0
    text = collc("inspect", made).out
    assert "between ranks 0-2, 1-2: pinned host memory, as the topology stages their data" in text
    assert f" {allocation['host_bytes'] / 1e6:.1f} MB in all; if no GPUs reach each other at most " in text
    # Where the processor does not stage anything, nobody knows before the driver is asked.
    (tmp_path / "plain.yaml").write_text(BRIDGED.replace("{name: cpu0, memory_gbps: 20}", "cpu0"))
    assert read_manifest(made_for(str(tmp_path / "plain.yaml"), "0,1,2"))["allocations"][0]["host_pairs"] == []


def test_host_memory_that_cannot_be_pinned_is_one_line() -> None:
    for answer in job("collectives", MOCK_NO_PEER="all", MOCK_NO_REGISTER="1"):
        assert "GPUs that do not reach each other need pinned host memory" in str(answer)


# Restrictions of the machine, by the number of the seed.
FORBIDDEN = (
    {"MOCK_NO_PEER": "all"},
    {"MOCK_NO_PEER": "0-1"},
    {"MOCK_NO_PEER": "0-2,1-2"},
    {"MOCK_VMM": "0"},
    {"MOCK_NO_VMM": "1-2"},
    {"MOCK_GARBLED": "0-1,1-2"},
)


@pytest.mark.slow
@pytest.mark.parametrize("sweep", range(25))
def test_many_jobs_over_pinned_memory(sweep: int) -> None:
    """Random transfers in random groups with collectives between them: 20 seeds each."""
    protocol = ("", "Simple", "LL")[sweep % 3]
    settings = {**FORBIDDEN[sweep % len(FORBIDDEN)], **({"COLLC_PROTO": protocol} if protocol else {})}
    if sweep % 2:
        settings |= {"COLLC_CHUNK": "176"}
    seeds = list(range(20 * sweep, 20 * sweep + 20))
    own = {key: {**settings, "MOCK_SEED": str(sweep)} for key in range(3)}
    answers = job("random_transfers", given={"seeds": seeds}, seconds=600, own=own)
    assert answers == [[], [], []], settings


def test_a_communicator_takes_what_its_manifest_says() -> None:
    allocation = read_manifest(library())["allocations"][0]
    arenas = job("memory", MOCK_VMM="0")
    assert max(arenas) == allocation["gpu_bytes"]
    transfers = transfer_bytes(3, allocation["slot_bytes"], allocation["servers"])
    assert sum(arenas) == allocation["fifo_bytes"] + 3 * transfers


def check_all_memory(made: Path, nranks: int, more: int) -> int:
    """Checks a rank's peak of GPU memory: at most a little over the manifest, and ncclCommMemStats reports no more."""
    manifest = read_manifest(made)["allocations"][0]["gpu_bytes"]
    answers = job("memory_of_all_kinds", nranks, made=made, seconds=300, MOCK_VMM="0")
    for total, fifos, told in answers:
        assert fifos <= told <= total + 1024 <= manifest + more, (answers, manifest)
    return int(max(total for total, _, _ in answers))


def test_what_a_communicator_takes_beside_fifos_and_transfers_is_little() -> None:
    check_all_memory(library(), 3, 500_000)


@pytest.mark.slow
def test_the_default_library_of_an_hgx_h100_takes_at_most_64_mb_of_a_gpu() -> None:
    assert check_all_memory(compile_for_mock("hgx-h100", "hgx-h100", chunk_bytes=0), 8, 1_000_000) < 64_000_000


def test_one_visible_gpu_per_process() -> None:
    own = {rank: {"CUDA_VISIBLE_DEVICES": str(rank)} for rank in range(3)}
    assert job("collectives", own=own) == [[], [], []]


def test_a_link_between_gpus_that_turns_bits_is_named() -> None:
    """On the mock driver: what rank 0 writes into the memory of rank 1 arrives wrong, the other way all is well."""
    answers = job("made", own={0: {"MOCK_BAD_LINK": "0-1"}}, COLLC_CHECK="1")
    for answer in answers:
        assert "COLLC_CHECK: from rank 0 (gpu0) to rank 1 (gpu1), gpu0 -nvlink- gpu1: " in answer["error"]
        assert answer["error"].count("bytes are wrong") == 1
    assert job("made", COLLC_CHECK="1") == [True] * 3
