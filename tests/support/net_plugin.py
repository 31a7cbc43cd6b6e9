"""The tests' own network plugin made for NCCL, which judges who uses it."""

from __future__ import annotations

import subprocess
import time
from functools import cache
from pathlib import Path

from collc.build.cache import cached, content_key
from collc.build.toolchain import find_cxx

_SOURCE = Path(__file__).parent.parent / "runtime" / "net_plugin.cpp"
VERSIONS = (8, 9, 10, 11, 12)


@cache
def net_plugin(version: int = VERSIONS[-1]) -> Path:
    """The plugin with this version of NCCL's interface alone."""
    warnings = ("-Wall", "-Wextra", "-Werror")
    options = ("-std=c++17", "-O1", "-g", "-shared", "-fPIC", "-pthread", f"-DVERSION={version}")
    command = [find_cxx().path, *warnings, *options, str(_SOURCE)]
    texts = [path.read_bytes() for path in (_SOURCE, _SOURCE.with_name("net_plugin_versions.h"))]

    def make(made: Path) -> None:
        subprocess.run([*command, "-o", str(made), "-lstdc++"], check=True)

    return cached(content_key([*command, *texts]), f"net_plugin-{version}.so", make)


class Judge:
    """What the plugin has noted in its file.

    Args:
        log: that file.
        version: of NCCL's interface.
    """

    def __init__(self, log: Path, version: int = VERSIONS[-1]) -> None:
        self.log = log
        self.settings = {"COLLC_NET": f"plugin:{net_plugin(version)},lo", "JUDGE_LOG": str(log)}

    def lines(self, begin: str = "") -> list[str]:
        """Its lines, or those that begin so; none of them is a violation."""
        found = self.log.read_text().splitlines() if self.log.exists() else []
        assert [line for line in found if line.startswith("violation")] == []
        return [line for line in found if line.startswith(begin)]

    def wait_for(self, begin: str, count: int, seconds: float = 60) -> list[str]:
        """So many lines, as soon as they are there."""
        end = time.monotonic() + seconds
        while len(self.lines(begin)) < count:
            assert time.monotonic() < end, self.lines()
            time.sleep(0.05)
        return self.lines(begin)
