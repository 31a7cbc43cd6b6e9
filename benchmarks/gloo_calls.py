"""A rank of Gloo that tests/support/ranks.py orders about like one of collc: "id", "init" and "call", JSON by lines.

Buffers exist and all ranks are together when a clock starts. GLOO_ADDRESS is where the first rank listens, host:port.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

LIMIT = timedelta(seconds=300)


class GlooRank:
    group: dist.ProcessGroupGloo
    nranks = 1

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "init":
            self.init(order)
        return self.call(order) if order["do"] == "call" else {"result": 0, "id": os.environ["GLOO_ADDRESS"]}

    def init(self, order: dict[str, Any]) -> None:
        host, _, port = order["id"].rpartition(":")
        self.nranks = order["nranks"]
        first = order["rank"] == 0
        store = dist.TCPStore(host, int(port), self.nranks, is_master=first, timeout=LIMIT)
        self.group = dist.ProcessGroupGloo(store, order["rank"], self.nranks, LIMIT)

    def call(self, order: dict[str, Any]) -> dict[str, Any]:
        one, whole = torch.ones(order["count"]), torch.ones(order["count"] * self.nranks)
        reduce, broadcast = dist.ReduceOptions(), dist.BroadcastOptions()
        reduce.rootRank = broadcast.rootRank = 0
        calls: dict[str, Callable[[], dist.Work]] = {
            "all_reduce": lambda: self.group.allreduce([one]),
            "broadcast": lambda: self.group.broadcast([one], broadcast),
            "reduce": lambda: self.group.reduce([one], reduce),
            "all_gather": lambda: self.group._allgather_base(whole, one),
            "reduce_scatter": lambda: self.group._reduce_scatter_base(one, whole),
        }
        call = calls[order["collective"]]
        self.group.allreduce([torch.ones(1)]).wait()
        start = time.monotonic()
        for _ in range(order["times"]):
            call().wait()
        return {"result": 0, "seconds": time.monotonic() - start}


def main() -> None:
    torch.set_num_threads(1)
    rank = GlooRank()
    for line in sys.stdin:
        print(json.dumps(rank.do(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
