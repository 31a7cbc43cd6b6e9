"""Decodes the step tables of a library into its programs and the sets of GPUs that run them.

Every field of every row is checked. Rows have a fixed order: the rows of one owner start where the rows of the previous
owner end, and no row is left over, so that `first_...` fields and counts have one valid value. The object is also
packed again and must be equal byte by byte, so it contains nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from collc.checker import layout
from collc.checker.layout import ARRAYS, When
from collc.collectives.model import Collective
from collc.errors import IRError, RunError
from collc.ir.nodes import Channel, Fifo, Program, Share, Step, Through
from collc.limits import spend
from collc.topology.model import LinkKind

Row = tuple[int, ...]
_COLLECTIVE_OF = {collective.traits.number: collective for collective in Collective}
# The most values of all rows together, where a row itself counts as two. So many of Python's numbers fit in 64 MB.
MOST_VALUES = 2_000_000
_PROTOCOL_OF = {number: protocol for protocol, number in layout.PROTOCOLS.items()}
_LINK_OF = {number: kind for kind, number in layout.LINKS.items()}


@dataclass(frozen=True)
class TableSet:
    """A set of GPUs.

    Attributes:
        gpus: the numbers of the GPUs, ascending.
        allocation: the number of the allocation that serves them.
        ranks: the rank of each GPU in the plan.
        forwarders: the machine's vertices that correspond to the forwarders of the plan's graph, in their order.
    """

    gpus: tuple[int, ...]
    allocation: int
    ranks: tuple[int, ...]
    forwarders: tuple[int, ...]


@dataclass(frozen=True)
class Allocation:
    """The contents of the tables of one allocation. Programs whose rows share steps share the objects of the steps.

    Attributes:
        links: (source, destination, class, MB/s) of each link.
        servers: the number of each rank's server.
        programs, when: each program, and the sizes that it serves.
        fifos: all FIFOs, as the first program that uses each has it.
    """

    nranks: int
    links: tuple[tuple[int, int, LinkKind | None, int], ...]
    servers: tuple[int, ...]
    slots: int
    slot_bytes: int
    programs: tuple[Program, ...]
    when: tuple[When, ...]
    fifos: tuple[Fifo, ...]


@dataclass(frozen=True)
class State:
    """The whole machine, or the machine after a loss.

    Attributes:
        sets: the sets of GPUs that are served in this state.
        classes: the class of each GPU.
        changes: the lost parts as rows: GB/s that are left (numerator and denominator), 1 for a vertex or 0 for a link,
            and its number.
    """

    sets: tuple[TableSet, ...]
    classes: tuple[int, ...]
    changes: tuple[Row, ...]


@dataclass(frozen=True)
class Contents:
    """The contents of tables.

    Attributes:
        states: the first state is the whole machine.
        names: the names of the machine's vertices, GPUs first.
        vertices, links: the machine as rows; empty unless the library survives losses.
        buses: the GPUs' bus ids as in the runtime (plan/gpu_place.h); empty if none is known.
        cards: the NICs as rows.
    """

    allocations: tuple[Allocation, ...]
    states: tuple[State, ...]
    names: tuple[str, ...]
    vertices: tuple[Row, ...]
    links: tuple[Row, ...]
    buses: tuple[int, ...]
    cards: tuple[Row, ...] = ()

    @property
    def sets(self) -> tuple[TableSet, ...]:
        """The sets of all states."""
        return tuple(one for state in self.states for one in state.sets)

    @property
    def ngpus(self) -> int:
        return len(self.states[0].classes)


class _Array:
    """The rows of one array, which are taken in order."""

    def __init__(self, name: str, rows: list[Row]) -> None:
        self.name, self.rows, self.at = name, rows, 0

    def take(self, first: int, count: int) -> list[Row]:
        if first != self.at or count > len(self.rows) - first:
            raise IRError(f"rows {first} to {first + count} of {self.name} were expected to begin at {self.at}")
        self.at += count
        return self.rows[first : first + count]

    def numbers(self, first: int, count: int) -> tuple[int, ...]:
        """Takes rows of one field and returns their values."""
        return tuple(value for (value,) in self.take(first, count))


def decode(image: bytes) -> Contents:
    """Returns the contents of the object `collc_tables`.

    Raises:
        IRError: the compiler would write another object for these contents.
    """
    if len(image) < layout.HEADER_BYTES or len(image) % 8:
        raise IRError(f"an object of {len(image)} bytes holds no tables")
    extents = layout.extents(image)
    counts = {name: count for name, (_, count) in extents.items()}
    values = sum(count * (len(layout.STRUCTS[ARRAYS[name][0]]) + 2) for name, count in counts.items())
    if values > MOST_VALUES:
        raise IRError(f"they have {values} values and rows, and at most {MOST_VALUES} are read")
    spend(8 * values)
    at, size = layout.places(counts)
    if size != len(image) or {name: first for name, (first, _) in extents.items()} != at:
        raise IRError("the arrays are not at the places that follow from their sizes")
    arrays = {}
    for name in ARRAYS:
        row = layout.row_layout(name)
        arrays[name] = _Array(name, list(row.iter_unpack(image[at[name] : at[name] + counts[name] * row.size])))
    if layout.pack({name: array.rows for name, array in arrays.items()}) != image:
        raise IRError("their digest is wrong, or there are bytes between the arrays")
    held = tuple(_allocation(arrays, row) for row in arrays["allocations"].take(0, counts["allocations"]))
    rows = arrays["states"].take(0, counts["states"]) or [(0, counts["gpu_sets"], 0, 0)]
    ngpus = counts["gpu_classes"] // len(rows)
    states = tuple(_state(arrays, number * ngpus, ngpus, *row) for number, row in enumerate(rows))
    try:
        names = bytes(arrays["vertex_names"].numbers(0, counts["vertex_names"])).decode().split("\0")
    except UnicodeDecodeError:
        raise IRError("the names of its vertices are not UTF-8") from None
    if names.pop() or len(names) < ngpus:
        raise IRError(f"the {ngpus} GPUs do not have one name each")
    vertices, links = (tuple(arrays[name].take(0, counts[name])) for name in ("machine_vertices", "machine_links"))
    buses = _buses(arrays["gpu_buses"].numbers(0, counts["gpu_buses"]), ngpus)
    cards = tuple(arrays["cards"].take(0, counts["cards"]))
    _check_cards(cards, {server for one in held for server in one.servers})
    found = Contents(held, states, tuple(names), vertices, links, buses, cards)
    for array in arrays.values():
        if array.at != len(array.rows):
            raise IRError(f"{len(array.rows) - array.at} rows of {array.name} belong to nothing")
    return found


def _buses(found: tuple[int, ...], ngpus: int) -> tuple[int, ...]:
    known = [bus for bus in found if bus]
    if len(set(known)) != len(known) or len(found) not in (0, ngpus if known else 0):
        raise IRError(f"{ngpus} GPUs need different bus ids, one each")
    if any(bus & 0xFF0000FF != 1 for bus in known):
        raise IRError("one of the bus ids is not valid")
    return found


def _check_cards(cards: Sequence[Row], servers: Set[int]) -> None:
    for bus, name, rest, server, _ in cards:
        text = (name | rest << 64).to_bytes(16, "little").rstrip(b"\0")
        known = 1 <= bus & 0xFF <= 8 if bus else text
        if len(servers) < 2 or server not in servers or not known or {0, 47} & set(text) or text[:1] == b".":
            raise IRError("the row of a network card is not valid")


def _state(
    arrays: dict[str, _Array], first_class: int, ngpus: int, first_set: int, nsets: int, first: int, nchanges: int
) -> State:
    sets = []
    for nranks, start, allocation, *forwarders in arrays["gpu_sets"].take(first_set, nsets):
        gpus, ranks = (arrays[name].numbers(start, nranks) for name in ("set_gpus", "set_ranks"))
        sets.append(TableSet(gpus, allocation, ranks, arrays["set_forwarders"].numbers(*forwarders)))
    classes = arrays["gpu_classes"].numbers(first_class, ngpus)
    return State(tuple(sets), classes, tuple(arrays["changes"].take(first, nchanges)))


def _allocation(arrays: dict[str, _Array], row: Row) -> Allocation:
    nranks, first_fifo, nfifos, first_program, nprograms, slots, slot_bytes, first_server, first_link, nlinks = row
    servers = arrays["rank_servers"].numbers(first_server, nranks)
    links = tuple((src, dst, _class(kind), mbps) for src, dst, kind, mbps in arrays["links"].take(first_link, nlinks))
    memory = _Memory([], {})
    own_slots: list[int] = []
    for src, first, count, kind, one, *turn in arrays["fifos"].take(first_fifo, nfifos):
        if not 1 <= one <= slots:
            raise IRError(f"a FIFO has {one} slots, and at most {slots} are allowed")
        own_slots.append(one)
        readers, ways = arrays["fifo_readers"].numbers(first, count), arrays["fifo_routes"].take(first, count)
        routes = tuple(arrays["route_links"].numbers(*way) for way in ways)
        memory.rows.append((src, readers, routes if any(routes) else (), _class(kind), turn))
    rows = arrays["programs"].take(first_program, nprograms)
    made: dict[Row, Program] = {}
    sized: dict[tuple[Row, int, Row], Program] = {}
    used: dict[int, int] = {}  # FIFO -> the slots that its programs need
    programs, when = [], []
    for min_bytes, collective, root, *place, chunk_bytes, protocol, nvlink, pcie, net in rows:
        if collective not in _COLLECTIVE_OF or protocol not in _PROTOCOL_OF or root < -1:
            raise IRError(f"there is no collective {collective}, root {root} or protocol {protocol}")
        weights: Row = (nvlink, pcie, net) if nvlink or pcie or net else ()
        # Programs with the same rows differ only in sizes, because rows of another program start elsewhere.
        key = (collective, root, *place)
        if key not in made:
            step_rows = _Steps(arrays, memory, nranks, place)
            # More slots never cause a wait, so the proof uses the smallest number of slots among the FIFOs.
            least = min((own_slots[f] for f in step_rows.local), default=slots)
            made[key] = Program(
                _COLLECTIVE_OF[collective], None if root < 0 else root, nranks, least, chunk_bytes,
                step_rows.shares, tuple(step_rows.fifos), step_rows.channels, servers if any(servers) else (), weights,
            )  # fmt: skip
            used.update({f: max(least, used.get(f, 0)) for f in step_rows.local})
        if (key, chunk_bytes, weights) not in sized:
            spend(sum(len(steps) for channel in made[key].channels for steps in channel.steps))
            # The proof of the first weighting holds for all weightings of the same classes.
            if [bool(weight) for weight in weights] != [bool(weight) for weight in made[key].weights]:
                raise IRError("rows that share their steps have weights of other classes")
            sized[key, chunk_bytes, weights] = made[key].replace(chunk_bytes=chunk_bytes, weights=weights)
        programs.append(sized[key, chunk_bytes, weights])
        when.append(When(None if min_bytes == layout.NEVER else min_bytes, _PROTOCOL_OF[protocol]))
    if len(used) != nfifos:
        raise IRError(f"{nfifos - len(used)} FIFOs belong to no program")
    if any(own_slots[f] != need for f, need in used.items()) or slots != max(own_slots, default=slots):
        raise IRError("a FIFO has more slots than its programs need, or no FIFO has the largest number")
    if slot_bytes != -(-max((program.chunk_bytes for program in programs), default=0) // 128) * 128:
        raise IRError(f"slots of {slot_bytes} bytes do not fit the largest chunk exactly")
    fifos = tuple(memory.fifos[number] for number in range(nfifos))
    return Allocation(nranks, links, servers, slots, slot_bytes, tuple(programs), tuple(when), fifos)


def _class(number: int) -> LinkKind | None:
    if number not in _LINK_OF:
        raise IRError(f"there is no class of links {number}")
    return _LINK_OF[number]


class _Memory(NamedTuple):
    """The FIFOs of an allocation: rows of (source, readers, routes, class, turn and turns), and decoded FIFOs.

    A decoded FIFO is the one of the first program that uses it.
    """

    rows: list[tuple[int, tuple[int, ...], tuple[tuple[int, ...], ...], LinkKind | None, Sequence[int]]]
    fifos: dict[int, Fifo]


class _Steps:
    """The steps of one program: shares, FIFOs in the order of their first use, channels."""

    def __init__(self, arrays: dict[str, _Array], memory: _Memory, nranks: int, place: Sequence[int]) -> None:
        first_share, nshares, first_rank_channel, nchannels = place
        self.arrays, self.memory = arrays, memory
        self.shares = tuple(self._share(*row) for row in arrays["shares"].take(first_share, nshares))
        self.local: dict[int, int] = {}
        self.used: list[int] = []  # the share of each local FIFO
        self.joined: dict[int, tuple[Through, int]] = {}
        rows = iter(arrays["rank_channels"].take(first_rank_channel, nranks * nchannels))
        by_rank = [[self._loop(rank, *next(rows)) for _ in range(nchannels)] for rank in range(nranks)]
        self.channels = tuple(Channel(tuple(loops)) for loops in zip(*by_rank, strict=True))
        self.fifos = [self._fifo(number, share) for number, share in zip(self.local, self.used, strict=True)]

    def _share(self, low: int, high: int, den: int, block: int, part: int) -> Share:
        if den == 0:
            raise IRError("a share has the denominator 0")
        share = Share(block, Fraction(low, den), Fraction(high, den), part)
        if share.denominator != den:
            raise IRError(f"a share [{low}/{den}, {high}/{den}) is not in lowest terms")
        return share

    def _loop(self, rank: int, first: int, count: int) -> tuple[Step, ...]:
        return tuple(self._step(rank, *row) for row in self.arrays["steps"].take(first, count))

    def _step(
        self, rank: int, first: int, share: int, lag: int, nrecv: int, nsend: int, flags: int, input_at: int
    ) -> Step:
        refs = self.arrays["refs"].take(first, nrecv + nsend)
        for number, (fifo, reader) in enumerate(refs):
            if fifo >= len(self.memory.rows):
                raise IRError(f"there is no FIFO {fifo}")
            readers = self.memory.rows[fifo][1]
            if readers[reader : reader + 1] != (rank,) if number < nrecv else reader:
                raise IRError(f"rank {rank} is not reader {reader} of FIFO {fifo}")
        ids = tuple(self._local(fifo, share) for fifo, _ in refs)
        reads, stores = bool(flags & layout.FLAG_INPUT), bool(flags & layout.FLAG_OUTPUT)
        step = Step(share, lag, reads, ids[:nrecv], stores, ids[nrecv:], input_at)
        summed = self._join(flags & layout.FLAG_SWITCH_SUM, Through.SUM, refs[:nrecv])
        copied = self._join(flags & layout.FLAG_SWITCH_COPY, Through.COPY, refs[nrecv:])
        # The reduction ends at this step. An average divides here.
        final = layout.FLAG_FINAL if (step.reduces and step.output) or summed else 0
        if flags & ~(layout.FLAG_INPUT | layout.FLAG_OUTPUT) != final | summed | copied:
            raise IRError(f"a step of rank {rank} has the flags {flags}")
        return step

    def _join(self, flag: int, what: Through, refs: Sequence[Row]) -> int:
        """Records that a switch does `what` for these FIFOs of a step, and returns the flag; 0 if it does not."""
        if not flag or not refs:
            return 0
        self.joined.update(dict.fromkeys((fifo for fifo, _ in refs), (what, refs[0][0])))
        return flag

    def _local(self, number: int, share: int) -> int:
        if number not in self.local:
            self.local[number] = len(self.used)
            _, readers, routes, *_ = self.memory.rows[number]
            spend(4 + 2 * len(readers) + 4 * sum(map(len, routes)))
            self.used.append(share)
        return self.local[number]

    def _fifo(self, number: int, share: int) -> Fifo:
        # The index only has to distinguish FIFOs, so it is the number. All FIFOs of a step at a switch have the index
        # of the first one, and so have FIFOs that share slots.
        src, readers, routes, link, turn = self.memory.rows[number]
        through, index = self.joined.get(number, (None, number - turn[0]))
        fifo = Fifo(src, readers, share, index, routes, link, through, *turn)
        known = self.memory.fifos.setdefault(number, fifo)
        if (known.through, known.index) != (through, index):
            raise IRError(f"programs use FIFO {number} in several ways at a switch")
        return fifo


def table_error(path: object, error: IRError) -> RunError:
    """Returns the error for a library whose tables cannot be decoded."""
    return RunError(f"its tables are inconsistent: {error}", where=str(path))
