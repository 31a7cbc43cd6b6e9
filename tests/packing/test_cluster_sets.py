"""Sets of GPUs over several servers: each once up to the cluster's symmetries, ranked for a scheduler."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from support.cli import collc, refused

from collc.errors import TopologyError
from collc.packing import Collective, plan
from collc.packing.sets.allocations import allocations
from collc.packing.sets.cluster_sets import cluster_sets, only_gpus
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.make import make
from collc.topology.model import Topology

# Four servers of three GPUs on rails.
RAILS = make("rails", {"servers": 4, "gpus": 3, "rails": 3})
# Each pair of servers has a leaf switch: the servers of a pair are interchangeable, and so are the pairs.
LEAVES = """format: collc-topology/1
name: leaves
template: {gpus: 2, links: [[gpu0, gpu1, nvlink, 25]]}
servers: 5
switches: [leaf0, leaf1, spine]
speeds: {net: 10}
links:
  - [server0.gpu0, leaf0, net]
  - [server1.gpu0, leaf0, net]
  - [server2.gpu0, leaf1, net]
  - [server3.gpu0, leaf1, net]
  - [server4.gpu0, leaf1, net]
  - [leaf0, spine, net]
  - [leaf1, spine, net]
"""
# No switch: servers are cabled in a ring.
RING = """format: collc-topology/1
name: ring
template: {gpus: 2, links: [[gpu0, gpu1, nvlink, 25]]}
servers: 4
speeds: {net: 5}
links:
  - [server0.gpu0, server1.gpu1, net]
  - [server1.gpu0, server2.gpu1, net]
  - [server2.gpu0, server3.gpu1, net]
  - [server3.gpu0, server0.gpu1, net]
"""


def cut(topology: Topology, gpu: str, rail: str) -> Topology:
    return replace(topology, links=tuple(k for k in topology.links if {k.src, k.dst} != {gpu, rail}))


def odd() -> Topology:
    """Two servers are not as the others: one has lost a rail, another one a GPU."""
    whole = cut(loads_topology(RAILS), "server1.gpu0", "rail0")
    return only_gpus(whole, [v.name for v in whole.gpus if v.name != "server3.gpu2"])


CLUSTERS = {
    "rails": loads_topology(RAILS),
    "odd": odd(),
    "leaves": loads_topology(LEAVES),
    "ring": loads_topology(RING),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_set_of_gpus_has_the_graph_of_exactly_one_that_is_listed(name: str) -> None:
    """All subsets, one by one: none has a graph that the list lacks, and the list has none twice."""
    topology = CLUSTERS[name]
    names = [v.name for v in topology.gpus]
    for size in (1, 2, 3, 4):
        listed = allocations(topology, f"{size}..{size}")
        prints = [a.fingerprint for a in listed]
        assert len(set(prints)) == len(prints)
        every = set()
        for gpus in itertools.combinations(names, size):
            try:
                every.add(fingerprint(plan_graph(topology, gpus)))
            except TopologyError:
                continue
        assert set(prints) == every
        for one in listed:
            assert fingerprint(plan_graph(topology, one.gpus)) == one.fingerprint


def test_orbits_of_sets_on_rails_are_connected_bipartite_graphs() -> None:
    """k GPUs are k edges between servers and rails. Both permute. Disconnected sets have no plan.

    By hand: 2 edges share either side; 3 are a star at either side or a path; 4 are 2 stars, 2 paths, 2 forks, a cycle.
    """
    topology = loads_topology(make("rails", {"servers": 64}))
    found = cluster_sets(topology, {1, 2, 3, 4, 5}, None)
    sizes = [len(gpus) for gpus, _ in found]
    assert [sizes.count(k) for k in range(1, 6)] == [1, 2, 3, 7, 12]


def test_a_cluster_with_one_odd_server_is_looked_at_whole() -> None:
    whole = loads_topology(make("rails", {"servers": 20, "gpus": 4}))
    topology = cut(whole, "server17.gpu3", "rail3")
    best = max(
        (plan(a.graph, Collective.ALL_REDUCE).rate or Fraction(0) for a in allocations(topology, "3..3")),
    )
    assert best == plan(plan_graph(whole, ["server0.gpu0", "server0.gpu1", "server0.gpu2"]), Collective.ALL_REDUCE).rate
    # One GPU of the odd server reaches no rail.
    graphs = {a.fingerprint for a in allocations(topology, "4..4")}
    gpus = ["server0.gpu0", "server0.gpu3", "server17.gpu0", "server17.gpu3"]
    assert fingerprint(plan_graph(topology, gpus)) in graphs


def file(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text)
    return path


def test_the_command_ranks_sets(tmp_path: Path) -> None:
    path = file(tmp_path, RAILS)
    shown = collc("plan", path, "--allocations", "2..3", "--collective", "all_reduce")
    assert shown.code == 0, shown.err
    assert "best first by all_reduce" in shown.out
    found = json.loads(collc("plan", path, "--allocations", "2..3", "--collective", "all_reduce", "--json").out)
    assert found["ranked_by"] == "all_reduce"
    for size in (2, 3):
        rows = [row for row in found["allocations"] if len(row["gpus"]) == size]
        assert [row["place"] for row in rows] == list(range(1, len(rows) + 1))
        rates = [Fraction(row["rate_gbps"]) for row in rows]
        assert rates == sorted(rates, reverse=True)
        assert rows[0]["servers"] == {"server0": size}
        for row in rows:
            assert sum(row["servers"].values()) == size
            assert row["plan"]["plans"][0]["rate_gbps"] == row["rate_gbps"]
    # Each row can be given to --gpus.
    row = next(line.split()[0] for line in shown.out.splitlines() if line.startswith("server0:0-1,"))
    assert collc("plan", path, "--gpus", row, "--collective", "all_reduce").code == 0


def test_free_gpus_alone_are_ranked_and_keep_their_numbers(tmp_path: Path) -> None:
    path = file(tmp_path, RAILS)
    free = "server1:1-2,server2:2,server3:0"
    found = json.loads(
        collc("plan", path, "--allocations", "3..3", "--free", free, "--collective", "all_reduce", "--json").out
    )
    chosen = {gpu for row in found["allocations"] for gpu in row["gpus"]}
    assert chosen <= {"server1.gpu1", "server1.gpu2", "server2.gpu2", "server3.gpu0"}
    assert found["allocations"][0]["gpus"] == ["server1.gpu1", "server1.gpu2", "server2.gpu2"]
    shown = collc("plan", path, "--allocations", "3..3", "--free", free, "--collective", "all_reduce").out
    assert "server1:1-2,server2:2 " in shown


def test_what_is_too_large_or_makes_no_sense_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file(tmp_path, RAILS)
    monkeypatch.setattr("collc.packing.sets.cluster_sets.MAX_TRIED", 50)
    line = refused(collc("plan", path, "--allocations", "6..6"), code=2)
    assert "more than 50 sets" in line
    assert "--free" in line
    assert "sizes run from 1 to that" in refused(collc("plan", path, "--allocations", "13..13"), code=2)
    assert "use it with --allocations" in refused(collc("plan", path, "--free", "server0:0"), code=2)
    assert refused(collc("plan", path, "--allocations", "2..2", "--free", "server9:0"), code=2)
    line = refused(collc("plan", path, "--allocations", "5..5", "--free", "server0:0-1"), code=2)
    assert "has 2 GPUs" in line


def test_connected_is_about_the_gpus_of_one_server_of_each_class() -> None:
    topology = loads_topology(make("rails", {"servers": 64}))
    assert [len(a.gpus) for a in allocations(topology, "connected")] == [3, 4, 5, 6, 7, 8]
