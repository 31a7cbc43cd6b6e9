"""Changes libraries at random; the checker must refuse each change that could alter what runs.

`python tests/fuzz_libraries.py --bytes 0..500 --fields 0..200`: each seed is one change, of a byte of a whole library,
or of a field of its tables, which a forger then signs. One line of JSON per change goes to `--results FILE`; changes
that stand there already for the same bytes of libraries are skipped, so a long run can be interrupted. The exit status
is 1 if any was accepted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from support.changed import LIBRARIES, built, byte_case, field_case
from support.libraries import library


def seeds(text: str) -> range:
    """`0..500` as a range."""
    first, last = text.split("..")
    return range(int(first), int(last))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=seeds, default=range(500))
    parser.add_argument("--fields", type=seeds, default=range(200))
    parser.add_argument("--results", type=Path, default=Path("fuzz-libraries.jsonl"))
    arguments = parser.parse_args()
    paths = [library("pair"), *map(built, LIBRARIES)]
    of = hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()[:16]
    old = arguments.results.read_text().splitlines() if arguments.results.exists() else []
    # The last line of a run that was killed may be a part.
    cases = [json.loads(line) for line in old if line.endswith("}")]
    done = {(c["kind"], c["seed"]): c["verdict"] for c in cases if c["libraries"] == of}
    with tempfile.TemporaryDirectory() as folder, arguments.results.open("a") as results:
        for kind, chosen, run in (("byte", arguments.bytes, byte_case), ("field", arguments.fields, field_case)):
            for seed in chosen:
                if (kind, seed) not in done:
                    case = run(seed, Path(folder)) | {"libraries": of}
                    results.write(json.dumps(case) + "\n")
                    results.flush()
                    done[kind, seed] = case["verdict"]
            print(kind, dict(Counter(done[kind, seed] for seed in chosen)), flush=True)
    wanted = [*(("byte", seed) for seed in arguments.bytes), *(("field", seed) for seed in arguments.fields)]
    accepted = [case for case in wanted if done[case] == "accepted"]
    print(f"accepted: {accepted}" if accepted else "every change was refused, or lies outside of what is loaded")
    return 1 if accepted else 0


if __name__ == "__main__":
    sys.exit(main())
