"""Ctrl-C and SIGTERM at any moment: one line and nothing left behind.

And pipes without readers, full disks, missing folders.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

import pytest
from support.cli import collc
from support.libraries import library
from support.tunable import tunable

from collc.cli import app
from collc.outputs import written_aside
from collc.process import interrupt, run_captured, temporary_folder, whole

BOX = """format: collc-topology/1
name: interrupted
gpus: 2
links: [{between: [gpu0, gpu1], kind: nvlink, gbps: 19}]
"""
# Commands that take a while, and whether they start other programs.
LONG = {
    "plan": (["plan", "dgx1v", "--allocations", "all"], False),
    "compile": (["compile", "box.yaml", "--target", "host", "-o", "libcollc-own.so"], True),
    "simulate": (["simulate", "dgx1v"], False),
    "bench": (["bench", "LIB", "-e", "64M", "-n", "1000"], True),
    "tune": (["tune", "TUNABLE", "-o", "x.tuning"], True),
    "probe": (["probe", "--cpu", "--measure"], True),
    "doctor": (["doctor"], True),
    "verify": (["verify", "TUNABLE"], False),
}
# Says when a command begins, for before it Python itself answers signals.
STARTED = """
import sys
from collc.cli import app, main
run = app._run
app._run = lambda words: (print("started", file=sys.stderr, flush=True), run(words))[1]
main()
"""
ENDS = {signal.SIGINT: (130, "collc: interrupted\n"), signal.SIGTERM: (-signal.SIGTERM, "collc: terminated\n")}


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Lets child processes receive Ctrl-C, also if the tests run in the background of a script, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def members(group: int) -> list[str]:
    """Processes of a session that are not zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == group and fields[0] != "Z":
            found.append(path.parent.name)
    return found


def end(folder: Path, name: str, number: signal.Signals, group: bool, moment: float | None) -> None:
    """Ends a command by a signal and looks at what is left. `moment`: seconds; None: once it has started a program."""
    temporary = folder / "tmp"
    temporary.mkdir()
    (folder / "box.yaml").write_text(BOX)
    words, starts = LONG[name]
    # Commands that compile get an empty cache, so that compilers run.
    cache = {"COLLC_CACHE": str(folder / "cache")} if name in ("compile", "probe") else {}
    known = {"LIB": str(library("pair")), "TUNABLE": str(tunable()) if "TUNABLE" in words else ""}
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, *(known.get(word, word) for word in words)],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary), **cache},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "started\n"
    if moment is not None:
        time.sleep(moment)
    while moment is None and starts and len(members(process.pid)) == 1 and process.poll() is None:
        time.sleep(0.001)
    if group:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    err = process.communicate(timeout=300)[1]
    # Notes of `probe` on what it assumes and measures may stand before the line.
    notes, line = err.rpartition("collc: ")[::2]
    assert all(note.startswith("collc probe: ") for note in notes.splitlines()), err
    if moment is not None and process.returncode in (0, 1):
        assert not line  # it was done before
    else:
        assert (process.returncode, "collc: " + line) == ENDS[number], err
    limit = time.monotonic() + 60
    while members(process.pid) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not members(process.pid)
    assert not list(temporary.iterdir())
    left = [p for p in (folder / "cache").rglob("*") if p.name.startswith((".", "tmp"))] + list(folder.glob(".*"))
    assert not left


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("name", LONG)
def test_a_signal_ends_what_a_command_started(tmp_path: Path, name: str, number: signal.Signals) -> None:
    # Ctrl-C reaches all processes of a terminal, `kill` one.
    end(tmp_path, name, number, group=number == signal.SIGINT, moment=None)


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("group", [True, False])
@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("name", LONG)
def test_signals_at_many_moments(tmp_path: Path, name: str, number: signal.Signals, group: bool, moment: float) -> None:
    end(tmp_path, name, number, group, moment)


def test_a_process_goes_on_after_a_command_that_was_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals and tools are again what they were, for a program that calls the command line and then the library."""
    monkeypatch.setattr(app, "_OBEYED", [])
    for number, (code, line) in ENDS.items():
        before = {one: signal.getsignal(one) for one in ENDS}
        monkeypatch.setattr(app, "_run", lambda words, number=number: signal.raise_signal(number))
        result = collc("doctor")
        assert (result.code, result.err) == (code if code > 0 else 143, line)
        assert {one: signal.getsignal(one) for one in ENDS} == before
        assert run_captured(["/bin/true"]).returncode == 0


def test_what_is_whole_is_not_interrupted(tmp_path: Path) -> None:
    """A program is started, and a folder made and removed, before a signal that came meanwhile ends the command."""
    new, x = tmp_path / "new", tmp_path / "x"

    def nested() -> None:
        with whole(), whole():
            interrupt(KeyboardInterrupt())
            new.touch()
        pytest.fail("nothing was raised")

    def folder() -> None:
        with temporary_folder(tmp_path):
            interrupt(KeyboardInterrupt())

    def aside() -> None:
        with written_aside(x, 0o644) as scratch:
            scratch.write_text("new")
            interrupt(KeyboardInterrupt())

    x.write_text("old")
    for ended in (nested, folder, aside):
        with pytest.raises(KeyboardInterrupt):
            ended()
    assert sorted(tmp_path.iterdir()) == [new, x]
    assert x.read_text() == "old"


def run(
    *words: str,
    stdout: IO[bytes] | int,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    preexec_fn: Callable[[], object] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "collc", *words],
        stderr=subprocess.PIPE,
        check=False,
        timeout=300,
        stdout=stdout,
        env=env,
        cwd=cwd,
        preexec_fn=preexec_fn,
    )


@pytest.mark.parametrize("words", [["topologies"], ["plan", "dgx1v", "--gpus", "0,1", "--json"], ["--help"]], ids=str)
def test_a_reader_that_goes_and_a_disk_that_is_full(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed, open("/dev/full", "wb") as full:
        done = run(*words, stdout=closed)
        assert b"Traceback" not in done.stderr
        assert b"Exception" not in done.stderr
        done = run(*words, stdout=full)
        assert done.returncode == 1
        assert b"No space left on device" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    # No standard output or error at all, as daemons start programs.
    for number in (1, 2):
        done = run(*words, stdout=subprocess.DEVNULL, preexec_fn=partial(os.close, number))
        assert b"Traceback" not in done.stderr


def test_without_home_temporary_folder_or_current_folder(tmp_path: Path) -> None:
    (tmp_path / "box.yaml").write_text(BOX)
    bare = {"PATH": os.environ["PATH"]}
    nobody = {**bare, "HOME": "/nonexistent", "TMPDIR": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent"}
    for settings in (bare, nobody, {**bare, "HOME": "", "XDG_CACHE_HOME": "relative"}):
        done = run("plan", "box.yaml", env=settings, cwd=tmp_path, stdout=subprocess.DEVNULL)
        assert (done.returncode, done.stderr) == (0, b"")
    gone = tmp_path / "gone"
    gone.mkdir()
    for words in (["plan", "dgx1v", "--gpus", "0,1"], ["bench"], ["plan", "x.yaml"]):
        gone.mkdir(exist_ok=True)
        done = run(*words, cwd=gone, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.rmdir(gone))
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert done.returncode in (0, 1, 2)
