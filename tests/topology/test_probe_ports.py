"""The live probe reads the network side of a NIC from sysfs."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from support.nvml import Sysfs

from collc.topology.model import Port
from collc.topology.probe.pcitree import read_tree

PCI = "0000:01:00.0"
WAY = ("pci0000:00", "0000:00:01.0", PCI)


def adapter(root: Path, name: str, *ports: tuple[str, str], guid: str = "", net: str = "", last: str = "0") -> None:
    sysfs = Sysfs(root) if not (root / "bus").exists() else Sysfs.__new__(Sysfs)
    sysfs.root = root
    way = (*WAY[:-1], f"0000:01:00.{last}")
    sysfs.nic(name, *way)
    folder = root / "class" / "infiniband" / name
    for number, (rate, state) in enumerate(ports, 1):
        port = folder / "ports" / str(number)
        port.mkdir(parents=True)
        (port / "rate").write_text(f"{rate}\n")
        (port / "state").write_text(f"{state}\n")
    if guid:
        (folder / "node_guid").write_text(f"{guid}\n")
    if net:
        (folder / "device" / "net" / net).mkdir(parents=True)


@pytest.mark.parametrize(
    ("ports", "port"),
    [
        ([("400 Gb/sec (4X NDR)", "4: ACTIVE")], Port(Fraction(50), pci=PCI)),
        ([("200 Gb/sec (4X HDR)", "4: ACTIVE"), ("200 Gb/sec (4X HDR)", "4: ACTIVE")], Port(Fraction(50), pci=PCI)),
        ([("200 Gb/sec (4X HDR)", "4: ACTIVE"), ("10 Gb/sec (4X SDR)", "1: DOWN")], Port(Fraction(25), pci=PCI)),
        ([("2.5 Gb/sec (1X SDR)", "1: DOWN")], Port(Fraction(5, 16), up=False, pci=PCI)),
        ([("nonsense", "4: ACTIVE")], Port(None, up=False, pci=PCI)),
        ([], Port(None, pci=PCI)),
    ],
)
def test_speed_of_an_infiniband_card(ports: list[tuple[str, str]], port: Port, tmp_path: Path) -> None:
    adapter(tmp_path, "mlx5_0", *ports)
    assert read_tree(tmp_path, {})[1] == {"mlx5_0": port}


def test_guid_and_interface(tmp_path: Path) -> None:
    adapter(tmp_path, "mlx5_0", ("400 Gb/sec (4X NDR)", "4: ACTIVE"), guid="b859:9f03:00AA:0000", net="ibp1s0")
    assert read_tree(tmp_path, {})[1] == {"mlx5_0": Port(Fraction(50), "b8599f0300aa0000", "ibp1s0", pci=PCI)}


def test_a_card_whose_second_function_alone_is_up(tmp_path: Path) -> None:
    adapter(tmp_path, "mlx5_0", ("10 Gb/sec (4X SDR)", "1: DOWN"), guid="0000:0000:0000:0001")
    adapter(tmp_path, "mlx5_1", ("400 Gb/sec (4X NDR)", "4: ACTIVE"), last="1")
    assert read_tree(tmp_path, {})[1] == {"mlx5_0": Port(Fraction(50), "0000000000000001", pci="0000:01:00.1")}


def test_ethernet(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.nic("eth0", *WAY, kind="net", mbps=100_000)
    assert read_tree(tmp_path, {})[1] == {"eth0": Port(Fraction(25, 2), interface="eth0", pci=PCI)}
    (tmp_path / "class" / "net" / "eth0" / "operstate").write_text("down\n")
    assert not read_tree(tmp_path, {})[1]["eth0"].up
