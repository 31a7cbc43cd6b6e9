"""Reads the links of AMD GPUs: `rocm-smi --showtopo`, `amd-smi topology`, and the JSON of both.

Both tools print one table per fact: link type, hops, weight, and `amd-smi` also bandwidth. Their hops are 1 for every
pair that xGMI joins, also over GPUs between (ROCm/rocm-systems#5763). The driver's weight is 15 for each xGMI hop. So a
pair has a link of its own if its weight is 15 and its hops are 1. A cell of the bandwidth table has the MB/s of one
link and of all links of a pair.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from fractions import Fraction

from collc.errors import TopologyError
from collc.topology.model import Device, LinkKind
from collc.topology.probe.lines import Text
from collc.topology.probe.machine import Machine, pair_names
from collc.topology.probe.packages import known_lanes

_ROCM_TITLE = re.compile(r"=+\s*(.*?)\s*=+$")
_SMI_TITLE = re.compile(r"([A-Z][A-Z -]*) TABLE:$")
# The words of a title in either tool, lower case -> the name of the table here.
_TABLES = {
    "weight between two gpus": "weight",
    "hops between two gpus": "hops",
    "link type between two gpus": "type",
    "link accessibility between two gpus": "access",
    "weight": "weight",
    "hops": "hops",
    "link type": "type",
    "numa bw": "bandwidth",
    "access": "access",
}
# `GPU[0]  : (Topology) Numa Node: 0`; some versions write `GPU 0 :` and omit `(Topology)`.
_NUMA = re.compile(r"GPU ?\[?([0-9]{1,3})\]?\s*:\s*(?:\(Topology\)|Topology:)?\s*Numa Node:\s*(-?[0-9]{1,4})\b", re.I)
_NUMA_TITLE = "numa nodes"
_GPU = re.compile("GPU[0-9]{1,3}")
_BUS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_CELL = {
    "weight": re.compile("[0-9]{1,4}"),
    "hops": re.compile("[0-9]{1,4}"),
    "type": re.compile("XGMI|PCIE|SELF|0"),
    "bandwidth": re.compile("[0-9]{1,9}-[0-9]{1,9}|N/A"),
    "access": re.compile("ENABLED|DISABLED|True|False|SELF|N/A", re.I),
}
# JSON of rocm-smi: the beginning of a key -> the table.
_JSON_KEY = re.compile(r"\(Topology\) (Weight|Hops|Link type) between DRM devices ([0-9]{1,3}) and ([0-9]{1,3})")
_JSON_FIELDS = {"weight": "weight", "num_hops": "hops", "link_type": "type", "bandwidth": "bandwidth"}
# The driver's weights: of one xGMI hop, and of two partitions of one GPU (kfd_crat.h).
_HOP_WEIGHT = 15
_PARTITION_WEIGHT = 13
# The MB/s of one link of the MI200 series, which older drivers print for every generation.
_FIXED_MBPS = 50_000
_MAX_GPUS = 128

Cells = dict[int, dict[int, str]]


@dataclass
class Tables:
    """The tables of one or several outputs about the same machine.

    Attributes:
        gpus: the GPUs by number: ``GPU3`` or a bus id.
        cells: name of the table -> GPU -> GPU -> cell.
        at: name of the table -> where it begins, for messages.
        numa: the NUMA node of each GPU.
        unused: the titles of tables that say nothing about links.
        tool: the tool that printed the tables.
    """

    gpus: list[str] = field(default_factory=list)
    cells: dict[str, Cells] = field(default_factory=dict)
    at: dict[str, str] = field(default_factory=dict)
    numa: dict[int, int] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    tool: str = "rocm-smi --showtopo"


def looks_like_amd(text: Text) -> bool:
    """Returns True if a text has a table of either tool, its NUMA lines, or its JSON."""
    if _json(text) is not None:
        return True
    return any(_title(line) in _TABLES or _NUMA.search(line) for line in text.lines)


def read_amd(texts: list[Text], name: str) -> Machine:
    """Returns the machine in one or several outputs, without speeds.

    Raises:
        TopologyError: a table is missing or incomplete, or two tables contradict each other.
    """
    tables = Tables()
    for text in texts:
        value = _json(text)
        if value is None:
            _read_text(text, tables)
        else:
            _read_json(text, value, tables)
    if len(tables.gpus) == 1:
        alone = {0: {0: "0"}}
        tables.cells = {"type": alone, "hops": alone, "weight": alone} | tables.cells
        tables.at = dict.fromkeys(tables.cells, texts[0].at(1)) | tables.at
    for wanted in ("type", "hops", "weight"):
        if wanted not in tables.cells and (wanted != "weight" or _needs_weights(tables)):
            hint = "paste all of `rocm-smi --showtopo`, or of `amd-smi topology`"
            raise TopologyError(f"the table of {_noun(wanted)} is missing", where=texts[0].at(1), hint=hint)
    machine = Machine(name, gpus=[f"gpu{i}" for i in range(len(tables.gpus))], kind=LinkKind.XGMI)
    for gpu, bus in zip(machine.gpus, tables.gpus, strict=True):
        if _BUS.fullmatch(bus):
            machine.devices[gpu] = Device(bus.lower())
    _links(tables, machine)
    _access(tables, machine)
    _place(tables, machine)
    for title in tables.unused:
        machine.took(title, "not used")
    return machine


def _needs_weights(tables: Tables) -> bool:
    """Returns True if xGMI joins GPUs and all at one hop, as the tools also print for pairs without a link."""
    types, hops = tables.cells["type"], tables.cells["hops"]
    cells = {hops[a][b] for a in types for b in types[a] if types[a][b] == "XGMI"}
    return cells == {"1"}


def _noun(table: str) -> str:
    return {"type": "link types", "weight": "weights"}.get(table, table)


def _title(line: str) -> str | None:
    """Returns the title of a table in lower case."""
    plain = line.strip()
    if match := _ROCM_TITLE.fullmatch(plain) or _SMI_TITLE.fullmatch(plain):
        return match[1].lower()
    return None


def _read_text(text: Text, tables: Tables) -> None:
    for number, line in enumerate(text.lines):
        if match := _NUMA.search(line):
            tables.numa[int(match[1])] = int(match[2])
            tables.at.setdefault("numa", text.at(number + 1))
        title = _title(line)
        if title is None:
            continue
        if line.strip().endswith("TABLE:"):
            tables.tool = "amd-smi topology"
        table = _TABLES.get(title)
        if table is not None:
            _add(tables, table, _matrix(text, number, table, tables), text.at(number + 1))
        elif line.strip().endswith("TABLE:") or "between two" in title:
            tables.unused.append(f"{text.at(number + 1)} {title}")


def _add(tables: Tables, table: str, cells: Cells, where: str) -> None:
    if tables.cells.setdefault(table, cells) != cells:
        raise TopologyError(
            f"a second table of {_noun(table)}, which differs", where=where, hint="are all of one machine?"
        )
    tables.at.setdefault(table, where)


def _matrix(text: Text, title: int, table: str, tables: Tables) -> Cells:
    """Returns the cells of the table whose title is at line index `title`."""
    number = title + 1
    while number < len(text.lines) and not text.lines[number].strip():
        number += 1
    header = text.lines[number].split() if number < len(text.lines) else []
    if not header or not all(_GPU.fullmatch(word) or _BUS.fullmatch(word) for word in header):
        raise TopologyError("the GPUs of the table are not named here", where=text.at(number + 1))
    _check_gpus(header, tables, text.at(number + 1))
    cells: Cells = {}
    for row, gpu in enumerate(header):
        line = number + 1 + row
        words = text.lines[line].split() if line < len(text.lines) else []
        if not words or words[0] != gpu:
            hint = "the table has been cut, paste all of it"
            raise TopologyError(f"the row of {gpu} is missing", where=text.at(line + 1), hint=hint)
        if len(words) != len(header) + 1:
            what = f"row {gpu} has {len(words) - 1} cells, the header names {len(header)} GPUs"
            raise TopologyError(what, where=text.at(line + 1), hint="the table has been cut, paste all of it")
        for word in words[1:]:
            if not _CELL[table].fullmatch(word):
                raise TopologyError(f"`{word[:20]}` is not a valid cell of this table", where=text.at(line + 1))
        cells[row] = dict(enumerate(words[1:]))
        for other in cells:
            if cells[row][other] != cells[other][row]:
                what = f"{gpu} and {header[other]} do not say the same of each other"
                raise TopologyError(what, where=text.at(line + 1), hint="the table is damaged")
    return cells


def _check_gpus(header: list[str], tables: Tables, where: str) -> None:
    if len(set(header)) < len(header):
        raise TopologyError("a GPU is named twice", where=where)
    if not tables.gpus or (len(tables.gpus) == len(header) and all(map(_GPU.fullmatch, tables.gpus))):
        # A table with bus ids says more than one with numbers.
        tables.gpus = header
    elif len(header) != len(tables.gpus) or (header != tables.gpus and not all(map(_GPU.fullmatch, header))):
        raise TopologyError("two tables list different GPUs", where=where, hint="are all of one machine?")


def _json(text: Text) -> object:
    """Returns the value of a text in JSON with topology of AMD GPUs; None for another text."""
    plain = text.whole.strip()
    if plain[:1] not in ("[", "{") or ("link_type" not in plain and "(Topology)" not in plain):
        return None
    try:
        value: object = json.loads(plain)
    except (ValueError, RecursionError):
        raise TopologyError("not JSON", where=text.at(1), hint="is the file complete?") from None
    return value


def _read_json(text: Text, value: object, tables: Tables) -> None:
    where = text.at(1)
    cells: dict[str, Cells] = {}
    if isinstance(value, dict):
        for owner, facts in value.items():
            for key, fact in facts.items() if isinstance(facts, dict) else ():
                _json_fact(str(owner), str(key), str(fact), cells, tables)
        count = 1 + max((gpu for rows in cells.values() for gpu in rows), default=-1)
        names = [f"GPU{i}" for i in range(min(count, _MAX_GPUS))]
        cards = [owner for owner in value if re.fullmatch("card[0-9]{1,3}", str(owner))]
        if not cells and len(cards) == 1:
            names, cells = ["GPU0"], {"type": {}}
    else:
        rows = value if isinstance(value, list) else []
        tables.tool = "amd-smi topology"
        names = []
        for gpu, row in enumerate(rows[:_MAX_GPUS]):
            links = row.get("links") if isinstance(row, dict) else None
            if not isinstance(links, list) or not all(isinstance(link, dict) for link in links):
                raise TopologyError(f"GPU {gpu} has no list of links", where=where, hint="is the file complete?")
            names.append(str(row.get("bdf", f"GPU{gpu}")))
            for other, link in enumerate(links[:_MAX_GPUS]):
                for key, table in _JSON_FIELDS.items():
                    if key in link:
                        cells.setdefault(table, {}).setdefault(gpu, {})[other] = str(link[key])
    if not names or not cells:
        raise TopologyError("no links between GPUs in it", where=where, hint="run `rocm-smi --showtopo --json`")
    _check_gpus(names, tables, where)
    for table, by_gpu in cells.items():
        _add(tables, table, _whole(by_gpu, len(names), table, where), where)


def _json_fact(owner: str, key: str, fact: str, cells: dict[str, Cells], tables: Tables) -> None:
    """Adds one value of rocm-smi's JSON, which has each pair once."""
    if match := _JSON_KEY.fullmatch(key):
        table = {"Weight": "weight", "Hops": "hops", "Link type": "type"}[match[1]]
        a, b = int(match[2]), int(match[3])
        for one, two in ((a, b), (b, a)):
            cells.setdefault(table, {}).setdefault(one, {})[two] = fact
        return
    card = re.fullmatch("card([0-9]{1,3})", owner)
    if card and key == "(Topology) Numa Node" and re.fullmatch("-?[0-9]{1,4}", fact):
        tables.numa[int(card[1])] = int(fact)


def _whole(by_gpu: Cells, count: int, table: str, where: str) -> Cells:
    """Returns the cells with a diagonal.

    Raises:
        TopologyError: a cell is missing or not valid.
    """
    own = {"type": "SELF", "bandwidth": "N/A"}.get(table, "0")
    cells: Cells = {}
    for a in range(count):
        row = {**by_gpu.get(a, {}), a: own}
        for b in range(count):
            if b not in row or not _CELL[table].fullmatch(row[b]):
                raise TopologyError(f"the {table} of GPUs {a} and {b} is missing", where=where, hint="is it complete?")
        cells[a] = {b: row[b] for b in range(count)}
    return cells


def _links(tables: Tables, machine: Machine) -> None:
    """Adds the links, by all tables together."""
    cells = tables.cells
    pairs = [(a, b) for a in range(len(tables.gpus)) for b in range(a + 1, len(tables.gpus))]
    xgmi = [(a, b) for a, b in pairs if cells["type"][a][b] == "XGMI"]
    machine.took(f"{tables.at['type']} link types", f"xGMI joins {len(xgmi)} of {len(pairs)} pairs, over any hops")
    hops = {(a, b): int(cells["hops"][a][b]) for a, b in xgmi}
    weights = cells.get("weight")
    weight = {(a, b): int(weights[a][b]) if weights else _HOP_WEIGHT * hops[a, b] for a, b in xgmi}
    if any(w == _PARTITION_WEIGHT for w in weight.values()):
        raise TopologyError(
            f"weight {_PARTITION_WEIGHT} joins partitions of one GPU, not GPUs",
            where=tables.at["weight"],
            hint="collc plans whole GPUs: set the compute partition to SPX, `amd-smi set -C SPX`",
        )
    linked = [pair for pair in xgmi if weight[pair] == _HOP_WEIGHT and hops[pair] == 1]
    _check_hops(tables, weight, hops)
    bandwidth = _bandwidth(tables, xgmi)
    if bandwidth is None and "bandwidth" in tables.at:
        machine.took(f"{tables.at['bandwidth']} bandwidth", "not used: it has no values")
    for a, b in xgmi:
        if bandwidth is not None and ((a, b) in bandwidth) != ((a, b) in linked):
            says = cells["bandwidth"][a][b]
            what = f"{tables.gpus[a]} and {tables.gpus[b]}: weight {weight[a, b]}, but bandwidth {says}"
            raise TopologyError(what, where=tables.at["bandwidth"], hint=_which_links())
    far = len(xgmi) - len(linked)
    for table in ("weight", "hops"):
        if table in tables.at:
            machine.took(f"{tables.at[table]} {_noun(table)}", f"{len(linked)} pairs are one xGMI hop apart")
    if far:
        fiction = any(hops[pair] == 1 for pair in xgmi if pair not in linked)
        more = " by weight; its table of hops says 1 for each pair" if fiction else ""
        machine.assume(f"{far} pairs that {tables.tool.split()[0]} calls XGMI have no link of their own{more}")
    machine.direct = {(f"gpu{a}", f"gpu{b}"): 1 for a, b in linked}
    if bandwidth is not None:
        _lanes(tables, machine, bandwidth)
    elif linked:
        _unknown_lanes(tables, machine)


def _which_links() -> str:
    return "which pairs have a link is contradictory here: add --from RCCL's topology (NCCL_TOPO_DUMP_FILE)"


def _check_hops(tables: Tables, weight: dict[tuple[int, int], int], hops: dict[tuple[int, int], int]) -> None:
    """Checks weights against hops. One hop for each pair says only that xGMI joins all; other hops must agree.

    Raises:
        TopologyError: they contradict each other.
    """
    for pair, value in weight.items():
        count, rest = divmod(value, _HOP_WEIGHT)
        if rest or count == 0 or (hops[pair] != 1 and hops[pair] != count):
            a, b = (tables.gpus[i] for i in pair)
            what = f"{a} and {b}: xGMI of weight {value} (15 for each hop), but {hops[pair]} hops"
            raise TopologyError(what, where=tables.at.get("weight", tables.at["hops"]), hint=_which_links())
    if weight and _HOP_WEIGHT not in weight.values():
        what = "xGMI joins GPUs, but no pair is one hop apart"
        raise TopologyError(what, where=tables.at["type"], hint=_which_links())


def _bandwidth(tables: Tables, xgmi: list[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, int]] | None:
    """Returns pair -> MB/s of one link and of all links; None if the table is missing or has no values."""
    cells = tables.cells.get("bandwidth")
    if cells is None:
        return None
    found = {}
    for a, b in xgmi:
        if match := re.fullmatch("([0-9]+)-([0-9]+)", cells[a][b]):
            one, all_of = int(match[1]), int(match[2])
            if one and all_of:
                if all_of % one:
                    what = f"{cells[a][b]} MB/s is no whole number of links"
                    raise TopologyError(what, where=tables.at["bandwidth"], hint="the table is damaged")
                found[a, b] = (one, all_of)
    # Some drivers print 0-0 or N/A for every pair.
    return found or None


def _lanes(tables: Tables, machine: Machine, bandwidth: dict[tuple[int, int], tuple[int, int]]) -> None:
    counts = {pair: all_of // one for pair, (one, all_of) in bandwidth.items()}
    machine.direct = {(f"gpu{a}", f"gpu{b}"): count for (a, b), count in counts.items()}
    rates = {one for one, _ in bandwidth.values()}
    listed = ", ".join(f"{list(counts.values()).count(n)} pairs with {n}" for n in sorted(set(counts.values())))
    machine.took(f"{tables.at['bandwidth']} bandwidth", f"links per pair: {listed}")
    if len(rates) == 1:
        rate = rates.pop()
        machine.printed_gbps = Fraction(rate, 1000)
        if rate != _FIXED_MBPS:
            machine.link_gbps = machine.printed_gbps
            machine.assume(f"xGMI speed: {float(machine.link_gbps):g} GB/s per link and direction, as printed")


def _unknown_lanes(tables: Tables, machine: Machine) -> None:
    """Sets the links per pair of a machine whose packages are known; else assumes one."""
    homes = {f"gpu{gpu}": node for gpu, node in tables.numa.items()}
    if (lanes := known_lanes(machine.gpus, list(machine.direct), homes)) is not None:
        machine.direct = lanes
        machine.assume(
            "xGMI links per pair: this table does not say how many; as in mi250x of `collc topologies`, whose pairs "
            "these are; --from `amd-smi topology` tells"
        )
        return
    note = "xGMI links per pair: rocm-smi does not say how many; taken as one; --from `amd-smi topology` tells"
    machine.guess(LinkKind.XGMI, note)


def _access(tables: Tables, machine: Machine) -> None:
    cells = tables.cells.get("access")
    if cells is None:
        return
    blocked = [
        (machine.gpus[a], machine.gpus[b])
        for a in cells
        for b in cells
        if a < b and cells[a][b].lower() in ("disabled", "false")
    ]
    machine.took(f"{tables.at['access']} access", f"{len(blocked)} pairs without peer access")
    if blocked:
        machine.assume(f"GPUs without peer access: {pair_names(blocked)}; they meet in host memory")


def _place(tables: Tables, machine: Machine) -> None:
    """Places GPUs at CPUs by their NUMA nodes; without these, by the hops between GPUs that PCIe joins."""
    gpus = range(len(tables.gpus))
    numa = tables.numa
    if set(gpus) <= set(numa):
        machine.took(f"{tables.at.get('numa', 'JSON')} NUMA nodes", f"{len({numa[g] for g in gpus})} CPUs")
    else:
        numa = _by_hops(tables, machine)
    nodes = sorted({numa[gpu] for gpu in gpus})
    machine.cpus = list(dict.fromkeys(f"cpu{max(node, 0)}" for node in nodes))
    machine.parent = {f"gpu{gpu}": f"cpu{max(numa[gpu], 0)}" for gpu in gpus}
    machine.assume("PCIe switches do not show in this output: each GPU is placed directly at its CPU")


def _by_hops(tables: Tables, machine: Machine) -> dict[int, int]:
    """Returns the number of each GPU's CPU. Two PCIe hops are GPU, CPU, GPU; a third is the link between CPUs."""
    gpus, types, hops = range(len(tables.gpus)), tables.cells["type"], tables.cells["hops"]
    hint = "--from `rocm-smi --showtoponuma` tells"
    far = {(a, b) for a in gpus for b in gpus if a < b and types[a][b] == "PCIE" and int(hops[a][b]) > 2}
    if not far:
        machine.assume(f"NUMA nodes are not in this output: all GPUs are placed at one CPU; {hint}")
        return dict.fromkeys(gpus, 0)
    home: dict[int, int] = {}
    cpus: list[list[int]] = []
    for gpu in gpus:
        fits = (n for n, members in enumerate(cpus) if not any((other, gpu) in far for other in members))
        home[gpu] = next(fits, len(cpus))
        if home[gpu] == len(cpus):
            cpus.append([])
        cpus[home[gpu]].append(gpu)
    machine.assume(
        f"NUMA nodes are not in this output: GPUs over three hops of PCIe apart are placed at different CPUs; {hint}"
    )
    return home
