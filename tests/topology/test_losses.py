"""The losses of a machine: every single loss, and equal losses once."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from collc.errors import TopologyError
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.losses import Loss, every_loss, lanes_of, single_losses, survivors, used_part, without
from collc.topology.model import LinkKind, LossKind, Topology
from collc.topology.zoo import names as zoo_names

HEAD = "format: collc-topology/1\nname: x\n"
# GPU 2 and NIC 1 of each server are alone of their kind; the rails differ in speed.
TWO_SERVERS = (
    HEAD
    + """
template:
  gpus: 3
  nics: [nic0, nic1]
  links:
    - [gpu0, gpu1, nvlink x2, 25]
    - [gpu1, gpu2, nvlink, 25]
    - [gpu0, nic0, pcie, 25]
    - [gpu1, nic0, pcie, 25]
    - [gpu2, nic1, pcie, 25]
servers: 2
switches: [rail0, rail1]
links:
  - [each.nic0, rail0, net, 20]
  - [each.nic1, rail1, net, 10]
"""
)


def kinds_of(topology: Topology) -> set[LinkKind]:
    return {link.kind for link in plan_graph(topology).links}


def left(topology: Topology, loss: Loss) -> str:
    """Returns the machine after a loss, up to names."""
    names = [v.name for v in topology.gpus]
    try:
        return fingerprint(plan_graph(without(topology, loss), survivors(names, loss)))
    except TopologyError:
        return "nothing joined"


@pytest.mark.parametrize("name", zoo_names())
def test_the_losses_of_an_orbit_leave_the_same_and_none_is_forgotten(name: str) -> None:
    topology = load_topology(name)
    kinds = kinds_of(topology)
    every = Counter((loss.kind, left(topology, loss)) for loss in every_loss(used_part(topology, kinds)))
    found: Counter[tuple[LossKind, str]] = Counter()
    for loss in single_losses(topology, kinds):
        found[loss.kind, left(topology, loss)] += loss.alike
    assert found == every
    gpus = len(topology.gpus)
    assert sum(count for (kind, _), count in every.items() if kind is LossKind.GPU) == (gpus if gpus > 2 else 0)


def test_every_kind_of_loss_of_two_servers() -> None:
    topology = loads_topology(TWO_SERVERS)
    found = {(loss.kind, loss.what): loss.alike for loss in single_losses(topology, kinds_of(topology))}
    servers = "server0."
    assert found == {
        (LossKind.LINK, f"{servers}gpu0-{servers}gpu1, 1 of 2 nvlink"): 2,
        (LossKind.LINK, f"{servers}gpu1-{servers}gpu2, nvlink"): 2,
        (LossKind.LINK, f"{servers}gpu0-{servers}nic0, pcie"): 2,
        (LossKind.LINK, f"{servers}gpu1-{servers}nic0, pcie"): 2,
        (LossKind.LINK, f"{servers}gpu2-{servers}nic1, pcie"): 2,
        (LossKind.LINK, f"{servers}nic0-rail0, net"): 2,
        (LossKind.LINK, f"{servers}nic1-rail1, net"): 2,
        (LossKind.NIC, f"{servers}nic0"): 2,
        (LossKind.NIC, f"{servers}nic1"): 2,
        (LossKind.RAIL, "rail0"): 1,
        (LossKind.RAIL, "rail1"): 1,
        (LossKind.GPU, f"{servers}gpu0"): 2,
        (LossKind.GPU, f"{servers}gpu1"): 2,
        (LossKind.GPU, f"{servers}gpu2"): 2,
    }


def test_rails_without_switches_are_the_pieces_of_the_network() -> None:
    text = TWO_SERVERS.partition("switches:")[0] + (
        "links:\n  - [server0.nic0, server1.nic0, net, 20]\n  - [server0.nic1, server1.nic1, net, 10]\n"
    )
    topology = loads_topology(text)
    rails = [loss for loss in every_loss(topology) if loss.kind is LossKind.RAIL]
    assert [{(a, b) for a, b, _, _ in loss.thinner} for loss in rails] == [
        {("server0.nic0", "server1.nic0"), ("server1.nic0", "server0.nic0")},
        {("server0.nic1", "server1.nic1"), ("server1.nic1", "server0.nic1")},
    ]


@pytest.mark.parametrize(
    ("name", "planes"),
    [("dgx2", [5] * 6), ("dgx-a100", [10] * 6), ("hgx-h100", [13, 13, 14, 14]), ("gb200-nvl72", [17] * 18)],
)
def test_a_plane_takes_its_share_of_every_gpus_links(name: str, planes: list[int]) -> None:
    """The links of a GPU that are left, of those that one vertex for all switches shows."""
    topology = load_topology(name)
    lost = [loss for loss in every_loss(topology) if loss.kind is LossKind.PLANE]
    whole = {(k.src, k.dst): k for k in topology.links if k.kind is LinkKind.NVSWITCH}
    assert len(lost) == len(planes)
    for loss, kept in zip(lost, planes, strict=True):
        assert {(a, b) for a, b, _, _ in loss.thinner} == set(whole)
        for a, b, _, gbps in loss.thinner:
            link = whole[a, b]
            assert gbps == link.gbps * Fraction(kept, lanes_of(link, topology))


@pytest.mark.parametrize(
    ("model", "gpus", "gbps", "planes"),
    [("H100", 16, 450, 4), ("H100", 17, 450, 0), ("B200", 24, 900, 0), ("GB200", 17, 900, 18), ("GB300", 8, 900, 18)],
)
def test_only_gpus_of_a_rack_are_on_the_switches_of_a_rack(model: str, gpus: int, gbps: int, planes: int) -> None:
    links = "".join(f"  - [gpu{i}, s, nvswitch, {gbps}]\n" for i in range(gpus))
    topology = loads_topology(HEAD + f"gpu_model: {model}\ngpus: {gpus}\nswitches: [s]\nlinks:\n{links}")
    assert sum(loss.kind is LossKind.PLANE for loss in every_loss(topology)) == planes


def test_lanes_are_the_count_or_follow_from_the_model() -> None:
    text = "gpus: 2\nlinks:\n  - {between: [gpu0, gpu1], kind: nvlink, gbps: 25, count: 3}\n"
    topology = loads_topology(HEAD + text)
    assert [link.lanes for link in topology.links] == [3, 3]
    merged = loads_topology(HEAD + text.replace("gbps: 25, count: 3", "gbps: 75"))
    assert merged.links == topology.links  # rates do not depend on lanes
    assert [lanes_of(link, merged) for link in merged.links] == [1, 1]
    known = loads_topology(HEAD + "gpu_model: A100\n" + text.replace("gbps: 25, count: 3", "gbps: 75"))
    assert [lanes_of(link, known) for link in known.links] == [3, 3]


def test_what_no_plan_uses_is_not_compared() -> None:
    whole = load_topology("dgx1v")
    bare = used_part(whole, {LinkKind.NVLINK})
    assert len(whole.vertices) > 8
    assert [v.name for v in bare.vertices] == [v.name for v in whole.gpus]
    assert {link.kind for link in bare.links} == {LinkKind.NVLINK}


def test_losses_near_chosen_gpus_are_not_alike_with_those_far_from_them() -> None:
    topology, chosen = load_topology("dgx1v"), ["gpu0", "gpu1", "gpu4"]
    kinds = {link.kind for link in plan_graph(topology, chosen).links}

    def rest(loss: Loss) -> str:
        try:
            return fingerprint(plan_graph(without(topology, loss), survivors(chosen, loss)))
        except TopologyError:
            return "nothing joined"

    every = Counter((loss.kind, rest(loss)) for loss in every_loss(used_part(topology, kinds)))
    found: Counter[tuple[LossKind, str]] = Counter()
    for loss in single_losses(topology, kinds, chosen):
        found[loss.kind, rest(loss)] += loss.alike
    assert found == every
