"""`compile --plan`: plans of the user's own are checked, kept as they are, and proved like ours; others are packed."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.cli import collc, refused

from collc.choose.given import GIVEN, given_plans, read_given
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.collectives.model import Collective
from collc.errors import CertificateError, UsageError
from collc.options import TARGETS, TargetKind
from collc.packing import plan
from collc.packing.document import plan_file, to_json
from collc.packing.model import Plan
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

GRAPH = plan_graph(load_topology("dgx1v"), ["gpu0", "gpu1", "gpu2", "gpu3"])
PACKED = tuple(plan(GRAPH, Collective.BROADCAST, root) for root in range(4))
Document = dict[str, Any]


def by_hand(root: int = 0) -> Document:
    """A plan of one tree, its rate told and no bound claimed, as somebody might write it."""
    document = to_json(plan_file(GRAPH, (PACKED[root],)))
    (own,) = document["plans"]
    own["trees"] = own["trees"][:1]
    own |= {"rate_gbps": own["trees"][0]["weight_gbps"], "bound_gbps": None, "certificate": None}
    own |= {"optimal": False, "solver": "by hand"}
    return document


def written(folder: Path, document: Document) -> Path:
    path = folder / "mine.json"
    path.write_text(json.dumps(document))
    return path


def held(path: Path) -> tuple[Plan, ...]:
    return given_plans(*read_given(path), GRAPH, PACKED)


def test_a_plan_takes_the_place_of_the_packed_one_and_gets_its_bound(tmp_path: Path) -> None:
    path = written(tmp_path, by_hand(2))
    found = held(path)
    assert [p is q for p, q in zip(found, PACKED, strict=True)] == [True, True, False, True]
    own = found[2]
    assert (own.solver, len(own.trees), own.bound) == (GIVEN, 1, PACKED[2].bound)
    assert own.rate is not None
    assert PACKED[2].rate is not None
    assert own.rate < PACKED[2].rate
    assert not own.optimal


@pytest.mark.parametrize("kind", list(TargetKind))
def test_programs_run_the_given_trees_and_no_others(tmp_path: Path, kind: TargetKind) -> None:
    path = written(tmp_path, by_hand())
    request = LibraryRequest(
        "dgx1v", gpus="0-3", collectives=(Collective.BROADCAST, Collective.REDUCE), roots=(0, 1), plans=path
    )
    contents = library_contents(request, TARGETS[kind])
    plans, entries = contents.documents[0].plans, contents.entries[0]
    own = [number for number, p in enumerate(plans) if (p.collective, p.root) == (Collective.BROADCAST, 0)]
    assert [len(plans[number].trees) for number in own] == [1]
    assert len([entry for entry in entries if entry.plan in own]) >= 1
    # Another root of the same collective, and the one that is its mirror, keep what packing finds for them.
    kept = [p for p in plans if (p.collective, p.root) != (Collective.BROADCAST, 0) and p.solver != GIVEN]
    assert {(p.collective, p.root) for p in kept} >= {(Collective.BROADCAST, 1), (Collective.REDUCE, 0)}
    assert all(p.rate == 100 for p in kept if p.kind == "trees")


def test_a_library_with_a_plan_of_ones_own_is_verified_and_moves_data(tmp_path: Path) -> None:
    out, path = tmp_path / "mine.so", written(tmp_path, by_hand())
    made = collc("compile", "dgx1v", "--gpus", "0-3", "--target", "host", "--plan", path, "-o", out)
    assert made.code == 0, made.err
    assert "broadcast          50.00 GB/s (50, bound 100)" in made.out
    verified = collc("verify", out)
    assert verified.code == 0, verified.err
    assert "broadcast from rank 0: 50 GB/s, at most 100" in verified.out
    rows = json.loads(collc("bench", out, "--collective", "broadcast", "-b", "64K", "-e", "64K", "--json").out)["rows"]
    assert rows
    assert all(row["wrong"] == 0 for row in rows)


def drop_hop(document: Document) -> None:
    document["plans"][0]["trees"][0]["broadcast"].pop()


def too_fast(document: Document) -> None:
    own = document["plans"][0]
    own["rate_gbps"] = own["trees"][0]["weight_gbps"] = str(Fraction(own["rate_gbps"]) * 100)


def other_rate(document: Document) -> None:
    document["plans"][0]["rate_gbps"] = "51"


def false_bound(document: Document) -> None:
    own = document["plans"][0]
    own |= {"bound_gbps": own["rate_gbps"], "optimal": True, "certificate": {"kind": "cut", "side": ["gpu0"]}}


def optimal_without_proof(document: Document) -> None:
    document["plans"][0]["optimal"] = True


def twice(document: Document) -> None:
    document["plans"] *= 2


def none(document: Document) -> None:
    document["plans"] = []


def other_gpu(document: Document) -> None:
    document["ranks"][1]["gpu"] = "gpu7"


def faster_link(document: Document) -> None:
    document["links"][0]["gbps"] = "900"


def other_root(document: Document) -> None:
    document["plans"][0]["root"] = 3


def endless(document: Document) -> None:
    own = document["plans"][0]
    own["trees"][0]["broadcast"] *= 2


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (drop_hop, "plans[0]"),
        (too_fast, "plans[0]"),
        (other_rate, "plans[0]"),
        (false_bound, "plans[0]"),
        (twice, "a second one of broadcast from root 0"),
        (none, "has no plans"),
        (other_gpu, "no vertex 'gpu1'"),
        (faster_link, "the links of the plan are not those of the topology"),
        (other_root, "plans[0]"),
        (endless, "plans[0]"),
    ],
)
def test_plans_that_do_not_hold_are_refused(tmp_path: Path, damage: Callable[[Document], None], words: str) -> None:
    document = by_hand()
    damage(document)
    path = written(tmp_path, document)
    with pytest.raises((CertificateError, UsageError)) as error:
        held(path)
    assert str(path) in str(error.value)
    assert words in str(error.value)


def test_a_claim_without_a_bound_is_not_taken_over(tmp_path: Path) -> None:
    document = by_hand()
    optimal_without_proof(document)
    assert not held(written(tmp_path, document))[0].optimal


def test_the_wrong_places_for_a_plan_are_one_line(tmp_path: Path) -> None:
    path, out = written(tmp_path, by_hand()), tmp_path / "x.so"

    def line(*argv: object) -> str:
        return refused(collc("compile", *argv, "--target", "host", "--plan", path, "-o", out), code=2)

    assert "--plan is for one set of GPUs" in line("dgx1v", "--allocations", "3..4")
    assert "--plan is for one set of GPUs" in line("dgx1v", "--survive", "1")
    assert "rank 4 is nothing in the plan, gpu4 here" in line("dgx1v", "--gpus", "0-4")
    assert "broadcast from root 0 is not in the library" in line("dgx1v", "--gpus", "0-3", "--root", "1")
    exchange = to_json(plan_file(GRAPH, (plan(GRAPH, Collective.ALLTOALL, None),)))
    path.write_text(json.dumps(exchange))
    assert "has no trees" in line("dgx1v", "--gpus", "0-3")
    assert not out.exists()
