"""Host libraries for the runtime's tests, built once per suite."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

from support.machines import TWO_SERVERS

from collc.build.cache import cache_dir, cached, content_key
from collc.build.objects import compile_object, compile_source
from collc.build.runtime import include_dirs, runtime_units
from collc.build.toolchain import find_cxx
from collc.choose import by_class
from collc.choose.joined import Cut
from collc.compiler import CompileRequest, compile_topology
from collc.options import TargetKind

TOPOLOGIES = Path(__file__).parent.parent.parent / "topologies"

# Three GPUs with unequal links: trees of different weights, roots that differ.
ODD = """
format: collc-topology/1
name: odd
gpus: 3
links:
  - {between: [gpu0, gpu1], kind: nvlink, gbps: 50}
  - {between: [gpu1, gpu2], kind: nvlink, gbps: 25}
  - {between: [gpu0, gpu2], kind: nvlink, gbps: 30}
"""
PAIR = """
format: collc-topology/1
name: pair
gpus: 2
links:
  - {between: [gpu0, gpu1], kind: nvlink, gbps: 25}
"""


# Three cores of one memory: one hop, and small all_reduces at every rank.
CORES = """
format: collc-topology/1
name: cores
gpus: [core0, core1, core0.1]
cpus: [cpu0]
links:
  - {between: [core0, cpu0], kind: c2c, gbps: 6.25}
  - {between: [core1, cpu0], kind: c2c, gbps: 6.25}
  - {between: [core0.1, cpu0], kind: c2c, gbps: 6.25}
"""
# Two of them, which need no more cores than most machines have.
TWIN = """
format: collc-topology/1
name: twin
gpus: [core0, core1]
cpus: [cpu0]
links:
  - {between: [core0, cpu0], kind: c2c, gbps: 6.25}
  - {between: [core1, cpu0], kind: c2c, gbps: 6.25}
"""
# As a probe writes them, with bus ids; of one GPU none is known.
PROBED = """
format: collc-topology/1
name: probed
gpus: 3
links:
  - {between: [gpu0, gpu1], kind: nvlink, gbps: 50}
  - {between: [gpu1, gpu2], kind: nvlink, gbps: 50}
devices: {gpu0: {pci: "0000:3b:00.0"}, gpu2: {pci: "0000:af:00.0"}}
"""
# Two GPUs with an NVLink, and a third GPU that only PCIe reaches.
MIXED = """
format: collc-topology/1
name: mixed
gpus: 3
cpus: [cpu0]
links:
  - {between: [gpu0, gpu1], kind: nvlink, gbps: 50}
  - {between: [gpu0, cpu0], kind: pcie, gbps: 12}
  - {between: [gpu1, cpu0], kind: pcie, gbps: 12}
  - {between: [gpu2, cpu0], kind: pcie, gbps: 12}
"""
# Three classes: NVLinks that differ, memory that GPUs reach over C2C, NICs that they reach over PCIe.
# Two GPUs that NVLink joins, and a third; a CPU's memory stages what passes through it.
BRIDGED = """\
format: collc-topology/1
name: bridged
gpus: 3
cpus: [{name: cpu0, memory_gbps: 20}]
links:
  - [gpu0, gpu1, nvlink, 50]
  - [gpu0, cpu0, pcie, 12]
  - [gpu1, cpu0, pcie, 12]
  - [gpu2, cpu0, pcie, 12]
"""

JOINT = """
format: collc-topology/1
name: joint
gpus: 4
cpus: [{name: cpu0, memory_gbps: 60}]
nics: [{name: nic0, gbps: 6}, {name: nic1, gbps: 6}, {name: nic2, gbps: 3}, {name: nic3, gbps: 6}]
links:
  - {between: [gpu0, gpu1], kind: nvlink, gbps: 50}
  - {between: [gpu1, gpu2], kind: nvlink, gbps: 25}
  - {between: [gpu0, gpu2], kind: nvlink, gbps: 30}
  - {between: [gpu2, gpu3], kind: nvlink, gbps: 50}
  - {between: [gpu0, cpu0], kind: c2c, gbps: 12}
  - {between: [gpu1, cpu0], kind: c2c, gbps: 9}
  - {between: [gpu2, cpu0], kind: c2c, gbps: 12}
  - {between: [gpu3, cpu0], kind: c2c, gbps: 12}
  - {between: [gpu0, nic0], kind: pcie, gbps: 12}
  - {between: [gpu1, nic1], kind: pcie, gbps: 12}
  - {between: [gpu2, nic2], kind: pcie, gbps: 12}
  - {between: [gpu3, nic3], kind: pcie, gbps: 12}
"""
# How `joint` cuts its calls: all of them, so that tests need none that are large.
CUTS = [
    Cut(0, {"nvlink": 3, "pcie": 1}, {"nvlink": 3, "pcie": 2}, 64 << 10, "for small calls"),
    Cut(16 << 10, {"nvlink": 5, "pcie": 2, "net": 1}, {"nvlink": 6, "pcie": 2, "net": 2}, 64 << 10, "for large calls"),
]
# Two servers of one GPU, each with cards on two networks that its system knows by interface, by bus id, or by both.
CARDS = """format: collc-topology/1
name: cards
servers: 2
template:
  gpus: 1
  nics:
    - {name: fast, interface: ib0, pci: "0000:5e:00.1"}
    - {name: plain, interface: a-long-name.100}
    - {name: placed, pci: "0000:af:00.0"}
    - {name: unknown, gbps: 1}
    - {name: dark, interface: ib9, up: false}
  links:
    - [gpu0, fast, pcie, 25]
    - [gpu0, plain, pcie, 25]
    - [gpu0, placed, pcie, 25]
    - [gpu0, unknown, pcie, 25]
    - [gpu0, dark, pcie, 25]
switches: [left, right]
links:
  - [each.fast, left, net, 25]
  - [each.plain, right, net, 1]
  - [each.placed, right, net, 1]
  - [each.unknown, right, net, 1]
  - [each.dark, left, net, 25]
"""
_OWN = {
    "cards": CARDS,
    "joint": JOINT,
    "odd": ODD,
    "pair": PAIR,
    "cores": CORES,
    "mixed": MIXED,
    "probed": PROBED,
    "twin": TWIN,
    "two-servers": TWO_SERVERS,
}
# Servers with these numbers of GPUs, joined by a network card each.
CLUSTERS = {
    "1+1": (1, 1),
    "1+1+1": (1, 1, 1),
    "1+1+1+1": (1, 1, 1, 1),
    "2+2": (2, 2),
    "3+5": (3, 5),
    "1+1+6": (1, 1, 6),
    "2+2+2+2": (2, 2, 2, 2),
}
# The same, whose topology says what the servers' systems call the cards.
CLUSTERS |= {"2+2-e1": (2, 2), "1+1+1-e1": (1, 1, 1)}


def topology_file(name: str) -> Path:
    folder = cache_dir() / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    if name not in _OWN and name not in CLUSTERS:
        return TOPOLOGIES / f"{name}.yaml"
    text = cluster(CLUSTERS[name], "e1" if name.endswith("-e1") else "") if name in CLUSTERS else _OWN[name]
    source = folder / f"{name}-{content_key([text])[:12]}.yaml"
    draft = source.with_suffix(f".{os.getpid()}")  # other workers may be reading it
    draft.write_text(text, encoding="utf-8")
    draft.replace(source)
    return source


def cluster(sizes: tuple[int, ...], interface: str = "") -> str:
    """Returns the topology of servers with `sizes` GPUs: NVLink between all GPUs of a server, one NIC of 10 GB/s each.

    Args:
        interface: the name of each server's NIC in its system; empty if the topology does not give it.
    """
    servers, links, first = [], [], 0
    for s, size in enumerate(sizes):
        gpus = [f"gpu{g}" for g in range(first, first + size)]
        first += size
        servers.append(f"s{s}: [{', '.join([*gpus, f'nic{s}', f'cpu{s}'])}]")
        links += [f"{{between: [{a}, {b}], kind: nvlink, gbps: 25}}" for a, b in itertools.combinations(gpus, 2)]
        links += [f"{{between: [{gpu}, nic{s}], kind: pcie, gbps: 12}}" for gpu in gpus]
        links.append(f"{{between: [nic{s}, net], kind: net, gbps: 10}}")
    numbers = range(len(sizes))
    called = f", interface: {interface}" if interface else ""
    return "\n".join(
        [
            "format: collc-topology/1",
            f"name: cluster-{'-'.join(map(str, sizes))}",
            f"gpus: {first}",
            f"nics: [{', '.join(f'{{name: nic{s}{called}}}' for s in numbers)}]",
            f"cpus: [{', '.join(f'cpu{s}' for s in numbers)}]",
            "switches: [net]",
            f"servers: {{{', '.join(servers)}}}",
            "links:",
            *(f"  - {link}" for link in links),
            "",
        ]
    )


@cache
def library(name: str) -> Path:
    """The host library of `odd`, `pair`, `cores`, `twin`, a machine of topologies/, or `machine:allocations`."""
    machine, _, sets = name.partition(":")
    source = topology_file(machine)
    # Compiled anew for every run of the suite; the cache makes that cheap and keeps it true to the sources.
    units = runtime_units(TargetKind.HOST, find_cxx())
    version = content_key([sets, *(compile_object(unit, find_cxx()).parent.name for unit in units)])[:12]
    out = cache_dir() / "tests" / f"libcollc-{machine}-{version}.so"
    out.parent.mkdir(parents=True, exist_ok=True)
    gpus = ",".join(f"gpu{g}" for g in range(sum(CLUSTERS[machine]))) if machine in CLUSTERS and not sets else None
    with patch.object(by_class, "find_cuts", lambda *_: CUTS):
        compile_topology(
            CompileRequest(
                topology=str(source),
                output=out,
                target=TargetKind.HOST,
                gpus=gpus,
                allocations=sets or None,
                classes="all" if machine == "joint" else None,
            )
        )
    return out


@cache
def client(source: Path, name: str, *beside: Path) -> Path:
    """A C client linked with a library, and with others beside it."""
    linked = library(name)
    link = [part for path in (linked, *beside) for part in (str(path), f"-Wl,-rpath,{path.parent}")]
    return _c_program(source, f"{source.stem}-{linked.stem}", link)


def run_client(
    command: list[str | Path],
    ending: str = "elements right\n",
    settings: Mapping[str, str] | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """Runs a client to its good end: status 0, and `ending` as its last output. `settings` go into its environment."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env={**os.environ, **(settings or {})}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(ending)
    return done


@cache
def fake_nccl(source: Path) -> Path:
    """A shared library of a test's own that plays the real NCCL."""
    return _c_program(source, "libfake.so", ["-shared", "-fPIC"])


@cache
def shared_library(source: Path, *options: str) -> Path:
    """A shared library of a test's own, to be preloaded."""
    return _c_program(source, f"{source.stem}.so", ["-shared", "-fPIC", *options, "-ldl"])


@cache
def runtime_program(source: Path, parts: frozenset[str]) -> Path:
    """A C++ program of a test's own with these files of the host target's runtime, each as ROOM_FILE."""
    compiler = find_cxx()
    objects: list[Path] = []
    found: set[str] = set()
    for unit in runtime_units(TargetKind.HOST, compiler):
        files = {f"{path.parent.name}_{path.stem}": path for path in unit.files}
        wanted = tuple(path for name, path in files.items() if name in parts)
        if wanted:
            found |= parts & set(files)
            objects.append(compile_object(replace(unit, files=wanted), compiler))
    assert found == parts
    objects.append(compile_source(source.read_text(encoding="utf-8"), source.stem, compiler))
    command = [compiler.path, *map(str, objects), "-lstdc++", "-pthread"]

    def make(made: Path) -> None:
        subprocess.run([*command, "-o", str(made)], check=True)

    return cached(content_key(command), source.stem, make)


@cache
def sanitized(source: Path, name: str, flags: tuple[str, ...]) -> Path:
    """A C client with the runtime and the step tables of a topology in one program, all built with `flags`."""
    kept = cache_dir() / "tests" / f"{name}-tables.cpp"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with patch.object(by_class, "find_cuts", lambda *_: CUTS):
        compile_topology(
            CompileRequest(
                topology=str(topology_file(name)),
                output=kept.with_suffix(".so"),
                target=TargetKind.HOST,
                keep_source=kept,
                classes="all" if name == "joint" else None,
            )
        )
    compiler, options = find_cxx(), ("-std=c++17", "-O1", "-g", "-pthread", *flags)
    objects = [compile_object(unit, compiler, options) for unit in runtime_units(TargetKind.HOST, compiler)]
    objects.append(compile_source(kept.read_text(encoding="utf-8"), "tables", compiler, options))
    link = [*flags, *map(str, objects), "-lstdc++", "-ldl"]
    return _c_program(source, f"{source.stem}-{name}", link)


def _c_program(source: Path, name: str, link: list[str]) -> Path:
    warnings = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    command = [find_cxx().path, "-x", "c", "-std=c99", "-D_GNU_SOURCE", *warnings, "-O2", f"-I{include_dirs()[0]}"]
    texts = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")), include_dirs()[0] / "nccl.h")]

    def make(made: Path) -> None:
        subprocess.run([*command, str(source), "-o", str(made), "-pthread", "-x", "none", *link], check=True)

    return cached(content_key([*command, *link, *texts]), name, make)
