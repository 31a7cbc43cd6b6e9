"""The options of a build, and the defaults of each target."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class TargetKind(enum.Enum):
    """The kind of hardware that a library runs on."""

    HOST = "host"
    CUDA = "cuda"


@dataclass(frozen=True)
class Target:
    """How programs are lowered for a target.

    Args:
        slots: slots per FIFO, at least 2.
        chunk_bytes: bytes of a slot and most of a chunk, a multiple of 128.
        max_channels: most channels (loops that a rank runs side by side) of one program.
        shares_slots: True where several receivers can read one slot (shared memory).
        protocols: what the runtime of this target can run, by the names of `collc.codegen.context.PROTOCOLS`.
        tuning_chunks: chunk sizes that a library for `collc tune` holds of each plan.
        fifo_bytes: most memory for FIFOs per rank; chunks shrink until it is enough.
        switched_bytes: the same where all links of the GPUs end at switches, for every 8 ranks.
        switched_gbps: GB/s of a GPU's links together from which on that grows in proportion: what is under way does.
        round_slots: slots per FIFO, at most, of rings of `ROUND` ranks or more that all have data of their own.
    """

    kind: TargetKind
    slots: int
    chunk_bytes: int
    max_channels: int
    shares_slots: bool
    protocols: tuple[str, ...] = ("Simple",)
    tuning_chunks: tuple[int, ...] = ()
    fifo_bytes: int = 256 << 20
    switched_bytes: int = 256 << 20
    switched_gbps: int = 450
    round_slots: int = 64


# A rank of such a ring goes round the FIFOs of a hop, one for each other rank, and comes back to each once in a round.
# With 5 ranks, 2 slots each make 8 in a hop, as many as NCCL has.
ROUND = 5

# Host: a chunk stays in a 1 MiB second-level cache between writer and reader; every channel may be a thread's cursor,
# so there may be many. CUDA: NCCL's slot of 512 KiB, but half of its 8 slots, which cost nothing by the model
# (docs/simulate.md); a channel is a thread block. Behind a switch every rank has a few FIFOs to each other one: with
# the 8 MB for transfers, a communicator of 8 ranks takes at most 84 MB of a GPU there, and of one whose links are twice
# as fast as an H100's 160 MB.
HOST = Target(
    TargetKind.HOST,
    slots=4,
    chunk_bytes=128 << 10,
    max_channels=64,
    shares_slots=True,
    tuning_chunks=(8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10),
)
CUDA = Target(
    TargetKind.CUDA,
    slots=4,
    chunk_bytes=512 << 10,
    max_channels=32,
    shares_slots=False,
    protocols=("Simple", "LL", "LL128"),
    tuning_chunks=(4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10),
    switched_bytes=72 << 20,
    round_slots=2,
)

TARGETS = {TargetKind.HOST: HOST, TargetKind.CUDA: CUDA}
