"""COLLC_PROTO, COLLC_CHUNK and COLLC_CHANNELS on the CUDA target: what runs, what is refused, who must agree."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import test_cuda_runtime
from support.libraries import ODD
from test_cuda_runtime import calls_of, library, mock_driver, run

from collc.build import compile as build
from collc.build.cache import cache_dir
from collc.build.cuda import DeviceCode
from collc.build.fatbin import Image
from collc.choose import strategy
from collc.compiler import CompileRequest, compile_topology
from collc.options import CUDA, TARGETS, TargetKind

HERE = Path(__file__).parent
SHARED = {"COLLC_SHARE_GPU": "1"}
OWN = {"MOCK_GPUS": "3"}


def launched(answer: dict[str, object]) -> dict[str, int]:
    """Kernels that ran, by protocol."""
    calls = answer["calls"]
    assert isinstance(calls, dict)
    return {name: calls[name] for name in ("Simple", "LL", "LL128") if calls[name]}


@pytest.mark.parametrize("protocol", ["Simple", "ll", "LL128"])
@pytest.mark.parametrize("type_name", ["float", "int8"])
@pytest.mark.slow_for("float-Simple")
def test_every_collective_over_a_forced_protocol(protocol: str, type_name: str) -> None:
    script = calls_of(type_name, False)
    answer = run(script, [0, 0, 0], COLLC_PROTO=protocol, **SHARED)
    assert answer.get("wrong") == [], answer
    assert launched(answer) == {protocol.replace("ll", "LL"): len(script)}


def test_nccl_proto_counts_where_collc_proto_is_unset() -> None:
    for settings, protocol in (
        ({"NCCL_PROTO": "Simple"}, "Simple"),
        ({"NCCL_PROTO": "Simple", "COLLC_PROTO": "LL"}, "LL"),
        ({"NCCL_PROTO": "LL128"}, "LL128"),
    ):
        answer = run(BY_SIZE, [0, 1, 2], **OWN, **settings)
        assert answer.get("wrong") == [], answer
        assert launched(answer) == {protocol: 6}


@pytest.mark.parametrize("fault", [{"MOCK_PCIE": "3"}, {"MOCK_CAPABILITY": "61"}])
def test_nccl_proto_gives_way_where_ll128_cannot_run(fault: dict[str, str]) -> None:
    """A job that ran with NCCL goes on."""
    answer = run(BY_SIZE, [0, 1, 2], **OWN, **fault, NCCL_PROTO="LL128")
    assert answer.get("wrong") == [], answer
    assert launched(answer) == {"LL": 3, "Simple": 3}


@pytest.mark.parametrize("protocol", ["LL", "LL128"])
def test_gpus_of_their_own_over_a_forced_protocol(protocol: str) -> None:
    answer = run(calls_of("half", True), [0, 1, 2], COLLC_PROTO=protocol, **OWN)
    assert answer.get("wrong") == [], answer


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_chunks_and_channels_are_the_users(protocol: str) -> None:
    settings = {"COLLC_PROTO": protocol, "COLLC_CHUNK": "208", "COLLC_CHANNELS": "1"}
    answer = run(calls_of("float", False), [0, 0, 0], **settings, **SHARED)
    assert answer.get("wrong") == [], answer


def test_threads_of_a_block_are_at_most_the_users() -> None:
    """The mock's blocks hold 64: more are asked about until that many are."""
    script = [[["all_reduce", "float", "sum", 0, 3_001, False]]]
    asked = {}
    for threads in ("64", "128", ""):
        answer = run(script, [0, 0, 0], **SHARED, COLLC_THREADS=threads)
        assert answer.get("wrong") == [], answer
        asked[threads] = answer["calls"]["occupancy"]
    assert 0 < asked["64"] < asked["128"] < asked[""]


def test_max_ctas_limits_the_blocks_of_a_launch() -> None:
    """Three ranks on one GPU, one block per rank and channel."""
    script = [[["all_gather", "float", None, 0, 30_000, False]]]
    blocks = {}
    given = {
        "1": {"MOCK_MAX_CTAS": "1"},
        "2": {"MOCK_MAX_CTAS": "2"},
        "2 of NCCL's variable": {"NCCL_MAX_CTAS": "2"},
        "2 of its older name": {"NCCL_MAX_NCHANNELS": "2"},
        "the variable goes first": {"MOCK_MAX_CTAS": "1", "NCCL_MAX_CTAS": "2", "NCCL_MAX_NCHANNELS": "1"},
        "no number": {"NCCL_MAX_CTAS": "all"},
        "": {},
    }
    for name, settings in given.items():
        answer = run(script, [0, 0, 0], **SHARED, **settings)
        assert answer.get("wrong") == [], answer
        blocks[name] = answer["calls"]["blocks"]
    assert blocks["1"] == 3
    assert blocks["2"] == 6
    assert {blocks[name] for name in given if name.startswith(("2 of", "the var"))} == {6}
    assert blocks[""] == blocks["no number"] > 6


BY_SIZE = [[["all_reduce", "int8", "sum", 0, count, False]] for count in (100, 200_000)]


def test_what_runs_is_what_the_tables_say() -> None:
    """The library's tables were made by the simulator: LL for small calls, LL128 from 128 KiB on."""
    answer = run(BY_SIZE, [0, 1, 2], **OWN)
    assert answer.get("wrong") == [], answer
    assert launched(answer) == {"LL": 3, "LL128": 3}


def by_rule() -> Path:
    """A library for more sets of GPUs than the model is asked about, whose tables hold nothing but Simple."""
    folder = cache_dir() / "tests"
    topology = folder / "odd-by-rule.yaml"
    library()  # makes the folder and the file that stands for device code
    topology.write_text(ODD, encoding="utf-8")
    fatbin = folder / "none.fatbin"
    code = DeviceCode(fatbin, (Image("elf", "80", fatbin, "no compiler", "1.2"),))
    out = folder / "libcollc-odd-by-rule-mock.so"
    small = dataclasses.replace(CUDA, slots=2, chunk_bytes=4096)
    request = CompileRequest(topology=str(topology), output=out, target=TargetKind.CUDA, allocations="0-1/0-2")
    with (
        mock.patch.dict(TARGETS, {TargetKind.CUDA: small}),
        mock.patch.object(build, "build_device_code", return_value=code),
        mock.patch.object(strategy, "MODELED_ALLOCATIONS", 1),
    ):
        compile_topology(request)
    return out


@pytest.mark.parametrize(
    ("settings", "protocols"),
    [({}, {"LL": 3, "LL128": 3}), ({"MOCK_PCIE": "1"}, {"LL": 6}), ({"COLLC_PROTO": "Simple"}, {"Simple": 6})],
)
def test_sizes_choose_where_the_tables_hold_nothing_but_simple(
    settings: dict[str, str], protocols: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = by_rule()
    monkeypatch.setattr(test_cuda_runtime, "library", lambda: path)
    answer = run(BY_SIZE, [0, 1, 2], **OWN, **settings)
    assert answer.get("wrong") == [], answer
    assert launched(answer) == protocols


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"COLLC_PROTO": "LL64"}, "COLLC_PROTO=LL64 is not Simple, LL or LL128"),
        ({"COLLC_CHUNK": "1000"}, "COLLC_CHUNK=1000 is no multiple of 16 bytes"),
        ({"COLLC_CHUNK": "-16"}, "COLLC_CHUNK=-16 is not a number from 0 to"),
        ({"COLLC_CHUNK": "1e12"}, "COLLC_CHUNK=1e12 is not a number from 0 to"),
        ({"COLLC_CHANNELS": "1.5"}, "COLLC_CHANNELS=1.5 is not a whole number"),
        ({"COLLC_CHANNELS": "many"}, "COLLC_CHANNELS=many is not a number from 0 to"),
        ({"COLLC_DIRECT": "2"}, "COLLC_DIRECT=2 is not a number from 0 to 1"),
        ({"COLLC_DIRECT_PROCESSES": "2"}, "COLLC_DIRECT_PROCESSES=2 is not a number from 0 to 1"),
        ({"COLLC_THREADS": "32"}, "COLLC_THREADS=32 is not 64, 128, 256 or 512"),
        ({"COLLC_THREADS": "192"}, "COLLC_THREADS=192 is not 64, 128, 256 or 512"),
        ({"COLLC_THREADS": "1024"}, "COLLC_THREADS=1024 is not a number from 0 to 512"),
        ({"COLLC_PROTO": "LL128", "MOCK_PCIE": "3"}, "COLLC_PROTO=LL128: no NVLink joins ranks"),
        ({"COLLC_PROTO": "LL128", "MOCK_CAPABILITY": "60"}, "is older than sm_70, which LL128 needs"),
    ],
)
def test_what_cannot_be_is_refused_with_one_line(settings: dict[str, str], words: str) -> None:
    error = str(run([], [0, 1, 2], **OWN, **settings).get("error"))
    assert words in error
    assert "\n" not in error


@pytest.mark.parametrize("settings", [{"MOCK_PCIE": "3"}, {"MOCK_CAPABILITY": "61"}])
def test_without_nvlink_or_volta_nothing_runs_over_ll128(settings: dict[str, str]) -> None:
    answer = run(BY_SIZE, [0, 1, 2], **OWN, **settings)
    assert answer.get("wrong") == [], answer
    assert launched(answer) == {"LL": 3, "Simple": 3}


@pytest.mark.parametrize(
    ("one", "two", "words"),
    [
        ({"COLLC_PROTO": "LL"}, {}, "ranks 0 and 2 disagree: COLLC_PROTO=LL on the one, no COLLC_PROTO on the other"),
        (
            {"COLLC_CHUNK": "1024"},
            {"COLLC_CHUNK": "2048"},
            "COLLC_CHUNK=1024 on the one, COLLC_CHUNK=2048 on the other",
        ),
        ({}, {"COLLC_CHANNELS": "2"}, "no COLLC_CHANNELS on the one, COLLC_CHANNELS=2 on the other"),
        ({}, {"COLLC_PROTO": "rubbish"}, "rank 2: COLLC_PROTO=rubbish is not Simple, LL or LL128"),
    ],
)
def test_ranks_that_disagree_are_told_so(one: dict[str, str], two: dict[str, str], words: str, tmp_path: Path) -> None:
    base = {**os.environ, **SHARED, "LD_LIBRARY_PATH": str(mock_driver()), "COLLC_BOOTSTRAP_TIMEOUT": "60"}
    command = [sys.executable, str(HERE / "mock_join.py"), str(library())]
    ranks = [
        subprocess.Popen([*command, str(rank), "3", str(tmp_path / "id")], env={**base, **own}, stdout=subprocess.PIPE)
        for rank, own in enumerate((one, one, two))
    ]
    said = [rank.communicate(timeout=100)[0].decode() for rank in ranks]
    assert all(words in line for line in said), said
