"""The kinds of plans that a host library over several servers chooses from, side by side over shaped links.

`python benchmarks/server_plans.py [--write docs/measurements/server-plans.md]`, as root: for every shape a library with
each kind of plan for all sizes, and the one with the model's choices; the ranks of all of them run at the same time on
the servers of one lab (that of the tests), and call in turn, round by round. Ratios within a round are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured import provenance, publish
from torch_backend import size_text

from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import bytes_per_call
from collc.compiler import CompileRequest, CompileResult, compile_topology
from collc.errors import PackingError
from collc.options import TargetKind
from collc.packing.candidates import BY_SERVERS, candidate, with_proof
from collc.packing.document import plan_file, to_json
from collc.packing.model import Plan
from collc.pipeline import Recorder, pack, wanted_programs
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology

TESTS = Path(__file__).resolve().parent.parent / "tests"
KINDS = ("trees", *BY_SERVERS)
PLAIN = "trees, 128 KiB"
SHAPES = ["2+2", "2+2+2+2", "3+5", "1+1+6"]
COLLECTIVES = ("all_reduce", "broadcast", "all_gather")
SIZES = [1 << 10, 64 << 10, 1 << 20, 16 << 20]
# Calls in a row, so that a call is not lost among the orders to the processes.
TIMES = {1 << 10: 20, 64 << 10: 5}


@dataclass
class Row:
    """Seconds by kind, in the order of the rounds; `None` is the model's choice, `chosen` its kind."""

    collective: str
    size: int
    chosen: str
    seconds: dict[str | None, list[float]]


def places(shape: str) -> tuple[str, str]:
    """A letter for each server of ``3+5``, and that of each rank's server: ab, aaabbbbb."""
    counts = list(map(int, shape.split("+")))
    letters = "abcdefgh"[: len(counts)]
    return letters, "".join(letter * count for letter, count in zip(letters, counts, strict=True))


def topology_text(shape: str, rate: int) -> str:
    from support.libraries import cluster

    sizes = tuple(map(int, shape.split("+")))
    return cluster(sizes).replace("kind: net, gbps: 10", f"kind: net, gbps: {rate / 8000:g}")


def compiled(text: str, folder: Path, kind: str | None) -> CompileResult:
    """The library of a kind alone, or with the model's choices."""
    source = folder / "topology.yaml"
    source.write_text(text, encoding="utf-8")
    topology = loads_topology(text)
    graph = plan_graph(topology)
    file = None
    if kind is not None:
        made: list[Plan] = []
        for plan in pack(graph, wanted_programs(COMPILED, graph.nranks, [0]), Recorder()):
            try:
                other = plan if kind == "trees" else candidate(graph, plan.collective, plan.root, kind)
                made.append(with_proof(other, plan))
            except PackingError:
                made.append(plan)
        file = folder / f"{kind}.json"
        file.write_text(json.dumps(to_json(plan_file(graph, tuple(made)))), encoding="utf-8")
    return compile_topology(
        CompileRequest(
            topology=str(source),
            output=folder / f"libcollc-{kind or 'chosen'}.so",
            target=TargetKind.HOST,
            gpus=",".join(gpu.name for gpu in topology.gpus),
            roots=[0],
            plans=file,
        )
    )


def kind_at(result: CompileResult, collective: Collective, size: int, nranks: int) -> str:
    """The kind of plan and the chunk that a library has for a size."""
    plans = result.documents[0].plans
    mine = [e for e in result.entries[0] if plans[e.plan].collective is collective]
    least = bytes_per_call(collective, size, nranks)
    entry = [e for e in mine if (e.when.min_bytes or 0) <= least][-1]
    return f"{plans[entry.plan].kind}, {size_text(entry.program.chunk_bytes)}"


def measure(shape: str, rate: int, sizes: Sequence[int], rounds: int, folder: Path) -> list[Row]:
    from support.netlab import lab
    from support.ranks import Ranks

    text = topology_text(shape, rate)
    letters, hosts = places(shape)
    results = {kind: compiled(text, folder, kind) for kind in (*KINDS, None)}
    results[PLAIN] = results["trees"]
    rows = []
    with lab(letters, rate) as made:
        teams: dict[str | None, Any] = {}
        try:
            for kind, result in results.items():
                path = Path(result.library.path)
                env = {"COLLC_SOCKET_IFNAME": "e0", **({"COLLC_CHUNK": str(128 << 10)} if kind == PLAIN else {})}
                teams[kind] = Ranks(path, len(hosts), env, hosts=hosts, lab=made.name)
                if any(answer["result"] for answer in teams[kind].init()):
                    raise SystemExit(f"{shape}, {kind or 'chosen'}: no communicator")
            for name in COLLECTIVES:
                collective = Collective(name)
                for size in sizes:
                    floats = size // 4 // (len(hosts) if collective.per_rank else 1)
                    order = {
                        "do": "call",
                        "collective": name,
                        "count": floats,
                        "times": TIMES.get(size, 1),
                        "together": True,
                    }
                    row = Row(name, size, kind_at(results[None], collective, size, len(hosts)), {k: [] for k in teams})
                    for number in range(rounds if size < 16 << 20 else max(1, rounds // 3)):
                        for kind, team in list(teams.items())[:: 1 if number % 2 else -1]:
                            answers = team.all(**order)
                            if any(answer["result"] for answer in answers):
                                raise SystemExit(f"{shape}, {kind or 'chosen'}: {answers}")
                            row.seconds[kind].append(max(a["seconds"] for a in answers) / TIMES.get(size, 1))
                    rows.append(row)
        finally:
            for team in teams.values():
                team.close()
    return rows


def table(shape: str, rows: Sequence[Row]) -> list[str]:
    """The part of the page about one shape."""
    lines = [
        f"## {shape} ranks",
        "",
        f"| call | {' | '.join(f'{k} ms' for k in (PLAIN, *KINDS))} | chosen | chosen ms | best |",
    ]
    lines.append("|---|" + "--:|" * (1 + len(KINDS)) + "---|--:|--:|")
    for row in rows:
        times = {kind: statistics.median(found) for kind, found in row.seconds.items()}
        # Within each round, the best of the kinds over the chosen programs.
        ratios = [min(row.seconds[kind][i] for kind in KINDS) / found for i, found in enumerate(row.seconds[None])]
        cells = [f"{times[kind] * 1e3:.3g}" for kind in (PLAIN, *KINDS)]
        lines.append(
            f"| {row.collective}, {size_text(row.size)} | {' | '.join(cells)} | {row.chosen} | "
            f"{times[None] * 1e3:.3g} | {statistics.median(ratios):.2f} |"
        )
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description="Kinds of plans over several servers, side by side.")
    parser.add_argument("--write", type=Path, help="The file for the page; otherwise it is printed.")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="Ranks on each server, as 3+5.")
    parser.add_argument("--rate", type=int, default=100, help="Mbit/s of each server's link.")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    before = os.getloadavg()[0]
    parts = []
    for shape in arguments.shapes:
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(shape, arguments.rate, arguments.sizes, arguments.rounds, Path(folder))
        parts += table(shape, rows)
        print("\n".join(table(shape, rows)), file=sys.stderr, flush=True)
    lines = [
        "# Kinds of plans over several servers",
        "",
        f"{provenance()}.",
        "Regenerated by `make bench-server-plans`, as root.",
        f"Servers are network namespaces whose links have {arguments.rate} Mbit/s in each direction, and all ranks",
        "share the cores. A library with each kind of plan alone, one with the packed trees in chunks of 128 KiB for",
        "all sizes, and one with the model's choices, called in turn in",
        f"{arguments.rounds} rounds (a third of them at 16 MiB); medians of milliseconds. `chosen` is the kind and the",
        "largest chunk that the model chose for the size; `best` is, within a round, the time of the fastest kind over",
        "that of the choices: 1 is a right choice, less is what it loses.",
        f"Load of the machine when it began and ended: {before:.0f} and {os.getloadavg()[0]:.0f}.",
        "",
        *parts,
    ]
    text = "\n".join(lines).rstrip() + "\n"
    publish(text, arguments.write)


if __name__ == "__main__":
    main()
