"""The verifier: proves, for every element count, that a program computes its collective and cannot deadlock.

The proof of a program of several path classes holds for every weighting, including zeros. The weights of a call only
decide which range of a block each class carries, and the ranges of all classes cover the block without overlap. A class
may get any range, so its shares must cover all of [0, 1) by themselves (`_check_shares`). All other proofs are about
single shares of any length, including 0: a step whose chunk does not exist waits for nothing, and the steps at both
ends of a FIFO process one share, so they skip the same chunks. A skipped share only removes waits from a graph of waits
without cycles. No channel serves two classes, so no class waits for the links of another.

There are five proofs, and each names the place where it fails:

1. *Plumbing*: one step of its source writes each FIFO, and one step of each destination reads it, all in one channel
   and on one share. Both sides process chunks in order, so the k-th send matches the k-th receive. Readers of one FIFO
   are on one server. If FIFOs share slots, their shares are the same range of their blocks, so they have equally many
   chunks in every call. Both ends do their steps in the order of the turns, all turns on chunk k before any on chunk
   k + 1, so the k-th send of turn t has number k * turns + t at both ends.
2. *Values*: following the FIFOs, every step's value is the set of ranks whose inputs it contains. A rank may enter
once.
   Every rank that needs a block stores it exactly once, complete.
3. *Progress*: step s in iteration i must wait for other steps in iterations i - d with constants d. The infinite
   graph of these waits has a cycle if and only if the finite graph of steps has a cycle whose d sum to 0 or less
   (the argument of Karp, Miller and Winograd 1967 on uniform recurrences). If there is none, any number of chunks
   terminates. Channels share no FIFO, so this holds with any number of resident channels, as long as each rank starts
   them in order.
4. *In-place safety*: a rank stores a chunk only after the last step that reads this chunk of its own input.
5. *Same bits*: all ranks that store a share store the same expression, operand by operand, so rounding cannot differ.
   A switch adds in an unknown order, so two of its sums are never the same expression.

If a switch adds or copies for a step, the step has one FIFO for each rank, including the rank of the step. A multicast
address is one offset in the memories of all ranks, so these FIFOs have one index and no other use.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from collc.collectives.blocks import BlockLayout, block_layout, contributors
from collc.collectives.model import Holds
from collc.errors import IRError
from collc.ir.nodes import Program, Step, Through
from collc.limits import spend
from collc.topology.model import JOINT, joint_class


class Place(NamedTuple):
    """A step of a rank in a channel."""

    channel: int
    rank: int
    number: int


def verify(program: Program) -> None:
    """Proves the five claims of the module's docstring for a program.

    Raises:
        IRError: a proof fails. The error has the place and the reason.
    """
    row = program.collective.traits
    blocks_per_block = program.nranks if Holds.TO_EACH in (row.input.holds, row.output.holds) else 1
    joined = sum(len(fifo.dsts) * (1 + len(fifo.dsts) // 16) for fifo in program.fifos)
    spend(program.nranks * (8 * blocks_per_block + len(program.shares)) + 16 * (len(program.shares) + joined))
    spend(64 * sum(len(steps) for channel in program.channels for steps in channel.steps))
    layout = block_layout(program.collective, program.nranks, program.root)
    _check_shares(program, layout)
    writers, readers = _check_plumbing(program)
    _check_turns(program, writers, readers)
    _check_switches(program)
    _check_values(program, layout, writers, readers)
    _check_progress(program, writers, readers)
    _check_in_place(program)
    _check_classes(program)


def _places(program: Program) -> Iterator[tuple[Place, Step]]:
    for c, channel in enumerate(program.channels):
        for r, steps in enumerate(channel.steps):
            for s, step in enumerate(steps):
                yield Place(c, r, s), step


def _step(program: Program, place: Place) -> Step:
    return program.channels[place.channel].steps[place.rank][place.number]


def _where(program: Program, place: Place) -> str:
    name = _step(program, place).name
    return f"channel {place.channel}, rank {place.rank}, step {place.number} ({name})"


def _check_shares(program: Program, layout: BlockLayout) -> None:
    parts: dict[tuple[int, int], list[tuple[Fraction, Fraction, int]]] = defaultdict(list)
    for i, share in enumerate(program.shares):
        if share.block >= layout.nblocks:
            raise IRError(f"block {share.block} does not exist in {program.collective.value}", where=f"share {i}")
        if not (program.weights[share.part] if program.weights else share.part == 0):
            raise IRError(f"is of the class {JOINT[share.part]}, which has no weight", where=f"share {i}")
        parts[share.part, share.block].append((share.lo, share.hi, i))
    # All blocks that some rank must store.
    needed = {block for blocks in {id(one): one for one in layout.out_blocks}.values() for block in blocks}
    classes = [part for part, weight in enumerate(program.weights) if weight] or [0]
    for part, block in itertools.product(classes, sorted(needed)):
        of = f" of {JOINT[part]}" if program.weights else ""
        at = Fraction(0)
        for lo, hi, i in sorted(parts[part, block]):
            if lo != at:
                problem = "overlap" if lo < at else "leave a gap"
                raise IRError(f"the shares of block {block}{of} {problem} at {min(lo, at)}", where=f"share {i}")
            at = hi
        if at != 1:
            raise IRError(f"the shares of block {block}{of} end at {at}, not at 1", where=f"block {block}")


def _check_classes(program: Program) -> None:
    """Checks that no channel serves two path classes, and that every FIFO has the class of its share."""
    if not program.weights:
        return
    for c, channel in enumerate(program.channels):
        found = {program.shares[step.share].part for steps in channel.steps for step in steps}
        if len(found) > 1:
            names = " and ".join(JOINT[part] for part in sorted(found))
            raise IRError(f"works for {names}: one would wait for the other's links", where=f"channel {c}")
    for f, fifo in enumerate(program.fifos):
        own = JOINT[program.shares[fifo.share].part]
        if fifo.link is not None and joint_class([[fifo.link]]) != own:
            raise IRError(f"carries a share of {own} over {fifo.link.value}", where=f"fifo {f}")


Writers = dict[int, Place]
Readers = dict[tuple[int, int], Place]


def _check_plumbing(program: Program) -> tuple[Writers, Readers]:
    writers: Writers = {}
    readers: Readers = {}

    def step_error(place: Place, problem: str) -> IRError:
        return IRError(problem, where=_where(program, place))

    for place, step in _places(program):
        for f in (*step.recv, *step.send):
            if program.fifos[f].share != step.share:
                raise step_error(place, f"works on share {step.share} but fifo {f} carries {program.fifos[f].share}")
        for f in step.send:
            if program.fifos[f].src != place.rank:
                raise step_error(place, f"sends into fifo {f}, which belongs to rank {program.fifos[f].src}")
            if f in writers:
                raise step_error(place, f"sends into fifo {f}, as {_where(program, writers[f])} does")
            writers[f] = place
        for f in step.recv:
            if place.rank not in program.fifos[f].dsts:
                raise step_error(place, f"receives from fifo {f}, which does not lead here")
            if (f, place.rank) in readers:
                raise step_error(place, f"receives from fifo {f} a second time")
            readers[f, place.rank] = place
    for f, fifo in enumerate(program.fifos):
        where = f"fifo {f} (rank {fifo.src} -> {list(fifo.dsts)})"
        if len({program.server(dst) for dst in fifo.dsts}) > 1:
            raise IRError("joins readers on different servers", where=where)
        if f not in writers:
            raise IRError("nobody sends into it", where=where)
        for dst in fifo.dsts:
            if (f, dst) not in readers:
                raise IRError(f"rank {dst} never receives from it", where=f"fifo {f} (rank {fifo.src} -> {dst})")
            if readers[f, dst].channel != writers[f].channel:
                raise IRError("joins two channels", where=f"fifo {f} (rank {fifo.src} -> {dst})")
    seen: dict[tuple[object, ...], int] = {}
    for f, fifo in enumerate(program.fifos):
        if fifo.place in seen:
            raise IRError(f"is the same memory as fifo {seen[fifo.place]}: give it another index", where=f"fifo {f}")
        seen[fifo.place] = f
    return writers, readers


def _check_turns(program: Program, writers: Writers, readers: Readers) -> None:
    """Checks that FIFOs that share slots are one for each turn, join two ranks of a server, and keep their order."""
    found: dict[object, list[int]] = defaultdict(list)
    for f in sorted(range(len(program.fifos)), key=lambda f: program.fifos[f].turn):
        if program.fifos[f].turns > 1:
            found[program.fifos[f].memory].append(f)
    for fifos in found.values():
        first, dst = program.fifos[fifos[0]], program.fifos[fifos[0]].dsts[0]
        shares = [program.shares[program.fifos[f].share] for f in fifos]
        fault = len(first.dsts) > 1 or first.through is not None or program.server(first.src) != program.server(dst)
        if fault or len(fifos) != first.turns or len({(s.lo, s.hi, s.part) for s in shares}) > 1:
            raise IRError("does not have one turn for each of several equal shares", where=f"fifo {fifos[0]}")
        for ends in ([writers[f] for f in fifos], [readers[f, dst] for f in fifos]):
            when = [(_step(program, end).lag, end.number) for end in ends]
            late = when[-1] > (when[0][0] + 1, when[0][1])
            if late or when != sorted(when) or len({end.channel for end in ends}) > 1:
                raise IRError("is out of turn", where=_where(program, ends[0]))


def _check_switches(program: Program) -> None:
    """Checks steps with FIFOs through a switch: one FIFO for each rank, all of one index. Others use no such FIFO."""
    joined: set[int] = set()
    for place, step in _places(program):
        for fifos, kind, ends in (
            (step.recv, Through.SUM, [program.fifos[f].src for f in step.recv]),
            (step.send, Through.COPY, [dst for f in step.send for dst in program.fifos[f].dsts]),
        ):
            if not any(program.fifos[f].through is kind for f in fifos):
                continue
            where = _where(program, place)
            if not all(program.fifos[f].through is kind for f in fifos):
                raise IRError(f"mixes FIFOs through the switch with others: {list(fifos)}", where=where)
            if sorted(ends) != list(range(program.nranks)):
                missing = sorted({*range(program.nranks)} - {*ends})
                problem = f"leaves out ranks {missing}" if missing else "names a rank twice"
                raise IRError(f"the switch serves all ranks, and its FIFOs {list(fifos)} {problem}", where=where)
            if len({program.fifos[f].index for f in fifos}) > 1:
                raise IRError(f"the FIFOs {list(fifos)} lie at one offset, and have several indices", where=where)
            if step.input and kind is Through.SUM:
                raise IRError("adds its own input to what the switch has added up", where=where)
            joined.update(fifos)
    for f, fifo in enumerate(program.fifos):
        if fifo.through is not None and f not in joined:
            raise IRError(f"a switch does {fifo.through.value} for it, but not for its step", where=f"fifo {f}")
        if fifo.through is not None and program.servers:
            raise IRError("goes through the switch of one server, and ranks are on several", where=f"fifo {f}")


def _check_values(program: Program, layout: BlockLayout, writers: Writers, readers: Readers) -> None:
    # A set of ranks is an integer with one bit per rank, because sets of hundreds of ranks would take gigabytes.
    values: dict[Place, int] = {}
    stored: dict[tuple[int, int], Place] = {}
    formulas = _Formulas()
    written: dict[Place, int] = {}
    results: dict[int, tuple[int, Place]] = {}
    complete: dict[int, int] = {}

    def step_error(place: Place, problem: str) -> IRError:
        return IRError(problem, where=_where(program, place))

    for place in _in_data_order(program, writers):
        step = _step(program, place)
        block = program.shares[step.share].block
        if step.input and block not in layout.in_blocks[place.rank]:
            raise step_error(place, f"reads block {block}, which is not in the input of rank {place.rank}")
        value = 1 << place.rank if step.input else 0
        for f in step.recv:
            got = values[writers[f]]
            if value & got:
                raise step_error(place, f"the input of rank {_ranks(value & got)[0]} is reduced twice")
            value |= got
        values[place] = value
        operands = [written[writers[f]] for f in step.recv]
        if step.input:
            operands.insert(step.input_at, formulas.input(place.rank))
        if program.sums_in_switch(step):
            written[place] = formulas.summed(place)
        else:
            written[place] = formulas.reduced(operands)
        if step.output:
            if block not in layout.out_blocks[place.rank]:
                raise step_error(place, f"stores block {block}, which is not in the output of rank {place.rank}")
            if (place.rank, step.share) in stored:
                raise step_error(place, f"stores share {step.share} a second time")
            stored[place.rank, step.share] = place
            if block not in complete:
                complete[block] = _complete(program, layout, block)
            if value != complete[block]:
                missing, extra = _ranks(complete[block] & ~value), _ranks(value & ~complete[block])
                problem = (
                    f"lacks the input of ranks {missing}" if missing else f"holds the input of ranks {extra} too many"
                )
                raise step_error(place, f"stores an incomplete result: it {problem}")
            formula, first = results.setdefault(step.share, (written[place], place))
            if formula != written[place]:
                raise step_error(place, f"reduces in another order than {_where(program, first)} does")
    for s, share in enumerate(program.shares):
        for rank in range(program.nranks):
            if share.block in layout.out_blocks[rank] and (rank, s) not in stored:
                raise IRError(f"rank {rank} never stores share {s} of block {share.block}", where=f"share {s}")


class _Formulas:
    """Numbers for expressions. Two numbers are equal if and only if the operands are equal, in order."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, ...], int] = {}

    def input(self, rank: int) -> int:
        return self.numbers.setdefault((rank,), len(self.numbers))

    def reduced(self, operands: list[int]) -> int:
        """Returns the number of a reduction from left to right, as both targets compute it."""
        value = operands[0]
        for operand in operands[1:]:
            value = self.numbers.setdefault((value, operand), len(self.numbers))
        return value

    def summed(self, place: Place) -> int:
        """Returns the number of a sum in a switch, which equals no other expression."""
        return self.numbers.setdefault((-1, *place), len(self.numbers))


def _complete(program: Program, layout: BlockLayout, block: int) -> int:
    """Returns the ranks whose input a stored block must contain, one bit each."""
    expected = contributors(program.collective, program.nranks)
    if expected is None:
        expected = frozenset(r for r in range(program.nranks) if block in layout.in_blocks[r])
    return sum(1 << rank for rank in expected)


def _ranks(bits: int) -> list[int]:
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


def _in_data_order(program: Program, writers: Writers) -> Iterator[Place]:
    """Yields steps so that the writer of a FIFO precedes its readers."""
    done: set[Place] = set()
    for start, first in _places(program):
        if start in done:
            continue
        stack = [(start, iter(first.recv))]
        open_places = {start}
        while stack:
            place, recv = stack[-1]
            f = next(recv, None)
            if f is None:
                stack.pop()
                open_places.discard(place)
                done.add(place)
                yield place
                continue
            source = writers[f]
            if source in open_places:
                raise IRError(f"waits for its own result through fifo {f}", where=_where(program, place))
            if source not in done:
                open_places.add(source)
                stack.append((source, iter(_step(program, source).recv)))


# Step `waiter` in iteration i waits for step `source` in iteration i - distance: (waiter, source, distance, why, FIFO).
# Steps are numbered within their channel. These are plain tuples because there are millions.
_Wait = tuple[int, int, int, str, int]


def _check_progress(program: Program, writers: Writers, readers: Readers) -> None:
    """Checks that no channel has a cycle of waits whose iteration distances sum to 0 or less."""
    crossing: list[list[tuple[int, Place]]] = [[] for _ in program.channels]
    same = {fifo.place: f for f, fifo in enumerate(program.fifos) if fifo.turns > 1}
    for (f, _), reader in readers.items():
        crossing[reader.channel].append((f, reader))
    for c, channel in enumerate(program.channels):
        first, count = [], 0
        waits: list[_Wait] = []
        for steps in channel.steps:
            first.append(count)
            for n in range(count, count + len(steps)):
                before = n - 1 if n > count else count + len(steps) - 1
                waits.append((n, before, int(n == count), "runs after", -1))
            count += len(steps)
        for f, reader in crossing[c]:
            fifo, writer = program.fifos[f], writers[f]
            back, turn = divmod(fifo.turn - program.slots, fifo.turns)
            frees = reader if fifo.turns == 1 else readers[same[*fifo.memory, turn], reader.rank]
            r, w, b = (first[place.rank] + place.number for place in (reader, writer, frees))
            lag = _step(program, writer).lag
            waits.append((r, w, _step(program, reader).lag - lag, "receives fifo {} from", f))
            waits.append((w, b, lag - _step(program, frees).lag - back, "needs a slot of fifo {} freed by", f))
        cycle = _tight_cycle(waits, count)
        if cycle:
            places = [Place(c, r, s) for r, steps in enumerate(channel.steps) for s in range(len(steps))]
            text = ", which ".join(f"{why.format(f)} {_where(program, places[s])}" for _, s, _, why, f in cycle)
            last = _where(program, places[cycle[-1][1]])
            raise IRError(f"deadlock with {program.slots} slots: {text}", where=last)


def _tight_cycle(waits: list[_Wait], nodes: int) -> list[_Wait]:
    """Returns a cycle whose distances sum to 0 or less, or [] if there is none.

    Bellman-Ford with weights d * (V + 1) - 1, whose sum is negative exactly on cycles with sum(d) <= 0. Takes O(V E).
    """
    potential = [0] * nodes
    cause = [-1] * nodes
    changed = -1
    for _ in range(nodes):
        spend(2 * len(waits))
        changed = -1
        for i, (waiter, source, distance, _, _) in enumerate(waits):
            reached = potential[source] + distance * (nodes + 1) - 1
            if reached < potential[waiter]:
                potential[waiter] = reached
                cause[waiter] = i
                changed = waiter
        if changed < 0:
            return []
    for _ in range(nodes):
        changed = waits[cause[changed]][1]
    cycle: list[_Wait] = []
    at = changed
    while not cycle or at != changed:
        cycle.append(waits[cause[at]])
        at = cycle[-1][1]
    return cycle


def _check_in_place(program: Program) -> None:
    reads: dict[tuple[int, int], list[Place]] = defaultdict(list)
    stores: dict[tuple[int, int], Place] = {}
    for place, step in _places(program):
        if step.input:
            reads[place.rank, step.share].append(place)
        if step.output:
            stores[place.rank, step.share] = place
    for key, store in stores.items():
        at = (_step(program, store).lag, store.number)
        for read in reads[key]:
            if read.channel != store.channel or (_step(program, read).lag, read.number) > at:
                late = (
                    f"reads share {key[1]} of its input after {_where(program, store)} may have overwritten it in place"
                )
                raise IRError(late, where=_where(program, read))
