"""`simulate`, `show` and training steps report the programs that the default library runs."""

from __future__ import annotations

import pytest

from collc.api.forecasts import Wish, predict
from collc.choose.calls import default_calls
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.choose.servers import wants_kinds
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import bytes_per_call, size_series
from collc.options import CUDA
from collc.simulator.generations import machine_for
from collc.simulator.run import Simulator, Variant, own_channels
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import Topology
from collc.topology.zoo import names
from collc.training.libraries import planned

SIZES = size_series(1 << 10, 1 << 30, 4)
QUICK = ("a100x4-nv4",)
TWO_SERVERS = """\
format: collc-topology/1
name: two
servers: 2
template:
  gpus: 2
  nics: [nic0]
  links:
    - [gpu0, gpu1, nvlink, 100]
    - [gpu0, nic0, pcie, 25]
    - [gpu1, nic0, pcie, 25]
switches: [net0]
links:
  - [each.nic0, net0, net, 25]
"""


def of_one_server(name: str) -> bool:
    return not wants_kinds(load_topology(name), None, None)


def require_equal(topology: Topology, gpus: str | None, collectives: tuple[Collective, ...]) -> None:
    """Rows of `simulate` and the entries of the library of all collectives, at every size."""
    contents = library_contents(LibraryRequest(topology, gpus=gpus), CUDA)
    (document,), (entries,) = contents.documents, contents.entries
    graph = document.graph
    assert graph == plan_graph(topology)
    parameters = machine_for(None, graph.gpu_model)[0]
    for collective in collectives:
        simulator = Simulator(graph, collective, 0 if collective.rooted else None, parameters)
        rows, _ = predict(simulator, Wish(), SIZES)
        for size, row in zip(SIZES, rows, strict=True):
            count = bytes_per_call(collective, size, graph.nranks)
            entry = [
                e
                for e in entries
                if document.plans[e.plan].collective is collective
                and document.plans[e.plan].root in (None, 0)
                and (e.when.min_bytes or 0) <= count
            ][-1]
            kind = entry.kind(document.plans[entry.plan])
            channels = entry.spread or own_channels(simulator.plan(kind))
            held = Variant(kind, entry.when.protocol, entry.program.chunk_bytes, channels)
            assert row.variant == held, (collective.value, size)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names() if of_one_server(n)]
)
def test_rows_of_simulate_are_those_of_the_library(name: str) -> None:
    quick = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)
    require_equal(load_topology(name), None, quick if name in QUICK else COMPILED)


def test_rows_over_servers_are_those_of_the_library() -> None:
    """Proxy threads of 4 GB/s move data between servers, and `simulate` counts them: the links carry 25 GB/s."""
    topology = loads_topology(TWO_SERVERS)
    gpus = ",".join(gpu.name for gpu in topology.gpus)
    require_equal(topology, gpus, (Collective.ALL_REDUCE,))
    graph = plan_graph(topology)
    simulator = Simulator(graph, Collective.ALL_REDUCE)
    (row,), _ = predict(simulator, Wish(), [64 << 20])
    assert row.algbw_gbps < 4
    assert planned(graph, simulator.parameters)(64 << 20) == row.time_us
    assert default_calls(simulator).variant(64 << 20) == row.variant
