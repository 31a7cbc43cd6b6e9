"""The cost of a small call in two builds of the runtime: `make bench-small-call BEFORE=LIB AFTER=LIB`.

One thread drives both ranks of a library (small_call.c). Instructions are counted by valgrind's cachegrind, as the
difference of two runs, so that creation cancels out. Times are the median ratio over interleaved pairs of runs, which
alternate which library goes first. Its libraries: `collc compile benchmarks/pair.yaml --target host` in each checkout.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from collc.build.runtime import include_dirs
from collc.build.toolchain import find_cxx

HERE = Path(__file__).parent
BATCHES = 25  # of small_call.c
FEW, MANY = 4, 24  # calls per batch, when instructions are counted
CALLS = 400  # calls per batch, when time is measured
MOST_INSTRUCTIONS, MOST_TIME = 1.02, 1.03


def build(folder: Path) -> Path:
    """The program that makes the calls."""
    out = folder / "small_call"
    command = [find_cxx().path, "-x", "c", "-O2", f"-I{include_dirs()[0]}", str(HERE / "small_call.c"), "-o", str(out)]
    subprocess.run([*command, "-ldl"], check=True)
    return out


def nanoseconds(program: Path, library: Path, size: int) -> float:
    """The time of a call in one run."""
    command = [str(program), str(library), str(CALLS), str(size)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)


def count_instructions(program: Path, library: Path, calls: int, size: int) -> int:
    """All instructions of a run, creation included."""
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command = [*tool, str(program), str(library), str(calls), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if found is None:
        raise SystemExit(f"valgrind says nothing of instructions: {done.stderr[-300:]}")
    return int(found[1].replace(",", ""))


def instructions(program: Path, library: Path, size: int) -> float:
    """Instructions of a call, of all ranks together."""
    many, few = (count_instructions(program, library, calls, size) for calls in (MANY, FEW))
    return (many - few) / (BATCHES * (MANY - FEW))


def time_ratio(program: Path, before: Path, after: Path, size: int, pairs: int) -> float:
    """Median over pairs of runs of the time with `after` over that with `before`."""
    ratios = []
    for pair in range(pairs):
        order = (before, after) if pair % 2 == 0 else (after, before)
        times = {library: nanoseconds(program, library, size) for library in order}
        ratios.append(times[after] / times[before])
    return statistics.median(ratios)


def main() -> None:
    """Prints both figures; exit code 1 where one is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, required=True)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=30)
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        raise SystemExit("no valgrind here (Debian: apt-get install valgrind)")
    before, after = options.before.resolve(), options.after.resolve()
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        counts = [instructions(program, library, options.bytes) for library in (before, after)]
        counted = counts[1] / counts[0]
        print(f"instructions per call: {counts[0]:.0f} before, {counts[1]:.0f} after, ratio {counted:.4f}", flush=True)
        timed = time_ratio(program, before, after, options.bytes, options.pairs)
        print(f"time of a call: median ratio of {options.pairs} interleaved pairs {timed:.4f}")
    sys.exit(counted > MOST_INSTRUCTIONS or timed > MOST_TIME)


if __name__ == "__main__":
    main()
