"""Fuzzes the readers of dumps and topology files for some minutes: `python tests/fuzz_readers.py --seconds 600`.

A failure is shrunk and printed by hypothesis; the exit status is then 1. Tests run a small sample of the same.
"""

from __future__ import annotations

import argparse
import sys
import time

from hypothesis import HealthCheck, given, settings
from support.fuzz import TARGETS

BATCH = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    end = time.monotonic() + parser.parse_args().seconds
    profile = settings(max_examples=BATCH, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    tried = dict.fromkeys((name for name, _, _ in TARGETS), 0)
    while time.monotonic() < end:
        for name, strategy, check in TARGETS:
            profile(given(strategy())(check))()
            tried[name] += BATCH
    print(", ".join(f"{count} {name}" for name, count in tried.items()) + ": nothing but answers and refusals")
    return 0


if __name__ == "__main__":
    sys.exit(main())
