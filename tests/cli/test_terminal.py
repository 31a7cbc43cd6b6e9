"""No command passes control sequences to a terminal, whether from a file, library, variable or process."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path

import pytest
from cli.test_unreadable_files import READERS, command
from support.cli import Result, collc
from support.libraries import library

from collc.bench.team import _Started
from collc.build.nvrtc import Nvrtc, compile_kernels
from collc.build.toolchain import find_cxx, run_tool
from collc.checker.library import read_manifest
from collc.cli import report
from collc.cli.app import COMMANDS
from collc.errors import BuildError, CollcError, visible

CLI = Path(report.__file__).parent

# Controls of both kinds, sequences, bidi overrides, isolates and marks, what has no width, line ends of Unicode.
HOSTILE = (
    "\x1b[31m\x1b]0;x\x07\x08\r\x0b\x7f\x85\x9b2J\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\U000e0041"
)


def safe(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


def check(result: Result) -> None:
    assert safe(result.out), ascii(result.out)
    assert safe(result.err), ascii(result.err)
    assert "Traceback" not in result.err


def test_every_class_of_character_is_shown_as_an_escape() -> None:
    for c in [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *HOSTILE, "\udc80"]:
        assert safe(visible(c)), ascii(c)
        assert safe(str(CollcError(c, where=c, hint=c)))
    assert visible("naïve ü 漢字 ✓") == "naïve ü 漢字 ✓"
    assert visible("a\nb", keep="\n") == "a\nb"


def test_json_says_the_same_in_its_own_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    value = {HOSTILE: [HOSTILE, "naïve", "\udc80"], "n": 1}
    report.emit_json(value)
    out = capsys.readouterr().out
    assert safe(out)
    assert json.loads(out) == value
    assert "naïve" in out


def test_a_table_has_a_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    report.text(report.table(["a", "b"], [["x\ny", HOSTILE]]))
    report.line("x\ny")
    report.note("x\ny" + HOSTILE)
    seen = capsys.readouterr()
    assert len(seen.out.splitlines()) == 3
    assert len(seen.err.splitlines()) == 1
    assert safe(seen.out + seen.err)


def test_commands_print_through_report_alone() -> None:
    for path in sorted(CLI.glob("*.py")):
        if path.name in ("report.py", "app.py", "__init__.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {
                    *(("click", n) for n in ("echo", "secho", "echo_via_pager", "progressbar", "prompt", "confirm")),
                    *(("sys", n) for n in ("stdout", "stderr")),
                }, f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path.name}:{node.lineno}"
    text = (CLI / "app.py").read_text()
    for call in [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]:
        if ast.unparse(call.func) == "click.echo":
            first = ast.unparse(call.args[0])
            assert "visible(" in first or isinstance(call.args[0], ast.Constant), first


# Names of files, for every command that reads one.
@pytest.mark.parametrize("name", READERS)
def test_names_of_files(tmp_path: Path, name: str) -> None:
    for contents in (None, b"", HOSTILE.encode()):
        path = tmp_path / f"x{HOSTILE}"
        if contents is not None:
            path.write_bytes(contents)
        result = collc(*command(name, path))
        check(result)
        assert result.code
        assert "\\x1b" in result.err


@pytest.mark.parametrize("name", COMMANDS)
def test_words_of_the_command_line(name: str) -> None:
    for words in ([HOSTILE], [f"--{HOSTILE}"], ["--json", HOSTILE, HOSTILE], [f"--collective={HOSTILE}"]):
        check(collc(name, *words))
    check(collc(HOSTILE))


YAMLS = {
    "name": 'format: collc-topology/1\nname: "{}"\ngpus: 2\n',
    "format": 'format: "{}"\n',
    "key": 'format: collc-topology/1\n"{}": 2\n',
    "gpu": 'format: collc-topology/1\ngpus: ["{}"]\n',
    "gpus": 'format: collc-topology/1\ngpus: "{}"\n',
    "server": 'format: collc-topology/1\ngpus: 2\nservers: {{"{}": [gpu0, gpu1]}}\n',
    "kind": 'format: collc-topology/1\ngpus: 2\nlinks: [[gpu0, gpu1, "{}", 25]]\n',
    "end": 'format: collc-topology/1\ngpus: 2\nlinks: [["{}", gpu1, nvlink, 25]]\n',
    "speed": 'format: collc-topology/1\ngpus: 2\nlinks: [[gpu0, gpu1, nvlink, "{}"]]\n',
    "extends": 'format: collc-topology/1\nextends: "{}"\n',
    "tag": "format: collc-topology/1\ngpus: !<{}> 2\n",
    "comment": "format: collc-topology/1\ngpus: 2\nlinks: []\n# {}\n",
}
YAML_HOSTILE = (
    "\x1b[31m\x1b]0;x\x07\x08\r\x0b\x7f\x85\x9b2J\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\U000e0041"
)


@pytest.mark.parametrize("field", YAMLS)
def test_fields_of_a_topology(tmp_path: Path, field: str) -> None:
    path = tmp_path / "box.yaml"
    for text in (YAML_HOSTILE, "\u202e\u2066\u200b\u200e", "\x85\x9b"):
        path.write_text(YAMLS[field].format(text))
        check(collc("plan", path))
        check(collc("plan", path, "--json"))


def test_fields_of_a_plan(tmp_path: Path) -> None:
    """Every text of a plan, in its turn."""
    text = collc("plan", "dgx1v", "--gpus", "0,1,2", "--collective", "all_reduce", "--json").out
    path = tmp_path / "plan.json"
    places = 0

    def spoil(value: object, at: int) -> tuple[object, int]:
        nonlocal places
        if isinstance(value, str):
            places += 1
            return (HOSTILE if at == places - 1 else value), at
        if isinstance(value, list):
            return [spoil(item, at)[0] for item in value], at
        if isinstance(value, dict):
            return {key: spoil(item, at)[0] for key, item in value.items()}, at
        return value, at

    spoil(json.loads(text), -1)
    total = places
    assert total > 20
    for at in range(total):
        places = 0
        path.write_text(json.dumps(spoil(json.loads(text), at)[0]))
        check(collc("verify", path))


def fields(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | dict):
        return [text for item in (value.values() if isinstance(value, dict) else value) for text in fields(item)]
    return []


def test_fields_of_a_library(tmp_path: Path) -> None:
    """Overwrites every text of the manifest with control sequences."""
    source = library("pair")
    data = source.read_bytes()
    start = data.index(b'{"format"') if b'{"format"' in data else data.index(b'"collc-library/1"') - 16
    texts = sorted({t for t in fields(read_manifest(source)) if len(t) >= 6 and t.isascii()})
    assert len(texts) >= 8
    path = tmp_path / "libcollc-hostile.so"
    for text in texts:
        old = json.dumps(text).encode()
        if data.find(old, start) < 0:
            continue
        new = (b'"\\u001b' + b"x" * len(old))[: len(old) - 1] + b'"'
        path.write_bytes(data[:start] + data[start:].replace(old, new))
        for words in (["inspect", path], ["inspect", path, "--json"], ["verify", path]):
            check(collc(*words))


def test_variables_and_what_tools_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\nprintf '%s' '{HOSTILE}' | tee /dev/stderr\n", encoding="utf-8")
    tool.chmod(0o755)
    for value in (str(tool), f"{tmp_path}/nowhere/{HOSTILE}"):
        for variable in ("COLLC_CXX", "COLLC_NVCC", "COLLC_NVRTC", "COLLC_NCCL", "COLLC_CACHE"):
            monkeypatch.setenv(variable, value)
        find_cxx.cache_clear()
        check(collc("doctor"))
    find_cxx.cache_clear()


def test_what_a_worker_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shouting.py").write_text(
        "import sys\ndef main():\n    sys.stderr.write(sys.argv[1] + '\\n' + 'end')\n    print('{}', flush=True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = _Started(Path(HOSTILE), "shouting")
    assert worker.receive() == {}
    worker.process.wait(60)
    worker.end()
    said = capfd.readouterr().err
    assert "\\x1b" in said
    assert said.endswith("end")
    assert safe(said)


def shared_library(path: Path, source: str) -> None:
    written = path.with_name("source.c")
    written.write_text(source, encoding="utf-8")
    run_tool([find_cxx().path, "-xc", "-shared", "-fPIC", str(written), "-o", str(path)])


def c_string(text: str) -> str:
    return '"' + "".join(f"\\{byte:03o}" for byte in text.encode()) + '"'


def test_the_log_of_the_worker_of_nvrtc(tmp_path: Path) -> None:
    """The compiler fails, and says what a terminal obeys."""
    path = tmp_path / "libnvrtc.so"
    shared_library(
        path,
        f"""#include <string.h>
static const char said[] = "error: " {c_string(HOSTILE)};
int nvrtcCreateProgram(void) {{ return 0; }}
int nvrtcCompileProgram(void) {{ return 6; }}
int nvrtcGetProgramLogSize(void *program, size_t *size) {{ return *size = sizeof said, 0; }}
int nvrtcGetProgramLog(void *program, char *log) {{ return strcpy(log, said), 0; }}
const char *nvrtcGetErrorString(int status) {{ return said; }}
""",
    )
    with pytest.raises(BuildError) as failure:
        compile_kernels(Nvrtc(str(path), "13.0", "13.0.1", ("80",)), "80", "kernels")
    assert "error: \\x1b[31m" in str(failure.value)
    assert safe(str(failure.value))


def test_the_path_that_the_worker_of_ucx_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"libucp{HOSTILE}.so"
    source = "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) { *a = 1, *b = 17, *c = 0; }"
    shared_library(path, source)
    monkeypatch.setenv("COLLC_UCX", str(path))
    result = collc("doctor", "--net")
    assert "UCX 1.17.0" in result.out
    check(result)


def test_a_name_that_is_no_utf8_and_a_terminal_of_ascii(tmp_path: Path) -> None:
    import subprocess

    name = os.fsencode(tmp_path) + b"/\xff\xfe.yaml"
    (tmp_path / "x").touch()
    box = "format: collc-topology/1\ngpus: 2\nname: x\nlinks: [[gpu0, gpu1, nvlink, 25]]\n"
    Path(os.fsdecode(name)).write_text(box)
    for settings in ({"LANG": "C"}, {"PYTHONIOENCODING": "ascii"}):
        for words in ([b"plan", name], [b"inspect", name]):
            done = subprocess.run(
                [os.fsencode(sys.executable), b"-m", b"collc", *words],
                capture_output=True,
                check=False,
                env={**os.environ, **settings},
            )
            assert b"Traceback" not in done.stderr
            assert done.returncode == (words[0] == b"inspect"), done
