"""Finds or compiles the library of a process group, for ranks on this machine or on several."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from collc import __version__
from collc.build.cache import cached, content_key
from collc.build.runtime import headers, runtime_units
from collc.build.toolchain import find_cxx
from collc.compiler import CompileRequest, compile_topology
from collc.options import TargetKind

# Ranks of a machine share one memory, so all pairs are equal, and each rank has a share of the bandwidth. A machine has
# one path to the others. Only the ratios of these speeds matter.
_SHARED_MEMORY = """format: collc-topology/1
name: shared-memory-{ranks}
gpus: {ranks}
switches: [memory]
links:
{links}
"""


# A cluster with several ranks on each machine.
_SERVERS = """format: collc-topology/1
name: servers-{name}
gpus: {ranks}
switches: [{memories}, net]
nics: [{nics}]
servers: {{{servers}}}
links:
{links}
"""


def topology_of(shape: Sequence[int]) -> str:
    """Returns the text of the topology of machines.

    Args:
        shape: the number of ranks of each machine, in the order of the plan.
    """
    if len(shape) == 1:
        links = "\n".join(f"  - {{between: [gpu{r}, memory], kind: nvswitch, gbps: 10}}" for r in range(shape[0]))
        return _SHARED_MEMORY.format(ranks=shape[0], links=links)
    servers, lines, first = [], [], 0
    for s, ranks in enumerate(shape):
        gpus = [f"gpu{r}" for r in range(first, first + ranks)]
        first += ranks
        servers.append(f"server{s}: [{', '.join([*gpus, f'memory{s}', f'nic{s}'])}]")
        lines += [f"  - {{between: [{gpu}, memory{s}], kind: nvswitch, gbps: 10}}" for gpu in gpus]
        lines += [f"  - {{between: [{gpu}, nic{s}], kind: pcie, gbps: 10}}" for gpu in gpus]
        lines.append(f"  - {{between: [nic{s}, net], kind: net, gbps: 1}}")
    numbers = range(len(shape))
    return _SERVERS.format(
        name="-".join(map(str, shape)),
        ranks=first,
        memories=", ".join(f"memory{s}" for s in numbers),
        nics=", ".join(f"nic{s}" for s in numbers),
        servers=", ".join(servers),
        links="\n".join(lines),
    )


def library_for(shape: Sequence[int], world: int = 0) -> Path:
    """Returns the library of a group, from COLLC_LIBRARY, the cache, or the compiler.

    On one machine a compiled library serves every group of 2 to `world` ranks, on several machines only this group. If
    the library of COLLC_LIBRARY does not serve the group, ncclCommInitRank reports it.

    Args:
        shape: the number of ranks of each machine, in the order of their first ranks.

    Raises:
        BuildError: there is no compiler.
    """
    chosen = os.environ.get("COLLC_LIBRARY")
    if chosen:
        return Path(chosen)
    one_machine = len(shape) == 1
    # Plans serve any order of servers. The largest is first, so that groups with another order share a library.
    sizes = [max(shape[0], world, 2)] if one_machine else sorted(shape, reverse=True)
    text, ranks = topology_of(sizes), sum(sizes)
    units = runtime_units(TargetKind.HOST, find_cxx())
    sources = [*(data for unit in units for data in unit.contents), *(path.read_bytes() for path in headers())]
    name = f"libcollc-shared-memory-{ranks}.so" if one_machine else f"libcollc-servers-{'-'.join(map(str, sizes))}.so"

    def make(made: Path) -> None:
        # All ranks may do this at the same time, because the library of the first one is renamed into place.
        topology = made.with_name("machines.yaml")
        topology.write_text(text, encoding="utf-8")
        compile_topology(
            CompileRequest(
                topology=str(topology),
                output=made,
                target=TargetKind.HOST,
                gpus=None if one_machine else ",".join(f"gpu{r}" for r in range(ranks)),
                allocations=f"2..{ranks}" if one_machine else None,
            )
        )

    return cached(content_key(["torch", __version__, find_cxx().version, text, *sources]), name, make)
