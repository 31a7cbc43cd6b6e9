"""Bus ids and NICs in the tables of a library are read back, and refused if they contradict its machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.changed import Changed, built
from support.programs import final, random_schedule

from collc.checker.cards import check_cards
from collc.checker.library import check_library, read_library
from collc.checker.tables import decode
from collc.codegen.context import TableBuilder
from collc.collectives.model import Collective
from collc.errors import CollcError, IRError, RunError
from collc.options import CUDA
from collc.packing.sets.gpu_sets import pack_bus, written_set
from collc.packing.sets.nics import cards_of
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


CLUSTER = """format: collc-topology/1
name: two
servers: 2
template:
  gpus: 1
  nics: [{name: fast, interface: ib0, pci: "0000:5e:00.1"}, {name: plain, interface: eth1}, {name: unknown, gbps: 1}]
  links:
    - [gpu0, fast, pcie, 25]
    - [gpu0, plain, pcie, 25]
    - [gpu0, unknown, pcie, 25]
switches: [left, right]
links:
  - [each.fast, left, net, 25]
  - [each.plain, right, net, 1]
  - [each.unknown, right, net, 1]
"""
NAMES = ["server0.fast", "server0.plain", "server1.fast", "server1.plain"]


def cards_image(change: dict[int, int] | None = None) -> bytes:
    """The tables of a library for two servers; `change` are other values of its first card, by column."""
    topology = loads_topology(CLUSTER)
    program = final(random_schedule(Collective.BROADCAST, 2, 1, 1), dataclasses.replace(CUDA, chunk_bytes=256))
    program = dataclasses.replace(program, servers=(0, 1))
    graph = plan_graph(topology)
    builder = TableBuilder()
    builder.add_allocation([program], slot_bytes=256)
    builder.add_gpu_sets(written_set(topology, [v.name for v in topology.gpus]), [graph])
    builder.add_cards(cards_of(topology, graph))
    for column, value in (change or {}).items():
        builder._numbers["cards"][0][column] = value
    return builder.image()


def test_cards_of_a_plan_over_two_servers() -> None:
    """By name and bus id, with the server and the network of each; nothing of those that nothing is known of."""
    topology = loads_topology(CLUSTER)
    cards = cards_of(topology, plan_graph(topology))
    assert [card.vertex for card in cards] == NAMES
    assert [(card.name, card.pci) for card in cards[:2]] == [("ib0", "0000:5e:00.1"), ("eth1", "")]
    assert [card.server for card in cards] == [0, 0, 1, 1]
    assert [card.network for card in cards] == [1, 2, 1, 2]
    rows = decode(cards_image()).cards
    assert [row[0] for row in rows[:2]] == [0x5E << 16 | 2, 0]
    assert [row[1].to_bytes(8, "little").rstrip(b"\0") for row in rows] == [b"ib0", b"eth1"] * 2
    assert cards_of(topology, plan_graph(topology, ["server0.gpu0"])) == []


def test_a_library_names_the_cards_of_its_plans_topology(tmp_path: Path) -> None:
    """Of each server those that are up and known by anything; another interface, bus id, server or network is not."""
    library = built("cards")
    held = check_library(library).tables.cards
    assert [row[1:3] == (0, 0) for row in held] == [False, False, True] * 2
    assert [bool(row[0]) for row in held] == [True, False, True] * 2
    assert [row[3:] for row in held] == [(server, network) for server in (0, 1) for network in (1, 2, 2)]
    fields = {field.label(): field for field in Changed(library).fields(10_000)}

    def refused(**values: int) -> None:
        changed = Changed(library)
        for label, value in values.items():
            changed.put(fields[f"cards[{label[1]}].{label[3:]}"], value)
        with pytest.raises(CollcError, match=r"tell of network card \d otherwise than its plan's topology"):
            check_library(changed.write(tmp_path / "changed.so"))

    refused(c0_name=int.from_bytes(b"ib1", "little"))
    refused(c0_bus=0x5E << 16 | 1)
    refused(c1_bus=0xAF << 16 | 1)
    refused(c2_server=1)
    refused(c0_network=2)
    refused(c2_bus=held[5][0] | 1 << 32)


def test_a_library_gives_its_gpus_the_bus_ids_of_its_topology(tmp_path: Path) -> None:
    """A row that could be a bus id, but is another GPU's or nobody's, is refused although a forger signed it."""
    library = built("bus ids")
    held = check_library(library).tables.buses
    assert held == (0x3B << 16 | 1, 0, 0xAF << 16 | 1)
    fields = {field.label(): field for field in Changed(library).fields(10_000)}

    def refused(*buses: int) -> None:
        changed = Changed(library)
        for gpu, bus in enumerate(buses):
            changed.put(fields[f"gpu_buses[{gpu}].bus"], bus)
        with pytest.raises(CollcError, match="its tables give its GPUs other bus ids than its machine has"):
            check_library(changed.write(tmp_path / "changed.so"))

    refused(*held[::-1])
    refused(held[0] + (1 << 16), *held[1:])
    refused(held[0], 0xB0 << 16 | 1, held[2])
    refused(0, *held[1:])


def test_a_library_of_more_cards_or_fewer_is_refused(tmp_path: Path) -> None:
    held = read_library(built("cards"))
    for cards in (held.tables.cards[:-1], (*held.tables.cards, held.tables.cards[0]), ()):
        tables = dataclasses.replace(held.tables, cards=cards)
        with pytest.raises(RunError, match=rf"{len(cards)} network cards where its plan's topology has 6"):
            check_cards(held.machine, tables, held.documents, tmp_path)


@pytest.mark.parametrize(
    "change",
    [{3: 2}, {0: 1 << 16}, {0: 1 << 16 | 9}, {0: 0, 1: 0}, {1: 0x2F6269}, {2: 1}, {1: 0x2E}],
    ids=["server", "no function", "function", "unknown", "slash", "hole", "dot"],
)
def test_cards_that_cannot_be_are_refused(change: dict[int, int]) -> None:
    with pytest.raises(IRError, match="network card"):
        decode(cards_image(change))
