"""Bytes of GPU memory that a communicator takes, as the CUDA runtime lays them out (runtime/cuda/device_plan.h)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from collc.codegen.entry import Entry
from collc.ir.nodes import Fifo, Program, Through, slots_by_memory
from collc.topology.model import JOINT

_Ints = npt.NDArray[np.int64]

# A flag has a line of its own, and everything begins at such a line.
_LINE = 128
# Chunks of protocols that a library's tables leave open: device_plan.h's kLLChunk and kLL128Chunk.
_OPEN_CHUNKS = {"LL": 16 << 10, "LL128": 120 << 10}

# A region of pinned memory begins at such an address: PinnedPlan::kAlign.
_REGION = 64 << 10

# What crosses servers lies in a segment of each server, laid out by lines and pages: transport/fifo.cpp, transfers.cpp.
_HALF_LINE, _PAGE = 64, 4096
_QUEUE_SLOTS, _QUEUE_SLOT, _MOST_QUEUES = 4, 128 << 10, 32 << 20

# Memory behind a multicast address comes in pieces of this size: what GPUs say is their granularity.
_MULTICAST = 2 << 20

# Lanes of transfers: plan_lanes() of device_plan.h.
_LANES, _LANE_SLOTS, _LANE_BYTES, _SLOT_HEAD = 8, 2, 128 << 10, 128
_MOST_LANE_MEMORY = 16 << 20


def _lines(size: int) -> int:
    return -(-size // _LINE) * _LINE


def _slot(protocol: str, chunk: int) -> int:
    """Bytes of a slot for a chunk: LL sends a flag with every 4 bytes, LL128 1,024 bytes for 960."""
    if protocol == "LL":
        return 2 * chunk
    return -(-chunk // 960) * 1024 if protocol == "LL128" else _lines(chunk)


class KnownFifos:
    """The FIFOs of programs, each of which is looked at once: of use where memory is asked for again and again."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._rows: dict[int, tuple[Program, _Ints]] = {}
        self.ends: list[tuple[int, int]] = []
        self.plain = True  # each has one reader, on the same server, and no switch does anything with it

    def numbers(self, program: Program) -> _Ints:
        """A number of each FIFO of a program, equal for those that programs share."""
        key = id(program.fifos)
        if key not in self._rows:
            self._rows[key] = program, np.array([self._number(program, fifo) for fifo in program.fifos], np.int64)
        return self._rows[key][1]

    def _number(self, program: Program, fifo: Fifo) -> int:
        number = self._numbers.setdefault(fifo.memory, len(self.ends))
        if number == len(self.ends):
            self.ends.append((fifo.src, fifo.dsts[0]))
        one = len(fifo.dsts) == 1 and fifo.through is None
        self.plain &= one and program.server(fifo.src) == program.server(fifo.dsts[0])
        return number


def fifo_bytes_by_rank(
    entries: Sequence[Entry], nranks: int, most: int | None = None, known: KnownFifos | None = None
) -> tuple[int, ...]:
    """Bytes of the FIFOs of each rank of a communicator on the CUDA target.

    Every reader of a FIFO has slots for each protocol that a program with this FIFO runs over, as many and as large as
    the neediest of these programs wants. It is not known here whether LL128 will run; the larger figure counts.

    Args:
        most: larger chunks count as this.
        known: the FIFOs of these programs and of others.
    """
    known = known or KnownFifos()
    numbers = {id(entry.program.fifos): known.numbers(entry.program) for entry in entries}
    if known.plain and not any(entry.program.weights for entry in entries):
        with_lines, without = (_by_number(entries, nranks, most, whole, known, numbers) for whole in (True, False))
    else:
        with_lines, without = (_by_rank(entries, nranks, most, whole) for whole in (True, False))
    return with_lines if max(with_lines) >= max(without) else without


def _by_number(
    entries: Sequence[Entry],
    nranks: int,
    most: int | None,
    has_ll128: bool,
    known: KnownFifos,
    numbers: Mapping[int, _Ints],
) -> tuple[int, ...]:
    """As `_by_rank`, for FIFOs that are plain."""
    largest, programs = _largest_slots(entries, most, has_ll128, wired=False)
    slots = np.zeros(len(known.ends), np.int64)
    needed = {protocol: np.zeros(len(known.ends), np.int64) for _, protocol in largest}
    for key, program in programs.items():
        slots[numbers[key]] = np.maximum(slots[numbers[key]], program.slots)
    for (key, protocol), slot in largest.items():
        needed[protocol][numbers[key]] = np.maximum(needed[protocol][numbers[key]], slot)
    sources, readers = np.array(known.ends, np.int64).reshape(-1, 2).T
    taken = np.zeros(nranks, np.int64)
    for protocol, slot_bytes in needed.items():
        used = slot_bytes > 0
        at_reader = -(-slots[used] * slot_bytes[used] // _LINE) * _LINE + (_LINE if protocol == "Simple" else 0)
        np.add.at(taken, sources[used], _LINE)
        np.add.at(taken, readers[used], at_reader)
    return tuple(taken.tolist())


def _by_rank(entries: Sequence[Entry], nranks: int, most: int | None, has_ll128: bool) -> tuple[int, ...]:
    taken = [0] * nranks
    elsewhere = _of_part(entries, "pcie") | _of_part(entries, "net") | _crossing(entries).keys()
    behind: dict[object, int] = {}  # the slots at one offset in the memories of all ranks, which a switch joins
    for fifo, reader, at_reader in _fifo_ends(entries, most, has_ll128):
        if fifo.memory in elsewhere:
            continue
        taken[fifo.src] += _LINE
        taken[reader] += at_reader
        if fifo.through is not None:
            head = reader if fifo.through is Through.SUM else fifo.src
            behind[fifo.through, head, fifo.index] = at_reader - _LINE
            taken[reader] += _LINE - at_reader
    team = -(-sum(behind.values()) // _MULTICAST) * _MULTICAST
    return tuple(one + team for one in taken)


def _fifo_ends(entries: Sequence[Entry], most: int | None, has_ll128: bool) -> Iterator[tuple[Fifo, int, int]]:
    """For each FIFO, reader and protocol: both, and bytes of slots and tail; the source has a line for heads.

    Of a plan over several servers all run over Simple or LL, as long as each server has a machine of its own, and all
    FIFOs have the slots that the tables say, as the halves between servers do.
    """
    wired = bool(_crossing(entries))
    largest, programs = _largest_slots(entries, most, has_ll128, wired)
    slots = slots_by_memory(programs.values())
    if wired:
        slots = dict.fromkeys(slots, max(slots.values()))
        most_of = {p: max(slot for (_, q), slot in largest.items() if q == p) for _, p in largest}
        largest = {key: most_of[key[1]] for key in largest}
    needed: dict[tuple[str, object], tuple[Fifo, int]] = {}
    for (program_id, protocol), slot in largest.items():
        for fifo in programs[program_id].fifos:
            _, before = needed.get((protocol, fifo.memory), (fifo, 0))
            needed[protocol, fifo.memory] = (fifo, max(slot, before))
    for (protocol, memory), (fifo, slot) in needed.items():
        tail = _LINE if protocol == "Simple" else 0
        for reader in fifo.dsts:
            yield fifo, reader, _lines(slots[memory] * slot) + tail


def _largest_slots(
    entries: Sequence[Entry], most: int | None, has_ll128: bool, wired: bool
) -> tuple[dict[tuple[int, str], int], dict[int, Program]]:
    """By program and protocol, the bytes of the largest slot; and the programs.

    Those that differ in chunks alone have the same FIFOs: the largest slot of each protocol is for all of these.
    """
    by_size = all(entry.when.protocol == "Simple" for entry in entries)
    largest: dict[tuple[int, str], int] = {}
    programs: dict[int, Program] = {}
    for entry in entries:
        program = programs.setdefault(id(entry.program.fifos), entry.program)
        chunk = entry.program.chunk_bytes if most is None else min(most, entry.program.chunk_bytes)
        for protocol in _wired_protocols(entry) if wired else _protocols(entry, by_size, has_ll128):
            own = chunk if protocol in (entry.when.protocol, "Simple") else min(chunk, _OPEN_CHUNKS[protocol])
            key = (id(program.fifos), protocol)
            largest[key] = max(_slot(protocol, own), largest.get(key, 0))
    return largest, programs


def _of_part(entries: Sequence[Entry], name: str) -> dict[object, Fifo]:
    """The FIFOs by their memory that lie in host memory, whatever GPUs reach: PCIe's, or the network's, of programs of
    several classes."""
    part = JOINT.index(name)
    programs = {id(entry.program.fifos): entry.program for entry in entries if entry.program.weights}.values()
    fifos = (fifo for program in programs for fifo in program.fifos if program.shares[fifo.share].part == part)
    return {fifo.memory: fifo for fifo in fifos}


def _crossing(entries: Sequence[Entry]) -> dict[object, Fifo]:
    """The FIFOs between servers by their memory."""
    programs = {id(entry.program.fifos): entry.program for entry in entries}.values()
    return {
        fifo.memory: fifo
        for program in programs
        for fifo in program.fifos
        if program.server(fifo.src) != program.server(fifo.dsts[0])
    }


def server_bytes(entries: Sequence[Entry], servers: Sequence[str], slots: int, slot_bytes: int) -> int:
    """Bytes of pinned host memory for what crosses servers, at the server that takes most, or what network cards carry
    inside the only one.

    Args:
        servers: of each rank.
    """
    ranks = Counter(servers)
    if len(ranks) < 2:
        return _card_bytes(entries, len(servers))
    nranks, queue = len(servers), _queue_slot_bytes(servers)
    whole = _halves(_crossing(entries).values(), servers, slots, slot_bytes)
    lined = [entry for entry in entries if _wired_protocols(entry) == ("LL",)]
    chunk = max((entry.program.chunk_bytes for entry in lined), default=0)
    chunk = min(chunk, slot_bytes)
    lines = _halves(_crossing(lined).values(), servers, slots, _slot("LL", chunk), chunk)
    return max(
        _pages(whole[server] + 2 * here * (nranks - here) * (2 * _HALF_LINE + _QUEUE_SLOTS * queue)) + lines[server]
        for server, here in ranks.items()
    )


def _card_bytes(entries: Sequence[Entry], nranks: int) -> int:
    """Bytes of the halves of all ranks of a server that network cards join (runtime/cuda/net_halves.h)."""
    fifos = _of_part(entries, "net").values()
    if not fifos:
        return 0
    largest = max(entry.program.chunk_bytes for entry in entries if any(entry.program.weights[JOINT.index("net") :]))
    slots = max(entry.program.slots for entry in entries)
    return sum(map(_pages, _halves(fifos, [str(rank) for rank in range(nranks)], slots, _lines(largest)).values()))


def _halves(
    fifos: Iterable[Fifo], servers: Sequence[str], slots: int, slot_bytes: int, room_bytes: int = 0
) -> dict[str, int]:
    """Bytes of the halves of FIFOs between servers, by server.

    Args:
        room_bytes: beside each slot, for the data of lines.
    """
    taken, flags, rooms = (dict.fromkeys(servers, 0) for _ in range(3))
    for fifo in fifos:
        for server in (servers[fifo.src], servers[fifo.dsts[0]]):
            lines = -(-8 * (1 + slots) // _HALF_LINE) + slots + len(fifo.dsts)
            flags[server] += lines * _HALF_LINE
            taken[server] += slots * slot_bytes
            rooms[server] += slots * room_bytes
    apart = {server: _pages(flags[server]) + own for server, own in taken.items()}
    return {server: _pages(own) + rooms[server] if room_bytes else own for server, own in apart.items()}


def _pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _queue_slot_bytes(servers: Sequence[str]) -> int:
    """Bytes of a slot of a queue of transfers between servers."""
    queues = 2 * max(Counter(servers).values()) * len(servers)
    fair = _MOST_QUEUES // (queues * _QUEUE_SLOTS)
    unit = _PAGE if fair >= _PAGE else _HALF_LINE
    return min(max(fair // unit * unit, _HALF_LINE), _QUEUE_SLOT)


def _wired_protocols(entry: Entry) -> tuple[str, ...]:
    """What an entry runs over where couriers join servers."""
    lined = entry.when.protocol == "LL" and not entry.program.in_switch
    return ("LL",) if lined else ("Simple",)


def _protocols(entry: Entry, by_size: bool, has_ll128: bool) -> Iterable[str]:
    if entry.program.weights or entry.program.in_switch:
        return ("Simple",)
    if by_size:
        return ("Simple", "LL", "LL128") if has_ll128 else ("Simple", "LL")
    return ("Simple",) if entry.when.protocol == "LL128" and not has_ll128 else (entry.when.protocol,)


def transfer_bytes(nranks: int, slot_bytes: int, servers: Sequence[str] = ()) -> int:
    """Bytes of each rank for sends and receives, of a communicator whose plan has slots of `slot_bytes`.

    Args:
        servers: of each rank [all on one].
    """
    ranks = Counter(servers)
    if len(ranks) < 2:
        return 0 if nranks == 1 else _lanes_of_a_rank(nranks, *_lanes(nranks, slot_bytes))
    if max(ranks.values()) == 1:
        return 0  # nobody has a rank beside it
    lanes, most = _LANES, _queue_slot_bytes(servers) - _SLOT_HEAD
    while _lanes_of_a_rank(nranks, lanes, most, _QUEUE_SLOTS) > _MOST_LANE_MEMORY and lanes > 1:
        lanes //= 2
    return _lanes_of_a_rank(nranks, lanes, most, _QUEUE_SLOTS)


def _lanes_of_a_rank(nranks: int, lanes: int, most: int, slots: int = _LANE_SLOTS) -> int:
    return 2 * nranks * lanes * _LINE + nranks * lanes * slots * (_SLOT_HEAD + most)


def _lanes(nranks: int, slot_bytes: int) -> tuple[int, int]:
    """Lanes between two ranks in one direction, and bytes of data in one of their slots."""
    lanes, most = _LANES, min(slot_bytes, _LANE_BYTES) // 16 * 16
    while _lanes_of_a_rank(nranks, lanes, most) > _MOST_LANE_MEMORY and (lanes > 1 or most > 4096):
        if most > 32 << 10 or lanes == 1:
            most //= 2
        else:
            lanes //= 2
    return lanes, max(most // 16 * 16, 16)


def pinned_bytes(entries: Sequence[Entry], nranks: int, slot_bytes: int, pairs: Collection[tuple[int, int]]) -> int:
    """Bytes of pinned host memory of a communicator whose `pairs` (the lower rank first) have no peer access.

    Every pair has a region of its own (runtime/cuda/pinned_plan.h), and so have those with PCIe's FIFOs of programs of
    several classes. Where a plan has other FIFOs between `pairs`, LL128 does not run.
    """
    staged = _of_part(entries, "pcie")
    wired = _of_part(entries, "net")
    used = {
        tuple(sorted((fifo.src, dst)))
        for e in entries
        for fifo in e.program.fifos
        for dst in fifo.dsts
        if fifo.memory not in staged and fifo.memory not in wired
    }
    taken: dict[tuple[int, int], int] = dict.fromkeys(pairs, 0)
    for fifo, reader, at_reader in _fifo_ends(entries, None, used.isdisjoint(pairs)):
        pair = (min(fifo.src, reader), max(fifo.src, reader))
        if fifo.memory not in wired and (pair in pairs or fifo.memory in staged):
            taken[pair] = taken.get(pair, 0) + at_reader + _LINE
    lanes, most = _lanes(nranks, slot_bytes)
    region = 2 * lanes * (2 * _LINE + _LANE_SLOTS * (_SLOT_HEAD + most))
    return sum(-(-(own + region * (pair in pairs)) // _REGION) * _REGION for pair, own in taken.items())


def most_pinned_bytes(gpu_bytes: int, nranks: int) -> int:
    """Bytes of pinned host memory of a communicator in which no rank reaches another one's GPU memory, at most.

    Every pair has a region of its own (runtime/cuda/pinned_plan.h) with what would else lie in the arenas of both.

    Args:
        gpu_bytes: what a rank takes of its GPU where all of them reach each other.
    """
    return nranks * gpu_bytes + nranks * (nranks - 1) // 2 * _REGION
