"""Runs the tests that have just failed three times more, alone, and says which of them were unsteady.

A test that fails only at times is a defect, of the test or of what it tests; its name is printed so that it is mended.
More than three failures, or one that fails again, are a failure of the run.
"""

import json
import subprocess
import sys
from pathlib import Path

MOST, TIMES = 3, 3
failures = Path(".pytest_cache/v/cache/lastfailed")
names = list(json.loads(failures.read_text())) if failures.exists() else []
if not 0 < len(names) <= MOST:
    sys.exit(1)
for _ in range(TIMES):
    done = subprocess.run([sys.executable, "-m", "pytest", "-m", "not slow", *names], check=False)
    if done.returncode != 0:
        sys.exit(1)
print("unsteady, failed once and then passed three times alone:", *names, sep="\n  ")
