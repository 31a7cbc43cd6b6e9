"""A rank of the tests of network plugins: beside rank_process.py's orders, children of its process and its environment.

{"do": "children", times}: while other orders run, forks so many children, which use memory of their own and then call
exit(); {"do": "ended"}: their statuses, as far as they ended in time. {"do": "child_init", nranks, id, rank}: a child
makes a communicator, and its answer is the answer. {"do": "init_beside", nranks, id, rank}: in a thread, answered at
once. {"do": "variable", name}: what the process's environment has, for its libraries.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from rank_process import RankProcess, serve

SECONDS = 60  # that a child may take
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p


class PluginRank(RankProcess):
    def __init__(self, library: Path) -> None:
        super().__init__(library)
        self.statuses: list[int] = []
        self.parent: threading.Thread | None = None

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        match order["do"]:
            case "children":
                self.parent = threading.Thread(target=self.have_children, args=(order["times"],))
                self.parent.start()
                return {"result": 0}
            case "ended":
                assert self.parent is not None
                self.parent.join()
                return {"result": 0, "statuses": self.statuses}
            case "child_init":
                return self.child_init(order)
            case "init_beside":
                threading.Thread(target=self.init, args=(order,), daemon=True).start()
                return {"result": 0}
            case "variable":
                value = libc.getenv(order["name"].encode())
                return {"result": 0, "value": None if value is None else value.decode()}
            case _:
                return super().do(order)

    def have_children(self, times: int) -> None:
        for _ in range(times):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the other threads
                child = os.fork()
            if child == 0:
                kept = [bytes(1000) for _ in range(10000)]
                libc.exit(0 if len(kept) == 10000 else 1)
            self.statuses.append(status_of(child))

    def child_init(self, order: dict[str, Any]) -> dict[str, Any]:
        there, here = os.pipe()
        if (child := os.fork()) == 0:
            os.write(here, json.dumps(self.init(order)).encode())
            os._exit(0)
        os.close(here)
        status = status_of(child)
        with os.fdopen(there) as said:
            text = said.read()
        answer = json.loads(text) if text else {"result": -1, "text": f"status {status}"}
        assert isinstance(answer, dict)
        return answer


def status_of(child: int) -> int:
    """-1 for one that did not end in time."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


if __name__ == "__main__":
    serve(PluginRank(Path(sys.argv[1])))
