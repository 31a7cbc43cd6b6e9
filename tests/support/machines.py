"""Machines for tests: summaries of topologies (what joins the GPUs, who shares a CPU), parameters of the model."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

from collc.simulator.params import GENERIC
from collc.topology.load import loads_topology
from collc.topology.model import Topology, VertexKind
from collc.topology.probe.dumps import topology_from_dumps

FAST = ("nvlink", "nvswitch", "xgmi")
# Blocks that move whatever links carry.
WIDE = GENERIC.replace(protocols=tuple(dataclasses.replace(p, block_gbps=None) for p in GENERIC.protocols))


def read(*paths: Path, gpu_model: str | None = None) -> Topology:
    """The topology in some dumps."""
    texts = [(path.name, path.read_bytes().decode("utf-8", "replace")) for path in paths]
    return topology_from_dumps(texts, gpu_model=gpu_model)


def fast_links(topology: Topology) -> str:
    """Such as ``nvlink 25x8 50x8``: 8 pairs joined by 25 GB/s in each direction and 8 by 50."""
    counts = Counter((k.kind.value, k.gbps) for k in topology.links if k.kind.value in FAST)
    assert all(n % 2 == 0 for n in counts.values()), "links of a dump go both ways"
    kinds = sorted({kind for kind, _ in counts})
    return " ".join(
        f"{kind} " + " ".join(f"{float(g):g}x{n // 2}" for (k, g), n in sorted(counts.items()) if k == kind)
        for kind in kinds
    )


def sockets(topology: Topology) -> str:
    """GPUs by the CPU above them, such as ``0,1|2,3``; a GPU without one stands alone."""
    kinds = {v.name: v.kind for v in topology.vertices}
    near: dict[str, list[str]] = {}
    for link in topology.links:
        if link.kind.value in ("pcie", "c2c"):
            near.setdefault(link.src, []).append(link.dst)
    cpus = [v.name for v in topology.vertices if v.kind is VertexKind.CPU]
    owner = {cpu: cpu for cpu in cpus}
    todo = list(cpus)
    while todo:
        at = todo.pop(0)
        for other in near.get(at, []):
            if other not in owner:
                owner[other] = owner[at]
                if kinds[other] is VertexKind.SWITCH:
                    todo.append(other)
    groups: dict[str, list[str]] = {}
    for gpu in topology.gpus:
        groups.setdefault(owner.get(gpu.name, gpu.name), []).append(gpu.name.removeprefix("gpu"))
    return "|".join(",".join(names) for names in groups.values())


def nics(topology: Topology) -> list[str]:
    return [v.name for v in topology.vertices if v.kind is VertexKind.NIC]


def pairs(topology: Topology) -> dict[tuple[str, str], str]:
    """Directed pairs of GPUs that links join directly -> GB/s."""
    gpus = {v.name for v in topology.gpus}
    return {(k.src, k.dst): f"{float(k.gbps):g}" for k in topology.links if {k.src, k.dst} <= gpus}


TWO_SERVERS = """format: collc-topology/1
name: pair
servers: 2
template:
  gpus: 3
  nics: [nic]
  links:
    - [gpu0, gpu1, nvlink, 50]
    - [gpu0, gpu2, nvlink, 50]
    - [gpu1, gpu2, nvlink, 50]
    - [gpu0, nic, pcie, 25]
    - [gpu1, nic, pcie, 25]
    - [gpu2, nic, pcie, 25]
switches: [net]
links: [[each.nic, net, net, 25]]
"""


def two_servers() -> Topology:
    """Two servers of three GPUs, all joined by NVLink inside; one network card each."""
    return loads_topology(TWO_SERVERS)
