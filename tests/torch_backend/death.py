"""Three ranks that train, or pass numbers on, until one kills itself at step 3: what do the others do?

Arguments: what to run, the rank that dies, and a folder. Rank and size come from the environment of torchrun or mpirun,
or from RANK and WORLD_SIZE. Every survivor writes `rank-N.json` into the folder: what it was told, how many seconds
after the death, and every result that it had computed; its exit code is 3.

With `plain` and a folder: forks three ranks for everything there is to run, one after the other, without a launcher; a
folder for each, with their exit codes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch._dynamo  # optimizers import it, in each forked rank again if it is not here
import torch.distributed as dist
from support.ports import free_port
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_backend.hosts import pretend

import collc.torch  # noqa: F401 - registers the backend

DYING_STEP, STEPS = 3, 200
Step = Callable[[int], float]


def all_reduce(rank: int, size: int) -> Step:
    def step(number: int) -> float:
        tensor = torch.full((1000,), float(number))
        dist.all_reduce(tensor)
        dist.barrier()
        assert (tensor == size * number).all()
        return float(tensor[7])

    return step


def training(model: nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(1)  # all ranks see the same data, so that all know the right loss

    def step(number: int) -> float:
        loss = nn.functional.mse_loss(model(torch.randn(8, 64, generator=data)), torch.randn(8, 64, generator=data))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))


def ddp(rank: int, size: int) -> Step:
    return training(DistributedDataParallel(network(), bucket_cap_mb=0.01))


def fsdp(rank: int, size: int) -> Step:
    return training(fully_shard(network(), mesh=dist.init_device_mesh("cpu", (size,))))


def pipeline(rank: int, size: int) -> Step:
    """Each rank adds one and passes on; the last one hands the sum back to the first."""

    def step(number: int) -> float:
        tensor = torch.full((10_000,), float(number))
        if rank > 0:
            dist.recv(tensor, rank - 1)
        tensor += 1
        work = dist.isend(tensor, (rank + 1) % size)
        if rank == 0:
            total = torch.zeros(10_000)
            dist.recv(total, size - 1)
            assert (total == number + size).all()
        work.wait()
        return float(tensor[5])

    return step


KINDS = {"all_reduce": all_reduce, "ddp": ddp, "fsdp": fsdp, "pipeline": pipeline}


def rank_main(kind: str, victim: int, folder: Path) -> int:
    torch.set_num_threads(1)
    dist.init_process_group("collc")
    rank, size = dist.get_rank(), dist.get_world_size()
    step = KINDS[kind](rank, size)
    results: list[float] = []
    try:
        for number in range(STEPS):
            if number == DYING_STEP:
                dist.barrier()
                if rank == victim:
                    (folder / "died").write_text(str(time.time()))
                    os.kill(os.getpid(), signal.SIGKILL)
            results.append(step(number))
    except RuntimeError as error:
        seconds = time.time() - float((folder / "died").read_text())
        told = {"error": f"{type(error).__name__}: {error}", "seconds": seconds, "results": results}
        (folder / f"rank-{rank}.json").write_text(json.dumps(told))
        return 3
    return 0


def plain(kind: str, victim: int, folder: Path) -> None:
    """Three ranks without a launcher, each a process as a shell would start it."""
    folder.mkdir()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE="3")
    processes = []
    for rank in range(3):
        process = os.fork()
        if process == 0:
            os.environ["RANK"] = str(rank)
            pretend(rank)
            sys.exit(rank_main(kind, victim, folder))
        processes.append(process)
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    (folder / "codes").write_text(json.dumps(codes))


def main() -> int:
    if sys.argv[1] == "plain":
        for kind in KINDS:
            for victim in (0, 1):
                plain(kind, victim, Path(sys.argv[2]) / f"{kind}-{victim}")
        return 0
    for name, mpi in (("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")):
        os.environ.setdefault(name, os.environ.get(mpi, ""))
    return rank_main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))


if __name__ == "__main__":
    sys.exit(main())
