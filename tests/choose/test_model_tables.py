"""The tables that the model chooses for an allocation, and the shares that docs/ states for default libraries."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from collc.choose.library import library_contents
from collc.choose.modeled import ModelTables
from collc.choose.request import LibraryRequest
from collc.codegen.entry import Entry
from collc.collectives.model import COMPILED, Collective
from collc.options import CUDA
from collc.packing.candidates.plans import rings_of
from collc.pipeline import Recorder, lower_spread, pack
from collc.simulator.generations import MACHINES
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

ROOT = Path(__file__).parents[2]
SCRIPT, DATA = ROOT / "benchmarks" / "defaults.py", ROOT / "docs" / "data" / "defaults.yaml"
needs_sources = pytest.mark.skipif(not SCRIPT.is_file(), reason="benchmarks and docs are in the source tree alone")
LEAST = 0.9  # of the best candidate, from 1 MiB on


def page_rows() -> dict[tuple[str, str], list[float]]:
    """Machine and collective -> best over default at 1 MiB, 4 MiB ... 1 GiB, as the page has them."""
    sys.path.insert(0, str(SCRIPT.parent))
    import tables

    return {
        (row["machine"], row["collective"]): [
            float(row[size].strip("*")) for size in ("1M", "4M", "16M", "64M", "256M", "1G")
        ]
        for row in tables.load(DATA).rows("256M")
    }


def largest(machine: str) -> tuple[Entry, str, int]:
    """The entry for the largest all_reduces of a machine, its kind of plan, and how many rings that plan has."""
    contents = library_contents(LibraryRequest(machine, collectives=(Collective.ALL_REDUCE,)), CUDA)
    plans = contents.documents[0].plans
    entry = contents.entries[0][-1]
    return entry, plans[entry.plan].kind, rings_of(plans[entry.plan])


@pytest.mark.slow
def test_fast_links_get_rings_over_many_channels() -> None:
    entry, kind, rings = largest("mi300x")
    assert kind == "rings"
    assert entry.spread > rings


def test_programs_that_the_model_has_lowered_are_those_that_are_compiled() -> None:
    graph = plan_graph(load_topology("dgx1v"), ["gpu0", "gpu1", "gpu2", "gpu3"])
    packed = pack(graph, [(Collective.ALL_REDUCE, None), (Collective.BROADCAST, 0)], Recorder())
    model = ModelTables(graph, packed, CUDA, MACHINES["v100"])
    for plan in packed:
        model.table(plan)
        simulated = model.simulators[plan.collective].programs
        kept = {channels: model.lowered(plan, kind, channels) for kind, channels in simulated if kind == "trees"}
        assert any(kept.values())
        for channels, found in kept.items():
            assert found is None or found == lower_spread(plan, channels, graph, CUDA)[1]
    (other,) = pack(graph, [(Collective.BROADCAST, 1)], Recorder())
    assert model.lowered(other, "trees", next(iter(simulated))[1]) is None  # of another root


@pytest.mark.slow
def test_a_mirror_that_takes_longer_chooses_for_itself() -> None:
    """On A100s an all_gather of 4 MiB moves whole chunks, but a reduce_scatter loses 7% by that."""
    contents = library_contents(LibraryRequest("dgx-a100"), CUDA)
    (document,), (entries,) = contents.documents, contents.entries
    chosen = {
        collective: {
            (document.plans[e.plan].kind, e.when.protocol, e.program.chunk_bytes, e.spread)
            for e in entries
            if document.plans[e.plan].collective is collective
        }
        for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    }
    assert len(set(chosen[Collective.REDUCE_SCATTER])) > 1
    assert chosen[Collective.ALL_GATHER] != chosen[Collective.REDUCE_SCATTER]


@needs_sources
def test_no_machine_falls_below_nine_tenths_of_the_best_candidate() -> None:
    rows = page_rows()
    assert len({name for name, _ in rows}) >= 17
    assert {name for (name, _), shares in rows.items() if min(shares) < LEAST} == set()


@needs_sources
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({name for name, _ in page_rows()} if SCRIPT.is_file() else ()))
def test_the_page_holds(name: str) -> None:
    """At 1 GiB a machine's default library reaches what the page says of it, for every collective."""
    spec = importlib.util.spec_from_file_location("defaults", SCRIPT)
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    sys.modules["defaults"] = script
    spec.loader.exec_module(script)
    contents = library_contents(LibraryRequest(name), CUDA)
    for collective in COMPILED:
        ((_, share, held, best),) = script.cells(contents, collective, (1 << 30,))
        said = page_rows()[name, collective.value][-1]
        assert share >= said - 0.01, f"{collective.value}: {share:.2f} of {best} by {held}, {said} on the page"
