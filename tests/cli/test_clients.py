"""Clients that open NCCL by hand, under `collc run` and with the library preloaded only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.libraries import library, shared_library
from support.nccl_clients import CLIENTS

from collc.build.clients import PATH_VARIABLES
from collc.build.toolchain import find_cxx, run_tool

HERE = Path(__file__).parent
FAKE = HERE.parent / "runtime" / "fake_nccl.c"
OURS, THEIRS = 23007, 22703  # of the library, and of fake_nccl.c
REMOTE_ERROR = 6
HIDDEN = ("COLLC_NCCL", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", *PATH_VARIABLES)

OPENER = "#include <dlfcn.h>\nvoid *open_nccl(const char *name) { return dlopen(name, RTLD_LAZY); }\n"
NEEDS_NCCL = "int ncclGetVersion(int *);\nint ask(int *version) { return ncclGetVersion(version); }\n"
CALLED = ("ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRank", "ncclAllReduce", "ncclCommGetAsyncError")
EXTENSION = "\n".join(
    [
        "#include <string.h>",
        *(f"int {name}();" for name in CALLED),
        "void *address(const char *name) {",
        *(f'  if (strcmp(name, "{name}") == 0) return {name};' for name in CALLED),
        "  return 0;\n}\n",
    ]
)
# The search path of PyTorch's and JAX's libraries, which precedes LD_LIBRARY_PATH.
RPATH = ("-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python environment with stubs of the clients and a wheel of NCCL."""
    prefix = tmp_path_factory.mktemp("clients")
    packages = prefix / "lib" / "python3.11" / "site-packages"
    nccl = packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    nccl.parent.mkdir(parents=True)
    nccl.write_bytes(shared_library(FAKE, "-Wl,-soname,libnccl.so.2").read_bytes())
    source = prefix / "stub.c"
    for name, text, options in (
        ("torch/lib/libtorch_cuda.so", NEEDS_NCCL, [*RPATH, "-xnone", str(nccl)]),
        ("xgboost/libopener.so", OPENER, ["-ldl"]),
        ("jax_plugins/xla_cuda12/libopener.so", OPENER, [*RPATH, "-ldl"]),
        ("cupy_backends/libextension.so", EXTENSION, ["-xnone", str(nccl)]),
    ):
        (packages / name).parent.mkdir(parents=True)
        source.write_text(text, encoding="utf-8")
        compiler = [find_cxx().path, "-xc", "-w", "-shared", "-fPIC", str(source), "-o", str(packages / name)]
        run_tool([*compiler, *options])
    python = prefix / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return prefix


def start(prefix: Path, before: list[str], *arguments: str, **settings: str) -> list[str]:
    """The lines of a client that a command starts."""
    packages = prefix / "lib" / "python3.11" / "site-packages"
    environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    command = [*before, str(prefix / "bin" / "python"), str(HERE.parent / "support" / "nccl_clients.py")]
    done = subprocess.run(
        [*command, arguments[0], str(packages), *arguments[1:]],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**environment, **settings},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("client", CLIENTS)
def test_ranks_of_a_client_use_the_library_and_hear_of_a_death(client: str, prefix: Path) -> None:
    run = [sys.executable, "-m", "collc", "run", "--lib", str(library("odd")), "--"]
    *sums, first, second = start(prefix, run, client, "3")
    assert sums == [f"{OURS} 3.0"] * 3
    assert first == second == f"{REMOTE_ERROR} {REMOTE_ERROR}"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_preloaded_library_reaches_cupy_alone(client: str, prefix: Path) -> None:
    """So the stubs open NCCL past it as the clients do."""
    wheel = prefix / "lib" / "python3.11" / "site-packages" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    found = start(prefix, [], client, LD_PRELOAD=str(library("odd")), COLLC_NCCL=str(wheel))
    assert found == [str(OURS if client == "cupy" else THEIRS)]
