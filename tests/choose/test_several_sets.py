"""A library of several sets of GPUs runs each set like a library of only that set."""

from __future__ import annotations

import pytest

from collc.build.compile import Contents
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.choose.strategy import MODELED_ALLOCATIONS, Strategy, strategy_for
from collc.collectives.model import Collective
from collc.options import CUDA, HOST
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

ASKED = (Collective.ALL_REDUCE, Collective.BROADCAST)


def choices(contents: Contents, number: int) -> list[tuple[object, ...]]:
    """Returns size, plan, protocol, chunk and channels of each row of one set's table."""
    plans = contents.documents[number].plans
    return [
        (
            plans[e.plan].collective,
            plans[e.plan].root,
            e.kind(plans[e.plan]),
            e.when.min_bytes,
            e.when.protocol,
            e.program.chunk_bytes,
            e.spread,
        )
        for e in contents.entries[number]
    ]


@pytest.mark.parametrize(("machine", "sets"), [("hgx-h100", ("0-1", "0-3")), ("dgx1v", ("0,3", "0,1,3,4"))])
@pytest.mark.slow_for("hgx-h100-sets0")
def test_each_set_runs_what_a_library_of_it_alone_does(machine: str, sets: tuple[str, ...]) -> None:
    together = library_contents(LibraryRequest(machine, allocations="/".join(sets), collectives=ASKED), CUDA)
    for number, gpus in enumerate(sets):
        alone = library_contents(LibraryRequest(machine, gpus=gpus, collectives=ASKED), CUDA)
        assert choices(together, number) == choices(alone, 0)


@pytest.mark.slow
def test_machines_after_losses_are_chosen_for_by_the_model_too() -> None:
    found = library_contents(LibraryRequest("a100x4-nv4", collectives=ASKED[:1], survive=1), CUDA)
    assert len(found.entries) > 1
    assert not any("by a rule" in entry.why for entries in found.entries for entry in entries)


def test_a_rule_is_for_what_would_take_the_model_too_long() -> None:
    whole = plan_graph(load_topology("dgx2"))
    for number in (1, 2, MODELED_ALLOCATIONS):
        assert strategy_for(CUDA, whole, number) is Strategy.MODEL
    assert strategy_for(CUDA, whole, MODELED_ALLOCATIONS + 1) is Strategy.RULE
    assert strategy_for(HOST, whole, 2) is Strategy.PACKED
