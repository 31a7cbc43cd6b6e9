"""Figures of README and docs that do not depend on a machine are those that collc computes."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.cli import collc

from collc import load
from collc.collectives import Collective
from collc.packing.candidates.ring_rates import ring_rate
from collc.topology import zoo
from collc.topology.model import LinkKind

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="the documents are not beside these tests")


def page(name: str) -> str:
    """A page as one line, as a browser flows it."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def rows(name: str, first: str) -> dict[str, list[str]]:
    """The table of a page whose head starts with these cells: the cells of every row by its first one."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith(first)]
    found = {}
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found[cells[0]] = cells[1:]
    return found


def plan(collective: str, *options: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(collc("plan", "dgx1v", *options, "--collective", collective, "--json").out)
    first: dict[str, Any] = made["plans"][0]
    return first


def rate(collective: str, *options: str) -> Fraction:
    return Fraction(plan(collective, *options)["rate_gbps"])


def written(value: Fraction) -> str:
    """As the pages write a rate: exactly, and where that is a quotient also rounded."""
    return str(value) if value.denominator == 1 else f"{value} = {float(value):.1f}"


def test_the_rates_of_the_readme() -> None:
    pcie = {link.gbps for link in load("dgx1v").links if link.kind is LinkKind.PCIE and "gpu0" in (link.src, link.dst)}
    ring = ring_rate(Collective.ALL_REDUCE, nranks=4, rings=1, unit=pcie.pop())
    made = plan("all_reduce", "--gpus", "0,1,4,6")
    limit = Fraction(made["rate_gbps"])
    assert made["optimal"]
    table = rows("README.md", "| all_reduce on GPUs 0, 1, 4, 6 of a DGX-1V")
    assert [value for (value,) in table.values()] == [f"{float(ring):.1f}", str(limit), str(limit)]


def test_the_machines_are_counted() -> None:
    assert f" {len(zoo.names())} machines come with collc" in page("README.md")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docs/index.md", "A tree still runs at the speed of a link: {} GB/s"),
        ("docs/optimal.md", "Is {} GB/s the most?"),
        ("docs/optimal.md", "no such schedule exceeds 100 / 4 = {} GB/s"),
        ("docs/tutorial.md", "so {} GB/s is the most. The plan reaches it."),
    ],
)
def test_four_gpus(name: str, text: str) -> None:
    made = plan("all_reduce", "--gpus", "0,1,4,6")
    assert text.format(made["rate_gbps"]) in page(name)
    parts = sorted(sorted(part) for part in made["certificate"]["parts"])
    assert parts == [["gpu0", "gpu4"], ["gpu1"], ["gpu6"]], "the three parts of the page"


def test_eight_gpus() -> None:
    made = plan("all_reduce")
    text = f"8 parts, 14 crossings, 1200 GB/s of links, so 1200 / 14 = {written(Fraction(made['rate_gbps']))} GB/s"
    assert text in page("docs/optimal.md")
    assert len(made["certificate"]["parts"]) == 8
    links = json.loads(collc("plan", "dgx1v", "--collective", "all_reduce", "--json").out)["links"]
    assert sum(Fraction(link["gbps"]) for link in links) == 1200
    assert f"{written(Fraction(made['rate_gbps']))} GB/s" in page("docs/simulate.md")


def test_the_best_set_of_four() -> None:
    sets = json.loads(collc("plan", "dgx1v", "--allocations", "4..4", "--collective", "all_reduce", "--json").out)[
        "allocations"
    ]
    found = [Fraction(one["plan"]["plans"][0]["rate_gbps"]) for one in sets]
    assert max(found) == 6 * min(found)
    assert "the best set of four all-reduces six times as fast as the worst" in page("docs/faq.md")
    assert f"GPUs 0 to 3 reach {max(found)} GB/s" in page("docs/tutorial.md")
    assert max(found) == rate("all_reduce", "--gpus", "0-3")


@pytest.mark.slow
def test_what_losses_take() -> None:
    table = rows("docs/clusters.md", "| lost | alike | GPUs | all_reduce |")
    made = json.loads(collc("plan", "dgx1v", "--survive", "1", "--json").out)
    labels = {None: "nothing", "link": "any link", "gpu": "any GPU"}
    assert {label.split(" (")[0] for label in table} == set(labels.values())
    whole = made["losses"][0]["rates_gbps"]
    for kind, label in labels.items():
        alike = [row for row in made["losses"] if row["kind"] == kind]
        (cells,) = [cells for name, cells in table.items() if name.split(" (")[0] == label]
        (rates,) = {json.dumps([row["rates_gbps"], row["gpus"]]) for row in alike}
        found, gpus = json.loads(rates)
        shown = [found[name] for name in ("all_reduce", "all_gather", "broadcast")]
        if kind:
            (told,) = [name for name in table if name.startswith(label)]
            assert told == f"{label} ({len(alike)} kinds)"
            assert cells[0] == str(sum(row["alike"] for row in alike))
            shown = [
                f"{value} ({float(Fraction(value) / Fraction(whole[name])):.0%})"
                for name, value in zip(("all_reduce", "all_gather", "broadcast"), shown, strict=True)
            ]
        assert cells[1:] == [str(gpus), *shown]
    lost = [row for row in made["losses"] if row["kind"]]
    text = f"A DGX-1V has {sum(row['alike'] for row in lost)} single losses, {len(lost)} up to symmetry."
    assert text in page("docs/clusters.md")
