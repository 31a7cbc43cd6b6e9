"""Which GPU sets of a machine a library serves, and who plays which part."""

from __future__ import annotations

import itertools

import pytest

from collc.packing.sets.allocations import allocations
from collc.packing.sets.gpu_sets import GpuSets, served_sets, written_set
from collc.topology.load import load_topology
from collc.topology.model import Topology


def speeds(machine: Topology, gpus: list[str]) -> dict[tuple[str, str], object]:
    return {(k.src, k.dst): k.gbps for k in machine.links if k.src in gpus and k.dst in gpus}


def test_every_set_of_a_dgx1_is_served_and_its_mapping_keeps_every_link() -> None:
    machine = load_topology("dgx1p")
    made = allocations(machine, "3..4")
    sets = served_sets(machine, made, None)
    names = sets.names
    for one in sets.sets:
        own = [names[g] for g in one.gpus]
        model = made[one.allocation]
        plays = {own[i]: model.gpus[rank] for i, rank in enumerate(one.ranks)}
        wanted = {(plays[a], plays[b]): speed for (a, b), speed in speeds(machine, own).items()}
        assert wanted == speeds(machine, list(model.gpus))
    assert {one.gpus for one in sets.sets} == {
        gpus for size in (3, 4) for gpus in itertools.combinations(range(8), size)
    }  # fmt: skip


def test_gpus_on_one_switch_cost_one_set_per_size() -> None:
    machine = load_topology("dgx2")
    sets = served_sets(machine, allocations(machine, "2..16"), None)
    assert len(set(sets.classes)) == 1
    assert [one.gpus for one in sets.sets] == [tuple(range(n)) for n in range(2, 17)]


def test_a_set_as_written_keeps_its_order() -> None:
    sets = written_set(load_topology("dgx1v"), ["gpu6", "gpu0", "gpu4"])
    assert isinstance(sets, GpuSets)
    assert sets.sets[0].gpus == (0, 4, 6)
    assert sets.sets[0].ranks == (1, 2, 0)


@pytest.mark.parametrize("text", ["0,1,4/0,1,4,6", "gpu0,gpu1"])
def test_sets_by_hand_serve_all_sets_like_them(text: str) -> None:
    machine = load_topology("dgx1p")
    made = allocations(machine, text)
    sets = served_sets(machine, made, None)
    assert {one.allocation for one in sets.sets} == set(range(len(made)))
    assert len(sets.sets) > len(made)
