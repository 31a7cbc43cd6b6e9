"""`collc doctor --net`: devices of a made-up sysfs, and of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli import collc

from collc.network import survey as module
from collc.network.interfaces import Interface, net_setting
from collc.network.survey import Device, RdmaPort, survey
from collc.network.ucx import Ucx

LO = Interface("lo", "127.0.0.1", True, True)
ETH = Interface("eth0", "127.0.0.2", True, False)
IB = Interface("ib0", "127.0.0.3", True, False)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An Ethernet card of 1 Gbit/s, InfiniBand of 200, a RoCE card whose port is down, the loopback."""
    write(
        tmp_path / "sys",
        {
            "class/net/eth0/operstate": "up\n",
            "class/net/eth0/speed": "1000\n",
            "class/net/ib0/operstate": "up\n",
            "class/net/ib0/speed": "200000\n",
            "class/net/ib0/device/infiniband/mlx5_0/node_type": "1: CA\n",
            "class/net/lo/operstate": "unknown\n",
            "class/net/eth9/operstate": "down\n",
            "class/net/eth9/speed": "-1\n",
            "class/net/bonding_masters": "\n",
            "class/infiniband/mlx5_0/device/net/ib0/dev_port": "0\n",
            "class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
            "class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
            "class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
            "class/infiniband/mlx5_1/ports/1/link_layer": "Ethernet\n",
            "class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
            "class/infiniband/mlx5_1/ports/1/rate": "100 Gb/sec (4X EDR)\n",
        },
    )
    (tmp_path / "sys/class/net/eth0/device").mkdir()
    (tmp_path / "sys/class/net/eth0/device/driver").symlink_to("../../../bus/pci/drivers/igb")
    write(
        tmp_path / "proc",
        {"sys/net/ipv4/ip_local_port_range": "30000\t31000\n", "sys/kernel/random/boot_id": "1234-abcd\n"},
    )
    monkeypatch.setattr(module, "interfaces", lambda: [LO, ETH, IB])
    return tmp_path / "sys", tmp_path / "proc"


def test_devices_engines_and_why(machine: tuple[Path, Path]) -> None:
    found = survey({}, *machine)
    assert found.devices == (
        Device("eth0", ("127.0.0.2",), "up", 1.0, "igb", ""),
        Device("eth9", (), "down", None, "", ""),
        Device("ib0", ("127.0.0.3",), "up", 200.0, "", "mlx5_0"),
        Device("lo", ("127.0.0.1",), "up", None, "", ""),
    )
    assert found.rdma == (
        RdmaPort("mlx5_0", 1, "InfiniBand", "4: ACTIVE", "200 Gb/sec (4X HDR)"),
        RdmaPort("mlx5_1", 1, "Ethernet", "1: DOWN", "100 Gb/sec (4X EDR)"),
    )
    assert [engine.name for engine in found.engines] == ["tcp", "ucx"]
    assert found.engines[0].usable
    assert (found.interface, found.address, found.problem) == ("eth0", "127.0.0.2", "")
    assert found.why.startswith("the first that is up")
    assert (found.ports, found.machine) == ((30000, 31000), "boot id 1234-abcd")
    assert [one.partition(" (")[0] for one in found.notes] == ["ib0 is faster"]


@pytest.mark.parametrize(
    ("there", "detail"),
    [
        (None, "no UCX was found; COLLC_UCX names one: {} can be used through its network interface alone"),
        (
            Ucx("1.12.1", "/a/libucp.so.0", True, False),
            "UCX 1.12.1 (/a/libucp.so.0) cannot be used, 1.13 to 1.22 can: {}",
        ),
        (
            Ucx("1.22.0", "/a/libucp.so.0", False, True),
            "this machine has {}, but UCX 1.22.0 (/a/libucp.so.0) has no verbs",
        ),
        (Ucx("1.13.1", "/a/libucp.so.0", True, True), "UCX 1.13.1 (/a/libucp.so.0), RDMA on {}: COLLC_NET=ucx uses it"),
    ],
)
def test_the_engine_of_ucx(
    machine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, there: Ucx | None, detail: str
) -> None:
    """One line reports whether a present NIC is usable, and the UCX that uses it. Ports that are down do not count."""
    monkeypatch.setattr(module, "find_ucx", lambda _environment: there)
    engine = survey({}, *machine).engines[1]
    assert engine.detail.startswith(detail.format("mlx5_0 (InfiniBand, 200 Gb/sec (4X HDR))"))
    assert "mlx5_1" not in engine.detail
    assert engine.usable == detail.endswith("uses it")


def test_a_machine_without_rdma_needs_no_ucx(machine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_ucx", lambda _environment: Ucx("1.13.1", "/a/libucp.so.0", True, True))
    engine = survey({}, machine[0] / "nowhere", machine[1]).engines[1]
    assert not engine.usable
    assert engine.detail == "UCX 1.13.1 (/a/libucp.so.0) is there, but no RDMA device whose port is active"


@pytest.mark.parametrize("named", ["ucx:mlx5_0,ib", "ucx:mlx5_1:1,mlx5_0,ib0", "mlx5_0:1"])
def test_rdma_devices_beside_an_interface(machine: tuple[Path, Path], named: str) -> None:
    found = survey({"COLLC_NET": named}, *machine)
    setting = net_setting({"COLLC_NET": named}, machine[0] / "class/infiniband")
    if named.startswith("ucx"):
        assert (found.interface, found.problem, setting.engine) == ("ib0", "", "ucx")
        assert setting.devices == tuple(named.removeprefix("ucx:").split(",")[:-1])
    else:
        assert found.problem.startswith("COLLC_NET: no network interface called mlx5_0:1 is up")


def test_an_interface_that_is_named(machine: tuple[Path, Path]) -> None:
    found = survey({"COLLC_NET": "tcp:ib", "COLLC_HOSTID": "left"}, *machine)
    assert (found.interface, found.why, found.notes) == ("ib0", "COLLC_NET names it", ())
    assert found.machine == "COLLC_HOSTID=left"


@pytest.mark.parametrize(
    ("named", "notes"),
    [
        ({"NCCL_IB_HCA": "mlx5_0"}, ["names ib0"]),
        ({"NCCL_IB_HCA": "mlx5_1"}, ["names no interface that is up: the usual ones count"]),
        ({"NCCL_IB_HCA": "^mlx5_1"}, ["leaves mlx5_0:1"]),
        ({"NCCL_IB_HCA": "mlx5_0", "COLLC_NET": "eth0"}, ["is not followed: COLLC_NET counts"]),
        ({"NCCL_IB_HCA": "mlx5_0", "COLLC_SOCKET_IFNAME": "eth0"}, ["is not followed: COLLC_SOCKET_IFNAME counts"]),
        ({"NCCL_IB_HCA": "=mlx5_0:1", "COLLC_NET": "ucx:ib0"}, ["leaves mlx5_0:1"]),
        ({"NCCL_IB_HCA": "^mlx5_0", "COLLC_NET": "ucx:ib0"}, ["leaves mlx5_1:1"]),
        ({"NCCL_IB_HCA": "mlx4", "COLLC_NET": "ucx:ib0"}, ["leaves no RDMA port"]),
        ({"NCCL_IB_HCA": "mlx5_0", "COLLC_NET": "ucx:mlx5_1,ib0"}, ["is not followed: COLLC_NET names RDMA devices"]),
        ({"NCCL_SOCKET_IFNAME": "eth", "COLLC_NET": "ib0"}, ["is not followed: COLLC_NET counts"]),
        ({"NCCL_SOCKET_IFNAME": "^eth"}, ["leaves out interfaces"]),
        ({"COLLC_SOCKET_IFNAME": "ib", "NCCL_SOCKET_IFNAME": "eth"}, ["is not followed: COLLC_SOCKET_IFNAME counts"]),
        ({"NCCL_SOCKET_IFNAME": "ib"}, []),
    ],
)
def test_lists_of_devices(machine: tuple[Path, Path], named: dict[str, str], notes: list[str]) -> None:
    """NCCL's own variables count too, and the report says what they do."""
    told = [note.partition(" ")[2] for note in survey(named, *machine).notes if "=" in note.partition(" ")[0]]
    assert told == notes


def test_rails_and_their_speeds(machine: tuple[Path, Path]) -> None:
    found = survey({"COLLC_NET": "eth0,ib0"}, *machine)
    assert (found.interface, found.why, found.problem) == ("eth0", "COLLC_NET names it", "")
    assert [note.partition(":")[0] for note in found.notes] == ["chunks would go over 2 rails, by their measured rates"]
    assert "eth0 (" in found.notes[0]
    assert "ib0 (" in found.notes[0]


@pytest.mark.parametrize("name", ["eth9", "verbs:ib0", "eth0,ib9", "ucx:eth0,ib0"])
def test_what_is_wrong_is_told_beside_the_rest(machine: tuple[Path, Path], name: str) -> None:
    found = survey({"COLLC_NET": name}, *machine)
    assert found.problem.startswith("COLLC_NET: ")
    assert found.interface == ""
    assert len(found.devices) == 4


def test_an_address_that_nobody_may_listen_on(machine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "interfaces", lambda: [LO, Interface("eth0", "203.0.113.7", True, False)])
    assert survey({}, *machine).problem.startswith("cannot listen on 203.0.113.7 (eth0): ")


def test_the_loopback_alone_is_said(machine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "interfaces", lambda: [LO])
    found = survey({}, *machine)
    assert found.why == "only the loopback is up: other machines are out of reach"
    assert "the loopback joins nothing but processes of this machine" in found.notes


def test_a_system_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "interfaces", list)
    found = survey({}, tmp_path, tmp_path)
    assert (found.devices, found.rdma, found.ports) == ((), (), None)
    assert found.problem == "no network interface is up: other machines are out of reach"
    assert not found.engines[1].usable


def test_the_command_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLC_NET", "lo")
    done = collc("doctor", "--net")
    assert done.code == 0
    assert "machines would meet on lo (127.0.0.1): COLLC_NET names it" in done.out
    told = json.loads(collc("doctor", "--net", "--json").out)["network"]
    assert told["interface"] == "lo"
    assert "lo" in [device["name"] for device in told["devices"]]


def test_the_command_where_no_machine_can_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLC_NET", "nowhere")
    done = collc("doctor", "--net")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "COLLC_NET: no network interface called nowhere is up" in done.err
    assert "engine tcp: plain TCP" in done.out
