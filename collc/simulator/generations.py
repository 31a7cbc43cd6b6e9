"""Parameters by GPU generation, each value with its source; docs/validation.md says which tables were fitted to.

Given, not fitted: what a channel moves (NCCL 2.28, src/graph/tuning.cc: `perChMaxRingLL128Bws`, `perChMaxTreeBws`),
here times three because a ring's step touches three bytes for one of payload; memory bandwidth (NVIDIA's data sheets
of P100, V100, A100, H100, H200, H800, B200, RTX 4090); the share of NVLink 4 that carries payload (370 of 450 GB/s:
a maintainer in NVIDIA/nccl-tests issue 212); launches and hops of Hopper (NCCL's `baseLatencies` and `hwLatencies`,
which NVIDIA measured there). Fitted: launches, hops and efficiencies of V100, A100 and RTX 4090. collc's own kernels
on Hopper: what an H200 showed beside NCCL's kernels (docs/data/gpu.yaml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from collc.simulator.params import GENERIC, LinkClass, Machine, Nvls, OwnKernels, Protocol
from collc.topology.model import LinkKind

_SLOTS = {"Simple": 512 << 10, "LL": 16 << 10, "LL128": 64 << 10}
_NVLINK = (LinkKind.NVLINK, LinkKind.NVSWITCH)


def _machine(
    name: str,
    kinds: tuple[LinkKind, ...],
    efficiency: float,
    launch: float,
    protocols: dict[str, tuple[float, float, float, float]],
    *,
    issue: float,
    memory: float,
    nvls: Nvls | None = None,
    own: Mapping[str, OwnKernels] | None = None,
) -> Machine:
    """`protocols`: name -> (hop us, efficiency, GB/s that a block reads and writes, us in addition to the launch)."""
    own = own or {}
    made = tuple(
        Protocol(n, hop, eff, _SLOTS[n], block, start, own.get(n)) for n, (hop, eff, block, start) in protocols.items()
    )
    classes = {kind: LinkClass(efficiency) for kind in kinds}
    return Machine(name, launch, 0.5, issue_us=issue, memory_gbps=memory, protocols=made, classes=classes, nvls=nvls)


V100 = _machine(
    "v100",
    _NVLINK,
    0.9,
    21.0,
    {"Simple": (3.2, 1.0, 66.0, 0.0), "LL": (2.0, 0.256, 8.0, 0.0), "LL128": (4.88, 0.666, 60.0, 0.0)},
    issue=4.9,
    memory=900.0,
)
# No table: Volta's figures, which NCCL uses for Pascal too; it has no LL128.
P100 = V100.replace(name="p100", memory_gbps=732.0, protocols=tuple(p for p in V100.protocols if p.name != "LL128"))
A100 = _machine(
    "a100",
    _NVLINK,
    0.79,
    17.6,
    {"Simple": (12.2, 1.0, 72.0, 0.0), "LL": (0.49, 0.256, 24.0, 0.0), "LL128": (3.13, 0.595, 60.0, 0.0)},
    issue=4.3,
    memory=1555.0,
)

# collc's kernels do not have NCCL's start of LL128, 7.4 us beyond its launch: 8 bytes down a chain in a graph took 5.8
# us over LL, 6.9 over LL128 and 7.6 over Simple, hops of 0.60, 0.97 and 2.77 us included. In the same run, a block
# reached 0.90 to 1.06 of the rate of NCCL's block over Simple, 0.84 to 1.03 over LL, 0.84 to 0.92 over LL128. The
# constants below are these shares of NCCL's.
_HOPPER_KERNELS = {
    "Simple": OwnKernels(block_gbps=110.0, start_us=0.5),
    "LL": OwnKernels(block_gbps=31.0, start_us=0.0),
    "LL128": OwnKernels(block_gbps=100.0, start_us=0.5),
}
H100 = _machine(
    "h100",
    _NVLINK,
    0.82,
    6.6,
    {"Simple": (3.4, 1.0, 110.0, 1.8), "LL": (0.6, 0.5, 36.0, 0.0), "LL128": (1.9, 0.92, 110.0, 7.4)},
    issue=4.3,
    memory=3350.0,
    nvls=Nvls(0.713),
    own=_HOPPER_KERNELS,
)
H200 = H100.replace(name="h200", memory_gbps=4800.0)
# The same chip with fewer NVLinks, as the topology says.
H800 = H100.replace(name="h800")
# NCCL's constants of Blackwell for a channel (40 GB/s by LL128, 70 by a tree); the rest is Hopper's: no table. collc's
# kernels never ran there.
B200 = H100.replace(
    name="b200",
    memory_gbps=8000.0,
    protocols=tuple(
        Protocol(
            p.name, p.hop_us, p.efficiency, p.max_chunk, {"LL128": 120.0, "Simple": 120.0}.get(p.name, 72.0), p.start_us
        )
        for p in H100.protocols
    ),
)
RTX4090 = _machine(
    "rtx4090",
    (LinkKind.PCIE,),
    0.84,
    20.0,
    {"Simple": (1.57, 1.0, 60.0, 0.0), "LL": (3.0, 0.977, 24.0, 0.0)},
    issue=2.0,
    memory=1008.0,
)

MACHINES: dict[str, Machine] = {
    machine.name: machine for machine in (GENERIC, P100, V100, A100, H100, H200, H800, B200, RTX4090)
}
# The first pattern that matches a GPU's name in capitals decides. Other GPUs have no parameter set.
_GENERATIONS = (
    (r"P100", "p100"),
    (r"V100|GV100|TITAN V\b", "v100"),
    (r"A100|A800", "a100"),
    (r"H800", "h800"),
    (r"\bH200", "h200"),
    (r"\bG?H100|\bH20\b|GH200", "h100"),
    (r"B[123]00", "b200"),
    (r"4090", "rtx4090"),
)


def generation_of(gpu_model: str | None) -> str | None:
    """Returns the name of the parameter set for a topology's `gpu_model`; None if no set is for this model."""
    text = (gpu_model or "").upper()
    return next((name for pattern, name in _GENERATIONS if re.search(pattern, text)), None)


def machine_for(wanted: str | None, gpu_model: str | None) -> tuple[Machine, str]:
    """The parameters to use, and one line that says which and why.

    Args:
        wanted: a name of `MACHINES` that the user chose; None: by the topology's `gpu_model`.
    """
    if wanted is not None:
        return MACHINES[wanted], f"parameters of {wanted}, as chosen"
    found = generation_of(gpu_model)
    if found is not None:
        return MACHINES[found], f"parameters of {found}: the topology's GPUs are {gpu_model}"
    why = "the topology names no gpu_model" if gpu_model is None else f"there are none for {gpu_model}"
    return GENERIC, f"parameters of a generic GPU: {why}"
