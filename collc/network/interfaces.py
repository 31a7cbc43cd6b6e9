"""The network interfaces of this machine, and the one over which other machines are reached: the runtime's own rule.

`templates/runtime/bootstrap/sockets.cpp` is the same rule in C++ (choose_public_address, find_public_interfaces); tests
compare the two.
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
# Bridges of containers and virtual machines lead nowhere else.
_INNER = ("docker", "veth", "virbr")


@dataclass(frozen=True)
class Interface:
    """An interface with one of its addresses.

    Args:
        address: as text, with the scope of a link-local IPv6 address.
        prefix: bits of the address that its network has.
        running: its link is up too.
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
        """Whether other machines may be behind it, by its kind and name."""
        return not self.loopback and not self.name.startswith(_INNER)

    @property
    def network(self) -> str:
        """The addresses that it reaches by itself."""
        return str(ip_network(f"{self.address.partition('%')[0]}/{self.prefix}", strict=False))


@dataclass(frozen=True)
class Choice:
    """The address that other machines are told, and why it is that one; no interface where none is up."""

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
    """Every address of IPv4 and IPv6 in the kernel's order, as getifaddrs(3) lists them.

    Raises:
        RunError: the kernel does not tell.
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


def choose(environment: Mapping[str, str], there: Sequence[Interface], rdma: Path = _RDMA) -> Choice:
    """Where this machine meets others.

    Args:
        environment: COLLC_NET names the interface, else COLLC_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME.
        there: what `interfaces` returns.
        rdma: the kernel's folder of RDMA devices.

    Raises:
        UsageError: COLLC_NET names an engine that does not exist, or more interfaces than it takes.
        RunError: the interface that is named is not up.
    """
    variable, wanted = _wanted(environment, rdma)
    ups = [interface for interface in there if interface.up]
    if wanted is not None:
        taken = [interface for interface in ups if wanted.takes(interface.name)]
        if not taken:
            names = ", ".join(dict.fromkeys(interface.name for interface in ups)) or "none"
            what = f"{'called' if wanted.chooses else 'that passes'} {wanted.text[:32]}"
            raise RunError(f"no network interface {what} is up", where=variable, hint=f"up are: {names}")
        if wanted.chooses:
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
    environment: Mapping[str, str], there: Sequence[Interface], rdma: Path = _RDMA, net: Path = _NET
) -> list[Interface]:
    """The interfaces that may be a rail each, as far as those of other machines match; one or none: there are no rails.

    Args:
        environment, there, rdma: as for `choose`.
        net: the kernel's folder of network interfaces.

    Raises:
        UsageError: as `choose`, or COLLC_NET names one interface twice.
        RunError: one of them is not up.
    """
    wish = net_wish(environment, rdma)
    found: list[Interface] = []
    for rail in wish.rails:
        one = choose({"COLLC_NET": f"tcp:{rail}"}, there, rdma).interface
        if one is not None and any(one.name == other.name for other in found):
            raise UsageError(f"names the interface {one.name} twice", where="COLLC_NET", hint="name each once")
        found += [one] if one is not None else []
    if found or wish.engine != "tcp":
        return found
    named, barred = hca_interfaces(environment, there, rdma)
    first = choose(environment, there, rdma).interface
    if named or first is None:
        return named[:MOST_RAILS]
    wanted = _wanted(environment, rdma)[1]
    asked = wanted is not None and wanted.chooses
    beside = [one for one in _beside(first, wanted, there, net) if asked or one.name not in barred]
    return [first, *beside][:MOST_RAILS]


def hca_interfaces(
    environment: Mapping[str, str], there: Sequence[Interface], rdma: Path = _RDMA
) -> tuple[list[Interface], list[str]]:
    """The interfaces that run of the RDMA devices that NCCL_IB_HCA names, and the names of those that it leaves out.

    It counts where neither COLLC_NET names interfaces nor COLLC_SOCKET_IFNAME is set.

    Raises:
        UsageError: as `net_wish`.
    """
    listed = environment.get("NCCL_IB_HCA", "")
    if not listed or net_wish(environment, rdma).rails or environment.get("COLLC_SOCKET_IFNAME"):
        return [], []
    taken = HcaFilter(listed)
    ports = rdma_interfaces(rdma)
    barred = [name for port, name in ports if not taken.takes(port)]
    passing = dict.fromkeys(name for port, name in ports if taken.takes(port)) if taken.chooses else {}
    running = _running(there)
    return [running[name] for name in passing if name in running], barred


def _running(there: Sequence[Interface]) -> dict[str, Interface]:
    """One address for each interface that is up and runs, IPv4 before IPv6; link-local ones lead nowhere for sure."""
    found: dict[str, Interface] = {}
    for one in there:
        known = found.get(one.name)
        local = one.is_v6 and ip_address(one.address.partition("%")[0]).is_link_local
        if one.up and one.running and not local and (known is None or (known.is_v6 and not one.is_v6)):
            found[one.name] = one
    return found


def _beside(first: Interface, wanted: Filter | None, there: Sequence[Interface], net: Path) -> list[Interface]:
    """Further rails: all that a list names, else cards like the first one in other networks."""
    passing = [one for one in there if wanted is None or wanted.takes(one.name)]
    others = [one for one in _running(passing).values() if one.name != first.name]
    if wanted is not None and wanted.chooses:
        return others
    found: list[Interface] = []
    kind = _kind(first.name, net)
    for one in others:
        alike = kind[0] and _kind(one.name, net) == kind
        if alike and one.network not in [before.network for before in (first, *found)]:
            found.append(one)
    return found


def _kind(name: str, net: Path) -> tuple[str, int]:
    """The driver of a card, "" for what the system only makes up; and its speed, 0 where that is not known."""
    driver, speed = "", 0
    with suppress(OSError):
        driver = (net / name / "device/driver").readlink().name
    with suppress(OSError, ValueError):
        speed = max(0, int((net / name / "speed").read_text(encoding="ascii")))
    return driver, speed


def _score(interface: Interface) -> int:
    """`max` keeps the first of equals, as the runtime does."""
    kind = 0 if interface.loopback else 4 if interface.leads_out else 1
    return 2 * kind + (not interface.is_v6)


@dataclass(frozen=True)
class Filter:
    """A list of interfaces as NCCL_SOCKET_IFNAME takes it (NCCL's user guide): prefixes with commas between.

    ``=`` before the list: whole names. ``^`` before it: all others.
    """

    text: str

    @property
    def _names(self) -> list[str]:
        return [name for name in self.text.removeprefix("^").removeprefix("=").split(",") if name]

    @property
    def chooses(self) -> bool:
        """Whether it says which interfaces to use, not only which ones not to."""
        return not self.text.startswith("^") and bool(self._names)

    def takes(self, interface: str) -> bool:
        """Whether an interface of this name may be used."""
        whole = self.text.removeprefix("^").startswith("=")
        found = any(interface == name if whole else interface.startswith(name) for name in self._names)
        return not self._names or found != self.text.startswith("^")


@dataclass(frozen=True)
class Wish:
    """What COLLC_NET asks for.

    Args:
        engine: "tcp" or "ucx".
        rails: the network interfaces; empty if it names none.
        devices: RDMA devices, for the engine `ucx`.
    """

    engine: str = "tcp"
    rails: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def interface(self) -> str:
        """Of the network interface on which machines meet; "" if it names none."""
        return self.rails[0] if self.rails else ""


def net_wish(environment: Mapping[str, str], rdma: Path = _RDMA) -> Wish:
    """COLLC_NET=[engine:]interface,...; RDMA devices are known by their names.

    Raises:
        UsageError: it names an engine that does not exist, or more network interfaces than the engine takes.
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
    # `=` stands before a whole list, and so does `^`, of what one interface must not be.
    if names and names[0].startswith("^"):
        names = [",".join(names)]
    elif names and names[0].startswith("="):
        names[1:] = [f"={name}" for name in names[1:]]
    most = MOST_RAILS if engine == "tcp" else 1
    if len(names) > most:
        hint = "name one" if most == 1 else f"name {most} at most"
        raise UsageError(f"names several interfaces: {','.join(names)[:60]!r}", where="COLLC_NET", hint=hint)
    return Wish(engine, tuple(names), devices)


def _is_rdma(name: str, rdma: Path) -> bool:
    """Whether a name is that of an RDMA device here, or of one of its ports ("mlx5_0:1")."""
    device, _, port = name.partition(":")
    if not device or "/" in name or device.startswith("."):
        return False
    with suppress(OSError):
        return (rdma / device / "ports" / port).exists()
    return False


def _wanted(environment: Mapping[str, str], rdma: Path) -> tuple[str, Filter | None]:
    """The variable that counts, and the interfaces in it."""
    interface = net_wish(environment, rdma).interface
    if interface:
        return "COLLC_NET", Filter(interface)
    for variable in VARIABLES[1:]:
        text = environment.get(variable, "")
        if text:
            return variable, Filter(text)
    return "", None


def family_of(address: str) -> socket.AddressFamily:
    """IPv4 or IPv6."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def socket_address(address: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    """What `bind` and `connect` take for an address of `interfaces`."""
    text, _, scope = address.partition("%")
    return (text, port, 0, int(scope or 0)) if ":" in text else (text, port)


def outward_address() -> str:
    """The address of this machine that other machines are told.

    Raises:
        UsageError: a variable names no interface.
        RunError: no interface is up, or not the one that is named.
    """
    chosen = choose(os.environ, interfaces())
    if chosen.interface is None:
        raise RunError("no network interface is up: other machines are out of reach")
    return chosen.interface.address
