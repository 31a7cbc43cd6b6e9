"""Answers every claim of the five sources: `python benchmarks/reproduce.py --write build/reproduced`.

`reproduction/sources/` lists what each source claims, in order; the modules of `reproduction/` compute the answers.
The pages and figures are not tracked. `--answers docs/data/reproduced.csv` rewrites the tracked answers; a test
compares the summaries in docs/reproduced/ with them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from reproduction.claims import SOURCES, Generator, Generators, Item, Made, Row, load
from reproduction.pages import Rows, answers, index, page, unexplained

# The module that computes the answers of each source.
MODULES = {
    "blink": ("blink_design", "blink_chains", "blink_rates", "blink_training"),
    "nccl-protocols": ("protocols",),
    "baidu-ring": ("baidu",),
    "ring-by-hand": ("ring_by_hand",),
    "flexlink": ("flexlink",),
}


def generators(name: str) -> dict[str, Generator]:
    """The functions that answer a source's items."""
    found: dict[str, Generator] = {}
    for module in MODULES[name]:
        made: Generators = importlib.import_module(f"reproduction.{module}").ANSWERS
        found |= made.by_item
    return found


def answered(item: Item, function: Generator | None, figures: Path) -> tuple[Item, list[Row], str]:
    """An item with its rows: a claim that is possible and has no answer, or the reverse, is an error."""
    made = function(figures) if function else Made({})
    wanted = {claim.id for claim in item.claims if not claim.impossible}
    assert made.answers.keys() == wanted, f"{item.at}: {sorted(made.answers.keys() ^ wanted)}"
    if item.plot:
        assert (figures / f"{item.plot}.svg").is_file(), f"{item.at} has drawn nothing"
    return item, [Row(claim, made.answers.get(claim.id), item.reason) for claim in item.claims], made.text


def reproduce(name: str, figures: Path, only: str | None = None) -> Rows:
    """The rows of a source, or of one item of it."""
    by_item = generators(name)
    source = load(name)
    unknown = by_item.keys() - {item.at for item in source.items}
    assert not unknown, f"{name} has no {sorted(unknown)}"
    found = []
    for item in source.items:
        if only is not None and item.at != only:
            continue
        start = perf_counter()
        found.append(answered(item, by_item.get(item.at), figures))
        print(f"{name}, {item.at}: {perf_counter() - start:.1f} s", file=sys.stderr)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the pages and figures here")
    parser.add_argument("--source", choices=SOURCES, help="print the page of one source instead")
    parser.add_argument("--item", help="with --source: of one figure, table or heading")
    parser.add_argument("--answers", type=Path, metavar="FILE", help="with --write: also write a row for each claim")
    options = parser.parse_args(arguments)
    if options.write is None or options.source is not None:
        if options.source is None:
            parser.error("say --write FOLDER or --source")
        with tempfile.TemporaryDirectory() as folder:
            print(page(load(options.source), reproduce(options.source, Path(folder), options.item)), end="")
        return
    figures = options.write / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    found = [(load(name), reproduce(name, figures)) for name in SOURCES]
    for source, rows in found:
        (options.write / f"{source.name}.md").write_text(page(source, rows), encoding="utf-8")
    if options.answers is not None:
        options.answers.write_text(answers(found), encoding="utf-8")
    problems = unexplained(found)
    (options.write / "index.md").write_text(index(found), encoding="utf-8")
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
