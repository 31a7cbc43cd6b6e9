"""NCCL as a baseline: its ring and its tree, its own rule for algorithm and protocol, timed by our model.

The rule is NCCL's cost model (NCCL 2.19, src/graph/tuning.cc): time = latency + bytes / bandwidth, the least wins. Its
constants are repeated here as facts about NCCL; what is chosen runs as a program through the same simulator as every
other plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing.candidates import rings_of
from collc.simulate.run import Prediction, Simulator, Variant
from collc.topology.model import LinkKind

# Microseconds: per call, and per hop inside a server over NVLink or PCIe.
_BASE = {
    "chain": {"LL": 6.8, "LL128": 14.0, "Simple": 8.4},
    "rings": {"LL": 6.6, "LL128": 14.0, "Simple": 8.4},
}
_HOP = {
    True: {"chain": {"LL": 0.6, "LL128": 1.25, "Simple": 4.0}, "rings": {"LL": 0.6, "LL128": 1.9, "Simple": 3.4}},
    False: {"chain": {"LL": 1.0, "LL128": 1.9, "Simple": 4.0}, "rings": {"LL": 1.0, "LL128": 2.5, "Simple": 5.7}},
}
# GB/s: LL in all, LL128 per channel.
_LL_MOST = {"v100": 39.0, "a100": 87.7, "h100": 87.7}
_LL128_CHANNEL = {"v100": 20.0, "a100": 20.0, "h100": 36.7}
_RING_CHANNELS = 24
_CHUNK = {"LL": 16 << 10, "LL128": 64 << 10, "Simple": 512 << 10}
# Bytes that make another channel worth its start: a block's threads times what each should move at least.
_PER_CHANNEL = {"LL": 32 << 10, "LL128": 64 << 10, "Simple": 64 << 10}
# NCCL's slices: a chunk is handed on in halves, and small calls use smaller chunks.
_LEAST_CHUNK = 4 << 10


@dataclass(frozen=True)
class Guess:
    """What NCCL's rule expects of one algorithm and protocol."""

    plan: str
    protocol: str
    time_us: float


def rule(simulator: Simulator, size: int, plan: str | None = None, protocol: str | None = None) -> Guess:
    """NCCL's choice of algorithm and protocol for a size.

    Args:
        plan: "rings" or "chain" (its tree inside one server), as NCCL_ALGO would.
        protocol: as NCCL_PROTO would.

    Raises:
        PackingError: NCCL has no ring here, or no tree for the collective.
    """
    kinds = [k for k in ("rings", "chain") if k in simulator.kinds and plan in (None, k)]
    if simulator.collective is not Collective.ALL_REDUCE:
        # NCCL knows trees for all_reduce alone.
        kinds = [k for k in kinds if k == "rings"]
    protocols = [p.name for p in simulator.protocols if protocol in (None, p.name)]
    guesses = [_guess(simulator, k, p, size) for k in kinds for p in protocols]
    if not guesses:
        raise PackingError(f"NCCL has no {plan or 'ring'} for {simulator.collective.value} here")
    return min(guesses, key=lambda guess: guess.time_us)


def _guess(simulator: Simulator, plan: str, protocol: str, size: int) -> Guess:
    n = simulator.graph.nranks
    nvlink = all(x.kind in (LinkKind.NVLINK, LinkKind.NVSWITCH) for x in simulator.graph.links)
    rate = simulator.plan(plan).rate
    assert rate is not None
    hops = (2 if simulator.collective.both_phases else 1) * (n - 1)
    # NCCL reckons in what its link classes deliver, not in nominal speeds.
    bandwidth = float(rate) * min(simulator.machine.link_class(x.kind).efficiency for x in simulator.graph.links)
    family = simulator.machine.name if simulator.machine.name in _LL_MOST else "v100"
    per_ring = bandwidth * (hops / n if simulator.collective.both_phases else 1)
    if protocol == "LL":
        bandwidth *= min(0.5, _LL_MOST[family] / per_ring) if plan == "rings" else 1 / 3.8
    elif protocol == "LL128":
        share = 0.92 if plan == "rings" else 7 / 9
        bandwidth *= min(share, _RING_CHANNELS * _LL128_CHANNEL[family] / per_ring)
    elif plan == "chain":
        bandwidth *= 0.92
    latency = _BASE[plan][protocol] + hops * _HOP[nvlink][plan][protocol]
    return Guess(plan, protocol, latency + size / (bandwidth * 1e3))


def predict(simulator: Simulator, size: int, plan: str | None = None, protocol: str | None = None) -> Prediction:
    """The simulated time of what NCCL would run."""
    guess = rule(simulator, size, plan, protocol)
    return simulator.predict(_variant(simulator, guess, size), size)


def _variant(simulator: Simulator, guess: Guess, size: int) -> Variant:
    """Channels and chunks: small calls use few channels (one ring of a mesh) and are cut finer."""
    plan = simulator.plan(guess.plan)
    kind = guess.plan
    own = rings_of(plan) if kind == "rings" else len(plan.trees)
    most = 2 * own if own > 1 else _RING_CHANNELS
    channels = max(1, min(most, size // _PER_CHANNEL[guess.protocol]))
    if kind == "rings" and channels < own:
        kind, own = "ring", 1
    elif channels < own:
        channels = own
    channels = channels // own * own
    chunk = _CHUNK[guess.protocol]
    pieces = channels * (simulator.graph.nranks if guess.plan == "rings" else 8)
    while chunk > _LEAST_CHUNK and chunk * pieces > size:
        chunk //= 2
    return Variant(kind, guess.protocol, chunk, channels)
