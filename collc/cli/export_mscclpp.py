"""`collc export --format mscclpp`: writes a plan's trees for MSCCL++'s executor, which cuts buffers in equal chunks."""

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
from collc.export.mscclpp import ALIGNMENT, NAMES, write_plan
from collc.export.mscclpp_run import prove_plan, read_plan
from collc.export.parts import MAX_CHUNKS, Parts, cut_into_chunks
from collc.packing import plan
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology


@dataclass(frozen=True)
class ChunkOptions:
    """The options that only MSCCL++'s format has."""

    chunks: int | None
    in_place: bool

    def given(self) -> list[str]:
        """Returns the names of the options that the user gave."""
        return ["--chunks"] * (self.chunks is not None) + ["--in-place"] * self.in_place


@dataclass(frozen=True)
class MscclppExport:
    """An execution plan of MSCCL++ and its costs.

    Attributes:
        multiple: the plan serves calls of multiples of this number of bytes.
        optimum: the proved rate of the trees in GB/s, before their weights are rounded to chunks.
    """

    text: str
    collective: Collective
    parts: Parts
    options: ChunkOptions
    thread_blocks: int
    multiple: int
    optimum: Fraction

    def to_json(self) -> dict[str, object]:
        """Returns the part of `--json` about the plan, without the format, the file and the text."""
        return {
            "collective": self.collective.value,
            "chunks": self.parts.chunks,
            "multiple": _size(self.multiple),
            "thread_blocks": self.thread_blocks,
            "rate_gbps": str(self.parts.rate),
            "optimum_gbps": str(self.optimum),
        }

    def lines(self) -> list[str]:
        """Returns the summary for people."""
        placement = "in place" if self.options.in_place else "out of place"
        rate = self.parts.rate
        advice = f"; --chunks 1 to {MAX_CHUNKS} sets another number" if rate < self.optimum else ""
        return [
            f"{self.thread_blocks} thread blocks per GPU; for calls {placement} of multiples of {_size(self.multiple)}",
            f"weights of the trees in {self.parts.chunks} chunks: {compact(rate)} of "
            f"{compact(self.optimum)} GB/s ({float(rate / self.optimum):.1%}){advice}",
        ]


def export_mscclpp(
    topology: str, options: ChunkOptions, gpus: str | None, links: str | None, collective: str | None
) -> MscclppExport:
    """Returns the execution plan of one collective, read back and run by the rules of MSCCL++'s loader and kernel.

    Raises:
        UsageError: MSCCL++'s format has no such collective.
    """
    known = ", ".join(item.value for item in NAMES)
    if collective is None:
        hint = f"one of {known}"
        raise UsageError("a file of MSCCL++ is for one collective", where="--collective", hint=hint)
    item = Collective(collective)
    if item not in NAMES:
        what = f"no file of MSCCL++ is written for {item.value}"
        raise UsageError(what, where="--collective", hint=f"only for {known}")
    machine = load_topology(topology)
    graph = plan_graph(machine, None if gpus is None else parse_gpus(machine, gpus), links)
    packed = plan(graph, item, None, store=SolutionCache())
    parts = cut_into_chunks(graph, packed, options.chunks)
    assert packed.rate is not None
    name = f"collc_{item.value}_{machine.name}"
    text = write_plan(name, item, graph.nranks, parts, in_place=options.in_place)
    written = read_plan(text)
    prove_plan(written, item)
    blocks = max(len(gpu["threadblocks"]) for gpu in written["gpus"])
    multiple = ALIGNMENT * parts.chunks * (graph.nranks if item.per_rank else 1)
    return MscclppExport(text, item, parts, options, blocks, multiple, packed.rate)


def _size(count: int) -> str:
    return short_size(count) if count % 1024 == 0 else f"{count} bytes"


def write_text(text: str, output: Path | None, as_json: bool) -> None:
    """Writes to the file, or to standard output unless the JSON there contains the text."""
    if output is not None:
        outputs.write_text(output, text)
    elif not as_json:
        report.text(text, nl=False)
