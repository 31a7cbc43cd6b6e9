"""A communicator logs each FIFO with its class and path, as in the tables. Only on one server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.libraries import library, topology_file

from collc.build.cache import cache_dir
from collc.build.compile import Parts, compile_library
from collc.checker.library import Library, check_library, read_library
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.collectives.model import Collective
from collc.options import HOST, TargetKind

RUN = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.ncclGetLastError.restype = ctypes.c_char_p
ranks = int(sys.argv[2])
print(lib.ncclCommInitAll((ctypes.c_void_p * ranks)(), ranks, None), lib.ncclGetLastError(None).decode())
"""


def run(path: Path, ranks: int, **env: str) -> tuple[str, str]:
    """Returns the output and the log of a process that creates a communicator of `ranks` ranks."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path), str(ranks)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def ways(held: Library) -> Counter[str]:
    """A line for every FIFO and reader of the only allocation."""
    graph, lines = held.documents[0].graph, Counter[str]()
    fifos = {fifo.index: fifo for program in held.tables.allocations[0].programs for fifo in program.fifos}
    for number, fifo in fifos.items():
        for dst, route in zip(fifo.dsts, fifo.routes, strict=True):
            way = graph.vertices[fifo.src].name
            for link in route:
                way += f" -{graph.links[link].kind.value}- {graph.vertices[graph.links[link].dst].name}"
            lines[f"FIFO {number} from rank {fifo.src} to rank {dst}: {way}"] += 1
    return lines


@pytest.mark.parametrize(
    ("machine", "classes"), [("odd", {"nvlink"}), ("mixed", {"nvlink", "pcie"}), ("cores", {"c2c"})]
)
def test_the_log_names_the_class_and_the_way_of_every_fifo(machine: str, classes: set[str]) -> None:
    path = library(machine)
    held = read_library(path)
    said, log = run(path, 3, COLLC_DEBUG="TRACE")
    assert said.startswith("0 ")
    assert Counter(re.findall(r" TRACE (FIFO .*)", log)) == ways(held)
    counted = Counter(
        {(int(rank), kind): int(n) for rank, n, kind in re.findall(r"rank (\d+): (\d+) FIFOs? over (\w+) to rank", log)}
    )
    fifos = {fifo.index: fifo for program in held.tables.allocations[0].programs for fifo in program.fifos}
    assert counted == Counter((fifo.src, fifo.link.value) for fifo in fifos.values() if fifo.link)
    assert {kind for _, kind in counted} == classes
    _, quiet = run(path, 3, COLLC_DEBUG="INFO")
    assert "TRACE" not in quiet
    assert " over " in quiet


def test_ranks_that_stand_for_other_gpus_are_named_by_these() -> None:
    said, log = run(library("mixed"), 3, COLLC_DEBUG="TRACE", COLLC_GPUS="2,1,0")
    assert said.startswith("0 ")
    found = re.findall(r"from rank (\d) to rank (\d): (\w+) .* (\w+)$", log, re.M)
    assert found
    assert {(int(a) + int(src[3:]), int(b) + int(dst[3:])) for a, b, src, dst in found} == {(2, 2)}


def test_a_plan_over_two_servers_is_proved_and_runs_on_one_machine_too() -> None:
    """The tables say where ranks are in the plan; which of them share memory is seen when the communicator is made."""
    request = LibraryRequest(str(topology_file("two-servers")), collectives=(Collective.ALL_REDUCE,))
    contents = library_contents(request, HOST)
    path = cache_dir() / "tests" / "libcollc-two-servers.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    with Parts(TargetKind.HOST) as parts:
        compile_library(contents, HOST, path, parts)
    held = check_library(path)
    assert held.tables.allocations[0].servers == (0, 0, 0, 1, 1, 1)
    assert {link for program in held.manifest["allocations"][0]["programs"] for link in program["links"]} == {
        "net",
        "nvlink",
    }
    rails = [way for way in ways(held) if "-net-" in way]
    assert rails
    assert all(
        re.search(r" -pcie- server(\d).nic\+out -net- net -net- server(?!\1).\.nic\+in -pcie- ", w) for w in rails
    )
    said, _ = run(path, 6, COLLC_NCCL="/nowhere/libnccl.so")
    assert said.startswith("0 ")
