"""Pairs of GPUs that host memory joins (transport `host`): plans, their documents and the simulator know them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.cli import collc
from support.libraries import BRIDGED

from collc.checker.staging import host_limit
from collc.collectives.model import Collective
from collc.errors import CertificateError
from collc.packing import plan
from collc.packing.document import from_json, plan_file, to_json, verify_document
from collc.topology import zoo
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.staging import staged_pairs


@pytest.fixture
def bridged(tmp_path: Path) -> Path:
    file = tmp_path / "bridged.yaml"
    file.write_text(BRIDGED)
    return file


@pytest.mark.parametrize("name", zoo.names())
def test_only_a_cpu_that_stages_makes_such_pairs(name: str) -> None:
    """Among the machines that come with collc, only pcie-8x4090 has GPUs that exchange through host memory."""
    machine = load_topology(name)
    if len(machine.gpus) > 64:
        pytest.skip("a cluster of machines that are in the list themselves")
    graph = plan_graph(machine)
    every = tuple((a, b) for a in range(graph.nranks) for b in range(a + 1, graph.nranks))
    assert staged_pairs(graph) == (every if name == "pcie-8x4090" else ())


def test_pairs_with_another_way_are_none(bridged: Path) -> None:
    assert staged_pairs(plan_graph(load_topology(str(bridged)))) == ((0, 2), (1, 2))


@pytest.mark.parametrize(
    ("memory", "limit"),
    [("20", Fraction(10)), ("23.9", Fraction(239, 20)), ("24", None), ("100", None)],
)
def test_every_byte_is_written_and_read(memory: str, limit: Fraction | None, bridged: Path) -> None:
    """Broadcast from rank 0: 12 GB/s cross the CPU once, only to GPU 2."""
    bridged.write_text(BRIDGED.replace("20}", f"{memory}}}"))
    graph = plan_graph(load_topology(str(bridged)))
    found = host_limit(graph, plan(graph, Collective.BROADCAST))
    assert (found and found[0]) == limit


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast"])
def test_the_simulator_reaches_what_host_memory_lets_the_plan_have(collective: str) -> None:
    graph = plan_graph(load_topology("pcie-8x4090"))
    limit = host_limit(graph, plan(graph, Collective(collective)))
    assert limit is not None
    size = ("-b", "256M", "-e", "256M", "--plan", "trees")
    row = json.loads(collc("simulate", "pcie-8x4090", "--collective", collective, *size, "--json").out)["rows"][0]
    assert 0.9 * float(limit[0]) < row["algbw_gbps"] <= 1.001 * float(limit[0])


def document(path: Path | str) -> dict[str, Any]:
    graph = plan_graph(load_topology(str(path)))
    made = to_json(plan_file(graph, tuple(plan(graph, c) for c in (Collective.ALL_REDUCE, Collective.ALLTOALL))))
    return dict(json.loads(json.dumps(made)))


def test_what_a_document_says_of_host_memory_is_recomputed(bridged: Path) -> None:
    made = document(bridged)
    assert made["host_pairs"] == [[0, 2], [1, 2]]
    assert made["switches"][0]["memory_gbps"] == "20"
    assert all("host_rate_gbps" in one for one in made["plans"])
    verify_document(from_json(made))
    lies: dict[str, Callable[[dict[str, Any]], object]] = {
        "host_pairs": lambda d: d["host_pairs"].pop(),
        "plans[0].host_rate_gbps": lambda d: d["plans"][0].update(host_rate_gbps="11"),
        "plans[1].host_rate_gbps": lambda d: (
            d["switches"][0].update(memory_gbps="21") or d["plans"][0].pop("host_rate_gbps")
        ),
        "switches[0].memory_gbps": lambda d: d["switches"][0].update(memory_gbps="0"),
    }
    for where, lie in lies.items():
        told = copy.deepcopy(made)
        lie(told)
        with pytest.raises(CertificateError) as caught:
            verify_document(from_json(told))
        assert where in str(caught.value)


def test_a_rate_through_memory_that_stages_nothing_is_a_lie() -> None:
    made = document("dgx1v")
    assert "host_pairs" not in made
    verify_document(from_json(made))
    made["plans"][0]["host_rate_gbps"] = "1"
    with pytest.raises(CertificateError, match="do not limit it"):
        verify_document(from_json(made))


def test_the_limit_of_host_memory_comes_before_that_of_the_links() -> None:
    planned = " ".join(collc("plan", "pcie-8x4090", "--gpus", "0-3").out.split())
    first = planned[planned.index("all_reduce:") :]
    assert first.startswith("all_reduce: 1.75 GB/s through the memory of cpu0, which")
    assert "The links alone would carry 16.667 GB/s, the best possible. The limit of the links: 100 GB/s" in first
    row = re.search(r"all_reduce +(\S+ = \S+) +(\S+ = \S+) ", first)
    assert row is not None
    assert row.groups() == ("7/4 = 1.75", "50/3 = 16.667")
    # Without memory that stages data there is no such column.
    assert "memory" not in collc("plan", "dgx1v").out


def test_the_commands_say_which_pairs_pass_through_host_memory(bridged: Path) -> None:
    words = "Between ranks 0-2, 1-2: pinned host memory, transport host (reads and writes together: cpu0 20 GB/s)."
    planned = collc("plan", bridged, "--collective", "broadcast").out
    assert words in planned
    assert "broadcast from rank 0: 10 GB/s through the memory of cpu0" in " ".join(planned.split())
    sizes = ("-b", "1M", "-e", "1M")
    assert words in collc("simulate", bridged, *sizes).out
    assert json.loads(collc("simulate", bridged, *sizes, "--json").out)["host_pairs"] == [[0, 2], [1, 2]]
    for command in (("plan",), ("simulate", *sizes)):
        assert "host" not in collc(command[0], "dgx1v", "--collective", "broadcast", *command[1:]).out
