"""Inputs that are no files, or small files that stand for much: one line, at once, in little memory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from cli.test_unreadable_files import READERS, command
from support.cli import collc, refused

from collc.cli.app import COMMANDS, cli
from collc.inputs import open_input, read_input

KINDS = ("pipe", "socket", "/dev/zero", "/dev/tty", "large")


def strange(folder: Path, kind: str) -> Path:
    path = folder / "strange"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        import socket

        before = Path.cwd()
        os.chdir(folder)
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path.name)
        finally:
            os.chdir(before)
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        path = Path(kind)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_ordinary_file(tmp_path: Path, name: str, kind: str) -> None:
    path = strange(tmp_path, kind)
    start = time.process_time()
    result = collc(*command(name, path))
    assert time.process_time() - start < 60
    assert result.code in (1, 2)
    assert refused(result, code=result.code).startswith(f"collc: {path}")
    assert refused(result, code=result.code).endswith(")")


def test_extends_reads_ordinary_files_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    top = tmp_path / "top.yaml"
    for key in ("extends: pipe", "template: pipe\nservers: 2"):
        top.write_text(f"format: collc-topology/1\n{key}\n")
        assert "is a pipe" in refused(collc("plan", top))


def names_a_file(param: click.Parameter) -> bool:
    named = isinstance(param.type, click.Path | click.File)
    return named or (param.metavar or "").strip("[]") in ("FILE", "TOPO", "LIB", "LIBRARY", "PATH")


def place(param: click.Parameter, line: list[str]) -> bool:
    """Returns whether FILE is the value of `param` in a command line."""
    before = line[line.index("FILE") - 1]
    return before in param.opts if isinstance(param, click.Option) else before == line[0]


# Options of files that a command writes.
OUTPUTS = {"output", "keep_source", "dump_dir", "plot", "trace", "svg", "png", "pdf", "listen"}


def test_every_argument_and_option_that_names_a_file_to_read_is_among_the_readers() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        found = cli.get_command(context, name)
        assert found is not None
        lines = [line for line in READERS.values() if line[0] == name]
        for param in found.params:
            if names_a_file(param) and param.name not in OUTPUTS:
                assert any(place(param, line) for line in lines), f"{name}: {param.opts}"


def test_a_file_that_grows_or_lies_about_its_size(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_input(path, limit=5) == b"12345"
    with pytest.raises(Exception, match="larger than 4 bytes"):
        read_input(path, limit=4)
    with pytest.raises(Exception, match="larger than 10 bytes"):
        read_input(Path("/proc/cpuinfo"), limit=10)  # which says that it has 0
    with pytest.raises(Exception, match="cannot be read"):
        read_input(Path("/proc/self/mem"), limit=10)
    with pytest.raises(Exception, match="folder"):
        open_input(tmp_path)


HEAD = "format: collc-topology/1\n"
BOMBS = {
    "servers of a large template": f"{HEAD}template: nvl72\nservers: 4096\n",
    "servers of servers": f"{HEAD}template: nvl72x8\nservers: 4096\n",
    "gpus": f"{HEAD}gpus: 99999999\n",
    "gpus beyond integers": f"{HEAD}gpus: {'9' * 5000}\n",
    "exponent": f"{HEAD}gpus: 1e999999\n",
    "speed": f"{HEAD}gpus: 2\nspeeds: {{nvlink: 1e999999}}\n",
    "count": f"{HEAD}gpus: 2\nlinks: [[gpu0, gpu1, nvlink x999999999, 25]]\n",
    "aliases": HEAD
    + "a0: &a0 [x, x]\n"
    + "".join(f"a{i + 1}: &a{i + 1} [{','.join([f'*a{i}'] * 9)}]\n" for i in range(9)),
    "deep": HEAD + "gpus: " + "[" * 100000,
    "deep mapping": HEAD + "gpus: " + "{a: " * 50000,
    "itself": f"{HEAD}extends: bomb.yaml\n",
    "itself twice": f"{HEAD}template: bomb.yaml\nservers: 4096\n",
}
MOST_BYTES = 256 << 20

MEASURED = """
import pathlib, re, sys
from collc.cli import main
try:
    main(sys.argv[1:])
finally:
    # Of this program alone: getrusage also counts what the process was before it became this program.
    print("peak", re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
"""


def measured(*argv: str, cwd: Path) -> tuple[int, str, int]:
    """Status, stderr and the peak of memory in bytes of a command."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *argv],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (20, 20)),
    )
    assert done.stdout.startswith("peak"), done
    return done.returncode, done.stderr, int(done.stdout.split()[-1]) << 10


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_few_words_do_not_stand_for_a_gigabyte(tmp_path: Path, bomb: str) -> None:
    (tmp_path / "bomb.yaml").write_text(BOMBS[bomb])
    code, err, peak = measured("plan", "bomb.yaml", cwd=tmp_path)
    assert code == 1
    assert err.startswith("collc: bomb.yaml:")
    assert len(err.splitlines()) == 1
    assert peak < MOST_BYTES, f"{peak >> 20} MiB"


JSONS = {
    "twice": '{"format": "collc-plan/1", "format": "collc-plan/1"}',
    "twice inside": '{"format": "collc-plan/1", "topology": {"name": "x", "name": "y", "fingerprint": ""}}',
    "twice among many": "{" + ",".join(f'"k{i}": 1' for i in range(50000)) + ', "k49999": 1}',
    "deep": '{"format": ' + "[" * 200000,
    "deep objects": '{"format": ' * 100000,
    "nan": '{"format": NaN}',
    "infinite": '{"format": 1e999999}',
    "long integer": '{"format": ' + "9" * 100000 + "}",
}


@pytest.mark.parametrize("bad", JSONS)
def test_json_that_no_plan_is(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(JSONS[bad])
    start = time.process_time()
    line = refused(collc("verify", path))
    assert time.process_time() - start < 20
    assert line.startswith(f"collc: {path}")
    if "twice" in bad:
        assert "given twice" in line


def test_a_plan_with_a_key_twice_is_refused_wherever_it_is(tmp_path: Path) -> None:
    """Each object of a plan, with its first key given once more."""
    text = collc("plan", "dgx1v", "--gpus", "0,1,2", "--collective", "all_reduce", "--json").out
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert collc("verify", path).code == 0
    places = [i for i, c in enumerate(text) if c == "{"]
    assert len(places) > 10
    for at in places:
        key = json.JSONDecoder().raw_decode(text[at:])[0]
        first = next(iter(key))
        path.write_text(f"{text[: at + 1]}{json.dumps(first)}: {json.dumps(key[first])}, {text[at + 1 :]}")
        assert "given twice" in refused(collc("verify", path)), at
