"""Measures the rate of plain sockets over all rails of a lab at once, from its first server to its second."""

from __future__ import annotations

import subprocess
import sys

from support.netlab import Lab

_TAKE = """
import socket, sys, threading, time
ends = [socket.create_server((host, 0)) for host in sys.argv[2:]]
print(*[end.getsockname()[1] for end in ends], flush=True)
seconds, counts = float(sys.argv[1]), []
def take(end):
    one, _ = end.accept()
    one.recv(1)
    begun, count = time.monotonic(), 0
    while data := one.recv(1 << 18):
        count += len(data)
    counts.append(count / (time.monotonic() - begun))
threads = [threading.Thread(target=take, args=(end,)) for end in ends]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(counts))
"""
_GIVE = """
import socket, sys, threading, time
seconds, places = float(sys.argv[1]), sys.argv[2:]
def give(host, port):
    one = socket.create_connection((host, int(port)))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        one.sendall(bytes(1 << 16))
threads = [threading.Thread(target=give, args=pair) for pair in zip(places[::2], places[1::2])]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def plain_rate(made: Lab, seconds: float) -> float:
    """Returns the received Mbit/s over one connection for each rail."""
    number = len(made.servers[:2])
    hosts = [f"10.79.{rail}.{number}" for rail in range(1 + len(made.more))]
    giver, taker = (
        ["ip", "netns", "exec", f"{made.name}-{server}", sys.executable, "-c"] for server in made.servers[:2]
    )
    with subprocess.Popen([*taker, _TAKE, str(seconds), *hosts], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ports = process.stdout.readline().split()
        places = [word for pair in zip(hosts, ports, strict=True) for word in pair]
        subprocess.run([*giver, _GIVE, str(seconds), *places], check=True, timeout=60 + 10 * seconds)
        return 8 * float(process.stdout.readline()) / 1e6
