"""The memory that communicators take of GPUs: bounded for every machine behind switches."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest

from collc.build import memory
from collc.build.manifest import slot_bytes
from collc.build.memory import KnownFifos, fifo_bytes_by_rank, transfer_bytes
from collc.checker.layout import When
from collc.choose.library import choose_programs
from collc.choose.programs import LEAST_SLOT
from collc.choose.request import LibraryRequest, find_graphs, pack_allocation
from collc.choose.strategy import Strategy
from collc.codegen.entry import Entry
from collc.collectives.model import Collective
from collc.ir.nodes import Program
from collc.options import CUDA
from collc.packing.document import PlanFile
from collc.pipeline import Recorder
from collc.resources import resource_dir
from collc.simulator.generations import H100
from collc.simulator.run import Simulator, Variant
from collc.topology import canonical
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import LinkKind

# Of each GPU, for a communicator of 8 ranks behind switches; of GPUs with links of 900 GB/s there is more under way.
MOST = 84_000_000
MOST_OF_FASTER = {"hgx-b200": 160_000_000}


def silent(text: str) -> None:
    pass


@cache
def packed(fingerprint: str, machine: str) -> PlanFile:
    """Machines of one fingerprint have one plan."""
    request = LibraryRequest(machine)
    graphs, _ = find_graphs(request, silent)
    return pack_allocation(graphs[0], request, Recorder(), silent)


@cache
def taken(fingerprint: str, machine: str, strategy: Strategy) -> int:
    document = packed(fingerprint, machine)
    nranks = document.graph.nranks
    parameters, _ = LibraryRequest(machine).parameters(document.graph.gpu_model)
    held = choose_programs(document.graph, document.plans, CUDA, strategy, machine=parameters)
    programs = [entry.program for entry in held.entries]
    return max(fifo_bytes_by_rank(held.entries, nranks)) + transfer_bytes(nranks, slot_bytes(programs))


@cache
def switched_machines() -> dict[str, str]:
    """The machines of at most 8 GPUs whose links all end at switches, with the fingerprints of their graphs."""
    found = {}
    for path in sorted(resource_dir("topologies").glob("*.yaml")):
        topology = load_topology(path.stem)
        if len(topology.gpus) > 8:
            continue
        graph = plan_graph(topology)
        if all(link.kind is LinkKind.NVSWITCH for link in graph.links):
            found[path.stem] = canonical.fingerprint(graph)
    return found


def test_eight_ranks_behind_switches_take_at_most_84_mb_of_a_gpu() -> None:
    machines = switched_machines()
    assert {"hgx-h100", "hgx-b200", "dgx-a100", "hgx-h800", "aws-p5-48xlarge"} <= machines.keys()
    for machine, fingerprint in machines.items():
        assert 10_000_000 < taken(fingerprint, machine, Strategy.RULE) <= MOST_OF_FASTER.get(machine, MOST), machine


@pytest.mark.slow
def test_as_the_model_chooses_too() -> None:
    for machine, fingerprint in switched_machines().items():
        assert 10_000_000 < taken(fingerprint, machine, Strategy.MODEL) <= MOST_OF_FASTER.get(machine, MOST), machine


def test_chunks_shrink_until_the_memory_is_enough() -> None:
    fingerprint = switched_machines()["hgx-h100"]
    document = packed(fingerprint, "hgx-h100")
    before = 1 << 40
    for limit in (52, 26, 13):
        tight = dataclasses.replace(CUDA, switched_bytes=limit << 20)
        held = choose_programs(document.graph, document.plans, tight, Strategy.RULE)
        found = max(fifo_bytes_by_rank(held.entries, 8))
        assert found <= limit << 20
        assert found < before
        before = found
        programs: list[Program] = [entry.program for entry in held.entries]
        assert slot_bytes(programs) >= LEAST_SLOT


def test_rings_that_all_ranks_feed_have_two_slots() -> None:
    """Their ranks come back to a FIFO once in a round: the model loses no time by it, and half the memory is free."""
    graph = plan_graph(load_topology("hgx-h100"))
    own, all_four = (Simulator(graph, Collective.ALL_GATHER, None, H100, slots=n) for n in (None, 4))
    for chunk in (16 << 10, 64 << 10):
        variant = Variant("ring", "Simple", chunk, 32)
        assert [one.lowered("ring", 32)[1].slots for one in (own, all_four)] == [2, 4]
        for size in (1 << 20, 1 << 26):
            two, four = (one.estimate(variant, size, 30_000).time_us for one in (own, all_four))
            assert two <= 1.01 * four
    # A broadcast's rank has one FIFO to each neighbor.
    assert Simulator(graph, Collective.BROADCAST, 0, H100).lowered("ring", 32)[1].slots == CUDA.slots


def test_fifos_that_are_known_take_the_same_memory() -> None:
    """Programs of all kinds and protocols, one after the other: as when each FIFO is looked at anew."""
    graph = plan_graph(load_topology("dgx1v"))
    known, entries = KnownFifos(), []
    for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER):
        simulator = Simulator(graph, collective, None, H100)
        for kind, channels, protocol, chunk in (
            ("trees", 32, "LL", 4 << 10),
            ("rings", 12, "LL128", 16 << 10),
            ("trees", 96, "Simple", 32 << 10),
            ("rings", 6, "Simple", 256 << 10),
        ):
            _, program = simulator.lowered(kind, channels)
            entries.append(Entry(program.replace(chunk_bytes=chunk), 0, channels, When(0, protocol)))
            for most in (None, 16 << 10):
                found = fifo_bytes_by_rank(entries, 8, most, known)
                assert found == fifo_bytes_by_rank(entries, 8, most)
                slow = [memory._by_rank(entries, 8, most, whole) for whole in (True, False)]
                assert found == max(slow, key=max)
