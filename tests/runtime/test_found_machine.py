"""Libraries that survive a loss: every loss of every kind, given at run time under other names, has its plan."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from support.found import answers, lost, shuffled
from support.libraries import topology_file

from collc.build.cache import cache_dir
from collc.checker.library import check_library
from collc.collectives.model import Collective
from collc.compiler import CompileRequest, CompileResult, compile_topology
from collc.errors import TopologyError
from collc.options import TargetKind
from collc.topology.canonical import fingerprint
from collc.topology.dump import dumps_links
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.losses import every_loss, used_part
from collc.topology.model import LinkKind, LossKind

# Unequal links; double and single NVLinks; lanes and planes of NVSwitches; pairs over PCIe; xGMI of several lanes.
MACHINES = ("odd", "dgx1v", "hgx-h100", "a100-pcie-bridged", "mi250x")
KINDS = {
    "odd": {LossKind.LINK, LossKind.GPU},
    "dgx1v": {LossKind.LINK, LossKind.GPU},
    "hgx-h100": {LossKind.LINK, LossKind.PLANE, LossKind.GPU},
    "a100-pcie-bridged": {LossKind.LINK, LossKind.GPU},
    "mi250x": {LossKind.LINK, LossKind.GPU},
}


@cache
def surviving(machine: str) -> CompileResult:
    out = cache_dir() / "tests" / f"libcollc-survives-{machine}.{os.getpid()}.so"
    out.parent.mkdir(parents=True, exist_ok=True)
    request = CompileRequest(
        topology=str(topology_file(machine)),
        output=out,
        target=TargetKind.HOST,
        survive=1,
        collectives=(Collective.ALL_REDUCE,),
    )
    return compile_topology(request)


def used_kinds(machine: str) -> set[LinkKind]:
    return {link.kind for document in surviving(machine).documents for link in document.graph.links}


@pytest.mark.parametrize("machine", [pytest.param(m, marks=() if m == "odd" else pytest.mark.slow) for m in MACHINES])
def test_every_loss_has_the_plan_of_what_is_left(tmp_path: Path, machine: str) -> None:
    topology = load_topology(str(topology_file(machine)))
    held = surviving(machine)
    library = check_library(held.library.path)
    losses = every_loss(used_part(topology, used_kinds(machine)))
    assert {loss.kind for loss in losses} == KINDS[machine]
    assert len(losses) == sum(
        loss.alike
        for loss in (*(s.loss for s in held.gpu_sets_held.states if s.loss), *(f[0] for f in held.gpu_sets_held.fallen))
    )
    found = [topology, *(lost(topology, loss) for loss in losses)]
    files = []
    for number, one in enumerate(found):
        files.append(tmp_path / f"{number}.links")
        files[-1].write_text(dumps_links(shuffled(one, number)))
    for number, (one, told) in enumerate(zip(found, answers(surviving(machine).library.path, files), strict=True)):
        what = losses[number - 1].what if number else "nothing"
        try:
            wanted = fingerprint(plan_graph(one))
        except TopologyError:
            assert "neither this library's machine" in told["error"], what
            continue
        assert "error" not in told, (what, told)
        assert (told["result"], told["wrong"]) == (0, 0), what
        assert library.documents[told["allocation"]].fingerprint == wanted, what
        assert (told["state"] == 0) == (number == 0), what


def test_what_no_plan_fits_is_said_in_one_line(tmp_path: Path) -> None:
    topology = load_topology(str(topology_file("odd")))
    losses = every_loss(used_part(topology, {LinkKind.NVLINK}))
    twice = lost(lost(topology, losses[0]), losses[-1])
    other = load_topology("dgx1p")
    files = [tmp_path / "twice.links", tmp_path / "other.links"]
    for path, machine in zip(files, (twice, other), strict=True):
        path.write_text(dumps_links(machine))
    for path, told in zip(files, answers(surviving("odd").library.path, files), strict=True):
        assert told["error"].count("\n") == 0
        assert f"COLLC_TOPOLOGY: {path}: its " in told["error"]
        assert "nor that after one of the 6 losses it survives" in told["error"]


BROKEN = {
    "": "names no GPU",
    "hello\n": "does not begin with collc-links/1",
    "collc-links/1\n": "names no GPU",
    "collc-links/1\ngpu a\ngpu a\n": "line 3: `a` is given twice",
    "collc-links/1\ngpu a\nlink a b nvlink 25\n": "line 3: a link joins two vertices",
    "collc-links/1\ngpu a\ngpu b\nlink a b wire 25\n": "line 4: there is no kind of link `wire`",
    "collc-links/1\ngpu a\ngpu b\nlink a b nvlink 0\n": "line 4: `0` is no speed",
    "collc-links/1\ngpu a\ngpu b\nlink a b nvlink 1/0\n": "line 4: `1/0` is no speed",
    "collc-links/1\ngpu a\ngpu b\nlink a b nvlink nan\n": "is no speed",
    "collc-links/1\ngpu a\ngpu b\nlink a b nvlink 99999999999999999999\n": "is no speed",
    "collc-links/1\ngpu a\ngpu b\nlink a a nvlink 25\n": "a link joins two vertices",
    "collc-links/1\nGPU a\n": "line 2: expected `gpu NAME`",
    "collc-links/1\n\x1b[31m a\n": "line 2: expected",
    "\0" * 5000: "does not begin with",
}


def test_files_that_are_none_are_refused_in_one_line(tmp_path: Path) -> None:
    files = []
    for number, text in enumerate(BROKEN):
        files.append(tmp_path / f"{number}.links")
        files[-1].write_text(text)
    for words, told in zip(BROKEN.values(), answers(surviving("odd").library.path, files), strict=True):
        assert words in told["error"]
        assert told["error"].isprintable()


def test_bench_names_the_plan_in_use(tmp_path: Path) -> None:
    """The command, one process per rank."""
    less = tmp_path / "less.yaml"
    less.write_text(f"format: collc-topology/1\nname: less\nextends: {topology_file('odd')}\nremove: [gpu1]\n")
    command = [sys.executable, "-m", "collc", "bench", str(surviving("odd").library.path), "--topology", str(less)]
    command += ["-b", "1K", "-e", "1K", "-n", "1", "-w", "0"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    wanted = fingerprint(plan_graph(load_topology(str(less))))
    assert f"# plan {wanted}, lost: gpu1" in text
    assert "\n# Out of bounds values : 0 OK" in text


MOST_TEXT = 16 << 20  # bytes of a file that a variable names


def filled(begin: str, line: Callable[[int], str]) -> str:
    """A text as large as the library reads, of a beginning and numbered lines."""
    lines = [begin]
    left, number = MOST_TEXT - len(begin), 0
    while (left := left - len(line(number))) >= 0:
        lines.append(line(number))
        number += 1
    return "".join(lines)


LARGEST = {
    "vertices": filled("collc-links/1\n", lambda i: f"gpu {i:x}\n"),
    "links": filled("collc-links/1\ngpu a\ngpu b\n", lambda i: f"link a b nvlink {i + 1}\n"),
    "machine": filled("collc-machine/2\n", lambda i: f"{i:x}\n"),
    "tuning": filled("collc-tuning/1\n", lambda i: f"{i:x}\n"),
    "blank lines": "\n" * MOST_TEXT,
    "one word": "x" * MOST_TEXT,
    "one byte too many": " " * (MOST_TEXT + 1),
}
CREATE = """
import ctypes, pathlib, re, sys
from collc.bench.nccl import Nccl
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) << 10
lib, comms, before = Nccl(pathlib.Path(sys.argv[1])).lib, (ctypes.c_void_p * 3)(), peak()
code = lib.ncclCommInitAll(comms, 3, None)
print(code, peak() - before)
"""


@pytest.mark.parametrize("variable", ["COLLC_TOPOLOGY", "COLLC_TUNING", "COLLC_MACHINE"])
@pytest.mark.slow_for("COLLC_TOPOLOGY")
def test_the_largest_files_that_variables_name_take_little_memory(tmp_path: Path, variable: str) -> None:
    """A library refuses them in one line. Without the links of its machine it makes no communicator."""
    for name, text in LARGEST.items():
        file = tmp_path / "large"
        file.write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", CREATE, str(surviving("odd").library.path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env={**os.environ, variable: str(file), "COLLC_NCCL": "/nowhere"},
        )
        code, growth = map(int, done.stdout.split())
        assert (code != 0) == (variable == "COLLC_TOPOLOGY"), (name, done.stderr)
        assert growth < 200 << 20, f"{name}: {growth >> 20} MiB"
        said = [line for line in done.stderr.splitlines() if variable in line]
        assert len(said) == 1 or variable == "COLLC_TOPOLOGY", (name, done.stderr)
