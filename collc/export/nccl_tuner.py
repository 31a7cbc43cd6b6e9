"""Makes tables for NCCL's tuner plugin: the algorithm and protocol for each collective, number of ranks and size.

A table comes from the model, which compares NCCL's algorithms with NCCL's default choice, or from measurements. It has
a choice only for sizes where that choice beats NCCL's default by a margin. In the model, the margin is at least the
model's error. For other sizes NCCL chooses.

Source: NVIDIA/nccl, src/include/plugin/tuner and ncclGetAlgoInfo of src/enqueue.cc.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collc.collectives.model import Collective
from collc.collectives.sizes import short_size
from collc.errors import CollcError, PackingError
from collc.inputs import read_text
from collc.simulator.claims import Claim, Claims
from collc.simulator.nccl import Nccl
from collc.simulator.nccl.versions import PROTOCOLS
from collc.simulator.params import Machine
from collc.simulator.run import Simulator
from collc.topology.model import PlanGraph

# NCCL's numbers (src/include/plugin/nccl_tuner.h, src/include/nccl_common.h).
ALGORITHMS = {"Tree": 0, "Ring": 1, "CollNetDirect": 2, "CollNetChain": 3, "NVLS": 4, "NVLSTree": 5, "PAT": 6}
PROTOCOL_NUMBERS = {"LL": 0, "LL128": 1, "Simple": 2}
# The collectives that NCCL can tune, in the order of ncclFunc_t, by the names of their C functions.
_FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
FUNCTIONS = {c: _FUNCTIONS.index(c.traits.title) for c in Collective if c.traits.title in _FUNCTIONS}
MAX_CHANNELS = 64
# The ratio of NCCL's default time to the time of a choice that is needed: always, and if no measurement was compared
# with the model.
MARGIN = 1.1
UNCOMPARED = 1.25
# The model's CollNet represents both CollNet algorithms of NCCL.
_MODELED = {"CollNet": "CollNetChain"}
_KEPT = 3
_MOST_BYTES = 64 << 20
# Names of NCCL's default choice in a file of measurements.
_OWN = ("default", "auto")


@dataclass(frozen=True, order=True)
class Choice:
    """An algorithm and a protocol by NCCL's names, and the number of channels; 0 for NCCL's default."""

    algorithm: str
    protocol: str
    channels: int = 0

    def __str__(self) -> str:
        return f"{self.algorithm}/{self.protocol}" + (f"x{self.channels}" if self.channels else "")


@dataclass(frozen=True)
class TunerRow:
    """A row of a table.

    Attributes:
        least: the smallest message of the row, in bytes as nccl-tests counts.
        choices: the choices in order of preference; empty for NCCL's default.
        gain: the ratio of NCCL's default time to the time of the first choice; None if unknown.
    """

    least: int
    choices: tuple[Choice, ...]
    gain: float | None


@dataclass(frozen=True)
class TunerTable:
    """The rows of one collective on communicators of `ranks` GPUs on `nodes` servers. The first starts at 0 bytes."""

    collective: Collective
    ranks: int
    nodes: int
    rows: tuple[TunerRow, ...]

    @property
    def tuned(self) -> bool:
        """True if any row has a choice."""
        return any(row.choices for row in self.rows)

    def to_json(self) -> dict[str, object]:
        return {
            "collective": self.collective.value,
            "ranks": self.ranks,
            "nodes": self.nodes,
            "rows": [
                {"min_bytes": row.least, "choices": [str(c) for c in row.choices], "gain": row.gain}
                for row in self.rows
            ],
        }


@dataclass(frozen=True)
class Times:
    """The times of one collective and size on one set of GPUs, in microseconds.

    Attributes:
        own: the time of NCCL's default choice; None if unknown.
        made: the time of each choice.
        margin: the gain that a choice needs.
    """

    own: float | None
    made: Mapping[Choice, float]
    margin: float = MARGIN

    def gain(self, choice: Choice) -> float:
        """Returns the ratio of NCCL's default time, or of the slowest choice if that is unknown, to a choice's time."""
        return (max(self.made.values()) if self.own is None else self.own) / self.made[choice]


def modeled(
    graphs: Sequence[PlanGraph],
    machine: Machine,
    sizes: Sequence[int],
    version: str,
    fabric: str | None = None,
    *,
    changed: bool = False,
    status: Callable[[str], None] = lambda _: None,
) -> list[TunerTable]:
    """Returns the tables of the model for sets of GPUs of one shape (`by_shape`), one table per collective.

    A table is for all sets, so it has only choices that gain on every set.

    Args:
        machine: the parameters of the GPUs.
        sizes: message sizes in bytes, increasing, as nccl-tests counts.
        version: the version of NCCL whose rule gives the default choice.
        fabric: as for `Nccl`.
        changed: the user changed the parameters, so no measurement gives the error of the model.
        status: is called with a text about the progress.

    Raises:
        PackingError: the model does not have NCCL's algorithms for one of the sets.
        UsageError: no such version or fabric.
    """
    ((ranks, nodes),) = by_shape(graphs)
    tables = []
    for collective in FUNCTIONS:
        callers = [Nccl(Simulator(graph, collective, None, machine), version, fabric) for graph in graphs]
        claims = [Claims(x.simulator.graph, collective, machine.name, x.fabric.name, changed) for x in callers]
        found: dict[int, list[Times]] = {}
        for size in sizes:
            status(f"{ranks} GPUs, {collective.value}, {short_size(size)}")
            pairs = zip(callers, claims, strict=True)
            found[size] = [_timed(nccl, size, _margin(claim.claim(size))) for nccl, claim in pairs]
        tables.append(TunerTable(collective, ranks, nodes, _rows(found)))
    status("")
    return tables


def by_shape(graphs: Sequence[PlanGraph]) -> dict[tuple[int, int], list[PlanGraph]]:
    """Returns the graphs by (ranks, nodes), sorted. NCCL gives a plugin no other facts about a communicator."""
    found: dict[tuple[int, int], list[PlanGraph]] = {}
    for graph in graphs:
        found.setdefault((graph.nranks, _nodes_of(graph)), []).append(graph)
    return dict(sorted(found.items(), key=lambda item: item[0]))


def _nodes_of(graph: PlanGraph) -> int:
    """Returns the number of nodes as NCCL counts them: operating systems, even if NVLink joins them."""
    return graph.nservers


def _margin(claim: Claim) -> float:
    """Returns the gain that a choice needs, which is at least the model's error."""
    if not claim.compared or claim.median_error is None:
        return UNCOMPARED
    return max(MARGIN, 1 + claim.median_error)


def _timed(nccl: Nccl, size: int, margin: float) -> Times:
    own = nccl.predict(size).in_a_row()
    times: dict[Choice, float] = {}
    for algorithm in nccl.choices():
        for protocol in PROTOCOLS:
            try:
                call = nccl.predict(size, algorithm, protocol).in_a_row()
            except PackingError:
                continue
            times[Choice(_MODELED.get(algorithm, algorithm), protocol)] = call.time_us
    return Times(own.time_us, times, margin)


def _rows(found: Mapping[int, Sequence[Times]]) -> tuple[TunerRow, ...]:
    """Returns the rows of a table. Rows meet at the geometric mean of two sizes, and equal neighbors become one row."""
    rows: list[TunerRow] = []
    last = 0
    for size, times in sorted(found.items()):
        least = math.isqrt(last * size) if rows else 0
        last = size
        choices, gain = _best(times)
        if rows and rows[-1].choices == choices:
            before = rows[-1].gain
            rows[-1] = TunerRow(rows[-1].least, choices, _least(before, gain))
        else:
            rows.append(TunerRow(least, choices, gain))
    return tuple(rows)


def _least(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)


def _best(times: Sequence[Times]) -> tuple[tuple[Choice, ...], float | None]:
    """Returns the choices that gain the margin on every set, sorted by their least gain, and the gain of the first."""
    gains = {choice: min(x.gain(choice) for x in times) for choice in set.intersection(*(set(x.made) for x in times))}
    order = sorted(gains, key=lambda choice: (-gains[choice], choice))
    if any(x.own is None for x in times):
        # Without NCCL's default time, the fastest choices are kept whatever they gain.
        return tuple(order[:_KEPT]), None
    kept = [choice for choice in order if all(x.gain(choice) >= x.margin for x in times)]
    return tuple(kept[:_KEPT]), gains[kept[0]] if kept else None


def measured(path: Path) -> list[TunerTable]:
    """Returns the tables of a file of measurements.

    The file is CSV in the format of NCCL's example tuner, with the columns `collective`, `size_bytes`, `algorithm`,
    `protocol`, `channels`, `nodes`, `ranks` and `latency_us`. Others are ignored. If rows with `algorithm` `default`
    have the times of NCCL's default choice, choices must beat these by the margin. Of several measurements of a call
    the median counts.

    Raises:
        CollcError: a line cannot be read. The error names it.
        OSError: the file cannot be opened.
    """
    times: dict[tuple[Collective, int, int, int], dict[Choice | None, list[float]]] = {}
    where = str(path)
    for line, row in _csv_rows(path):
        key, choice, us = _measurement(row, f"{where}:{line}")
        times.setdefault(key, {}).setdefault(choice, []).append(us)
    if not times:
        raise CollcError("has no measurements", where=where, hint=_HINT)
    alike: dict[tuple[Collective, int, int], dict[int, list[Times]]] = {}
    for (collective, ranks, nodes, size), calls in times.items():
        middle = {choice: sorted(each)[len(each) // 2] for choice, each in calls.items()}
        own = middle.pop(None, None)
        made = {choice: us for choice, us in middle.items() if choice is not None}
        alike.setdefault((collective, ranks, nodes), {})[size] = [Times(own, made)]
    order = sorted(alike, key=lambda key: (key[1], key[2], FUNCTIONS[key[0]]))
    return [TunerTable(*key, _rows(alike[key])) for key in order]


_COLUMNS = ("collective", "size_bytes", "algorithm", "protocol", "channels", "nodes", "ranks", "latency_us")
_HINT = f"a CSV file with a header and the columns {','.join(_COLUMNS)}"


def _csv_rows(path: Path) -> Iterable[tuple[int, dict[str, str]]]:
    where = str(path)
    try:
        reader = csv.DictReader(io.StringIO(read_text(path, limit=_MOST_BYTES)), strict=True)
        missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise CollcError(f"has no column {missing[0]}", where=where, hint=_HINT)
        yield from ((reader.line_num, row) for row in reader)
    except csv.Error as error:
        raise CollcError(f"is no CSV file: {error}", where=where, hint=_HINT) from None


_Key = tuple[Collective, int, int, int]


def _measurement(row: Mapping[str, str | None], where: str) -> tuple[_Key, Choice | None, float]:
    """Returns the call of a line, its choice (None: NCCL's default), and its microseconds."""

    def cell(name: str) -> str:
        return (row[name] or "").strip()

    def whole(name: str, least: int, most: int, unset: int | None = None) -> int:
        text = cell(name)
        if unset is not None and text in ("", "-1"):
            return unset
        if not text.isascii() or not text.isdigit() or len(text) > 18 or not least <= int(text) <= most:
            raise CollcError(f"`{name}` is {text[:20]!r}, not {least} to {most}", where=where, hint=_HINT)
        return int(text)

    def one_of(name: str, known: Iterable[str]) -> str:
        plain = cell(name).lower().replace("_", "").replace("-", "")
        for item in known:
            if item.lower().replace("_", "") == plain:
                return item
        raise CollcError(f"`{name}` is {cell(name)[:20]!r}", where=where, hint=f"one of {', '.join(known)}")

    collective = Collective(one_of("collective", [c.value for c in FUNCTIONS]))
    size = whole("size_bytes", 1, 1 << 50)
    ranks = whole("ranks", 2, 1 << 20)
    nodes = whole("nodes", 1, ranks)
    try:
        us = float(cell("latency_us"))
    except ValueError:
        us = math.nan
    if not 0 < us < 1e12:
        raise CollcError(f"`latency_us` is {cell('latency_us')[:20]!r}, not microseconds", where=where, hint=_HINT)
    key = (collective, ranks, nodes, size)
    if cell("algorithm").lower() in _OWN:
        return key, None, us
    algorithm, protocol = one_of("algorithm", ALGORITHMS), one_of("protocol", PROTOCOL_NUMBERS)
    return key, Choice(algorithm, protocol, whole("channels", 1, MAX_CHANNELS, unset=0)), us


def check_tuned(tables: Sequence[TunerTable]) -> None:
    """Checks that some table has a choice.

    Raises:
        PackingError: no table has one, because NCCL's default choices are as good.
    """
    if not any(table.tuned for table in tables):
        raise PackingError("nothing to tune: nothing surely beats NCCL's own choices", hint="NCCL needs no tuner here")
