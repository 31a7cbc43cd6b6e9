"""Run by test_gpu_places.py: communicators of one process on the mock driver, one after the other.

    mock_places.py LIBRARY DEVICES

DEVICES is JSON: for each communicator the devices of its ranks, as ncclCommInitAll takes them. Prints for each of them
a JSON object: `error`, or `pairs`: the ranks that the plan's FIFOs join over NVLinks, and `parts`: the rank of the plan
that each rank became, where links or paths have changed it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import tempfile
from pathlib import Path

from collc.bench.nccl import Nccl


def joined(log: str) -> list[tuple[int, int]]:
    """Parses the lines that COLLC_DEBUG=INFO writes."""
    lines = re.findall(r"rank (\d+): \d+ FIFOs? over nvlink to ranks?((?: \d+)+)", log)
    return [(int(rank), int(peer)) for rank, peers in lines for peer in peers.split()]


def parts(log: str) -> list[int]:
    lines = re.findall(r"by their .* the ranks are the plan's ranks ([0-9,]+)", log)
    return [int(part) for part in lines[0].split(",")] if lines else []


def main() -> None:
    nccl = Nccl(Path(sys.argv[1]))
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        for devices in json.loads(sys.argv[2]):
            begin = os.fstat(2).st_size
            comms = (ctypes.c_void_p * len(devices))()
            code = nccl.lib.ncclCommInitAll(comms, len(devices), (ctypes.c_int * len(devices))(*devices))
            said = os.pread(2, 1 << 20, begin).decode()
            if code:
                print(json.dumps({"error": nccl.lib.ncclGetLastError(None).decode()}))
                continue
            print(json.dumps({"pairs": joined(said), "parts": parts(said)}))
            for comm in comms:
                nccl.check(nccl.lib.ncclCommDestroy(ctypes.c_void_p(comm)), "ncclCommDestroy")


if __name__ == "__main__":
    main()
