"""Measures which server or cable is slow, for `collc probe --cluster --measure`.

In a round, every server sends to one other server over one interface and receives from one: server j sends to server
j + shift. Each interface has rounds with up to three shifts, so that every server meets several others. No two
transfers of a round share a link, unless switches limit them. An interface of a server is slow if even its best rate is
far below the median of all interfaces of the same nominal speed. A pair is slow if its transfer is, but neither of its
ends. Rounds with slow transfers are repeated and the better rate counts, because a busy processor can slow a transfer
once although the cable is good.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import statistics
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from collc.errors import CollcError, RunError, UsageError
from collc.topology.cluster.gather import Gathered
from collc.topology.cluster.meeting import Meeting
from collc.topology.cluster.wire import Listener, send
from collc.topology.model import Topology, VertexKind

# The duration of a transfer.
SECONDS = 0.4
# The rounds of an interface, not counting repetitions.
_MAX_SHIFTS = 3
# A rate below this ratio of the median is slow.
_SLOW_RATIO = 0.7
# Slow rounds are repeated this many times at most. Two repetitions in a row without a slow transfer that becomes faster
# by this ratio end the repetitions.
_MAX_REPEATS = 6
_GAIN_RATIO = 1.1
# The time for a round, with all messages between its processes over a network file system.
_ROUND_SECONDS = 20.0
# The request of Linux's ioctl that returns the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Transfer:
    """One transfer from one server to another over one interface.

    Attributes:
        gbps: the rate of arrival, in GB/s; 0 if nothing was measured.
        problem: the sender's error if the rate is 0; may be empty.
    """

    src: str
    dst: str
    interface: str
    gbps: float
    problem: str = ""


def interfaces(machine: Topology, wanted: Sequence[str]) -> dict[str, str]:
    """Returns the address of each interface of this host that is measured, by the interface's name.

    Args:
        machine: this server.
        wanted: names of interfaces. If empty: the interfaces of the machine's NICs that are up and have an address.

    Raises:
        UsageError: an interface in `wanted` does not exist on this host or has no address.
    """
    names = {name for _, name in socket.if_nameindex()}
    addresses = {}
    for name in wanted:
        address = address_of(name) if name in names else None
        if address is None:
            what = f"{socket.gethostname()} has no interface `{name[:40]}` with an address"
            raise UsageError(what, where="--interfaces", hint=f"it has: {', '.join(sorted(names))[:200]}")
        addresses[name] = address
    if wanted:
        return addresses
    for vertex in machine.vertices:
        port = vertex.port if vertex.kind is VertexKind.NIC and vertex.port and vertex.port.up else None
        if port and port.interface and port.interface in names and (address := address_of(port.interface)):
            addresses[port.interface] = address
    return addresses


def address_of(interface: str) -> str | None:
    """Returns the IPv4 address of an interface, else its global IPv6 address, else None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            reply = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
            return socket.inet_ntoa(reply[20:24])
        except OSError:
            pass
    try:
        lines = Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) == 6 and words[5] == interface and words[3] == "00":
            return str(ipaddress.IPv6Address(int(words[0], 16)))
    return None


def listen(meeting: Meeting, own: Mapping[str, str]) -> Listener:
    """Opens this server's listeners and posts their addresses.

    Args:
        own: interface -> address of this host.
    """
    listener = Listener(dict(own), meeting.session, SECONDS)
    meeting.post(f"wire.{meeting.rank}", {"ports": {name: list(at) for name, at in listener.ports.items()}})
    return listener


def attend(meeting: Meeting, machine: Topology | None, wanted: Sequence[str]) -> None:
    """Takes part in the measurement that process 0 leads. Processes 1, 2 ... call this.

    Args:
        machine: this server; None in processes that are not the first of their server, which return at once.
        wanted: interfaces, as in ``--interfaces``.
    """
    if machine is None:
        return
    try:
        own = interfaces(machine, wanted)
        listener = listen(meeting, own)
    except CollcError as error:
        meeting.post(f"wire.{meeting.rank}", {"ports": {}, "error": str(error)})
        return
    try:
        take_part(meeting, own, listener)
    finally:
        listener.close()


def measure_cluster(
    meeting: Meeting, gathered: Gathered, wanted: Sequence[str], status: Callable[[str], None]
) -> tuple[list[Transfer], list[str]]:
    """Measures between the servers. Only process 0 calls this.

    Args:
        wanted: interfaces, as in ``--interfaces``.
        status: receives a line for each round.

    Returns:
        The transfers; and lines that name slow interfaces and pairs, servers without an answer, and the range of rates.

    Raises:
        CollcError: an interface is missing on this host, or a server does not answer.
    """
    own = interfaces(gathered.own, wanted) if gathered.own is not None else {}
    listener = listen(meeting, own)
    try:
        nominal = {
            (server.name, v.port.interface): v.port.gbps
            for server in gathered.servers
            for v in server.machine.vertices
            if v.port and v.port.interface and v.port.gbps
        }
        transfers, notes = lead_rounds(meeting, gathered.lead, own, listener, nominal, status)
    finally:
        listener.close()
    if not transfers:
        what = "no two servers have an interface of one name with an address"
        notes.append(f"measured nothing: {what}; name interfaces with --interfaces")
        return [], notes
    return transfers, [*slow_lines(transfers, nominal), *notes, summary(transfers)]


def take_part(meeting: Meeting, own: Mapping[str, str], listener: Listener) -> None:
    """Runs every round that process 0 calls, until its last message, the end of the run, or the end of the wait."""
    number = 0
    while True:
        meeting.allow(3 * meeting.seconds)
        called = meeting.wait([f"round.{number}"], lambda: meeting.look("done") is not None).get(f"round.{number}")
        if called is None or called.get("last"):
            return
        run_round(meeting, called, number, own, listener)
        number += 1


def run_round(
    meeting: Meeting, called: Mapping[str, Any], number: int, own: Mapping[str, str], listener: Listener
) -> None:
    """Runs one round in this process: sends to its receiver, then posts the rate of the data from each sender.

    Args:
        called: the message of process 0: the interface, and for each sender's rank the receiver's rank and address.
        number: the number of the round.
        own: interface -> address of this host.
    """
    problem = ""
    interface = str(called["interface"])
    pairs = {int(src): (int(dst), tuple(at)) for src, (dst, at) in called["pairs"].items()}
    if meeting.rank in pairs and interface in own:
        _, (host, port) = pairs[meeting.rank]
        problem = send((str(host), int(port)), own[interface], meeting.session, number, meeting.rank, SECONDS)
    meeting.post(f"sent.{number}.{meeting.rank}", {"problem": problem})
    senders = [src for src, (dst, _) in pairs.items() if dst == meeting.rank]
    meeting.allow(_ROUND_SECONDS)
    meeting.wait([f"sent.{number}.{src}" for src in senders])
    rates = {str(src): listener.rate(number, src) for src in senders}
    meeting.post(f"came.{number}.{meeting.rank}", {"rates": rates})


def lead_rounds(
    meeting: Meeting,
    leads: Mapping[str, int],
    own: Mapping[str, str],
    listener: Listener,
    nominal: Mapping[tuple[str, str], Fraction],
    status: Callable[[str], None],
) -> tuple[list[Transfer], list[str]]:
    """Calls the rounds and collects their results. Only process 0 calls this.

    Args:
        leads: server -> rank of its first process.
        own: interface -> address of this host.
        nominal: (server, interface) -> GB/s of its NIC; NICs of unknown speed are missing.
        status: receives a line for each round.

    Returns:
        The transfers, and notes about servers that could not take part.

    Raises:
        RunError: a server does not answer.
    """
    answers = meeting.wait([f"wire.{rank}" for rank in leads.values()])
    ports = {name: answers.get(f"wire.{rank}", {}).get("ports", {}) for name, rank in leads.items()}
    silent = [name for name, rank in leads.items() if f"wire.{rank}" not in answers]
    if silent:
        raise RunError(f"{', '.join(silent[:6])}: no answer", where="probe --measure")
    errors = {name: answers[f"wire.{rank}"].get("error") for name, rank in leads.items()}
    notes = [f"{name}: not measured: {error}" for name, error in errors.items() if error]
    rounds = _Rounds(meeting, leads, own, listener, ports, notes)
    transfers: list[Transfer] = []
    calls: list[tuple[str, list[tuple[str, str]]]] = []
    for interface in dict.fromkeys(i for at in ports.values() for i in at):
        members = [name for name in leads if interface in ports[name]]
        for shift in range(1, min(len(members) - 1, _MAX_SHIFTS) + 1):
            members = [name for name in members if name not in rounds.lost]
            if len(members) < 2:
                break
            status(f"{interface}: round {shift}")
            ways = [(members[j], members[(j + shift) % len(members)]) for j in range(len(members))]
            transfers += rounds.call(interface, ways)
            calls.append((interface, ways))

    def repeat(number: int) -> list[Transfer]:
        interface, ways = calls[number]
        if not rounds.lost.isdisjoint(end for way in ways for end in way):
            return []
        status(f"{interface}: once more")
        return rounds.call(interface, ways)

    transfers = look_again(transfers, calls, nominal, repeat)
    rounds.end()
    return transfers, notes


def look_again(
    found: Sequence[Transfer],
    called: Sequence[tuple[str, Sequence[tuple[str, str]]]],
    nominal: Mapping[tuple[str, str], Fraction],
    call: Callable[[int], Sequence[Transfer]],
) -> list[Transfer]:
    """Repeats the rounds that have slow transfers, until repetition no longer helps.

    Args:
        called: the interface and the (src, dst) of each round.
        nominal: (server, interface) -> GB/s of its NIC; NICs of unknown speed are missing.
        call: runs a round again, by its index in `called`.

    Returns:
        Each transfer at its best rate.
    """
    best = {(t.src, t.dst, t.interface): t for t in found}
    vain_repeats = 0
    for _ in range(_MAX_REPEATS):
        slow = _slow_transfers(list(best.values()), nominal)
        has_gain = False
        for number, (interface, ways) in enumerate(called):
            if slow.isdisjoint((src, dst, interface) for src, dst in ways):
                continue
            for t in call(number):
                key = (t.src, t.dst, t.interface)
                has_gain = has_gain or (key in slow and t.gbps > _GAIN_RATIO * best[key].gbps)
                best[key] = max(best[key], t, key=lambda each: each.gbps)
        vain_repeats = 0 if has_gain else vain_repeats + 1
        if not slow or vain_repeats == 2:
            break
    return list(best.values())


class _Rounds:
    """Runs the rounds of process 0, one after the other. `lost` has the servers that stopped answering."""

    def __init__(
        self,
        meeting: Meeting,
        leads: Mapping[str, int],
        own: Mapping[str, str],
        listener: Listener,
        ports: Mapping[str, Mapping[str, Any]],
        notes: list[str],
    ) -> None:
        self._meeting, self._leads, self._own, self._listener = meeting, leads, own, listener
        self._ports, self._notes, self._number = ports, notes, 0
        self.lost: set[str] = set()

    def call(self, interface: str, ways: Sequence[tuple[str, str]]) -> list[Transfer]:
        """Runs one round over an interface. Returns one transfer for each (src, dst) of `ways`."""
        meeting, leads, number = self._meeting, self._leads, self._number
        self._number += 1
        pairs = {str(leads[a]): [leads[b], self._ports[b][interface]] for a, b in ways}
        meeting.allow(_ROUND_SECONDS)
        called = {"interface": interface, "pairs": pairs}
        meeting.post(f"round.{number}", called)
        run_round(meeting, called, number, self._own, self._listener)
        came = meeting.wait([f"came.{number}.{leads[b]}" for _, b in ways])
        sent = meeting.wait([f"sent.{number}.{leads[a]}" for a, _ in ways])
        transfers = []
        for a, b in ways:
            rate = came.get(f"came.{number}.{leads[b]}", {}).get("rates", {}).get(str(leads[a]))
            why = str(sent.get(f"sent.{number}.{leads[a]}", {}).get("problem", "no answer"))
            if f"sent.{number}.{leads[a]}" not in sent and a not in self.lost:
                self.lost.add(a)
                self._notes.append(f"{a}: no answer any more while measuring over {interface}")
            transfers.append(Transfer(a, b, interface, float(rate or 0), why if not rate else ""))
        return transfers

    def end(self) -> None:
        """Posts the message that ends the rounds of the other processes."""
        self._meeting.post(f"round.{self._number}", {"last": True})


def _slow_transfers(
    transfers: Sequence[Transfer], nominal: Mapping[tuple[str, str], Fraction]
) -> set[tuple[str, str, str]]:
    """Returns (src, dst, interface) of each slow transfer; see `_is_slow`."""
    outs, ins = _best(transfers)
    usual = _median_rates(outs, ins, nominal)
    return {(t.src, t.dst, t.interface) for t in transfers if _is_slow(t, usual)}


def _is_slow(t: Transfer, usual: Mapping[tuple[str, str], float]) -> bool:
    """Returns True if the rate is below `_SLOW_RATIO` of the median for the sender, and of that for the receiver."""
    return t.gbps < _SLOW_RATIO * min(usual[t.src, t.interface], usual[t.dst, t.interface])


def _best(transfers: Sequence[Transfer]) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """Returns the best rates of sending and of receiving for each (server, interface)."""
    outs: dict[tuple[str, str], float] = {}
    ins: dict[tuple[str, str], float] = {}
    for t in transfers:
        outs[t.src, t.interface] = max(t.gbps, outs.get((t.src, t.interface), 0.0))
        ins[t.dst, t.interface] = max(t.gbps, ins.get((t.dst, t.interface), 0.0))
    return outs, ins


def slow_lines(transfers: Sequence[Transfer], nominal: Mapping[tuple[str, str], Fraction]) -> list[str]:
    """Returns one line for each slow interface of a server, and one for each slow pair of other interfaces.

    Args:
        nominal: (server, interface) -> GB/s of its NIC; NICs of unknown speed are missing. Only interfaces of equal
            nominal speed are compared.
    """
    outs, ins = _best(transfers)
    usual = _median_rates(outs, ins, nominal)
    lines = []
    slow_ends: set[tuple[str, str]] = set()
    counts: dict[tuple[str, str], int] = {}
    for t in transfers:
        for server in (t.src, t.dst):
            counts[server, t.interface] = counts.get((server, t.interface), 0) + 1
    for end in outs:
        if counts[end] < 4:
            continue  # with fewer transfers, the other end may be the slow one
        ways = [
            f"{verb} {text(rate)}"
            for verb, rate in (("sends", outs[end]), ("receives", ins.get(end, 0.0)))
            if rate < _SLOW_RATIO * usual[end]
        ]
        if ways:
            slow_ends.add(end)
            lines.append(f"{end[0]}: slow over {end[1]}: {' and '.join(ways)} of the usual {text(usual[end])}")
    for t in transfers:
        ends = ((t.src, t.interface), (t.dst, t.interface))
        if slow_ends.isdisjoint(ends) and _is_slow(t, usual):
            why = f" ({t.problem})" if t.problem else ""
            lines.append(
                f"{t.src} to {t.dst}: slow over {t.interface}: {text(t.gbps)} of the usual {text(usual[ends[0]])}{why}"
            )
    return lines


def _median_rates(
    outs: Mapping[tuple[str, str], float],
    ins: Mapping[tuple[str, str], float],
    nominal: Mapping[tuple[str, str], Fraction],
) -> dict[tuple[str, str], float]:
    """Returns for each (server, interface) the median of the best rates of all interfaces of its nominal speed.

    The rates of sending and of receiving have one median. Interfaces of unknown speed are one group.
    """
    kinds: dict[Fraction | None, list[float]] = {}
    for rates in (outs, ins):
        for end, rate in rates.items():
            kinds.setdefault(nominal.get(end), []).append(rate)
    medians = {kind: statistics.median_high(sorted(rates)) for kind, rates in kinds.items()}
    return {end: medians[nominal.get(end)] for end in {**outs, **ins}}


def text(gbps: float) -> str:
    """Returns a rate with its unit, for people."""
    return f"{gbps:.3g} GB/s" if gbps >= 0.1 else f"{gbps * 1000:.3g} MB/s"


def summary(transfers: Sequence[Transfer]) -> str:
    """Returns a line with the number of transfers, their range of rates, and the median."""
    rates = sorted(t.gbps for t in transfers)
    number = len({t.interface for t in transfers})
    return (
        f"measured {len(transfers)} transfers by TCP over {number} interface{'s' * (number != 1)}: "
        f"{text(rates[0])} to {text(rates[-1])}, median {text(statistics.median(rates))}"
    )
