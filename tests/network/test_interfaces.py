"""The interface that other machines are met on: one rule, in Python and in the runtime."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.libraries import library
from support.ranks import Ranks

from collc.errors import CollcError, RunError, UsageError
from collc.network.interfaces import Interface, choose, choose_rails, interfaces

LO = Interface("lo", "127.0.0.1", True, True, 8)
LO6 = Interface("lo", "::1", True, True, 128)
DOCKER = Interface("docker0", "172.17.0.1", True, False)
DOWN = Interface("eth9", "10.9.0.1", False, False)
ETH6 = Interface("eth0", "fe80::1%2", True, False)
ETH = Interface("eth0", "10.0.0.1", True, False)
ETH1 = Interface("eth1", "10.1.0.1", True, False)
ALL = [LO, DOWN, DOCKER, ETH6, ETH1, ETH, LO6]


@pytest.mark.parametrize(
    ("environment", "there", "chosen"),
    [
        ({}, ALL, ETH1),
        ({}, [LO, DOCKER, ETH6], ETH6),
        ({}, [LO6, LO, DOCKER], DOCKER),
        ({}, [LO6, LO], LO),
        ({}, [DOWN], None),
        ({"NCCL_SOCKET_IFNAME": "eth0"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "=eth0"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "^eth1"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "ib,eth0"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "eth,docker"}, ALL, DOCKER),
        ({"NCCL_SOCKET_IFNAME": "=ib0,eth0,"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "^docker,eth1"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "^eth"}, ALL, DOCKER),
        ({"NCCL_SOCKET_IFNAME": "^=eth1,docker0"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "^=eth"}, ALL, ETH1),
        ({"NCCL_SOCKET_IFNAME": "^"}, ALL, ETH1),
        ({"COLLC_NET": "^eth1"}, ALL, ETH),
        ({"COLLC_NET": "tcp:=eth0"}, ALL, ETH),
        ({"NCCL_SOCKET_IFNAME": "eth0", "COLLC_SOCKET_IFNAME": "docker"}, ALL, DOCKER),
        ({"COLLC_SOCKET_IFNAME": "docker", "COLLC_NET": "eth0"}, ALL, ETH),
        ({"COLLC_SOCKET_IFNAME": "docker", "COLLC_NET": "tcp:eth0"}, ALL, ETH),
        ({"COLLC_SOCKET_IFNAME": "docker", "COLLC_NET": "tcp:"}, ALL, DOCKER),
        ({"COLLC_SOCKET_IFNAME": "", "COLLC_NET": ""}, ALL, ETH1),
    ],
)
def test_which_interface(environment: dict[str, str], there: list[Interface], chosen: Interface | None) -> None:
    found = choose(environment, there)
    assert found.interface == chosen
    assert found.why


@pytest.mark.parametrize(
    ("environment", "kind", "why"),
    [
        ({"COLLC_NET": "eth9"}, RunError, "no network interface called eth9 is up"),
        ({"NCCL_SOCKET_IFNAME": "ib"}, RunError, "no network interface called ib is up"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, RunError, "no network interface called =eth is up"),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker,eth"}, RunError, "no network interface that passes .lo,docker,eth is up"),
        ({"COLLC_NET": "verbs:eth0"}, UsageError, "no engine 'verbs'"),
        ({"COLLC_NET": "ucx:eth0,eth1"}, UsageError, "names several interfaces"),
        ({"COLLC_NET": "plugin:ofi,eth0"}, UsageError, "no engine 'plugin'"),
        ({"COLLC_NET": ",".join(f"eth{i}" for i in range(17))}, UsageError, "names several interfaces"),
    ],
)
def test_what_is_refused(environment: dict[str, str], kind: type[CollcError], why: str) -> None:
    with pytest.raises(kind, match=why):
        choose(environment, ALL)


@pytest.mark.parametrize(
    ("named", "rails"),
    [
        ("eth0,eth1", [ETH, ETH1]),
        ("tcp:eth1,eth0", [ETH1, ETH]),
        ("=eth0,eth1", [ETH, ETH1]),
        ("^docker,eth1", [ETH]),
        ("eth0", [ETH]),
        ("", [ETH1]),
    ],
)
def test_which_rails(named: str, rails: list[Interface]) -> None:
    assert choose_rails({"COLLC_NET": named}, ALL) == rails


@pytest.mark.parametrize(
    ("listed", "rails"),
    [
        ("eth", [ETH1, ETH]),
        ("=eth0,eth1", [ETH1, ETH]),
        ("docker,eth0", [DOCKER, ETH]),
        ("eth0", [ETH]),
        ("^docker", [ETH1]),
        ("^eth", [DOCKER]),
    ],
)
def test_which_rails_a_list_names(listed: str, rails: list[Interface]) -> None:
    for variable in ("COLLC_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        assert choose_rails({variable: listed}, ALL) == rails
    assert choose_rails({"NCCL_SOCKET_IFNAME": listed, "COLLC_NET": "eth0"}, ALL) == [ETH]


def test_which_rails_nobody_names(tmp_path: Path) -> None:
    """Running NICs of one driver and speed, each in a separate network, and no virtual interface of the system."""

    def card(name: str, network: str, running: bool = True) -> Interface:
        return Interface(name, network, True, False, 24, running)

    kinds = {
        "ib0": ("mlx5", 200),
        "ib1": ("mlx5", 200),
        "ib2": ("mlx5", 200),
        "ib3": ("mlx5", 200),
        "ib4": ("mlx5", 25),
    }
    for name, (driver, speed) in {**kinds, "en0": ("ixgbe", 200)}.items():
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device/driver").symlink_to(f"/drivers/{driver}")
        (tmp_path / name / "speed").write_text(f"{speed}\n", encoding="ascii")
    first, second = card("ib0", "10.0.0.1"), card("ib1", "10.0.1.1")
    others = [card("ib2", "10.0.1.2"), card("ib3", "10.0.3.1", running=False), card("ib4", "10.0.4.1")]
    others += [card("en0", "10.0.5.1"), card("bond0", "10.0.6.1"), DOCKER, LO]
    assert choose_rails({}, [first, second, *others], net=tmp_path) == [first, second]
    assert choose_rails({"NCCL_SOCKET_IFNAME": "^ib1"}, [first, second, *others], net=tmp_path) == [first, others[0]]
    assert choose_rails({"COLLC_NET": "ucx"}, [first, second], net=tmp_path) == []
    assert choose_rails({}, [card("bond0", "10.0.6.1"), card("bond1", "10.0.7.1")], net=tmp_path)[1:] == []


def test_rails_of_rdma_devices(tmp_path: Path) -> None:
    """NCCL_IB_HCA counts where nothing of collc's own names interfaces; what it leaves out is no further rail."""
    for number in range(3):
        (tmp_path / f"rdma/mlx5_{number}/device/net/ib{number}").mkdir(parents=True)
        (tmp_path / f"net/ib{number}/device").mkdir(parents=True)
        (tmp_path / f"net/ib{number}/device/driver").symlink_to("/drivers/mlx5")
    ib = [Interface(f"ib{number}", f"10.0.{number}.1", True, False, 24) for number in range(3)]
    there = [ETH, *ib[:2], Interface("ib2", "10.0.2.1", True, False, 24, running=False)]

    def rails(at: list[Interface] = there, **environment: str) -> list[Interface]:
        return choose_rails(environment, at, tmp_path / "rdma", tmp_path / "net")

    assert rails(NCCL_IB_HCA="mlx5_1,mlx5_0") == ib[:2]
    assert rails(NCCL_IB_HCA="=mlx5_1", NCCL_SOCKET_IFNAME="eth", COLLC_NET="tcp") == [ib[1]]
    assert rails(NCCL_IB_HCA="mlx5_2") == [ETH]
    assert rails(NCCL_IB_HCA="mlx5_1", COLLC_SOCKET_IFNAME="eth") == [ETH]
    assert rails(NCCL_IB_HCA="mlx5_1", COLLC_NET="ib0") == [ib[0]]
    assert rails(NCCL_IB_HCA="mlx5_1", COLLC_NET="ucx") == []
    assert rails(ib) == ib
    assert rails(ib, NCCL_IB_HCA="^mlx5_1") == [ib[0], ib[2]]
    assert rails(ib, NCCL_IB_HCA="^mlx5_1", NCCL_SOCKET_IFNAME="ib") == ib


@pytest.mark.parametrize(
    ("named", "kind", "why"),
    [
        ("eth0,eth9", RunError, "no network interface called eth9 is up"),
        ("=eth0,eth", RunError, "no network interface called =eth is up"),
        ("eth0,=eth0", UsageError, "names the interface eth0 twice"),
    ],
)
def test_rails_that_are_refused(named: str, kind: type[CollcError], why: str) -> None:
    with pytest.raises(kind, match=why):
        choose_rails({"COLLC_NET": named}, ALL)


def test_the_kernel_lists_the_loopback() -> None:
    assert LO in interfaces()


@pytest.mark.parametrize(
    "environment",
    [
        {"COLLC_SOCKET_IFNAME": ""},
        pytest.param({"COLLC_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "=lo"}, marks=pytest.mark.slow),
        pytest.param({"COLLC_SOCKET_IFNAME": "lo"}, marks=pytest.mark.slow),
        pytest.param({"COLLC_SOCKET_IFNAME": "", "COLLC_NET": "tcp:lo"}, marks=pytest.mark.slow),
        pytest.param({"COLLC_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "^lo"}, marks=pytest.mark.slow),
        pytest.param({"COLLC_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "=nothing,lo"}, marks=pytest.mark.slow),
        pytest.param({"COLLC_SOCKET_IFNAME": "^lo,nothing", "NCCL_SOCKET_IFNAME": ""}, marks=pytest.mark.slow),
        pytest.param({"COLLC_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "lo,e"}, marks=pytest.mark.slow),
    ],
)
def test_the_runtime_takes_the_same(environment: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    """Beside several rails that COLLC_NET does not name, the usual interface is listened on once more, as a spare."""
    told = {"COLLC_NET": "", "NCCL_SOCKET_IFNAME": "", **environment}
    expected = choose_rails(told, interfaces())
    assert expected
    team = Ranks(library("2+2"), 4, {**told, "COLLC_DEBUG": "INFO"}, hosts="aabb")
    try:
        team.init()
    finally:
        team.close()
    waiting = re.findall(r"tcp: waiting for other machines on (\S+) port \d+", capfd.readouterr().err)
    usual = choose(told, interfaces()).interface
    spare = [usual] if usual is not None and len(expected) > 1 else []
    assert sorted(waiting) == sorted([one.address.partition("%")[0] for one in [*expected, *spare]] * 2)
