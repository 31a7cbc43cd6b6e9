"""Runs a script as several ranks on this machine, as torchrun does. PyTorch is imported once, and the ranks are forked.

Arguments: the ranks, the script, and its arguments. The first rank that fails ends the others. RANK_HOSTS: see
torch_backend.hosts.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

import torch._dynamo
import torch.distributed.fsdp
import torch.nn.parallel  # noqa: F401 - what the scripts import
from support.ports import free_port
from torch_backend.hosts import pretend

import collc.torch  # noqa: F401 - so that the ranks need not import it again


def main() -> int:
    ranks, script, *arguments = sys.argv[1:]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks)
    running = []
    for rank in range(int(ranks)):
        process = os.fork()
        if process == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            pretend(rank)
            sys.argv = [script, *arguments]
            runpy.run_path(script, run_name="__main__")
            return 0
        running.append(process)
    while running:
        process, status = os.wait()
        running.remove(process)
        if status:
            for other in running:
                os.kill(other, signal.SIGTERM)
            print(f"a rank ended with exit code {os.waitstatus_to_exitcode(status)}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
