"""`collc run`: the library is in the command, or the command does not start."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import collc, refused
from support.libraries import library
from support.users import NOBODY, open_folder

from collc.build.preload import _read

# The numbers of the files that are mapped here, whatever links led to them.
MAPS = "print(*{line.split()[4] for line in open('/proc/self/maps')})"
# Loaded by a child that closes every descriptor, as torchrun's agents do, some time later.
CHILD = (
    "import subprocess, sys, time; time.sleep(0.2);"
    "sys.exit(subprocess.run([sys.executable, '-c', sys.argv[1]], close_fds=True).returncode)"
)


@pytest.fixture(scope="module")
def pair() -> Path:
    return library("pair")


def run(lib: Path | str, *argv: str, cwd: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "collc", "run", "--lib", str(lib), "--", *argv]
    environment = {**os.environ, **settings}
    environment.pop("LD_PRELOAD", None)
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, cwd=cwd, env={**environment, **settings}
    )


NAMES = ["plain", "a b", "a:b $ORIGIN", "${LIB}", "new\nline\t", "ü\u202e", "'\"`;#*?\\"]


def holds(done: subprocess.CompletedProcess[str], lib: Path) -> bool:
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return str(lib.stat().st_ino) in done.stdout.split()


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_whatever_the_path_the_library_is_loaded(pair: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    lib = folder / f"lib{name}.so"
    shutil.copy(pair, lib)
    assert holds(run(lib, sys.executable, "-c", CHILD, MAPS), lib)


def test_a_relative_path_and_another_preload(pair: Path, tmp_path: Path) -> None:
    shutil.copy(pair, tmp_path / "my lib.so")
    other = tmp_path / "libother.so"
    shutil.copy(pair, other)
    done = run("my lib.so", sys.executable, "-c", MAPS, cwd=tmp_path, LD_PRELOAD=str(other))
    assert holds(done, tmp_path / "my lib.so")
    assert holds(done, other)


def test_where_no_link_can_be_left_it_refuses(pair: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    shutil.copy(pair, folder / "lib.so")
    # A cache and a temporary folder whose own paths have spaces.
    done = run(folder / "lib.so", "echo", "ran", COLLC_CACHE=str(folder / "cache"), TMPDIR=str(folder))
    assert done.returncode == 1
    assert "ran" not in done.stdout
    assert done.stderr.startswith("collc: ")
    assert "copy it to another folder" in done.stderr
    # Somebody else's folder of our name is not used.
    own = tmp_path / f"collc-preload-{os.geteuid()}"
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    done = run(folder / "lib.so", "echo", "ran", COLLC_CACHE=str(folder / "cache"), TMPDIR=str(tmp_path))
    assert done.returncode == 1, done
    own.chmod(0o700)
    done = run(folder / "lib.so", "echo", "ran", COLLC_CACHE=str(folder / "cache"), TMPDIR=str(tmp_path))
    assert done.stdout == "ran\n", done.stderr


def test_a_link_that_leads_elsewhere_is_replaced(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path / "cache"))
    for name in ("a b", "c d"):
        shutil.copy(pair, tmp_path / f"{name}.so")
        assert run(tmp_path / f"{name}.so", "true").returncode == 0
    links = sorted((tmp_path / "cache" / "preload").glob("libcollc-*.so"))
    assert len(links) == 2
    first, second = (link.readlink() for link in links)
    links[0].unlink()
    links[0].symlink_to(second)
    done = run(first, sys.executable, "-c", MAPS)
    assert holds(done, first)
    assert not holds(done, second)


def small(folder: Path, *flags: str) -> Path:
    source = folder / "main.c"
    source.write_text('#include <stdio.h>\nint main(void) { return puts("ran") < 0; }\n')
    subprocess.run(["gcc", *flags, str(source), "-o", str(folder / "program")], check=True)
    return folder / "program"


def refuses(done: subprocess.CompletedProcess[str], said: str) -> None:
    assert done.returncode == 1, done
    assert "ran" not in done.stdout
    assert done.stderr.startswith("collc: ")
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_a_static_program(pair: Path, tmp_path: Path) -> None:
    try:
        program = small(tmp_path, "-static")
    except subprocess.CalledProcessError:
        pytest.skip("no static C library")
    refuses(run(pair, str(program)), "linked statically")
    script = tmp_path / "script"
    script.write_text(f"#!{program}\n")
    script.chmod(0o755)
    refuses(run(pair, str(script)), "linked statically")


def test_a_program_of_another_machine(pair: Path, tmp_path: Path) -> None:
    program = small(tmp_path)
    data = bytearray(program.read_bytes())
    data[18] = 243
    program.write_bytes(data)
    refuses(run(pair, str(program)), "is for riscv64, the library for")


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can make a program of another user")
def test_a_program_with_rights_of_its_own(pair: Path) -> None:
    with open_folder() as folder:
        program = small(folder)
        assert run(pair, str(program)).stdout == "ran\n"
        os.chown(program, NOBODY, NOBODY)
        program.chmod(0o4755)
        refuses(run(pair, str(program)), "privileges that you do not have")
        program.chmod(0o2755)
        refuses(run(pair, str(program)), "privileges that you do not have")
        program.chmod(0o755)
        assert run(pair, str(program)).stdout == "ran\n"


def test_what_the_loader_refuses(pair: Path, tmp_path: Path) -> None:
    """A library that is whole enough for its manifest to be read, and that needs what is not there."""
    missing = tmp_path / "libcollc-missing.so"
    data = pair.read_bytes().replace(b"libgcc_s.so.1\0", b"libgcc_s.so.7\0").replace(b"libm.so.6\0", b"libm.so.7\0")
    assert data != pair.read_bytes()
    missing.write_bytes(data)
    refuses(run(missing, "echo", "ran"), "cannot be loaded into")


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "socket", "text", "device"])
def test_what_is_no_library(pair: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.so"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        monkeypatch.chdir(tmp_path)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("x.so")
    elif kind == "text":
        path.write_text("x")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    result = collc("run", "--lib", path, "--", "true")
    assert result.code in (1, 2)
    assert refused(result, code=result.code).startswith(f"collc: {path}")


def test_a_library_that_nobody_named_and_another_user_left(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_folder() as folder:
        shutil.copy(pair, folder / "libcollc-pair.so")
        monkeypatch.chdir(folder)
        assert run("libcollc-pair.so", "true", cwd=folder).returncode == 0
        folder.chmod(0o777)
        line = refused(collc("bench", "-e", "8"), code=2)
        assert "written by everybody" in line
        assert "name it to run it" in line
        folder.chmod(0o755)
        (folder / "libcollc-pair.so").chmod(0o777)
        assert "written by everybody" in refused(collc("run", "--", "true"), code=2)


def test_headers_of_any_bytes(pair: Path, tmp_path: Path) -> None:
    head = pair.read_bytes()[:4096]
    for at in range(64):
        for value in (0, 1, 0x7F, 0xFF):
            data = bytearray(head)
            data[at] = value
            path = tmp_path / "x"
            path.write_bytes(data)
            _read(path)
