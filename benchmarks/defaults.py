"""The share of the best candidate that the default library of `collc compile` reaches, in the model.

`python benchmarks/defaults.py --write docs/data/defaults.yaml`: for every machine that comes with collc, every
compiled collective and sizes from 1 MiB to 1 GiB, the time of the fastest candidate (any kind of plan, protocol, chunk
and channels) over the time of the entry that the default library of target cuda runs at that size. Rows are kept in
`build/defaults.jsonl`: a run that was ended goes on from there.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from measured import MODEL, publish

from collc.build.compile import Contents
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.choose.search import fastest
from collc.choose.servers import only_server, wants_kinds
from collc.choose.strategy import Strategy, strategy_for
from collc.choose.table import in_turns
from collc.codegen.entry import Entry
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import bytes_per_call, short_size
from collc.errors import CollcError
from collc.options import CUDA
from collc.simulator.generations import machine_for
from collc.simulator.run import Simulator, Variant, own_channels, variants
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph, Topology
from collc.topology.zoo import names

SIZES = tuple(1 << at for at in (20, 22, 24, 26, 28, 30))
# All candidates of a larger machine take an hour to simulate. Its library is chosen within a budget of work.
MOST_RANKS = 16
LEAST = 0.9


@dataclasses.dataclass(frozen=True)
class Row:
    """A cell of the table: `share` is the best candidate's time over the default's at `size` bytes."""

    machine: str
    collective: str
    size: int
    share: float
    held: str
    best: str
    why: str


def entry_at(contents: Contents, collective: Collective, size: int, nranks: int) -> Entry:
    """The entry that a call of `size` bytes (nccl-tests' meaning) runs, of rank 0 as root."""
    count = bytes_per_call(collective, size, nranks)
    plans = contents.documents[0].plans
    found = [
        e
        for e in contents.entries[0]
        if plans[e.plan].collective is collective
        and plans[e.plan].root in (None, 0)
        and e.when.min_bytes is not None
        and e.when.min_bytes <= count
    ]
    return max(found, key=lambda e: e.when.min_bytes or 0)


def cells(
    contents: Contents, collective: Collective, sizes: Sequence[int] = SIZES
) -> Iterator[tuple[int, float, str, str]]:
    """(size, best over default, the default's variant, the best's)."""
    graph = contents.documents[0].graph
    plans = contents.documents[0].plans
    machine, _ = machine_for(None, graph.gpu_model)
    simulator = Simulator(graph, collective, 0 if collective.rooted else None, machine)
    grid = [v for v in (*variants(simulator), *in_turns(simulator)) if v.protocol.lower() in PROTOCOLS]
    for size in sizes:
        entry = entry_at(contents, collective, size, graph.nranks)
        kind = entry.kind(plans[entry.plan])
        channels = entry.spread or own_channels(simulator.plan(kind))
        held = Variant(kind, machine.protocol(entry.when.protocol).name, entry.program.chunk_bytes, channels)
        mine = simulator.predict(held, size)
        best = fastest(simulator, grid, size)
        share = min(1.0, best.time_us / mine.time_us)
        yield size, share, held.label(), best.variant.label()


PROTOCOLS = {name.lower() for name in CUDA.protocols}


def why(contents: Contents, share: float, held: str, best: str) -> str:
    """In a few words, what holds the default back."""
    strategy = strategy_for(CUDA, contents.documents[0].graph, 1)
    if strategy is Strategy.RULE:
        return "chosen by rule, not by the model"
    (kind, _, rest), (other, _, more) = held.split("/"), best.split("/")
    if kind != other:
        return f"{other} are left out, or lose the slots that fit the memory"
    mine, theirs = rest.split("x"), more.split("x")
    if mine[1] != theirs[1]:
        return f"{theirs[1]} channels instead of {mine[1]}: memory for FIFOs, or sizes too far apart"
    if mine[0] != theirs[0]:
        return f"chunks of {theirs[0]} instead of {mine[0]}: memory for FIFOs, or sizes too far apart"
    return "another protocol: sizes too far apart"


def machine_rows(name: str) -> list[Row]:
    """All cells of a machine.

    Raises:
        CollcError: its default library cannot be made.
    """
    contents = contents_for(name)
    found = []
    for collective in COMPILED:
        for size, share, held, best in cells(contents, collective):
            reason = why(contents, share, held, best) if share < LEAST else ""
            found.append(Row(name, collective.value, size, share, held, best, reason))
        print(name, collective.value, *(f"{row.share:.2f}" for row in found[-len(SIZES) :]), flush=True)
    return found


def measured(kept: Path, only: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Returns the rows of all machines (or of `only`) and the omissions. Machines in `kept` are not run again."""
    rows = [Row(**json.loads(line)) for line in kept.read_text("utf-8").splitlines()] if kept.exists() else []
    # A machine that was run stands for all of its graph and parameters, wherever it is in the list.
    seen = {key_of(graph_for(name)): name for name in dict.fromkeys(row.machine for row in rows)}
    same: list[str] = []
    for name in names():
        if only and name not in only:
            continue
        graph = graph_for(name)
        if (like := seen.setdefault(key_of(graph), name)) != name:
            same.append(f"{name} is {like}")
            continue
        if graph.nranks > MOST_RANKS:
            reason = f"more than the {MOST_RANKS} up to which all candidates are simulated"
            same.append(f"{name} is left out: {graph.nranks} GPUs, {reason}")
            continue
        if any(row.machine == name for row in rows):
            continue
        try:
            fresh = machine_rows(name)
        except CollcError as error:
            same.append(f"{name} is left out: {error}")
            continue
        with kept.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(dataclasses.asdict(row)) + "\n" for row in fresh)
        rows += fresh
    return sorted(rows, key=lambda row: names().index(row.machine)), same


def server_for(topology: Topology) -> str | None:
    """Of several servers the first, which stands for all where `collc compile` is given no GPUs; None: there is one."""
    return next(iter(topology.servers)) if wants_kinds(topology, None, None) else None


def contents_for(name: str) -> Contents:
    """Returns the contents of the library that `collc compile NAME` makes.

    Raises:
        CollcError: it cannot be made.
    """
    return library_contents(LibraryRequest(name, server=server_for(load_topology(name))), CUDA)


def graph_for(name: str) -> PlanGraph:
    """The graph of that library."""
    topology = load_topology(name)
    server = server_for(topology)
    return plan_graph(topology if server is None else only_server(topology, server))


def key_of(graph: PlanGraph) -> tuple[str, str]:
    """Equal for machines whose rows are equal."""
    return fingerprint(graph), machine_for(None, graph.gpu_model)[0].name


def table(rows: Sequence[Row], same: Sequence[str]) -> str:
    """The page's tables."""
    header = ["machine", "collective", *map(short_size, SIZES)]
    lines = ["| " + " | ".join(header) + " |", "|---|---|" + "--:|" * len(SIZES)]
    for (machine, collective), cell in itertools.groupby(rows, key=lambda row: (row.machine, row.collective)):
        shown = [f"**{row.share:.2f}**" if row.share < LEAST else f"{row.share:.2f}" for row in cell]
        lines.append(f"| {machine} | {collective} | {' | '.join(shown)} |")
    lines += ["", f"Same graph and parameters, or left out: {'; '.join(same)}.", "", f"## Below {LEAST}", ""]
    below = [row for row in rows if row.share < LEAST]
    if not below:
        return "\n".join([*lines, "None."])
    lines += ["| machine | collective | size | share | default | best | why |", "|---|---|--:|--:|---|---|---|"]
    for row in below:
        cells_of = (row.machine, row.collective, short_size(row.size), f"{row.share:.2f}", row.held, row.best)
        lines.append(f"| {' | '.join((*cells_of, row.why))} |")
    return "\n".join(lines)


PAGE = """# The default library and the best candidate, in the model

A cell is the best candidate's time over the time of the program that the library of `collc compile --target cuda`
runs, by the parameters of the machine's generation (simulate.md). 1.00: nothing is faster. The best candidate is
searched over all kinds of plan, protocols, chunks and channels, without regard to the
memory that FIFOs take in a library that holds all collectives and roots. Of several servers one, as `compile` makes it
where no GPUs are named: gb200-nvl72 is a tray of 4 GPUs. Nothing here was measured.

"""


def run_page(
    description: str | None, results: Path, page: Callable[[Path, Sequence[str]], str], arguments: Sequence[str] | None
) -> None:
    """The command of a page over all machines. `results`: where rows are kept; `page` makes the text of those that are
    kept there and of the machines that are named."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--results", type=Path, default=results, help="kept here, and gone on from")
    parser.add_argument("--machine", action="append", default=[], help="only these, in this run")
    given = parser.parse_args(arguments)
    gc.set_threshold(200_000)
    given.results.parent.mkdir(parents=True, exist_ok=True)
    text = page(given.results, given.machine) + "\n"
    if given.write is not None:
        publish(text, given.write, MODEL)


def main(arguments: Sequence[str] | None = None) -> None:
    run_page(__doc__, Path("build/defaults.jsonl"), lambda *asked: PAGE + table(*measured(*asked)), arguments)


if __name__ == "__main__":
    main()
