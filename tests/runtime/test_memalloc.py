"""Buffers of ncclMemAlloc between processes: mapped by their readers, refused, freed, inherited."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from support.libraries import client, run_client, shared_library

HERE = Path(__file__).parent


@pytest.mark.parametrize(("ways", "direct"), [("processes", "1"), ("processes", "0"), ("threads", "1")])
@pytest.mark.parametrize(("machine", "ranks"), [("pair", 2), ("odd", 3), ("cores", 3)])
def test_buffers_come_and_go_and_leave_nothing(machine: str, ranks: int, ways: str, direct: str) -> None:
    done = run_client([client(HERE / "memalloc.c", machine), ways, str(ranks)], settings={"COLLC_DIRECT": direct})
    assert int(done.stdout.split()[0]) > 5_000_000


@pytest.mark.parametrize(
    ("machine", "settings", "maps"),
    [
        ("cores", {}, "1"),
        ("cores", {"COLLC_DIRECT": "0"}, "0"),
        ("cores", {"COLLC_PROTO": "Simple"}, "0"),
    ],
)
def test_programs_of_one_hop_map_such_buffers(machine: str, settings: dict[str, str], maps: str) -> None:
    run_client([client(HERE / "memalloc.c", machine), "processes", "3"], settings={"MAPS": maps, **settings})


@pytest.mark.parametrize(
    ("ways", "buffers"), [("threads", "malloc"), ("processes", "memalloc"), ("processes", "malloc")]
)
@pytest.mark.parametrize(("machine", "ranks"), [("pair", 2), ("cores", 3)])
def test_results_larger_than_the_caches(machine: str, ranks: int, ways: str, buffers: str) -> None:
    done = run_client([client(HERE / "large.c", machine), ways, str(ranks), buffers])
    assert int(done.stdout.split()[0]) == 6 * 4_400_003 * ranks


@pytest.mark.parametrize("machine", ["odd", "cores"])
def test_what_cannot_be_mapped_comes_through_slots(machine: str) -> None:
    preload = str(shared_library(HERE / "refuse_open.c"))
    done = run_client(
        [client(HERE / "memalloc.c", machine), "processes", "3"], settings={"LD_PRELOAD": preload, "FIRST_TRIES": "2"}
    )
    assert sum(map(int, re.findall(r"refused (\d+) times", done.stderr))) > 10


@pytest.mark.parametrize("ways", ["threads", "processes"])
def test_an_abort_while_others_read_such_buffers(ways: str) -> None:
    run_client([client(HERE / "abort.c", "cores"), ways, "3", "memalloc"], " calls\n")


def test_children_forked_off_amid_allocations_can_allocate_and_free() -> None:
    run_client([client(HERE / "fork_buffers.c", "pair")], "400 children\n")


def test_a_rank_stopped_while_it_writes_into_another_cannot_do_so_later() -> None:
    run_client([client(HERE / "stopped.c", "cores:2..3")], "untouched\n", {"COLLC_TIMEOUT": "0.5"})


@pytest.mark.parametrize("ways", ["threads", "processes"])
@pytest.mark.parametrize("buffers", ["mixed", *(pytest.param(b, marks=pytest.mark.slow) for b in ("memalloc", "kept"))])
@pytest.mark.parametrize(("machine", "ranks"), [("odd", 3), ("cores", 3)])
def test_every_call_on_such_buffers(machine: str, ranks: int, buffers: str, ways: str) -> None:
    run_client([client(HERE / "client.c", machine), ways, str(ranks), buffers])


@pytest.mark.parametrize(
    ("protocol", "machine"), [("Simple", "cores"), ("simple", "odd"), ("LL", "cores"), ("LL128", "odd")]
)
def test_every_call_with_a_protocol_forced(machine: str, protocol: str) -> None:
    run_client([client(HERE / "client.c", machine), "thread", "3", "mixed"], settings={"COLLC_PROTO": protocol})


def test_small_chunks_travel_in_lines_between_processes() -> None:
    run_client([client(HERE / "client.c", "pair"), "processes", "2"], settings={"COLLC_PROTO": "LL"})


def test_a_protocol_that_is_none_is_refused() -> None:
    done = subprocess.run(
        [client(HERE / "client.c", "pair"), "processes", "2"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLLC_PROTO": "fast"},
    )
    assert done.returncode == 1
    assert "COLLC_PROTO=fast is not Simple, LL or LL128" in done.stderr
