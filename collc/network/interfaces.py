"""Lists the network interfaces of this machine, and chooses the interfaces to reach other machines as the runtime does.

`templates/runtime/bootstrap/sockets.cpp` has the same rules in C++ (choose_public_address, find_public_interfaces).
Tests compare the two.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path

from collc.errors import RunError, UsageError
from collc.network.hca import HcaFilter, rdma_interfaces

MOST_RAILS = 16  # as in wire/rails.h
VARIABLES = ("COLLC_NET", "COLLC_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
ENGINES = ("tcp", "ucx")
_RDMA = Path("/sys/class/infiniband")
_NET = Path("/sys/class/net")
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40
# Prefixes of bridges of containers and virtual machines, which reach no other machine.
_INNER = ("docker", "veth", "virbr")


@dataclass(frozen=True)
class Interface:
    """An interface with one of its addresses.

    Attributes:
        address: the address as text, with the scope of a link-local IPv6 address.
        up: the interface is enabled.
        prefix: the number of bits of the network's prefix.
        running: its link is up.
    """

    name: str
    address: str
    up: bool
    loopback: bool
    prefix: int = 0
    running: bool = True

    @property
    def is_v6(self) -> bool:
        return ":" in self.address

    @property
    def leads_out(self) -> bool:
        """True if it may reach other machines, judged by its kind and name."""
        return not self.loopback and not self.name.startswith(_INNER)

    @property
    def network(self) -> str:
        """The network that it reaches without a router."""
        return str(ip_network(f"{self.address.partition('%')[0]}/{self.prefix}", strict=False))


@dataclass(frozen=True)
class Choice:
    """The interface whose address other machines get (None if none is up), and the reason for the choice."""

    interface: Interface | None
    why: str


class _Sockaddr(ctypes.Structure):
    _fields_ = (("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26))


class _Ifaddrs(ctypes.Structure):
    pass


_Ifaddrs._fields_ = (
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_Sockaddr)),
    ("netmask", ctypes.POINTER(_Sockaddr)),
    ("broadcast", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
)


def interfaces() -> list[Interface]:
    """Returns every IPv4 and IPv6 address, in the kernel's order, as getifaddrs(3) lists them.

    Raises:
        RunError: getifaddrs failed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        raise RunError(f"cannot list the network interfaces: {os.strerror(ctypes.get_errno())}")
    found = []
    try:
        at = head
        while at:
            one = at.contents
            text = _address(one.address.contents) if one.address else None
            if text is not None:
                name = one.name.decode(errors="replace")
                mask = _address(one.netmask.contents) if one.netmask else None
                prefix = int(ip_address(mask.partition("%")[0])).bit_count() if mask is not None else 0
                up, loopback, running = (bool(one.flags & flag) for flag in (_UP, _LOOPBACK, _RUNNING))
                found.append(Interface(name, text, up, loopback, prefix, running))
            at = one.next
    finally:
        libc.freeifaddrs(head)
    return found


def _address(found: _Sockaddr) -> str | None:
    data = bytes(found.data)
    if found.family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, data[2:6])
    if found.family != socket.AF_INET6:
        return None
    text = socket.inet_ntop(socket.AF_INET6, data[6:22])
    (scope,) = struct.unpack("=I", data[22:26])
    return f"{text}%{scope}" if scope else text


def choose(environment: Mapping[str, str], all_interfaces: Sequence[Interface], rdma: Path = _RDMA) -> Choice:
    """Returns the interface that this machine uses to connect to others.

    Args:
        environment: COLLC_NET names the interface, else COLLC_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME.
        all_interfaces: the result of `interfaces`.
        rdma: the kernel's folder of RDMA devices.

    Raises:
        UsageError: COLLC_NET names an engine that does not exist, or too many interfaces.
        RunError: the named interface is not up.
    """
    variable, name_filter = _interface_filter(environment, rdma)
    ups = [interface for interface in all_interfaces if interface.up]
    if name_filter is not None:
        taken = [interface for interface in ups if name_filter.takes(interface.name)]
        if not taken:
            names = ", ".join(dict.fromkeys(interface.name for interface in ups)) or "none"
            what = f"{'called' if name_filter.chooses else 'that passes'} {name_filter.text[:32]}"
            raise RunError(f"no network interface {what} is up", where=variable, hint=f"up are: {names}")
        if name_filter.chooses:
            return Choice(max(taken, key=lambda one: not one.is_v6), f"{variable} names it")
        ups = taken
    if not ups:
        return Choice(None, "no interface is up")
    best = max(ups, key=_score)
    if best.loopback:
        return Choice(best, "only the loopback is up: other machines are out of reach")
    if not best.leads_out:
        return Choice(best, "nothing but the loopback and bridges of containers is up")
    return Choice(best, "the first that is up and neither the loopback nor a bridge of containers")


def choose_rails(
    environment: Mapping[str, str], all_interfaces: Sequence[Interface], rdma: Path = _RDMA, net: Path = _NET
) -> list[Interface]:
    """Returns the interfaces that may be rails, if the interfaces of other machines match.

    With fewer than two there are no rails.

    Args:
        environment, all_interfaces, rdma: as for `choose`.
        net: the kernel's folder of network interfaces.

    Raises:
        UsageError: as for `choose`, or COLLC_NET names one interface twice.
        RunError: a named interface is not up.
    """
    setting = net_setting(environment, rdma)
    found: list[Interface] = []
    for rail in setting.rails:
        one = choose({"COLLC_NET": f"tcp:{rail}"}, all_interfaces, rdma).interface
        if one is not None and any(one.name == other.name for other in found):
            raise UsageError(f"names the interface {one.name} twice", where="COLLC_NET", hint="name each once")
        found += [one] if one is not None else []
    if found or setting.engine != "tcp":
        return found
    named, barred = hca_interfaces(environment, all_interfaces, rdma)
    first = choose(environment, all_interfaces, rdma).interface
    if named or first is None:
        return named[:MOST_RAILS]
    name_filter = _interface_filter(environment, rdma)[1]
    asked = name_filter is not None and name_filter.chooses
    further = [
        one for one in _further_rails(first, name_filter, all_interfaces, net) if asked or one.name not in barred
    ]
    return [first, *further][:MOST_RAILS]


def hca_interfaces(
    environment: Mapping[str, str], all_interfaces: Sequence[Interface], rdma: Path = _RDMA
) -> tuple[list[Interface], list[str]]:
    """Returns the running interfaces of the RDMA ports that NCCL_IB_HCA names, and the names of those that it excludes.

    NCCL_IB_HCA has no effect if COLLC_NET names interfaces or COLLC_SOCKET_IFNAME is set.

    Raises:
        UsageError: as for `net_setting`.
    """
    listed = environment.get("NCCL_IB_HCA", "")
    if not listed or net_setting(environment, rdma).rails or environment.get("COLLC_SOCKET_IFNAME"):
        return [], []
    taken = HcaFilter(listed)
    ports = rdma_interfaces(rdma)
    barred = [name for port, name in ports if not taken.takes(port)]
    passing = dict.fromkeys(name for port, name in ports if taken.takes(port)) if taken.chooses else {}
    running = _running(all_interfaces)
    return [running[name] for name in passing if name in running], barred


def _running(all_interfaces: Sequence[Interface]) -> dict[str, Interface]:
    """Returns one address for each running interface, IPv4 before IPv6. Link-local addresses do not count."""
    found: dict[str, Interface] = {}
    for one in all_interfaces:
        known = found.get(one.name)
        local = one.is_v6 and ip_address(one.address.partition("%")[0]).is_link_local
        if one.up and one.running and not local and (known is None or (known.is_v6 and not one.is_v6)):
            found[one.name] = one
    return found


def _further_rails(
    first: Interface, name_filter: Filter | None, all_interfaces: Sequence[Interface], net: Path
) -> list[Interface]:
    """Returns further rails: all other interfaces that `name_filter` names, else equal NICs in other networks.

    NICs are equal if they have the driver and the speed of the first one.
    """
    passing = [one for one in all_interfaces if name_filter is None or name_filter.takes(one.name)]
    others = [one for one in _running(passing).values() if one.name != first.name]
    if name_filter is not None and name_filter.chooses:
        return others
    found: list[Interface] = []
    kind = _kind(first.name, net)
    for one in others:
        alike = kind[0] and _kind(one.name, net) == kind
        if alike and one.network not in [before.network for before in (first, *found)]:
            found.append(one)
    return found


def _kind(name: str, net: Path) -> tuple[str, int]:
    """Returns the driver of an interface (empty for virtual ones) and its speed in Mbit/s (0 if unknown)."""
    driver, speed = "", 0
    with suppress(OSError):
        driver = (net / name / "device/driver").readlink().name
    with suppress(OSError, ValueError):
        speed = max(0, int((net / name / "speed").read_text(encoding="ascii")))
    return driver, speed


def _score(interface: Interface) -> int:
    """Returns the rank of an interface in the choice. `max` returns the first of equals, as the runtime does."""
    kind = 0 if interface.loopback else 4 if interface.leads_out else 1
    return 2 * kind + (not interface.is_v6)


@dataclass(frozen=True)
class Filter:
    """A list of interfaces in the format of NCCL_SOCKET_IFNAME (NCCL's user guide): prefixes, separated by commas.

    ``=`` before the list: entries are whole names. ``^`` before it: the list names the interfaces not to use.
    """

    text: str

    @property
    def _names(self) -> list[str]:
        return [name for name in self.text.removeprefix("^").removeprefix("=").split(",") if name]

    @property
    def chooses(self) -> bool:
        """True if it names the interfaces to use, and not only interfaces not to use."""
        return not self.text.startswith("^") and bool(self._names)

    def takes(self, interface: str) -> bool:
        """Returns whether an interface of this name may be used."""
        whole = self.text.removeprefix("^").startswith("=")
        found = any(interface == name if whole else interface.startswith(name) for name in self._names)
        return not self._names or found != self.text.startswith("^")


@dataclass(frozen=True)
class NetSetting:
    """The value of COLLC_NET.

    Attributes:
        engine: "tcp" or "ucx".
        rails: the network interfaces; empty if it names none.
        devices: the RDMA devices, for the engine `ucx`.
    """

    engine: str = "tcp"
    rails: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def interface(self) -> str:
        """The network interface that connects machines; empty if it names none."""
        return self.rails[0] if self.rails else ""


def net_setting(environment: Mapping[str, str], rdma: Path = _RDMA) -> NetSetting:
    """Returns the value of COLLC_NET=[engine:]interface,... Names of RDMA devices are recognized.

    Raises:
        UsageError: it names an engine that does not exist, or more network interfaces than the engine supports.
    """
    words = environment.get("COLLC_NET", "").replace(" ", "").split(",")
    engine = "tcp"
    before, colon, after = words[0].partition(":")
    if colon and not _is_rdma(words[0], rdma):
        engine, words[0] = before, after
    elif words[0] in ENGINES:
        engine, words[0] = words[0], ""
    if engine not in ENGINES:
        raise UsageError(f"no engine {engine[:40]!r}", where="COLLC_NET", hint="the engines are tcp and ucx")
    devices = tuple(word for word in words if word and engine == "ucx" and _is_rdma(word, rdma))
    names = [word for word in words if word and word not in devices]
    # `=` and `^` apply to the whole list. A list with `^` is the filter of one interface.
    if names and names[0].startswith("^"):
        names = [",".join(names)]
    elif names and names[0].startswith("="):
        names[1:] = [f"={name}" for name in names[1:]]
    most = MOST_RAILS if engine == "tcp" else 1
    if len(names) > most:
        hint = "name one" if most == 1 else f"name {most} at most"
        raise UsageError(f"names several interfaces: {','.join(names)[:60]!r}", where="COLLC_NET", hint=hint)
    return NetSetting(engine, tuple(names), devices)


def _is_rdma(name: str, rdma: Path) -> bool:
    """Returns whether a name is an RDMA device of this machine, or one of its ports, such as "mlx5_0:1"."""
    device, _, port = name.partition(":")
    if not device or "/" in name or device.startswith("."):
        return False
    with suppress(OSError):
        return (rdma / device / "ports" / port).exists()
    return False


def _interface_filter(environment: Mapping[str, str], rdma: Path) -> tuple[str, Filter | None]:
    """Returns the variable that applies, and its list of interfaces; ("", None) if none is set."""
    interface = net_setting(environment, rdma).interface
    if interface:
        return "COLLC_NET", Filter(interface)
    for variable in VARIABLES[1:]:
        text = environment.get(variable, "")
        if text:
            return variable, Filter(text)
    return "", None


def family_of(address: str) -> socket.AddressFamily:
    """Returns the socket family of an address: IPv4 or IPv6."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def socket_address(address: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    """Returns the argument of `bind` and `connect` for an address of `interfaces`."""
    text, _, scope = address.partition("%")
    return (text, port, 0, int(scope or 0)) if ":" in text else (text, port)


def outward_address() -> str:
    """Returns the address of this machine for other machines.

    Raises:
        UsageError: COLLC_NET is not valid.
        RunError: no interface is up, or the named one is not.
    """
    chosen = choose(os.environ, interfaces())
    if chosen.interface is None:
        raise RunError("no network interface is up: other machines are out of reach")
    return chosen.interface.address
