"""NCCL's own variables: those with a meaning here count where collc's are unset, the others are said once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from support.libraries import library, runtime_program
from support.ranks import Ranks
from test_wire_engine import PARTS

from collc.network.hca import HcaFilter

HERE = Path(__file__).parent
RUNTIME = HERE.parent.parent / "templates" / "runtime"
TWICE = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
for _ in range(2):
    assert lib.ncclCommInitAll((ctypes.c_void_p * 2)(), 2, None) == 0
"""


def said(**variables: str) -> list[str]:
    """The log of a process that makes two communicators of two ranks, one after the other."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "COLLC_DEBUG"))}
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(library("pair"))],
        env={**own, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return [re.sub(r"^collc: \d+ ", "", line) for line in done.stderr.splitlines()]


def unfollowed(**variables: str) -> list[str]:
    return [line for line in said(**variables) if "not followed" in line]


@pytest.mark.parametrize(
    ("variables", "levels"),
    [
        ({}, set()),
        ({"NCCL_DEBUG": "INFO"}, {"INFO"}),
        ({"NCCL_DEBUG": "trace"}, {"INFO", "TRACE"}),
        ({"NCCL_DEBUG": "WARN"}, set()),
        ({"NCCL_DEBUG": "VERSION"}, set()),
        ({"NCCL_DEBUG": "nonsense"}, set()),
        ({"NCCL_DEBUG": "TRACE", "COLLC_DEBUG": "INFO"}, {"INFO", "WARN"}),
        ({"NCCL_DEBUG": "WARN", "COLLC_DEBUG": "INFO"}, {"INFO", "WARN"}),
    ],
)
def test_the_log(variables: dict[str, str], levels: set[str]) -> None:
    """Where both are set, a line says whose word counts."""
    assert {line.split()[0] for line in said(**variables)} == levels


# Each with a value that cannot be followed.
WITH_REASONS = {
    "NCCL_ALGO": "Tree",
    "NCCL_CROSS_NIC": "1",
    "NCCL_LAUNCH_ORDER_IMPLICIT": "1",
    "NCCL_MAX_CTAS": "many",
    "NCCL_MAX_NCHANNELS": "-3",
    "NCCL_MIN_CTAS": "4",
    "NCCL_MIN_NCHANNELS": "4",
    "NCCL_NET_GDR_LEVEL": "SYS",
    "NCCL_NET_PLUGIN": "ofi",
    "NCCL_NVLS_ENABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_P2P_LEVEL": "PHB",
    "NCCL_PROTO": "^LL128",
}


@pytest.mark.parametrize("name", WITH_REASONS)
def test_what_is_not_followed_is_said_once_with_the_reason(name: str) -> None:
    (line,) = unfollowed(**{name: WITH_REASONS[name]}, COLLC_DEBUG="WARN")
    assert re.fullmatch(rf"WARN {name} is not followed: .{{10,}}", line)


def test_all_others_are_one_line() -> None:
    variables = {
        "NCCL_BUFFSIZE": "1",
        "NCCL_NTHREADS": "64",
        "NCCL_HOME": "/opt/nccl",
        "NCCL_VERSION": "2.27",
        "NCCL_X": "",
    }
    assert unfollowed(**variables, NCCL_DEBUG="INFO") == ["INFO not followed here: NCCL_BUFFSIZE, NCCL_NTHREADS"]
    assert unfollowed(**variables, NCCL_DEBUG="WARN") == []


@pytest.mark.parametrize(
    "variables",
    [
        {"NCCL_PROTO": "LL"},
        {"NCCL_PROTO": "simple"},
        {"NCCL_MAX_CTAS": "2"},
        {"NCCL_MAX_NCHANNELS": "2"},
        {"NCCL_SOCKET_IFNAME": "lo"},
        {"NCCL_PROFILER_PLUGIN": "none"},
        {"NCCL_IB_HCA": "mlx5_0", "COLLC_NET": "ucx:lo"},
        {"NCCL_IB_HCA": "mlx5_0", "COLLC_NET": "tcp"},
        {"NCCL_IB_HCA": "mlx5_0"},
    ],
)
def test_what_is_followed_is_not_said(variables: dict[str, str]) -> None:
    assert unfollowed(**variables, NCCL_DEBUG="INFO") == []


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"NCCL_PROTO": "LL", "COLLC_PROTO": "Simple"}, "NCCL_PROTO"),
        ({"NCCL_SOCKET_IFNAME": "lo", "COLLC_SOCKET_IFNAME": "lo"}, "NCCL_SOCKET_IFNAME"),
        ({"NCCL_MAX_NCHANNELS": "2", "NCCL_MAX_CTAS": "3"}, "NCCL_MAX_NCHANNELS"),
        ({"NCCL_IB_HCA": "mlx5_0", "COLLC_NET": "tcp:lo"}, "NCCL_IB_HCA"),
        ({"NCCL_IB_HCA": "mlx5_0", "COLLC_SOCKET_IFNAME": "lo"}, "NCCL_IB_HCA"),
    ],
)
def test_of_two_variables_the_one_that_does_not_count_is_said(variables: dict[str, str], name: str) -> None:
    assert [line.split()[1] for line in unfollowed(**variables, NCCL_DEBUG="INFO")] == [name]


def test_every_variable_that_is_read_is_among_these() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(RUNTIME.rglob("*.cpp")))
    read = set(re.findall(r'read_\w+\("(NCCL_\w+)"', source))
    table = (RUNTIME / "communicator" / "nccl_variables.cpp").read_text(encoding="utf-8")
    reasons = set(re.findall(r'\{"(NCCL_\w+)", "', table))
    known = {"NCCL_DEBUG", "NCCL_IB_HCA", "NCCL_LAUNCH_ORDER_IMPLICIT", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"}
    known |= {"NCCL_NVLS_ENABLE", "NCCL_PROFILER_PLUGIN", "NCCL_PROTO"}
    assert read == known | {"NCCL_SOCKET_IFNAME"}
    assert reasons == set(WITH_REASONS) | read - {"NCCL_PROFILER_PLUGIN"}  # which always counts


def test_ranks_that_disagree_are_told_which_variable() -> None:
    team = Ranks(library("pair"), 2, {}, own={1: {"NCCL_PROTO": "LL"}})
    try:
        texts = [answer["text"] for answer in team.init()]
    finally:
        team.close()
    assert any(
        "ranks 0 and 1 disagree: no COLLC_PROTO on the one, NCCL_PROTO=LL on the other" in text for text in texts
    )


# Lists, and which of bnxt_re0:1, mlx5_0:1, mlx5_0:10, mlx5_1:1, mlx5_10:1 and mlx5_10:2 NCCL takes.
BNXT, A1, A10, B1, C1, C2 = PORTS = ["bnxt_re0:1", "mlx5_0:1", "mlx5_0:10", "mlx5_1:1", "mlx5_10:1", "mlx5_10:2"]
LISTS: list[tuple[str, list[str]]] = [
    ("mlx5", [A1, A10, B1, C1, C2]),
    ("mlx5:1", [A1, B1, C1]),
    ("mlx5_0", [A1, A10]),
    ("mlx5_0:1", [A1]),
    ("mlx5_1", [B1, C1, C2]),
    ("mlx5_1:1", [B1, C1]),
    ("mlx5_10:2,bnxt", [BNXT, C2]),
    ("mlx5_1:2,mlx5_0:10", [A10, C2]),
    (",mlx5_0:01,", [A1]),
    ("mlx5_0:1:10", [A1]),
    ("mlx5_0:", []),
    ("mlx5_0:x", []),
    ("mlx5_0:-1", [A1, A10]),
    (":1", PORTS),
    (":1,bnxt", [BNXT]),
    ("efa", []),
    ("=mlx5", []),
    ("=mlx5:1", []),
    ("=mlx5_1", [B1]),
    ("=mlx5_0", [A1, A10]),
    ("=mlx5_0:1", [A1]),
    ("=mlx5_0:10,mlx5_10", [A10, C1, C2]),
    ("=mlx5_1:2", []),
    ("", PORTS),
    ("=", PORTS),
    (",", PORTS),
]


@pytest.mark.parametrize(("value", "passing"), LISTS)
@pytest.mark.parametrize("excludes", [False, True], ids=["", "^"])
def test_rdma_ports_by_nccls_list(value: str, passing: list[str], excludes: bool) -> None:
    """Prefixes and whole names of devices, with ports and without, and all others: in C++ and in Python."""
    expected = [port for port in PORTS if (port in passing) != excludes]
    value = f"^{value}" if excludes else value
    program = runtime_program(HERE / "wire_engine.cpp", PARTS)
    done = subprocess.run([program, "hca", value, *PORTS], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == expected
    assert [port for port in PORTS if HcaFilter(value).takes(port)] == expected


def test_lists_of_rdma_ports_agree() -> None:
    """The whole grid of one and two entries, in every form: C++ and Python take the same."""
    names, numbers = ["", "mlx5", "mlx5_1", "mlx5_10", "bnxt_re0"], ["", ":", ":1", ":10", ":-1", ": 2", ":+1x"]
    entries = ["".join(parts) for parts in product(names, numbers)]
    lists = [
        sign + ",".join(pair) for sign in ("", "^", "=", "^=", "=^") for pair in product(entries, ["", *entries[::4]])
    ]
    program = runtime_program(HERE / "wire_engine.cpp", PARTS)
    done = subprocess.run(
        [program, "hcas", *PORTS], input="\n".join(lists), capture_output=True, text=True, check=True, timeout=60
    )
    found = dict(zip(lists, done.stdout.splitlines(), strict=True))
    wrong = {one: took for one in lists if (took := found[one]) != " ".join(filter(HcaFilter(one).takes, PORTS))}
    assert not wrong
    assert len(set(found.values())) > 20
