"""Traces one training step under DDP on each rank of a torchrun; rank 0 prints what ran when, as JSON, in microseconds.

`backward` are the operations of the backward pass in the training thread, `reductions` the calls of ncclAllReduce in
the group's thread.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import collc.torch  # noqa: F401 - registers the backend


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("collc")
    torch.manual_seed(1)
    layers = [part for _ in range(8) for part in (nn.Linear(256, 256), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.3)
    batch = torch.randn(256, 256)
    for _ in range(3):  # DDP cuts its buckets anew after the first step
        model(batch).sum().backward()
    dist.barrier()
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as trace:
        model(batch).sum().backward()
    spans = {"backward": "autograd::engine::evaluate_function", "reductions": "collc::ncclAllReduce"}
    found = {
        name: sorted((e.time_range.start, e.time_range.end) for e in trace.events() if e.name.startswith(prefix))
        for name, prefix in spans.items()
    }
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
