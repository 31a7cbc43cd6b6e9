"""The host target and each MPI library in turn, in the same processes: `make bench-beside`.

On a virtual machine the cores change their speed and place from second to second, so times of two runs say little of
each other. Here one program is linked with an MPI library and with collc (beside.h), and calls of both take turns of
2 ms (8 ms with more ranks than cores, or a single call of each root): two neighboring turns
meet the same machine. A library's ratio at a point is the median over all rounds at one distance between cores
(distance.py): near or far, whichever gives the larger ratio. The point's ratio is the largest ratio of all libraries.

The libraries are those that peers.py finds. A pass is one run of each library with each number of ranks. A series may
be made in pieces: `--minutes 9` ends after that time with exit status 3, and the same command goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from distance import DISTANCES, FAR_NS, NEAR_NS, Distance, Watch
from measured import cores, processor, processor_name, provenance, publish
from peers import (
    COLLECTIVES,
    HERE,
    RANKS,
    SIZES,
    Peer,
    Place,
    build,
    how_it_ended,
    kept_lines,
    library_of,
    microseconds,
    run_limited,
    short,
)

LEAST = 6  # rounds that a library needs before a point is judged
LIMIT = 240  # seconds for one run
SLOW, SLOWER = 1.1, 1.3  # the page counts the points above these ratios


@dataclass(frozen=True)
class Round:
    """A turn of collc and one of the other library, microseconds of a call."""

    collective: str
    size: int
    ours: float
    theirs: float
    at: Distance


@dataclass(frozen=True)
class Pass:
    """One run: of one library, with one number of ranks."""

    number: int
    peer: str
    ranks: int
    rounds: list[Round]
    note: str = ""


def link(peer: Peer, library: Path) -> Peer:
    """The program that calls the library and this peer."""
    program = peer.program.with_name(f"beside-{peer.name}")
    include = f"-I{HERE.parent / 'templates' / 'include'}"
    compiler = [*peer.compiler, "-O2", "-DWITH_MPI", "-DBESIDE", include, str(HERE / "peerbench.c"), "-o", str(program)]
    ours = ["-x", "none"] if "-x" in peer.compiler else []
    ours += [str(library.resolve()), f"-Wl,-rpath,{library.parent.resolve()}"]
    subprocess.run([*compiler, *ours, *peer.flags], check=True)
    return replace(peer, program=program)


def rounds_of(printed: str, watch: Watch) -> tuple[list[Round], str]:
    """Returns the rounds that a run printed, and its error."""
    rounds, note = [], ""
    for line in printed.splitlines():
        row = line.split(",")
        if len(row) != 9:
            continue
        at = watch.between(float(row[7]), float(row[8]))
        rounds.append(Round(row[1], int(row[3]), float(row[4]), float(row[5]), at))
        if row[6] != "ok":
            note = f"{row[6]}: {row[1]} of {row[3]} bytes"
    return rounds, note


class Series:
    """The passes so far, in a file; `what` names the benchmark."""

    def __init__(self, path: Path, what: str, fresh: bool) -> None:
        self.path, self.passes = path, list[Pass]()
        for line in kept_lines(path, what, fresh):
            value = json.loads(line)
            self.passes.append(Pass(**{**value, "rounds": [Round(**one) for one in value["rounds"]]}))

    def add(self, one: Pass) -> None:
        self.passes.append(one)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(one)) + "\n")


def wanted(peers: Sequence[Peer], passes: int, have: Sequence[Pass]) -> Iterator[tuple[int, int, Peer]]:
    done = {(one.number, one.ranks, one.peer) for one in have}
    for number in range(1, passes + 1):
        for ranks in RANKS:
            for peer in peers:
                if ranks <= peer.most and (number, ranks, peer.name) not in done:
                    yield number, ranks, peer


def measure(peers: Sequence[Peer], series: Series, given: argparse.Namespace, env: dict[str, str]) -> bool:
    """Runs what the series lacks; false if time ran out before."""
    end = time.monotonic() + 60 * given.minutes if given.minutes else None
    with Watch(given.build) as watch:
        for number, ranks, peer in wanted(peers, given.passes, list(series.passes)):
            if end is not None and time.monotonic() > end:
                return False
            print(f"pass {number}: {ranks} ranks, {peer.name}", file=sys.stderr)
            done = run_limited(peer.command(ranks, given.seconds), {**peer.environment(ranks), **env}, LIMIT)
            if done is None:
                series.add(Pass(number, peer.name, ranks, [], f"took more than {LIMIT} s"))
                continue
            rounds, note = rounds_of(done.stdout, watch)
            series.add(Pass(number, peer.name, ranks, rounds, how_it_ended(done) or note))
    return True


@dataclass(frozen=True)
class Verdict:
    """A point: collc's time (microseconds) beside its best peer, and its ratio to each."""

    ours: float
    peer: str
    at: Distance
    ratio: float
    by_pass: list[float]
    others: dict[str, float]


def verdicts(passes: Sequence[Pass], distances: Sequence[Distance] = DISTANCES) -> dict[Place, Verdict]:
    """Returns the verdicts of all points where each library has LEAST rounds at one of the distances or is far behind.
    The distance with the worse ratio for collc counts."""
    found: dict[Place, dict[str, list[tuple[int, Round]]]] = defaultdict(lambda: defaultdict(list))
    for one in passes:
        for round_ in one.rounds:
            found[round_.collective, one.ranks, round_.size][one.peer].append((one.number, round_))
    result = {}
    for place, peers in found.items():
        ratios: dict[tuple[str, Distance], float] = {}
        for peer, rounds in peers.items():
            for distance in distances:
                there = [r for _, r in rounds if r.at == distance]
                if len(there) >= LEAST:
                    ratios[peer, distance] = middle(there)
        others = {peer: max(ratio for (name, _), ratio in ratios.items() if name == peer) for peer, _ in ratios}
        if not ratios or not all(peer in others or is_behind([r for _, r in rounds]) for peer, rounds in peers.items()):
            continue
        peer, at = max(ratios, key=lambda key: ratios[key])
        by_pass: dict[int, list[Round]] = defaultdict(list)
        for number, round_ in peers[peer]:
            if round_.at == at:
                by_pass[number].append(round_)
        each = [middle(rounds) for _, rounds in sorted(by_pass.items())]
        own = statistics.median(r.ours for rounds in by_pass.values() for r in rounds)
        result[place] = Verdict(own, peer, at, ratios[peer, at], each, others)
    return result


def middle(rounds: Sequence[Round]) -> float:
    return statistics.median(r.ours / r.theirs for r in rounds)


def is_behind(rounds: Sequence[Round]) -> bool:
    """Returns whether the library took over 2.5 times as long as collc in each of at least three rounds. Its run of
    that point then ends early."""
    return len(rounds) >= 3 and max(r.ours / r.theirs for r in rounds) < 0.4


def summary(found: dict[Place, Verdict], where: str) -> str:
    values = [verdict.ratio for verdict in found.values()]
    if not values:
        return f"- {where}: no point is judged."
    slower, slow = (sum(value > most for value in values) for most in (SLOWER, SLOW))
    mean, largest = statistics.geometric_mean(values), max(values)
    return (
        f"- {where}: {len(values)} points, geometric mean of the ratios to the best peer {mean:.2f}, "
        f"largest {largest:.2f}, {slower} above {SLOWER}, {slow} above {SLOW}."
    )


def slow_points(found: dict[Place, Verdict]) -> list[str]:
    lines = []
    for (collective, ranks, size), verdict in found.items():
        if verdict.ratio > SLOW:
            each = ", ".join(f"{value:.2f}" for value in verdict.by_pass)
            point = f"{collective} of {short(size)} with {ranks} ranks"
            lines.append(f"- {point}: {verdict.ratio:.2f} of {verdict.peer}, {verdict.at}; by pass {each}")
    return [*lines, ""] if lines else []


def tables(found: dict[Place, Verdict]) -> list[str]:
    lines = ["| collective | ranks | " + " | ".join(map(short, SIZES)) + " |", "|---|---|" + "---|" * len(SIZES)]
    for collective in COLLECTIVES:
        for ranks in RANKS:
            row = []
            for size in SIZES:
                one = found.get((collective, ranks, size))
                row.append(f"{one.ratio:.2f} {one.peer}, {one.at}, {microseconds(one.ours)} us" if one else "-")
            lines.append(f"| {collective} | {ranks} | " + " | ".join(row) + " |")
    return [*lines, ""]


def by_peer(found: dict[Place, Verdict]) -> list[str]:
    lines = ["| beside | points | geometric mean | largest |", "|---|---|---|---|"]
    for peer in sorted({peer for verdict in found.values() for peer in verdict.others}):
        values = [verdict.others[peer] for verdict in found.values() if peer in verdict.others]
        lines.append(f"| {peer} | {len(values)} | {statistics.geometric_mean(values):.2f} | {max(values):.2f} |")
    return [*lines, ""]


def report(peers: Sequence[Peer], passes: Sequence[Pass], title: str) -> str:
    lines = [
        f"# The host target and MPI libraries in the same processes: {title}",
        "",
        f"{provenance()}; passes: {max((one.number for one in passes), default=0)};",
        "float32, private buffers, one process per rank. Each program is linked with collc and one MPI library,",
        "whose calls take turns of 2 ms; with more ranks than cores 8 ms, or a call of each root. A ratio is the",
        "median over rounds of collc's time over the library's in the next turn: what the machine does from",
        "second to second changes both. Shown are the best peer, which is that with the largest ratio, near or",
        f"far, and the time of collc beside it. Near: a cache line takes less than {NEAR_NS} ns to the other core",
        f"and back; far: more than {FAR_NS}.",
        "",
        *(f"- {peer.name}: {peer.version}" for peer in peers),
        "",
    ]
    if found := verdicts(passes):
        lines += [summary(verdicts(passes, [at]), f"Cores {at}") for at in DISTANCES]
        lines += [summary(found, "Each point at the worse of the two"), "", f"Above {SLOW} there:", ""]
        lines += [*slow_points(found), *tables(found), *by_peer(found)]
    asked = {(round_.collective, one.ranks, round_.size) for one in passes for round_ in one.rounds}
    if open_points := len(asked) - len(found):
        lines += [f"{open_points} points are not judged: a library has fewer than {LEAST} rounds near and far.", ""]
    states = [round_.at for one in passes for round_ in one.rounds]
    near, far = states.count("near"), states.count("far")
    lines += [
        f"Of {len(states)} rounds {near} were near and {far} far. In the others the cores moved: they do not count.",
        "",
    ]
    notes = dict.fromkeys(f"- {one.peer} with {one.ranks} ranks {one.note}" for one in passes if one.note)
    return "\n".join([*lines, *notes]).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="per point and run")
    parser.add_argument("--env", type=Path, help="folder with the environments of MPI wheels")
    parser.add_argument("--build", type=Path, default=Path("build/peers"))
    parser.add_argument("--write", type=Path, help="the page, {processor} in it becomes its name; default: print it")
    parser.add_argument("--minutes", type=float, help="end after this time; the same command goes on (exit status 3)")
    parser.add_argument("--record", type=Path, help="the runs so far; default: beside.jsonl in the folder of --build")
    parser.add_argument("--fresh", action="store_true", help="forget them, and what collc tune --machine has found")
    given = parser.parse_args()
    given.build.mkdir(parents=True, exist_ok=True)
    thresholds = given.build / "machine.txt"
    if given.fresh:
        thresholds.unlink(missing_ok=True)
    ours, *others = build(given.build, given.env, thresholds)
    peers = [link(peer, library_of(given.build)) for peer in others if peer.compiler]
    if not peers:
        raise SystemExit("no MPI library here: benchmarks/peers.py tells where they are looked for")
    build_id = hashlib.sha256(library_of(given.build).read_bytes()).hexdigest()[:12]
    what = f"{processor()}, {cores()} cores, {platform.release()}, build {build_id}: "
    what += f"{', '.join(peer.name for peer in peers)}; {given.seconds:g} s"
    series = Series(given.record or given.build / "beside.jsonl", what, given.fresh)
    complete = measure(peers, series, given, {"COLLC_MACHINE": ours.env["COLLC_MACHINE"]})
    page = report([ours, *peers], series.passes, processor_name())
    publish(page, given.write)
    if not complete:
        print("not complete yet: the same command goes on", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
