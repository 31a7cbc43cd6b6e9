"""`collc.load`: reads a topology from a file or by the name of a machine. Also makes the graph of a call."""

from __future__ import annotations

import os
from pathlib import Path

from collc.api.arguments import a_flag, a_path, answering, class_list, gpu_list, wrong
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph, Topology


@answering
def load(topology: str | os.PathLike[str]) -> Topology:
    """Reads a topology file, or a machine that comes with collc.

    Args:
        topology: a path to a file in the format of docs/topology.md, or, if no such file exists, a name of
            `collc topologies` such as ``"dgx1v"``.

    Returns:
        The machine: `vertices`, directed `links` with exact speeds (`gbps`, a Fraction in GB/s), `servers`.

    Raises:
        CollcError: there is no such file or machine, or the file is wrong. The text names the line.
    """
    return load_topology(a_path("topology", topology))


def a_machine(value: object) -> Topology:
    """Returns the topology itself, or the topology of a path or a name."""
    if isinstance(value, Topology):
        return value
    if not isinstance(value, str | os.PathLike):
        wrong("topology", value, "a Topology, a path or the name of a machine")
    return load_topology(Path(a_path("topology", value)))


def a_graph(topology: object, gpus: object, links: object, relay: object) -> tuple[Topology, PlanGraph]:
    """Returns the machine, and the graph of some of its GPUs."""
    machine = a_machine(topology)
    listed = gpu_list("gpus", gpus)
    chosen = None if listed is None else parse_gpus(machine, listed)
    return machine, plan_graph(machine, chosen, class_list("links", links), a_flag("relay", relay))
