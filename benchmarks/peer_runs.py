"""The runs of bench-peers: in which order, what each said, and whether the machine was even meanwhile.

A turn is one collective with one number of ranks, run by every library one after the other; rounds of all turns are
the outer loop. Every run is kept in a file at once, with what the machine was worth before it (evenness.c), so that a
series may be made in pieces: started again, it goes on where it stopped.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
NEAR_NS, FAR_NS = 150, 200  # a cache line's way to another core and back, below and above which cores are near or far
LINE = 1  # the probe of that
PROBES = ("a computation", "a cache line between cores", "copies in the caches", "copies in memory")
MOST_SPREAD = 1.5  # of a probe within an even turn, largest over smallest
Cells = dict[tuple[str, str, int, int], list[float]]  # peer, collective, ranks, bytes: microseconds by round


@dataclass(frozen=True)
class Turn:
    """What all libraries run one after the other, `number` times in all."""

    number: int
    collective: str
    ranks: int


@dataclass(frozen=True)
class Run:
    """One library's part of a turn. `times`: bytes and microseconds; `worth`: PROBES before it, nanoseconds."""

    turn: Turn
    peer: str
    times: list[tuple[int, float]]
    worth: list[float]
    note: str = ""
    gave_up: bool = False


def turns(rounds: int, collectives: Sequence[str], ranks: Sequence[int]) -> Iterator[Turn]:
    for number in range(1, rounds + 1):
        for collective in collectives:
            for count in ranks:
                yield Turn(number, collective, count)


class Record:
    """The runs of one series, kept in a file. `what` says of what; a file of another series is refused."""

    def __init__(self, path: Path, what: str, fresh: bool) -> None:
        self.path = path
        self.runs: list[Run] = []
        if fresh:
            path.unlink(missing_ok=True)
        if path.exists():
            head, *lines = path.read_text(encoding="utf-8").splitlines()
            if json.loads(head) != {"series": what}:
                raise SystemExit(f"{path}: has runs of another series ({head}); measure anew with --fresh")
            self.runs = [_run(json.loads(line)) for line in lines]
        else:
            path.write_text(json.dumps({"series": what}) + "\n", encoding="utf-8")

    def lacks(self, turn: Turn, peer: str) -> bool:
        """A library that took too long once is not asked again."""
        same = [run for run in self.runs if run.peer == peer and run.turn.ranks == turn.ranks]
        return not any(run.turn == turn or run.gave_up for run in same)

    def add(self, run: Run) -> None:
        self.runs.append(run)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(run)) + "\n")


def _run(value: dict[str, object]) -> Run:
    turn, times, worth = value["turn"], value["times"], value["worth"]
    assert isinstance(turn, dict)
    assert isinstance(times, list)
    assert isinstance(worth, list)
    return Run(
        Turn(**turn), str(value["peer"]), [(a, b) for a, b in times], worth, str(value["note"]), bool(value["gave_up"])
    )


def build_probe(out: Path) -> Path:
    program = out / "evenness"
    subprocess.run(["gcc", "-O2", str(HERE / "evenness.c"), "-o", str(program), "-pthread"], check=True)
    return program


def worth_now(probe: Path) -> list[float]:
    """PROBES in nanoseconds."""
    said = subprocess.run([str(probe)], check=True, capture_output=True, text=True).stdout
    return [float(word) for word in said.split()]


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


def cells_of(runs: Sequence[Run]) -> Cells:
    """The times by round. Where at least half of the turns of a collective and number of ranks were even, and three,
    the others do not count."""
    even: dict[tuple[str, int], list[Turn]] = defaultdict(list)
    every: dict[tuple[str, int], list[Turn]] = defaultdict(list)
    for turn, members in by_turn(runs).items():
        every[turn.collective, turn.ranks].append(turn)
        if is_even(members):
            even[turn.collective, turn.ranks].append(turn)
    used = set[Turn]()
    for key, all_turns in every.items():
        good = even[key]
        used |= set(good if len(good) >= max(3, len(all_turns) / 2) else all_turns)
    cells: Cells = defaultdict(list)
    for run in runs:
        if run.turn in used:
            for size, time in run.times:
                cells[run.peer, run.turn.collective, run.turn.ranks, size].append(time)
    return cells


def apart(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs, in their order, before and after which the cores were near each other, or far apart."""
    found: dict[str, list[Run]] = {"near": [], "far": []}
    for run, following in zip(runs, [*runs[1:], *runs[-1:]], strict=True):
        lines = run.worth[LINE], following.worth[LINE]
        if max(lines) < NEAR_NS:
            found["near"].append(run)
        elif min(lines) > FAR_NS:
            found["far"].append(run)
    return found


def by_distance(runs: Sequence[Run], ours: str) -> list[str]:
    """What a page says of `ours` beside the best of the others among runs with the same distance between cores; nothing
    where that did not change."""
    both = apart(runs)
    if not all(both.values()):
        return []
    lines = [
        f"The cores were moved: a cache line took less than {NEAR_NS} ns to the other one and back (near) or more than",
        f"{FAR_NS} (far). Medians among the runs with the same distance before and after them:",
        "",
    ]
    for name, members in both.items():
        ratios = _ratios(members, ours)
        slow = [f"{c} of {s >> 10} KiB with {n} ranks {r:.2f}" for (c, n, s), r in ratios.items() if r > 1.1]
        if ratios:
            mean, most = statistics.geometric_mean(ratios.values()), max(ratios.values())
            found = f"{len(ratios)} points, geometric mean {mean:.2f}, largest {most:.2f}"
            lines.append(f"- {name}: {found}; above 1.1: {', '.join(slow) or 'none'}")
    return [*lines, ""]


def _ratios(runs: Sequence[Run], ours: str) -> dict[tuple[str, int, int], float]:
    """By collective, ranks and bytes: the median time of `ours` over the best one of the others."""
    times: dict[tuple[str, int, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for size, time in run.times:
            times[run.turn.collective, run.turn.ranks, size][run.peer].append(time)
    found = {}
    for point, by_peer in times.items():
        medians = {peer: statistics.median(values) for peer, values in by_peer.items()}
        own = medians.pop(ours, None)
        if own is not None and medians:
            found[point] = own / min(medians.values())
    return found


def evenness(runs: Sequence[Run]) -> list[str]:
    """What a page says of the machine: how even it was, and whether it can be judged by."""
    found = by_turn(runs)
    if not found:
        return []
    uneven = [turn for turn, members in found.items() if not is_even(members)]
    middle = [statistics.median(column) for column in zip(*(spreads(m) for m in found.values()), strict=True)]
    said = ", ".join(f"{name} {spread:.2f}" for name, spread in zip(PROBES, middle, strict=True))
    lines = [
        f"How even the machine was: {len(uneven)} of {len(found)} turns saw one of four probes change by more than",
        f"{MOST_SPREAD} times; largest over smallest within a turn, median over the turns: {said}.",
    ]
    if 2 * len(uneven) > len(found):
        lines.append("**The machine was too uneven to judge**: more than half of the turns were disturbed.")
    return lines
