"""`collc run --lib FOLDER` on a machine with a lost link or GPU: it picks the library that fits and reports it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.changed import tables_library
from support.libraries import topology_file

from collc.collectives.model import Collective
from collc.topology.load import load_topology

ALL_REDUCE = (Collective.ALL_REDUCE,)


def less(folder: Path) -> Path:
    path = folder / "less.yaml"
    path.write_text(f"format: collc-topology/1\nname: less\nextends: {topology_file('odd')}\nremove: [gpu1]\n")
    return path


def told(lib: Path, topology: Path) -> tuple[str, str, str]:
    """The library that is preloaded, and the variables that say what this machine is."""
    command = [sys.executable, "-m", "collc", "run", "--lib", str(lib), "--topology", str(topology), "--"]
    script = 'echo "$LD_PRELOAD"; echo "$COLLC_TOPOLOGY"; echo "$COLLC_NUMBERING"'
    done = subprocess.run([*command, "sh", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    preload, topology_variable, numbering = done.stdout.splitlines()
    return Path(preload).name, topology_variable, numbering


def test_a_library_for_the_whole_machine_goes_before_one_that_survives_the_loss(tmp_path: Path) -> None:
    folder = tmp_path / "libs"
    folder.mkdir()
    survives = folder / "libcollc-a.so"
    os.link(tables_library("odd", collectives=ALL_REDUCE, survive=1), survives)
    assert told(survives, less(tmp_path))[0] == "libcollc-a.so"
    name, links, numbering = told(folder, less(tmp_path))
    assert (name, numbering) == ("libcollc-a.so", "")
    lines = Path(links).read_text().splitlines()
    assert lines[0] == "collc-links/1"
    assert len(lines) == 1 + len(load_topology(str(less(tmp_path))).vertices) + 2
    os.link(tables_library(str(less(tmp_path)).removesuffix(".yaml"), collectives=ALL_REDUCE), folder / "libcollc-b.so")
    assert told(folder, less(tmp_path)) == ("libcollc-b.so", "", "0,1")
    assert told(folder, topology_file("odd"))[0] == "libcollc-a.so"
