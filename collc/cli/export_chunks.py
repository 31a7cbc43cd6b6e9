"""`collc export --format mscclpp` and `msccl`: plans for executors that cut buffers into equal chunks."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from collc import outputs
from collc.build.plans import SolutionCache
from collc.cli import report
from collc.cli.report import compact
from collc.collectives.model import Collective
from collc.collectives.sizes import short_size
from collc.errors import UsageError
from collc.export.msccl import write_algorithm
from collc.export.msccl_run import prove_algorithm, read_algorithm
from collc.export.mscclpp import ALIGNMENT, NAMES, write_plan
from collc.export.mscclpp_run import prove_plan, read_plan
from collc.export.parts import MAX_CHUNKS, Parts, cut_into_chunks
from collc.packing import plan
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

_PEOPLE = {"mscclpp": "MSCCL++", "msccl": "MSCCL"}
FORMATS = tuple(_PEOPLE)


@dataclass(frozen=True)
class ChunkWish:
    """The options that belong to these formats alone."""

    chunks: int | None
    in_place: bool

    def given(self) -> list[str]:
        """Those that were given, as the user wrote them."""
        return ["--chunks"] * (self.chunks is not None) + ["--in-place"] * self.in_place


def export_chunks(
    topology: str, form: str, wish: ChunkWish, gpus: str | None, links: str | None, collective: str | None
) -> tuple[str, dict[str, object], list[str]]:
    """The file's text, what to say of it as JSON, and the same as lines.

    Raises:
        UsageError: the format has no such collective.
    """
    known = ", ".join(item.value for item in NAMES)
    if collective is None:
        raise UsageError(
            f"a file of {_PEOPLE[form]} is for one collective", where="--collective", hint=f"one of {known}"
        )
    item = Collective(collective)
    if item not in NAMES:
        what = f"no file of {_PEOPLE[form]} is written for {item.value}"
        raise UsageError(what, where="--collective", hint=f"only for {known}")
    machine = load_topology(topology)
    graph = plan_graph(machine, None if gpus is None else parse_gpus(machine, gpus), links)
    packed = plan(graph, item, None, store=SolutionCache())
    cut = cut_into_chunks(graph, packed, wish.chunks)
    name = f"collc_{item.value}_{machine.name}"
    multiple = cut.chunks * (graph.nranks if item.per_rank else 1)
    if form == "msccl":
        text = write_algorithm(name, item, graph.nranks, cut, in_place=wish.in_place)
        algorithm = read_algorithm(text)
        prove_algorithm(algorithm)
        blocks, size = max(map(len, algorithm.blocks)), f"{multiple} elements"
    else:
        text = write_plan(name, item, graph.nranks, cut, in_place=wish.in_place)
        made = read_plan(text)
        prove_plan(made, item)
        blocks, size = max(len(gpu["threadblocks"]) for gpu in made["gpus"]), _bytes(multiple * ALIGNMENT)
    assert packed.rate is not None
    facts: dict[str, object] = {
        "collective": item.value,
        "chunks": cut.chunks,
        "multiple": size,
        "thread_blocks": blocks,
        "rate_gbps": str(cut.rate),
        "optimum_gbps": str(packed.rate),
    }
    return text, facts, _lines(cut, packed.rate, blocks, size, wish)


def _bytes(count: int) -> str:
    return short_size(count) if count % 1024 == 0 else f"{count} bytes"


def _lines(cut: Parts, optimum: Fraction, blocks: int, size: str, wish: ChunkWish) -> list[str]:
    kind = "in place" if wish.in_place else "out of place"
    lost = f"; --chunks 1 to {MAX_CHUNKS} cuts otherwise" if cut.rate < optimum else ""
    return [
        f"{blocks} thread blocks per GPU; for calls {kind} of multiples of {size}",
        f"weights of the trees in {cut.chunks} chunks: {compact(cut.rate)} of {compact(optimum)} GB/s "
        f"({float(cut.rate / optimum):.1%}){lost}",
    ]


def write_text(text: str, output: Path | None, as_json: bool) -> None:
    """To the file, or to standard output, where JSON has it as `text`."""
    if output is not None:
        outputs.write_text(output, text)
    elif not as_json:
        report.text(text, nl=False)
