"""NCCL's rule for algorithm and protocol: time = latency + bytes / bandwidth by its own constants, the least wins.

After NCCL's src/graph/tuning.cc, whose constants `versions.py` holds as facts. Bandwidths are what the rule reckons
with, not what the model gives the chosen call: that is timed by programs (one server) or closed forms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from collc.collectives.model import Collective
from collc.simulator.nccl.fabrics import Fabric
from collc.simulator.nccl.shape import Shape
from collc.simulator.nccl.versions import LL128_CHANNEL, PROTOCOLS, TREE_CHANNEL, TREE_FACTOR, Era

ALGORITHMS = ("Ring", "Tree", "NVLS", "NVLSTree", "CollNet", "PAT")
NVLS_CHANNELS = 16
_NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}
# GB/s per channel of NVLS, Hopper's search (sm90SpeedArrayIntra) over 16 channels of 450 GB/s; scaled by the link.
_NVLS_CHANNEL = 24.0
_NVLS_LINK = 450.0


@dataclass(frozen=True)
class Guess:
    """The prediction of NCCL's rule for one algorithm and protocol."""

    algorithm: str
    protocol: str
    time_us: float


@dataclass(frozen=True)
class Setting:
    """The inputs of the choice for a call, apart from its size.

    Args:
        ring_gbps: bus bandwidth of the rings, all channels together.
        channels: of rings and trees.
        sharp: NCCL_COLLNET_ENABLE=1, with switches that reduce.
    """

    collective: Collective
    shape: Shape
    era: Era
    chip: str
    ring_gbps: float
    channels: int
    fabric: Fabric
    sharp: bool = False


def algorithms(setting: Setting) -> tuple[str, ...]:
    """The algorithms that NCCL has for the collective there."""
    shape, era = setting.shape, setting.era
    several = shape.servers > 1
    if setting.collective is Collective.ALL_REDUCE:
        found = ["Ring", "Tree"]
        if era.nvls_us is not None and shape.nvls and shape.per_server > 2:
            found.append("NVLSTree" if several else "NVLS")
        if setting.sharp and several:
            found.append("CollNet")
        return tuple(found)
    if setting.collective.per_rank:
        nvls = era.nvls_us is not None and shape.nvls and not several and shape.nranks > 2
        pat = era.pat and several and shape.per_server == 1
        return ("Ring", *(("NVLS",) if nvls else ()), *(("PAT",) if pat else ()))
    return ("Ring",)


def guesses(setting: Setting, size: int, protocols: tuple[str, ...]) -> list[Guess]:
    """Every algorithm and protocol with the time that NCCL expects."""
    found = []
    for algorithm in algorithms(setting):
        for protocol in protocols:
            if algorithm not in ("Ring", "Tree") and protocol != "Simple":
                continue
            if setting.sharp and algorithm != "CollNet" and protocol == "Simple":
                continue  # With NCCL_COLLNET_ENABLE=1 large calls are CollNet's.
            gbps = _bandwidth(setting, algorithm, protocol)
            if algorithm == "Tree":
                at = int(math.log2(max(size, 64) / 64))
                factors = TREE_FACTOR[protocol]
                gbps *= factors[at] if at < len(factors) else 1.0
            latency = _latency(setting, algorithm, protocol)
            if algorithm == "Ring" and protocol == "Simple" and _on_plateau(setting, size):
                latency *= 1.9 if setting.chip == "volta" or not setting.era.pat else 1.4
            found.append(Guess(algorithm, protocol, latency + size / (gbps * 1e3)))
    return found


def _on_plateau(setting: Setting, size: int) -> bool:
    shape = setting.shape
    return (
        shape.servers > 1
        and setting.collective is Collective.ALL_REDUCE
        and size >= 64 * setting.channels * shape.nranks
    )


def _steps(setting: Setting) -> int:
    n = setting.shape.nranks
    if setting.collective is Collective.ALL_REDUCE:
        return 2 * (n - 1)
    return n - 1 if setting.collective.per_rank else n


def _bandwidth(setting: Setting, algorithm: str, protocol: str) -> float:
    """GB/s of the collective's buffer, as the rule reckons."""
    shape, era, chip = setting.shape, setting.era, setting.chip
    group = min(shape.servers, 3) - 1
    # Between servers the CPU's maker decides: NCCL's second row is for AMD, on which servers of A100 mostly are.
    ll_most = era.ll_most[chip if shape.servers == 1 or chip == "ampere" else "volta"][group]
    bus = setting.ring_gbps
    if algorithm == "Ring":
        if protocol == "LL":
            bus = min(ll_most, bus * era.ring_ll[shape.servers > 1])
        elif protocol == "LL128":
            bus = min(bus * 0.92, setting.channels * LL128_CHANNEL[chip])
        return bus * shape.nranks / _steps(setting)
    if algorithm == "Tree":
        # For two servers, NCCL computes trees with the bandwidth inside a server.
        bus = bus if shape.servers > 2 else shape.inside_gbps
        bus = min(bus * 0.92, setting.channels * TREE_CHANNEL[chip][group])
        if protocol == "LL":
            bus = min(bus / 3.8, ll_most)
        elif protocol == "LL128":
            bus = min(bus * (7 / 9 if shape.servers == 1 else 120 / 128), setting.channels * LL128_CHANNEL[chip])
        return bus * 0.5
    if algorithm in ("NVLS", "NVLSTree"):
        channel = _NVLS_CHANNEL * shape.link_gbps / _NVLS_LINK
        inside = channel * _NVLS_EFFICIENCY.get(chip, 0.85) * (NVLS_CHANNELS - 1) / NVLS_CHANNELS
        inside *= 2 if setting.collective is Collective.ALL_REDUCE else (shape.per_server - 1) / shape.per_server
        bus = NVLS_CHANNELS * inside
        if algorithm == "NVLSTree":
            bus = min(bus, shape.nic_gbps * (2 if shape.servers == 2 else 1))
        return bus * shape.nranks / _steps(setting) if setting.collective is Collective.ALL_REDUCE else bus
    return bus * (0.75 if algorithm == "PAT" else 0.5 * shape.per_server / max(1, shape.nics))


def _latency(setting: Setting, algorithm: str, protocol: str) -> float:
    """Microseconds before the bytes, as the rule reckons."""
    shape, era = setting.shape, setting.era
    p = PROTOCOLS.index(protocol)
    rounds = math.ceil(math.log2(shape.servers)) if shape.servers > 1 else 0
    if algorithm in ("NVLS", "NVLSTree"):
        return (era.nvls_us or 0.0) + 2 * rounds * 14.0
    if algorithm == "CollNet":
        return 2 * (3.7 + (shape.per_server - 1) * 0.4) + 31.0
    if algorithm == "PAT":
        return 8.0 + rounds * 14.0 / 3.5 + shape.nranks * 2.8
    inside, between = era.hop[shape.inside][algorithm][p], era.hop["net"][algorithm][p]
    base = era.base[algorithm][p]
    if algorithm == "Tree":
        return base + 2 * ((shape.per_server - 1) * inside + rounds * between)
    steps = _steps(setting)
    if setting.collective.rooted:
        return base + steps * (inside if shape.servers == 1 else between)
    overhead = (3.0 if protocol == "Simple" else 1.0) if shape.servers > 1 else 0.0
    crossing = (2 if setting.collective is Collective.ALL_REDUCE else 1) * (shape.servers - 1)
    return base + (steps - crossing) * max(inside, overhead) + crossing * between
