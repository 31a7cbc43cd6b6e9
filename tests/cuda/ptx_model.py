"""PTX's memory model, for programs of a few instructions: every execution that its axioms allow.

The axioms of the PTX ISA ("Memory consistency model") are taken as Lustig, Sahasrabuddhe and Giroux state them ("A
Formal Analysis of the NVIDIA PTX Memory Consistency Model", ASPLOS 2019). Programs are litmus tests in the text form
that herd and Dartagnan read. There are no loops, as in those tools: the last load of a poll stands for the poll. The
model knows loads, stores, atomics, fences, `bar.cta.sync N`, sums and forward branches. It does not cover barriers that
some threads never reach.

Coherence is a partial order in this model. A larger order only forbids more, so the smallest orders are tried: one
direction for each pair of morally strong writes, plus the order that causality gives.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

Relation = list[int]  # by event, the set of its successors as bits


class Unsupported(Exception):
    """The text of a test has something that is not here."""


@dataclass
class Event:
    """`kind` is R, W, F (fence) or B (barrier); `order` weak, relaxed, acquire, release, acq_rel or sc."""

    kind: str
    thread: int
    order: str = ""
    scope: str = ""
    where: str = ""  # location, or the number of a barrier
    value: int = 0
    needs: frozenset[int] = frozenset()  # earlier loads of the thread that it depends on
    pair: int = -1  # of the write of an atomic: its read


@dataclass
class Test:
    """A litmus test: threads with (cta, gpu), their instructions, what must exist, not exist or always hold."""

    places: list[tuple[int, int]]
    code: list[list[str]]
    memory: dict[str, int]
    registers: list[dict[str, int]]
    quantifier: str
    condition: str


@dataclass
class Trace:
    """One way through a thread, given what its loads return."""

    events: list[Event] = field(default_factory=list)
    registers: dict[str, int] = field(default_factory=dict)


def parse(text: str) -> Test:
    """A test from its text."""
    text = re.sub(r"//[^\n]*|\(\*.*?\*\)", "", text, flags=re.DOTALL)
    found = re.match(r"PTX[^{]*\{(.*?)\}(.*?)(~exists|exists|forall)(.*)\Z", text, re.DOTALL)
    if not found or "filter" in text:
        raise Unsupported("the form of the test")
    declared, program, quantifier, condition = found.groups()
    rows = [[cell.strip() for cell in row.split("|")] for row in program.split(";") if row.strip()]
    places = []
    for cell in rows[0]:
        place = re.fullmatch(r"P\d+\s*@\s*cta\s*(\d+)\s*,\s*gpu\s*(\d+)", cell)
        if not place:
            raise Unsupported(cell)
        places.append((int(place[1]), int(place[2])))
    memory: dict[str, int] = {}
    registers: list[dict[str, int]] = [{} for _ in places]
    for entry in filter(None, map(str.strip, declared.split(";"))):
        given = re.fullmatch(r"(?:P(\d+):)?(\w+)\s*=\s*(-?\d+)", entry)
        if not given:
            raise Unsupported(entry)
        (registers[int(given[1])] if given[1] else memory)[given[2]] = int(given[3])
    code = [[row[t] for row in rows[1:] if t < len(row) and row[t]] for t in range(len(places))]
    for line in itertools.chain(*code):
        if access := _ACCESS.fullmatch(line):
            memory.setdefault(access[4 if access[1] == "st" else 5], 0)
    return Test(places, code, memory, registers, quantifier, condition)


_ACCESS = re.compile(r"(ld|st)\.(\w+)(?:\.(\w+))?\s+(\w+)\s*,\s*(\w+)")
_ATOMIC = re.compile(r"(atom|red)\.(\w+)\.(\w+)\.(\w+)\s+(.*)")
_FENCE = re.compile(r"fence\.(acq_rel|sc)\.(\w+)")
_BRANCH = re.compile(r"(beq|bne|blt|bgt|ble|bge)\s+(\w+)\s*,\s*(\w+)\s*,\s*(\w+)")
_BARRIER = re.compile(r"bar\.cta\.sync\s+(\d+)")
_SUM = re.compile(r"(add|sub)\s+(\w+)\s*,\s*(\w+)\s*,\s*(\w+)")
_HOLDS: dict[str, Callable[[int, int], bool]] = {
    "beq": lambda a, b: a == b,
    "bne": lambda a, b: a != b,
    "blt": lambda a, b: a < b,
    "bgt": lambda a, b: a > b,
    "ble": lambda a, b: a <= b,
    "bge": lambda a, b: a >= b,
}
_APPLY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "exch": lambda _, b: b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
}


class _Thread:
    """Runs one thread with given results of its loads; `short` once it needs more of them."""

    def __init__(self, test: Test, number: int, loads: Sequence[int]) -> None:
        self.trace = Trace(registers=dict(test.registers[number]))
        self.number, self.loads, self.used, self.short = number, loads, 0, False
        self.needs: dict[str, frozenset[int]] = {}  # loads that a register's value comes from
        self.control: frozenset[int] = frozenset()
        wait = ""
        for line in test.code[number]:
            if wait:
                wait = "" if line == f"{wait}:" else wait
            elif not line.endswith(":"):
                wait = self.do(line)
            if self.short:
                return

    def value(self, text: str) -> int:
        if re.fullmatch(r"-?\d+", text):
            return int(text)
        if not re.fullmatch(r"r\d+", text):
            raise Unsupported(text)
        return self.trace.registers.get(text, 0)

    def of(self, *texts: str) -> frozenset[int]:
        return self.control.union(*(self.needs.get(text, frozenset()) for text in texts))

    def add(self, kind: str, order: str, scope: str, where: str, value: int, needs: frozenset[int], pair: int) -> int:
        self.trace.events.append(Event(kind, self.number, order, scope, where, value, needs, pair))
        return len(self.trace.events) - 1

    def load(self, order: str, scope: str, where: str, register: str, needs: frozenset[int]) -> int:
        if self.used == len(self.loads):
            self.short = True
            return 0
        got = self.loads[self.used]
        self.used += 1
        at = self.add("R", order, scope, where, got, needs, -1)
        self.trace.registers[register], self.needs[register] = got, frozenset({at})
        return got

    def do(self, line: str) -> str:
        """Runs an instruction; returns the label to go on at, if it jumps."""
        if found := _ACCESS.fullmatch(line):
            kind, order, scope, first, second = found.groups()
            if kind == "st":
                self.add("W", order, scope or "", first, self.value(second), self.of(second), -1)
            else:
                self.load(order, scope or "", second, first, self.control)
        elif found := re.fullmatch(r"ld\s+(r\d+)\s*,\s*(\w+)", line):
            self.trace.registers[found[1]], self.needs[found[1]] = self.value(found[2]), self.of(found[2])
        elif found := _ATOMIC.fullmatch(line):
            self.atomic(found)
        elif found := _FENCE.fullmatch(line):
            self.add("F", found[1], found[2], "", 0, self.control, -1)
        elif found := _BARRIER.fullmatch(line):
            self.add("B", "", "", found[1], 0, self.control, -1)
        elif found := _SUM.fullmatch(line):
            operation, to, a, b = found.groups()
            value, needs = _APPLY[operation](self.value(a), self.value(b)), self.of(a, b)
            self.trace.registers[to], self.needs[to] = value, needs
        elif found := _BRANCH.fullmatch(line):
            name, a, b, label = found.groups()
            self.control = self.of(a, b)
            return label if _HOLDS[name](self.value(a), self.value(b)) else ""
        elif found := re.fullmatch(r"goto\s+(\w+)", line):
            return found[1]
        else:
            raise Unsupported(line)
        return ""

    def atomic(self, found: re.Match[str]) -> None:
        kind, order, scope, operation, rest = found.groups()
        operands = [part.strip() for part in rest.split(",")]
        register = operands.pop(0) if kind == "atom" else "none"
        where, values = operands[0], operands[1:]
        needs = self.of(*values)
        got = self.load(order if order in ("acquire", "acq_rel") else "relaxed", scope, where, register, needs)
        if self.short or (operation == "cas" and got != self.value(values[0])):
            return
        if operation != "cas" and operation not in _APPLY:
            raise Unsupported(operation)
        value = self.value(values[1]) if operation == "cas" else _APPLY[operation](got, self.value(values[0]))
        read = len(self.trace.events) - 1
        written = order if order in ("release", "acq_rel") else "relaxed"
        self.add("W", written, scope, where, value, needs | {read}, read)


def traces(test: Test, number: int, domain: Sequence[int]) -> list[Trace]:
    """All ways through a thread whose loads return values of `domain`."""
    found: list[Trace] = []
    open_: list[tuple[int, ...]] = [()]
    while open_:
        loads = open_.pop()
        thread = _Thread(test, number, loads)
        if thread.short:
            open_ += [(*loads, value) for value in domain]
        else:
            found.append(thread.trace)
    return found


def compose(*relations: Relation) -> Relation:
    """The relations one after another."""
    made = relations[0]
    for after in relations[1:]:
        made = [_union(after[b] for b in bits(row)) for row in made]
    return made


def closure(relation: Relation) -> Relation:
    """Returns the transitive closure of a relation."""
    made = list(relation)
    for middle in range(len(made)):
        for a in range(len(made)):
            if made[a] >> middle & 1:
                made[a] |= made[middle]
    return made


def union(*relations: Relation) -> Relation:
    """The edges of any."""
    return [_union(rows) for rows in zip(*relations, strict=True)]


def both(a: Relation, b: Relation) -> Relation:
    """The edges of both."""
    return [x & y for x, y in zip(a, b, strict=True)]


def bits(row: int) -> Iterator[int]:
    """The numbers in a set."""
    while row:
        low = row & -row
        yield low.bit_length() - 1
        row ^= low


def _union(rows: Sequence[int] | Iterator[int]) -> int:
    made = 0
    for row in rows:
        made |= row
    return made


def _acyclic(relation: Relation) -> bool:
    return not any(row >> a & 1 for a, row in enumerate(closure(relation)))


class Execution:
    """Events of all threads, and the relations that do not depend on the source of each read."""

    def __init__(self, test: Test, chosen: Sequence[Trace]) -> None:
        self.events = [Event("W", -1, "init", "", where, value) for where, value in test.memory.items()]
        self.first: list[int] = []
        for trace in chosen:
            self.first.append(len(self.events))
            self.events += trace.events
        self.count = len(self.events)
        self.places = test.places
        everything = range(self.count)
        ev = self.events

        def relation(holds: Callable[[int, int], bool]) -> Relation:
            return [sum(1 << b for b in everything if holds(a, b)) for a in everything]

        self.id = relation(lambda a, b: a == b)
        self.po = relation(lambda a, b: ev[a].thread == ev[b].thread != -1 and a < b)
        self.loc = relation(lambda a, b: ev[a].kind in "RW" and ev[b].kind in "RW" and ev[a].where == ev[b].where)
        self.po_loc = both(self.po, self.loc)
        self.rmw = relation(lambda a, b: ev[b].pair != -1 and self.first[ev[b].thread] + ev[b].pair == a)
        self.dep = relation(
            lambda a, b: ev[a].thread == ev[b].thread != -1 and a - self.first[ev[a].thread] in ev[b].needs
        )
        self.strong = relation(self.morally_strong)
        self.barrier = relation(
            lambda a, b: (
                ev[a].kind == ev[b].kind == "B"
                and ev[a].thread != ev[b].thread
                and ev[a].where == ev[b].where
                and test.places[ev[a].thread] == test.places[ev[b].thread]
            )
        )
        self.releases = self.only(lambda e: e.kind == "W" and e.order in ("release", "acq_rel"))
        self.acquires = self.only(lambda e: e.kind == "R" and e.order in ("acquire", "acq_rel"))
        self.strong_writes = self.only(lambda e: e.kind == "W" and e.order not in ("weak", "init"))
        self.strong_reads = self.only(lambda e: e.kind == "R" and e.order != "weak")
        self.fences = self.only(lambda e: e.kind == "F")
        self.writes = self.only(lambda e: e.kind == "W")

    def only(self, holds: Callable[[Event], bool]) -> Relation:
        return [1 << a if holds(event) else 0 for a, event in enumerate(self.events)]

    def reaches(self, scope: str, mine: int, other: int) -> bool:
        (cta, gpu), (cta_there, gpu_there) = self.places[mine], self.places[other]
        return scope == "sys" or (gpu == gpu_there and (scope == "gpu" or cta == cta_there))

    def morally_strong(self, a: int, b: int) -> bool:
        one, other = self.events[a], self.events[b]
        if a == b or "B" in (one.kind, other.kind) or -1 in (one.thread, other.thread):
            return False
        if one.kind != "F" and other.kind != "F" and one.where != other.where:
            return False
        if one.thread == other.thread:
            return True
        if "weak" in (one.order, other.order):
            return False
        return self.reaches(one.scope, one.thread, other.thread) and self.reaches(other.scope, other.thread, one.thread)

    def sources(self) -> Iterator[Relation]:
        """Yields every assignment of reads to the writes that give their values."""
        reads = [a for a, e in enumerate(self.events) if e.kind == "R"]
        writers = [
            [
                w
                for w, e in enumerate(self.events)
                if e.kind == "W" and e.where == self.events[r].where and e.value == self.events[r].value
            ]
            for r in reads
        ]
        for choice in itertools.product(*writers):
            made = [0] * self.count
            for read, writer in zip(reads, choice, strict=True):
                made[writer] |= 1 << read
            yield made

    def consistent(self) -> bool:
        """Returns whether the axioms allow this execution."""
        return any(self.allowed(rf) for rf in self.sources())

    def allowed(self, rf: Relation) -> bool:
        if not _acyclic(union(rf, self.dep)):
            return False
        fences = [a for a, e in enumerate(self.events) if e.kind == "F" and e.order == "sc"]
        return any(self.ordered(rf, order) for order in itertools.permutations(fences))

    def cause(self, rf: Relation, sync_fence: Relation) -> Relation:
        observation = both(self.strong, rf)
        while True:
            more = union(observation, compose(observation, self.rmw, observation))
            if more == observation:
                break
            observation = more
        optional_po_loc, optional_po = union(self.id, self.po_loc), union(self.id, self.po)
        release = union(
            compose(self.releases, optional_po_loc, self.strong_writes),
            compose(self.fences, self.po, self.strong_writes),
        )
        acquire = union(
            compose(self.strong_reads, optional_po_loc, self.acquires), compose(self.strong_reads, self.po, self.fences)
        )
        sync = both(self.strong, compose(release, self.strong_writes, observation, self.strong_reads, acquire))
        meet = union(sync, sync_fence, self.barrier)
        base = closure(compose(optional_po, meet, optional_po))
        return union(base, compose(observation, union(base, self.po_loc)))

    def ordered(self, rf: Relation, fences: Sequence[int]) -> bool:
        sync_fence = [0] * self.count
        for a, b in itertools.combinations(fences, 2):
            sync_fence[a] |= self.strong[a] & 1 << b
        cause = self.cause(rf, sync_fence)
        sc = _union(1 << f for f in fences)
        if any(cause[f] & sc & ~sync_fence[f] for f in fences):
            return False
        write_loc = both(compose(self.writes, self.loc, self.writes), [~row for row in self.id])
        least = both(write_loc, cause)
        for a, event in enumerate(self.events):
            if event.order == "init":
                least[a] |= write_loc[a]
        undecided = [
            (a, b)
            for a in range(self.count)
            for b in bits(both(write_loc, self.strong)[a])
            if a < b and self.events[a].order != "init"
        ]
        for turns in itertools.product((False, True), repeat=len(undecided)):
            co = list(least)
            for (a, b), turned in zip(undecided, turns, strict=True):
                co[b if turned else a] |= 1 << (a if turned else b)
            co = closure(co)
            if all(not row >> a & 1 for a, row in enumerate(co)) and self.coherent(rf, co, cause):
                return True
        return False

    def coherent(self, rf: Relation, co: Relation, cause: Relation) -> bool:
        inverse = [sum(1 << w for w in range(self.count) if rf[w] >> r & 1) for r in range(self.count)]
        fr = compose(inverse, co)
        if not _acyclic(union(both(self.strong, union(rf, co, fr)), self.po_loc)):
            return False
        if any(row >> a & 1 for a, row in enumerate(compose(union(rf, fr), cause))):
            return False
        between = compose(both(self.strong, fr), both(self.strong, co))
        return not any(both(between, self.rmw))


def holds(test: Test) -> bool:
    """Returns whether the test's claim about its executions is true."""
    domain = {0, *test.memory.values()}
    for code in test.code:
        for line in code:
            operands = line.partition(" ")[2]
            domain |= {int(n) for n in re.findall(r"(?<![\w.])-?\d+\b", operands)} if "bar." not in line else set()
    sums = sum(bool(_SUM.fullmatch(line)) or ".add" in line for code in test.code for line in code)
    for _ in range(min(sums, 3)):
        domain |= {value + 1 for value in domain}
    each = [traces(test, number, sorted(domain)) for number in range(len(test.places))]
    wanted = test.quantifier != "forall"
    for chosen in itertools.product(*each):
        if _says(test, chosen) == wanted and Execution(test, chosen).consistent():
            return test.quantifier == "exists"
    return test.quantifier != "exists"


def _says(test: Test, chosen: Sequence[Trace]) -> bool:
    """Returns whether the final registers fulfill the condition of the test."""
    text = re.sub(r"/\\", " and ", test.condition)
    text = re.sub(r"\\/", " or ", text)
    text = re.sub(r"(?<![=!<>])=(?!=)", "==", text)
    text = re.sub(r"P?(\d+):\s*(r\d+)", lambda m: str(chosen[int(m[1])].registers.get(m[2], 0)), text)
    if not re.fullmatch(r"[\d\s()=!<>~andor-]*", text):
        raise Unsupported(test.condition)
    return bool(eval(text.replace("~", " not ").strip()))
