"""The baseline: NCCL's rule by version, its closed forms, what it has where."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from collc.collectives.model import Collective
from collc.errors import PackingError, UsageError
from collc.simulator.generations import MACHINES
from collc.simulator.nccl import Nccl
from collc.simulator.nccl.closed import Closed
from collc.simulator.nccl.fabrics import FABRICS
from collc.simulator.nccl.shape import servers_of, shape_of
from collc.simulator.nccl.versions import ERAS, TREE_FACTOR, era_of
from collc.simulator.run import Simulator, Variant
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import PlanGraph, Topology

K, M, G = 1 << 10, 1 << 20, 1 << 30


def cluster(servers: int, per: int = 8, nic: str = "nic", gbps: float = 50) -> PlanGraph:
    lines = [
        "format: collc-topology/1",
        "name: cluster",
        f"servers: {servers}",
        "template:",
        "  gpu_model: H100",
        f"  gpus: {per}",
        "  switches: [{name: nvs0, multicast: true, reduce: true}]",
        f"  nics: [{', '.join(f'{nic}{i}' for i in range(per))}]",
        "  links:",
    ]
    lines += [f"    - [gpu{i}, nvs0, nvswitch, 450]" for i in range(per)]
    lines += [f"    - [gpu{i}, {nic}{i}, pcie, 50]" for i in range(per)]
    lines += ["switches: [net0]", f"speeds: {{net: {gbps}}}", "links:"]
    lines += [f"  - [each.{nic}{i}, net0, net]" for i in range(per)]
    return plan_graph(loads_topology("\n".join(lines)))


def nccl(
    graph: PlanGraph,
    collective: Collective = Collective.ALL_REDUCE,
    generation: str = "h100",
    version: str = "2.28",
    **more: Any,
) -> Nccl:
    return Nccl(Simulator(graph, collective, None, MACHINES[generation]), version, **more)


def machine(name: str) -> PlanGraph:
    return plan_graph(load_topology(name))


@pytest.mark.parametrize("generation", ["h100", "a100"])
def test_nccls_calls_are_run_by_nccls_kernels(generation: str) -> None:
    """Whichever simulator it is asked through: the figures of collc's own kernels are not NCCL's."""
    graph, parameters = machine("hgx-h100"), MACHINES[generation]
    ours = Simulator(graph, Collective.ALL_REDUCE, None, parameters)
    theirs = Simulator(graph, Collective.ALL_REDUCE, None, parameters, of_nccl=True)
    assert (ours.machine != parameters) == (generation == "h100")
    assert theirs.machine == Nccl(ours).simulator.machine == parameters
    for protocol in ("Simple", "LL", "LL128"):
        for size in (K, 64 * K, M):
            told = [Nccl(each).predict(size, "Ring", protocol).time_us for each in (ours, theirs)]
            assert told[0] == told[1]
    quick, slow = (each.predict(Variant("rings", "LL128", 64 << 10, 8), 64 * K).time_us for each in (ours, theirs))
    assert (quick + 5 < slow) == (generation == "h100")


def test_the_shape_of_a_cluster() -> None:
    graph = cluster(2)
    assert servers_of(graph) == 2
    shape = shape_of(graph, MACHINES["h100"])
    assert (shape.nranks, shape.per_server, shape.nics, shape.nic_gbps) == (16, 8, 8, 400.0)
    assert shape.link_gbps == 450
    assert shape.inside_gbps == pytest.approx(369)
    assert (shape.inside, shape.nvls) == ("nvlink", True)


def test_a_rack_that_nvlink_joins_is_one_server() -> None:
    assert servers_of(machine("gb200-nvl72")) == 1


def test_a_mesh_has_no_nvls() -> None:
    shape = shape_of(machine("dgx1v"), MACHINES["v100"])
    assert not shape.nvls
    assert shape.link_gbps == 150


@pytest.mark.parametrize(
    ("version", "since"),
    [("2.4", (2, 4)), ("2.12.12", (2, 4)), ("2.19.3", (2, 18)), ("2.23", (2, 23)), ("2.30", (2, 23))],
)
def test_versions(version: str, since: tuple[int, int]) -> None:
    assert era_of(version).since == since


@pytest.mark.parametrize("version", ["", "2", "2.3", "1.9", "3.1", "2.x", "latest", "2.19.3.1"])
def test_what_is_no_version(version: str) -> None:
    with pytest.raises(UsageError, match="no rule is known"):
        era_of(version)


def test_eras_know_all_algorithms() -> None:
    assert [era.since for era in ERAS] == sorted(era.since for era in ERAS)
    for era in ERAS:
        for hops in era.hop.values():
            assert {"Ring", "Tree"} <= set(hops)
    assert all(len(factors) < 24 for factors in TREE_FACTOR.values())


@pytest.mark.parametrize(
    ("servers", "version", "has"),
    [
        (2, "2.12", ("Ring", "Tree")),
        (2, "2.19", ("Ring", "Tree", "NVLSTree")),
        (1, "2.12", ("Ring", "Tree")),
        (1, "2.19", ("Ring", "Tree", "NVLS")),
    ],
)
def test_nvls_comes_with_2_18(servers: int, version: str, has: tuple[str, ...] | tuple[str, str]) -> None:
    assert nccl(cluster(servers), version=version).choices() == has


def test_pat_is_for_servers_of_one_gpu_from_2_23_on() -> None:
    graph = cluster(4, per=1)
    assert "PAT" in nccl(graph, Collective.ALL_GATHER).choices()
    assert "PAT" not in nccl(graph, Collective.ALL_GATHER, version="2.22").choices()
    assert "PAT" not in nccl(cluster(2), Collective.ALL_GATHER).choices()


def test_what_a_published_thread_says_of_the_choice_on_one_server() -> None:
    """8 H100, NCCL 2.26: RING/LL up to 1 MiB, NVLS/SIMPLE from 2 MiB (NVIDIA/nccl, May 2025)."""
    found = nccl(machine("hgx-h100"), version="2.26")
    assert {found.rule(size).protocol for size in (K, 64 * K, 256 * K)} == {"LL"}
    for size in (4 * M, 64 * M, G):
        assert (found.rule(size).algorithm, found.rule(size).protocol) == ("NVLS", "Simple")


def test_small_calls_on_two_servers_are_trees_of_ll_and_take_nccls_own_constants() -> None:
    """6.8 + 2 x (7 x 0.6 + 5.0) us."""
    found = nccl(cluster(2)).predict(64)
    assert (found.algorithm, found.protocol, found.closed_form) == ("Tree", "LL", True)
    assert found.time_us == pytest.approx(25.2, abs=0.5)


def test_large_calls_cannot_beat_what_carries_them() -> None:
    graph = cluster(2)
    found = nccl(graph)
    ring = found.predict(8 * G, "Ring", "Simple")
    assert ring.busbw_gbps == pytest.approx(min(369, 400 * 0.97), rel=0.01)
    tree = found.predict(8 * G, "Tree", "Simple")
    assert tree.algbw_gbps == pytest.approx(369 * 0.46, rel=0.02)
    nvls = found.predict(8 * G, "NVLSTree")
    assert nvls.algbw_gbps < 400 * 0.97
    slow = nccl(cluster(2, gbps=12.5)).predict(8 * G, "NVLSTree")
    assert slow.algbw_gbps == pytest.approx(100 * 0.97, rel=0.01)


def test_a_default_ring_over_one_queue_pair_per_nic() -> None:
    found = nccl(cluster(2), ring_nic_gbps=17.5).predict(8 * G, "Ring", "Simple")
    assert found.busbw_gbps == pytest.approx(140, rel=0.01)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST])
def test_more_bytes_take_longer_on_every_network(fabric: str, collective: Collective) -> None:
    found = nccl(cluster(2), collective, fabric=fabric)
    for algorithm in found.choices():
        times = [found.predict(size, algorithm, "Simple").time_us for size in (64 * M, 512 * M, 4 * G)]
        assert times == sorted(times)
        assert times[-1] > 2 * times[0]


def test_channels_that_do_not_fill_their_buffers_cost_messages() -> None:
    """A channel sends at most the 512 KiB of a slot between servers: shares below that make more, emptier messages."""
    found = nccl(cluster(2), fabric=next(name for name, fabric in FABRICS.items() if fabric.message_us))
    assert found.fabric.message_us > 0
    many, few = (
        Closed(dataclasses.replace(found.setting, channels=channels), found.simulator.machine) for channels in (32, 4)
    )
    partly, filled = 16 * M, 8 * G  # 32 KiB and 16 MiB per step and channel of 32
    assert many.time_us("Ring", "Simple", partly) > 1.5 * few.time_us("Ring", "Simple", partly)
    assert many.time_us("Ring", "Simple", filled) == pytest.approx(few.time_us("Ring", "Simple", filled))
    # Small calls use fewer channels, so that one step is one message of the least size, whatever there is.
    assert many.time_us("Ring", "Simple", 64 * K) == few.time_us("Ring", "Simple", 64 * K)


def test_more_servers_take_longer() -> None:
    times = [nccl(cluster(n)).predict(K, "Tree", "LL").time_us for n in (2, 4, 8)]
    assert times == sorted(times)
    assert times[2] - times[1] == pytest.approx(times[1] - times[0])


def test_one_thread_for_all_gpus_is_seen_in_calls_in_a_row() -> None:
    together = nccl(machine("hgx-h100"), together=8).predict(K)
    alone = nccl(machine("hgx-h100")).predict(K)
    assert together.period_us == pytest.approx(8 * MACHINES["h100"].issue_us)
    assert alone.period_us < together.period_us
    assert alone.time_us == together.time_us


def test_the_network_is_told_by_names_of_nics() -> None:
    assert nccl(cluster(2, nic="efa")).fabric.name == "efa"
    assert nccl(cluster(2, nic="efa"), generation="a100").fabric.name == "efa-p4d"
    assert nccl(cluster(2, nic="hsn")).fabric.name == "slingshot"
    assert nccl(cluster(2, nic="mlx5_")).fabric.name == "infiniband"


def test_fabrics_say_where_their_numbers_are_from() -> None:
    for fabric in FABRICS.values():
        assert len(fabric.source) > 10
        assert set(fabric.hop_us) == {"Simple", "LL", "LL128"}


def test_on_a_mesh_ll_is_for_small_calls_and_a_ring_for_large_ones() -> None:
    found = nccl(machine("dgx1v"), generation="v100", version="2.12")
    assert found.rule(K).protocol == "LL"
    assert (found.rule(G).algorithm, found.rule(G).protocol) == ("Ring", "Simple")
    assert found.rule(G, "Tree").algorithm == "Tree"
    assert found.rule(G, "Ring", "LL128").protocol == "LL128"
    assert found.predict(4 * M, "Tree").row()["plan"] == "chain"


def test_where_no_ring_closes_nccl_is_not_there() -> None:
    graph = plan_graph(load_topology("dgx1v"), [f"gpu{i}" for i in (0, 1, 2, 3, 7)])
    with pytest.raises(PackingError, match="no ring"):
        nccl(graph, Collective.ALL_GATHER, "v100").choices()


def test_unequal_servers_are_refused() -> None:
    graph = plan_graph(load_topology("gb200-nvl72"), [f"server0.gpu{i}" for i in range(4)])
    assert servers_of(graph) == 1
    whole = cluster(2)
    names = [whole.vertices[r].name for r in whole.ranks][:12]
    with pytest.raises(PackingError, match="equally many"):
        nccl(plan_graph(_topology(2), names)).predict(K)


def _topology(servers: int) -> Topology:
    return loads_topology(
        f"format: collc-topology/1\nname: c\ntemplate: hgx-h100\nservers: {servers}\nswitches: [net0]\n"
        "speeds: {net: 50}\nlinks:\n" + "\n".join(f"  - [each.nic{i}, net0, net]" for i in range(8))
    )
