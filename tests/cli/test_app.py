"""The command line as a whole: exit codes, one line per failure, nothing imported that is not needed."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support.cli import collc, refused

from collc.cli.app import COMMANDS
from collc.cli.sections import SECTIONS, section_of
from collc.topology import zoo


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_json_and_debug(name: str) -> None:
    result = collc(name, "--help")
    assert result.code == 0, result.err
    assert "--debug" in result.out
    if name != "run":
        assert "--json" in result.out


def test_help_lists_eight_commands_first() -> None:
    first, more = collc("--help").out.split("Commands:")[1].split("More:")
    names = [re.findall(r"^  ([a-z]+) ", part, re.MULTILINE) for part in (first, more)]
    assert names[0] == ["probe", "plan", "compile", "bench", "run", "show", "verify", "doctor"]
    assert names[0] + names[1] == list(COMMANDS)


def test_help_shows_each_option_once_and_in_its_section() -> None:
    listed = set()
    for name in COMMANDS:
        module = importlib.import_module(f"collc.cli.{name}")
        text = collc(name, "--help").out
        for option in (p for p in module.command.params if isinstance(p, click.Option) and not p.hidden):
            listed |= set(option.opts)
            section = text.split(f"\n{section_of(option).value}:\n")[1].split("\n\n")[0]
            assert any(re.search(rf"^  .*{re.escape(form)}\b", section, re.MULTILINE) for form in option.opts), (
                name,
                option,
            )
    assert set(SECTIONS) <= listed


def test_unknown_commands_and_options_are_usage_errors() -> None:
    assert collc("compil").code == 2
    assert collc("plan", "--no-such-option").code == 2
    assert collc("plan").code == 2


def test_failures_are_one_line_and_tracebacks_come_on_request(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("format: collc-topology/1\nname: x\ngpus: 2\nlinks: []\nsurprise: 1\n")
    assert f"{bad}:5" in refused(collc("plan", bad))
    result = collc("plan", bad, "--debug")
    assert result.code == 1
    assert "Traceback" in result.err


def test_help_does_not_import_solvers() -> None:
    script = (
        "import sys; sys.argv=['collc','--help']\nfrom collc.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    )
    script += "print([m for m in ('highspy','numpy','igraph','networkx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{sys.executable} -m collc topologies | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=os.environ)
    assert "Traceback" not in done.stderr


def test_topologies_cut_nothing_in_a_pipe() -> None:
    whole = collc("topologies").out
    assert "..." not in whole
    assert all(zoo.title(name) in whole for name in zoo.names())


def test_topologies_fit_a_terminal() -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "collc", "topologies"]
    with subprocess.Popen(command, stdout=follower, env={**os.environ, "COLUMNS": "100"}) as process:
        os.close(follower)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while piece := os.read(leader, 1 << 16):
                shown += piece
        assert process.wait() == 0
    os.close(leader)
    lines = shown.decode().splitlines()
    assert len(lines) == len(zoo.names()) + 1
    assert max(map(len, lines)) == 100


def test_json_of_topologies() -> None:
    result = collc("topologies", "--json")
    assert result.code == 0
    assert "dgx1v" in json.dumps(json.loads(result.out))
