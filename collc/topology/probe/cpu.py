"""`collc probe --cpu`: the cores of this machine as a topology for the host target.

A rank of the host target is a core. Cores share memory: each has a link to the memory of its NUMA node, a `cpu` vertex,
over which it writes (out) and reads (in); nodes are joined to each other. Sibling threads of a core count once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

from collc.errors import CollcError, UsageError
from collc.topology.model import LinkKind, Topology
from collc.topology.probe.machine import Machine, build

# What one core moves through shared memory, and what crosses between two NUMA nodes, GB/s per direction.
CORE_GBPS = Fraction(25, 2)
NODE_GBPS = Fraction(30)
# More ranks than this are of no use on one machine, and pairs are measured one by one.
MAX_CORES = 512


def probe_cpu(
    *,
    name: str = "host",
    sysfs: Path = Path("/sys"),
    allowed: Iterable[int] | None = None,
    ranks: int | None = None,
) -> Topology:
    """The cores that this process may run on and their NUMA nodes; vertex ``core4`` is Linux's CPU 4.

    Args:
        allowed: CPU numbers; those of this process if None.
        ranks: how many ranks, dealt out to the cores in turn; one per core if None. The second on ``core4`` is
            ``core4.1``. All get the same part of a core's bandwidth: that of the core with the most ranks.

    Raises:
        CollcError: no core is left, or there are too many.
    """
    usable = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    cores = _one_per_core(sysfs, usable)
    if not cores:
        raise CollcError("no core is left to this process", where="probe --cpu", hint="see taskset -p $$")
    if len(cores) > MAX_CORES:
        hint = "choose some with taskset -c"
        raise CollcError(f"{len(cores)} cores, at most {MAX_CORES}", where="probe --cpu", hint=hint)
    if ranks is not None and not 1 <= ranks <= MAX_CORES:
        raise UsageError(f"{ranks} ranks", where="probe --cpu", hint=f"1 to {MAX_CORES} are possible")
    nodes = _nodes(sysfs)
    used = cores if ranks is None else [cores[rank % len(cores)] for rank in range(ranks)]
    placed = {_rank_name(cpu, used[:rank].count(cpu)): cpu for rank, cpu in enumerate(used)}
    machine = Machine(name, gpus=list(placed))
    home = {cpu: nodes.get(cpu, 0) for cpu in used}
    machine.cpus = [f"cpu{node}" for node in sorted(set(home.values()))]
    machine.parent = {rank: f"cpu{home[cpu]}" for rank, cpu in placed.items()}
    machine.host_kind = dict.fromkeys(machine.gpus, LinkKind.C2C)
    most = -(-len(used) // len(cores))
    machine.pcie = dict.fromkeys(machine.gpus, Fraction(int(CORE_GBPS / most * 100), 100))
    if most > 1:
        machine.assume(f"{len(used)} ranks on {len(cores)} cores, up to {most} share the bandwidth of one")
    machine.assume(f"cores of this machine through shared memory: assumed {float(CORE_GBPS):g} GB/s per core")
    if len(machine.cpus) > 1:
        machine.socket = (NODE_GBPS, "between two NUMA nodes")
    if ranks is None and len(cores) < len(usable):
        machine.assume(f"{len(usable)} hardware threads: one rank for each of {len(cores)} cores")
    return build(machine, None, "probe --cpu")


def _rank_name(cpu: int, before: int) -> str:
    return f"core{cpu}.{before}" if before else f"core{cpu}"


def _one_per_core(sysfs: Path, usable: list[int]) -> list[int]:
    """The first usable hardware thread of every core."""
    seen: set[int] = set()
    found = []
    for cpu in usable:
        if cpu in seen:
            continue
        found.append(cpu)
        seen |= {cpu, *_numbers(sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")}
    return found


def _nodes(sysfs: Path) -> dict[int, int]:
    """CPU -> NUMA node."""
    found: dict[int, int] = {}
    for folder in sorted((sysfs / "devices/system/node").glob("node[0-9]*")):
        if match := re.fullmatch("node([0-9]{1,4})", folder.name):
            found |= dict.fromkeys(_numbers(folder / "cpulist"), int(match[1]))
    return found


def _numbers(path: Path) -> list[int]:
    """The numbers of a kernel list such as ``0-3,8``; none if the file is not there."""
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return []
    found: list[int] = []
    for part in text.split(","):
        if match := re.fullmatch("([0-9]{1,5})(?:-([0-9]{1,5}))?", part):
            found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found
