"""Machines and names that the tests of `collc show` draw."""

from __future__ import annotations

from dataclasses import replace

from collc.show.drawing import Drawing, of_topology
from collc.topology.load import load_topology

# Ends of elements, handlers, comments, a line separator of scripts.
HOSTILE = "</script><img src=x onerror=alert(1)>\u2028<!--\"'&"

# Two servers with 3 and 5 GPUs.
THREE_AND_FIVE = """\
format: collc-topology/1
name: three-and-five
speeds: {nvlink: 50, net: 25, pcie: 25}
gpus: [a0, a1, a2, b0, b1, b2, b3, b4]
nics: [na0, na1, nb0, nb1]
switches: [rail0, rail1]
servers:
  left: [a0, a1, a2, na0, na1]
  right: [b0, b1, b2, b3, b4, nb0, nb1]
links:
  - [a0, a1, nvlink]
  - [a1, a2, nvlink]
  - [a0, a2, nvlink]
  - [b0, b1, nvlink]
  - [b1, b2, nvlink]
  - [b2, b3, nvlink]
  - [b3, b4, nvlink]
  - [b4, b0, nvlink]
  - [a0, na0, pcie]
  - [a2, na1, pcie]
  - [b0, nb0, pcie]
  - [b3, nb1, pcie]
  - [na0, rail0, net]
  - [nb0, rail0, net]
  - [na1, rail1, net]
  - [nb1, rail1, net]
"""


def cluster(servers: int) -> str:
    """`count` servers of 8 H100, NIC j of each on rail j."""
    rails = "\n".join(f"  - [each.nic{j}, rail{j}, net]" for j in range(8))
    return (
        f"format: collc-topology/1\nname: cluster-{servers}\ntemplate: hgx-h100\nservers: {servers}\n"
        f"switches: [{', '.join(f'rail{j}' for j in range(8))}]\nspeeds: {{net: 50}}\nlinks:\n{rails}\n"
    )


def hostile_drawing() -> Drawing:
    """A machine whose names would all be markup."""
    drawing = of_topology(load_topology("dgx1v"))
    vertices = tuple(replace(v, name=f"{HOSTILE}{i}") for i, v in enumerate(drawing.vertices))
    servers = {HOSTILE: next(iter(drawing.servers.values()))}
    return replace(drawing, name=HOSTILE, vertices=vertices, servers=servers)
