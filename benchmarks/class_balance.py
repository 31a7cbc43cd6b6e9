"""Classes of links balanced while calls run, on the host target: `make bench-class-balance`.

Every class is memory here, held to a rate by COLLC_THROTTLE: 12.5 and 6.25 MB/s that each rank may send over nvlink and
pcie, as links of 100 and 50 Mbit/s would let it. Equal calls run one after the other; at two of them nvlink falls to 25
Mbit/s and is back. What each call reaches is judged by the fastest of several fixed weightings around the split by
rates, measured in the same round. Then what balancing costs where nothing is to be gained: two communicators of the
same processes call in turn, one of them with COLLC_BALANCE=0, or over the one class that is best alone.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measured import provenance, publish

from collc.compiler import CompileRequest, compile_topology
from collc.options import TargetKind

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests" / "runtime"
# In MB/s: 100 and 50 Mbit/s, and 25.
FAST, SLOW, FALLEN = 12.5, 6.25, 3.125
PHASE = 10  # calls at each rate
AFTER = 5  # calls that may pass until a change is answered
COUNTED = 240  # calls where nothing is to be gained
MACHINE = """\
format: collc-topology/1
name: two-classes
gpus: {ranks}
switches: [nvs0]
cpus: [cpu0]
links:
"""


@dataclass(frozen=True)
class Lab:
    """A library of two classes for so many ranks, and the program that calls it."""

    program: Path
    ranks: int

    def run(
        self, collective: str, elements: int, calls: int, settings: Mapping[str, str], beside: str = ""
    ) -> list[str]:
        """The lines of tests/runtime/balance.c."""
        command = [str(self.program), "processes", str(self.ranks), collective, str(elements), str(calls)]
        given = {name: value for name, value in os.environ.items() if not name.startswith("COLLC_")}
        done = subprocess.run(
            [*command, *([beside] if beside else [])],
            capture_output=True, text=True, check=False, timeout=300, env={**given, "COLLC_DIRECT": "0", **settings},
        )  # fmt: skip
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        return done.stdout.splitlines()

    def times(self, elements: int, calls: int, **settings: str) -> list[float]:
        """Microseconds of each all_gather."""
        return [float(line.split()[0]) for line in self.run("allgather", elements, calls, settings)]


def build(folder: Path, ranks: int) -> Lab:
    """NVLink twice as fast as PCIe; all large calls are cut 2:1."""
    links = [f"  - {{between: [gpu{g}, nvs0], kind: nvswitch, gbps: 20}}" for g in range(ranks)]
    links += [f"  - {{between: [gpu{g}, cpu0], kind: pcie, gbps: 10}}" for g in range(ranks)]
    source = folder / f"two-classes-{ranks}.yaml"
    source.write_text(MACHINE.format(ranks=ranks) + "\n".join(links) + "\n", encoding="utf-8")
    library = folder / f"libcollc-two-classes-{ranks}.so"
    compile_topology(
        CompileRequest(str(source), output=library, target=TargetKind.HOST, classes="nvlink,pcie", roots=[0])
    )
    program = folder / f"balance-{ranks}"
    include = f"-I{HERE.parent / 'templates' / 'include'}"
    link = [str(library), f"-Wl,-rpath,{library.parent.resolve()}", "-pthread"]
    command = ["gcc", "-std=c99", "-D_GNU_SOURCE", "-O2", include, str(TESTS / "balance.c"), "-o", str(program), *link]
    subprocess.run(command, check=True)
    return Lab(program, ranks)


def throttle(nvlink: float) -> str:
    return f"nvlink:{nvlink},pcie:{SLOW}"


def optimum(lab: Lab, elements: int, nvlink: float) -> float:
    """Microseconds of the best fixed weights: the split by rates, and a fortieth of a call more and less."""
    share = nvlink / (nvlink + SLOW)
    best = float("inf")
    for off in (-0.025, 0.0, 0.025):
        percent = round(100 * (share + off))
        weights = f"nvlink:{percent},pcie:{100 - percent}"
        times = lab.times(elements, 4, COLLC_THROTTLE=throttle(nvlink), COLLC_WEIGHTS=weights)
        best = min(best, statistics.median(times[1:]))  # single calls are faster by chance, the first one always
    return best


@dataclass(frozen=True)
class Trial:
    """The fraction of the optimum that each call reached, by phase: before, fallen, back."""

    reached: tuple[list[float], list[float], list[float]]


def trial(lab: Lab, elements: int, best: Mapping[float, float]) -> Trial:
    at = (1, PHASE + 1, 2 * PHASE + 1)
    rates = (FAST, FALLEN, FAST)
    words = ",".join(f"nvlink:{rate}@{call}" for rate, call in zip(rates, at, strict=True))
    times = lab.times(elements, 3 * PHASE, COLLC_THROTTLE=f"{words},pcie:{SLOW}")
    phases = [times[i * PHASE : (i + 1) * PHASE] for i in range(3)]
    before, fallen, back = ([best[rate] / t for t in part] for rate, part in zip(rates, phases, strict=True))
    return Trial((before, fallen, back))


def changes(labs: Sequence[tuple[Lab, int]], rounds: int) -> str:
    lines = [f"| ranks | change | {' | '.join(f'call {n}' for n in range(1, PHASE + 1))} |"]
    lines.append("|--:|---|" + "--:|" * PHASE)
    verdicts = []
    for lab, elements in labs:
        trials = []
        for _ in range(rounds):
            best = {rate: optimum(lab, elements, rate) for rate in (FAST, FALLEN)}
            trials.append(trial(lab, elements, best))
        for phase, what in enumerate(("none yet", "100 to 25", "25 to 100")):
            columns = list(zip(*(one.reached[phase] for one in trials), strict=True))
            shown = [f"{statistics.median(column):.2f} ({min(column):.2f})" for column in columns]
            lines.append(f"| {lab.ranks} | {what} | {' | '.join(shown)} |")
            if phase:
                sixth = [one.reached[phase][AFTER] for one in trials]
                later = [value for one in trials for value in one.reached[phase][AFTER:]]
                good = sum(value >= 0.9 for value in sixth)
                held = f"{sum(value >= 0.9 for value in later)} of {len(later)}"
                verdicts.append(
                    f"- {lab.ranks} ranks, {what}: in {good} of {rounds} rounds call {AFTER + 1} reaches 90%; of all"
                    f" calls from it on {held}, median {statistics.median(later):.2f}."
                )
    return "\n".join(lines) + "\n\n" + "\n".join(verdicts) + "\n"


def ratio(lab: Lab, collective: str, elements: int, calls: int, beside: str) -> tuple[float, float, float]:
    """Of two communicators whose calls take turns: the median microseconds of both, and of the ratio of neighbours.

    The balanced one comes first. The first half of the calls is left out: there weights move.
    """
    lines = [line.split() for line in lab.run(collective, elements, calls, {}, beside)][calls // 2 :]
    first, second = [float(line[0]) for line in lines], [float(line[2]) for line in lines]
    return (
        statistics.median(first),
        statistics.median(second),
        statistics.median(a / b for a, b in zip(first, second, strict=True)),
    )


def costs(labs: Sequence[Lab], rounds: int) -> str:
    lines = [
        "| ranks | collective | KiB | beside | us | us beside | ratio | of the rounds |",
        "|--:|---|--:|---|--:|--:|--:|---|",
    ]
    for lab in labs:
        for collective, beside in (
            ("allreduce", "COLLC_BALANCE=0"), ("allgather", "COLLC_BALANCE=0"),
            ("allreduce", "COLLC_WEIGHTS=nvlink:1"), ("allgather", "COLLC_WEIGHTS=nvlink:1"),
        ):  # fmt: skip
            for size in (1 << 20, 4 << 20):
                found = [ratio(lab, collective, size // 4, COUNTED, beside) for _ in range(rounds)]
                mine, other, both = (statistics.median(column) for column in zip(*found, strict=True))
                spread = f"{min(f[2] for f in found):.3f} to {max(f[2] for f in found):.3f}"
                row = [
                    str(lab.ranks),
                    collective,
                    str(size >> 10),
                    beside,
                    f"{mine:.0f}",
                    f"{other:.0f}",
                    f"{both:.3f}",
                    spread,
                ]
                lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


BEGIN, END = "<!-- measured by benchmarks/class_balance.py -->", "<!-- end -->"
PAGE = """{begin}
{where}; a host library of two classes, {rounds} rounds. [classes.md](../classes.md#balance) says how weights move.

## A class falls to a quarter of its rate and is back

Classes of 100 and 50 Mbit/s, the first one 100, then 25, then 100 again; all_gathers of {sizes} MiB per rank, every
rank a process. The fraction of the optimum that each call reached, median and, in brackets, least of the rounds. The
optimum is the fastest of three fixed weightings around the split by rates, measured in the same round. Some calls are
trials of one class alone, which the balancer makes now and then.

{changes}
## What balancing costs

Classes that are not throttled are memory, all of them, so nothing is to be gained. Two communicators of the same
processes call in turn; the ratio is that of neighbouring calls, the second half of {counted}, median of the rounds and
their range. Beside `COLLC_WEIGHTS=nvlink:1` it says how far the balanced calls are from the best class alone.

{costs}
{end}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument(
        "--part", choices=["changes", "costs"], help="that alone, printed and kept in --build, where the page finds it"
    )
    parser.add_argument("--build", type=Path, help="a folder for the libraries, kept; default: one that is removed")
    parser.add_argument(
        "--write", type=Path, help="the page in which it replaces what it measured before; default: print it"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = given.build or Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        labs = [build(out, ranks) for ranks in given.ranks]
        mebi = [8 // lab.ranks for lab in labs]
        sized = [(lab, size << 18) for lab, size in zip(labs, mebi, strict=True)]
        parts: dict[str, Callable[[], str]] = {
            "changes": lambda: changes(sized, given.rounds),
            "costs": lambda: costs(labs, given.rounds),
        }
        made = {}
        for name in [given.part] if given.part else parts:
            kept = out / f"{name}.md"
            if not kept.exists():
                kept.write_text(parts[name](), encoding="utf-8")
            made[name] = kept.read_text(encoding="utf-8")
    if given.part:
        publish(made[given.part], None)
        return
    sizes = " and ".join(map(str, mebi))
    text = PAGE.format(
        counted=COUNTED, begin=BEGIN, end=END, where=provenance(), rounds=given.rounds, sizes=sizes, **made
    )
    if given.write:
        old = given.write.read_text(encoding="utf-8")
        text = re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}\n", lambda _: text, old, flags=re.S)
    publish(text, given.write)


if __name__ == "__main__":
    main()
