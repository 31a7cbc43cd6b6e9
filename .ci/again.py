"""Runs the tests that have just failed again, alone, and prints the names of those that pass: they are unsteady.

A test that fails at times is a defect, either of the test or of the code that it tests, so repair each test that this
program names. One unsteady test does not fail the run. More than one, or a test that fails again, does.
"""

import json
import subprocess
import sys
from pathlib import Path

MAX_UNSTEADY, MAX_TESTS, TIMES = 1, 5, 3


def passes_alone(name: str) -> bool:
    """Returns whether a test passes `TIMES` times in a row."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    return all(subprocess.run(command, check=False).returncode == 0 for _ in range(TIMES))


failures = Path(".pytest_cache/v/cache/lastfailed")
names = list(json.loads(failures.read_text())) if failures.exists() else []
unsteady = [name for name in names[:MAX_TESTS] if passes_alone(name)]
if unsteady:
    print(f"unsteady, failed once and then passed {TIMES} times alone:", *unsteady, sep="\n  ")
sys.exit(0 if 0 < len(names) == len(unsteady) <= MAX_UNSTEADY else 1)
