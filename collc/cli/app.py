"""The `collc` group: imports commands on first use, and turns every `CollcError` into one line and an exit code."""

from __future__ import annotations

import atexit
import difflib
import importlib
import io
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from collc import __version__
from collc.cli import report
from collc.cli.early import leave
from collc.errors import CollcError, UsageError, of_exception, visible
from collc.process import allow_tools, end_tools, interrupt, whole

# Command -> its one-line help. The module collc.cli.<name> defines `command`. It is imported on first use, so that
# `collc --help` does not wait for the imports of solvers.
COMMANDS: dict[str, str] = {
    "probe": "Read the links of this machine, or of a dump, and write a topology file.",
    "plan": "Pack spanning trees for a topology and prove the rate.",
    "compile": "Compile a topology into a library, libcollc-<name>.so.",
    "bench": "Measure a library as nccl-tests does, with every element checked.",
    "run": "Run a command with a library preloaded in place of NCCL.",
    "show": "Draw a machine, a plan, times or results as a page, a figure or text.",
    "verify": "Recompute everything that a plan, an IR text or a library claims.",
    "doctor": "Report what each target needs and whether this machine has it.",
    "simulate": "Predict how long collectives take and choose plans by size.",
    "tune": "Measure a library on this machine and write a table of its fastest programs.",
    "status": "Show running jobs: ranks, calls, ranks that wait for others; join the records of failed jobs.",
    "inspect": "Show what is inside a library.",
    "export": "Write a topology or a plan for other programs: NCCL's graph file, DOT, GraphML, CSV.",
    "topologies": "List the machines that come with collc.",
    "opt": "Run passes on an IR text and print, verify or interpret the result.",
}
# `collc --help` lists the first commands under "Commands" and the others under "More".
_FIRST_COMMANDS = 8


class _Group(click.Group):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        # Modules written in C print and swallow exceptions that are raised while they are imported.
        with whole():
            module = importlib.import_module(f"collc.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = list(COMMANDS.items())
        for title, part in (("Commands", rows[:_FIRST_COMMANDS]), ("More", rows[_FIRST_COMMANDS:])):
            with formatter.section(title):
                formatter.write_dl(part)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="collc")
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
def cli(debug: bool) -> None:
    """Compile collective communication for the GPUs that you have."""


class _Ended(BaseException):
    """A signal that ends the command. Not a KeyboardInterrupt, which click handles itself."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


# The signals of Ctrl-C, and of `kill`, batch systems and containers, with their default handlers.
_ENDS: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def _end(number: int, frame: object) -> None:
    """Ends the command at the first signal. Ignores later ones, so that they do not interrupt the cleanup."""
    for other in _ENDS:
        signal.signal(other, signal.SIG_IGN)
    interrupt(_Ended(number))


def _listen() -> list[signal.Signals]:
    """Handles the signals that have no handler yet, and returns them."""
    if threading.current_thread() is not threading.main_thread():
        return []
    taken = [number for number, default in _ENDS.items() if signal.getsignal(number) in (default, leave)]
    for number in taken:
        signal.signal(number, _end)
    return taken


def _let_go(taken: Sequence[signal.Signals], last: bool) -> None:
    """Restores the default handlers; ignores the signals instead if the process ends next (`last`)."""
    for number in taken:
        signal.signal(number, signal.SIG_IGN if last else _ENDS[number])


_OBEYED: list[int] = []


@atexit.register  # registered before all others, so that it runs last
def _die() -> None:
    """Ends the process by the signal that terminated it, so that the sender sees the right status."""
    if _OBEYED:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        signal.signal(_OBEYED[0], signal.SIG_DFL)
        os.kill(os.getpid(), _OBEYED[0])


class _Lines(logging.Handler):
    """Prints each note of the library as one line."""

    def emit(self, record: logging.LogRecord) -> None:
        report.note(f"collc: {record.getMessage()}")


_LINES = _Lines(logging.WARNING)


def main(argv: list[str] | None = None) -> Any:
    """Runs the command line and exits: 0 on success, 2 for a usage error, 1 for any other failure."""
    args = sys.argv[1:] if argv is None else argv
    logging.getLogger("collc").addHandler(_LINES)
    allow_tools()
    taken = _listen()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack characters, and a name may not be UTF-8
            stream.reconfigure(errors="backslashreplace")
    # `--debug` may be anywhere, before or after the command.
    own = args[: args.index("--")] if "--" in args else args
    debug = "--debug" in own
    rest = [a for a in own if a != "--debug"] + args[len(own) :]
    report.begin("--json" in own)
    try:
        sys.exit(_run(rest))
    except CollcError as error:
        _fail(error, debug, error, error.exit_code)
    except (_Ended, KeyboardInterrupt) as ended:
        end_tools()
        terminated = isinstance(ended, _Ended) and ended.number == signal.SIGTERM
        if terminated:
            _OBEYED.append(signal.SIGTERM)
        report.note(f"collc: {'terminated' if terminated else 'interrupted'}")
        sys.exit(143 if terminated else 130)
    except BrokenPipeError:
        # The reader of the output has ended, as in `collc ... | head`. This needs no message.
        _drop_output()
        sys.exit(1)
    except (OSError, UnicodeError, MemoryError, RecursionError) as error:
        told = of_exception(error)
        if any(frame.f_code is click.echo.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)):
            told = CollcError(told.what, where="standard output", hint=told.hint)  # click.echo prints results and help
        _fail(error, debug, told, 1)
    finally:
        report.clear_status()  # the status line hides the cursor
        # If the command failed, compilers may still run.
        end_tools()
        if argv is not None:  # the process continues, and may call the library
            allow_tools()
        _let_go(taken, last=argv is None)


def _run(args: list[str]) -> int:
    try:
        code = cli.main(args, prog_name="collc", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        raise _our_own(error, args) from error
    except click.ClickException as error:
        raise CollcError(error.format_message()) from error
    except click.exceptions.Abort as error:  # click's name for Ctrl-C
        raise KeyboardInterrupt from error
    except click.exceptions.Exit as stop:
        return stop.exit_code
    return code if isinstance(code, int) else 0


def _our_own(error: click.UsageError, args: list[str]) -> UsageError:
    """Returns the UsageError with the contents of click's four lines: the problem, its place, and a hint."""
    # Some errors of click do not contain the command.
    command = error.ctx.info_name if error.ctx and error.ctx.parent else next((a for a in args if a in COMMANDS), None)
    where, hint = command, f"see `collc {command} --help`" if command else "see `collc --help`"
    what = error.message
    near: Sequence[str] = ()
    if isinstance(error, click.NoSuchOption):
        near = error.possibilities or ()
    elif isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        named = error.param.get_error_hint(error.ctx) if error.param and error.ctx else error.param_hint
        where = named.replace("'", "") if isinstance(named, str) else command
        what = re.sub("is not a valid integer( range)?", "is not a whole number", what)
    elif command is None and args and not args[0].startswith("-"):
        near = difflib.get_close_matches(args[0], COMMANDS)
        what = f"no such command {args[0]!r}"
    else:
        what = error.format_message()
    hint = f"did you mean {' or '.join(near)}? {hint}" if near else hint
    what = " ".join(what.split()).rstrip(".")
    return UsageError(what[:1].lower() + what[1:], where=where, hint=hint)


def _fail(error: BaseException, debug: bool, told: CollcError, code: int) -> None:
    """Prints one line on standard error, and exits.

    With --json it also prints an object on standard output, unless a result has been printed.

    Args:
        error: the exception, for the traceback.
        told: the error in words.
        code: the exit code.
    """
    report.clear_status()
    if debug:
        click.echo(visible("".join(traceback.format_exception(error)), keep="\n"), err=True, nl=False)
    click.echo(f"collc: {visible(str(told))}", err=True)
    with suppress(OSError):
        report.error_json({"what": told.what, "where": told.where, "hint": told.hint, "exit_code": code})
    _abandon_output()
    sys.exit(code)


def _abandon_output() -> None:
    """Drops buffered output that cannot be written, for example because the disk is full.

    Otherwise Python tries to write it again at exit, prints another message, and exits with status 120.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
