"""Each kind of input gives the right views, and wrong input is refused with one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.cli import collc, refused
from support.libraries import library

ROW = {"collective": "all_reduce", "bytes": 1024, "time_us": 2.0, "algbw_gbps": 0.5, "busbw_gbps": 0.8, "wrong": 0}
EVENT = {
    "ph": "X",
    "name": "send",
    "cat": "step",
    "pid": 0,
    "tid": 0,
    "ts": 0.5,
    "dur": 1.5,
    "args": {
        "share": 0,
        "chunk": 0,
        "bytes": 64,
        "released_by": "data",
        "from": [],
        "to": [1],
        "over": ["gpu0 > gpu1"],
    },
}


def shown(*words: object) -> list[dict[str, Any]]:
    result = collc("show", *words, "--json")
    assert result.code == 0, result.err
    views: list[dict[str, Any]] = json.loads(result.out)["views"]
    return views


def written(path: Path, value: object) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_results_are_compared_as_ratios(tmp_path: Path) -> None:
    first = written(tmp_path / "before.json", {"rows": [ROW, {**ROW, "bytes": 4096, "time_us": 4.0}]})
    second = written(
        tmp_path / "after.json", {"rows": [{**ROW, "time_us": 1.0}, {**ROW, "bytes": 4096, "time_us": 6.0}]}
    )
    (view,) = shown(first, "--compare", second)
    assert view["kind"] == "results"
    assert view["names"] == ["before", "after"]
    before, after = view["plots"][0]["series"]
    assert [point[4] for point in before["points"]] == [1.0, 1.0]
    assert [point[4] for point in after["points"]] == [0.5, 1.5]


def test_a_simulation_beside_nccl_has_ranges(tmp_path: Path) -> None:
    words = ("simulate", "dgx1v", "-b", "1M", "-e", "1M", "--compare", "nccl", "--json")
    printed = json.loads(collc(*words).out)
    (view,) = shown(written(tmp_path / "run.json", printed))
    series = {each["name"]: each["points"] for each in view["plots"][0]["series"]}
    nccl = next(name for name in series if name.split(", ")[0] == "nccl")
    assert next(iter(series)) == "collc"
    row = printed["compare"]["all_reduce"]["nccl"][0]
    ours = printed["rows"][0]["time_us"]
    point = series[nccl][0]
    assert point[4] == pytest.approx(row["time_us"] / ours)
    assert point[5:] == pytest.approx([end / ours for end in row["judged"]["range_us"]])


def test_times_of_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    assert collc("simulate", "dgx1v", "--gpus", "0,1,4,6", "-b", "1M", "-e", "1M", "--trace", trace).code == 0
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    (view,) = shown(trace)
    columns = view["columns"]
    assert len(columns["begin"]) == len(events)
    assert columns["begin"] == sorted(columns["begin"])
    assert sum(columns["critical"]) == sum(e["cat"] == "critical" for e in events)
    assert {"gpu0 > gpu1", "gpu4 > gpu6"} <= set(view["links"])
    # Every send goes over the links of its hop.
    assert all(bool(over) == bool(to) for over, to in zip(columns["over"], columns["to"], strict=True))
    # The same call straight from the topology.
    views = shown("dgx1v", "--gpus", "0,1,4,6", "--time", "1M", "--collective", "all_reduce")
    assert [v["kind"] for v in views] == ["machine", "plan", "timeline"]
    assert views[2]["columns"] == columns


def test_passes_side_by_side(tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    words = [
        "--dump-after",
        "build",
        "--dump-after",
        "fuse_copies",
        "--dump-after",
        "merge_channels",
        "--dump-dir",
        dumps,
    ]
    out = tmp_path / "libcollc-x.so"
    result = collc(
        "compile", "dgx1v", "--gpus", "0,1", "--collective", "all_gather", "--target", "host", "-o", out, *words
    )
    assert result.code == 0, result.err
    (view,) = shown(dumps)
    assert [p["title"] for p in view["pairs"]] == [
        "all_gather after build | fuse_copies",
        "all_gather after fuse_copies | merge_channels",
    ]
    before, after = dumps / "all_gather.build.ir", dumps / "all_gather.fuse_copies.ir"
    for pair in (view["pairs"][0], shown(before, "--compare", after)[0]["pairs"][0]):
        left = [row[1] for row in pair["rows"] if row[0] != "add" and (row[1] or row[0] != "change")]
        right = [row[2] for row in pair["rows"] if row[0] != "remove" and (row[2] or row[0] != "change")]
        assert left == before.read_text().splitlines()
        assert right == after.read_text().splitlines()
        assert any(row[0] != "same" for row in pair["rows"])
    (single,) = shown(before)
    assert single["pairs"][0]["after"] is None


def test_plans_beside_each_other(tmp_path: Path) -> None:
    files = []
    for gpus in ("0,1,4,6", "0,1,2,3"):
        printed = collc("plan", "dgx1v", "--gpus", gpus, "--collective", "all_reduce", "--json").out
        files.append(written(tmp_path / f"plan{gpus[-1]}.json", printed))
    views = shown(files[0], "--compare", files[1])
    rates = next(v for v in views if v["kind"] == "results")["rates"]
    assert [row["rate_gbps"] for row in rates] == ["25", json.loads(files[1].read_text())["plans"][0]["rate_gbps"]]
    assert len([v for v in views if v["kind"] == "plan"]) == 2


def test_a_library_shows_its_proved_plans() -> None:
    views = shown(library("pair"))
    assert {v["kind"] for v in views} == {"plan"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no object", []),
        ("another document", {"answer": 42}),
        ("half a document", '{"rows": ['),
        ("no rows", {"rows": []}),
        ("a row of text", {"rows": ["x"]}),
        ("a row without a time", {"rows": [{"collective": "all_reduce", "bytes": 8}]}),
        ("a time of text", {"rows": [{**ROW, "time_us": "soon"}]}),
        (
            "an endless time",
            '{"rows": [{"collective": "x", "bytes": 8, "time_us": 1e999, "algbw_gbps": 1, "busbw_gbps": 1}]}',
        ),
        ("half a byte", {"rows": [{**ROW, "bytes": 0.5}]}),
        ("no events", {"traceEvents": {}}),
        ("no steps", {"traceEvents": []}),
        ("a step without args", {"traceEvents": [{**EVENT, "args": None}]}),
        ("a time of a list", {"traceEvents": [{**EVENT, "ts": []}]}),
        ("half a rank", {"traceEvents": [{**EVENT, "pid": 0.5}]}),
        ("targets of text", {"traceEvents": [{**EVENT, "args": {**EVENT["args"], "to": "all"}}]}),  # type: ignore[dict-item]
    ],
)
def test_documents_that_are_none(tmp_path: Path, name: str, value: object) -> None:
    path = written(tmp_path / "file.json", value)
    line = refused(collc("show", path, "-o", tmp_path / "out.html"))
    assert "file" in line
    assert line.endswith(")"), line


def test_figures_and_text(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    four = ("dgx1v", "--gpus", "0,1,4,6")
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    for suffix, start in starts.items():
        for words in (("dgx1v",), (*four, "--tree", "1")) if suffix == "svg" else (four,):
            paths = [tmp_path / f"{i}.{suffix}" for i in range(2 if suffix == "svg" else 1)]
            for path in paths:
                assert collc("show", *words, f"--{suffix}", path).code == 0
            assert paths[0].read_bytes().startswith(start)
            assert paths[0].read_bytes() == paths[-1].read_bytes()
    refused(collc("show", *four, "--tree", "99", "--svg", tmp_path / "x.svg"), code=2)
    refused(collc("show", *four, "--svg", tmp_path / "x.png"), code=2)
    refused(collc("show", *four, "--text", "--json"), code=2)
    rows = written(tmp_path / "rows.json", {"rows": [ROW, {**ROW, "bytes": 4096}]})
    assert collc("show", rows, "--svg", tmp_path / "rows.svg").code == 0
    assert collc("show", *four, "--time", "64K", "--svg", tmp_path / "time.svg").code == 0


def test_the_picture_in_a_terminal() -> None:
    text = collc("show", "dgx1v", "--gpus", "0,1,4,6", "--collective", "all_reduce", "--text").out
    for part in (
        "dgx1v: 8 GPUs in 1 server",
        "│  ├─ plx0",
        "all_reduce runs at 25 GB/s",
        "100 GB/s lead out of 3 parts: {gpu0 gpu4}, {gpu1}, {gpu6}",
    ):
        assert part in text
    matrix = [line.split() for line in text.splitlines() if line.startswith("gpu") and "FULL*" in line]
    assert {row[0]: row[1:].count("FULL*") for row in matrix} == {"gpu0": 1, "gpu1": 1, "gpu4": 1, "gpu6": 1}
    assert max(map(len, text.splitlines())) < 200
    folded = collc("show", "gb200-nvl72", "--text", "--collective", "broadcast").out
    assert "server0 to server17: 18 servers alike" in folded
