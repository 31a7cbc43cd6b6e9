"""`collc bench --breakdown`: the parts add up to the time of the calls."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

import pytest
from support.cli import collc
from support.libraries import library

from collc.bench.breakdown import VARIABLE, ChannelShare, read_times, shares, show, since
from collc.bench.nccl import Nccl


def test_the_parts_of_every_channel_add_up_to_the_call() -> None:
    options = ["--collective", "all_reduce", "-b", "1M", "-e", "1M", "-n", "10", "--breakdown", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "collc", "bench", str(library("odd")), *options],
        capture_output=True,
        text=True,
        check=True,
    )
    for row in json.loads(done.stdout)["rows"]:
        assert row["breakdown"]
        assert sum(part["reducing_us"] for part in row["breakdown"]) > 0
        for part in row["breakdown"]:
            total = part["waiting_us"] + part["copying_us"] + part["reducing_us"]
            # A channel ends with its call or before it; a rank's own clock starts a little later.
            assert 0 < part["copying_us"] < total <= row["time_us"] * 1.5


def test_without_the_option_nothing_is_counted() -> None:
    options = ["--collective", "all_reduce", "-b", "1K", "-e", "1K", "-n", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "collc", "bench", str(library("odd")), *options],
        capture_output=True,
        text=True,
        check=True,
    )
    assert all("breakdown" not in row for row in json.loads(done.stdout)["rows"])


def test_the_option_of_one_call_is_not_the_next_ones() -> None:
    options = ["--collective", "all_reduce", "-b", "1K", "-e", "1K", "-n", "2", "--breakdown", "--json"]
    assert collc("bench", str(library("odd")), *options).code == 0
    assert VARIABLE not in os.environ


def test_a_communicator_counts_from_its_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = Nccl(library("odd"))
    plain = nccl.comm(1, nccl.unique_id(), 0)
    assert read_times(nccl.lib, plain) == []
    assert read_times(nccl.lib, ctypes.c_void_p(1)) == []  # no communicator
    monkeypatch.setenv(VARIABLE, "1")
    counting = nccl.comm(1, nccl.unique_id(), 0)
    assert read_times(nccl.lib, counting) == []  # one rank runs no channel
    for communicator in (plain, counting):
        nccl.check(nccl.lib.ncclCommDestroy(communicator), "ncclCommDestroy")


def test_differences_and_averages() -> None:
    assert since([(1, 2, 3)], [(11, 22, 33), (4, 5, 6)]) == [(10, 20, 30), (4, 5, 6)]
    answers = [{"times": [(4000, 2000, 0), (0, 0, 0)]}, {"times": [(8000, 2000, 2000)]}]
    found = shares(answers, 2)
    assert found == [ChannelShare(0, 3.0, 1.0, 0.5)]
    assert show(found) == ["#   channel 0: waiting 3 us (67%), copying 1 us (22%), reducing 0.5 us (11%)"]
