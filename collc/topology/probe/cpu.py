"""Describes the cores of this machine as a topology for the host target, for `collc probe --cpu`.

A rank of the host target is a core. Each core has a link to the memory of its NUMA node, a `cpu` vertex; it writes over
the outgoing direction and reads over the incoming one. NUMA nodes have links to each other. Sibling hardware threads of
a core count once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

from collc.errors import CollcError, UsageError
from collc.topology.model import LinkKind, Topology
from collc.topology.probe.build import build
from collc.topology.probe.machine import Machine

# The speed of one core through shared memory, and of the link between two NUMA nodes, in GB/s per direction.
CORE_GBPS = Fraction(25, 2)
NODE_GBPS = Fraction(30)
# More ranks are of no use on one machine, and `--measure` times pairs one after another.
MAX_CORES = 512


def probe_cpu(
    *,
    name: str = "host",
    sysfs: Path = Path("/sys"),
    allowed: Iterable[int] | None = None,
    ranks: int | None = None,
) -> Topology:
    """Returns the topology of the cores that this process may use. Vertex ``core4`` is Linux's CPU 4.

    Args:
        name: the name of the topology.
        sysfs: the root of sysfs.
        allowed: CPU numbers; None: the CPUs on which this process may run.
        ranks: the number of ranks, assigned to the cores in turn; None: one per core. The second rank on ``core4`` is
            ``core4.1``. Every rank gets the same bandwidth: a core's bandwidth divided by the most ranks on one core.

    Raises:
        CollcError: the process may use no core, or more than `MAX_CORES`.
        UsageError: `ranks` is not in 1 to `MAX_CORES`.
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
    rank_cpus = cores if ranks is None else [cores[rank % len(cores)] for rank in range(ranks)]
    cpu_of_rank = {_rank_name(cpu, rank_cpus[:rank].count(cpu)): cpu for rank, cpu in enumerate(rank_cpus)}
    machine = Machine(name, gpus=list(cpu_of_rank))
    home = {cpu: nodes.get(cpu, 0) for cpu in rank_cpus}
    machine.cpus = [f"cpu{node}" for node in sorted(set(home.values()))]
    machine.parent = {rank: f"cpu{home[cpu]}" for rank, cpu in cpu_of_rank.items()}
    machine.host_kind = dict.fromkeys(machine.gpus, LinkKind.C2C)
    sharers = -(-len(rank_cpus) // len(cores))
    machine.pcie = dict.fromkeys(machine.gpus, Fraction(int(CORE_GBPS / sharers * 100), 100))
    if sharers > 1:
        machine.assume(f"{len(rank_cpus)} ranks on {len(cores)} cores, up to {sharers} share the bandwidth of one")
    machine.assume(f"cores of this machine through shared memory: assumed {float(CORE_GBPS):g} GB/s per core")
    if len(machine.cpus) > 1:
        machine.socket = (NODE_GBPS, "between two NUMA nodes")
    if ranks is None and len(cores) < len(usable):
        machine.assume(f"{len(usable)} hardware threads: one rank for each of {len(cores)} cores")
    return build(machine, None, "probe --cpu")


def _rank_name(cpu: int, index: int) -> str:
    return f"core{cpu}.{index}" if index else f"core{cpu}"


def _one_per_core(sysfs: Path, usable: list[int]) -> list[int]:
    """Returns the first usable hardware thread of every core."""
    siblings: set[int] = set()
    threads = []
    for cpu in usable:
        if cpu in siblings:
            continue
        threads.append(cpu)
        siblings |= {cpu, *_numbers(sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")}
    return threads


def _nodes(sysfs: Path) -> dict[int, int]:
    """Returns the NUMA node of each CPU number."""
    node_of_cpu: dict[int, int] = {}
    for folder in sorted((sysfs / "devices/system/node").glob("node[0-9]*")):
        if match := re.fullmatch("node([0-9]{1,4})", folder.name):
            node_of_cpu |= dict.fromkeys(_numbers(folder / "cpulist"), int(match[1]))
    return node_of_cpu


def _numbers(path: Path) -> list[int]:
    """Returns the numbers of a kernel list such as ``0-3,8``; none if the file cannot be read."""
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return []
    numbers: list[int] = []
    for part in text.split(","):
        if match := re.fullmatch("([0-9]{1,5})(?:-([0-9]{1,5}))?", part):
            numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers
