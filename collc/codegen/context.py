"""Makes the rows of the step tables from programs. The template only prints the rows; this module decides all.

The rows mirror the structs of templates/include/collc/tables.h. `collc.checker.layout` alone describes their layout:
the generated source asserts it against the header, and `collc verify` decodes a built library with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from collc.checker import layout
from collc.checker.layout import (
    ALWAYS,
    ARRAYS,
    FLAG_FINAL,
    FLAG_INPUT,
    FLAG_OUTPUT,
    FLAG_SWITCH_COPY,
    FLAG_SWITCH_SUM,
    LINKS,
    NEVER,
    PROTOCOLS,
    STRUCTS,
    When,
)
from collc.ir.nodes import Fifo, Program, Step, slots_by_memory
from collc.ir.printer import print_step, print_weights
from collc.packing.sets.gpu_sets import GpuSets, MachineState
from collc.packing.sets.nics import Card
from collc.topology.model import JOINT, LinkKind, PlanGraph, VertexKind


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table.

    Attributes:
        cells: the C++ initializers of the fields.
        comment: the meaning of the row, for readers of the generated file.
    """

    cells: str
    comment: str


@dataclass(frozen=True, slots=True)
class Table:
    """One array of the generated source.

    Attributes:
        element: the C++ type of a row.
        count: the number of rows.
        length: `count`, or 1 for an array without rows, which gets a filler (C++ has no empty array).
        at: the offset of the array in the object, in bytes.
    """

    name: str
    element: str
    count: int
    length: int
    at: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class StructLayout:
    """The contents of the static_asserts about one struct.

    Attributes:
        element: the C++ name of the struct.
        size: its size in bytes.
        fields: the name of each field and its offset in bytes; empty for a type that is no struct of collc.
    """

    element: str
    size: int
    fields: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SourceContext:
    """The values that templates/tables.cpp.j2 prints."""

    version: str
    fingerprint: str
    layouts: tuple[StructLayout, ...]
    link_classes: tuple[tuple[str, int], ...]
    tables: tuple[Table, ...]
    image_size: int
    digest: int
    manifest_rows: tuple[str, ...]
    manifest_size: int
    plan_rows: tuple[str, ...]
    plan_size: int


def step_flags(program: Program, step: Step) -> int:
    """Returns the StepFlags of tables.h for a step."""
    sums, copies = program.sums_in_switch(step), program.copies_in_switch(step)
    final = FLAG_FINAL if (step.reduces and step.output) or sums else 0
    flags = (FLAG_INPUT if step.input else 0) | (FLAG_OUTPUT if step.output else 0) | final
    return flags | (FLAG_SWITCH_SUM if sums else 0) | (FLAG_SWITCH_COPY if copies else 0)


class TableBuilder:
    """Collects the rows of all allocations of a library."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {array: [] for array in ARRAYS}
        self._numbers: dict[str, list[list[int]]] = {array: [] for array in ARRAYS}

    def add_allocation(
        self,
        programs: Sequence[Program],
        *,
        slot_bytes: int,
        when: Sequence[When] | None = None,
        graph: PlanGraph | None = None,
    ) -> None:
        """Adds an allocation: a set of ranks with its programs.

        FIFOs of different programs with the same `place` get one row. Programs that have the same objects as shares,
        FIFOs and channels differ only in their chunks, and also share their rows.

        Args:
            slot_bytes: the size of a slot, in bytes.
            when: the rule of each program; default: each program runs from 0 bytes on.
            graph: the graph of the plans; None if the programs were built without a graph.
        """
        first_fifo, first_program = len(self.rows["fifos"]), len(self.rows["programs"])
        first_server, first_link = len(self.rows["rank_servers"]), len(self.rows["links"])
        for rank in range(programs[0].nranks):
            self._append("rank_servers", (programs[0].server(rank),), f"server of rank {rank}")
        for link in graph.links if graph else ():
            cells = (link.src, link.dst, LINKS[link.kind], layout.mbps(link.gbps))
            self._append("links", cells, f"link {link.id}: {link.kind.value}")
        numbers: dict[tuple[object, ...], int] = {}
        slots = slots_by_memory(programs)
        places: dict[tuple[int, int, int], tuple[int, int]] = {}
        for program, rule in zip(programs, when or [ALWAYS] * len(programs), strict=True):
            objects = (id(program.shares), id(program.fifos), id(program.channels))
            if objects not in places:
                places[objects] = self._add_steps(program, numbers, slots)
            self._add_program(program, rule, *places[objects])
        nranks, max_slots = programs[0].nranks, max(program.slots for program in programs)
        self._append(
            "allocations",
            (
                *(nranks, first_fifo, len(numbers), first_program, len(programs), max_slots, slot_bytes),
                *(first_server, first_link, len(self.rows["links"]) - first_link),
            ),
            f"{nranks} ranks, {len(numbers)} FIFOs",
        )

    def add_gpu_sets(self, sets: GpuSets, graphs: Sequence[PlanGraph]) -> None:
        """Adds the GPU sets and the allocation that each of them runs.

        The numbers of allocations follow the order of the calls of `add_allocation`.

        Args:
            graphs: the graph of each allocation's plans.
        """
        for state in sets.states or (MachineState(None, sets.classes, len(sets.sets)),):
            loss = f", lost: {state.loss.what}" if state.loss else ""
            for gpu, number in enumerate(state.classes):
                self._append("gpu_classes", (number,), f"class of GPU {gpu}{loss}")
        for vertex, name in enumerate(sets.vertex_names):
            for byte in f"{name}\0".encode():
                self._append("vertex_names", (byte,), f"name of vertex {vertex}")
        for name, bus in zip(sets.names, sets.buses, strict=False):
            self._append("gpu_buses", (bus,), f"bus id of {name}" if bus else f"{name}: not known")
        for gpu_set, forwarders in zip(sets.sets, sets.forwarders(graphs), strict=True):
            first, first_forwarder = len(self.rows["set_gpus"]), len(self.rows["set_forwarders"])
            text = ",".join(map(str, gpu_set.gpus))
            cells = (len(gpu_set.gpus), first, gpu_set.allocation, first_forwarder, len(forwarders))
            self._append("gpu_sets", cells, f"GPUs {text}")
            for number, vertex in enumerate(forwarders, len(gpu_set.gpus)):
                self._append("set_forwarders", (vertex,), f"plays vertex {number} of the plan")
            for gpu, rank in zip(gpu_set.gpus, gpu_set.ranks, strict=True):
                self._append("set_gpus", (gpu,), f"GPU {gpu} of {text}")
                self._append("set_ranks", (rank,), f"is rank {rank}")

    def add_cards(self, cards: Iterable[Card]) -> None:
        """Adds the NICs of a plan over several servers."""
        for card in cards:
            names = " ".join(filter(None, (card.name, card.pci)))
            cells = (card.bus, *card.packed_name, card.server, card.network)
            self._append("cards", cells, f"{card.vertex}: {names} on server {card.server}")

    def add_states(self, sets: GpuSets, graphs: Sequence[PlanGraph]) -> None:
        """Adds the machine and its states, such as a state after a loss that the library survives.

        A state consists of its GPU sets and of the changes that it makes to the machine. Adds nothing if `sets` has no
        states.

        Args:
            graphs: the graph of each allocation's plans.
        """
        if not sets.states:
            return
        for vertex in sets.vertices:
            self._append("machine_vertices", (list(VertexKind).index(vertex.kind),), f"{vertex.name}")
        number = {name: i for i, name in enumerate(sets.vertex_names)}
        link_number: dict[tuple[str, str, LinkKind], int] = {}
        for link in sets.links(graphs):
            link_number[link.src, link.dst, link.kind] = len(link_number)
            cells = (*link.gbps.as_integer_ratio(), number[link.src], number[link.dst], LINKS[link.kind])
            self._append("machine_links", cells, f"{link.src} -> {link.dst}, {link.gbps} GB/s")
        first_set = 0
        for state in sets.states:
            first = len(self.rows["changes"])
            vertices, links = (state.loss.gone, state.loss.thinner) if state.loss else ((), ())
            for name in (*state.gone, *vertices):
                self._append("changes", (0, 1, 1, number[name]), f"without {name}")
            for src, dst, kind, gbps in links:
                change = (*gbps.as_integer_ratio(), 0, link_number[src, dst, kind])
                self._append("changes", change, f"{src} -> {dst}: {gbps} GB/s left")
            text = f"lost: {state.loss.what}" if state.loss else state.server or "the whole machine"
            self._append("states", (first_set, state.nsets, first, len(self.rows["changes"]) - first), text)
            first_set += state.nsets

    def losses(self) -> list[list[tuple[int, ...]]]:
        """Returns the rows of `changes` of each state of the machine."""
        rows = [tuple(row) for row in self._numbers["changes"]]
        return [rows[first : first + count] for *_, first, count in self._numbers["states"]]

    def counts(self) -> dict[str, int]:
        """Returns the number of rows of each array."""
        return {array: len(numbers) for array, numbers in self._numbers.items()}

    def image(self) -> bytes:
        """Returns the bytes of the tables, as a library contains them."""
        return layout.pack(self._numbers)

    def tables(self) -> tuple[Table, ...]:
        """Returns the arrays, in their order in memory."""
        offsets, _ = layout.places(self.counts())
        tables = []
        for array, (struct, element) in ARRAYS.items():
            count = len(self._numbers[array])
            filler = [Row(_cells(struct, [0] * len(STRUCTS[struct])), "unused")]
            tables.append(
                Table(array, element, count, max(count, 1), offsets[array], tuple(self.rows[array] or filler))
            )
        return tuple(tables)

    def _append(self, array: str, values: Iterable[int], comment: str) -> None:
        """Adds a row, and asserts that no value is too large for its field."""
        struct = ARRAYS[array][0]
        numbers = list(values)
        assert len(numbers) == len(STRUCTS[struct])
        for value, (_, code) in zip(numbers, STRUCTS[struct], strict=True):
            assert value < 1 << {"B": 8, "H": 16, "I": 32, "i": 31, "Q": 64}[code], (array, value)
        self._numbers[array].append(numbers)
        self.rows[array].append(Row(_cells(struct, numbers), comment))

    def _add_steps(
        self, program: Program, numbers: dict[tuple[object, ...], int], slots: Mapping[object, int]
    ) -> tuple[int, int]:
        """Adds the shares, FIFOs, channels and steps of a program.

        Args:
            numbers: the numbers of FIFOs by their `place`; new FIFOs are added.
            slots: the number of slots by `Fifo.memory`.

        Returns:
            The row of the program's first share and the row of its first rank channel.
        """
        first_share = len(self.rows["shares"])
        for i, share in enumerate(program.shares):
            den = share.denominator
            cells = (int(share.lo * den), int(share.hi * den), den, share.block, share.part)
            path = f" of {JOINT[share.part]}" if program.weights else ""
            self._append("shares", cells, f"share {i}: block {share.block} [{share.lo}, {share.hi}){path}")
        by_memory: dict[object, list[Fifo]] = {}
        for fifo in program.fifos:
            by_memory.setdefault(fifo.memory, []).append(fifo)
        for fifos in by_memory.values():
            for fifo in sorted(fifos, key=lambda fifo: fifo.turn):
                if fifo.place not in numbers:
                    self._add_fifo(fifo, slots[fifo.memory], numbers)
        first_rank_channel = len(self.rows["rank_channels"])
        for rank in range(program.nranks):
            for c, channel in enumerate(program.channels):
                steps = channel.steps[rank]
                first_step = len(self.rows["steps"])
                self._append("rank_channels", (first_step, len(steps)), f"rank {rank}, channel {c}")
                for step in steps:
                    self._add_step(program, rank, step, numbers)
        return first_share, first_rank_channel

    def _add_program(self, program: Program, rule: When, first_share: int, first_rank_channel: int) -> None:
        root = -1 if program.root is None else program.root
        name = program.collective.value + ("" if program.root is None else f" from rank {program.root}")
        if rule.min_bytes is None:
            name += ", by tuning only"
        elif rule.min_bytes:
            name += f", {rule.min_bytes} bytes and more"
        name += f", {print_weights(program.weights)}" if program.weights else ""
        self._append(
            "programs",
            (
                NEVER if rule.min_bytes is None else rule.min_bytes,
                program.collective.traits.number,
                root,
                first_share,
                len(program.shares),
                first_rank_channel,
                len(program.channels),
                program.chunk_bytes,
                PROTOCOLS[rule.protocol],
                *(program.weights or (0,) * len(JOINT)),
            ),
            name,
        )

    def _add_fifo(self, fifo: Fifo, slots: int, numbers: dict[tuple[object, ...], int]) -> None:
        number = numbers[fifo.place] = len(numbers)
        readers = len(self.rows["fifo_readers"]), len(fifo.dsts)
        cells = (fifo.src, *readers, LINKS[fifo.link], slots, fifo.turn, fifo.turns)
        details = f" over {fifo.link.value}" if fifo.link else ""
        details += f", turn {fifo.turn} of {fifo.turns}" if fifo.turns > 1 else ""
        self._append("fifos", cells, f"fifo {number}: {fifo.src} -> {', '.join(map(str, fifo.dsts))}{details}")
        for dst, route in zip(fifo.dsts, fifo.routes or ((),) * len(fifo.dsts), strict=True):
            self._append("fifo_readers", (dst,), f"fifo {number}")
            self._append("fifo_routes", (len(self.rows["route_links"]), len(route)), f"fifo {number} to rank {dst}")
            for link in route:
                self._append("route_links", (link,), f"fifo {number} to rank {dst}")

    def _add_step(self, program: Program, rank: int, step: Step, numbers: dict[tuple[object, ...], int]) -> None:
        first_ref = len(self.rows["refs"])
        for f in (*step.recv, *step.send):
            fifo = program.fifos[f]
            number = numbers[fifo.place]
            reader = fifo.dsts.index(rank) if f in step.recv else 0
            text = f"receive from rank {fifo.src}" if f in step.recv else f"send to {', '.join(map(str, fifo.dsts))}"
            self._append("refs", (number, reader), text)
        cells = (
            first_ref,
            step.share,
            step.lag,
            len(step.recv),
            len(step.send),
            step_flags(program, step),
            step.input_at,
        )
        self._append("steps", cells, f"rank {rank}: {print_step(step)}")


# The C++ types of the fields that are enums.
_ENUMS = {"collective": "collc::Collective", "link": "collc::LinkClass", "kind": "collc::LinkClass"}


def _cells(struct: str, values: Iterable[int]) -> str:
    """Returns the C++ initializer of a row, with unsigned literals for numbers of 2^63 or more."""
    names = (name for name, _ in STRUCTS[struct])
    texts = (f"{v}u" if v >= 1 << 63 else str(v) for v in values)
    return ", ".join(f"{_ENUMS[name]}({v})" if name in _ENUMS else v for name, v in zip(names, texts, strict=True))


def link_classes() -> tuple[tuple[str, int], ...]:
    """Returns the enumerators of collc::LinkClass and their numbers, for static_asserts."""
    return tuple((f"k{(kind.value if kind else 'none').capitalize()}", number) for kind, number in LINKS.items())


# Bytes of a field, by its `struct` code.
_FIELD_BYTES = {"B": 1, "H": 2, "I": 4, "i": 4, "Q": 8}


def layouts() -> tuple[StructLayout, ...]:
    """Returns the size and the field offsets of every struct, in bytes, for static_asserts."""
    extents = [(array, 16 + 8 * i) for i, array in enumerate(ARRAYS)]
    result = [StructLayout("collc::TablesHeader", layout.HEADER_BYTES, (("digest", 0), ("bytes", 8), *extents))]
    for name, element in dict(ARRAYS.values()).items():
        fields, offset = [], 0
        for field_name, code in STRUCTS[name]:
            assert offset % _FIELD_BYTES[code] == 0
            fields.append((field_name, offset))
            offset += _FIELD_BYTES[code]
        result.append(StructLayout(element, offset, tuple(fields) if element.startswith("collc::") else ()))
    return tuple(result)
