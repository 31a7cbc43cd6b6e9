"""No figure claims what nobody measured."""

from __future__ import annotations

from typing import Any

import pytest

from collc.collectives.model import Collective
from collc.simulator.claims import CLASSES, Claims, compared
from collc.simulator.generations import MACHINES
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.zoo import names

TWO = """
format: collc-topology/1
name: two
template: hgx-h100
servers: {servers}
switches: [net0]
speeds: {{net: 50}}
links:
  - [each.nic0, net0, net]
  - [each.nic1, net0, net]
  - [each.nic2, net0, net]
  - [each.nic3, net0, net]
  - [each.nic4, net0, net]
  - [each.nic5, net0, net]
  - [each.nic6, net0, net]
  - [each.nic7, net0, net]
"""
K, M = 1 << 10, 1 << 20


def claims(
    name: str,
    collective: Collective = Collective.ALL_REDUCE,
    generation: str = "v100",
    fabric: str = "infiniband",
    **more: Any,
) -> Claims:
    return Claims(plan_graph(load_topology(name)), collective, generation, fabric, **more)


def test_a_compared_machine_has_an_error_and_a_range() -> None:
    found = claims("dgx1v").claim(16 * M)
    assert found.compared
    assert not found.fitted
    assert "v100-2019-all_reduce" in found.tables
    assert found.median_error is not None
    assert 0 < found.median_error < 0.5
    bounds = found.range_us(100.0)
    assert bounds is not None
    low, high = bounds
    assert low <= 100.0 <= high
    assert low < high


def test_where_only_fitted_tables_are_it_is_said() -> None:
    found = claims("dgx1v", Collective.ALL_GATHER).claim(16 * M)
    assert found.fitted
    assert found.text.startswith("fitted to 13 sizes of v100-all_gather")


def test_collcs_own_plans_were_never_measured() -> None:
    found = claims("dgx1v").claim(16 * M, ours=True)
    assert found.text.startswith("never measured; NCCL in the same model: compared at")
    assert found.range_us(100.0) is None
    value = found.to_json(100.0)
    assert value["compared"] is False
    assert value["range_us"] is None


@pytest.mark.parametrize(
    ("name", "collective", "generation", "lacks"),
    [
        ("mi300x", Collective.ALL_REDUCE, "generic", "machine"),
        ("dgx1v", Collective.ALL_REDUCE, "h100", None),
        ("hgx-b200", Collective.ALL_REDUCE, "b200", "generation"),
        ("dgx1v", Collective.REDUCE, "v100", "collective"),
    ],
)
def test_what_nobody_compared_is_called_so(
    name: str, collective: Collective, generation: str, lacks: str | None
) -> None:
    found = claims(name, collective, generation).claim(16 * M)
    assert not found.compared
    assert found.range_us(1.0) is None
    assert found.text.startswith("never compared with a measurement")
    if lacks:
        assert not found.known[lacks]


def test_sizes_count_by_class() -> None:
    """8 H100 were measured from 128 MiB on."""
    found = claims("hgx-h100", generation="h100")
    assert found.claim(256 * M).compared
    assert not found.claim(64 * K).compared


@pytest.mark.parametrize(
    ("servers", "fabric", "good"), [(2, "infiniband", True), (2, "efa", False), (3, "infiniband", False)]
)
def test_servers_and_network_count(servers: int, fabric: str, good: bool) -> None:
    graph = plan_graph(loads_topology(TWO.format(servers=servers)))
    found = Claims(graph, Collective.ALL_REDUCE, "h100", fabric).claim(256 * M)
    assert found.compared == good


def test_other_parameters_were_never_compared() -> None:
    found = claims("dgx1v", changed=True).claim(16 * M)
    assert not found.compared
    assert not found.known["parameters"]


def test_every_machine_that_comes_with_collc_has_a_claim_of_one_line() -> None:
    for name in names():
        graph = plan_graph(load_topology(name))
        for which in (64 * K, 64 * M):
            for ours in (False, True):
                found = Claims(graph, Collective.BROADCAST, "generic", None).claim(which, ours=ours)
                assert found.size_class in CLASSES
                assert "\n" not in found.text


def test_tables_are_of_known_generations() -> None:
    assert {entry.generation for entry in compared()} <= set(MACHINES)
