"""Memory for FIFOs that is left: chunks grow into it, of other programs if these fit, else of those that are there."""

from __future__ import annotations

from typing import cast

import pytest

from collc.choose.modelled import ModelTables, fit
from collc.choose.programs import ProgramList
from collc.choose.table import but_chunk
from collc.collectives.model import Collective
from collc.options import CUDA
from collc.pipeline import Recorder, pack
from collc.simulator.generations import MACHINES
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

BOTH = (Collective.BROADCAST, Collective.REDUCE)


def four_behind_a_switch() -> ModelTables:
    graph = plan_graph(load_topology("hgx-h100"), [f"gpu{number}" for number in range(4)])
    packed = pack(graph, [(collective, 0) for collective in BOTH], Recorder())
    return ModelTables(graph, packed, CUDA, MACHINES["h100"])


def fill(model: ModelTables) -> ProgramList:
    for plan in model.packed:
        model.table(plan)
    return cast(ProgramList, None)


def programs(model: ModelTables) -> dict[Collective, set[tuple[str, str, int]]]:
    return {c: {but_chunk(choice.variant) for choice in table.choices} for c, table in model.tables.items()}


def test_the_same_programs_may_have_larger_chunks() -> None:
    model = four_behind_a_switch().limited(BOTH, 16 << 10)
    fill(model)
    others, same = (model.limited(BOTH, 256 << 10, same_programs=only) for only in (False, True))
    for tables in (others, same):
        fill(tables)
    assert all(programs(same)[c] <= set().union(*programs(model).values()) for c in BOTH)
    assert model.chunk(BOTH) == 16 << 10 < same.chunk(BOTH)
    assert others.time() <= same.time() + 0.02
    assert same.time() < model.time()
    # What is chosen again after that may be any program.
    assert not same.limited(BOTH, 256 << 10).held


class Held:
    """Of a `ProgramList` what `fit` asks for."""

    def __init__(self, taken: float, each: float) -> None:
        self.taken, self.each = taken, each

    def memory(self) -> float:
        return self.taken

    def memory_with(self, collectives: tuple[Collective, ...], chunk: int, larger: int) -> float:
        return self.taken + self.each * (larger - chunk)


class Tables:
    """Of `ModelTables` what `fit` asks for. Programs over many channels are faster and take more."""

    beside = ()
    tables = dict.fromkeys(BOTH)

    def __init__(self, chunk: int, many: bool = False) -> None:
        self.limit, self.many = chunk, many
        self.most = dict.fromkeys(BOTH, chunk)

    def chunk(self, collectives: tuple[Collective, ...]) -> int:
        return self.limit

    def limited(self, collectives: tuple[Collective, ...], chunk: int, *, same_programs: bool = False) -> Tables:
        return Tables(chunk, self.many if same_programs else chunk > 64 << 10)

    def time(self) -> float:
        return -self.limit / (1 << 20) - self.many

    def held(self, per_chunk: float) -> Held:
        return Held(self.limit / (64 << 10) * per_chunk * (2 if self.many else 1), per_chunk / (64 << 10))


@pytest.mark.parametrize(("per_chunk", "chunk", "many"), [(0.6, 96 << 10, False), (0.3, 96 << 10, True)])
def test_what_is_left_goes_to_the_programs_that_fit(per_chunk: float, chunk: int, many: bool) -> None:
    found, tables = fit(
        lambda model: cast(ProgramList, cast(Tables, model).held(per_chunk)),
        cast(ModelTables, Tables(64 << 10)),
        lambda text: None,
    )
    assert found.memory() <= 1
    assert (cast(Tables, tables).limit, cast(Tables, tables).many) == (chunk, many)
