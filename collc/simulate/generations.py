"""Parameters by GPU generation. docs/validation.md says which published tables each was fitted to."""

from __future__ import annotations

from collc.simulate.params import GENERIC, LinkClass, Machine, Protocol
from collc.topology.model import LinkKind

_SLOTS = {"Simple": 512 << 10, "LL": 16 << 10, "LL128": 64 << 10}


def _machine(
    name: str,
    kind: LinkKind,
    efficiency: float,
    launch: float,
    step: float,
    protocols: dict[str, tuple[float, float, float | None]],
    floor: float = 0.0,
) -> Machine:
    """`protocols`: name -> (hop us, efficiency, GB/s per block)."""
    made = tuple(Protocol(n, hop, eff, _SLOTS[n], block) for n, (hop, eff, block) in protocols.items())
    # The same GPUs sit on meshes and behind switches; both are NVLink.
    kinds = (LinkKind.NVLINK, LinkKind.NVSWITCH) if kind is not LinkKind.PCIE else (kind,)
    classes = {k: LinkClass(efficiency) for k in kinds}
    return Machine(name, launch, step, floor_us=floor, protocols=made, classes=classes)


# Fitted: launch, hops, efficiencies. Given: 0.5 us per step; GB/s per block (NCCL's figures per channel; LL a third of
# them); the floor of the A100 tables, whose small calls all take 34.5 us; link efficiencies of the largest sizes.
V100 = _machine(
    "v100",
    LinkKind.NVLINK,
    0.9,
    20.0,
    0.5,
    {"Simple": (3.2, 1.0, 22.0), "LL": (2.5, 0.256, 8.0), "LL128": (4.88, 0.666, 20.0)},
)
A100 = _machine(
    "a100",
    LinkKind.NVSWITCH,
    0.79,
    28.1,
    0.5,
    {"Simple": (12.2, 1.0, 24.0), "LL": (0.49, 0.256, 8.0), "LL128": (3.13, 0.595, 20.0)},
    34.5,
)
H100 = _machine(
    "h100",
    LinkKind.NVSWITCH,
    0.82,
    18.8,
    0.5,
    {"Simple": (5.0, 1.0, 36.7), "LL": (1.0, 0.5, 12.0), "LL128": (2.5, 0.93, 36.7)},
)
RTX4090 = _machine("rtx4090", LinkKind.PCIE, 0.84, 20.0, 0.5, {"Simple": (1.57, 1.0, 20.0), "LL": (3.0, 0.977, 8.0)})

MACHINES: dict[str, Machine] = {machine.name: machine for machine in (GENERIC, V100, A100, H100, RTX4090)}
