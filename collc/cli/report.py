"""The output of commands: text for people, JSON for programs, and progress on standard error."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import click

from collc.collectives.sizes import parse_size
from collc.errors import visible

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback when something fails.")


class Size(click.ParamType[int]):
    """A size in bytes, in the form of nccl-tests: 8, 64K, 16M, 1G."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        size = parse_size(str(value))
        if size is None:
            self.fail(f"{value!r} is not a size such as 8, 64K or 16M", param, ctx)
        return size


SIZE = Size()

# A command without a terminal prints a line of progress after this time.
MAX_SILENCE_SECONDS = 5.0


# Commands print everything with the functions below. Names, paths, logs and manifests come from others, and may contain
# control sequences for a terminal.


def line(text: str, *, nl: bool = True) -> None:
    """Prints one line of the result; without `nl` the beginning of a line."""
    clear_status()
    click.echo(visible(text), nl=nl)


def text(text: str, *, nl: bool = True) -> None:
    """Prints lines of the result.

    Newlines in the text stay, so the caller must have made names from others `visible`, or checked them.
    """
    clear_status()
    click.echo(visible(text, keep="\n"), nl=nl)


def note(text: str) -> None:
    """Prints one line for people on standard error, separate from the result."""
    clear_status()
    click.echo(visible(text), err=True)


class _Document:
    """The state of standard output.

    Attributes:
        wanted: the result is one JSON document.
        printed: the document, or its beginning, has been printed.
    """

    wanted = False
    printed = False


def begin(as_json: bool) -> None:
    """Begins a command; `as_json`: its result is a JSON document."""
    _Document.wanted, _Document.printed = as_json, False


def error_json(error: dict[str, object]) -> None:
    """Prints a failure as JSON, if the result would have been a JSON document that is not printed yet."""
    if _Document.wanted and not _Document.printed:
        emit_json({"error": error})


def emit_json(value: object) -> None:
    """Prints one JSON document with its keys in order. Control characters become JSON escapes."""
    _Document.printed = True
    clear_status()
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if not text.isascii() or "\x7f" in text:
        text = "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)
    click.echo(text)


def raw_json(piece: str) -> None:
    """Prints a piece of a JSON document that does not fit in memory; the piece is ASCII text of `json.dumps`."""
    _Document.printed = True
    clear_status()
    click.echo(piece.replace("\x7f", "\\u007f"), nl=False)


def _escape(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Returns a table of aligned columns: the first `left` columns are flush left, the others flush right."""
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in [header, *rows])


def columns() -> int | None:
    """Returns the width of the terminal of standard output; None if it is not a terminal, or is closed."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


class _Status:
    """The status line on the terminal.

    Attributes:
        hide: removes the line; None if no line is shown.
    """

    hide: Callable[[], None] | None = None


def clear_status() -> None:
    """Removes the status line, so that the next output begins on an empty line. The next status shows it again."""
    hide, _Status.hide = _Status.hide, None
    if hide is not None:
        hide()


def progress(label: str) -> Callable[[str], None]:
    """Returns the function that a command calls with the name of each stage, and with "" when it has finished.

    A terminal shows the stage and the elapsed time in a status line. Elsewhere, a line follows each
    `MAX_SILENCE_SECONDS` without output, unless COLLC_PROGRESS=0.
    """
    if not sys.stderr.isatty():
        return (lambda text: None) if os.environ.get("COLLC_PROGRESS") == "0" else _ProgressLines(label).show
    # Imported here, because commands in scripts do not need it.
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    console = Console(stderr=True)
    if console.is_dumb_terminal:  # it cannot remove a line
        return lambda text: None
    told = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
    # The streams are not redirected, because the functions above remove the status line before they print.
    shown = Progress(
        told,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        refresh_per_second=4,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = shown.add_task(label)

    def show(text: str) -> None:
        if not text:
            clear_status()
            return
        words = Text(visible(f"{label}: {text}"))
        words.truncate(console.width - len("  0:00:00"), overflow="ellipsis")
        shown.update(task, description=words.plain)
        if _Status.hide is None:
            _Status.hide = shown.stop
            shown.start()

    return show


class _ProgressLines:
    """Prints the current stage and the elapsed time whenever a command has been silent for `MAX_SILENCE_SECONDS`."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._start = time.monotonic()
        self._stage = ""

    def show(self, stage: str) -> None:
        """Sets the current stage; "" ends the lines until the next stage."""
        self._stage = stage
        if not stage:
            clear_status()
        elif _Status.hide is None:
            ended = threading.Event()
            printer = threading.Thread(target=self._print_lines, args=(ended,), daemon=True)

            def stop() -> None:
                ended.set()
                printer.join()

            _Status.hide = stop
            printer.start()

    def _print_lines(self, ended: threading.Event) -> None:
        while not ended.wait(MAX_SILENCE_SECONDS):
            seconds = time.monotonic() - self._start
            with suppress(OSError, ValueError):  # a reader that has gone away is the command's affair
                click.echo(visible(f"{self._label}: {self._stage}, {seconds:.0f} s"), err=True)


def compact(value: Any) -> str:
    """Returns a number for a table: exact if that is short, otherwise with five significant digits."""
    text = str(value)
    return text if len(text) <= 9 else f"{float(value):.5g}"


def ranges(numbers: Sequence[int]) -> list[str]:
    """Returns ranges of ascending numbers: ``0-2`` and ``5`` for 0, 1, 2, 5."""
    found: list[list[int]] = []
    for n in numbers:
        if found and found[-1][1] == n - 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return [str(a) if a == b else f"{a}-{b}" for a, b in found]
