"""COLLC_PROTO, COLLC_CHUNK and COLLC_CHANNELS on the CUDA target: what runs, what is refused, who must agree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_cuda_runtime import calls_of, library, mock_driver, run

HERE = Path(__file__).parent
SHARED = {"COLLC_SHARE_GPU": "1"}
OWN = {"MOCK_GPUS": "3"}


@pytest.mark.parametrize("protocol", ["Simple", "ll", "LL128"])
@pytest.mark.parametrize("type_name", ["float", "int8"])
def test_every_collective_over_a_forced_protocol(protocol, type_name):
    answer = run(calls_of(type_name, False), [0, 0, 0], COLLC_PROTO=protocol, **SHARED)
    assert answer.get("wrong") == [], answer


@pytest.mark.parametrize("protocol", ["LL", "LL128"])
def test_gpus_of_their_own_over_a_forced_protocol(protocol):
    answer = run(calls_of("half", True), [0, 1, 2], COLLC_PROTO=protocol, **OWN)
    assert answer.get("wrong") == [], answer


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_chunks_and_channels_are_the_users(protocol):
    settings = {"COLLC_PROTO": protocol, "COLLC_CHUNK": "208", "COLLC_CHANNELS": "1"}
    answer = run(calls_of("float", False), [0, 0, 0], **settings, **SHARED)
    assert answer.get("wrong") == [], answer


def test_sizes_choose_the_protocol_where_the_tables_do_not():
    script = [[["all_reduce", "int8", "sum", 0, count, False]] for count in (100, 200_000)]
    answer = run(script, [0, 1, 2], **OWN)
    assert answer.get("wrong") == [], answer


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"COLLC_PROTO": "LL64"}, "COLLC_PROTO=LL64 is not Simple, LL or LL128"),
        ({"COLLC_CHUNK": "1000"}, "COLLC_CHUNK=1000 is no multiple of 16 bytes"),
        ({"COLLC_CHUNK": "-16"}, "COLLC_CHUNK=-16 is not a number from 0 to"),
        ({"COLLC_CHUNK": "1e12"}, "COLLC_CHUNK=1e12 is not a number from 0 to"),
        ({"COLLC_CHANNELS": "1.5"}, "COLLC_CHANNELS=1.5 is not a whole number"),
        ({"COLLC_CHANNELS": "many"}, "COLLC_CHANNELS=many is not a number from 0 to"),
        ({"COLLC_PROTO": "LL128", "MOCK_PCIE": "3"}, "COLLC_PROTO=LL128: no NVLink joins ranks"),
        ({"COLLC_PROTO": "LL128", "MOCK_CAPABILITY": "60"}, "is older than sm_70, which LL128 needs"),
    ],
)
def test_what_cannot_be_is_refused_with_one_line(settings, words):
    error = str(run([], [0, 1, 2], **OWN, **settings).get("error"))
    assert words in error
    assert "\n" not in error


@pytest.mark.parametrize("settings", [{"MOCK_PCIE": "3"}, {"MOCK_CAPABILITY": "61"}])
def test_without_nvlink_or_volta_sizes_choose_another(settings):
    script = [[["all_reduce", "int8", "sum", 0, count, False]] for count in (100, 600_000)]
    answer = run(script, [0, 1, 2], **OWN, **settings)
    assert answer.get("wrong") == [], answer


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
def test_ranks_that_disagree_are_told_so(one, two, words, tmp_path):
    base = {**os.environ, **SHARED, "LD_LIBRARY_PATH": str(mock_driver()), "COLLC_BOOTSTRAP_TIMEOUT": "60"}
    command = [sys.executable, str(HERE / "mock_join.py"), str(library())]
    ranks = [
        subprocess.Popen([*command, str(rank), "3", str(tmp_path / "id")], env={**base, **own}, stdout=subprocess.PIPE)
        for rank, own in enumerate((one, one, two))
    ]
    said = [rank.communicate(timeout=100)[0].decode() for rank in ranks]
    assert all(words in line for line in said), said
