"""NCCL's ring and tree on one server as programs of ours, run like every other plan."""

from __future__ import annotations

from collc.packing.candidates.plans import rings_of
from collc.simulator.run import Prediction, Simulator, Variant

# NCCL's name of an algorithm -> plan type. Its tree inside one server is a chain.
KINDS = {"Ring": "rings", "Tree": "chain"}
RING_CHANNELS = 24
_CHUNK = {"LL": 16 << 10, "LL128": 64 << 10, "Simple": 512 << 10}
# Bytes that make another channel worth its start: a block's threads times what each should move at least.
_PER_CHANNEL = {"LL": 32 << 10, "LL128": 64 << 10, "Simple": 64 << 10}
# NCCL's slices: a chunk is handed on in halves, and small calls use smaller chunks.
_LEAST_CHUNK = 4 << 10


def predict(simulator: Simulator, algorithm: str, protocol: str, size: int) -> Prediction:
    """The run of NCCL's ring or tree."""
    return simulator.predict(_variant(simulator, KINDS[algorithm], protocol, size), size)


def _variant(simulator: Simulator, kind: str, protocol: str, size: int) -> Variant:
    """Channels and chunks: small calls use few channels (one ring of a mesh) and are cut finer."""
    plan = simulator.plan(kind)
    ring = kind == "rings"
    own = rings_of(plan) if ring else len(plan.trees)
    most = 2 * own if own > 1 else RING_CHANNELS
    channels = max(1, min(most, size // _PER_CHANNEL[protocol]))
    if ring and channels < own:
        kind, own = "ring", 1
    elif channels < own:
        channels = own
    channels = channels // own * own
    chunk = _CHUNK[protocol]
    pieces = channels * (simulator.graph.nranks if ring else 8)
    while chunk > _LEAST_CHUNK and chunk * pieces > size:
        chunk //= 2
    return Variant(kind, protocol, chunk, channels)
