"""Environment variables are read in one place. Variables that name files have no effect in a setuid program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.libraries import library

RUNTIME = Path(__file__).parent.parent.parent / "templates"

CLIENT = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
  void *lib = dlopen(argv[argc - 1], RTLD_NOW);
  if (lib == NULL) return fprintf(stderr, "%s\n", dlerror()), 9;
  int (*init)(void **, int, const int *) = (int (*)(void **, int, const int *))dlsym(lib, "ncclCommInitAll");
  void *comms[2];
  int result = init(comms, 2, NULL);
  printf("%d\n", result);
  return 0;
}
"""
TRAP = '#include <unistd.h>\n__attribute__((constructor)) static void run(void) { (void)!write(2, "LOADED\\n", 7); }\n'


def test_one_file_asks_the_environment() -> None:
    asking = [
        path.relative_to(RUNTIME).as_posix()
        for path in sorted(RUNTIME.rglob("*"))
        if path.suffix in (".cpp", ".h", ".j2") and re.search(r"\b(secure_)?getenv\b|\benviron\b", path.read_text())
    ]
    assert asking == ["runtime/base/environment.cpp"]


# Every variable of the runtime, by whether it names a file that is then opened.
PATHS = {
    *("COLLC_CACHE", "COLLC_MACHINE", "HOME", "XDG_CACHE_HOME"),
    *("COLLC_DUMP", "COLLC_NCCL", "COLLC_TOPOLOGY", "COLLC_TUNING", "COLLC_UCX", "LD_PRELOAD"),
    *("NVTX_INJECTION64_PATH", "NCCL_PROFILER_PLUGIN"),  # names that are not ours
}


def test_every_variable_that_names_a_file_is_read_as_one() -> None:
    readers: dict[str, set[str]] = {}
    for path in (RUNTIME / "runtime").rglob("*.cpp"):
        for function, name in re.findall(r'\b(read_\w+|is_set)\("([A-Z0-9_]+)"', path.read_text()):
            readers.setdefault(name, set()).add(function)
    assert {name for name, functions in readers.items() if "read_path" in functions} == PATHS
    for name, functions in readers.items():
        assert functions == {"read_path"} or "read_path" not in functions, name
        assert functions == {"read_path"} or not re.search("FILE|PATH|DIR$|LIB", name), (
            f"{name}: a file? then read_path"
        )


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that everybody may enter: a program that runs with its owner's rights, the same without, a library."""
    if os.geteuid():
        pytest.skip("only the superuser can make a program that runs with other rights")
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        (folder / "client.c").write_text(CLIENT)
        (folder / "trap.c").write_text(TRAP)
        subprocess.run(["gcc", folder / "client.c", "-o", folder / "plain", "-ldl"], check=True)
        subprocess.run(["gcc", "-shared", "-fPIC", folder / "trap.c", "-o", folder / "trap.so"], check=True)
        shutil.copy(folder / "plain", folder / "setuid")
        (folder / "setuid").chmod(0o4755)
        shutil.copy(library("pair"), folder / "pair.so")
        (folder / "pair.so").chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


def run(place: Path, program: str, **settings: str) -> str:
    done = subprocess.run(
        [place / program, place / "pair.so"],
        env=settings,
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        user=65534,
        group=65534,
        extra_groups=[],
    )
    if not done.stdout:
        pytest.skip(f"programs with other rights do not run here: {done.stderr}")
    return done.stderr


def test_paths_count_only_for_a_program_of_its_callers_rights(place: Path) -> None:
    tuning = str(place / "missing.tuning")
    assert "COLLC_TUNING" in run(place, "plain", COLLC_TUNING=tuning)
    assert run(place, "setuid", COLLC_TUNING=tuning) == ""
    nccl = {"COLLC_DISABLE": "1", "COLLC_NCCL": str(place / "trap.so")}
    assert "LOADED" in run(place, "plain", **nccl)
    assert "LOADED" not in run(place, "setuid", **nccl)
    # A variable that names no file still counts.
    assert "COLLC_TIMEOUT" in run(place, "setuid", COLLC_TIMEOUT="soon", COLLC_DEBUG="WARN")


def test_a_variable_does_not_write_to_the_terminal(place: Path) -> None:
    said = run(place, "plain", COLLC_TIMEOUT="\x1b[31m\x07\u202e\u2066\u200b\u009bé\n", COLLC_DEBUG="WARN")
    assert "COLLC_TIMEOUT" in said
    assert "é" in said
    assert all(c.isprintable() for line in said.splitlines() for c in line), ascii(said)
    assert len(said.splitlines()) == len([line for line in said.splitlines() if line.startswith("collc: ")])
