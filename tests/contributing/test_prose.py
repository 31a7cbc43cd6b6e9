"""The text of each folder stays easy to read: `support.prose` finds at most 1.0 places to rewrite per 1,000 words."""

from pathlib import Path

import pytest
from support.prose import RULES, SUFFIXES, Report, inspect_files, inspect_text

ROOT = Path(__file__).parents[2]
TREES = ("collc", "templates", "tests", "benchmarks", "gpu_check", "examples", "docs")
# The name of a folder has this many parts in these trees, and one part elsewhere.
DEPTHS = {("templates", "runtime"): 3, ("templates",): 2, ("collc",): 2, ("tests",): 2}
MAX_RATE = 1.0  # per 1,000 words; compilers that others have taken over have 0.3 to 0.75 (mypyc, xDSL, Exo, MSCCL++)

UNCLEAR = (
    "Of the ranks, the first.",
    "Whose buffers the kernels may read.",
    "The rate is that of the slowest link.",
    "The rank to which the chunk belongs.",
    "The time differs from what was measured.",
    "Who waits here holds no lock.",
    "The kernel uses so many blocks.",
    "The first rank alone writes the file.",
    "The result hangs on the order of the sums.",
    "Each rank waits for one of its own.",
)
CLEAR = (
    "The first rank of the group.",
    "Tracks which buffers the kernels of other ranks may read in place.",
    "The slowest link limits the rate.",
    "The rank that receives the chunk.",
    "The prediction differs from the measured time by 3%.",
    "A rank that waits here holds no lock.",
    "The kernel uses as many blocks as the table has channels.",
    "Only the first rank writes the file.",
    "From 1 MiB up, the kernel is slower than the copy engine.",
    "Each rank waits for its own slot.",
)


def _folders() -> dict[str, list[Path]]:
    """Returns the files with text by folder, such as collc/ir, templates/runtime/wire, tests/ir or docs."""
    folders: dict[str, list[Path]] = {}
    for tree in TREES:
        for path in sorted((ROOT / tree).rglob("*")):
            parts = path.relative_to(ROOT).parts
            if path.suffix in SUFFIXES and path.is_file() and not {"__pycache__", "_data"} & set(parts):
                depth = next((number for start, number in DEPTHS.items() if parts[: len(start)] == start), 1)
                folders.setdefault("/".join(parts[:-1][:depth]), []).append(path)
    return folders


FOLDERS = _folders()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_easy_to_read(folder: str) -> None:
    report = inspect_files(FOLDERS[folder])
    # One finding in a short folder is no trend.
    assert len(report.findings) <= max(1, MAX_RATE * report.words / 1000), _describe(report)


@pytest.mark.parametrize("text", UNCLEAR)
def test_an_unclear_sentence_is_found(text: str) -> None:
    assert inspect_text(text).findings


@pytest.mark.parametrize("text", CLEAR)
def test_a_clear_sentence_passes(text: str) -> None:
    assert not inspect_text(text).findings


def test_each_rule_finds_one_of_the_unclear_sentences() -> None:
    assert all(any(rule.count(text) for text in UNCLEAR) for rule in RULES)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "module.py",
            '"""Holds tables.\n\nOf the ranks, the first."""\n# A line,\n# and what follows it.\nx = 1  # a table\n',
        ),
        ("unit.cpp", "// A rank waits,\n// with what it has.\n// Of the first.\n\nint x;  // Of the second.\n"),
        ("page.md", "Text.\n\n```\nOf the code.\n```\n\n- Of the list.\n\n| Of the table |\n\nThat of the page.\n"),
    ],
)
def test_comments_docstrings_and_pages_are_read(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert len(inspect_files([path]).findings) == 2


def _describe(report: Report) -> str:
    places = "\n".join(f"{finding.text[:160]} [{finding.rule.advice}]" for finding in report.findings)
    return f"{report.rate:.2f} findings per 1,000 words:\n{places}"
