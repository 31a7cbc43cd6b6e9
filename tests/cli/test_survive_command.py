"""`collc plan --survive 1`, and the reports of other commands on losses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.changed import tables_library
from support.cli import collc, refused
from support.libraries import library, topology_file

from collc.collectives.model import Collective


def test_plan_prints_the_rates_before_and_after_each_loss(tmp_path: Path) -> None:
    odd = topology_file("odd")
    text = collc("plan", odd, "--survive", "1", "--collective", "all_reduce")
    assert text.code == 0
    assert "gpu gpu2" in text.out
    told = json.loads(collc("plan", odd, "--survive", "1", "--json").out)
    assert told["format"] == "collc-survive/1"
    assert told["losses"][0]["what"] == "nothing"
    assert {row["kind"] for row in told["losses"][1:]} == {"link", "gpu"}
    for row in told["losses"]:
        plans = {plan["collective"]: plan for plan in told["plans"][row["fingerprint"]]["plans"]}
        assert row["rates_gbps"] == {name: plan["rate_gbps"] for name, plan in plans.items()}
        assert row["optimal"] is all(plan["optimal"] for plan in plans.values()) is True
    for number, document in enumerate(told["plans"].values()):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(document))
        assert collc("verify", path).code == 0
    whole = json.loads(collc("plan", odd, "--json").out)
    assert [plan["rate_gbps"] for plan in whole["plans"]][:2] == [
        told["plans"][told["losses"][0]["fingerprint"]]["plans"][number]["rate_gbps"] for number in range(2)
    ]


def test_large_plans_are_never_held_as_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses of 64 servers of 8 have 100 million hops: they are written tree by tree."""
    whole = json.loads(collc("plan", topology_file("odd"), "--survive", "1", "--json").out)
    wanted = collc("plan", topology_file("odd"), "--json", "--collective", "all_reduce").out
    name = whole["losses"][0]["fingerprint"]
    plans = {plan["collective"]: plan for plan in whole["plans"][name]["plans"]}
    assert plans["all_reduce"] == json.loads(wanted)["plans"][0]
    lengths: list[int] = []
    monkeypatch.setattr("collc.cli.report.raw_json", lambda piece: lengths.append(len(piece)))
    assert collc("plan", "dgx1v", "--survive", "1", "--collective", "all_gather", "--json").code == 0
    assert max(lengths) * 10 < sum(lengths)


def test_a_loss_that_cuts_a_gpu_off_has_no_rates_and_a_reason() -> None:
    result = collc("plan", topology_file("pair"), "--survive", "1")
    assert result.code == 0
    assert "link gpu0-gpu1, nvlink: gpu1 cannot be reached from gpu0" in result.out
    (_, row) = json.loads(collc("plan", topology_file("pair"), "--survive", "1", "--json").out)["losses"]
    assert (row["gpus"], row["rates_gbps"], row["optimal"]) == (0, {}, None)
    assert "cannot be reached" in row["why_none"]


@pytest.mark.parametrize("value", ["-1", "2", "99", "x", "1.0", ""])
@pytest.mark.parametrize("name", ["plan", "compile"])
def test_other_numbers_of_losses_are_refused(name: str, value: str) -> None:
    assert "--survive" in refused(collc(name, "dgx1v", "--survive", value), code=2)


@pytest.mark.parametrize(
    "others",
    [["--root", "0"], ["--allocations", "all"], ["--compare", "rings"], ["--trade"], ["--orbits"], ["--expand"]],
)
def test_plan_refuses_what_does_not_go_with_losses(others: list[str]) -> None:
    line = refused(collc("plan", "dgx1v", "--survive", "1", *others), code=2)
    assert line.endswith(")")


def test_compile_refuses_sets_by_name(tmp_path: Path) -> None:
    out = tmp_path / "libcollc-x.so"
    line = refused(collc("compile", "dgx1v", "--survive", "1", "--allocations", "0,1,2", "-o", out), code=2)
    assert "may hold the GPU that is lost" in line
    gpus = ["--gpus", "0,1,2", "--allocations", "all"]
    assert "omit --gpus" in refused(collc("compile", "dgx1v", "--survive", "1", *gpus, "-o", out), code=2)
    assert not out.exists()


def test_inspect_shows_the_losses_of_a_library() -> None:
    path = tables_library("odd", collectives=(Collective.ALL_REDUCE,), survive=1)
    text = collc("inspect", path)
    assert "survives 6 losses" in text.out
    assert "gpu0-gpu1 nvlink, 0 of 50 GB/s left" in text.out
    rows = json.loads(collc("inspect", path, "--json").out)["losses"]
    assert [row["gpus"] for row in rows] == [3, 3, 3, 3, 2, 2, 2]
    assert "losses" not in json.loads(collc("inspect", library("pair"), "--json").out)
