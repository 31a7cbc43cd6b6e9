"""`collc simulate` from outside: contract of the rows, choices, traces, refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli import collc, refused

ROW = [
    *("collective", "type", "op", "root", "in_place", "bytes", "plan", "proto"),
    *("time_us", "algbw_gbps", "busbw_gbps", "wrong"),
]
FIXED = ("--plan", "rings", "--chunk", "256K", "--channels", "6")


def rows(*argv: str | int) -> dict[str, Any]:
    result = collc("simulate", *argv, "--json")
    assert result.code == 0, result.err
    answer: dict[str, Any] = json.loads(result.out)
    return answer


def test_rows_are_the_contract() -> None:
    found = rows("dgx1v", "-b", "1M", "-e", "16M", "-f", "4", *FIXED)
    assert [row["bytes"] for row in found["rows"]] == [1 << 20, 4 << 20, 16 << 20]
    for row in found["rows"]:
        assert list(row) == ROW
        assert row["wrong"] is None
        assert row["algbw_gbps"] == pytest.approx(row["bytes"] / row["time_us"] / 1e3)
        assert row["busbw_gbps"] == pytest.approx(row["algbw_gbps"] * 14 / 8)
    times = [row["time_us"] for row in found["rows"]]
    assert times == sorted(times)


def test_per_rank_collectives_count_bytes_as_nccl_tests_does() -> None:
    found = rows("dgx-a100", "--collective", "all_gather", "-b", "1000", "-e", "1000", "--plan", "one-hop", *FIXED[2:])
    assert found["rows"][0]["bytes"] == 1000 // 4 // 8 // 4 * 4 * 4 * 8


def test_text_shows_time_links_and_the_critical_path() -> None:
    result = collc("simulate", "dgx1v", "-b", "4M", "-e", "4M", *FIXED)
    assert result.code == 0
    assert "rings" in result.out
    assert "critical path" in result.out
    assert "gpu0 -> gpu3" in result.out


def test_critical_path_adds_up_to_the_time() -> None:
    found = rows("dgx1v", "-b", "64K", "-e", "16M", "-f", "16", *FIXED)
    for row, detail in zip(found["rows"], found["details"], strict=True):
        path = detail["critical_path"]
        assert path["launch_us"] + path["work_us"] + path["hop_us"] == pytest.approx(row["time_us"])
        assert 0 < max(detail["utilization"].values()) <= 1


def test_the_choice_is_never_slower_than_a_fixed_plan_and_is_explained() -> None:
    gpus = ("--gpus", "0,1,2,3", "-b", "4K", "-e", "16M", "-f", "64")
    found = rows("dgx1v", *gpus)
    (choices,) = found["choices"].values()
    assert choices[0]["min_bytes"] == 0
    assert all(choice["why"] for choice in choices)
    for fixed in ("trees", "rings"):
        other = rows("dgx1v", *gpus, "--plan", fixed, "--proto", "Simple")
        for mine, theirs in zip(found["rows"], other["rows"], strict=True):
            # A choice of a smaller size is kept until another is 3% faster.
            assert mine["time_us"] <= theirs["time_us"] * 1.031


def test_trace_is_chrome_json_with_every_step(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    result = collc("simulate", "dgx1v", "-b", "1M", "-e", "1M", *FIXED, "--trace", path)
    assert result.code == 0, result.err
    trace = json.loads(path.read_text())
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    # 48 shares of one chunk, 15 steps each: 7 up, the root, 7 down.
    assert len(slices) == 48 * 15
    assert {event["pid"] for event in slices} == set(range(8))
    assert all(event["dur"] >= 0 and event["ts"] >= 5 for event in slices)
    assert any(event["cat"] == "critical" for event in slices)
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert names == {f"rank {r}" for r in range(8)}


def test_compare_nccl_shows_ring_and_tree() -> None:
    found = rows("dgx1v", "-b", "1M", "-e", "64M", "-f", "64", "--plan", "rings", "--compare", "nccl")
    beside = found["compare"]["all_reduce"]
    assert set(beside) == {"nccl", "nccl-ring", "nccl-tree"}
    assert {row["plan"] for row in beside["nccl-tree"]} == {"chain"}
    text = collc("simulate", "dgx1v", "-b", "1M", "-e", "1M", *FIXED, "--compare", "nccl")
    assert "nccl-ring" in text.out


def test_plot_needs_matplotlib_or_draws(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    argv = (
        "simulate",
        "dgx1v",
        "--gpus",
        "0,1,2,3",
        "-b",
        "1M",
        "-e",
        "4M",
        *FIXED,
        "--compare",
        "nccl",
        "--plot",
        path,
    )
    result = collc(*argv)
    if result.code:
        assert "collc[plot]" in refused(result)
        return
    first = path.read_bytes()
    assert b"<svg" in first
    assert collc(*argv).code == 0
    assert path.read_bytes() == first


def test_one_gpu_takes_the_launch() -> None:
    found = rows("dgx1v", "--gpus", "3", "-b", "1M", "-e", "1M")
    assert found["rows"][0]["time_us"] == 21.0
    assert found["parameters"] == "parameters of v100: the topology's GPUs are V100"
    generic = rows("dgx1v", "--gpus", "3", "-b", "1M", "-e", "1M", "--model", "generic")
    assert generic["rows"][0]["time_us"] == 5.0


SMALL = ("-b", "1M", "-e", "1M", "--plan", "rings", "--chunk", "64K", "--channels", "6")


def test_the_text_says_which_parameters_and_which_times() -> None:
    text = collc("simulate", "dgx1v", *SMALL)
    assert text.out.startswith("parameters of v100: the topology's GPUs are V100\ntimes per call of calls in a row")
    assert "from 1 MiB: this plan never measured; NCCL in the same model: compared at" in text.out
    amd = collc("simulate", "mi300x", *SMALL)
    assert amd.out.startswith("parameters of a generic GPU: there are none for MI300X")
    assert "never compared with a measurement (machine, generation" in amd.out


def test_one_call_takes_no_less_than_one_of_many() -> None:
    chain = (
        "--plan",
        "chain",
        "--chunk",
        "64K",
        "--channels",
        "6",
        "--collective",
        "broadcast",
        "-b",
        "1M",
        "-e",
        "1M",
    )
    many, one = (rows("dgx1v", *chain, option)["rows"][0]["time_us"] for option in ("--throughput", "--latency"))
    assert many < one
    assert rows("dgx1v", *chain)["rows"][0]["time_us"] == many


def test_every_figure_says_what_it_can_be_trusted_for() -> None:
    found = rows("dgx1v", *SMALL, "--compare", "nccl")
    mine = found["details"][0]["judged"]
    assert (mine["compared"], mine["range_us"]) == (False, None)
    for line in found["compare"]["all_reduce"].values():
        for row in line:
            assert row["judged"]["compared"]
            low, high = row["judged"]["range_us"]
            assert low <= row["time_us"] <= high
            assert row["judged"]["median_error"] < 0.5
            assert row["judged"]["size_class"] == "from 1 MiB"


def test_parameters_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"format": "collc-params/1", "launch_us": 1021}')
    plain, changed = rows("dgx1v", *SMALL), rows("dgx1v", *SMALL, "--params", str(path))
    assert changed["rows"][0]["time_us"] == pytest.approx(plain["rows"][0]["time_us"] + 1000)
    assert str(path) in changed["parameters"]
    assert changed["details"][0]["judged"]["known"]["parameters"] is False


def test_the_version_of_nccl_matters() -> None:
    options = (*SMALL, "--compare", "nccl")
    old, new = (rows("hgx-h100", *options, "--nccl-version", v)["compare"]["all_reduce"] for v in ("2.12", "2.27"))
    assert "nccl-nvls" in new
    assert "nccl-nvls" not in old


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("-b", "8M", "-e", "1M"), "is below -b"),
        (("-b", "0"), "moves nothing"),
        (("-b", "8", "-f", "1", "-i", "0"), "never end"),
        (("-b", "8", "-e", "1G", "-f", "1", "-i", "8"), "too many"),
        (("--plot", "a.svg"), "--compare nccl"),
        (("--nccl-version", "2.19"), "--compare nccl"),
        (("--fabric", "efa"), "--compare nccl"),
        (("--compare", "nccl", "--nccl-version", "1.0"), "no rule is known"),
        (("--root", "9", "--collective", "broadcast"), "no rank 9"),
        (("--collective", "reduce", "--collective", "broadcast", "--trace", "x.json"), "one --collective"),
    ],
)
def test_usage_errors_are_one_line(argv: tuple[str, ...] | tuple[str, str], words: str) -> None:
    assert words in refused(collc("simulate", "dgx1v", *argv), code=2)


def test_a_version_without_rules_is_refused_before_anything_is_read() -> None:
    argv = ("simulate", "no-such.yaml", "--compare", "nccl", "--nccl-version", "1.0")
    assert "no rule is known" in refused(collc(*argv), code=2)


def test_a_parameter_file_that_is_not_there_is_one_line() -> None:
    assert "none.json: cannot read" in refused(collc("simulate", "dgx1v", "--params", "none.json"), code=1)


def test_ll128_is_refused_without_nvlink() -> None:
    argv = ("simulate", "pcie-8x4090", "-b", "1M", "-e", "1M", "--proto", "LL128")
    assert "needs NVLink" in refused(collc(*argv), code=2)
    assert "needs NVLink" in refused(collc(*argv, "--chunk", "64K"), code=2)


def test_a_plan_that_the_graph_lacks_is_refused() -> None:
    result = collc("simulate", "dgx1v", "--gpus", "0,1,2,3,7", "-b", "1M", "-e", "1M", "--plan", "rings")
    assert "no ring closes" in refused(result)


def test_a_copy_engine_costs_a_launch_per_chunk() -> None:
    argv = ("pcie-4xl40s", "-b", "64K", "-e", "64M", "-f", "1024", "--plan", "rings")
    plain, copied = rows(*argv)["rows"], rows(*argv, "--copy-engine")["rows"]
    assert [row["proto"] for row in copied] == ["Simple", "Simple"]
    small, large = (b["time_us"] / a["time_us"] for a, b in zip(plain, copied, strict=True))
    assert small > 1.5
    assert 1 < large < small
    refusal = refused(collc("simulate", *argv, "--copy-engine", "--proto", "LL"), code=2)
    assert "no use for a copy engine" in refusal


def test_a_plot_that_cannot_be_drawn_is_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    argv = ["simulate", "dgx1v", "--compare", "nccl", "--plot"]
    monkeypatch.setattr("collc.cli.simulate.load_topology", lambda name: pytest.fail("work has begun"))
    assert "no figure format '.bmp' (use .svg, .png, .pdf)" in refused(collc(*argv, tmp_path / "a.bmp"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "plots need matplotlib (pip install 'collc[plot]')" in refused(collc(*argv, tmp_path / "a.svg"))
