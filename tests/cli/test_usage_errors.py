"""A mistyped command line: one line in the form of every other refusal, exit code 2; `--help` stays click's."""

from __future__ import annotations

import pytest
from support.cli import collc, refused

from collc.cli.app import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_unknown_options_of_every_command(name: str) -> None:
    line = refused(collc(name, "--no-such-option"), code=2)
    assert line == f"collc: {name}: no such option '--no-such-option' (see `collc {name} --help`)"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("compil", "no such command 'compil' (did you mean compile? see `collc --help`)"),
        ("--version=3", "option '--version' does not take a value (see `collc --help`)"),
        ("plan", "plan: missing argument 'TOPO' (see `collc plan --help`)"),
        (
            "plan dgx1v --roo 3",
            "plan: no such option '--roo' (did you mean --root or --proof? see `collc plan --help`)",
        ),
        ("plan dgx1v --root", "plan: option '--root' requires an argument (see `collc plan --help`)"),
        ("plan dgx1v dgx1v", "plan: got unexpected extra argument (dgx1v) (see `collc plan --help`)"),
        ("plan dgx1v --root x", "--root: 'x' is not a whole number (see `collc plan --help`)"),
        ("plan dgx1v --root -1", "--root: -1 is not in the range x>=0 (see `collc plan --help`)"),
        ("compile dgx1v --target tpu", "--target: 'tpu' is not one of 'host', 'cuda' (see `collc compile --help`)"),
        ("bench -b x", "-b / --minbytes: 'x' is not a size such as 8, 64K or 16M (see `collc bench --help`)"),
        ("plan dgx1v --tolerance 1e999999999", "--tolerance: '1e999999999' is not a share such as 0.05"),
        ("plan dgx1v --tolerance 1/0", "--tolerance: '1/0' is not a share such as 0.05"),
        ("probe --cpu --ranks 0", "probe --cpu: 0 ranks (1 to 512 are possible)"),
        ("plan dgx1v --tolerance 1.5", "--tolerance: 1.5 is not between 0 and 1"),
        ("tune -b -8", "-b / --minbytes: '-8' is not a size such as 8, 64K or 16M (see `collc tune --help`)"),
        ("run lib.so -- train", "lib.so: is a library, not a command (write `--lib lib.so -- CMD`)"),
    ],
)
def test_other_mistakes(command: str, line: str) -> None:
    hint = "" if line.endswith(")") else f" (see `collc {command.split()[0]} --help`)"
    assert refused(collc(*command.split()), code=2) == f"collc: {line}{hint}"


def test_help_and_tracebacks_stay() -> None:
    assert collc().err.startswith("Usage: collc [OPTIONS] COMMAND")
    assert collc("plan", "--help").out.startswith("Usage: collc plan [OPTIONS] TOPO")
    result = collc("plan", "--no-such-option", "--debug")
    assert result.code == 2
    assert "Traceback" in result.err
