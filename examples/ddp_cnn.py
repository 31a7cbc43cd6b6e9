"""Data-parallel training with the collectives of collc: a small network learns to find the quarter of a spot.

On CPUs, over the `collc` backend of torch.distributed (or `--backend gloo`, to compare):

    torchrun --standalone --nproc-per-node 4 examples/ddp_cnn.py

On GPUs PyTorch's own `nccl` backend stays, and collc's library takes NCCL's place below it:

    collc run --lib libcollc-dgx1v.so -- torchrun --standalone --nproc-per-node 8 examples/ddp_cnn.py --device cuda
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIDE, BATCH = 32, 16


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, 256), nn.ReLU(), nn.Linear(256, 4)),
    )


def images(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of noise, each image with one bright spot, and the quarters that the spots are in."""
    batch = torch.randn(BATCH, 1, SIDE, SIDE, generator=generator)
    corners = torch.randint(0, SIDE - 4, (BATCH, 2), generator=generator)
    for image, (top, left) in zip(batch, corners.tolist(), strict=True):
        image[0, top : top + 4, left : left + 4] += 3
    middle = (corners + 2) // (SIDE // 2)
    return batch, middle[:, 0] * 2 + middle[:, 1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Data-parallel training over collc.")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--backend", choices=["collc", "gloo", "nccl"], help="Default: collc on cpu, nccl on cuda.")
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    backend = arguments.backend or ("nccl" if arguments.device == "cuda" else "collc")
    if backend == "collc":
        import collc.torch  # noqa: F401 - registers the backend
    device = torch.device(arguments.device, int(os.environ["LOCAL_RANK"]) if arguments.device == "cuda" else 0)
    torch.set_num_threads(1)  # the ranks are the parallelism
    dist.init_process_group(backend)
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(1 + rank)  # every rank has its own share of the data
    start = time.perf_counter()
    for step in range(1, arguments.steps + 1):
        batch, quarters = (tensor.to(device) for tensor in images(generator))
        scores = model(batch)
        loss = nn.functional.cross_entropy(scores, quarters)
        optimizer.zero_grad()
        loss.backward()  # gradients are averaged over the ranks while this goes on
        optimizer.step()
        if step % 20 == 0:
            right = (scores.argmax(1) == quarters).float().mean()
            dist.all_reduce(right, dist.ReduceOp.SUM)
            if rank == 0:
                seconds = time.perf_counter() - start
                share = right.item() / dist.get_world_size()
                print(f"step {step}: {share:.0%} of all ranks' images right, {seconds / step * 1e3:.1f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
