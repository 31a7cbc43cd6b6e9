"""Defines a model for data-parallel training, and computes the time of one step.

Gradients become ready from the last layer to the first. PyTorch's DistributedDataParallel collects them in this order
in buckets and starts an all_reduce when a bucket is full. Its first bucket closes at 1 MiB, the others at 25 MiB
(torch/nn/parallel/distributed.py, `bucket_cap_mb`; Li et al., "PyTorch Distributed", VLDB 2020, section 4.2.3). Calls
follow each other on one stream. The step ends when the last gradient is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20


@dataclass(frozen=True)
class Layer:
    """A layer of a model.

    Attributes:
        gradient_bytes: the bytes of its parameters' gradients; 0 for a layer without parameters.
        backward_us: the microseconds of its backward pass.
    """

    name: str
    gradient_bytes: int
    backward_us: float


@dataclass(frozen=True)
class Net:
    """A model with a fixed batch per GPU.

    Attributes:
        source: the source of sizes and times.
        gpu: the GPU generation of the times.
        forward_us: the microseconds of the forward pass.
        layers: the layers in the order of the forward pass.
        times_on: for other generations, the ratio of times there to times on `gpu`.
        bucket_bytes, first_bucket_bytes: a bucket, and the first bucket, closes when it has this number of bytes.
    """

    name: str
    source: str
    gpu: str
    forward_us: float
    layers: tuple[Layer, ...]
    times_on: Mapping[str, float] = field(default_factory=dict)
    bucket_bytes: int = BUCKET_BYTES
    first_bucket_bytes: int = FIRST_BUCKET_BYTES

    @property
    def gradient_bytes(self) -> int:
        """The bytes of all gradients."""
        return sum(layer.gradient_bytes for layer in self.layers)

    def factor(self, generation: str) -> float | None:
        """Returns the ratio of times on a generation to times on `gpu`; None if unknown."""
        return 1.0 if generation == self.gpu else self.times_on.get(generation)


@dataclass(frozen=True)
class Bucket:
    """Gradients that one call sums. They are ready `ready_us` microseconds after the start of the backward pass."""

    bytes: int
    ready_us: float


def buckets(net: Net, factor: float = 1.0) -> list[Bucket]:
    """Returns the buckets of a step in the order of their calls.

    Args:
        factor: the ratio of the backward pass to the times of the file.
    """
    made: list[Bucket] = []
    held, now = 0, 0.0
    for layer in reversed(net.layers):
        now += layer.backward_us * factor
        held += layer.gradient_bytes
        if held >= (net.bucket_bytes if made else net.first_bucket_bytes):
            made.append(Bucket(held, now))
            held = 0
    if held:
        made.append(Bucket(held, now))
    return made


@dataclass(frozen=True)
class Step:
    """The parts of a training step, in microseconds.

    Attributes:
        compute_us: the forward and the backward pass.
        communication_us: all calls.
        step_us: the time from the start of the forward pass until all gradients are summed.
    """

    compute_us: float
    communication_us: float
    step_us: float

    @property
    def share(self) -> float:
        """The communication share: the fraction of the step that is communication not hidden by compute."""
        return (self.step_us - self.compute_us) / self.step_us if self.step_us else 0.0

    @property
    def overlap(self) -> float:
        """The fraction of the communication that compute hides."""
        exposed = self.step_us - self.compute_us
        return 1 - exposed / self.communication_us if self.communication_us else 0.0


def step(net: Net, call_us: Callable[[int], float] | None, factor: float = 1.0) -> Step:
    """Returns the times of one step.

    Args:
        call_us: returns the microseconds of an all_reduce of a number of bytes; None for a single GPU without calls.
        factor: the ratio of compute to the times of the file.
    """
    backward = sum(layer.backward_us for layer in net.layers) * factor
    forward = net.forward_us * factor
    compute = forward + backward
    if call_us is None:
        return Step(compute, 0.0, compute)
    end, total = 0.0, 0.0
    for bucket in buckets(net, factor):
        time = call_us(bucket.bytes)
        end = max(end, bucket.ready_us) + time
        total += time
    return Step(compute, total, forward + max(backward, end))
