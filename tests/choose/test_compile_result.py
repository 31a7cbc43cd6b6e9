"""The report of a compilation: the table with reasons for one set of GPUs, the rule for many sets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from collc.build.compile import Library
from collc.choose.library import choose_programs
from collc.choose.strategy import Strategy
from collc.collectives.model import Collective
from collc.compiler import BY_RULE, CompileResult
from collc.options import CUDA, TargetKind
from collc.packing.document import PlanFile
from collc.pipeline import Recorder, pack
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

WHOLE = ((Collective.ALL_REDUCE, None), (Collective.BROADCAST, 0))


def result(way: Strategy, *sets: str, asked: Sequence[tuple[Collective, int | None]] = WHOLE) -> CompileResult:
    documents, entries = [], []
    for gpus in sets:
        graph = plan_graph(load_topology("dgx1v"), gpus.split(","))
        plans = pack(graph, asked, Recorder())
        held = choose_programs(graph, plans, CUDA, way)
        documents.append(PlanFile(graph.name, fingerprint(graph), graph, held.plans))
        entries.append(held.entries)
    library = Library(Path("x.so"), "0", 1)
    return CompileResult(library, TargetKind.CUDA, tuple(documents), len(sets), None, tuple(entries))


def test_one_set_prints_every_crossover_with_its_reason() -> None:
    made = result(Strategy.MODEL, "gpu0,gpu1,gpu2")
    tables = made.tables()
    assert list(tables) == ["all_reduce", "broadcast"]
    text = made.summary()
    for rows in tables.values():
        assert rows[0]["min_bytes"] == 0
        for row in rows:
            assert row["why"]
            assert f"from {row['min_bytes']:>12} bytes: {row['variant']}" in text
            assert str(row["why"]) in text


def test_reasons_name_sizes_not_bytes() -> None:
    """Three equal blocks of 16-byte units take 1048560 bytes of 1 MiB, which nobody reads as 1M."""
    made = result(Strategy.MODEL, "gpu0,gpu1,gpu2", asked=[(Collective.ALL_GATHER, None)])
    reasons = [str(row["why"]) for row in made.tables()["all_gather"]]
    sizes = re.findall(r"faster at (\S+):", " ".join(reasons))
    assert sizes
    assert all(re.fullmatch(r"\d+[KMG]", size) for size in sizes), sizes


def test_several_sets_say_that_a_rule_chose() -> None:
    text = result(Strategy.RULE, "gpu0,gpu1", "gpu0,gpu3").summary()
    assert "2 distinct sets of 2 GPUs" in text
    assert text.endswith(BY_RULE)


def test_reasons_stand_apart_from_programs_of_long_names(monkeypatch: pytest.MonkeyPatch) -> None:
    made = result(Strategy.RULE, "gpu0,gpu1,gpu2")
    rows = [(0, "ring/LL/16Kx1", "few hops"), (4096, "hierarchical-rings/Simple/16Kx32", "4% faster")]
    monkeypatch.setattr(CompileResult, "table_of", lambda self, plan: rows)
    told = [line for line in made.summary().splitlines() if line.startswith("  from")]
    assert told[:2] == [
        "  from            0 bytes: ring/LL/16Kx1                     few hops",
        "  from         4096 bytes: hierarchical-rings/Simple/16Kx32  4% faster",
    ]
