"""Where a command would write is looked at before the long work, and so are the compilers."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from support.cli import collc, refused
from support.tunable import tunable

from collc import compiler
from collc.build import toolchain
from collc.cli import export, probe, simulate
from collc.errors import BuildError, CollcError
from collc.outputs import check_output, written_aside
from collc.tune import run as tune_run


def started(*_: object, **__: object) -> None:
    raise AssertionError("the long work had begun")


@pytest.fixture(autouse=True)
def _no_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    tunable()
    monkeypatch.setattr(compiler, "library_contents", started)
    monkeypatch.setattr(compiler, "Parts", started)
    monkeypatch.setattr(tune_run, "team_of", started)
    monkeypatch.setattr(simulate, "predict", started)
    monkeypatch.setattr(probe, "probe_cpu", started)
    monkeypatch.setattr(export, "best_pair", started)


WRITERS = {
    "compile": ["compile", "dgx1v", "--target", "host", "-o"],
    "compile source": ["compile", "dgx1v", "--target", "host", "--keep-source"],
    "tune": ["tune", "LIBRARY", "-o"],
    "status trace": ["status", "--join", "NONE", "--trace"],
    "simulate trace": ["simulate", "dgx1v", "--trace"],
    "simulate plot": ["simulate", "dgx1v", "--compare", "nccl", "--plot"],
    "probe": ["probe", "--cpu", "-o"],
    "export": ["export", "dgx1v", "--format", "nccl-graph", "-o"],
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_or_a_missing_one(tmp_path: Path, name: str) -> None:
    words = [tunable() if word == "LIBRARY" else word for word in WRITERS[name]]
    assert f"{tmp_path}: cannot write: this is a folder" in refused(collc(*words, tmp_path))
    missing = tmp_path / "none" / "file"
    line = refused(collc(*words, missing))
    assert line == f"collc: {missing}: cannot write: there is no folder {missing.parent} (create the folder first)"
    assert list(tmp_path.iterdir()) == []


def test_the_empty_name() -> None:
    assert ".: cannot write: this is a folder" in refused(collc("compile", "dgx1v", "--target", "host", "-o", ""))


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(CollcError, match="not a regular file"):
        check_output(pipe)
    check_output(pipe, replaced=False)
    check_output(tmp_path / "new")


def test_a_folder_without_permission() -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    root = os.geteuid() == 0
    try:
        if root:
            os.setegid(65534)
            os.seteuid(65534)
        with pytest.raises(CollcError, match="permission denied"):
            check_output(folder / "file")
    finally:
        if root:
            os.seteuid(0)
            os.setegid(0)
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--root", "9"], "root 9 is not a rank of 0..7"),
        (["--collective", "all_reduce", "--root", "1"], "--root: all_reduce has no root"),
        (["--dump-after", "build", "--dump-dir", "FILE"], "is not a folder"),
    ],
)
def test_other_mistakes_are_found_before_the_compilers_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], said: str
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(compiler, "Parts", started)
    file = tmp_path / "file"
    file.write_text("")
    words = [str(file) if word == "FILE" else word for word in options]
    assert said in refused(collc("compile", "dgx1v", "--target", "host", "-o", tmp_path / "l.so", *words), code=2)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/bin/false", "COLLC_CXX=/bin/false: is not a C++ compiler: `--version` failed with status 1"),
        ("/bin/true", "COLLC_CXX=/bin/true: is not a C++ compiler: "),
        ("TEXT", "cannot run it: Exec format error"),
        ("/bin/no-such-compiler", "which is not a command"),
    ],
)
def test_a_compiler_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, said: str) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"\0nothing to run")
    text.chmod(0o755)
    monkeypatch.setenv("COLLC_CXX", str(text) if command == "TEXT" else command)
    toolchain.find_cxx.cache_clear()
    try:
        line = refused(collc("compile", "dgx1v", "--target", "host", "-o", tmp_path / "l.so"))
    finally:
        toolchain.find_cxx.cache_clear()
    assert said in line
    assert line.endswith(")")
    assert "to a C++17 compiler" in line


def test_a_missing_compiler_of_device_code_is_found_before_the_planning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def none(cuda: int | None = None) -> None:
        raise BuildError("no nvcc found", hint="install it")

    monkeypatch.setattr(compiler, "find_toolkits", none)
    words = ("compile", "dgx1v", "-o", tmp_path / "l.so")
    assert refused(collc(*words, "--target", "cuda")) == "collc: no nvcc found (install it)"
    assert refused(collc(*words, "--cuda", "12")) == "collc: no nvcc found (install it)"


def test_a_tool_that_makes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from collc.build.cache import cached

    monkeypatch.setenv("COLLC_CACHE", str(tmp_path))
    with pytest.raises(CollcError, match="its tool made no thing"):
        cached("0" * 64, "thing", lambda made: None)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_has_a_name(tmp_path: Path) -> None:
    """Which the system does not say."""
    line = refused(collc("export", "dgx1v", "--format", "dot", "-o", "/dev/full"))
    assert line == "collc: /dev/full: No space left on device (make room, or choose another disk)"
    path = tmp_path / "page.html"
    with pytest.raises(OSError, match="page") as caught, written_aside(path, 0o644):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(path)
    missing = tmp_path / "none" / "page.html"
    with pytest.raises(FileNotFoundError) as found, written_aside(missing, 0o644):
        pass
    assert found.value.filename == str(missing)
    assert list(tmp_path.iterdir()) == []
