"""Recognizes machines with NVIDIA's Grace CPU in `nvidia-smi topo -m`: each GPU's memory is a NUMA node (GPU NUMA ID).

NVLink-C2C joins GPUs to their CPU. A CPU has 900 GB/s, both directions together, which its GPUs share: one GPU in a
GH200, two in a GB200 or GB300. Source: NVIDIA, "Grace Hopper Superchip Architecture" and "GB200 NVL72 Data Sheet".
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

from collc.topology.model import LinkKind
from collc.topology.probe.machine import Machine
from collc.topology.probe.models import GpuModel
from collc.topology.probe.smi import Matrix
from collc.topology.probe.sockets import GRACE

# GB/s per direction of NVLink-C2C of one Grace CPU, and of one link of NVLink 5.0.
_C2C = Fraction(450)
_NVLINK5 = Fraction(50)
# The cores of one Grace CPU, and the most NVLinks of a bridge or of a GH200 to another GH200.
_CORES = 72
_MAX_BRIDGE = 12


def is_grace(matrix: Matrix) -> bool:
    """Returns True if each GPU of the table has a GPU NUMA ID, or the table has the CPUs and links of a GB200 tray.

    A driver that does not make GPU memory a NUMA node prints N/A. CPU affinities of 72 cores are Grace CPUs then.
    """
    nodes = [matrix.gpu_numa.get(gpu, "") for gpu in matrix.gpus]
    return bool(nodes) and (all(node.isdecimal() for node in nodes) or _is_tray(matrix))


def _is_tray(matrix: Matrix) -> bool:
    cores = [re.fullmatch("([0-9]{1,4})-([0-9]{1,4})", matrix.affinity.get(gpu, "")) for gpu in matrix.gpus]
    has_grace = all(m and int(m[1]) % _CORES == 0 and int(m[2]) == int(m[1]) + _CORES - 1 for m in cores)
    return has_grace and bool(matrix.nvlinks) and min(matrix.nvlinks.values()) > _MAX_BRIDGE


def apply_grace(matrix: Matrix, machine: Machine, model: GpuModel | None) -> None:
    """Replaces PCIe between GPUs and CPUs by NVLink-C2C. Assumes the GPU generation by the number of GPUs per CPU."""
    gpus_at = Counter(machine.parent[gpu] for gpu in machine.gpus if machine.parent.get(gpu) in machine.cpus)
    for gpu in machine.gpus:
        cpu = machine.parent.get(gpu)
        if cpu in machine.cpus:
            machine.host_kind[gpu] = LinkKind.C2C
            machine.pcie[gpu] = _C2C / gpus_at[cpu]
    count = max(gpus_at.values(), default=1)
    machine.socket = GRACE
    name = "GH200" if count == 1 else "GB200"
    machine.assume(
        f"Grace CPUs, {count} GPUs at each: taken as {name}, {float(_C2C / count):g} GB/s from each GPU to its CPU"
    )
    if machine.switched:
        machine.assume(
            "whether GPUs of other trays are in the same NVLink domain is not in this dump: --from `nvidia-smi -q -x` "
            "tells it, or `collc probe --merge` with --domain"
        )
    if model is None and count > 1 and machine.switched:
        machine.link_gbps = _NVLINK5
        machine.assume("NVLink speed: assumed 50 GB/s per link and direction (GB200); --gpu-model would tell")
