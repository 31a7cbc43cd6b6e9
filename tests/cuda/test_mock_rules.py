"""The mock driver: what it shares, waits for and forbids, each shown by a library or a fault that trips on it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from mock_jobs import job
from test_cuda_runtime import mock_driver


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_processes_really_share_the_memory_of_gpus(protocol: str) -> None:
    assert job("collectives", COLLC_PROTO=protocol) == [[], [], []]


def test_what_the_driver_waits_for_while_a_kernel_waits() -> None:
    free = {"alloc", "another stream", "fill on another stream", "upload"}
    answer = job("what_the_driver_waits_for")[0]
    assert {name for name, back in answer.items() if back} == free, answer
    assert len(answer) == 11


def test_an_allocation_may_wait_for_kernels() -> None:
    answer = job("what_the_driver_waits_for", MOCK_ALLOC_WAITS="1")[0]
    assert not answer["alloc"], answer


def test_the_legacy_stream_waits_for_blocking_streams_alone() -> None:
    """`upload` waits in either case: the kernel's stream is blocking here; there no other is."""
    assert not job("what_the_driver_waits_for", given={"flags": 0})[0]["upload"]


def test_what_the_driver_refuses_of_virtual_memory() -> None:
    said = job("what_is_refused", 1)[0]
    assert len(said) == 8
    assert set(said.values()) == {1}, said


def test_a_descriptor_keeps_its_memory() -> None:
    assert job("imported_after_the_end", 1) == [True]


def test_unmapping_waits_for_no_kernel() -> None:
    assert job("unmapped_under_a_kernel")[0] == 719


def test_hardware_queues_hold_up_what_stands_behind_a_launch_that_waits() -> None:
    """A kernel behind an event that has not come keeps another stream's kernel from starting if both share a queue."""
    assert job("queues", 1, MOCK_GPUS="3", MOCK_QUEUES="1", seconds=60) == [False]
    assert job("queues", 1, MOCK_GPUS="3", MOCK_QUEUES="8", seconds=60) == [True]


@pytest.mark.parametrize(("how", "status"), [("event", 0), ("query", 0), ("nothing", 719)])
def test_work_that_has_ended_is_ordered_only_before_what_waits_for_it(how: str, status: int) -> None:
    """The result is the same whether the work ends before or after the other stream starts to wait, at any load."""
    assert job("order_after_the_end", 1, given={"how": how}) == [status]


@pytest.mark.parametrize(("mode", "statuses"), [(0, [900, 900]), (2, [0, 0])])
def test_a_capture_forbids_what_would_wait_except_in_the_relaxed_mode(mode: int, statuses: list[int]) -> None:
    assert job("forbidden_in_a_capture", 1, given={"mode": mode}) == [statuses]


def test_what_the_driver_refuses_of_the_events_of_graphs() -> None:
    invalid, isolation, unsupported = 1, 905, 900
    assert job("events_of_graphs", 1) == [
        {
            "recorded for a graph outside of one": invalid,
            "waited for like a graph outside of one": invalid,
            "waited for, but never recorded": invalid,
            "of no graph, waited for in one": isolation,
            "the end of that capture": isolation,
            "asked for amid a capture": unsupported,
            "the end of the other capture": unsupported,
            "the number of a captured stream": unsupported,
            "the end of the third capture": unsupported,
        }
    ]


class Row(NamedTuple):
    """A fault, the scenario that finds it, and the job's answer without the fault."""

    fault: str
    rules: tuple[str, ...]
    scenario: str
    good: Any
    nranks: int = 3
    given: Mapping[str, str] = MappingProxyType({})
    settings: Mapping[str, str] = MappingProxyType({})


GARBLED = {"MOCK_GARBLED": "0-1", "COLLC_PROTO": "Simple"}
PINNED = {"MOCK_NO_PEER": "all"}
HANDLES = {"MOCK_VMM": "0"}
ENDS, AND_ALL_IS_FREE = "end_beside_a_waiting_kernel", ["right, and all is free"] * 3
# A row tests one rule. The other rules that the same careless call would break are off.
AT_ONCE = ("freeing waits", "freeing host memory waits", "unpinning waits", "closing waits")
ROWS = [
    *(
        Row("frees at once", (rule,), ENDS, AND_ALL_IS_FREE, 3, {"end": "destroy"}, HANDLES)
        for rule in AT_ONCE
        if "pin" not in rule
    ),
    Row("frees at once", ("unpinning waits",), ENDS, AND_ALL_IS_FREE, 3, {"end": "destroy"}, PINNED),
    Row("loads late", ("loading waits",), "another_kernel_beside_a_waiting_one", [True] * 3),
    Row("copies without a stream", ("the legacy stream waits",), "creation_beside_a_waiting_kernel", [True] * 3),
    Row("opens no peers", ("memory is opened",), "one_process", [True], 1, {}, {"MOCK_GPUS": "3"}),
    Row("closes what others opened", ("memory is opened",), "collectives", [[], [], []], 3, {}, HANDLES),
    Row("opens no virtual memory", ("memory is opened",), "collectives", [[], [], []]),
    Row(
        "leaves handles open", ("importers close before memory is freed",), "collectives", [[], [], []], 3, {}, HANDLES
    ),
    Row("trusts what it has opened", ("garbled is garbled",), "collectives", [[], [], []], 3, {}, GARBLED),
    Row("graphs wait for nothing", ("streams run at once",), "graphs_on_two_streams", [[True] * 4] * 3),
    Row("tells streams by handles", ("streams run at once",), "streams_of_threads", [True] * 3),
    Row("tells streams by handles", ("streams run at once",), "reused_streams", [True] * 3),
    Row("never relaxes captures", ("captures forbid",), "end_in_a_capture", [True] * 3),
]


def said_by(row: Row, without: tuple[str, ...], fault: str, **settings: str) -> list[Any]:
    own = {key: {**row.settings, **settings} for key in range(row.nranks)}
    off = ",".join(without)
    return job(row.scenario, row.nranks, given=dict(row.given), own=own, seconds=60, MOCK_WITHOUT=off, MOCK_FAULT=fault)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.fault}: {', '.join(row.rules)}, {row.scenario}")
def test_a_rule_finds_a_careless_library(row: Row) -> None:
    """And without the rule nobody would notice."""
    others = tuple(rule for rule in AT_ONCE if rule not in row.rules) if row.rules[0] in AT_ONCE else ()
    assert said_by(row, (*others, *row.rules), row.fault) == row.good
    assert said_by(row, others, row.fault, COLLC_TIMEOUT="2", MOCK_JOB_PATIENCE="10") != row.good


def test_every_rule_has_a_fault_and_every_fault_a_rule() -> None:
    sources = [*(Path(__file__).parent / "emulation").iterdir()]
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    assert set(re.findall(r'\brule\("([^"]+)"\)', text)) == {rule for row in ROWS for rule in row.rules}
    assert set(re.findall(r'\bfault\("([^"]+)"\)', text)) == {row.fault for row in ROWS}


def test_devices_are_hidden_until_the_driver_is_started() -> None:
    asked = "import ctypes; mock = ctypes.CDLL('libcuda.so.1'); at = ctypes.c_void_p();"
    for started, expected in (("", "3"), ("mock.cuInit(0);", "0")):
        done = subprocess.run(
            [sys.executable, "-c", f"{asked} {started} print(mock.cuDevicePrimaryCtxRetain(ctypes.byref(at), 0))"],
            env={**os.environ, "LD_LIBRARY_PATH": str(mock_driver())},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected
