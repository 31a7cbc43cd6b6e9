"""The runtime and its C clients under ThreadSanitizer, AddressSanitizer with leaks, and UBSan: `make sanitize`."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support.libraries import library, sanitized

from collc.tune.machine import machine_text, tune_machine

HERE = Path(__file__).parent

# UBSan's enum check is off: C callers may pass any number for a type or an operation, and it is refused in words.
THREAD = ("-fsanitize=thread",)
ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-sanitize=enum")


# Only the first client can hold all ranks in one thread.
RUNS = [("odd", "client", "thread"), ("cores", "abort", "threads"), ("cores", "at_exit", "threads")]
RUNS += [("cores", "lookups", "threads")]
RUNS += [("cores", p, w) for p in ("large", "ahead", "memalloc") for w in ("threads", "processes")]
RUNS += [(m, p, w) for m in ("odd", "cores") for p in ("client", "api", "bits") for w in ("threads", "processes")]


# Some 30 of all pairs of calls that differ, and others in each run.
PAIRS = [
    ("odd", "threads", "line"),
    ("odd", "processes", "direct"),
    ("cores", "threads", "direct"),
    ("cores", "thread", "line"),
]


def check(
    machine: str, program: str, flags: tuple[str, ...], *arguments: str, settings: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    binary = sanitized(HERE / f"{program}.c", machine, flags)
    # setarch: ThreadSanitizer of older compilers cannot place its shadow under high-entropy address randomization.
    command = ["setarch", "-R", str(binary), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=540, check=False, env={**os.environ, **(settings or {})}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING: ThreadSanitizer" not in done.stderr
    assert "runtime error" not in done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "program", "ways"), RUNS)
@pytest.mark.parametrize("flags", [THREAD, ADDRESS], ids=["thread", "address+undefined"])
def test_nothing_to_report(machine: str, program: str, ways: str, flags: tuple[str, ...]) -> None:
    check(machine, program, flags, ways, "300" if program == "lookups" else "3")


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["processes", "threads"])
@pytest.mark.parametrize("flags", [THREAD, ADDRESS], ids=["thread", "address+undefined"])
def test_inputs_that_the_kernel_copies_to_be_summed(flags: tuple[str, ...], ways: str, tmp_path: Path) -> None:
    file = tmp_path / "machine.txt"
    found = tune_machine(library("twin"), file)
    wanted = {"kernel_sums": 1, "kernel_sums_end": None, "sums_everywhere": 1}
    near, far = (
        replace(next(iter(found.thresholds.values())), **wanted, sums_everywhere_end=end) for end in (1 << 17, 1 << 18)
    )
    file.write_text(machine_text(found.machine, platform.release(), {}, {"near": near, "far": far}))
    done = check("twin", "sums", flags, ways, "borders", settings={"COLLC_MACHINE": str(file)})
    assert "COLLC_MACHINE" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "ways", "size"), PAIRS)
@pytest.mark.parametrize("flags", [THREAD, ADDRESS], ids=["thread", "address+undefined"])
def test_calls_that_differ(machine: str, ways: str, size: str, flags: tuple[str, ...]) -> None:
    check(machine, "mismatch", flags, ways, "3", size, "malloc", "331", str(40 + PAIRS.index((machine, ways, size))))


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["threads", "processes"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather"])
@pytest.mark.parametrize("flags", [THREAD, ADDRESS], ids=["thread", "address+undefined"])
def test_classes_that_are_balanced(collective: str, ways: str, flags: tuple[str, ...]) -> None:
    """Speeds change, so that ranks agree on other weights again and again."""
    speeds = "nvlink:900,pcie:300,net:150,nvlink:50@20,nvlink:900@40"
    settings = {"COLLC_BALANCE": "always", "COLLC_DIRECT": "0", "COLLC_DEBUG": "INFO", "COLLC_THROTTLE": speeds}
    done = check("joint", "balance", flags, ways, "4", collective, str(1 << 18), "80", settings=settings)
    assert done.stderr.count("bytes on:") > 2


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["threads", "processes"])
@pytest.mark.parametrize("flags", [THREAD, ADDRESS], ids=["thread", "address+undefined"])
def test_calls_on_the_wrong_communicator(ways: str, flags: tuple[str, ...]) -> None:
    check("odd", "crossed_calls", flags, ways, "3", "300", "330", settings={"COLLC_TIMEOUT": "2"})
