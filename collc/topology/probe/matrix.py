"""Builds a PCIe tree from the distances of `nvidia-smi topo -m`: PIX, PXB, PHB, NODE and SYS become vertices.

Devices at distance PIX are below one PCIe switch. PXB joins such switches or single devices under another switch. PHB
and NODE meet at the CPU. SYS crosses the link between CPUs. The table does not show the distance of two GPUs that
NVLink joins. It follows from NICs near both, from NUMA and CPU affinity, or from an assumption, which becomes a note.
"""

from __future__ import annotations

import re

from collc.errors import TopologyError
from collc.topology.probe.grace import apply_grace, is_grace
from collc.topology.probe.lines import Text
from collc.topology.probe.machine import Machine
from collc.topology.probe.models import GpuModel
from collc.topology.probe.smi import LEVELS, Matrix
from collc.topology.probe.switches import components, links_into_switch

_MOST_LINKS = 18


def machine_of(matrix: Matrix, name: str, text: Text, model: GpuModel | None = None) -> Machine:
    """Returns the machine that a `topo -m` table describes, without speeds unless it is a Grace machine.

    Args:
        model: the GPU model, if known; it helps to distinguish links between two GPUs from links into a switch.

    Raises:
        TopologyError: the NVLink counts contradict each other.
    """
    gpus = [matrix.devices[i] for i in matrix.gpus]
    machine = Machine(name, gpus=gpus, nics=[d for i, d in enumerate(matrix.devices) if i not in matrix.gpus])
    where = text.at(matrix.line)
    _nvlinks(machine, matrix, where, model)
    machine.took(f"{where} nvidia-smi topo -m", f"NVLinks of {len(matrix.nvlinks)} pairs, PCIe distances, NUMA nodes")
    _tree(machine, matrix)
    if is_grace(matrix):
        apply_grace(matrix, machine, model)
    return machine


def _nvlinks(machine: Machine, matrix: Matrix, where: str, model: GpuModel | None) -> None:
    """Adds NVLinks to the machine.

    A count is the number of links between two GPUs; or, if the GPUs cannot have all these links or `_through_switch`
    returns True, the smaller number of the two GPUs' links into a switch. Several pairs without other NVLinks are
    joined by bridges, whatever the count (H200 NVL).
    """
    names = matrix.devices
    groups = [g for g in components(matrix.gpus, matrix.nvlinks) if len(g) > 1]
    bridged = len(matrix.gpus) > 2 and all(len(group) == 2 for group in groups)
    islands = 0
    for group in groups:
        pairs = {pair: count for pair, count in matrix.nvlinks.items() if pair[0] in group}
        total = {v: sum(count for pair, count in pairs.items() if v in pair) for v in group}
        counts = set(pairs.values())
        even = len(counts) == 1 and len(pairs) == len(group) * (len(group) - 1) // 2
        most = max(total.values())
        if most <= _MOST_LINKS and (bridged or not (even and _through_switch(max(counts), len(group), model))):
            machine.direct |= {(names[a], names[b]): count for (a, b), count in pairs.items()}
            if even and counts == {6} and len(group) == 3 and model is None:
                machine.assume(
                    "NV6 between all of 3 GPUs: taken as links between them, as in GH200; for GPUs of a DGX-2 "
                    "say --gpu-model V100"
                )
            continue
        links = links_into_switch(group, pairs)
        if links is None:
            busy = names[max(total, key=lambda v: total[v])]
            what = f"{busy} would have {most} NVLinks, and the counts fit no switch"
            hint = (
                "through a switch, a pair shows the smaller number of its GPUs; try `nvidia-smi nvlink -R` in its place"
            )
            raise TopologyError(what, where=where, hint=hint)
        machine.switched |= {names[v]: count for v, count in links.items()}
        machine.islands |= {names[v]: islands for v in group}
        islands += 1
        most = max(counts)
        shown, most_links = (f"NV{most}", f"{most}") if even else (f"NV{min(counts)} to NV{most}", f"up to {most}")
        machine.assume(
            f"{shown} between all of {len(group)} GPUs: taken as {most_links} links of each into one NVSwitch"
        )


def _through_switch(count: int, gpus: int, model: GpuModel | None) -> bool:
    """Returns True if NV`count` between all pairs of `gpus` GPUs means links into a switch.

    This is a choice: such a GPU could also have this number of direct links.
    """
    if count == _MOST_LINKS:
        return True  # only H200 NVL has bridges of 18 links: the GPUs are part of an HGX machine
    if gpus < 3:
        return False
    if model is not None and model.links >= 6:
        return count * (gpus - 1) > model.links >= count
    return count == 8  # A800 and H800; no machine joins three GPUs by 8 links each way


def _tree(machine: Machine, matrix: Matrix) -> None:
    all_devices = list(range(len(matrix.devices)))
    if not matrix.levels and len(all_devices) == 1:
        machine.assume("one GPU alone: nothing is known about its PCIe place")
        return
    top = {v: matrix.devices[v] for v in all_devices}
    levels = {level: i for i, level in enumerate(LEVELS)}
    near_pairs: set[tuple[int, int]] = set()
    for level in ("PIX", "PXB"):
        near_pairs |= {pair for pair, level_of_pair in matrix.levels.items() if level_of_pair == level}
        for group in components(all_devices, near_pairs):
            below = sorted({top[v] for v in group}, key=lambda name: min(v for v in group if top[v] == name))
            if len(below) < 2:
                continue
            switch = f"pcie{len(machine.switches)}"
            machine.switches.append(switch)
            machine.parent |= dict.fromkeys(below, switch)
            top |= dict.fromkeys(group, switch)
            _odd_levels(machine, matrix, set(group), levels[level])
    for i, devices in enumerate(_sockets(machine, matrix, near_pairs)):
        cpu = f"cpu{i}"
        machine.cpus.append(cpu)
        machine.parent |= dict.fromkeys(sorted({top[v] for v in devices}), cpu)
    nvlink_pairs = [pair for pair in matrix.nvlinks if matrix.devices[pair[0]] in machine.gpus]
    unplaced = [v for v in matrix.gpus if top[v] == matrix.devices[v] and any(v in pair for pair in nvlink_pairs)]
    if unplaced:
        machine.assume(
            "PCIe switches between GPUs that NVLink joins do not show in this dump: "
            f"{len(unplaced)} GPUs are placed directly at their CPU"
        )


def _sockets(machine: Machine, matrix: Matrix, joined: set[tuple[int, int]]) -> list[set[int]]:
    """Returns the devices of each CPU.

    Devices are at one CPU if their distance is at most NODE or they have the same single NUMA node. Groups of such
    devices are merged if no pair is at distance SYS, at most one group has a NUMA node, and their CPU affinities do not
    differ.
    """
    all_devices = range(len(matrix.devices))
    near_pairs = joined | {pair for pair, level in matrix.levels.items() if level in ("PHB", "NODE")}
    far_pairs = {pair for pair, level in matrix.levels.items() if level == "SYS"}
    if is_grace(matrix):
        # A GPU of a Grace machine is a NUMA node, at distance SYS from all devices.
        far_pairs = {pair for pair in far_pairs if not set(pair) & set(matrix.gpus)}
    numa = {v: cell for v, cell in matrix.numa.items() if re.fullmatch("[0-9]+", cell)}
    same_node = {(a, b) for a in numa for b in numa if a < b and numa[a] == numa[b]}
    groups = [set(group) for group in components(all_devices, near_pairs | same_node)]
    if any(pair in far_pairs for pair in same_node):
        machine.assume("GPUs of one NUMA node that the dump calls SYS apart are placed at one CPU")
    if set(numa.values()) == {"0", "8"}:
        machine.assume("NUMA nodes 0 and 8 are POWER9's, whose NVLinks between CPU and GPUs do not show in such a dump")
    sockets: list[set[int]] = []
    for group in groups:
        fits = (g for g in sockets if _may_share(matrix, g, group, far_pairs, numa))
        home = next(fits, None)
        if home is None:
            sockets.append(set(group))
            continue
        home |= group
        machine.assume("which CPU a GPU is at follows only from CPU affinity and from who is SYS apart")
    return sorted(sockets, key=min)


def _may_share(matrix: Matrix, a: set[int], b: set[int], far: set[tuple[int, int]], numa: dict[int, str]) -> bool:
    if any((min(v, w), max(v, w)) in far for v in a for w in b):
        return False
    if {numa[v] for v in a if v in numa} and {numa[v] for v in b if v in numa}:
        return False
    cells = [{matrix.affinity.get(v, "") for v in group if v in matrix.gpus} - {""} for group in (a, b)]
    return not cells[0] or not cells[1] or bool(cells[0] & cells[1])


def _odd_levels(machine: Machine, matrix: Matrix, group: set[int], level: int) -> None:
    for (a, b), distance in sorted(matrix.levels.items()):
        if a in group and b in group and LEVELS.index(distance) > level:
            names = f"{matrix.devices[a]} and {matrix.devices[b]}"
            machine.assume(f"the dump calls {names} {distance} apart although others join them at {LEVELS[level]}")
