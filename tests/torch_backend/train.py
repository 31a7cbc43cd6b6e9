"""Trains a small convolutional network under DDP, or fully sharded, and writes its parameters.

Arguments: the backend, `ddp` or `fsdp`, the file to write.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 50


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def main() -> None:
    backend, mode, out = sys.argv[1:]
    if backend == "collc":
        import collc.torch  # noqa: F401 - registers the backend
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    rank = dist.get_rank()
    model = network()
    if mode == "ddp":
        trained: nn.Module = DistributedDataParallel(model, bucket_cap_mb=0.05)
    else:
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        trained = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01, momentum=0.9)
    data = torch.Generator().manual_seed(100 + rank)
    for _ in range(STEPS):
        images, labels = torch.randn(8, 1, 12, 12, generator=data), torch.randint(0, 10, (8,), generator=data)
        loss = nn.functional.cross_entropy(trained(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    parameters = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    if rank == 0:
        torch.save([p.detach() for p in parameters], out)
    dist.barrier()
    dist.destroy_process_group()
    if backend == "gloo":
        # Its group ends with `trained`: it joins a thread, which may wait for the interpreter's lock, and holds that.
        os._exit(0)


if __name__ == "__main__":
    main()
