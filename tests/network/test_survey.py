"""`collc doctor --net`: devices of a made-up sysfs, and of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli import collc

from collc.network import survey as module
from collc.network.interfaces import Interface
from collc.network.survey import Device, Engine, RdmaPort, survey

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
    assert [(engine.name, engine.usable) for engine in found.engines] == [("tcp", True), ("ucx", False)]
    assert "mlx5_0 (InfiniBand, 200 Gb/sec (4X HDR))" in found.engines[1].detail
    assert "mlx5_1" not in found.engines[1].detail
    assert (found.interface, found.address, found.problem) == ("eth0", "127.0.0.2", "")
    assert found.why.startswith("the first that is up")
    assert (found.ports, found.machine) == ((30000, 31000), "boot id 1234-abcd")
    assert [one.partition(" (")[0] for one in found.notes] == ["ib0 is faster"]


def test_an_interface_that_is_named(machine: tuple[Path, Path]) -> None:
    found = survey({"COLLC_NET": "tcp:ib", "COLLC_HOSTID": "left"}, *machine)
    assert (found.interface, found.why, found.notes) == ("ib0", "COLLC_NET names it", ())
    assert found.machine == "COLLC_HOSTID=left"


@pytest.mark.parametrize("name", ["eth9", "ucx:ib0", "eth0,ib0"])
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
    assert found.engines[1] == Engine("ucx", False, "RDMA is not supported yet")


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
