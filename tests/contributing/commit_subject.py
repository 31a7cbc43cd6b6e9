"""Checks the subject of a commit message: `area: verb object`, at most 72 characters.

python tests/contributing/commit_subject.py FILE       a message, as git's commit-msg hook gives it
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MAX_CHARACTERS = 72
SUBJECT = re.compile(r"(?P<area>[a-z0-9_./-]+): (?P<verb>[a-z][a-z-]*) \S.*")


def find_fault(message: str) -> str | None:
    """Returns what is wrong with the subject of `message`, or None."""
    subject, _, body = message.partition("\n")
    if subject.startswith(("Merge ", "Revert ", "fixup! ")):
        return None
    if len(subject) > MAX_CHARACTERS:
        return f"the subject has {len(subject)} characters; at most {MAX_CHARACTERS}"
    match = SUBJECT.fullmatch(subject)
    if match is None:
        return "the subject is not `area: verb object`, such as `packing: bound the ring search`"
    if subject.endswith("."):
        return "the subject ends with a period"
    if body and not body.startswith("\n"):
        return "a blank line must follow the subject"
    return None


def main() -> int:
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    fault = find_fault("\n".join(line for line in text.splitlines() if not line.startswith("#")))
    if fault:
        print(f"commit message: {fault}", file=sys.stderr)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
