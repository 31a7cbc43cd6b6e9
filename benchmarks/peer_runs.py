"""The runs of bench-peers: in which order, what each said, and whether the machine was even meanwhile.

A turn is one collective with one number of ranks, run by every library one after the other; rounds of all turns are
the outer loop. Every run is kept in a file at once, with what the machine was worth before it (evenness.c) and how far
apart its cores were at every size (distance.py), so that a series may be made in pieces: started again, it goes on
where it stopped. Libraries are only compared at one distance between cores, where each has been measured, and ours
LEAST times; a collective and a number of ranks that lack this after all rounds get further turns, as many again at
most. A library that has been measured LEAST times and took HOPELESS times the best one's time at every size is left out
of further turns.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from distance import DISTANCES, Distance

HERE = Path(__file__).parent
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
RANKS = (2, 4, 8)
OURS = "collc"
PROBES = ("a computation", "copies in the caches", "copies in memory")
MOST_SPREAD = 1.5  # of a probe within an even turn, largest over smallest
MOST_APART = 1.15  # of geometric means of single rounds, largest over smallest
HOPELESS = 2  # times the best one's time, at every size: such a library is not asked again
LEAST = 3  # runs of each library at one distance by which a point is judged
Cells = dict[tuple[str, str, int, int], list[float]]  # peer, collective, ranks, bytes: microseconds by round
Medians = dict[tuple[str, str, int, int], float]
Place = tuple[str, int, int]  # collective, ranks, bytes


@dataclass(frozen=True)
class Turn:
    """What all libraries run one after the other, `number` times in all."""

    number: int
    collective: str
    ranks: int


@dataclass(frozen=True)
class Run:
    """One library's part of a turn. `times`: bytes, microseconds, how far apart the cores were; `worth`: PROBES before
    it, nanoseconds."""

    turn: Turn
    peer: str
    times: list[tuple[int, float, Distance]]
    worth: list[float]
    note: str = ""
    gave_up: bool = False


def turns(rounds: int, collectives: Sequence[str], ranks: Sequence[int], runs: Sequence[Run] = ()) -> Iterator[Turn]:
    """`runs`: those so far, more when the next turn is asked for."""
    for number in range(1, 2 * rounds + 1):
        for collective in collectives:
            for count in ranks:
                if number <= rounds or not is_judged(runs, collective, count):
                    yield Turn(number, collective, count)


def kept_lines(path: Path, what: str, fresh: bool) -> list[str]:
    """Those of a series kept in a file, which begins with `what` it is of; a file of another series is refused."""
    if fresh:
        path.unlink(missing_ok=True)
    if not path.exists():
        path.write_text(json.dumps({"series": what}) + "\n", encoding="utf-8")
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    if json.loads(head) != {"series": what}:
        raise SystemExit(f"{path}: has runs of another series ({head}); measure anew with --fresh")
    return lines


class Record:
    """The runs of one series, kept in a file. `what` says of what; a file of another series is refused."""

    def __init__(self, path: Path, what: str, fresh: bool) -> None:
        self.path = path
        self.runs = [_run(json.loads(line)) for line in kept_lines(path, what, fresh)]

    def lacks(self, turn: Turn, peer: str) -> bool:
        """A library that took too long once is not asked again, nor one that cannot be the best."""
        same = [run for run in self.runs if run.peer == peer and run.turn.ranks == turn.ranks]
        if any(run.turn == turn or run.gave_up for run in same):
            return False
        return peer == OURS or not is_far_behind(self.runs, peer, turn.collective, turn.ranks)

    def add(self, run: Run) -> None:
        self.runs.append(run)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(run)) + "\n")


def _run(value: dict[str, object]) -> Run:
    turn, times, worth = value["turn"], value["times"], value["worth"]
    assert isinstance(turn, dict)
    assert isinstance(times, list)
    assert isinstance(worth, list)
    known = [(size, time, cast(Distance, distance)) for size, time, distance in times]
    return Run(Turn(**turn), str(value["peer"]), known, worth, str(value["note"]), bool(value["gave_up"]))


def build_probe(out: Path) -> Path:
    program = out / "evenness"
    subprocess.run(["gcc", "-O2", str(HERE / "evenness.c"), "-o", str(program), "-pthread"], check=True)
    return program


def worth_now(probe: Path) -> list[float]:
    """PROBES in nanoseconds."""
    said = subprocess.run([str(probe)], check=True, capture_output=True, text=True).stdout
    computation, _line, *copies = (float(word) for word in said.split())
    return [computation, *copies]


def spreads(runs: Iterable[Run]) -> list[float]:
    """Of each probe within one turn, largest over smallest."""
    found = [run.worth for run in runs]
    return [max(column) / min(column) if min(column) > 0 else 1.0 for column in zip(*found, strict=True)]


def by_turn(runs: Iterable[Run]) -> dict[Turn, list[Run]]:
    found: dict[Turn, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.turn].append(run)
    return found


def is_even(runs: Iterable[Run]) -> bool:
    return max(spreads(runs), default=1.0) <= MOST_SPREAD


def used_turns(runs: Sequence[Run]) -> set[Turn]:
    """Where half of the turns of a collective and number of ranks were even, and LEAST, the others do not count."""
    even: dict[tuple[str, int], list[Turn]] = defaultdict(list)
    every: dict[tuple[str, int], list[Turn]] = defaultdict(list)
    for turn, members in by_turn(runs).items():
        every[turn.collective, turn.ranks].append(turn)
        if is_even(members):
            even[turn.collective, turn.ranks].append(turn)
    used = set[Turn]()
    for key, all_turns in every.items():
        good = even[key]
        used |= set(good if len(good) >= max(LEAST, len(all_turns) / 2) else all_turns)
    return used


def cells_of(runs: Sequence[Run], distance: Distance) -> Cells:
    """The times at that distance, by round."""
    used = used_turns(runs)
    cells: Cells = defaultdict(list)
    for run in runs:
        if run.turn in used:
            for size, time, at in run.times:
                if at == distance:
                    cells[run.peer, run.turn.collective, run.turn.ranks, size].append(time)
    return cells


def judged(runs: Sequence[Run], distance: Distance) -> set[Place]:
    """The points at which ours was measured LEAST times at that distance, and once each other library that was measured
    anywhere."""
    cells = cells_of(runs, distance)
    asked: dict[Place, set[str]] = defaultdict(set)
    for run in runs:
        for size, _, _ in run.times:
            asked[run.turn.collective, run.turn.ranks, size].add(run.peer)
    return {
        place
        for place, peers in asked.items()
        if all(len(cells.get((peer, *place), [])) >= (LEAST if peer == OURS else 1) for peer in peers)
    }


def is_judged(runs: Sequence[Run], collective: str, ranks: int) -> bool:
    """Whether all points of that collective and number of ranks are, at one distance."""
    own = [run for run in runs if (run.turn.collective, run.turn.ranks) == (collective, ranks)]
    places = {(collective, ranks, size) for run in own for size, _, _ in run.times}
    return any(judged(own, distance) == places for distance in DISTANCES)


def is_far_behind(runs: Sequence[Run], peer: str, collective: str, ranks: int) -> bool:
    """Whether it took HOPELESS times as long as the best other one at every size, LEAST times at one distance."""
    own = [run for run in runs if (run.turn.collective, run.turn.ranks) == (collective, ranks)]
    sizes = {size for run in own if run.peer == peer for size, _, _ in run.times}
    for distance in DISTANCES:
        cells = {(key[0], key[3]): values for key, values in cells_of(own, distance).items() if len(values) >= LEAST}
        best = {size: min(statistics.median(cells[k]) for k in cells if k[1] == size) for _, size in cells}
        if sizes and all(
            (peer, size) in cells and statistics.median(cells[peer, size]) > HOPELESS * best[size] for size in sizes
        ):
            return True
    return False


def usual(runs: Sequence[Run]) -> Distance:
    """The distance at which more points are judged."""
    return max(DISTANCES, key=lambda distance: len(judged(runs, distance)))


def medians(cells: Cells) -> Medians:
    return {key: statistics.median(values) for key, values in cells.items()}


def ratios(runs: Sequence[Run], distance: Distance) -> dict[Place, tuple[float, str]]:
    """Our median over that of the best other library, and which that is, of all points that are judged. Of a library
    that was not measured LEAST times its least time counts."""
    cells = cells_of(runs, distance)
    times = {key: statistics.median(v) if len(v) >= LEAST else min(v) for key, v in cells.items()}
    found = {}
    for place in judged(runs, distance):
        others = {peer: time for (peer, *at), time in times.items() if tuple(at) == place and peer != OURS}
        own = times.get((OURS, *place))
        if own is not None and others:
            best = min(others, key=lambda peer: others[peer])
            found[place] = own / others[best], best
    return found


def by_round(
    runs: Sequence[Run], found: Mapping[Place, tuple[float, str]], distance: Distance
) -> dict[int, dict[Place, float]]:
    """What each round alone says of these points: our time over that of the library that is the best one over all."""
    rounds: dict[int, dict[Place, float]] = {}
    for turn, members in by_turn(runs).items():
        times = {(run.peer, size): us for run in members for size, us, at in run.times if at == distance}
        for (collective, ranks, size), (_, best) in found.items():
            own, its = times.get((OURS, size)), times.get((best, size))
            if (turn.collective, turn.ranks) == (collective, ranks) and own is not None and its is not None:
                rounds.setdefault(turn.number, {})[collective, ranks, size] = own / its
    return rounds


def evenness(runs: Sequence[Run]) -> list[str]:
    """What a page says of the machine: how even it was, what does not count, and whether it can be judged by."""
    found = by_turn(runs)
    if not found:
        return []
    uneven = [turn for turn, members in found.items() if not is_even(members)]
    middle = [statistics.median(column) for column in zip(*(spreads(m) for m in found.values()), strict=True)]
    said = ", ".join(f"{name} {spread:.2f}" for name, spread in zip(PROBES, middle, strict=True))
    states = [at for run in runs for _, _, at in run.times]
    near, far, moved = (states.count(at) for at in (*DISTANCES, "moved"))
    left_out = set(found) - used_turns(runs)
    lines = [
        f"How even the machine was: {len(uneven)} of {len(found)} turns saw one of three probes change by more than",
        f"{MOST_SPREAD} times; largest over smallest within a turn, median over the turns: {said}.",
        f"Of {len(states)} times {near} were measured with the cores near each other, {far} far apart, and {moved}",
        f"while they moved, which do not count; nor do {len(left_out)} disturbed turns beside which enough are even.",
    ]
    places = {(run.turn.collective, run.turn.ranks, size) for run in runs for size, _, _ in run.times}
    open_places = places.difference(*(judged(runs, distance) for distance in DISTANCES))
    if open_places:
        lines.append(
            f"{len(open_places)} points lack times at either distance: {LEAST} of ours, one of each other library."
        )
    distance = usual(runs)
    known = ratios(runs, distance)
    rounds = by_round(runs, known, distance)
    means = [statistics.geometric_mean(of.values()) for of in rounds.values() if 2 * len(of) > len(known)]
    lines.append(
        f"Geometric means of single rounds, cores {distance}: {', '.join(f'{mean:.2f}' for mean in means) or '-'}."
    )
    if 2 * len(open_places) > len(places):
        lines.append("**The machine was too uneven to judge**: its cores moved too often.")
    elif max(means, default=1.0) > MOST_APART * min(means, default=1.0):
        lines.append(f"**The machine was too uneven to judge**: rounds differ by more than {MOST_APART} times.")
    return lines
