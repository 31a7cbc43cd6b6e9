"""A ring all_reduce by hand on torch.distributed, beside the library.

`python examples/ring_by_hand.py [PROCESSES [BACKEND]]` starts the processes; under torchrun, on one machine or on
several, each process is one of its ranks: `torchrun --nproc-per-node=4 examples/ring_by_hand.py`.

The function does what people write first: shares go round with isend and irecv, N - 1 steps that add and N - 1 that
replace, every step waiting for the one before. Each size is checked, bit for bit, against all_reduce for whole numbers,
whose sums are exact in every order; then both are timed.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = {"4K": 4 << 10, "256K": 256 << 10, "4M": 4 << 20}
CALLS = 15


def exchange(out: torch.Tensor, into: torch.Tensor, left: int, right: int) -> None:
    """Sends one share to the right while another comes from the left, and waits for both."""
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, right), dist.P2POp(dist.irecv, into, left)]):
        request.wait()


def ring_all_reduce(tensor: torch.Tensor) -> None:
    """Sums a contiguous tensor over all ranks, in place; its elements divide evenly by the number of ranks."""
    n, rank = dist.get_world_size(), dist.get_rank()
    shares = list(tensor.view(-1).chunk(n))
    came = torch.empty_like(shares[0])
    left, right = (rank - 1) % n, (rank + 1) % n
    for i in range(n - 1):
        exchange(shares[(rank - i) % n], came, left, right)
        shares[(rank - i - 1) % n].add_(came)
    for i in range(n - 1):
        exchange(shares[(rank - i + 1) % n], came, left, right)
        shares[(rank - i) % n].copy_(came)


def timed(run: object, tensor: torch.Tensor, calls: int) -> float:
    """The median microseconds of a call, all ranks starting together; the first one only warms up."""
    found = []
    for _ in range(calls + 1):
        dist.barrier()
        start = time.perf_counter()
        run(tensor)  # type: ignore[operator]
        found.append((time.perf_counter() - start) * 1e6)
    return statistics.median(found[1:])


def worker(rank: int, n: int, store: str, backend: str) -> None:
    if backend == "collc":
        import collc.torch  # noqa: F401

    dist.init_process_group(backend, init_method=store, rank=rank, world_size=n)
    for label, size in SIZES.items():
        # Whole numbers: their sums are exact in every order, so equal results have equal bits.
        start = torch.arange(size // 4 // n * n, dtype=torch.float32) % 251 + rank
        by_hand, by_library = start.clone(), start.clone()
        ring_all_reduce(by_hand)
        dist.all_reduce(by_library)
        same = torch.tensor([int(torch.equal(by_hand.view(torch.int32), by_library.view(torch.int32)))])
        dist.all_reduce(same, op=dist.ReduceOp.MIN)
        assert same.item(), f"{label}: the ring by hand and the library differ"
        a, b = timed(ring_all_reduce, start.clone(), CALLS), timed(dist.all_reduce, start.clone(), CALLS)
        if rank == 0:
            print(
                f"{n} ranks, {label}: equal bits, by hand {a:.0f} us, {backend} {b:.0f} us, ratio {a / b:.2f}",
                flush=True,
            )
    dist.destroy_process_group()


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        backend = sys.argv[1] if len(sys.argv) > 1 else "collc"
        worker(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", backend)
        return
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    backend = sys.argv[2] if len(sys.argv) > 2 else "collc"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(n, f"file://{folder}/store", backend), nprocs=n)


if __name__ == "__main__":
    main()
