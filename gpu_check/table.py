"""The table of check.py: prints every row as soon as it is known, and ends parts that hang."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# The exit status if all parts that ran passed, but some did not run.
SKIPPED = 3
# Seconds that a killed process may take to disappear before the next part starts.
GRACE = 5.0


class Part(NamedTuple):
    """A part of the check, which runs in a separate process.

    Args:
        library: the library that it is about; the first column of its rows.
        arguments: arguments of check.py.
        seconds: the part is killed after this time.
        must_pass: whether the whole check fails if this part fails.
        needs: a file that it needs to run.
        prefix: start of the command: a tool that runs Python.
    """

    name: str
    library: str
    arguments: tuple[str, ...]
    seconds: float
    must_pass: bool = True
    needs: Path | None = None
    prefix: tuple[str, ...] = ()


class Table:
    """The rows, in order. Each is written at once to OUT/gpu-check.txt and to stdout, and all of them at the end."""

    def __init__(self, folder: Path | None) -> None:
        self.start = time.monotonic()
        self.rows: list[str] = []
        self.good = True
        self.skipped = 0  # number of rows of parts that did not run and need not
        self.lock = threading.RLock()
        self.file = folder / "gpu-check.txt" if folder else None
        self.log = folder / "gpu-check.log" if folder else None
        for file in (self.file, self.log):
            if file:
                file.write_text("", encoding="utf-8")

    def add(self, library: str, what: str, value: str, good: bool = True) -> None:
        row = f"{library:<10} {what:<44} {value}"
        with self.lock:
            self.rows.append(row)
            self.good &= good
            self.skipped += "not run" in value and good
            print(f"[{time.monotonic() - self.start:5.0f} s] {row}", flush=True)
            if self.file:
                with self.file.open("a", encoding="utf-8") as out:
                    out.write(row + "\n")

    def note(self, text: str) -> None:
        """Adds output of processes that is not a row to the log."""
        with self.lock:
            if self.log and text.strip():
                with self.log.open("a", encoding="utf-8") as out:
                    out.write(text.rstrip() + "\n")

    def finish(self, ended: str) -> int:
        """Prints the table. Returns the exit status: 0 if all ran and passed, `SKIPPED` if some did not run, else 1."""
        with self.lock:
            passed = "all checks passed" if self.good else "NOT all checks passed"
            if self.good and self.skipped:
                passed = f"all checks that ran passed, {self.skipped} did not run"
            last = f"{passed}{ended} {time.monotonic() - self.start:.0f} s"
            rows = [*self.rows, f"{'':<10} {last}"]
            print("\n".join(["", *rows]), flush=True)
            if self.file:
                self.file.write_text("\n".join(rows) + "\n", encoding="utf-8")
            return 1 if not self.good else SKIPPED if self.skipped else 0


class Runner:
    """Runs parts one after another, each within its time; a watchdog limits the total time."""

    def __init__(self, table: Table, script: Path) -> None:
        self.table, self.script = table, script
        self.facts: dict[str, Any] = {}
        self.left: list[Part] = []
        self.at_work: Part | None = None
        self.process: subprocess.Popen[str] | None = None

    def watch(self, seconds: float) -> None:
        """Starts the watchdog: after these seconds, prints the table as it is and ends the process with status 1."""
        timer = threading.Timer(seconds, self.give_up)
        timer.daemon = True
        timer.start()

    def give_up(self) -> None:
        with self.table.lock:
            over = "the time of the whole check is over"
            if self.at_work:
                self.table.add(self.at_work.library, self.at_work.name, f"not run to its end: {over}", False)
            for part in self.left:
                self.table.add(part.library, part.name, f"not run: {over}", False)
            self.end(self.process)
            self.table.finish(", ended by the watchdog after")
            os._exit(1)

    def end(self, process: subprocess.Popen[str] | None) -> None:
        """Kills a process and its children. A process that the driver does not release is left behind."""
        if process is None or process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.table.note(f"process {process.pid} does not end although it was killed")

    def run(self, parts: list[Part], obstacle: Callable[[Part], str | None]) -> None:
        """Runs parts one after another; lists a part as not run if `obstacle` returns a reason."""
        self.left = list(parts)
        for part in parts:
            reason = obstacle(part)
            if reason is None and part.needs is not None and not part.needs.is_file():
                reason = f"{part.needs.name} was not built"
            with self.table.lock:
                self.left.pop(0)
                if reason is not None:
                    self.table.add(part.library, part.name, f"not run: {reason}", not part.must_pass)
                self.at_work = part if reason is None else None
            if reason is None:
                self.run_part(part)
                self.at_work = None

    def run_part(self, part: Part) -> None:
        own = ["--part", part.name.split(":")[0], "--facts", json.dumps(self.facts)]
        # Cases and sizes get four fifths of a part's time; the rest is for the last of them and for the exit.
        own += ["--until", f"{part.seconds * 0.8:.1f}", *part.arguments]
        environment = dict(os.environ)
        # Less than the part's time, so that a waiting kernel can report what it waits for before its process is killed.
        environment.setdefault("COLLC_TIMEOUT", f"{min(20.0, part.seconds * 0.6):.1f}")
        environment.update({"COLLC_SHARE_GPU": "1", "PYTHONUNBUFFERED": "1"})
        lines: queue.Queue[str | None] = queue.Queue()
        errors: list[str] = []
        with self.table.lock:
            process = self.process = subprocess.Popen(
                [*part.prefix, sys.executable, str(self.script), *own],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
                errors="replace",
                start_new_session=True,
            )

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        def read_errors() -> None:
            assert process.stderr is not None
            errors.extend(process.stderr)

        threads = [threading.Thread(target=target, daemon=True) for target in (read, read_errors)]
        for thread in threads:
            thread.start()
        ended = self.take(part, lines, time.monotonic() + part.seconds)
        if ended:
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                ended = False
        self.end(process)
        threads[1].join(1)
        said = "".join(errors)
        self.table.note(f"== {part.library} {part.name}\n{said}" if said else "")
        if not ended:
            text = f"NOT ENDED: killed after {part.seconds:.0f} s{self.place()}"
            self.table.add(part.library, part.name, text, not part.must_pass)
        elif process.returncode not in (0, 1) or (process.returncode == 1 and not self.told):
            words = (said.strip().splitlines() or ["no words"])[-1][:200]
            text = f"FAILED: status {process.returncode}{self.place()}: {words}"
            self.table.add(part.library, part.name, text, not part.must_pass)

    def place(self) -> str:
        """Returns the last position that a part has reported."""
        return f", at its no. {self.reached}, {self.at}" if self.reached else ""

    def take(self, part: Part, lines: queue.Queue[str | None], deadline: float) -> bool:
        """Adds the rows of a part as they come. Returns whether the part ended by itself."""
        self.told, self.at, self.reached = False, "", 0
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return False
            if line is None:
                return True
            try:
                answer = json.loads(line)
            except ValueError:
                self.table.note(line)
                if "ERROR SUMMARY" in line:  # compute-sanitizer's last words
                    clean = "0 errors" in line
                    self.table.add(part.library, "compute-sanitizer", line.strip(" =\n"), clean)
                continue
            self.facts.update(answer.get("facts", {}))
            if "at" in answer:
                self.reached += 1
                self.at = answer["at"]
            if "row" in answer:
                good = bool(answer["good"])
                self.told |= not good
                title, text = answer["row"]
                self.table.add(part.library, title, text, good or not part.must_pass)
