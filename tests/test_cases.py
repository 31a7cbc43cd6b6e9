"""IR cases: small files under tests/cases/ with a command, a program and the expected output.

    # opt --passes fuse_copies --verify
    collc-ir/1 broadcast root=0 ranks=2 slots=1 chunk=256
    ...
    # ----
    what it prints, or the one line of its refusal

`pytest tests/test_cases.py --update-golden` writes what follows the dashes again.
"""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import pytest
from support.cli import collc, refused

from collc.pipeline import PASSES

CASES = sorted(Path(__file__).parent.joinpath("cases").glob("*.ir"))
DASHES = "# ----\n"


def parts(path: Path) -> tuple[list[str], str, str]:
    """The words of the command, the program with its first line, what is expected."""
    given, dashes, expected = path.read_text(encoding="utf-8").partition(DASHES)
    first = given.splitlines()[0]
    assert first.startswith("# opt"), f"{path.name}: its first line is a command: # opt [OPTION]..."
    assert dashes, f"{path.name}: no line of dashes before what is expected"
    return shlex.split(first.removeprefix("# ")), given, expected


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, given, expected = parts(path)
    monkeypatch.chdir(tmp_path)
    Path("in.ir").write_text(given, encoding="utf-8")
    done = collc(words[0], "in.ir", *words[1:])
    assert (done.code, done.err) == (0, "") or (done.code in (1, 2) and not done.out and done.err.count("\n") == 1)
    if request.config.getoption("--update-golden"):
        path.write_text(given + DASHES + done.out + done.err, encoding="utf-8")
        return
    assert done.out + done.err == expected, f"pytest {__file__} --update-golden, and read the diff"


def passes_of(words: list[str]) -> set[str]:
    """Returns the names of the passes that a case's command runs."""
    if "--passes" not in words:
        return set()
    return {word.partition("=")[0] for word in words[words.index("--passes") + 1].split(",")}


def test_every_pass_has_cases_that_are_proved_and_cases_that_are_refused() -> None:
    proved, shown, refusals = Counter[str](), Counter[str](), Counter[str]()
    for path in CASES:
        words, _, expected = parts(path)
        is_refused = expected.startswith("collc: ")
        names = passes_of(words)
        shown.update(names)
        refusals.update(names if is_refused else ())
        proved.update(names if "--verify" in words and not is_refused else ())
    assert set(shown) == set(PASSES)
    assert min(proved[name] for name in PASSES) >= 3, proved
    assert min(refusals[name] for name in PASSES) >= 3, refusals
    assert min(shown[name] for name in PASSES) >= 8, shown


def test_a_refusal_is_named_so() -> None:
    for path in CASES:
        assert path.stem.startswith("refused-") == parts(path)[2].startswith("collc: "), path.name


def test_an_unknown_pass_is_told_with_those_that_exist() -> None:
    said = refused(collc("opt", str(CASES[0]), "--passes", "fuse_copys"), code=2)
    assert said.startswith("collc: no pass 'fuse_copys' (choose from ")
    assert all(name in said for name in PASSES)
