"""Runs all slow tests, part by part, and records on a page when each part last passed: `make slow`.

A part is a test file that contains slow tests, or a command of `COMMANDS`. A part that passed at a commit is not run
again until something other than the documentation has changed since that commit. So an interrupted run continues where
it stopped. The exit status is 1 if a part failed.

    python tests/run_slow.py                 every part that the page does not show as passed
    python tests/run_slow.py cuda chaos      only parts whose name contains one of these words
    python tests/run_slow.py --list          the parts and their state
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "measurements" / "slow-tests.md"
REPORT = ROOT / "build" / "slow-report.xml"
PYTHON = sys.executable

# Sweeps that are programs, with the part of the sweep that is a pass.
COMMANDS = {
    "packing-sweep": ["tests/packing/sweep.py", "--seeds", "0..500", "--results", "build/packing-sweep.jsonl"],
    "fuzz": ["tests/fuzz_readers.py", "--seconds", "600"],
    "fuzz-libraries": [
        "tests/fuzz_libraries.py",
        "--bytes",
        "0..500",
        "--fields",
        "0..2000",
        "--results",
        "build/fuzz.jsonl",
    ],
}
# Files that the outcome of a part does not depend on.
DOCUMENTATION = (":(exclude)docs", ":(exclude)README.md", ":(exclude)CHANGELOG.md", ":(exclude)CONTRIBUTING.md")
_HEAD = """# Slow tests

`make slow` runs the tests that `make test` leaves out, part by part, and records here when each part last passed. It
continues where it stopped. A part without a date has not passed since this page exists.

| part | passed on | commit | tests | skipped | minutes |
|---|---|---|--:|--:|--:|
"""
_CELLS = ("part", "date", "commit", "tests", "skipped", "minutes")
_ROW = re.compile(r"^\|" + r"\|".join(rf" (?P<{cell}>\S*) " for cell in _CELLS) + r"\|$")


@dataclass(frozen=True)
class Pass:
    """The last pass of a part: its date, commit, number of tests, number of skipped tests, and minutes."""

    date: str
    commit: str
    tests: int
    skipped: int
    minutes: float


def read_page(text: str) -> dict[str, Pass]:
    """Returns the parts that have passed."""
    rows = [match for line in text.splitlines() if (match := _ROW.match(line)) and match["minutes"][:1].isdigit()]
    return {
        row["part"]: Pass(row["date"], row["commit"], int(row["tests"]), int(row["skipped"]), float(row["minutes"]))
        for row in rows
    }


def write_page(parts: list[str], passes: dict[str, Pass]) -> str:
    """Returns the page: one row for each part."""
    rows = []
    for part in parts:
        last = passes.get(part)
        cells = ("",) * 5 if last is None else (last.date, last.commit, last.tests, last.skipped, f"{last.minutes:.1f}")
        rows.append(f"| {part} | {' | '.join(str(cell) for cell in cells)} |\n")
    return _HEAD + "".join(rows)


def find_parts() -> list[str]:
    """Returns the names of all parts: the test files with slow tests, then the commands."""
    command = [PYTHON, "-m", "pytest", "-m", "slow", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    files = re.findall(r"^tests/(\S+?)\.py::", done.stdout, re.MULTILINE)
    if not files:
        raise SystemExit(f"pytest finds no slow tests:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [*sorted(set(files)), *COMMANDS]


def is_current(commit: str) -> bool:
    """Returns whether nothing but documentation differs between a commit and the files here."""
    command = ["git", "diff", "--quiet", commit, "--", ".", *DOCUMENTATION]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def run_part(part: str) -> tuple[int, int] | None:
    """Runs a part. Returns how many tests ran and how many were skipped; None if the part failed or ran no test."""
    environment = {**os.environ, "PYTHONPATH": "tests:tests/packing"}
    if part in COMMANDS:
        return (
            (1, 0)
            if subprocess.run([PYTHON, *COMMANDS[part]], cwd=ROOT, env=environment, check=False).returncode == 0
            else None
        )
    REPORT.unlink(missing_ok=True)
    command = [PYTHON, "-m", "pytest", "-m", "slow", "-q", f"--junitxml={REPORT}", f"tests/{part}.py"]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status != 0 or not REPORT.exists():
        return None
    suite = ElementTree.parse(REPORT).getroot()[0]
    skipped = int(suite.get("skipped", 0))
    tests = int(suite.get("tests", 0)) - skipped
    return (tests, skipped) if tests else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="Run only parts whose name contains one of these words."
    )
    parser.add_argument("--list", action="store_true", help="Print the parts and their state, and run nothing.")
    arguments = parser.parse_args()
    parts = find_parts()
    passes = read_page(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    failed = []
    (ROOT / "build").mkdir(exist_ok=True)
    for part in parts:
        if arguments.words and not any(word in part for word in arguments.words):
            continue
        last = passes.get(part)
        if last is not None and is_current(last.commit):
            print(f"{part}: passed on {last.date} at {last.commit}")
            continue
        if arguments.list:
            print(f"{part}: to run")
            continue
        print(f"{part}: runs", flush=True)
        start = time.monotonic()
        counts = run_part(part)
        minutes = (time.monotonic() - start) / 60
        if counts is None:
            failed.append(part)
            print(f"{part}: FAILED", flush=True)
            continue
        passes[part] = Pass(f"{datetime.date.today():%Y-%m-%d}", head, *counts, minutes)
        PAGE.write_text(write_page(parts, passes), encoding="utf-8")
    if failed:
        print("failed:", *failed, sep="\n  ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
