"""Computes the memory that a communicator takes on the CUDA target, as its runtime lays it out.

runtime/cuda/device_plan.h and the files that it includes define the layouts. For the network,
runtime/transport/fifo.cpp and transfers.cpp, runtime/cuda/wire_halves.h and net_halves.h define them. All sizes are in
bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from collc.codegen.entry import Entry
from collc.ir.nodes import Fifo, Program, Through, slots_by_memory
from collc.topology.model import JOINT

_Ints = npt.NDArray[np.int64]

# The size of a line. Each flag has a separate line, and the slots of each FIFO begin at a line.
_LINE_BYTES = 128
# The largest chunks of LL and LL128 if the tables leave the protocol open: kLLChunk and kLL128Chunk of the runtime.
_OPEN_CHUNK_BYTES = {"LL": 16 << 10, "LL128": 120 << 10}

# The alignment of a region of pinned memory: PinnedPlan::kAlign.
_REGION_BYTES = 64 << 10

# Each server has a segment for FIFOs and transfers to other servers, with these lines and pages (transport/fifo.cpp and
# transfers.cpp). A queue of transfers has `_QUEUE_SLOTS` slots, with limits for the size of a slot and of all queues.
_HALF_LINE_BYTES, _PAGE_BYTES = 64, 4096
_QUEUE_SLOTS, _MAX_QUEUE_SLOT_BYTES, _MAX_QUEUE_BYTES = 4, 128 << 10, 32 << 20

# The granularity of memory behind a multicast address, as GPUs report it.
_MULTICAST_BYTES = 2 << 20

# P2p channels of transfers between two ranks, which the runtime calls lanes (lane_plan.h): the largest number of lanes,
# the slots of a lane, the most bytes of data in a slot, the bytes before the data, and the bytes of a rank's
# lanes above which lanes shrink, down to one lane with slots of 4 KiB.
_MAX_LANES, _LANE_SLOTS, _MAX_LANE_SLOT_BYTES, _SLOT_HEAD_BYTES = 8, 2, 128 << 10, 128
_MAX_LANE_BYTES = 16 << 20


def _lines(size: int) -> int:
    """Rounds a size up to whole lines."""
    return -(-size // _LINE_BYTES) * _LINE_BYTES


def _slot_bytes(protocol: str, chunk: int) -> int:
    """Returns the bytes of a slot for a chunk: LL sends a flag with every 4 bytes, LL128 1,024 bytes for 960."""
    if protocol == "LL":
        return 2 * chunk
    return -(-chunk // 960) * 1024 if protocol == "LL128" else _lines(chunk)


class KnownFifos:
    """Numbers the FIFOs of programs. It looks at each tuple of FIFOs once, which saves time if memory is computed
    repeatedly.

    Attributes:
        ends: the source and the first reader of each FIFO, by its number.
        plain: each FIFO has one reader, on the server of its source, and no switch copies or adds.
    """

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._rows: dict[int, tuple[Program, _Ints]] = {}
        self.ends: list[tuple[int, int]] = []
        self.plain = True

    def numbers(self, program: Program) -> _Ints:
        """Returns the number of each FIFO of a program. FIFOs with the same `memory` have the same number."""
        key = id(program.fifos)
        if key not in self._rows:
            self._rows[key] = program, np.array([self._number(program, fifo) for fifo in program.fifos], np.int64)
        return self._rows[key][1]

    def _number(self, program: Program, fifo: Fifo) -> int:
        number = self._numbers.setdefault(fifo.memory, len(self.ends))
        if number == len(self.ends):
            self.ends.append((fifo.src, fifo.dsts[0]))
        is_simple = len(fifo.dsts) == 1 and fifo.through is None
        self.plain &= is_simple and program.server(fifo.src) == program.server(fifo.dsts[0])
        return number


def fifo_bytes_by_rank(
    entries: Sequence[Entry], nranks: int, most: int | None = None, known: KnownFifos | None = None
) -> tuple[int, ...]:
    """Returns the bytes of FIFOs in the GPU memory of each rank of a communicator.

    Every reader of a FIFO has slots for each protocol of the programs with this FIFO. Their number is the largest one
    of these programs, and their size fits the largest chunk. Whether LL128 will run is not known yet, so the
    result is the case, with or without it, whose busiest rank takes more.

    Args:
        nranks: the number of ranks.
        most: the largest chunk, in bytes; larger chunks count as this.
        known: the FIFOs of these programs, and perhaps of others. The function adds missing ones.
    """
    known = known or KnownFifos()
    numbers = {id(entry.program.fifos): known.numbers(entry.program) for entry in entries}
    if known.plain and not any(entry.program.weights for entry in entries):
        ll128, no_ll128 = (_by_number(entries, nranks, most, has_ll128, known, numbers) for has_ll128 in (True, False))
    else:
        ll128, no_ll128 = (_by_rank(entries, nranks, most, has_ll128) for has_ll128 in (True, False))
    return ll128 if max(ll128) >= max(no_ll128) else no_ll128


def _by_number(
    entries: Sequence[Entry],
    nranks: int,
    most: int | None,
    has_ll128: bool,
    known: KnownFifos,
    numbers: Mapping[int, _Ints],
) -> tuple[int, ...]:
    """Returns the result of `_by_rank` faster, for FIFOs that are all plain (`KnownFifos.plain`)."""
    largest, programs = _largest_slots(entries, most, has_ll128, wired=False)
    slots = np.zeros(len(known.ends), np.int64)
    largest_slots = {protocol: np.zeros(len(known.ends), np.int64) for _, protocol in largest}
    for key, program in programs.items():
        slots[numbers[key]] = np.maximum(slots[numbers[key]], program.slots)
    for (key, protocol), slot in largest.items():
        largest_slots[protocol][numbers[key]] = np.maximum(largest_slots[protocol][numbers[key]], slot)
    sources, readers = np.array(known.ends, np.int64).reshape(-1, 2).T
    totals = np.zeros(nranks, np.int64)
    for protocol, slot_bytes in largest_slots.items():
        in_use = slot_bytes > 0
        at_reader = -(-slots[in_use] * slot_bytes[in_use] // _LINE_BYTES) * _LINE_BYTES + (
            _LINE_BYTES if protocol == "Simple" else 0
        )
        np.add.at(totals, sources[in_use], _LINE_BYTES)
        np.add.at(totals, readers[in_use], at_reader)
    return tuple(totals.tolist())


def _by_rank(entries: Sequence[Entry], nranks: int, most: int | None, has_ll128: bool) -> tuple[int, ...]:
    """Returns the bytes of FIFOs in the GPU memory of each rank, without the FIFOs in host memory.

    The slots of FIFOs through a switch are in memory behind a multicast address, at the same offset on every rank.
    """
    totals = [0] * nranks
    host_fifos = _part_fifos(entries, "pcie") | _part_fifos(entries, "net") | _fifos_between_servers(entries).keys()
    multicast_slots: dict[object, int] = {}  # bytes of the slots at one offset
    for fifo, reader, at_reader in _fifo_ends(entries, most, has_ll128):
        if fifo.memory in host_fifos:
            continue
        totals[fifo.src] += _LINE_BYTES
        totals[reader] += at_reader
        if fifo.through is not None:
            head = reader if fifo.through is Through.SUM else fifo.src
            multicast_slots[fifo.through, head, fifo.index] = at_reader - _LINE_BYTES
            totals[reader] += _LINE_BYTES - at_reader
    multicast = -(-sum(multicast_slots.values()) // _MULTICAST_BYTES) * _MULTICAST_BYTES
    return tuple(total + multicast for total in totals)


def _fifo_ends(entries: Sequence[Entry], most: int | None, has_ll128: bool) -> Iterator[tuple[Fifo, int, int]]:
    """Yields, for each FIFO, reader and protocol, the FIFO, the reader and the bytes of its slots and its tail.

    The line of the head, at the source, is not in these bytes. In a plan over several servers, if each server is a
    separate machine, programs run only over Simple or LL. All FIFOs then have the largest number of slots of all
    programs and the largest slot of their protocol, as the halves between servers have.
    """
    wired = bool(_fifos_between_servers(entries))
    largest, programs = _largest_slots(entries, most, has_ll128, wired)
    slots = slots_by_memory(programs.values())
    if wired:
        slots = dict.fromkeys(slots, max(slots.values()))
        by_protocol = {p: max(slot for (_, q), slot in largest.items() if q == p) for _, p in largest}
        largest = {key: by_protocol[key[1]] for key in largest}
    fifo_slots: dict[tuple[str, object], tuple[Fifo, int]] = {}
    for (program_id, protocol), slot in largest.items():
        for fifo in programs[program_id].fifos:
            _, previous = fifo_slots.get((protocol, fifo.memory), (fifo, 0))
            fifo_slots[protocol, fifo.memory] = (fifo, max(slot, previous))
    for (protocol, memory), (fifo, slot) in fifo_slots.items():
        tail = _LINE_BYTES if protocol == "Simple" else 0
        for reader in fifo.dsts:
            yield fifo, reader, _lines(slots[memory] * slot) + tail


def _largest_slots(
    entries: Sequence[Entry], most: int | None, has_ll128: bool, wired: bool
) -> tuple[dict[tuple[int, str], int], dict[int, Program]]:
    """Returns the bytes of the largest slot by program and protocol, and the programs.

    Programs that differ only in their chunks have the same FIFOs, and the largest slot of a protocol is for all of
    them.
    """
    by_size = all(entry.when.protocol == "Simple" for entry in entries)
    largest: dict[tuple[int, str], int] = {}
    programs: dict[int, Program] = {}
    for entry in entries:
        program = programs.setdefault(id(entry.program.fifos), entry.program)
        chunk = entry.program.chunk_bytes if most is None else min(most, entry.program.chunk_bytes)
        for protocol in _wired_protocols(entry) if wired else _protocols(entry, by_size, has_ll128):
            is_open = protocol not in (entry.when.protocol, "Simple")
            slot = _slot_bytes(protocol, min(chunk, _OPEN_CHUNK_BYTES[protocol]) if is_open else chunk)
            key = (id(program.fifos), protocol)
            largest[key] = max(slot, largest.get(key, 0))
    return largest, programs


def _part_fifos(entries: Sequence[Entry], name: str) -> dict[object, Fifo]:
    """Returns the FIFOs of one path class in multi-path programs, by their memory.

    Args:
        name: "pcie" or "net". The FIFOs of these classes are in host memory, even if the GPUs have peer access.
    """
    part = JOINT.index(name)
    programs = {id(entry.program.fifos): entry.program for entry in entries if entry.program.weights}.values()
    fifos = (fifo for program in programs for fifo in program.fifos if program.shares[fifo.share].part == part)
    return {fifo.memory: fifo for fifo in fifos}


def _fifos_between_servers(entries: Sequence[Entry]) -> dict[object, Fifo]:
    """Returns the FIFOs between servers, by their memory."""
    programs = {id(entry.program.fifos): entry.program for entry in entries}.values()
    return {
        fifo.memory: fifo
        for program in programs
        for fifo in program.fifos
        if program.server(fifo.src) != program.server(fifo.dsts[0])
    }


def server_bytes(entries: Sequence[Entry], servers: Sequence[str], slots: int, slot_bytes: int) -> int:
    """Returns the bytes of pinned host memory for the network, on the server that takes the most.

    These are the halves of FIFOs and the queues of transfers between servers. On a single server they are the
    halves of FIFOs whose chunks go over NICs.

    Args:
        servers: the server of each rank.
        slots: the slots of each FIFO.
        slot_bytes: the bytes of a slot.
    """
    ranks = Counter(servers)
    if len(ranks) < 2:
        return _card_bytes(entries, len(servers))
    nranks, queue = len(servers), _queue_slot_bytes(servers)
    halves = _halves(_fifos_between_servers(entries).values(), servers, slots, slot_bytes)
    ll_entries = [entry for entry in entries if _wired_protocols(entry) == ("LL",)]
    chunk = max((entry.program.chunk_bytes for entry in ll_entries), default=0)
    chunk = min(chunk, slot_bytes)
    ll_halves = _halves(_fifos_between_servers(ll_entries).values(), servers, slots, _slot_bytes("LL", chunk), chunk)
    return max(
        _pages(halves[server] + 2 * size * (nranks - size) * (2 * _HALF_LINE_BYTES + _QUEUE_SLOTS * queue))
        + ll_halves[server]
        for server, size in ranks.items()
    )


def _card_bytes(entries: Sequence[Entry], nranks: int) -> int:
    """Returns the bytes of the halves of all ranks of a server, for FIFOs over NICs (runtime/cuda/net_halves.h)."""
    fifos = _part_fifos(entries, "net").values()
    if not fifos:
        return 0
    largest = max(entry.program.chunk_bytes for entry in entries if any(entry.program.weights[JOINT.index("net") :]))
    slots = max(entry.program.slots for entry in entries)
    return sum(map(_pages, _halves(fifos, [str(rank) for rank in range(nranks)], slots, _lines(largest)).values()))


def _halves(
    fifos: Iterable[Fifo], servers: Sequence[str], slots: int, slot_bytes: int, room_bytes: int = 0
) -> dict[str, int]:
    """Returns the bytes of the halves of some FIFOs, by server. Each end of a FIFO has a half.

    Args:
        servers: the server of each rank, or one name per rank if each rank has its own halves.
        room_bytes: additional bytes for each slot, for the data of the lines of LL.
    """
    slot_totals, flags, rooms = (dict.fromkeys(servers, 0) for _ in range(3))
    for fifo in fifos:
        for server in (servers[fifo.src], servers[fifo.dsts[0]]):
            lines = -(-8 * (1 + slots) // _HALF_LINE_BYTES) + slots + len(fifo.dsts)
            flags[server] += lines * _HALF_LINE_BYTES
            slot_totals[server] += slots * slot_bytes
            rooms[server] += slots * room_bytes
    totals = {server: _pages(flags[server]) + size for server, size in slot_totals.items()}
    return {server: _pages(size) + rooms[server] if room_bytes else size for server, size in totals.items()}


def _pages(size: int) -> int:
    """Rounds a size up to whole pages."""
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES


def _queue_slot_bytes(servers: Sequence[str]) -> int:
    """Returns the bytes of a slot in a queue of transfers between servers."""
    queues = 2 * max(Counter(servers).values()) * len(servers)
    limit = _MAX_QUEUE_BYTES // (queues * _QUEUE_SLOTS)
    unit = _PAGE_BYTES if limit >= _PAGE_BYTES else _HALF_LINE_BYTES
    return min(max(limit // unit * unit, _HALF_LINE_BYTES), _MAX_QUEUE_SLOT_BYTES)


def _wired_protocols(entry: Entry) -> tuple[str, ...]:
    """Returns the protocol of an entry in a plan with proxy threads between servers."""
    is_ll = entry.when.protocol == "LL" and not entry.program.in_switch
    return ("LL",) if is_ll else ("Simple",)


def _protocols(entry: Entry, by_size: bool, has_ll128: bool) -> Iterable[str]:
    """Returns the protocols that an entry may run over on one server.

    Args:
        by_size: the tables leave the protocol open, and the runtime chooses it by the size of a call.
        has_ll128: LL128 can run.
    """
    if entry.program.weights or entry.program.in_switch:
        return ("Simple",)
    if by_size:
        return ("Simple", "LL", "LL128") if has_ll128 else ("Simple", "LL")
    return ("Simple",) if entry.when.protocol == "LL128" and not has_ll128 else (entry.when.protocol,)


def transfer_bytes(nranks: int, slot_bytes: int, servers: Sequence[str] = ()) -> int:
    """Returns the most bytes of GPU memory that a rank takes for sends and receives.

    Args:
        nranks: the number of ranks.
        slot_bytes: the bytes of a slot of the plan.
        servers: the server of each rank; default: all ranks are on one server.
    """
    ranks = Counter(servers)
    if len(ranks) < 2:
        return 0 if nranks == 1 else _lane_bytes(nranks, *_lane_sizes(nranks, slot_bytes))
    if max(ranks.values()) == 1:
        return 0  # no server has two ranks
    lanes, data_bytes = _MAX_LANES, _queue_slot_bytes(servers) - _SLOT_HEAD_BYTES
    while _lane_bytes(nranks, lanes, data_bytes, _QUEUE_SLOTS) > _MAX_LANE_BYTES and lanes > 1:
        lanes //= 2
    return _lane_bytes(nranks, lanes, data_bytes, _QUEUE_SLOTS)


def _lane_bytes(nranks: int, lanes: int, data_bytes: int, slots: int = _LANE_SLOTS) -> int:
    """Returns the bytes of all lanes of a rank, with `data_bytes` of data in each slot."""
    return 2 * nranks * lanes * _LINE_BYTES + nranks * lanes * slots * (_SLOT_HEAD_BYTES + data_bytes)


def _lane_sizes(nranks: int, slot_bytes: int) -> tuple[int, int]:
    """Returns the number of lanes from one rank to another, and the bytes of data in a slot of a lane."""
    lanes, data_bytes = _MAX_LANES, min(slot_bytes, _MAX_LANE_SLOT_BYTES) // 16 * 16
    while _lane_bytes(nranks, lanes, data_bytes) > _MAX_LANE_BYTES and (lanes > 1 or data_bytes > 4096):
        if data_bytes > 32 << 10 or lanes == 1:
            data_bytes //= 2
        else:
            lanes //= 2
    return lanes, max(data_bytes // 16 * 16, 16)


def pinned_bytes(entries: Sequence[Entry], nranks: int, slot_bytes: int, pairs: Collection[tuple[int, int]]) -> int:
    """Returns the bytes of pinned host memory of a communicator, for pairs of ranks.

    Each pair without peer access has a separate region (runtime/cuda/pinned_plan.h), and so has each pair with FIFOs of
    the class pcie in multi-path programs. If the plan has other FIFOs between pairs without peer access, LL128 does not
    run.

    Args:
        slot_bytes: the bytes of a slot of the plan.
        pairs: the pairs of ranks without peer access, the lower rank first.
    """
    pcie_fifos = _part_fifos(entries, "pcie")
    net_fifos = _part_fifos(entries, "net")
    fifo_pairs = {
        tuple(sorted((fifo.src, dst)))
        for e in entries
        for fifo in e.program.fifos
        for dst in fifo.dsts
        if fifo.memory not in pcie_fifos and fifo.memory not in net_fifos
    }
    totals: dict[tuple[int, int], int] = dict.fromkeys(pairs, 0)
    for fifo, reader, at_reader in _fifo_ends(entries, None, fifo_pairs.isdisjoint(pairs)):
        pair = (min(fifo.src, reader), max(fifo.src, reader))
        if fifo.memory not in net_fifos and (pair in pairs or fifo.memory in pcie_fifos):
            totals[pair] = totals.get(pair, 0) + at_reader + _LINE_BYTES
    lanes, data_bytes = _lane_sizes(nranks, slot_bytes)
    transfers = 2 * lanes * (2 * _LINE_BYTES + _LANE_SLOTS * (_SLOT_HEAD_BYTES + data_bytes))
    return sum(
        -(-(size + transfers * (pair in pairs)) // _REGION_BYTES) * _REGION_BYTES for pair, size in totals.items()
    )


def most_pinned_bytes(gpu_bytes: int, nranks: int) -> int:
    """Returns an upper bound of the pinned host memory of a communicator without any peer access, in bytes.

    Each pair has a separate region (runtime/cuda/pinned_plan.h). It contains the data that would be in the GPU memory
    of both ranks if they had peer access.

    Args:
        gpu_bytes: the bytes of its GPU that a rank takes if all ranks have peer access.
        nranks: the number of ranks.
    """
    return nranks * gpu_bytes + nranks * (nranks - 1) // 2 * _REGION_BYTES
