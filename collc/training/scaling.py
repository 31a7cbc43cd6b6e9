"""Computes the time of a training step on more and more GPUs, for each library of all_reduces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from collc.errors import PackingError, TopologyError, UsageError
from collc.simulator.nccl.shape import servers_of
from collc.simulator.params import Machine
from collc.topology.graph import plan_graph
from collc.topology.model import PlanGraph, Topology
from collc.training.libraries import CallTime, nccl, planned, ring_by_hand, single_reducer
from collc.training.net import Net, Step, step

LIBRARIES = ("collc", "nccl", "ring by hand", "single reducer")


@dataclass(frozen=True)
class Trained:
    """A step on a number of GPUs with one library.

    Attributes:
        speedup: the ratio of samples per second to a single GPU. Linear scaling would be `gpus`.
    """

    gpus: int
    servers: int
    library: str
    step: Step
    speedup: float

    def to_json(self) -> dict[str, object]:
        """Returns the row as JSON values, with times in microseconds and shares from 0 to 1."""
        return {
            "gpus": self.gpus,
            "servers": self.servers,
            "library": self.library,
            "step_us": self.step.step_us,
            "compute_us": self.step.compute_us,
            "communication_us": self.step.communication_us,
            "communication_share": self.step.share,
            "overlap": self.step.overlap,
            "speedup": self.speedup,
            "efficiency": self.speedup / self.gpus,
        }


@dataclass(frozen=True)
class Asked:
    """The values of the options --links, --plan, --nccl-version and --fabric."""

    links: str | None
    plan: str | None
    nccl_version: str
    fabric: str | None


def counts(gpus: int) -> list[int]:
    """Returns 1, 2, 4, ... and `gpus`."""
    found = [1 << i for i in range(gpus.bit_length()) if 1 << i < gpus]
    return [*found, gpus]


def trained(
    topology: Topology,
    gpus: Sequence[str],
    net: Net,
    machine: Machine,
    asked: Asked,
    numbers: Sequence[int],
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[Trained]:
    """Yields a row for each number of GPUs and each library that supports them.

    Args:
        gpus: names of GPUs. A row uses the first ones.
        numbers: the numbers of GPUs.
        note: is called with the reason if a library is left out.

    Raises:
        UsageError: the model file has no times for these GPUs.
    """
    factor = net.factor(machine.name)
    if factor is None:
        known = ", ".join([net.gpu, *net.times_on])
        raise UsageError(
            f"{net.name} has no times for {machine.name}",
            where="--model-file",
            hint=f"it has those of {known}: choose with --model, or add times_on to the file",
        )
    alone = step(net, None, factor)
    for number in numbers:
        if number == 1:
            yield Trained(1, 1, "one GPU", alone, 1.0)
            continue
        try:
            graph = plan_graph(topology, gpus[:number], asked.links)
            slow = partial(plan_graph, topology, gpus[:number], "pcie")
        except TopologyError as error:
            note(f"{number} GPUs are left out: {error.what}")
            continue
        for library in LIBRARIES:
            try:
                found = step(net, _times(library, graph, machine, asked, slow), factor)
            except (PackingError, TopologyError, UsageError) as error:
                note(f"{library} on {number} GPUs is left out: {error.what}")
                continue
            speedup = number * alone.step_us / found.step_us if found.step_us else float(number)
            yield Trained(number, servers_of(graph), library, found, speedup)


def _times(
    library: str, graph: PlanGraph, machine: Machine, asked: Asked, over_pcie: Callable[[], PlanGraph]
) -> CallTime:
    if library == "collc":
        return planned(graph, machine, asked.plan)
    if library == "nccl":
        try:
            return nccl(graph, machine, asked.nccl_version, asked.fabric)
        except PackingError:
            if servers_of(graph) > 1 or asked.links is not None:
                raise
            # If no ring closes over NVLink, NCCL uses PCIe.
            return nccl(over_pcie(), machine, asked.nccl_version, asked.fabric)
    return ring_by_hand(graph, machine) if library == "ring by hand" else single_reducer(graph, machine)
