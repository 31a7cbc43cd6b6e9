"""Machines with NVIDIA's Grace CPU in `nvidia-smi topo -m`: GPUs whose memory is a NUMA node (GPU NUMA ID).

NVLink-C2C joins each GPU to its CPU, 900 GB/s both ways for a CPU, which it shares between the GPUs at it: one in a
GH200, two in a GB200 or GB300. Source: NVIDIA, "Grace Hopper Superchip Architecture" and "GB200 NVL72 Data Sheet".
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from collc.topology.model import LinkKind
from collc.topology.probe.machine import Machine
from collc.topology.probe.models import GpuModel
from collc.topology.probe.smi import Matrix
from collc.topology.probe.sockets import GRACE

# NVLink-C2C of one Grace CPU, GB/s per direction; NVLink 5.0, one link.
_C2C = Fraction(450)
_NVLINK5 = Fraction(50)


def is_grace(matrix: Matrix) -> bool:
    """Whether each GPU of the table has a NUMA node of its own."""
    nodes = [matrix.gpu_numa.get(gpu, "") for gpu in matrix.gpus]
    return bool(nodes) and all(node.isdecimal() for node in nodes)


def apply_grace(matrix: Matrix, machine: Machine, model: GpuModel | None) -> None:
    """Chip-to-chip links in place of PCIe below the GPUs, and the GPU generation by how many share a CPU."""
    at = Counter(machine.parent[gpu] for gpu in machine.gpus if machine.parent.get(gpu) in machine.cpus)
    for gpu in machine.gpus:
        cpu = machine.parent.get(gpu)
        if cpu in machine.cpus:
            machine.host_kind[gpu] = LinkKind.C2C
            machine.pcie[gpu] = _C2C / at[cpu]
    most = max(at.values(), default=1)
    machine.socket = GRACE
    name = "GH200" if most == 1 else "GB200"
    machine.assume(
        f"GPUs with NUMA nodes of their own, {most} at a CPU: taken as {name}, {float(_C2C / most):g} GB/s to its CPU"
    )
    if model is None and most > 1 and machine.switched:
        machine.link_gbps = _NVLINK5
        machine.assume("NVLink speed: assumed 50 GB/s per link and direction (GB200); --gpu-model would tell")
