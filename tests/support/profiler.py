"""A profiler's plugin that writes down what it hears (tests/status/profiler_plugin.cpp)."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from collc.build.cache import cache_dir
from collc.resources import resource_dir

SOURCE = Path(__file__).parent.parent / "status" / "profiler_plugin.cpp"


@cache
def plugin(versions: str) -> Path:
    """The plugin with the tables of these versions."""
    nccl = os.environ.get("COLLC_NCCL_SOURCE")
    made = cache_dir() / "tests" / f"libnccl-profiler-test{versions}{'n' if nccl else ''}.so"
    made.parent.mkdir(parents=True, exist_ok=True)
    headers = [f"-I{nccl}/plugins/profiler/example/nccl", "-DWITH_NCCL"] if nccl else []
    has = [f"-DHAS_{version}" for version in versions]
    command = [
        "g++",
        "-std=c++17",
        "-Wall",
        "-Wextra",
        *headers,
        *has,
        "-shared",
        "-fPIC",
        str(SOURCE),
        "-o",
        str(made),
    ]
    subprocess.run([*command, f"-I{resource_dir('templates') / 'include'}"], check=True)
    return made
