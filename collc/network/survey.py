"""Collects the report of `collc doctor --net`: devices and speeds, engines, and the interface to other machines.

The data comes from sysfs and procfs. Nothing is sent. One socket is opened for a moment to check that this process may
listen on the interface.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from collc.errors import CollcError
from collc.network.hca import HcaFilter
from collc.network.interfaces import (
    VARIABLES,
    Filter,
    Interface,
    choose,
    choose_rails,
    family_of,
    hca_interfaces,
    interfaces,
    net_setting,
    socket_address,
)
from collc.network.ucx import find_ucx

_MOST_SPEED = 10_000_000  # Mbit/s; a driver that does not know the speed reports -1 or 2^32 - 1


@dataclass(frozen=True)
class Device:
    """A network interface.

    Attributes:
        state: "up" or "down", from the kernel's operational state.
        gbits: the speed in Gbit/s; None if the driver reports none, as for virtual interfaces.
        driver: the kernel's driver; empty for virtual interfaces.
        rdma: the RDMA device of the same NIC; empty if it has none.
    """

    name: str
    addresses: tuple[str, ...]
    state: str
    gbits: float | None
    driver: str
    rdma: str


@dataclass(frozen=True)
class RdmaPort:
    """A port of an InfiniBand or RoCE NIC, with the kernel's texts. `layer` is "InfiniBand" or "Ethernet"."""

    device: str
    port: int
    layer: str
    state: str
    rate: str


@dataclass(frozen=True)
class Engine:
    """An engine, which carries chunks between machines."""

    name: str
    usable: bool
    detail: str


@dataclass(frozen=True)
class Network:
    """The network of this machine, as a communicator would use it.

    Attributes:
        machine: the identifier of the machine, as text.
        interface: the chosen interface; empty if there is none.
        why: the reason for the choice, or the error.
        problem: the reason why this machine cannot connect to others; empty if none is known.
        ports: the first and the last port that the kernel may choose.
        notes: further sentences for the reader.
    """

    host: str
    machine: str
    engines: tuple[Engine, ...]
    devices: tuple[Device, ...]
    rdma: tuple[RdmaPort, ...]
    interface: str
    address: str
    why: str
    problem: str
    ports: tuple[int, int] | None
    notes: tuple[str, ...] = field(default=())


def survey(environment: Mapping[str, str], sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> Network:
    """Returns the network of this machine. Never raises; an error becomes `problem`.

    Args:
        environment: has COLLC_NET and the variables that apply without it.
        sys, proc: the folders of these file systems.
    """
    there: list[Interface] = []
    interface, why, problem = None, "", ""
    rails: list[Interface] = []
    try:
        there = interfaces()
        chosen = choose(environment, there, sys / "class/infiniband")
        interface, why = chosen.interface, chosen.why
        rails = choose_rails(environment, there, sys / "class/infiniband", sys / "class/net")
        problem = "" if interface is not None else "no network interface is up: other machines are out of reach"
    except CollcError as error:
        interface, why, problem = None, str(error), str(error)
    if interface is not None:
        problem = _cannot_listen(interface)
    devices, rdma = tuple(_devices(sys / "class/net", there)), tuple(_rdma(sys / "class/infiniband"))
    named = environment.get("COLLC_HOSTID")
    return Network(
        host=socket.gethostname(),
        machine=f"COLLC_HOSTID={named}"
        if named
        else f"boot id {_text(proc / 'sys/kernel/random/boot_id') or 'unknown'}",
        engines=tuple(_engines(environment, rdma)),
        devices=devices,
        rdma=rdma,
        interface=interface.name if interface else "",
        address=interface.address if interface else "",
        why=why,
        problem=problem,
        ports=_ports(proc),
        notes=(
            *_shares(rails, devices),
            *(_notes(interface, devices) if len(rails) < 2 else ()),
            *_lists(environment, there, rdma, sys / "class/infiniband"),
        ),
    )


def _cannot_listen(interface: Interface) -> str:
    try:
        with socket.socket(family_of(interface.address), socket.SOCK_STREAM) as listening:
            listening.bind(socket_address(interface.address, 0))
            listening.listen(1)
    except OSError as error:
        return f"cannot listen on {interface.address} ({interface.name}): {error.strerror}"
    return ""


def _engines(environment: Mapping[str, str], rdma: Iterable[RdmaPort]) -> Iterable[Engine]:
    yield Engine("tcp", True, "plain TCP, needs nothing")
    active = [port for port in rdma if "ACTIVE" in port.state]
    cards = ", ".join(sorted({f"{port.device} ({port.layer}, {port.rate})" for port in active}))
    yield _ucx(environment, cards)


def _ucx(environment: Mapping[str, str], cards: str) -> Engine:
    """Returns the state of the engine `ucx`. `cards` lists the NICs with active ports, as text."""
    found = find_ucx(environment)
    beside = f": {cards} can be used through its network interface alone" if cards else ""
    if found is None:
        named = environment.get("COLLC_UCX")
        what = f"COLLC_UCX={named[:80]} is no UCX" if named else "no UCX was found; COLLC_UCX names one"
        return Engine("ucx", False, f"{what}{beside}")
    if not found.usable:
        return Engine("ucx", False, f"{found} cannot be used, 1.13 to 1.22 can{beside}")
    if not cards:
        return Engine("ucx", False, f"{found} is there, but no RDMA device whose port is active")
    if not found.verbs:
        return Engine("ucx", False, f"this machine has {cards}, but {found} has no verbs: COLLC_UCX names one that has")
    return Engine("ucx", True, f"{found}, RDMA on {cards}: COLLC_NET=ucx uses it")


def _devices(folder: Path, there: Iterable[Interface]) -> Iterable[Device]:
    addresses: dict[str, list[str]] = {}
    for one in there:
        addresses.setdefault(one.name, []).append(one.address)
    names = []
    with suppress(OSError):
        names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    for name in names:
        yield Device(
            name=name,
            addresses=tuple(addresses.get(name, ())),
            # The loopback and some virtual interfaces report "unknown", although they work.
            state="down" if _text(folder / name / "operstate") in ("down", "lowerlayerdown", "notpresent") else "up",
            gbits=_gbits(_text(folder / name / "speed")),
            driver=_driver(folder / name / "device/driver"),
            rdma=next(iter(_names(folder / name / "device/infiniband")), ""),
        )


def _rdma(folder: Path) -> Iterable[RdmaPort]:
    for device in _names(folder):
        for port in _names(folder / device / "ports"):
            at = folder / device / "ports" / port
            if port.isdigit():
                layer, state, rate = (_text(at / name) or "unknown" for name in ("link_layer", "state", "rate"))
                yield RdmaPort(device, int(port), layer, state, rate)


def _lists(
    environment: Mapping[str, str], there: Sequence[Interface], rdma: Iterable[RdmaPort], folder: Path
) -> Iterable[str]:
    """Yields a sentence for each variable that lists devices, including NCCL's, about its effect on this machine."""
    try:
        setting = net_setting(environment, folder)
    except CollcError:
        return  # this error is already the problem of the report
    named = [name for name in VARIABLES[1:] if environment.get(name)]
    for name in named:
        text = f"{name}={environment[name][:80]}"
        if setting.interface or name != named[0]:
            yield f"{text} is not followed: {'COLLC_NET' if setting.interface else named[0]} counts"
        elif not Filter(environment[name]).chooses:
            yield f"{text} leaves out interfaces"
    hca = environment.get("NCCL_IB_HCA")
    if not hca:
        return
    text = f"NCCL_IB_HCA={hca[:80]}"
    ports = [f"{port.device}:{port.port}" for port in rdma if HcaFilter(hca).takes(f"{port.device}:{port.port}")]
    if setting.devices:
        yield f"{text} is not followed: COLLC_NET names RDMA devices"
    elif setting.engine == "ucx":
        yield f"{text} leaves {', '.join(ports) or 'no RDMA port'}"
    elif setting.rails or environment.get("COLLC_SOCKET_IFNAME"):
        yield f"{text} is not followed: {'COLLC_NET' if setting.rails else 'COLLC_SOCKET_IFNAME'} counts"
    elif not HcaFilter(hca).chooses:
        yield f"{text} leaves {', '.join(ports) or 'no RDMA port'}"
    else:
        over = ", ".join(one.name for one in hca_interfaces(environment, there, folder)[0])
        yield f"{text} names {over}" if over else f"{text} names no interface that is up: the usual ones count"


def _shares(rails: Iterable[Interface], devices: Iterable[Device]) -> Iterable[str]:
    """Yields a sentence about the rails, with the speeds that their interfaces report."""
    speeds = {device.name: device.gbits for device in devices}
    found = [
        f"{r.name} ({r.address}, {f'{speeds[r.name]:g} Gbit/s' if speeds.get(r.name) else 'speed unknown'})"
        for r in rails
    ]
    if len(found) > 1:
        yield f"chunks would go over {len(found)} rails, by their measured rates: {', '.join(found)}"


def _notes(interface: Interface | None, devices: Iterable[Device]) -> Iterable[str]:
    if interface is None:
        return
    speeds = {
        device.name: device.gbits for device in devices if device.gbits and device.addresses and device.state == "up"
    }
    own, fastest = speeds.get(interface.name), max(speeds, key=lambda name: speeds[name] or 0, default="")
    if fastest and own is not None and (speeds[fastest] or 0) > own:
        faster = f"{fastest} is faster ({speeds[fastest]:g} Gbit/s, {interface.name} has {own:g})"
        yield f"{faster}: COLLC_NET={fastest} uses it, if it leads to the other machines"
    if interface.loopback:
        yield "the loopback joins nothing but processes of this machine"
    if interface.is_v6 and "%" in interface.address:
        yield f"{interface.address} is a link-local address: it reaches machines of the same network segment alone"


def _ports(proc: Path) -> tuple[int, int] | None:
    words = _text(proc / "sys/net/ipv4/ip_local_port_range").split()
    return (int(words[0]), int(words[1])) if len(words) == 2 and all(map(str.isdigit, words)) else None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()[:200]
    except OSError:
        return ""


def _gbits(text: str) -> float | None:
    return int(text) / 1000 if text.isdigit() and 0 < int(text) < _MOST_SPEED else None


def _driver(link: Path) -> str:
    try:
        return os.path.basename(os.readlink(link))
    except OSError:
        return ""
