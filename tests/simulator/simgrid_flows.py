"""Runs flows over shared links in SimGrid: JSON cases on standard input, their end times in seconds on standard output.

A case: {"capacity": [bytes per second of each link], "flows": [[bytes, [links]], ...]}; all flows start at 0. Each has
two separate hosts, so that only the listed links are shared. Model CM02 without cross traffic: max-min fairness.
Needs SimGrid's Python module (Debian: python3-simgrid), hence a separate process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def one(case: dict[str, Any]) -> list[float]:
    from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone

    options = ["--cfg=network/model:CM02", "--cfg=network/crosstraffic:0", "--log=root.thres:critical"]
    engine = Engine([sys.argv[0], *options])
    zone = NetZone.create_full_zone("zone")
    links = [zone.create_link(f"link{i}", speed).set_latency(0) for i, speed in enumerate(case["capacity"])]
    ends = [0.0] * len(case["flows"])

    def send(number: int, size: int) -> None:
        Mailbox.by_name(str(number)).put("x", size)

    def receive(number: int) -> None:
        Mailbox.by_name(str(number)).get()
        ends[number] = engine.clock

    hosts = []
    for i, (_, path) in enumerate(case["flows"]):
        a, b = zone.create_host(f"a{i}", 1e9), zone.create_host(f"b{i}", 1e9)
        zone.add_route(a.netpoint, b.netpoint, None, None, [LinkInRoute(links[x]) for x in path], False)
        hosts.append((a, b))
    zone.seal()
    for i, (size, _) in enumerate(case["flows"]):
        Actor.create(f"s{i}", hosts[i][0], send, i, size)
        Actor.create(f"r{i}", hosts[i][1], receive, i)
    engine.run()
    return ends


if __name__ == "__main__":
    if sys.argv[1:] == ["one"]:
        print(json.dumps(one(json.load(sys.stdin))))
    else:
        # One engine per process is all that SimGrid allows.
        for case in json.load(sys.stdin):
            run = [sys.executable, __file__, "one"]
            done = subprocess.run(run, input=json.dumps(case), capture_output=True, text=True, check=True)
            print(done.stdout.strip())
