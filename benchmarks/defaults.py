"""What the library that `collc compile` makes by default reaches, in the model, of the best candidate.

`python benchmarks/defaults.py --write docs/measurements/defaults.md`: for every machine that comes with collc, every
compiled collective and sizes from 1 MiB to 1 GiB, the time of the fastest candidate (any kind of plan, protocol, chunk
and channels) over the time of the entry that the default library of target cuda runs at that size.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path

from collc.build.compile import Contents
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.choose.strategy import Strategy, strategy_for
from collc.choose.table import fastest, in_turns
from collc.codegen.entry import Entry
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import bytes_per_call, short_size
from collc.errors import CollcError
from collc.options import CUDA
from collc.packing.candidates import kind_of
from collc.simulate.generations import machine_for
from collc.simulate.run import Simulator, Variant, own_channels, variants
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.zoo import names

SIZES = tuple(1 << at for at in (20, 22, 24, 26, 28, 30))
# Machines of more GPUs take an hour; their libraries are chosen by rule without the model.
MOST_RANKS = 16
LEAST = 0.9


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
    grid = [v for v in (*variants(simulator), *in_turns(simulator)) if v.protocol.lower() in _PROTOCOLS]
    for size in sizes:
        entry = entry_at(contents, collective, size, graph.nranks)
        kind = kind_of(plans[entry.plan])
        channels = entry.spread or own_channels(simulator.plan(kind))
        held = Variant(kind, machine.protocol(entry.when.protocol).name, entry.program.chunk_bytes, channels)
        mine = simulator.predict(held, size)
        best = fastest(simulator, grid, size, first=held if held in grid else None)
        share = min(1.0, best.time_us / mine.time_us)
        yield size, share, held.label(), best.variant.label()


_PROTOCOLS = {name.lower() for name in CUDA.protocols}


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


def results() -> str:
    """The page's tables."""
    seen: dict[tuple[str, str], str] = {}
    header = ["machine", "collective", *map(short_size, SIZES)]
    lines = ["| " + " | ".join(header) + " |", "|---|---|" + "--:|" * len(SIZES)]
    low: list[str] = []
    same: list[str] = []
    for name in names():
        topology = load_topology(name)
        graph = plan_graph(topology)
        key = (fingerprint(graph), machine_for(None, graph.gpu_model)[0].name)
        if key in seen:
            same.append(f"{name} as {seen[key]}")
            continue
        seen[key] = name
        if graph.nranks > MOST_RANKS:
            same.append(f"{name} left out: {graph.nranks} GPUs")
            continue
        try:
            contents = library_contents(LibraryRequest(name), CUDA)
        except CollcError as error:
            same.append(f"{name} left out: {error}")
            continue
        for collective in COMPILED:
            found = list(cells(contents, collective))
            shown = [f"**{share:.2f}**" if share < LEAST else f"{share:.2f}" for _, share, _, _ in found]
            lines.append(f"| {name} | {collective.value} | {' | '.join(shown)} |")
            print(lines[-1], flush=True)
            low += [
                f"| {name} | {collective.value} | {short_size(size)} | {share:.2f} | {held} | {best} | "
                f"{why(contents, share, held, best)} |"
                for size, share, held, best in found
                if share < LEAST
            ]
    table = ["| machine | collective | size | share | default | best | why |", "|---|---|--:|--:|---|---|---|", *low]
    return "\n".join([*lines, "", f"Not repeated: {'; '.join(same)}.", "", f"## Below {LEAST}", "", *table])


PAGE = """# The default library and the best candidate, in the model

Written by `make bench-defaults`: the time of the best candidate over that of what the library of `collc compile
--target cuda` runs, by the parameters of the machine's own generation ([simulate.md](../simulate.md)). 1.00: nothing is
faster. The best candidate is searched over all kinds of plan, protocols, chunks and channels, without regard to the
memory that FIFOs take in a library that holds all collectives and roots. Nothing here was measured.

"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args(arguments)
    gc.set_threshold(200_000)
    text = PAGE + results() + "\n"
    if given.write is not None:
        given.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
