"""Runs the tests that have just failed again, alone, and prints the names of those that pass: they are unsteady.

The names help to repair them. The exit status is always 1: a test that fails at times is a defect, either of the test
or of the code that it tests.
"""

import json
import subprocess
import sys
from pathlib import Path

MAX_TESTS, TIMES = 5, 3


def passes_alone(name: str) -> bool:
    """Returns whether a test passes `TIMES` times in a row."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    return all(subprocess.run(command, check=False).returncode == 0 for _ in range(TIMES))


failures = Path(".pytest_cache/v/cache/lastfailed")
names = list(json.loads(failures.read_text())) if failures.exists() else []
unsteady = [name for name in names[:MAX_TESTS] if passes_alone(name)]
if unsteady:
    print(f"unsteady, failed once and then passed {TIMES} times alone:", *unsteady, sep="\n  ")
sys.exit(1)
