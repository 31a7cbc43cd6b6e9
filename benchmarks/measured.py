"""When and where a page of measurements was made, and where it goes."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path


def cores() -> int:
    return len(os.sched_getaffinity(0))


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def processor_name() -> str:
    """The processor as people call it: without marks of trade and what every one is."""
    return re.sub(r"\((R|TM)\)|\b(Processor|CPU)\b|@.*|\b\d+-Core\b", "", processor()).strip().replace("  ", " ")


def provenance() -> str:
    """The date, the processor, the cores that this process may use, and the kernel."""
    return f"{time.strftime('%Y-%m-%d')}, {processor()}, {cores()} cores, Linux {platform.release()}"


def for_processor(file: Path, name: str | None = None) -> Path:
    """The file, {processor} in its name being that of `name` [this one's]."""
    return Path(str(file).format(processor=(name or processor_name()).lower().replace(" ", "-")))


def publish(page: str, file: Path | None) -> None:
    """Writes a page to its file, whose name may have {processor} in it, or prints it where none is given."""
    if file is None:
        print(page, end="")
    else:
        for_processor(file).write_text(page, encoding="utf-8")
