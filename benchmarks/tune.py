"""Does `collc tune` choose the right program? `python benchmarks/tune.py --write docs/data/tune.yaml`.

For each number of ranks: compiles a host library with candidates, tunes it, then measures every candidate side by side
at sizes between the tuned ones as well, and counts where the chosen program is within 10% of the best. Run it on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from measured import provenance, publish

from collc.bench.team import team_of
from collc.checker.library import read_manifest
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import short_size, size_series
from collc.compiler import CompileRequest, compile_topology
from collc.options import TargetKind
from collc.tune.candidates import embedded, read_offers
from collc.tune.meter import Guard, TeamMeter
from collc.tune.run import WORKER, Tuned, TuneRequest, tune
from collc.tune.search import Problem, distinct

K, M = 1 << 10, 1 << 20
WITHIN = 0.10


@dataclass(frozen=True)
class Check:
    """One size: microseconds of the chosen program, of the best and of the embedded one."""

    ranks: int
    collective: str
    bytes: int
    chosen: str
    chosen_us: float
    best: str
    best_us: float
    embedded_us: float
    settled: bool

    @property
    def good(self) -> bool:
        return self.chosen_us <= self.best_us * (1 + WITHIN)


def topology(folder: Path, ranks: int) -> Path:
    """Ranks on the cores of one socket: what `collc probe --cpu --ranks N` writes."""
    file = folder / f"cores{ranks}.yaml"
    links = "".join(f"  - {{between: [core{i}, cpu0], kind: c2c, gbps: 12.5}}\n" for i in range(ranks))
    names = ", ".join(f"core{i}" for i in range(ranks))
    head = f"format: collc-topology/1\nname: cores{ranks}\ngpus: [{names}]\ncpus: [cpu0]\nlinks:\n"
    file.write_text(head + links, encoding="utf-8")
    return file


def check(library: Path, ranks: int, found: Tuned, sizes: list[int], guard: Guard) -> list[Check]:
    """Every candidate beside the chosen one at every size."""
    checks = []
    with team_of(library, ranks, None, WORKER) as team:
        offer = next(offer for offer in read_offers(read_manifest(library)) if offer.nranks == ranks)
        meter = TeamMeter(team, guard, offer.first_program)
        root = 0 if found.collective.rooted else -1
        problem = Problem(found.collective, root, ranks, found.candidates, meter)
        for size in sizes:
            per_call = problem.per_call(size)
            chosen = max(
                (row for row in found.rows if row.min_bytes <= per_call), key=lambda row: row.min_bytes
            ).program
            held = embedded(found.candidates, per_call).number
            numbers = distinct(found.candidates, per_call, [chosen, held, *(c.number for c in found.candidates)])
            measured = meter.measure(problem.call(size), numbers)
            times = dict(zip(numbers, (t * 1e6 for t in measured.seconds), strict=True))
            best = min(numbers, key=lambda number: times[number])
            names = (found.label(chosen), found.label(best))
            us = (times[chosen], times[best], times.get(held, times[chosen]))
            checks.append(
                Check(ranks, found.collective.value, size, names[0], us[0], names[1], us[1], us[2], measured.settled)
            )
    return checks


def run(options: argparse.Namespace, save: Callable[[list[Check]], None]) -> list[Check]:
    """All checks; `save` gets those so far after every collective."""
    checks: list[Check] = []
    folder = Path(options.folder or tempfile.mkdtemp(prefix="collc-tune-"))
    folder.mkdir(parents=True, exist_ok=True)
    for ranks in options.ranks:
        library = folder / f"libcollc-cores{ranks}.so"
        if not (options.reuse and library.is_file()):
            request = CompileRequest(
                str(topology(folder, ranks)), output=library, target=TargetKind.HOST, tune_candidates=True
            )
            compile_topology(request)
        collectives = [Collective(name) for name in options.collective] or list(COMPILED)
        report = tune(TuneRequest(library, collectives=collectives, max_bytes=options.most, guard=options.guard))
        for found in report.tuned:
            checks += check(library, ranks, found, size_series(K, options.most, 2), options.guard)
            save(checks)
    return checks


def page(checks: list[Check], load: float) -> str:
    """The result as Markdown."""
    lines = [
        "# The chosen program against the best one, on the host target",
        "",
        "After `collc tune`, every candidate is measured side by side at twice as many sizes as were tuned;",
        "float32, medians.",
        "",
        f"{provenance()}; load average {load:.1f} when it began.",
        "",
        "| ranks, collective | sizes | chosen within 10% | embedded within 10% | settled | of these within 10% |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    groups: dict[tuple[int, str], list[Check]] = {}
    for one in checks:
        groups.setdefault((one.ranks, one.collective), []).append(one)
        groups.setdefault((one.ranks, "all"), []).append(one)
    for (ranks, name), rows in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] == "all")):
        good = sum(row.good for row in rows) / len(rows)
        before = sum(row.embedded_us <= row.best_us * (1 + WITHIN) for row in rows) / len(rows)
        calm = [row for row in rows if row.settled]
        of_calm = f"{sum(row.good for row in calm) / len(calm):.0%}" if calm else "-"
        lines.append(f"| {ranks}, {name} | {len(rows)} | {good:.0%} | {before:.0%} | {len(calm)} | {of_calm} |")
    lines += [
        "",
        "| ranks, collective | bytes | chosen | us | best | us | embedded us |",
        "|---|--:|---|--:|---|--:|--:|",
    ]
    for one in checks:
        cells = [f"{one.ranks}, {one.collective}", short_size(one.bytes), one.chosen, f"{one.chosen_us:.2f}"]
        cells += [one.best, f"{one.best_us:.2f}", f"{one.embedded_us:.2f}" + ("" if one.settled else " ?")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", "`?`: the medians did not settle; other work disturbed the machine.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--collective", action="append", default=[], help="repeatable; default: all")
    parser.add_argument("--most", type=int, default=4 * M, metavar="BYTES", help="largest size")
    parser.add_argument("--folder", help="where the libraries are built; default: a new one")
    parser.add_argument("--reuse", action="store_true", help="take libraries that are already there")
    parser.add_argument("--rounds", type=int, default=Guard.rounds, help="most rounds of one measurement")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page here instead of printing it")
    options = parser.parse_args()
    options.guard = Guard(rounds=options.rounds)
    load = os.getloadavg()[0]

    def save(checks: list[Check]) -> None:
        if options.write is not None:
            publish(page(checks, load), options.write)

    checks = run(options, save)
    if options.write is None:
        print(page(checks, load), end="")


if __name__ == "__main__":
    main()
