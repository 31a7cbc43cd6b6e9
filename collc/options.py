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
        chunk_bytes: the size of a slot and the maximum size of a chunk, in bytes; a multiple of 128.
        max_channels: the maximum number of channels (loops that a rank runs concurrently) of one program.
        shares_slots: True if several receivers can read one slot (shared memory).
        protocols: the protocols of this target's runtime, by the names of `collc.codegen.context.PROTOCOLS`.
        tuning_chunks: the chunk sizes, in bytes, that a library for `collc tune` contains for each plan.
        fifo_bytes: the maximum memory for FIFOs per rank, in bytes; chunks shrink until it is enough.
        switched_bytes: the same for every 8 ranks if all links of the GPUs end at switches.
        switched_gbps: GB/s of all links of a GPU. Above it, `switched_bytes` grows in proportion, as the bytes in
            flight do.
        round_slots: the maximum number of slots per FIFO in rings of `ROUND` ranks or more where every rank has
            its own data.
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


# A rank of such a ring uses the FIFOs of a hop in turn, one for each other rank, so it returns to each once per round.
# With 5 ranks, 4 FIFOs of 2 slots are 8 slots in a hop, as many as NCCL has.
ROUND = 5

# Host: a chunk stays in a 1 MiB second-level cache between writer and reader. There may be many channels, because each
# may be a cursor of a thread. CUDA: the slot has NCCL's 512 KiB. There are 4 slots, half of NCCL's 8, because in the
# model the other half gains nothing (docs/simulate.md). A channel is a thread block. Behind a switch, every rank has a
# few FIFOs to each other rank. Together with 8 MB for transfers, a communicator of 8 ranks takes at most 84 MB of a GPU
# there, or 160 MB of a GPU whose links are twice as fast as those of an H100.
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
