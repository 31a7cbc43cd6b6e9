"""Thresholds set wrong by 8 times are found again: `make bench-thresholds`.

`collc tune --machine` measures the machine once; calls with these thresholds are the measure of what follows. Then
every threshold stands 8 times too low, and 8 times too high, in the file that libraries read, and the command runs
again over each of the two, until it has seen the cores as far apart as at first. Calls with all five files run in turn
for every point, so that a disturbed moment hits all alike: with thresholds found again they must take within 5% of the
first times, by the geometric mean, and results must be right with all of them. What the wrong ones cost says whether
the points can show it at all.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

from distance import Distance, Timed, Watch, timed
from measured import provenance, publish
from peers import arguments_over_collc, host_over_collc

from collc.collectives.sizes import short_size
from collc.tune.machine import DISTANCES, SIZES, Thresholds, machine_text, tune_machine

POINTS = {
    ("all_gather", 2): (32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20),
    ("all_gather", 4): (256 << 10, 1 << 20, 16 << 20),
    ("all_reduce", 2): (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20),
    ("broadcast", 2): (256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20),
    ("reduce_scatter", 2): (4 << 20, 16 << 20),
}
WRONG = 8
WAYS = ("first", "too low", "again after too low", "too high", "again after too high")
MOST = 1.05  # the time with thresholds found again over that with the first ones
TRIES = 60  # runs of the command, until it has seen the cores as far apart as the first one did
LEAST = 3  # pairs of calls with the cores as far apart, of each way and the first
# Collective, ranks, bytes: by round, in the order of WAYS, microseconds and how far apart the cores were.
Times = dict[tuple[str, int, int], list[list[tuple[float, Distance]]]]


def off_by(found: Thresholds, factor: float) -> Thresholds:
    """Every threshold times `factor`; what never happens stands at the largest size that is measured."""
    given = {name: SIZES[-1] if value is None else value for name, value in asdict(found).items()}
    wrong = {name: max(1, round(value * factor)) for name, value in given.items()}
    for name in (
        "kernel_copies",
        "pulled_broadcasts",
        "kernel_sums",
        "sums_everywhere",
    ):  # intervals end where they did
        wrong[f"{name}_end"] = getattr(found, f"{name}_end") if factor > 1 else None
    return Thresholds(**wrong)


def files(library: Path, folder: Path) -> tuple[dict[str, Path], list[Mapping[str, Thresholds]]]:
    """The five files, and what was found each of the three times, by the distance of cores."""
    made = {way: folder / f"{number}.txt" for number, way in enumerate(WAYS)}
    first = tune_machine(library, made["first"])
    every = [first.thresholds]
    for way, factor in (("too low", 1 / WRONG), ("too high", WRONG)):
        wrong = {distance: off_by(found, factor) for distance, found in first.thresholds.items()}
        text = machine_text(first.machine, platform.release(), {}, wrong)
        again = made[f"again after {way}"]
        for file in (made[way], again):
            file.write_text(text, encoding="utf-8")
        every.append(found_again(library, again, set(first.thresholds)))
        if again.read_text(encoding="utf-8") == text:
            raise SystemExit(f"{again}: the wrong thresholds are still there")
    return made, every


def found_again(library: Path, file: Path, distances: set[str]) -> Mapping[str, Thresholds]:
    """Of all these distances: on a virtual machine whose cores are moved, what one run does not see stays wrong."""
    found: dict[str, Thresholds] = {}
    for _ in range(TRIES):
        found.update(tune_machine(library, file).thresholds)
        if distances <= set(found):
            return found
        time.sleep(1)
    raise SystemExit(f"in {TRIES} runs the cores were never {' and '.join(sorted(distances - set(found)))}")


def run(program: Path, ranks: int, seconds: float, what: str, file: Path) -> list[Timed]:
    """By size."""
    command = [str(program), "-", str(ranks), str(seconds), what]
    env = {**os.environ, "COLLC_MACHINE": str(file)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=env)
    if done.stderr:
        raise SystemExit(f"{file} was refused: {done.stderr}")
    rows = timed(done.stdout)
    if not all(row.right for row in rows):
        raise SystemExit(f"wrong results: {' '.join(command)} with {file}")
    return rows


def measure(program: Path, made: dict[str, Path], watch: Watch, rounds: int, seconds: float) -> Times:
    """Rounds go on, twice as many at most, for points that have too few pairs."""
    times: Times = defaultdict(list)
    for number in range(2 * rounds):
        print(f"round {number + 1}/{rounds}", file=sys.stderr)
        order = WAYS[:: -1 if number % 2 else 1]
        for (collective, ranks), sizes in POINTS.items():
            for size in sizes:
                rows = times[collective, ranks, size]
                if number >= rounds and min(map(len, pairs(rows))) >= LEAST:
                    continue
                found = {w: run(program, ranks, seconds, f"{collective}:{size}", made[w])[0] for w in order}
                rows.append([(f.microseconds, watch.between(f.begin, f.end)) for f in map(found.__getitem__, WAYS)])
    return times


def pairs(rows: list[list[tuple[float, Distance]]]) -> list[list[float]]:
    """Of each way to the first, the ratios in the rounds that measured both with the cores as far apart."""
    return [
        [row[way][0] / row[0][0] for row in rows if row[way][1] == row[0][1] != "moved"] for way in range(len(WAYS))
    ]


def page(times: Times, every: list[Mapping[str, Thresholds]], rounds: int) -> tuple[str, list[float]]:
    """The page, and by way the geometric mean of its ratios."""
    lines = [
        "# Thresholds that were wrong by 8 times",
        "",
        f"{provenance()}; rounds: {rounds}. Microseconds of a call",
        "between private buffers with the thresholds of `collc tune --machine`, and over that the times with",
        "thresholds 8 times too low and too high, and with those that the command found again after each: medians over",
        "the rounds of the ratios of calls with the cores as far apart. Regenerated by `make bench-thresholds`.",
        "",
        "| threshold | cores | first | after too low | after too high |",
        "|---|---|--:|--:|--:|",
    ]
    for field in fields(Thresholds):
        for distance in DISTANCES:
            if any(distance in one for one in every):
                cells = " | ".join(_shown(one, distance, field.name) for one in every)
                lines.append(f"| `{field.name}` | {distance} | {cells} |")
    lines += ["", "| collective | ranks | bytes | first, us | " + " | ".join(WAYS[1:]) + " |"]
    lines.append("|---|--:|--:|--:|" + "--:|" * (len(WAYS) - 1))
    columns = []
    for (collective, ranks, size), rows in times.items():
        if not all(pairs(rows)):
            raise SystemExit("the cores moved too often")
        found = [statistics.median(ratios) for ratios in pairs(rows)]
        columns.append(found)
        usual = statistics.median(row[0][0] for row in rows)
        cells = " | ".join(f"{ratio:.2f}" for ratio in found[1:])
        lines.append(f"| {collective} | {ranks} | {short_size(size)} | {usual:.1f} | {cells} |")
    means = [statistics.geometric_mean(column) for column in zip(*columns, strict=True)]
    worst = [max(column) for column in zip(*columns, strict=True)]
    said = ", ".join(f"{way} {mean:.2f} (most {most:.2f})" for way, mean, most in zip(WAYS, means, worst, strict=True))
    lines += ["", f"Geometric means over the points: {said}.", ""]
    return "\n".join(lines), means


def _shown(found: Mapping[str, Thresholds], distance: str, name: str) -> str:
    if distance not in found:
        return "-"
    value = getattr(found[distance], name)
    return "never" if value is None else str(value)


def main() -> None:
    given = arguments_over_collc(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        library, program = host_over_collc(given.build, Path(folder))
        made, every = files(library, Path(folder))
        with Watch(Path(folder)) as watch:
            times = measure(program, made, watch, given.rounds, given.seconds)
    text, means = page(times, every, given.rounds)
    publish(text, given.write)
    found = [mean for way, mean in zip(WAYS, means, strict=True) if way.startswith("again")]
    if max(found) > MOST:
        sys.exit(f"not found again: {max(found):.2f} times the first times")


if __name__ == "__main__":
    main()
