"""Seeded calls over servers of a lab, every element compared: collectives, types, operations, in place, groups, parts.

`make netlab-calls` makes 2,000 calls of each shape with each engine, and 2,000 in its splits. SERVER_CALLS=600-2000
makes only these, with the seed SERVER_SEED: the seed and the number determine a call.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.libraries import library
from support.netlab import NoLab, lab
from support.ranks import SUCCESS, Ranks

from collc.network.ucx import find_ucx

CALLS = Path(__file__).parent / "calls.py"
SHAPES = {"2+2": "aabb", "2+2+2+2": "aabbccdd", "3+5": "aaabbbbb", "1+1+6": "abcccccc"}
STEP = 200  # calls of one order
ENGINES = {"tcp": {"COLLC_NET": "tcp:e0"}, "ucx": {"COLLC_NET": "ucx:e0", "COLLC_UCX_UNSAFE_TCP": "1"}}


def parts_of(hosts: str) -> list[list[int]]:
    """Colors of the ranks: every second one, halves, servers, and all but the last."""
    n = len(hosts)
    servers = [sorted(set(hosts)).index(host) for host in hosts]
    return [[i % 2 for i in range(n)], [2 * i // n for i in range(n)], servers, [0] * (n - 1) + [-1]]


def with_parts(name: str, hosts: str) -> str:
    """The library that has a set of GPUs for the whole and for every part."""
    sets = [",".join(map(str, range(len(hosts))))]
    for colors in parts_of(hosts):
        for color in sorted(set(colors) - {-1}):
            sets.append(",".join(str(i) for i, one in enumerate(colors) if one == color))
    return f"{name}:{'/'.join(dict.fromkeys(sets))}"


def make_calls(name: str, engine: str, parts: bool, first: int, last: int) -> None:
    if engine == "ucx" and find_ucx(os.environ) is None:
        pytest.skip("no UCX here (Debian: libucx0, or the extra `ucx`)")
    hosts, seed = SHAPES[name], os.environ.get("SERVER_SEED", "1")
    order = {"do": "calls", "seed": seed, "parts": parts_of(hosts) if parts else None}
    path = library(with_parts(name, hosts) if parts else name)
    settings = {"COLLC_SOCKET_IFNAME": "e0", "COLLC_TIMEOUT": "60", **ENGINES[engine]}
    try:
        with lab("".join(sorted(set(hosts)))) as made:
            team = Ranks(path, len(hosts), settings, CALLS, hosts=hosts, lab=made.name)
            try:
                assert [answer["result"] for answer in team.init()] == [SUCCESS] * len(hosts)
                for at in range(first, last, STEP):
                    end = min(at + STEP, last)
                    again = f"again with SERVER_SEED={seed} SERVER_CALLS={at}-{end}"
                    answers = team.all(None, **order, first=at, last=end)
                    assert sum(answer["calls"] for answer in answers) > 0
                    assert [answer["wrong"] for answer in answers] == [[]] * len(hosts), again
                    if not parts:
                        assert {answer["calls"] for answer in answers} == {end - at}
                    print(f"{name} {engine}{' parts' if parts else ''}: calls {at} to {end} right", flush=True)
            finally:
                team.close()
    except NoLab as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
def test_calls(parts: bool) -> None:
    make_calls("2+2", "tcp", parts, 0, 60)


def test_calls_of_more_than_two_servers() -> None:
    """There connections share a server's link, and the kernel gets no more of each than leaves soon."""
    make_calls("2+2+2+2", "tcp", False, 0, 40)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("name", list(SHAPES))
def test_calls_of_each_shape(name: str, engine: str, parts: bool) -> None:
    first, _, last = os.environ.get("SERVER_CALLS", "0-2000").partition("-")
    make_calls(name, engine, parts, int(first), int(last))
