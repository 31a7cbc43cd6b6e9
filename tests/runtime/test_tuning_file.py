"""COLLC_TUNING: a good file replaces the embedded table, everything else is refused in one line and changes nothing."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.ranks import INVALID_USAGE, SUCCESS, ranks
from support.tunable import tunable

from collc.bench.nccl import Nccl
from collc.checker.library import read_manifest


@cache
def programs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_manifest(tunable())["allocations"][0]["programs"]
    return found


@cache
def machine() -> str:
    library = Nccl(tunable()).lib
    library.collc_machine.restype = ctypes.c_char_p
    return str(library.collc_machine(), "utf-8")


def head() -> list[str]:
    return ["collc-tuning/1", f"library {read_manifest(tunable())['build_id']}", f"machine {machine()}"]


def numbers(collective: str = "all_reduce", root: int | None = None) -> list[int]:
    return [i for i, p in enumerate(programs()) if (p["collective"], p["root"]) == (collective, root)]


def good() -> list[str]:
    first, last = numbers()[0], numbers()[-1]
    rooted = numbers("broadcast", 2)[-1]
    rows = ["table 0 all_reduce -", f"0 {last}  # small", f"4096 {first}", "table 0 broadcast 2", f"0 {rooted}"]
    return [*head(), "", "# made by hand", *rows, "end 3"]


CHOOSE = """
import ctypes, json, sys
from pathlib import Path
from collc.bench.nccl import Nccl
nccl = Nccl(Path(sys.argv[1]))
n = int(sys.argv[2])
comms = (ctypes.c_void_p * n)()
nccl.check(nccl.lib.ncclCommInitAll(comms, n, None), "ncclCommInitAll")
ask = nccl.lib.collc_program_of
ask.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint64]
print(json.dumps([ask(comms[0], c, r, b) for c, r, b in json.loads(sys.argv[3])]))
"""


def choices(tuning: Path | None, asked: str) -> tuple[list[int], str]:
    """Returns the programs that a communicator in one process runs, and its stderr."""
    environment = {k: v for k, v in os.environ.items() if k != "COLLC_TUNING"}
    if tuning is not None:
        environment["COLLC_TUNING"] = str(tuning)
    command = [sys.executable, "-c", CHOOSE, str(tunable()), "3", asked]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.strip("[]\n ").split(",")], done.stderr


ASKED = "[[0, -1, 8], [0, -1, 4095], [0, -1, 4096], [0, -1, 1000000000], [3, 2, 8], [3, 1, 8], [1, -1, 8]]"


def embedded() -> list[int]:
    first = numbers()[0]
    rest = [numbers("broadcast", 2)[0], numbers("broadcast", 1)[0], numbers("all_gather")[0]]
    return [first, first, first, first, *rest]


def test_without_a_file_the_embedded_table_decides() -> None:
    assert choices(None, ASKED) == (embedded(), "")


def test_a_file_replaces_the_tables_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "good.tuning"
    file.write_text("\n".join(good()) + "\n")
    first, last = numbers()[0], numbers()[-1]
    rest = [numbers("broadcast", 2)[-1], numbers("broadcast", 1)[0], numbers("all_gather")[0]]
    assert choices(file, ASKED) == ([last, last, first, first, *rest], "")


def damaged(**changes: str) -> str:
    """The good file with lines replaced; `line4="x"` is the fourth."""
    lines = good()
    for name, text in changes.items():
        lines[int(name.removeprefix("line")) - 1] = text
    return "\n".join(lines) + "\n"


def refusals() -> dict[str, tuple[bytes, str]]:
    other = numbers("all_gather")[0]
    text = "\n".join(good()) + "\n"
    return {
        "empty": (b"", "does not begin with collc-tuning/1"),
        "other format": (b"\x7fELF" + bytes(500), "does not begin with collc-tuning/1"),
        "other version": (damaged(line1="collc-tuning/2").encode(), "is of version collc-tuning/2"),
        "other library": (damaged(line2="library " + "0" * 32).encode(), "is for another library"),
        "other machine": (damaged(line3="machine 96 x some CPU").encode(), "is for another machine: 96 x some CPU"),
        "no machine": (damaged(line3="0 1").encode(), "expected the machine"),
        "cut in a line": (text[: text.index("4096") + 2].encode(), "truncated"),
        "cut at a line": (text[: text.index("end")].encode(), "truncated"),
        "cut before the last break": (text[:-1].encode(), "truncated"),
        "wrong count": (damaged(line11="end 4").encode(), "expected the number of rows"),
        "more after the end": ((text + "0 1\n").encode(), "expected nothing after the end"),
        "unknown collective": (damaged(line6="table 0 all_reduced -").encode(), "expected a collective"),
        "unknown allocation": (damaged(line6="table 1 all_reduce -").encode(), "allocations"),
        "unknown root": (damaged(line9="table 0 broadcast 3").encode(), "expected a root"),
        "negative root": (damaged(line9="table 0 broadcast -1").encode(), "expected a root"),
        "twice": (damaged(line9="table 0 all_reduce -").encode(), "each table once"),
        "unknown program": (damaged(line7=f"0 {len(programs())}").encode(), "one of the allocation's programs"),
        "huge program": (damaged(line7=f"0 {1 << 62}").encode(), "bytes and a program"),
        "overflow": (damaged(line7="0 99999999999999999999999").encode(), "bytes and a program"),
        "other collective's": (damaged(line7=f"0 {other}").encode(), "table's collective"),
        "not from 0": (damaged(line7=f"8 {numbers()[-1]}").encode(), "from 0 bytes on"),
        "not ascending": (damaged(line8=f"0 {numbers()[0]}").encode(), "ascending"),
        "row first": (damaged(line6="# table").encode(), "a table before its rows"),
        "no rows": (damaged(line10="# nothing", line11="end 2").encode(), "without rows"),
        "long line": (damaged(line4="x" * 10000).encode(), "line 4 is too long"),
        "escape codes": (damaged(line4="\x1b[2J\x07").encode(), "?[2J?"),
        "zero bytes": (damaged(line4="\0\0").encode(), "??"),
    }


@pytest.mark.parametrize("name", refusals())
def test_refused_in_one_line(name: str, tmp_path: Path) -> None:
    data, reason = refusals()[name]
    file = tmp_path / "bad.tuning"
    file.write_bytes(data)
    found, said = choices(file, ASKED)
    assert found == embedded()
    assert said.count("\n") == 1, said
    assert said.startswith(f"collc: COLLC_TUNING={file} ")
    assert reason in said
    assert said.endswith(": the embedded table stays in use\n")
    assert all(" " <= c <= "~" for c in said[:-1])


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, reason in (
        (tmp_path / "missing", "No such file"),
        (tmp_path, "no regular file"),
        (tmp_path / "fifo", "no regular file"),
        (Path("/dev/zero"), "no regular file"),
    ):
        found, said = choices(path, ASKED)
        assert found == embedded()
        assert said.count("\n") == 1
        assert reason in said


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "huge"
    with open(file, "wb") as stream:
        stream.truncate(1 << 40)
    assert "more than 16 MiB" in choices(file, ASKED)[1]


@pytest.mark.slow
def test_every_rank_runs_the_file(tmp_path: Path) -> None:
    """All collectives stay right when every program is chosen once."""
    file = tmp_path / "good.tuning"
    for number in numbers():
        file.write_text("\n".join([*head(), "table 0 all_reduce -", f"0 {number}", "end 1"]) + "\n")
        with ranks(tunable(), 3, COLLC_TUNING=str(file)) as team:
            assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
            assert [answer["result"] for answer in team.all(do="call", count=5000)] == [SUCCESS] * 3


def test_ranks_that_disagree_are_told_so(tmp_path: Path) -> None:
    file = tmp_path / "good.tuning"
    file.write_text("\n".join(good()) + "\n")
    with ranks(tunable(), 3) as team:
        odd = ranks(tunable(), 3, COLLC_TUNING=str(file))
        with odd as tuned:
            unique = team.ask(0, do="id")["id"]
            order = {"do": "init", "nranks": 3, "id": unique}
            team.tell(0, **order, rank=0)
            tuned.tell(1, **order, rank=1)
            team.tell(2, **order, rank=2)
            answers = [team.hear(0), tuned.hear(1), team.hear(2)]
    assert [answer["result"] for answer in answers] == [INVALID_USAGE] * 3
    assert all("ranks 0 and 1 have different tables of COLLC_TUNING: rank 0 has none" in a["text"] for a in answers)


def test_a_chosen_program_runs_until_another_is(tmp_path: Path) -> None:
    """`collc tune` forces a program on a communicator, and a program of another allocation is refused."""
    number = numbers()[-1]
    script = CHOOSE.replace(
        "print(", "force = nccl.lib.collc_force_program\nforce.argtypes = [ctypes.c_void_p, ctypes.c_int]\nprint("
    ).replace("ask(comms[0], c, r, b)", "(force(comms[0], c), ask(comms[0], 0, -1, b))")
    asked = f"[[{number}, 0, 8], [{len(programs())}, 0, 8], [-1, 0, 8], [{numbers()[0]}, 0, 8]]"
    command = [sys.executable, "-c", script, str(tunable()), "3", asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [[1, number], [0, number], [0, number], [1, numbers()[0]]]
