"""A process that holds both ranks of a communicator and makes one group of calls, under some environment."""

from __future__ import annotations

import os
import subprocess
import sys

from support.libraries import library
from support.running import WAIT

# Both ranks in this process, their calls in a group.
GROUP = """
import ctypes, pathlib, sys
from collc.bench.nccl import Nccl
lib = Nccl(pathlib.Path(sys.argv[1])).lib
comms = (ctypes.c_void_p * 2)()
assert lib.ncclCommInitAll(comms, 2, None) == 0
data = [(ctypes.c_float * 8)() for _ in comms]
assert lib.ncclGroupStart() == 0
for comm, own in zip(comms, data):
    assert lib.ncclAllReduce(own, own, ctypes.c_size_t(8), 7, 0, ctypes.c_void_p(comm), None) == 0
assert lib.ncclGroupEnd() == 0
"""


def run_group(more: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """The program, and statements after it, once they have ended well."""
    done = subprocess.run(
        [sys.executable, "-c", GROUP + more, str(library("pair"))],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert done.returncode == 0, done
    return done
