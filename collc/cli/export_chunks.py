"""`collc export --format mscclpp`: plans for executors that cut buffers into equal chunks."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from collc.build.plans import SolutionCache
from collc.cli import report
from collc.cli.report import compact
from collc.collectives.model import Collective
from collc.collectives.sizes import short_size
from collc.errors import UsageError
from collc.export.mscclpp import ALIGNMENT, NAMES, write_plan
from collc.export.mscclpp_run import prove_plan, read_plan
from collc.export.parts import MAX_CHUNKS, Parts, cut_into_chunks
from collc.packing import plan
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

FORMATS = ("mscclpp",)


@dataclass(frozen=True)
class ChunkWish:
    """The options that belong to these formats alone."""

    chunks: int | None
    in_place: bool

    def given(self) -> list[str]:
        """Those that were given, as the user wrote them."""
        return ["--chunks"] * (self.chunks is not None) + ["--in-place"] * self.in_place


def export_chunks(
    topology: str, wish: ChunkWish, gpus: str | None, links: str | None, collective: str | None, *, as_json: bool
) -> tuple[str, dict[str, object]]:
    """The file's text and what to say of it; notes go to standard error unless `as_json`.

    Raises:
        UsageError: the format has no such collective.
    """
    known = ", ".join(item.value for item in NAMES)
    if collective is None:
        raise UsageError("a plan of MSCCL++ is for one collective", where="--collective", hint=f"choose of {known}")
    item = Collective(collective)
    if item not in NAMES:
        raise UsageError(f"no plan of MSCCL++ is written for {item.value}", where="--collective", hint=f"only {known}")
    machine = load_topology(topology)
    graph = plan_graph(machine, None if gpus is None else parse_gpus(machine, gpus), links)
    packed = plan(graph, item, None, store=SolutionCache())
    cut = cut_into_chunks(graph, packed, wish.chunks)
    name = f"collc_{item.value}_{machine.name}"
    text = write_plan(name, item, graph.nranks, cut, in_place=wish.in_place)
    made = read_plan(text)
    prove_plan(made, item)
    assert packed.rate is not None
    blocks = max(len(gpu["threadblocks"]) for gpu in made["gpus"])
    multiple = cut.chunks * ALIGNMENT * (graph.nranks if item.per_rank else 1)
    if not as_json:
        for line in _lines(cut, packed.rate, blocks, multiple, wish):
            report.note(line)
    return text, {
        "collective": item.value,
        "chunks": cut.chunks,
        "multiple_bytes": multiple,
        "thread_blocks": blocks,
        "rate_gbps": str(cut.rate),
        "optimum_gbps": str(packed.rate),
    }


def _lines(cut: Parts, optimum: Fraction, blocks: int, multiple: int, wish: ChunkWish) -> list[str]:
    size = short_size(multiple) if multiple % 1024 == 0 else f"{multiple} bytes"
    lines = [
        f"{blocks} thread blocks per GPU; for calls {'in place' if wish.in_place else 'out of place'} of "
        f"multiples of {size}",
        f"weights of the trees in {cut.chunks} chunks: {compact(cut.rate)} of {compact(optimum)} GB/s "
        f"({float(cut.rate / optimum):.1%})",
    ]
    if cut.rate < optimum:
        lines[-1] += f"; --chunks 1 to {MAX_CHUNKS} cuts otherwise"
    return lines


def write_text(text: str, output: Path | None, as_json: bool) -> None:
    """To the file, or to standard output, where JSON has it as `text`."""
    if output is not None:
        output.write_text(text, encoding="utf-8")
    elif not as_json:
        report.text(text, nl=False)
