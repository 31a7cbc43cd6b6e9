"""NVLinks into NVSwitches: the number of each GPU's links, groups of GPUs that no switch joins, and losses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import TypeVar

from collc.errors import TopologyError
from collc.topology.model import LinkKind
from collc.topology.probe.machine import Machine
from collc.topology.probe.models import GpuModel

V = TypeVar("V", int, str)

# The NVLinks of one GPU, by generation: V100, A100, H100 and Blackwell (NVIDIA's architecture white papers). A800 and
# H800 have 8.
_FULL_COUNTS = (6, 8, 12, 18)
# The bridges of two GPUs have 12 links (H100 NVL) or 18 (H200 NVL).
_BRIDGE_COUNTS = (12, 18)


def components(vertices: Collection[V], pairs: Collection[tuple[V, V]]) -> list[list[V]]:
    """Returns the connected components, including single vertices, each and all in the order of `vertices`."""
    parent = {v: v for v in vertices}
    order = {v: i for i, v in enumerate(vertices)}

    def find(v: V) -> V:
        while parent[v] != v:
            parent[v] = parent[parent[v]]
            v = parent[v]
        return v

    for a, b in pairs:
        low, high = sorted((find(a), find(b)), key=lambda v: order[v])
        parent[high] = low
    groups: dict[V, list[V]] = {}
    for v in vertices:
        groups.setdefault(find(v), []).append(v)
    return list(groups.values())


def links_into_switch(group: Collection[int], counts: Mapping[tuple[int, int], int]) -> dict[int, int] | None:
    """Returns the number of each GPU's links into a switch that gives the counts of pairs.

    nvidia-smi prints for a pair the smaller number of the two GPUs.

    Args:
        group: the GPUs.
        counts: (smaller GPU, larger GPU) -> the number in the table, for pairs of the group.

    Returns:
        GPU -> number; None if no switch gives these counts.
    """
    links = {v: max((count for pair, count in counts.items() if v in pair), default=0) for v in group}
    every = [(a, b) for a in group for b in group if a < b]
    if all(counts.get(pair) == min(links[pair[0]], links[pair[1]]) for pair in every):
        return links
    return None


def set_islands(machine: Machine, switches_of: Mapping[str, Collection[str]]) -> None:
    """Sets the islands of GPUs that have links into the same switches.

    Args:
        switches_of: GPU -> names of the switches that its links lead into, for each GPU in `machine.switched`.
    """
    gpus = list(switches_of)
    near = [(a, b) for i, a in enumerate(gpus) for b in gpus[i + 1 :] if set(switches_of[a]) & set(switches_of[b])]
    groups = components(gpus, near)
    if [len(group) for group in groups] == [8, 8]:
        # NVLinks between switches show in no output of a GPU.
        machine.assume(
            "two boards of 8 GPUs with NVSwitches: taken as joined by NVLinks between the boards, as in DGX-2; "
            "`nvidia-smi topo -m` would tell"
        )
        return
    machine.islands = {gpu: number for number, group in enumerate(groups) for gpu in group}


def adopt_links(machine: Machine, table: Machine, where: str) -> None:
    """Takes the links between GPUs from another dump of the same machine, if this one has none.

    Raises:
        TopologyError: both have links, and they differ.
    """
    ours, theirs = (machine.direct, machine.switched), (table.direct, table.switched)
    if any(ours) and any(theirs) and ours != theirs:
        what = "the links between GPUs in this file and in the other dump differ"
        raise TopologyError(what, where=where, hint="are both of one machine?")
    if any(theirs):
        machine.direct, machine.switched, machine.islands = table.direct, table.switched, table.islands
        machine.kind, machine.printed_gbps = table.kind, table.printed_gbps
    machine.tables += table.tables
    machine.notes += [note for note in table.notes if "NVSwitch" in note or "xGMI" in note]


def split_by_fabric(machine: Machine) -> None:
    """Sets the islands of GPUs in different cliques of an NVLink domain, and of GPUs outside of all cliques.

    The fabric manager lets only the GPUs of one clique reach each other.
    """
    if not machine.fabrics:
        return
    kinds = {gpu: (machine.islands.get(gpu, 0), machine.fabrics.get(gpu)) for gpu in machine.switched}
    order = {kind: number for number, kind in enumerate(dict.fromkeys(kinds.values()))}
    machine.islands = {gpu: order[kind] for gpu, kind in kinds.items()}
    outside = [gpu for gpu in machine.switched if gpu not in machine.fabrics]
    if outside:
        machine.assume(f"{', '.join(outside)}: in no clique of the NVLink domain, so not reached by its other GPUs")


def note_nvlinks(machine: Machine, model: GpuModel | None, gbps: Fraction) -> None:
    """Adds the notes about islands, lost NVLinks, and GPUs without NVLinks, for every reader.

    Args:
        gbps: GB/s of one link.
    """
    if machine.kind is not LinkKind.NVLINK:
        return
    groups: dict[int, list[str]] = {}
    for gpu in machine.switched:
        groups.setdefault(machine.islands.get(gpu, 0), []).append(gpu)
    if len(groups) > 1:
        listed = " | ".join(" ".join(group) for group in groups.values())
        machine.assume(f"{len(groups)} groups of GPUs ({listed}) have separate NVSwitches: no NVLink joins them")
    for group in groups.values():
        full = _full_count(max(machine.switched[gpu] for gpu in group), model)
        _note_lost(machine, {gpu: machine.switched[gpu] for gpu in group}, full, "into the NVSwitches", gbps)
    linked = {gpu for pair in machine.direct for gpu in pair}
    for (a, b), count in machine.direct.items():
        alone = sum(a in pair or b in pair for pair in machine.direct) == 1
        full = next((n for n in _BRIDGE_COUNTS if n >= count > n - 4), count)
        if alone and not (model and model.links < full):
            _note_lost(machine, {f"{a}-{b}": count}, full, "of its bridge", gbps)
    without = [gpu for gpu in machine.gpus if gpu not in linked and gpu not in machine.switched | machine.no_nvlink]
    if machine.switched and without:
        machine.assume(
            f"no NVLinks of {', '.join(without)}, where the other GPUs have some: `nvidia-smi nvlink -s` tells why"
        )


def _full_count(most: int, model: GpuModel | None) -> int:
    """Returns the number of NVLinks of such a GPU, by its model or by the number of the GPU with the most."""
    if model is not None:
        return max(model.links, most)
    return next((count for count in _FULL_COUNTS if count >= most), most)


def _note_lost(machine: Machine, counts: Mapping[str, int], full: int, where: str, gbps: Fraction) -> None:
    by_count: dict[int, list[str]] = {}
    for name, count in counts.items():
        if count < full:
            by_count.setdefault(count, []).append(name)
    for count, names in by_count.items():
        machine.assume(
            f"{', '.join(names)}: {count} of {full} NVLinks {where} are up, {float(count * gbps):g} of "
            f"{float(full * gbps):g} GB/s per direction"
        )
