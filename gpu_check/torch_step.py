"""Runs PyTorch's `nccl` backend over a collc library, 4 ranks on one GPU: `python3 gpu_check/torch_step.py`.

Checks every collective of torch.distributed and trains a small network under DDP, whose parameters must be the same on
all ranks and equal to the parameters that a single process computes from all ranks' data. Skips with one line and exit
code 0 without PyTorch, a GPU or a library for 4 ranks (`--library`; otherwise it compiles one with collc and nvcc).

All ranks are on GPU 0 (COLLC_SHARE_GPU=1) in separate processes, as torchrun starts them. With MPS their kernels run
concurrently. Without MPS the GPU runs one process at a time, a rank may wait at every hop, and times mean nothing.
Several ranks of one process on one GPU cannot work under PyTorch: its `nccl` backend issues each rank's calls from that
rank's thread, and collc needs the calls of ranks that share a GPU and a process in one group of one thread. A GPU in
exclusive-process mode admits only one of the processes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
RANKS = 4
STEPS = 20


def collectives(torch: Any, dist: Any, rank: int, size: int) -> int:
    """Checks each collective once per size and type; returns the number of right results."""
    right = 0

    def same(got: Any, wanted: Any) -> None:
        nonlocal right
        assert torch.equal(got, wanted), (got.flatten()[:4], wanted.flatten()[:4])
        right += 1

    def numbers(of: int, count: int, dtype: Any) -> Any:
        return ((torch.arange(count, device="cuda") + of) % 5).to(dtype)

    for count in (1, 1000, 1_000_003):
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
            mine, all_of_them = numbers(rank, count, dtype), [numbers(r, count, dtype) for r in range(size)]
            total = torch.stack(all_of_them).sum(0, dtype=torch.float64).to(dtype)
            tensor = mine.clone()
            dist.all_reduce(tensor)
            same(tensor, total)
            tensor = mine.clone()
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
            same(tensor, torch.stack(all_of_them).amax(0))
            tensor = mine.clone()
            dist.broadcast(tensor, 1)
            same(tensor, all_of_them[1])
            tensor = mine.clone()
            dist.reduce(tensor, 2)
            if rank == 2:
                same(tensor, total)
            gathered = torch.empty(size * count, dtype=dtype, device="cuda")
            dist.all_gather_into_tensor(gathered, mine)
            same(gathered, torch.cat(all_of_them))
            share = torch.empty(count, dtype=dtype, device="cuda")
            dist.reduce_scatter_tensor(share, torch.cat([mine] * size))
            same(share, total)
    return right


def network(torch: Any) -> Any:
    torch.manual_seed(1)
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, 10))


def train(torch: Any, model: Any, of: list[int]) -> list[Any]:
    """Returns the parameters after STEPS on the mean loss over the data of some ranks, in float64."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sources = [torch.Generator().manual_seed(100 + rank) for rank in of]
    for _ in range(STEPS):
        images = torch.cat([torch.randn(8, 1, 12, 12, generator=s, dtype=torch.float64) for s in sources])
        labels = torch.cat([torch.randint(0, 10, (8,), generator=s) for s in sources])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda()).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def worker() -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    # STEP_SERVERS is the number of machines that the ranks pretend to be on, with equal numbers of ranks.
    servers = int(os.environ.get("STEP_SERVERS", "1"))
    if servers > 1:
        os.environ["COLLC_HOSTID"] = f"server{int(os.environ['RANK']) * servers // RANKS}"
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    right = collectives(torch, dist, rank, size)
    model = DistributedDataParallel(network(torch).double().cuda(), bucket_cap_mb=0.1)
    trained = train(torch, model, [rank])
    alone = train(torch, network(torch).double().cuda(), list(range(size)))
    for got, wanted in zip(trained, alone, strict=True):
        first = got.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, got), "parameters differ between ranks"
        assert torch.allclose(got, wanted, rtol=1e-9, atol=1e-12), "parameters differ from a single process's"
    torch.cuda.synchronize()
    if rank == 0:
        print(f"{right} results right, {STEPS} DDP steps as in a single process")
    dist.destroy_process_group()


def missing() -> str | None:
    """Why PyTorch cannot do this here."""
    if importlib.util.find_spec("torch") is None:
        return "no PyTorch here"
    import torch

    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no GPU"
    return None if torch.distributed.is_nccl_available() else f"PyTorch {torch.__version__} is built without NCCL"


def compiled(folder: Path) -> Path | None:
    """A library for four GPUs of a star, where collc can compile one."""
    out = folder / "libcollc-four.so"
    command = [sys.executable, "-m", "collc", "compile", "hgx-h100", "--gpus", "0,1,2,3", "--target", "cuda", "-o", out]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=HERE.parents[1])
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        return None
    return out


def wheel_nccl() -> dict[str, str]:
    """COLLC_NCCL for the NCCL of PyTorch's wheels, as `collc run` sets it."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    libraries = [Path(folder) / "nccl" / "lib" / "libnccl.so.2" for folder in folders or []]
    return next(({"COLLC_NCCL": str(path)} for path in libraries if path.is_file()), {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, help="a library of the cuda target that serves 4 ranks")
    parser.add_argument("--servers", type=int, choices=(1, 2), default=1, help="play so many machines, joined by TCP")
    parser.add_argument(
        "--pinned", action="store_true", help="as if GPUs did not reach each other (NCCL_P2P_DISABLE=1)"
    )
    parser.add_argument("--seconds", type=float, default=240, help="when to give up")
    options = parser.parse_args()
    why = missing()
    with tempfile.TemporaryDirectory() as folder:
        library = None if why else options.library or compiled(Path(folder))
        if library is None:
            print(f"torch step skipped: {why or 'nothing to compile a library for 4 ranks with; see --library'}")
            return 0
        preloads = [str(library.resolve()), *filter(None, [os.environ.get("LD_PRELOAD")])]
        settings = {
            "LD_PRELOAD": ":".join(preloads),
            "COLLC_SHARE_GPU": "1",
            "COLLC_DEBUG": "INFO",
            "COLLC_TIMEOUT": "60",
            "STEP_SERVERS": str(options.servers),
            **({"NCCL_P2P_DISABLE": "1"} if options.pinned else {}),
        }
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", str(HERE)]
        start = time.monotonic()
        try:
            done = subprocess.run(
                run,
                capture_output=True,
                text=True,
                check=False,
                timeout=options.seconds,
                env={**wheel_nccl(), **os.environ, **settings},
            )
        except subprocess.TimeoutExpired:
            print(f"torch step failed: no end within {options.seconds:.0f} s")
            return 1
    served = len(re.findall(r"INFO rank \d+ of 4: communicator made", done.stderr))
    if done.returncode or served < RANKS:
        last = [line for line in done.stderr.splitlines() if "Error" in line or "collc:" in line][-12:]
        print("\n".join([*last, f"torch step failed: status {done.returncode}, {served} ranks served by collc"]))
        return 1
    result, seconds = done.stdout.strip().splitlines()[-1], time.monotonic() - start
    how = f", as on {options.servers} servers" * (options.servers > 1) + ", over pinned memory" * options.pinned
    print(f"torch step, {RANKS} ranks on one GPU{how}: {result}, {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        worker()
    else:
        sys.exit(main())
