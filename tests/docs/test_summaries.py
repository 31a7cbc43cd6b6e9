"""The summaries of measurements and of the reproduced sources state what the data files under docs/data/ contain.

Each table of a summary is computed again from the data, and so is each number of the sentences in `SENTENCES`.
"""

from __future__ import annotations

import csv
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "data"
MEASUREMENTS = ROOT / "docs" / "measurements"
REPRODUCED = ROOT / "docs" / "reproduced"
VERDICTS = ("reproduced", "simulated within 15%", "off by more", "impossible here")
SOURCES = ("blink", "nccl-protocols", "baidu-ring", "ring-by-hand", "flexlink")
MAX_WORDS = 2500
PROCESSORS = {"Intel Xeon": "intel-xeon", "AMD EPYC": "amd-epyc"}
SIZES = ("1 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB")
SHAPES = ("3+5", "2+2", "2+2+2+2", "1+1+6")

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the documents are not beside these tests")


@cache
def tables() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import tables as module
    finally:
        sys.path.pop(0)
    return module


def rows(name: str, column: str, title: str | None = None) -> list[dict[str, str]]:
    """Returns the rows of a data file's tables that have this column."""
    found: list[dict[str, str]] = tables().load(DATA / f"{name}.yaml").rows(column, title)
    return found


def page(path: Path) -> str:
    return " ".join(path.read_text(encoding="utf-8").split())


def page_tables(path: Path) -> list[list[list[str]]]:
    """Returns the tables of a page: rows of cells, the head first."""
    found: list[list[list[str]]] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            found.append([])
        elif not set(line) <= set("|-: "):
            found[-1].append([cell.strip() for cell in line.strip()[1:-1].split("|")])
    return [table for table in found if table]


def percent(text: str) -> float:
    return float(text.split("%")[0])


# Measurements: each function returns the rows that a table of the page must have, without its head.


def ratios(name: str) -> list[tuple[float, dict[str, str], str]]:
    """Returns (ratio to the best peer, row, size) of every judged point of a bench-beside data file."""
    return [
        (float(row[size].split()[0]), row, size) for row in rows(name, "64 MiB") for size in SIZES if row[size] != "-"
    ]


def beside_summary() -> Iterator[list[str]]:
    for title, name in PROCESSORS.items():
        values = [value for value, _, _ in ratios(f"beside-{name}")]
        mean, largest, smallest = statistics.geometric_mean(values), max(values), min(values)
        above = sum(value > 1.1 for value in values)
        yield [title, str(len(values)), f"{mean:.2f}", f"{largest:.2f}", str(above), f"{smallest:.2f}"]


def beside_libraries() -> Iterator[list[str]]:
    each = [
        {row["beside"]: row["geometric mean"] for row in rows(f"beside-{n}", "beside")} for n in PROCESSORS.values()
    ]
    for library in sorted(each[0]):
        yield [library, *(means[library] for means in each)]


def beside_times() -> Iterator[list[str]]:
    for title, name in PROCESSORS.items():
        (row,) = (r for r in rows(f"beside-{name}", "64 MiB") if (r["collective"], r["ranks"]) == ("all_reduce", "2"))
        yield [title, *(row[size].split(", ")[-1].removesuffix(" us") for size in SIZES)]


def torch_ratios() -> Iterator[list[str]]:
    two, four = ({r[""]: r["ratio"] for r in rows("torch", "ratio", f"{n} ranks")} for n in (2, 4))
    for call in ("4 KiB", "1 MiB", "64 MiB"):
        yield [f"all_reduce, {call}", two[f"all_reduce, {call}"], four[f"all_reduce, {call}"]]
    step = "DDP step, 4.2 million parameters"
    yield [step, two[step], four[step]]


def gpu_medium_calls() -> Iterator[list[str]]:
    found = {row[""]: row for row in rows("gpu", "128K") if "" in row}
    sizes = ("8B", "128K", "1M", "8M", "64M")
    for label, name in (
        ("2", "2 ranks, by the model (H200)"),
        ("NCCL, 2", "NCCL, its own choice (H200)"),
        ("4", "4 ranks, by the model (H200)"),
        ("8", "8 ranks, by the model (H200)"),
    ):
        yield [label, *(found[name][size] for size in sizes)]


def gpu_graph_calls() -> Iterator[list[str]]:
    found = {row[""]: row for row in rows("gpu", "256K")}
    for label, name in (("collc", "and a shorter start and end of a block"), ("NCCL", "NCCL")):
        yield [label, *(found[name][size] for size in ("8B", "4K", "16K", "64K", "1M", "8M"))]


def gpu_one_channel() -> Iterator[list[str]]:
    (table,) = (s for s in tables().load(DATA / "gpu.yaml").sections if "LL, before" in s.columns)
    kept = [i for i, column in enumerate(table.columns) if column and column != "LL, before"]
    for row in table.rows:
        if row[0] in ("broadcast", "reduce", "all_reduce"):
            yield [row[0], *(row[i] for i in kept)]


def network_peers() -> Iterator[list[str]]:
    report = tables().load(DATA / "server-mpi.yaml")
    for shape in SHAPES:
        (table,) = (s for s in report.sections if s.title == f"{shape} ranks")
        places = [i for i, column in enumerate(table.columns) if column == "ratio"]
        cells = []
        for place in places:
            values = [float(row[place]) for row in table.rows]
            cells += [f"{min(values):.2f}", f"{max(values):.2f}"]
        yield [shape, *cells]


def network_rates() -> Iterator[list[str]]:
    for row in rows("server-rates", "3+5"):
        yield [row[""], *(row[shape].split()[0] for shape in ("2+2", "2+2+2+2", "3+5", "1+1+6"))]


def network_rails() -> Iterator[list[str]]:
    table = tables().load(DATA / "server-rails.yaml").sections[0]
    for row in table.rows:
        yield [row[0], *row[2:6]]


def limit_shares() -> list[float]:
    return [float(row["share"].strip("*")) for row in rows("limits", "share")]


def limit_summary() -> Iterator[list[str]]:
    shares = limit_shares()
    yield ["calls of 1 GiB", str(len(shares))]
    yield ["smallest share of the limit", f"{min(shares):.2f}"]
    yield ["median share of the limit", f"{statistics.median(shares):.2f}"]
    yield ["calls with a share of at least 0.97", str(sum(share >= 0.97 for share in shares))]


def default_summary() -> Iterator[list[str]]:
    values = [
        float(row[size].strip("*"))
        for row in rows("defaults", "256M")
        for size in ("1M", "4M", "16M", "64M", "256M", "1G")
    ]
    yield ["calls", str(len(values))]
    yield ["smallest ratio of best time to default time", f"{min(values):.2f}"]
    yield ["calls with a ratio of at least 0.99", str(sum(value >= 0.99 for value in values))]


def references_summary() -> Iterator[list[str]]:
    text = " ".join(s.text for s in tables().load(DATA / "references.yaml").sections)
    for buffers, reference in (
        ("threads of one process", "one copy, threads"),
        ("`ncclMemAlloc`", "one copy, processes"),
        ("private", "two copies"),
    ):
        way = {"one copy, threads": "threads", "one copy, processes": "memalloc", "two copies": "private"}[reference]
        values = [
            float(row[size])
            for row in rows("references", "64 MiB")
            if row[""] == way
            for size in SIZES
            if row[size] != "-"
        ]
        told = re.search(rf"beside {reference}: of (\d+) ratios \d+ are above 1.3, the largest is ([\d.]+)", text)
        assert told is not None
        assert (int(told[1]), float(told[2])) == (len(values), max(values))
        yield [buffers, reference, f"{statistics.geometric_mean(values):.2f}", f"{max(values):.2f}"]


def one_way_summary() -> Iterator[list[str]]:
    for title, name in (("AMD EPYC", "amd-epyc"), ("Intel Xeon", "intel-xeon")):
        values = [float(row["ratio"]) for row in rows(f"one-way-{name}", "ratio")]
        yield [title, str(len(values)), f"{statistics.geometric_mean(values):.2f}", f"{max(values):.2f}"]


TABLES: dict[str, list[Callable[[], Iterable[list[str]]]]] = {
    "cpus": [beside_summary, beside_libraries, beside_times, torch_ratios],
    "gpu": [gpu_medium_calls, gpu_graph_calls, gpu_one_channel],
    "networks": [network_peers, network_rates, network_rails],
    "limit": [limit_summary, default_summary, references_summary, one_way_summary],
}


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_a_summary_are_those_of_the_data(name: str) -> None:
    found = page_tables(MEASUREMENTS / f"{name}.md")
    assert len(found) == len(TABLES[name])
    for table, expected in zip(found, TABLES[name], strict=True):
        assert table[1:] == [list(row) for row in expected()], expected.__name__


# Sentences: the text of a page with its numbers computed.


def cpu_sentences() -> Iterator[str]:
    worst = {}
    for title, name in PROCESSORS.items():
        found = ratios(f"beside-{name}")
        worst[title] = max(found, key=lambda point: point[0])
        assert all(row["ranks"] == "2" for value, row, _ in found if value > 1.1)
    intel, amd = ((row["collective"], size, row["ranks"]) for _, row, size in worst.values())
    yield (
        f"The largest ratio is a {intel[0]} of {intel[1]} with {intel[2]} ranks on Intel, and an {amd[0]} of {amd[1]} "
        f"with {amd[2]} ranks on AMD."
    )
    passed = {row["test"]: row for row in rows("torch-suite", "collc", "World of 2")}["all: pass"]
    assert passed["collc"] == passed["gloo"]
    yield f"{passed['collc']} pass with 2 ranks over collc, and the same {passed['gloo']} over Gloo"
    calls = {row["ranks, collective"]: row for row in rows("tune", "settled")}
    two, four = calls["2, all"], calls["4, all"]
    yield (
        f"With 2 ranks, {two['chosen within 10%']} of its choices for {two['sizes']} calls are within 10% of the "
        f"best program, and {two['embedded within 10%']} without tuning. With 4 ranks, the shares are "
        f"{four['chosen within 10%']} and {four['embedded within 10%']}."
    )


def gpu_sentences() -> Iterator[str]:
    results = {row["what"]: row["result"] for row in rows("gpu", "result")}
    hgx = results["hgx-h100 as `compile` makes it: by the table; over Simple, LL, LL128"]
    dgx = results["dgx1v: by the table; over Simple, LL, LL128"]
    (all_hgx, *forced_hgx), (all_dgx, *forced_dgx) = (
        [int(n) for n in re.findall(r"\d+", text.replace(" of 722", ""))] for text in (hgx, dgx)
    )
    assert (all_hgx, all_dgx) == (722, 722)
    forced = [*forced_hgx, *forced_dgx]
    yield f"all {all_hgx} results of `hgx-h100` and all {all_dgx} of `dgx1v`"
    assert min(forced) == 434
    yield f"between {min(forced)} and {max(forced)} results per library were reached"
    yield f"ended a waiting kernel {results['`ncclCommAbort` while a kernel waits'].split()[1]} ms later"
    killed = results["a rank killed while a kernel waits; before a call"]
    yield f"a killed rank was reported after {killed.split()[2]} ms"
    hops = {row["protocol"]: row["us per hop"] for row in rows("gpu", "us per hop")}
    yield f"takes {hops['LL']} us over LL, {hops['LL128']} over LL128 and {hops['Simple']} over Simple on the H100"
    rates = {
        row["all_reduce, 64 MB, 8 ranks, GB/s into slots"]: row["Simple"]
        for row in rows("gpu", "LL128")
        if "all_reduce, 64 MB, 8 ranks, GB/s into slots" in row
    }
    most = max(int(n) for cells in rates.values() for n in cells.split(", "))
    channels = rates["1, 2, 4, 8 channels"].split(", ")
    text = " ".join(s.text for s in tables().load(DATA / "gpu.yaml").sections)
    copy = re.search(r"A copy of the card writes\s+(\d+) GB/s", text)
    assert copy is not None
    yield f"write up to {most} GB/s into slots over Simple, while a plain copy of the card writes {copy[1]} GB/s"
    yield f"{channels[0]} GB/s with one and {channels[-1]} with eight"


def network_sentences() -> Iterator[str]:
    (table,) = (s for s in tables().load(DATA / "server-mpi.yaml").sections if s.title == "3+5 ranks")
    (row,) = (r for r in table.rows if r[0] == "all_reduce, 16 MiB")
    yield (
        f"send {row[9]} times the bytes of the lower bound with collc, {row[10]} times with Open MPI and "
        f"{row[11]} times with Gloo"
    )
    assert all(float(cell) >= 1 for shape in network_peers() for cell in shape[1:])
    yield "collc is never slower there."
    servers = {r[""]: r["ratio"] for r in rows("servers", "ratio")}
    yield f"an all_reduce of 16 MiB is {servers['all_reduce, 16 MiB']} times as fast as Gloo's"
    yield f"4.2 million parameters {servers['DDP step, 4.2 million parameters']} times"
    changes = tables().load(DATA / "server-rails.yaml").sections[1]
    second = min(percent(r[1].split(", ")[1]) for r in changes.rows)
    yield f"at least {second}% of the sum of the rates in the second call after the change"


def limit_sentences() -> Iterator[str]:
    plans = rows("packing", "checker's seconds")
    proved = sum(row["rate"] == row["bound"] for row in plans)
    slowest = max(float(row["seconds"]) for row in plans)
    yield f"plans {len(plans)} cases"
    yield f"in all {proved} the rate equals the bound. The slowest takes {slowest:.0f} s"
    assert proved == len(plans)
    peers = tables().load(DATA / "packing.yaml")
    (table,) = (s for s in peers.sections if s.title == "Beside ForestColl: all_gather")
    both = [row for row in table.rows if row[6]]
    assert all(row[1] == row[6] for row in both), "the rates"
    ratios = [int(row[10]) for row in both]
    yield f"needs {min(ratios)} to {max(ratios):,} times as long"
    machines = {row["machine"] for row in rows("limits", "share")}
    yield f"predicts it for {len(machines)} machines and five collectives"
    hops = rows("limits", "NCCL")
    assert all(int(row["default"]) <= int(row["NCCL"]) for row in hops)
    yield f"In all {len(hops)} cases the default library needs at most as many hops"
    calls = [percent(cell) for row in network_rates() if row[0] not in ("one way", "ring") for cell in row[1:]]
    plain = max(percent(cell) for row in network_rates() if row[0] == "one way" for cell in row[1:])
    yield f"reach {min(calls)}% to {max(calls)}% of the bound over shaped links, where plain sockets reach {plain}%"


SENTENCES: dict[str, Callable[[], Iterable[str]]] = {
    "cpus": cpu_sentences,
    "gpu": gpu_sentences,
    "networks": network_sentences,
    "limit": limit_sentences,
}


@pytest.mark.parametrize("name", SENTENCES)
def test_the_sentences_of_a_summary_have_the_numbers_of_the_data(name: str) -> None:
    text = page(MEASUREMENTS / f"{name}.md")
    for sentence in SENTENCES[name]():
        assert sentence in text


def test_the_method_lists_every_data_file() -> None:
    text = (MEASUREMENTS / "method.md").read_text(encoding="utf-8")
    named = re.findall(
        r"`([\w*-]+)`", "".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    )
    files = {path.stem for path in DATA.glob("*.yaml")}
    assert {name for name in files if any(Path(name).match(pattern) for pattern in named)} == files
    assert all(any(Path(name).match(pattern) for name in files) for pattern in named)


# The sources.


def answers(source: str) -> dict[str, dict[str, str]]:
    """Returns the rows of docs/data/reproduced.csv by claim."""
    with (DATA / "reproduced.csv").open(encoding="utf-8", newline="") as file:
        return {row["claim"]: row for row in csv.DictReader(file) if row["source"] == source}


@pytest.mark.parametrize("source", SOURCES)
def test_a_summary_of_a_source_has_the_answers_of_the_data(source: str) -> None:
    known = answers(source)
    path = REPRODUCED / f"{source}.md"
    found = Counter(row["verdict"] for row in known.values())
    counted = ", ".join(f"{found[verdict]} {words}" for verdict, words in zip(VERDICTS[:2], VERDICTS[:2], strict=True))
    off, impossible = found["off by more"], found["impossible here"]
    verb = "is" if impossible == 1 else "are"
    counted = counted.replace(f"{found['reproduced']} reproduced", f"{found['reproduced']} are reproduced")
    assert f"Of {len(known)} claims, {counted}, {off} off by more and {impossible} {verb} impossible here." in page(
        path
    )
    stated = [row for table in page_tables(path) for row in table[1:]]
    assert len(stated) >= 8
    for label, theirs, ours, difference in stated:
        claim = re.match(r"`([\w-]+)`: ", label)
        assert claim is not None, label
        row = known[claim[1]]
        assert [theirs, ours, difference] == [row["theirs"], row["ours"], row["difference"]], claim[1]


def test_the_index_counts_the_verdicts() -> None:
    (table,) = page_tables(REPRODUCED / "index.md")
    whole: Counter[str] = Counter()
    for source, row in zip(SOURCES, table[1:], strict=False):
        found = Counter(answer["verdict"] for answer in answers(source).values())
        whole += found
        assert f"]({source}.md)" in row[0]
        assert row[1:] == [str(found.total()), *(str(found[verdict]) for verdict in VERDICTS)]
    assert table[-1] == ["all", str(whole.total()), *(str(whole[verdict]) for verdict in VERDICTS)]


def test_summaries_are_short() -> None:
    words = {
        path: len(path.read_text(encoding="utf-8").split())
        for path in [*MEASUREMENTS.glob("*.md"), *REPRODUCED.glob("*.md")]
    }
    assert max(words.values()) <= MAX_WORDS
    assert sum(words.values()) <= 12_000


def test_data_files_and_pages_are_the_same_results() -> None:
    for path in sorted(DATA.glob("*.yaml")):
        report = tables().load(path)
        assert tables().dump(report) == path.read_text(encoding="utf-8")
        assert report.date or report.hardware, path
        rendered = tables().parse(tables().render(report), report.date, report.hardware, report.version)
        text = rendered.sections[0].text.split("\n\n", 1)
        assert text[0].startswith(report.date)
        for table, other in zip(
            [s for s in rendered.sections if s.columns], [s for s in report.sections if s.columns], strict=True
        ):
            assert (table.columns, table.rows) == (other.columns, other.rows), path
