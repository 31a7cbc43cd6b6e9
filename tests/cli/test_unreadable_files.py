"""Every command that reads a file refuses a wrong file with one line that names it and says what to do."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cli import collc, refused
from support.libraries import library, topology_file

# Command lines; FILE is what is wrong.
READERS = {
    "plan": ["plan", "FILE"],
    "compile": ["compile", "FILE", "--target", "host"],
    "simulate": ["simulate", "FILE"],
    "compile params": ["compile", "hgx-h100", "--gpus", "0,1", "--target", "cuda", "-o", "OUT", "--params", "FILE"],
    "compile plan": ["compile", "dgx1v", "--gpus", "0,1", "--target", "host", "-o", "OUT", "--plan", "FILE"],
    "compile ir": ["compile", "dgx1v", "--gpus", "0,1", "--target", "host", "-o", "OUT", "--ir", "FILE"],
    "simulate params": ["simulate", "dgx1v", "--gpus", "0,1", "-e", "1K", "--params", "FILE"],
    "simulate model": ["simulate", "dgx1v", "--gpus", "0,1", "--model-file", "FILE"],
    "export": ["export", "FILE", "--format", "nccl-graph"],
    "export measured": ["export", "dgx1v", "--format", "nccl-tuner", "-o", "OUT", "--measured", "FILE"],
    "export params": ["export", "dgx1v", "--gpus", "0,1", "--format", "nccl-tuner", "-o", "OUT", "--params", "FILE"],
    "verify": ["verify", "FILE"],
    "inspect": ["inspect", "FILE"],
    "opt": ["opt", "FILE"],
    "bench": ["bench", "FILE"],
    "bench topology": ["bench", "LIBRARY", "--topology", "FILE"],
    "tune": ["tune", "FILE"],
    "show": ["show", "FILE", "-o", "PAGE"],
    "show compare": ["show", "dgx1v", "--compare", "FILE", "-o", "PAGE"],
    "run": ["run", "--lib", "FILE", "--", "true"],
    "run topology": ["run", "--lib", "LIBRARY", "--topology", "FILE", "--", "true"],
    "status": ["status", "--join", "FILE"],
    "doctor": ["doctor", "FILE", "--job"],
    "probe": ["probe", "--from", "FILE"],
    "probe merge": ["probe", "--merge", "FILE"],
    "probe rails": ["probe", "--merge", "SERVER", "--rails", "FILE"],
    "probe fabric": ["probe", "--merge", "SERVER", "--fabric", "FILE"],
}

TWO = ("bench", "doctor", "tune", "run", "probe merge", "probe fabric")  # exit code 2 without a name


def command(name: str, path: Path | str) -> list[str]:
    out = f"{tempfile.gettempdir()}/libcollc-never.so"  # where everybody may write
    server = str(topology_file("pair"))
    held = str(library("pair")) if "LIBRARY" in READERS[name] else ""
    page = f"{tempfile.gettempdir()}/collc-never.html"
    known = {"PAGE": page, "FILE": str(path), "OUT": out, "LIBRARY": held, "SERVER": server}
    return [known.get(word, word) for word in READERS[name]]


def make(folder: Path, kind: str) -> Path:
    path = folder / kind
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        contents = {
            "empty": b"",
            "binary": b"\x00\xf0\x9f" * 400,
            "elf": b"\x7fELF" + bytes(400),
            "latin1": b"caf\xe9\n",
        }
        path.write_bytes(contents[kind])
    return path


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "binary", "elf", "latin1"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_such_file(tmp_path: Path, name: str, kind: str) -> None:
    path = make(tmp_path, kind)
    result = collc(*command(name, path))
    line = refused(result, code=result.code)
    assert result.code in (1, 2)
    assert line.startswith(f"collc: {path}")
    assert line.endswith(")"), f"no word of what to do: {line}"


@pytest.mark.parametrize("name", READERS)
def test_the_empty_name(name: str) -> None:
    line = refused(collc(*command(name, "")), code=2 if name in TWO else 1)
    assert line.endswith(")")
    assert line.startswith(("collc: .: ", "collc: topology: ", "collc: --fabric: "))


@pytest.fixture
def entered() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for parent in folder.parents:
            if not parent.stat().st_mode & 1:
                pytest.skip(f"not every user may enter {parent}")
        yield folder


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """The superuser reads every file, so it becomes another user for a while."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("name", READERS)
def test_a_file_without_permission(entered: Path, name: str) -> None:
    path = entered / "secret"
    path.write_text("x")
    words = command(name, path)
    if "LIBRARY" in READERS[name]:
        readable = entered / "lib.so"
        readable.write_bytes(library("pair").read_bytes())
        words[READERS[name].index("LIBRARY")] = str(readable)
    collc(*words)  # imports what it needs with our own rights
    path.chmod(0)
    with as_somebody_else():
        result = collc(*words)
    line = refused(result)
    assert line.startswith(f"collc: {path}")
    assert "Permission denied" in line
    assert line.endswith(")")


def test_a_plan_that_a_windows_shell_wrote(tmp_path: Path) -> None:
    plan = collc("plan", "dgx1v", "--gpus", "0,1,2", "--collective", "broadcast", "--json").out
    for encoding in ("utf-16", "utf-8-sig"):
        path = tmp_path / encoding
        path.write_bytes(plan.encode(encoding))
        assert collc("verify", path).code == 0
    assert json.loads(plan)["format"] == "collc-plan/1"
