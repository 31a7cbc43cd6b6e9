"""A library that survives every single loss contains a plan for each loss."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.changed import tables_library
from support.libraries import topology_file

from collc.checker.library import check_library
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest, find_graphs
from collc.collectives.model import Collective
from collc.errors import CollcError, UsageError
from collc.options import TARGETS, TargetKind
from collc.packing.sets.losses import MOST_VERTICES, after_losses, surviving_sets
from collc.resources import resource_dir
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.losses import without
from collc.topology.model import LinkKind, LossKind, Topology

HEAD = "format: collc-topology/1\nname: x\n"
# Two pairs joined by NVLink, each on a PCIe switch; a switch that leads nowhere, a NIC.
BRIDGED = (
    HEAD
    + """
gpus: 4
switches: [plx0, plx1, idle]
cpus: [cpu0]
nics: [nic0]
links:
  - [gpu0, gpu1, nvlink, 50]
  - [gpu2, gpu3, nvlink, 50]
  - [gpu0, idle, nvlink, 50]
  - [gpu0, plx0, pcie, 25]
  - [gpu1, plx0, pcie, 25]
  - [gpu2, plx1, pcie, 25]
  - [gpu3, plx1, pcie, 25]
  - [plx0, cpu0, pcie, 25]
  - [plx1, cpu0, pcie, 25]
  - [cpu0, nic0, pcie, 25]
"""
)


@pytest.mark.parametrize("text", ["connected", "all", "2..4"])
@pytest.mark.parametrize("machine", ["odd", "bridged"])
def test_every_set_that_is_joined_after_a_loss_is_served_then(machine: str, text: str) -> None:
    topology = load_topology(str(topology_file("odd"))) if machine == "odd" else loads_topology(BRIDGED)
    if text == "2..4" and machine == "odd":
        text = "2..3"
    if text == "connected" and machine == "bridged":
        with pytest.raises(UsageError, match="no set of 3 or more GPUs"):
            surviving_sets(topology, None, text, None)
        return
    graphs, held = surviving_sets(topology, None, text, None)
    known = {fingerprint(graph) for graph in graphs}
    at = 0
    for state in held.states:
        left = topology if state.loss is None else without(topology, state.loss)
        own = {one.gpus: one for one in held.sets[at : at + state.nsets]}
        at += state.nsets
        members = [[g for g, c in enumerate(state.classes) if c == number] for number in range(max(state.classes) + 1)]
        for size in range(2, len(topology.gpus) + 1):
            for gpus in itertools.combinations(range(len(topology.gpus)), size):
                first = tuple(sorted(g for m in members for g in m[: len(set(m) & set(gpus))]))
                assert (first in own) == any(name in known for name in prints(left, gpus)), (state.loss, gpus)
                if first in own:
                    assert fingerprint(graphs[own[first].allocation]) in prints(left, gpus), (state.loss, gpus)
    assert at == len(held.sets)


def prints(topology: Topology, gpus: tuple[int, ...]) -> set[str]:
    """The graph of a set, over the fast links and by the usual rules."""
    found = set()
    for links in ("nvlink", None):
        try:
            found.add(fingerprint(plan_graph(topology, [topology.gpus[g].name for g in gpus], links)))
        except CollcError:
            continue
    return found


def test_links_that_only_small_sets_use_are_lost_too() -> None:
    """All four GPUs use PCIe from the start, so its links count. With NVLink only, they do not."""
    topology = loads_topology(BRIDGED)
    losses = [one.loss for one in after_losses(topology, text="2..2") if one.loss]
    assert [loss.kind for loss in losses] == [LossKind.LINK] * 3 + [LossKind.GPU]
    _, held = surviving_sets(topology, None, "all", None)
    assert {link.kind for link in held.topology.links} == {LinkKind.NVLINK, LinkKind.PCIE}
    assert {v.name for v in held.topology.vertices} == {"gpu0", "gpu1", "gpu2", "gpu3", "plx0", "plx1", "cpu0"}


def test_a_loss_that_cuts_a_gpu_off_is_named_with_the_reason() -> None:
    _, held = surviving_sets(load_topology(str(topology_file("pair"))), None, None, None)
    assert [state.loss for state in held.states] == [None]
    assert [(loss.what, why) for loss, why in held.fallen] == [
        ("gpu0-gpu1, nvlink", "gpu1 cannot be reached from gpu0 over the links of this topology")
    ]


@pytest.mark.parametrize("kind", list(TargetKind))
def test_the_whole_machine_runs_what_it_runs_in_a_library_that_survives_nothing(kind: TargetKind) -> None:
    request = LibraryRequest(str(topology_file("odd")), collectives=(Collective.BROADCAST,), roots=(0,))
    plain = library_contents(request, TARGETS[kind])
    survives = library_contents(replace(request, survive=1), TARGETS[kind])
    assert plain.gpu_sets.states == ()
    assert len(survives.entries) > 1
    assert survives.entries[0] == plain.entries[0]
    assert survives.documents[0].plans == plain.documents[0].plans


def test_gpus_of_one_of_several_servers_survive_its_losses_alone(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(
        HEAD + "template:\n  gpus: 4\n  links:\n    - [gpu0, gpu1, nvlink, 50]\n    - [gpu1, gpu2, nvlink, 50]\n"
        "    - [gpu2, gpu0, nvlink, 50]\n    - [gpu3, gpu0, nvlink, 50]\nservers: 2\nswitches: [net]\n"
        "links:\n  - [each.gpu0, net, net, 20]\n"
    )
    whole = LibraryRequest(str(path), gpus="server1:2,server1:0-1,server1:3", survive=1)
    _, held = find_graphs(whole, lambda text: None)
    assert held.names == ("gpu0", "gpu1", "gpu2", "gpu3")
    assert held.sets[0].gpus == (0, 1, 2, 3)
    assert held.sets[0].ranks == (1, 2, 0, 3)
    assert sum(state.loss.alike for state in held.states if state.loss) + len(held.fallen) == 8
    with pytest.raises(UsageError, match="on 2 servers, a library survives the losses of one"):
        find_graphs(LibraryRequest(str(path), gpus="server0:0,server1:0", survive=1), lambda text: None)
    with pytest.raises(UsageError, match="serves all 4 GPUs of x-server1, or sets by size"):
        find_graphs(LibraryRequest(str(path), gpus="server1:0-2", survive=1), lambda text: None)


def test_verify_proves_every_state_of_every_set() -> None:
    library = check_library(tables_library("odd", collectives=(Collective.ALL_REDUCE,), allocations="all", survive=1))
    assert len(library.tables.states) == 7
    assert library.manifest["states"][0] == "nothing"
    assert set(library.manifest["states"][1:]) == {
        "gpu0-gpu1 nvlink, 0 of 50 GB/s left",
        "gpu1-gpu2 nvlink, 0 of 25 GB/s left",
        "gpu0-gpu2 nvlink, 0 of 30 GB/s left",
        "gpu0",
        "gpu1",
        "gpu2",
    }


def test_speeds_and_sizes_that_the_runtime_cannot_compare_are_refused() -> None:
    long = HEAD + "gpus: 2\nlinks:\n  - {between: [gpu0, gpu1], kind: nvlink, gbps: 1.00000000000000000000001}\n"
    with pytest.raises(UsageError, match="too many digits"):
        surviving_sets(loads_topology(long), None, None, None)
    many = (
        HEAD
        + f"gpus: {MOST_VERTICES + 1}\nswitches: [s]\nlinks:\n"
        + "".join(f"  - [gpu{g}, s, nvswitch, 50]\n" for g in range(MOST_VERTICES + 1))
    )
    with pytest.raises(UsageError, match=f"compares at most {MOST_VERTICES} "):
        surviving_sets(loads_topology(many), None, None, None)
    source = (resource_dir("templates") / "runtime" / "plan" / "match_machine.cpp").read_text()
    assert re.findall(r"kMaxVertices = (\d+);", source) == [str(MOST_VERTICES)]
