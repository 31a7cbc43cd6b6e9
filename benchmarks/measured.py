"""The date and the machine of a measurement, and the data file that it writes."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path

import tables

import collc

# Stands in place of a machine for results that the simulator predicts.
MODEL = "no measurement: the model of `collc simulate`"


def cores() -> int:
    return len(os.sched_getaffinity(0))


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def processor_name() -> str:
    """Returns the short name of the processor, without trademark signs and generic words."""
    return re.sub(r"\((R|TM)\)|\b(Processor|CPU)\b|@.*|\b\d+-Core\b", "", processor()).strip().replace("  ", " ")


def machine() -> str:
    """Returns the processor, the number of cores that this process may use, and the kernel."""
    return f"{processor()}, {cores()} cores, Linux {platform.release()}"


def provenance() -> str:
    """Returns the date and the machine."""
    return f"{time.strftime('%Y-%m-%d')}, {machine()}"


def for_processor(file: Path, name: str | None = None) -> Path:
    """Returns the file name with `name` [this machine's processor] in place of {processor}."""
    return Path(str(file).format(processor=(name or processor_name()).lower().replace(" ", "-")))


def publish(page: str, file: Path | None, hardware: str | None = None) -> None:
    """Prints a page, or writes its data file (tables.py).

    Args:
        page: the page as Markdown.
        file: the data file, whose name may contain {processor}; None prints the page.
        hardware: what was measured; None is this machine. `MODEL` stands for predictions, which have no date.
    """
    if file is None:
        print(page, end="")
        return
    date = "" if hardware == MODEL else time.strftime("%Y-%m-%d")
    report = tables.parse(page, date, hardware or machine(), f"collc {collc.__version__}")
    for_processor(file).write_text(tables.dump(report), encoding="utf-8")
