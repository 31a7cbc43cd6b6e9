"""`collc simulate --model-file`: training steps in place of calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli import collc, refused

SMALL = """format: collc-net/1
name: small
gpu: generic
forward_us: 1000
layers:
  - [first, 4000000, 500]
  - [last, 40000000, 500]
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def steps(*arguments: str | Path) -> list[dict[str, float | str]]:
    done = collc("simulate", *map(str, arguments), "--json")
    assert done.code == 0, done.err
    found: list[dict[str, float | str]] = json.loads(done.out)["steps"]
    return found


def test_rows_of_every_library(net: Path) -> None:
    found = {row["library"]: row for row in steps("dgx1v", "--gpus", "0-3", "--model", "generic", "--model-file", net)}
    assert list(found) == ["collc", "nccl", "ring by hand", "single reducer"]
    for row in found.values():
        assert row["compute_us"] == 2000
        assert float(row["step_us"]) == pytest.approx(2000 / (1 - float(row["communication_share"])))
        assert float(row["speedup"]) == pytest.approx(4 * 2000 / float(row["step_us"]))
        assert float(row["efficiency"]) == pytest.approx(float(row["speedup"]) / 4)
    times = [float(row["communication_us"]) for row in found.values()]
    assert times[0] == min(times)


def test_scaling_counts_up_to_all(net: Path) -> None:
    found = steps("dgx1v", "--gpus", "0,1,2", "--model", "generic", "--model-file", net, "--scaling")
    assert [row["gpus"] for row in found if row["library"] in ("one GPU", "collc")] == [1, 2, 3]
    assert found[0]["step_us"] == 2000


def test_nccl_takes_pcie_where_no_ring_closes(net: Path) -> None:
    found = {r["library"]: r for r in steps("dgx1v", "--gpus", "0,1,4", "--model", "generic", "--model-file", net)}
    assert float(found["nccl"]["communication_us"]) > 1.5 * float(found["collc"]["communication_us"])


def test_a_table_for_people() -> None:
    done = collc("simulate", "dgx1v", "--gpus", "0,1", "--model-file", "resnet18")
    assert done.code == 0
    assert "a training step of resnet18: 46.8 MB of gradients in 3 all_reduces per step, simulated" in done.out
    assert "efficiency" in done.out


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--collective", "broadcast"], "--collective is about single calls"),
        (["--chunk", "4K"], "--chunk is about single calls"),
        (["--proto", "LL"], "--proto is about single calls"),
        (["--channels", "2"], "--channels is about single calls"),
        (["--trace", "x.json"], "--trace is about single calls"),
        (["--model", "h100"], "resnet18 has no times for h100"),
    ],
)
def test_options_that_do_not_fit(arguments: list[str], what: str) -> None:
    line = refused(collc("simulate", "dgx1v", "--gpus", "0,1", "--model-file", "resnet18", *arguments), code=2)
    assert what in line


def test_scaling_alone() -> None:
    assert "add --model-file" in refused(collc("simulate", "dgx1v", "--scaling"), code=2)
