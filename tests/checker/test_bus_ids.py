"""Bus ids in the tables of a library: read back, and refused where they cannot be those of its GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from support.programs import final, random_schedule

from collc.checker.tables import decode
from collc.codegen.context import TableBuilder
from collc.collectives.model import Collective
from collc.errors import IRError
from collc.options import CUDA
from collc.packing.gpu_sets import pack_bus, written_set
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology

THREE = "format: collc-topology/1\nname: box\ngpus: 3\nlinks: [[gpu0, gpu1, nvlink, 25], [gpu1, gpu2, nvlink, 25]]\n"
FIRST, LAST = pack_bus("0000:06:00.0"), pack_bus("ffffffff:ff:1f.7")
KNOWN = 'devices: {gpu0: {pci: "0000:06:00.0"}, gpu2: {pci: "ffffffff:ff:1f.7"}}\n'


def image(text: str, buses: Sequence[int] | None = None) -> bytes:
    """The tables of a library for the file; `buses` take the place of its own bus ids."""
    topology = loads_topology(text)
    program = final(random_schedule(Collective.BROADCAST, 3, 1, 1), dataclasses.replace(CUDA, chunk_bytes=256))
    builder = TableBuilder()
    builder.add_allocation([program], slot_bytes=256)
    builder.add_gpu_sets(written_set(topology, [v.name for v in topology.gpus]), [plan_graph(topology)])
    if buses is not None:
        builder._numbers["gpu_buses"] = [[bus] for bus in buses]
    return builder.image()


def test_they_are_those_of_the_topology() -> None:
    assert decode(image(THREE + KNOWN)).buses == (FIRST, 0, LAST)
    assert decode(image(THREE)).buses == ()


@pytest.mark.parametrize(
    "buses",
    [(FIRST,), (FIRST, 0), (FIRST, 0, LAST, 0), (0, 0, 0), (FIRST, FIRST, 0), (FIRST, 0, 2), (FIRST | 1 << 24, 0, 0)],
)
def test_others_are_refused(buses: Sequence[int]) -> None:
    with pytest.raises(IRError, match="bus ids"):
        decode(image(THREE, buses))
