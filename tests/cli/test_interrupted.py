"""Ctrl-C at any moment: one line and nothing left behind. And pipes without readers, full disks, missing folders."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.libraries import library
from support.tunable import tunable

BOX = """format: collc-topology/1
name: interrupted
gpus: 2
links: [{between: [gpu0, gpu1], kind: nvlink, gbps: 19}]
"""
LONG = {
    "plan": ["plan", "dgx1v", "--allocations", "all"],
    "compile": ["compile", "box.yaml", "--target", "host", "-o", "libcollc-own.so"],
    "bench": ["bench", "LIB", "-e", "64M", "-n", "1000"],
    "tune": ["tune", "TUNABLE", "-o", "x.tuning"],
}
# Says when our code runs, for before it Python itself answers Ctrl-C.
STARTED = "import sys; from collc.cli import main; print('started', file=sys.stderr, flush=True); main(sys.argv[1:])"


def children_of(group: int) -> list[str]:
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


@pytest.mark.parametrize("whom", ["group", "process"])
@pytest.mark.parametrize("name", LONG)
def test_ctrl_c_at_random_moments(tmp_path, name, whom):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "box.yaml").write_text(BOX)
    # An empty cache for what compiles, so that compilers run.
    cache = {"COLLC_CACHE": str(tmp_path / "cache")} if name in ("compile", "probe") else {}
    known = {"LIB": str(library("pair")), "TUNABLE": str(tunable()) if name in ("tune", "verify") else ""}
    words = [known.get(word, word) for word in LONG[name]]
    delay = random.Random(f"{name}{whom}").choice([0.0, 0.05, 0.3, 1.0])
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, *words],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary), **cache},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "started\n"
    time.sleep(delay)
    if whom == "group":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    else:
        process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=120)[1]
    if process.returncode in (0, 1) and "interrupted" not in err:
        assert delay  # it was done before
    else:
        assert process.returncode == 130, err
        assert err == "collc: interrupted\n"
    for _ in range(50):
        if not children_of(process.pid):
            break
        time.sleep(0.1)
    assert not children_of(process.pid)
    assert not list(temporary.iterdir())
    left = [p for p in (tmp_path / "cache").rglob("*") if p.name.startswith((".", "tmp"))] + list(tmp_path.glob(".*"))
    assert not left


def run(*words: str, shell: str = "", **settings: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "collc", *words],
        stderr=subprocess.PIPE,
        check=False,
        timeout=120,
        **settings,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("words", [["topologies"], ["plan", "dgx1v", "--gpus", "0,1", "--json"], ["--help"]], ids=str)
def test_a_reader_that_goes_and_a_disk_that_is_full(words):
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
        done = run(*words, stdout=subprocess.DEVNULL, preexec_fn=lambda number=number: os.close(number))
        assert b"Traceback" not in done.stderr


def test_without_home_temporary_folder_or_current_folder(tmp_path):
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
