"""`collc probe --cluster --measure`: which server or cable is slow.

In a round every server sends to one other over one interface and receives from one: server j to server j + shift. Each
interface has rounds with a few shifts, so that every server meets several others, and no link is shared by two
transfers as long as switches do not limit them. A server's interface is slow if even its best round is far below the
median of all interfaces of its nominal speed; a pair is slow if both of its ends do well with others. Rounds in which
something looks slow are repeated and the better rate counts: what a busy processor slowed once is no slow cable.
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

SECONDS = 0.4
_MOST_SHIFTS = 3
_SLOW = 0.7
# How often a round that shows something slow is repeated at most, unless it was twice not better by this factor.
_REPEATS = 6
_BETTER = 1.1
# For a round with all that its processes say to each other over a network file system.
_ROUND_SECONDS = 20.0
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Transfer:
    """What went from one server to another over one interface, in GB/s; `problem` where nothing did."""

    src: str
    dst: str
    interface: str
    gbps: float
    problem: str = ""


def interfaces(machine: Topology, wanted: Sequence[str]) -> dict[str, str]:
    """Interface -> address of this host: those that are wanted, else those of the machine's NICs that have one.

    Raises:
        UsageError: an interface that is wanted is not here or has no address.
    """
    here = {name for _, name in socket.if_nameindex()}
    found = {}
    for name in wanted:
        address = address_of(name) if name in here else None
        if address is None:
            what = f"{socket.gethostname()} has no interface `{name[:40]}` with an address"
            raise UsageError(what, where="--interfaces", hint=f"it has: {', '.join(sorted(here))[:200]}")
        found[name] = address
    if wanted:
        return found
    for vertex in machine.vertices:
        port = vertex.port if vertex.kind is VertexKind.NIC and vertex.port and vertex.port.up else None
        if port and port.interface and port.interface in here and (address := address_of(port.interface)):
            found[port.interface] = address
    return found


def address_of(interface: str) -> str | None:
    """The IPv4 address of an interface, else its global IPv6 address, else None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            told = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
            return socket.inet_ntoa(told[20:24])
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
    """Opens this server's listeners and tells the others where they are."""
    listener = Listener(dict(own), meeting.session, SECONDS)
    meeting.post(f"wire.{meeting.rank}", {"ports": {name: list(at) for name, at in listener.ports.items()}})
    return listener


def attend(meeting: Meeting, machine: Topology | None, wanted: Sequence[str]) -> None:
    """What processes 1, 2 ... do while process 0 measures.

    Args:
        machine: this server, or None in processes that are not the first of theirs.
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
    """Process 0: measures between the servers; the transfers, and lines that say what is slow.

    Raises:
        CollcError: an interface is missing here, or a server does not answer.
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
        found, notes = lead_rounds(meeting, gathered.lead, own, listener, nominal, status)
    finally:
        listener.close()
    if not found:
        what = "no two servers have an interface of one name with an address"
        notes.append(f"measured nothing: {what}; name interfaces with --interfaces")
        return [], notes
    return found, [*slow_lines(found, nominal), *notes, summary(found)]


def take_part(meeting: Meeting, own: Mapping[str, str], listener: Listener) -> None:
    """Sends and counts in every round that process 0 calls, until it calls the last."""
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
    """One round: sends to whom it says, and posts what arrived from whom."""
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
    """Process 0: calls the rounds and collects what came of them; and who could not take part.

    Args:
        leads: server -> rank of its first process.
        nominal: (server, interface) -> GB/s of its NIC, where known.

    Raises:
        RunError: a server does not answer.
    """
    told = meeting.wait([f"wire.{rank}" for rank in leads.values()])
    ports = {name: told.get(f"wire.{rank}", {}).get("ports", {}) for name, rank in leads.items()}
    silent = [name for name, rank in leads.items() if f"wire.{rank}" not in told]
    if silent:
        raise RunError(f"{', '.join(silent[:6])}: no answer", where="probe --measure")
    errors = {name: told[f"wire.{rank}"].get("error") for name, rank in leads.items()}
    notes = [f"{name}: not measured: {error}" for name, error in errors.items() if error]
    rounds = _Rounds(meeting, leads, own, listener, ports, notes)
    found: list[Transfer] = []
    called: list[tuple[str, list[tuple[str, str]]]] = []
    for interface in dict.fromkeys(i for at in ports.values() for i in at):
        members = [name for name in leads if interface in ports[name]]
        for shift in range(1, min(len(members) - 1, _MOST_SHIFTS) + 1):
            members = [name for name in members if name not in rounds.lost]
            if len(members) < 2:
                break
            status(f"{interface}: round {shift}")
            ways = [(members[j], members[(j + shift) % len(members)]) for j in range(len(members))]
            found += rounds.call(interface, ways)
            called.append((interface, ways))

    def again(number: int) -> list[Transfer]:
        interface, ways = called[number]
        if not rounds.lost.isdisjoint(end for way in ways for end in way):
            return []
        status(f"{interface}: once more")
        return rounds.call(interface, ways)

    found = look_again(found, called, nominal, again)
    rounds.end()
    return found, notes


def look_again(
    found: Sequence[Transfer],
    called: Sequence[tuple[str, Sequence[tuple[str, str]]]],
    nominal: Mapping[tuple[str, str], Fraction],
    call: Callable[[int], Sequence[Transfer]],
) -> list[Transfer]:
    """Repeats the rounds that show something slow, until that helps no more; each transfer at its best rate.

    Args:
        called: the interface and the (src, dst) of each round.
        nominal: (server, interface) -> GB/s of its NIC, where known.
        call: calls a round again, by its place in `called`.
    """
    best = {(t.src, t.dst, t.interface): t for t in found}
    in_vain = 0
    for _ in range(_REPEATS):
        doubtful = _doubtful(list(best.values()), nominal)
        better = False
        for number, (interface, ways) in enumerate(called):
            if doubtful.isdisjoint((src, dst, interface) for src, dst in ways):
                continue
            for t in call(number):
                key = (t.src, t.dst, t.interface)
                better = better or (key in doubtful and t.gbps > _BETTER * best[key].gbps)
                best[key] = max(best[key], t, key=lambda each: each.gbps)
        in_vain = 0 if better else in_vain + 1
        if not doubtful or in_vain == 2:
            break
    return list(best.values())


class _Rounds:
    """The rounds that process 0 calls, one after the other."""

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
        """One round over an interface: (src, dst) of each transfer -> what came of it."""
        meeting, leads, number = self._meeting, self._leads, self._number
        self._number += 1
        pairs = {str(leads[a]): [leads[b], self._ports[b][interface]] for a, b in ways}
        meeting.allow(_ROUND_SECONDS)
        called = {"interface": interface, "pairs": pairs}
        meeting.post(f"round.{number}", called)
        run_round(meeting, called, number, self._own, self._listener)
        came = meeting.wait([f"came.{number}.{leads[b]}" for _, b in ways])
        sent = meeting.wait([f"sent.{number}.{leads[a]}" for a, _ in ways])
        found = []
        for a, b in ways:
            rate = came.get(f"came.{number}.{leads[b]}", {}).get("rates", {}).get(str(leads[a]))
            why = str(sent.get(f"sent.{number}.{leads[a]}", {}).get("problem", "no answer"))
            if f"sent.{number}.{leads[a]}" not in sent and a not in self.lost:
                self.lost.add(a)
                self._notes.append(f"{a}: no answer any more while measuring over {interface}")
            found.append(Transfer(a, b, interface, float(rate or 0), why if not rate else ""))
        return found

    def end(self) -> None:
        """Tells the others that there is no more to measure."""
        self._meeting.post(f"round.{self._number}", {"last": True})


def _doubtful(found: Sequence[Transfer], nominal: Mapping[tuple[str, str], Fraction]) -> set[tuple[str, str, str]]:
    """(src, dst, interface) of the transfers that are far slower than is usual for either of their ends."""
    outs, ins = _best(found)
    usual = _usual(outs, ins, nominal)
    return {(t.src, t.dst, t.interface) for t in found if _is_slow(t, usual)}


def _is_slow(t: Transfer, usual: Mapping[tuple[str, str], float]) -> bool:
    """Whether it is far slower than is usual for either of its ends."""
    return t.gbps < _SLOW * min(usual[t.src, t.interface], usual[t.dst, t.interface])


def _best(found: Sequence[Transfer]) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """(server, interface) -> the best rate at which it sent, and that at which it received."""
    outs: dict[tuple[str, str], float] = {}
    ins: dict[tuple[str, str], float] = {}
    for t in found:
        outs[t.src, t.interface] = max(t.gbps, outs.get((t.src, t.interface), 0.0))
        ins[t.dst, t.interface] = max(t.gbps, ins.get((t.dst, t.interface), 0.0))
    return outs, ins


def slow_lines(found: Sequence[Transfer], nominal: Mapping[tuple[str, str], Fraction]) -> list[str]:
    """One line for each interface of a server, or pair, that is far slower than the others of its kind.

    Args:
        nominal: (server, interface) -> GB/s of its NIC, where known; only equal ones are compared.
    """
    outs, ins = _best(found)
    usual = _usual(outs, ins, nominal)
    lines = []
    bad: set[tuple[str, str]] = set()
    met: dict[tuple[str, str], int] = {}
    for t in found:
        for server in (t.src, t.dst):
            met[server, t.interface] = met.get((server, t.interface), 0) + 1
    for end in outs:
        if met[end] < 4:
            continue  # one round each way: the other end may be the slow one
        ways = [
            f"{verb} {text(rate)}"
            for verb, rate in (("sends", outs[end]), ("receives", ins.get(end, 0.0)))
            if rate < _SLOW * usual[end]
        ]
        if ways:
            bad.add(end)
            lines.append(f"{end[0]}: slow over {end[1]}: {' and '.join(ways)} of the usual {text(usual[end])}")
    for t in found:
        ends = ((t.src, t.interface), (t.dst, t.interface))
        if bad.isdisjoint(ends) and _is_slow(t, usual):
            why = f" ({t.problem})" if t.problem else ""
            lines.append(
                f"{t.src} to {t.dst}: slow over {t.interface}: {text(t.gbps)} of the usual {text(usual[ends[0]])}{why}"
            )
    return lines


def _usual(
    outs: Mapping[tuple[str, str], float],
    ins: Mapping[tuple[str, str], float],
    nominal: Mapping[tuple[str, str], Fraction],
) -> dict[tuple[str, str], float]:
    """The median of the best rounds of all interfaces of the same nominal speed, in both directions."""
    kinds: dict[Fraction | None, list[float]] = {}
    for rates in (outs, ins):
        for end, rate in rates.items():
            kinds.setdefault(nominal.get(end), []).append(rate)
    medians = {kind: statistics.median_high(sorted(rates)) for kind, rates in kinds.items()}
    return {end: medians[nominal.get(end)] for end in {**outs, **ins}}


def text(gbps: float) -> str:
    """A measured rate for people."""
    return f"{gbps:.3g} GB/s" if gbps >= 0.1 else f"{gbps * 1000:.3g} MB/s"


def summary(found: Sequence[Transfer]) -> str:
    """How much was measured, and how fast."""
    rates = sorted(t.gbps for t in found)
    number = len({t.interface for t in found})
    return (
        f"measured {len(found)} transfers by TCP over {number} interface{'s' * (number != 1)}: "
        f"{text(rates[0])} to {text(rates[-1])}, median {text(statistics.median(rates))}"
    )
