"""Plans random machines of 2 to 16 GPUs and checks each plan: `python tests/packing/sweep.py --seeds 0..500`.

Machines have switches, relays, one-way links, equal and unequal speeds; those that fall apart must be refused. One line
of JSON per seed goes to `--results FILE`; seeds that stand there already are skipped, so a long sweep can be
interrupted. Each machine is planned in a process of its own, which the system ends when one plan has used `--limit`
seconds of CPU time. The exit status is 1 if any plan failed or took too long.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from graphs import graph

from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing import plan
from collc.packing.check import check_packing
from collc.packing.solvers.network import Net
from collc.topology.model import PlanGraph, VertexKind

LIMIT = 20.0
NAMES = [c.value for c in Collective]
_SPEEDS = {
    "equal": ("1",),
    "two": ("25", "50"),
    "unequal": ("1", "2", "3", "5", "0.5", "7/3", "25"),
    "wide": ("0.001", "1", "12.5", "900"),
}


def random_machine(seed: int, most: int = 16) -> PlanGraph:
    """A graph of 2 to `most` GPUs, up to 3 switches and up to 2 relays; connected or not."""
    rng = random.Random(seed)
    n = rng.randint(rng.choice((2, most // 2)), most)
    switches, relays = rng.randint(0, 3), rng.choice((0, 0, 0, 1, 2))
    style = rng.choice(list(_SPEEDS))
    one_way, uneven = rng.choice((0.0, 0.0, 0.1, 0.4)), rng.random() < 0.3
    links: dict[tuple[int, int], str] = {}

    def join(a: int, b: int) -> None:
        ways = [(a, b), (b, a)]
        if rng.random() < one_way:
            ways = [rng.choice(ways)]
        speed = rng.choice(_SPEEDS[style])
        for way in ways:
            links[way] = rng.choice(_SPEEDS[style]) if uneven else speed

    likely = rng.choice((0.3, 0.5, 0.8))
    for forwarder in range(n, n + switches + relays):
        for v in range(n):
            if rng.random() < likely:
                join(v, forwarder)
        if forwarder > n and rng.random() < 0.3:
            join(forwarder - 1, forwarder)
    if rng.random() < 0.8:
        for v in range(1, n):
            a, b = v, rng.randrange(v)
            links[a, b] = links[b, a] = rng.choice(_SPEEDS[style])
    joints = [(a, b) for a in range(n) for b in range(a)]
    for a, b in rng.sample(joints, min(len(joints), rng.randint(0 if switches else n - 1, 2 * n))):
        join(a, b)
    made = graph(n, [(a, b, Fraction(x)) for (a, b), x in links.items()], forwarders=switches + relays)
    kinds = [VertexKind.SWITCH] * switches + [VertexKind.GPU] * relays
    vertices = [*made.vertices[:n], *(replace(v, kind=k) for v, k in zip(made.vertices[n:], kinds, strict=True))]
    return replace(made, name=f"machine{seed}", vertices=tuple(vertices))


def wide_machine(seed: int) -> PlanGraph:
    """A connected random machine of 3 to 12 GPUs with up to six speeds from 1 to 1,000 GB/s."""
    rng = random.Random(seed)
    machine = random_machine(rng.randrange(10**6), 12)
    while machine.nranks < 3 or not joined(machine):
        machine = random_machine(rng.randrange(10**6), 12)
    speeds = [Fraction(f"{10 ** rng.uniform(0, 3):.3g}") for _ in range(6)]
    pairs = sorted({frozenset((link.src, link.dst)) for link in machine.links}, key=sorted)
    speed = {pair: rng.choice(speeds) for pair in pairs}
    links = tuple(replace(link, gbps=speed[frozenset((link.src, link.dst))]) for link in machine.links)
    return replace(machine, name=f"wide{seed}", links=links)


def plans(machine: PlanGraph) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the name of each collective, and its checked plan with the CPU seconds of planning."""
    for collective in Collective:
        start = time.process_time()
        made = plan(machine, collective, machine.nranks // 2 if collective.rooted else None)
        seconds = time.process_time() - start
        check_packing(machine, made)
        yield (
            collective.value,
            {
                "rate": str(made.rate),
                "bound": str(made.bound),
                "optimal": made.optimal,
                "trees": len(made.trees),
                "seconds": round(seconds, 3),
            },
        )


def joined(machine: PlanGraph) -> bool:
    """Returns whether every GPU reaches every other one."""
    net = Net.of(machine)
    ranks = set(range(machine.nranks))
    return ranks <= net.reach(0) and ranks <= net.reversed().reach(0)


def refused(machine: PlanGraph) -> str:
    """The line that refuses a machine that falls apart; all collectives must."""
    lines = set()
    for collective in Collective:
        try:
            plan(machine, collective)
        except PackingError as error:
            lines.add(error.what)
            continue
        raise AssertionError(f"a plan for {collective.value}, though the machine falls apart")
    return min(lines)


def tried(seed: int, limit: float) -> dict[str, Any]:
    """Returns the result of one seed, which runs in a new process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(seed, limit, theirs))
    process.start()
    theirs.close()
    found: dict[str, Any] = {"seed": seed, "plans": {}}
    while True:
        try:
            name, value = ours.recv()
        except EOFError:
            break
        if name in NAMES:
            found["plans"][name] = value
        else:
            found[name] = value
    process.join()
    if process.exitcode and "failed" not in found:
        found["failed"] = f"ended by {process.exitcode} after {', '.join(found['plans']) or 'no plan'}"
    return found


def _work(seed: int, limit: float, pipe: Any) -> None:
    machine = random_machine(seed)
    pipe.send(("size", [machine.nranks, len(machine.vertices), len(machine.links)]))
    _allow(limit)
    try:
        if not joined(machine):
            pipe.send(("refused", refused(machine)))
            return
        for name, value in plans(machine):
            pipe.send((name, value))
            _allow(limit)
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))


def _allow(seconds: float) -> None:
    """Allows `seconds` more of CPU time for the planner, and half as much again plus 2 s for the checker."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds * 1.5 + 2), resource.RLIM_INFINITY))


def summary(found: Iterable[dict[str, Any]], limit: float) -> tuple[list[str], bool]:
    """(lines to print, whether all is well)."""
    rows = sorted(found, key=lambda row: row["seed"])
    timed = sorted((p["seconds"], row["seed"], name, p["optimal"]) for row in rows for name, p in row["plans"].items())
    lines = [
        f"{len(rows)} machines, {sum('refused' in row for row in rows)} of them refused; {len(timed)} plans checked, "
        f"{sum(not optimal for *_, optimal in timed)} not proven optimal"
    ]
    if timed:
        lines.append(f"CPU seconds: median {statistics.median(t for t, *_ in timed):.3f}, slowest:")
        lines += [f"  {t:8.2f}  seed {seed} {name}" for t, seed, name, _ in reversed(timed[-5:])]
    bad = [f"seed {row['seed']}: {row['failed']}" for row in rows if "failed" in row]
    bad += [f"seed {seed} {name}: {t} s" for t, seed, name, _ in timed if t > limit]
    lines += [f"not proven optimal: seed {seed} {name}" for _, seed, name, optimal in timed if not optimal]
    return lines + bad, not bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0..500", help="first..last, the last not included")
    parser.add_argument("--results", type=Path, help="append one line of JSON per seed; seeds in it are skipped")
    parser.add_argument("--limit", type=float, default=LIMIT, help="CPU seconds that one plan may take")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(".."))
    known: dict[int, dict[str, Any]] = {}
    if options.results and options.results.exists():
        rows = map(json.loads, options.results.read_text(encoding="utf-8").splitlines())
        known = {row["seed"]: row for row in rows}
    for seed in range(first, last):
        if seed in known:
            continue
        known[seed] = tried(seed, options.limit)
        if options.results:
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(known[seed]) + "\n")
    lines, good = summary((known[seed] for seed in range(first, last)), options.limit)
    print("\n".join(lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
