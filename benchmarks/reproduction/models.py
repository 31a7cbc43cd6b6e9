"""Shared by several sources: rates of plans and of NCCL's calls in the model, and the model's errors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import cache

from collc import pipeline
from collc.checker.programs import verify
from collc.choose.search import fastest
from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.ir.nodes import Program
from collc.options import CUDA
from collc.packing import plan
from collc.packing.candidates.plans import candidate
from collc.packing.sets.allocations import connected_allocations
from collc.resources import resource_dir
from collc.simulator.claims import Claims
from collc.simulator.generations import MACHINES
from collc.simulator.nccl import Nccl
from collc.simulator.params import Machine
from collc.simulator.run import Simulator, Variant, own_channels, variants
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import PlanGraph

K, M, G = 1 << 10, 1 << 20, 1 << 30
GENERATION = {"dgx1v": "v100", "dgx1p": "p100", "dgx2": "v100", "hgx-h800": "h800", "hgx-h100": "h100"}
Gpus = tuple[str, ...]


def mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    align = "|---|" + "--:|" * (len(header) - 1)
    return "\n".join(["| " + " | ".join(header) + " |", align, *("| " + " | ".join(row) + " |" for row in rows)])


@cache
def graph_of(machine: str, gpus: Gpus | None = None, links: str | None = None) -> PlanGraph:
    return plan_graph(load_topology(machine), gpus, links)


@cache
def every_set(machine: str) -> tuple[Gpus, ...]:
    """Every connected set of 3 GPUs or more, up to isomorphism."""
    return tuple(found.gpus for found in connected_allocations(load_topology(machine)))


@cache
def simulator(
    machine: str, gpus: Gpus | None, collective: Collective, links: str | None = None, generation: str | None = None
) -> Simulator:
    parameters = MACHINES[generation or GENERATION[machine]]
    return Simulator(graph_of(machine, gpus, links), collective, 0 if collective.rooted else None, parameters)


@cache
def ours(machine: str, gpus: Gpus | None, collective: Collective, size: int, generation: str | None = None) -> float:
    """GB/s of collc's fastest variant."""
    model = simulator(machine, gpus, collective, None, generation)
    return fastest(model, variants(model), size).algbw_gbps


@cache
def nccl(machine: str, gpus: Gpus | None, collective: Collective, size: int) -> tuple[float, bool]:
    """GB/s of NCCL 2.4's call, and whether it goes over NVLink: without a ring there it takes PCIe."""
    try:
        return Nccl(simulator(machine, gpus, collective), "2.4").predict(size).algbw_gbps, True
    except PackingError:
        return Nccl(simulator(machine, gpus, collective, "pcie"), "2.4").predict(size).algbw_gbps, False


def trusted(machine: str, collective: Collective, size: int, gpus: Gpus | None = None) -> str:
    """The generation and its error class: how far NCCL's calls in this model were from measurements."""
    generation = GENERATION[machine]
    claim = Claims(graph_of(machine, gpus), collective, generation, "infiniband", False).claim(size)
    if claim.compared and claim.median_error is not None:
        return f"{generation}, NCCL {claim.median_error:.0%} off at {len(claim.ratios)} sizes"
    return f"{generation}, never compared with a measurement of such a call"


# The functions that a program of collectives calls, without NCCL's prefix.
NEEDED = {"GetUniqueId", "CommInitRank", "CommDestroy", "GroupStart", "GroupEnd", "Send", "Recv", "AllReduce"}
NEEDED |= {"AllGather", "ReduceScatter", "Broadcast", "Reduce"}


def api_functions() -> set[str]:
    """The functions of NCCL's API that a library has."""
    sources = (path.read_text(encoding="utf-8") for path in sorted(resource_dir("templates").rglob("*.cpp")))
    defined = re.compile(r"^[\w *]+ \*?pnccl([A-Z]\w*)\(", re.M)
    return {name for text in sources for name in defined.findall(text)}


def text_graph(lines: str, gpu_model: str = "V100") -> PlanGraph:
    """The graph of a topology that is written here."""
    return plan_graph(loads_topology(f"format: collc-topology/1\nname: drawn\ngpu_model: {gpu_model}\n{lines}"))


def tree_rate(
    graph: PlanGraph, collective: Collective, size: int, machine: Machine, *, root: int = 0, channels: int | None = None
) -> float:
    """GB/s of the packed trees over a graph, Simple, the best chunk, one block per tree and link unless said."""
    model = Simulator(graph, collective, root if collective.rooted else None, machine)
    count = channels or own_channels(model.plan("trees"))
    return max(
        model.predict(Variant("trees", "Simple", chunk, count), size).algbw_gbps for chunk in (64 * K, 256 * K, 512 * K)
    )


def chain(n: int) -> PlanGraph:
    """A chain of GPUs, a second generation NVLink between neighbors."""
    links = "".join(f"  - [gpu{i}, gpu{i + 1}, nvlink]\n" for i in range(n - 1))
    return text_graph(f"gpus: {n}\nspeeds: {{nvlink: 25}}\nlinks:\n{links}")


def program(graph: PlanGraph, collective: Collective, kind: str = "trees") -> Program:
    """The lowered and verified program of a plan for GPUs."""
    root = 0 if collective.rooted else None
    made = plan(graph, collective, root) if kind == "trees" else candidate(graph, collective, root, kind)
    lowered = pipeline.lower_spread(made, own_channels(made), graph, CUDA)[1]
    verify(lowered)
    return lowered
