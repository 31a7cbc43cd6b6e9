"""Broadcasts and all_gathers of private buffers beside one copy by the kernel for each reader: `make bench-one-way`.

references.h has the reference: between two barriers each reader lets the kernel copy all data that it needs from the
memory of its peers, at the same time as the other readers. No program copies less often. Buffers are on pages of
2 MiB, then on pages of 4 KiB, which the kernel looks up one by one. Both programs run one point after the other,
and only pairs of runs with equal distances between the cores count (distance.py).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

from distance import FAR_NS, NEAR_NS, Timed, Watch, timed
from measured import provenance, publish
from peers import HERE, arguments_over_collc, host_over_collc

from collc.collectives.sizes import short_size
from collc.tune.machine import tune_machine

SIZES = (64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
RANKS = (2, 4)
COLLECTIVES = ("broadcast", "all_gather")
PAGES = {"2 MiB": [], "4 KiB": ["-", "small-pages"]}
Place = tuple[str, int, int, str, str]  # collective, ranks, bytes, pages, "near", "far" or "moved"


def run(program: Path, ranks: int, seconds: float, what: str, rest: list[str]) -> Timed:
    command = [str(program), "-", str(ranks), str(seconds), what, *rest]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    (row,) = timed(done.stdout)
    if not row.right:
        raise SystemExit(f"wrong results: {' '.join(command)}")
    return row


def measure(
    program: Path, reference: Path, watch: Watch, rounds: int, seconds: float
) -> dict[Place, list[list[float]]]:
    """Microseconds of collc, of the kernel's copies, and where there is one root and one reader in halves, by run."""
    found = defaultdict[Place, list[list[float]]](list)
    for number in range(rounds):
        for collective in COLLECTIVES:
            for ranks in RANKS:
                for size in SIZES:
                    for pages, rest in PAGES.items():
                        what = f"{collective}:{size}"
                        runs = [(program, rest), (reference, ["kernel", *rest[1:]])]
                        if collective == "broadcast" and ranks == 2:
                            runs.append((reference, ["halves", *rest[1:]]))
                        order = list(range(len(runs)))[:: -1 if number % 2 else 1]
                        times = {i: run(runs[i][0], ranks, seconds, what, runs[i][1]) for i in order}
                        states = {watch.between(time.begin, time.end) for time in times.values()}
                        state = states.pop() if len(states) == 1 else "moved"
                        row = [times[i].microseconds for i in sorted(times)]
                        found[collective, ranks, size, pages, state].append(row)
    return found


HEAD = """# One-way moves beside one copy by the kernel

{where}; {rounds} rounds; collc with the
thresholds of `collc tune --machine`. Microseconds of a call between private buffers, medians over the runs during which
a cache line took less than {near} ns to the other core and back (near), or more than {far} (far); the ratio is the
median of the runs' ratios. The kernel: one call of `process_vm_readv` for each reader and peer, all readers at the same
time. In halves: the root meanwhile writes one half into the reader's memory, which a library that gives buffers back
after an abort cannot do (references.h).

| collective | ranks | bytes | pages | cores | runs | in halves | the kernel | collc | ratio |
|---|--:|--:|---|---|--:|--:|--:|--:|--:|
"""


def page(found: dict[Place, list[list[float]]], rounds: int) -> str:
    rows, ratios = [], []
    for (collective, ranks, size, pages, state), pairs in sorted(found.items()):
        if state == "moved":
            continue
        ours, its, *halves = (f"{statistics.median(column):.1f}" for column in zip(*pairs, strict=True))
        ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
        ratios.append(ratio)
        words = [collective, str(ranks), short_size(size), pages, state, str(len(pairs)), *(halves or ["-"])]
        words += [its, ours, f"{ratio:.2f}"]
        rows.append(f"| {' | '.join(words)} |\n")
    moved = sum(len(pairs) for place, pairs in found.items() if place[4] == "moved")
    above = sum(ratio > 1.1 for ratio in ratios)
    end = f"\nOf {len(ratios)} rows {above} are above 1.1, the largest is {max(ratios):.2f}, the geometric mean "
    end += f"{statistics.geometric_mean(ratios):.2f}.\n{moved} runs during which the cores were moved do not"
    end += " count.\n"
    return HEAD.format(where=provenance(), rounds=rounds, near=NEAR_NS, far=FAR_NS) + "".join(rows) + end


def main() -> None:
    given = arguments_over_collc(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        library, program = host_over_collc(given.build, Path(folder))
        thresholds = Path(folder) / "machine.txt"
        tune_machine(library, thresholds)
        os.environ["COLLC_MACHINE"] = str(thresholds)
        reference = Path(folder) / "reference"
        options = ["-O2", "-mavx2", "-DREFERENCE", "-pthread"]
        subprocess.run(["gcc", *options, str(HERE / "peerbench.c"), "-o", str(reference)], check=True)
        with Watch(Path(folder)) as watch:
            found = measure(program, reference, watch, given.rounds, given.seconds)
    publish(page(found, given.rounds), given.write)


if __name__ == "__main__":
    main()
