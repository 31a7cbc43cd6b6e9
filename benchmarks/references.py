"""The host target beside references that are no libraries: `make bench-references`.

references.h has the programs that it is held against. Where all ranks see all buffers, one that makes a single copy:
between two barriers each rank reads what it needs and writes it where it belongs; as threads of one process, beside the
host target with such, and as processes with shared memory, beside the host target with buffers of ncclMemAlloc. For the
private buffers of processes one that makes two copies, through memory that all have mapped.

All run in turn for each size, so that a slow minute of the machine hits them alike; a cell is the median over the
rounds of the ratio in each, over the pairs of runs with equal distances between the cores (distance.py). Rounds go
on, up to twice the number, until every cell has LEAST pairs at one distance.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from distance import DISTANCES, FAR_NS, NEAR_NS, Distance, Watch, timed
from measured import provenance, publish
from peers import COLLECTIVES, HERE, RANKS, SIZES, build_over_collc, short

REFERENCES = {"one copy, threads": "threads", "one copy, processes": "memalloc", "two copies": "private"}
MOST = 1.3
LEAST = 3  # pairs of runs at one distance that a cell needs before it is judged

# Collective, ranks, bytes, program: by round, microseconds and how far apart the cores were.
Times = dict[tuple[str, int, int, str], list[tuple[float, Distance]]]


def build(out: Path) -> dict[str, list[str]]:
    """Builds the programs and returns them by name, each with the arguments that follow the sizes."""
    out.mkdir(parents=True, exist_ok=True)
    program, reference = str(build_over_collc(out)[1]), str(out / "peerbench-reference")
    options = ["-O2", "-mavx2", "-DREFERENCE", "-pthread"]
    subprocess.run(["gcc", *options, str(HERE / "peerbench.c"), "-o", reference], check=True)
    return {
        "one copy, threads": [reference, "threads"],
        "threads": [program, "threads"],
        "one copy, processes": [reference],
        "memalloc": [program, "memalloc"],
        "two copies": [reference, "two-copies"],
        "private": [program],
    }


def measure(programs: dict[str, list[str]], watch: Watch, rounds: int, seconds: float) -> Iterator[Times]:
    """After every round: all times so far."""
    times: Times = defaultdict(list)
    for number in range(1, 2 * rounds + 1):
        for ranks in RANKS:
            print(f"round {number}/{rounds}: {ranks} ranks", file=sys.stderr)
            for size in SIZES:
                lacking = [c for c in COLLECTIVES if number <= rounds or _lacks_pairs(times, c, ranks, size)]
                for what in [str(size)] if len(lacking) == len(COLLECTIVES) else [f"{c}:{size}" for c in lacking]:
                    for name, (program, *rest) in programs.items():
                        command = [program, "-", str(ranks), str(seconds), what, *rest]
                        done = subprocess.run(command, check=True, capture_output=True, text=True)
                        for row in timed(done.stdout):
                            if not row.right:
                                sys.exit(f"wrong results of {name}: {row}")
                            at = watch.between(row.begin, row.end)
                            times[row.collective, ranks, size, name].append((row.microseconds, at))
        yield times


def _lacks_pairs(times: Times, collective: str, ranks: int, size: int) -> bool:
    """At either distance, of some way."""
    return any(
        max(len(ratios(times, collective, ranks, size, way, distance)) for distance in DISTANCES) < LEAST
        for way in REFERENCES.values()
    )


def huge_pages(which: str) -> str:
    """The kernel's setting; "unknown" where it has none."""
    try:
        text = Path(f"/sys/kernel/mm/transparent_hugepage/{which}").read_text(encoding="ascii")
    except OSError:
        return "unknown"
    return text[text.index("[") + 1 : text.index("]")]


def ratios(times: Times, collective: str, ranks: int, size: int, way: str, distance: Distance) -> list[float]:
    """Returns the ratios of the rounds where both programs ran at that distance."""
    (reference,) = (its for its, own in REFERENCES.items() if own == way)
    pairs = zip(times[collective, ranks, size, way], times[collective, ranks, size, reference], strict=True)
    return [own / its for (own, at), (its, there) in pairs if at == there == distance]


def report(times: Times, rounds: int) -> str:
    lines = [
        "# The host target beside references of one and of two copies",
        "",
        f"{provenance()}; huge pages for",
        f"private memory: {huge_pages('enabled')}, for shared: {huge_pages('shmem_enabled')}; rounds: {rounds};",
        "float32. Time over that of the reference above in the same round, median over the rounds; of references",
        f"microseconds. Pairs of runs count during which a cache line took less than {NEAR_NS} ns to the other core",
        f"and back (near), or more than {FAR_NS} (far), and points with {LEAST} pairs at least.",
        "benchmarks/references.py says what is compared.",
        "",
    ]
    for distance in DISTANCES:
        judged = [
            len(ratios(times, c, n, size, REFERENCES[it], distance)) for c, n, size, it in times if it in REFERENCES
        ]
        if max(judged) < LEAST:
            continue
        cells: dict[str, list[float]] = defaultdict(list)
        for collective in COLLECTIVES:
            lines += [f"## {collective}, cores {distance}", "", "| ranks | | " + " | ".join(map(short, SIZES)) + " |"]
            lines.append("|---|---|" + "---|" * len(SIZES))
            for ranks in RANKS:
                for reference, way in REFERENCES.items():
                    its = [
                        _median([us for us, at in times[collective, ranks, s, reference] if at == distance])
                        for s in SIZES
                    ]
                    shown = ("-" if us is None else f"{us:.3g} us" for us in its)
                    lines.append(f"| {ranks} | *{reference}* | " + " | ".join(shown) + " |")
                    found = [ratios(times, collective, ranks, size, way, distance) for size in SIZES]
                    middle = [_median(pairs if len(pairs) >= LEAST else []) for pairs in found]
                    cells[reference] += [ratio for ratio in middle if ratio is not None]
                    lines.append(
                        f"| {ranks} | {way} | " + " | ".join("-" if r is None else f"{r:.2f}" for r in middle) + " |"
                    )
            lines.append("")
        for reference, of_points in cells.items():
            if of_points:
                above = sum(ratio > MOST for ratio in of_points)
                lines.append(
                    f"Cores {distance}, beside {reference}: of {len(of_points)} ratios {above} are above {MOST}, the "
                    f"largest is {max(of_points):.2f}, the geometric mean {statistics.geometric_mean(of_points):.2f}."
                )
                lines.append("")
    return "\n".join(lines)


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="per point and round")
    parser.add_argument("--build", type=Path, default=Path("build/peers"))
    parser.add_argument("--write", type=Path, help="the page to write; default: print it")
    given = parser.parse_args()
    programs = build(given.build)
    with Watch(given.build) as watch:
        for done, times in enumerate(measure(programs, watch, given.rounds, given.seconds), 1):
            page = report(times, done)
            if given.write:
                publish(page, given.write)
            if done >= given.rounds and not any(_lacks_pairs(times, *key[:3]) for key in list(times)):
                break
    if not given.write:
        print(page)


if __name__ == "__main__":
    main()
