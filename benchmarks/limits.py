"""The share of the lower of two limits that the default library reaches at 1 GiB, in the model.

`python benchmarks/limits.py --write docs/data/limits.yaml`: for every machine that comes with collc and every
compiled collective, the certified rate, the card's own limit in the model, the rate of the entry that `collc compile
--target cuda` runs at 1 GiB, and its share of the lower of the two. Rows are kept in `build/limits.jsonl`: a run that
was ended goes on from there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from defaults import MOST_RANKS, PROTOCOLS, contents_for, entry_at, graph_for, key_of, run_page

from collc.build.compile import Contents
from collc.checker.certificates import certificate_bound
from collc.checker.staging import host_limit
from collc.collectives.model import COMPILED, Collective
from collc.options import CUDA
from collc.simulator.generations import machine_for
from collc.simulator.nccl.baseline import Nccl
from collc.simulator.params import BYTES_PER_US, Machine, Protocol
from collc.simulator.run import Simulator, Variant, own_channels
from collc.topology.zoo import names

SIZE = 1 << 30
# Calls below pay for hops and launches.
SMALL = 1 << 20
# Of the lower limit: what falls below is bold on the page.
LEAST = 0.93


@dataclasses.dataclass(frozen=True)
class Reached:
    """The rates of a default library at `SIZE`, all in GB/s of the buffer.

    Args:
        certified: what the plan's certificate proves that nothing exceeds, links at their nominal speed.
        limit: what nothing exceeds in the model (`limit_of`).
        by: the variant that the default runs.
        hops: of one chunk, at most, in calls below `SMALL` bytes.
        nccl_hops: of NCCL's algorithm with the fewest.
    """

    machine: str
    collective: str
    certified: float
    limit: float
    rate: float
    by: str
    hops: int
    nccl_hops: int

    @property
    def share(self) -> float:
        """The rate over the lower limit."""
        return self.rate / min(self.certified, self.limit)


def touched(collective: Collective, nranks: int) -> float:
    """Bytes that a GPU's blocks, and its memory, read and write at least for each of the buffer, the mean over GPUs.

    However the data go, a byte that arrives was written into a slot and is read there, each input is read and each
    output written.
    """
    block, others = 1 / nranks, 1 - 1 / nranks
    # Shares of the buffer that a GPU sends on average, reads of its input, and writes of its output.
    sends, inputs, outputs = {
        Collective.ALL_REDUCE: (2 * others, 1.0, 1.0),
        Collective.BROADCAST: (others, block, others),
        Collective.REDUCE: (others, 1.0, block),
        Collective.ALL_GATHER: (others, block, 1.0),
        Collective.REDUCE_SCATTER: (others, 1.0, block),
    }[collective]
    return 2 * sends + inputs + outputs


def limit_of(simulator: Simulator, machine: Machine) -> float:
    """GB/s of the buffer that no call of `SIZE` exceeds in the model, by its best protocol."""
    protocols = [p for p in machine.protocols if p.name.lower() in PROTOCOLS]
    staged = staged_rate(simulator)
    return max(SIZE / (_least_us(simulator, machine, protocol, staged) * BYTES_PER_US) for protocol in protocols)


def staged_rate(simulator: Simulator) -> float | None:
    """GB/s that memories of CPUs leave the best candidate where they stage data; None: they do not."""
    if all(vertex.memory_gbps is None for vertex in simulator.graph.vertices):
        return None
    plans = [simulator.plan(kind) for kind in ("trees", *simulator.kinds)]
    limits = [host_limit(simulator.graph, plan) or (plan.rate, 0) for plan in plans]
    return max(float(rate or 0) for rate, _ in limits)


def _least_us(simulator: Simulator, machine: Machine, protocol: Protocol, staged: float | None) -> float:
    """Returns the least time of a call of `SIZE` over a protocol, in microseconds.

    The payload of the links bounds their time. A launch and a step that sends precede that time,
    and the rest of a hop and a step that receives follow it. Blocks and memory of a GPU start after the launch at the
    earliest, and so do memories of CPUs that stage data (`staged`).
    """
    graph, collective = simulator.graph, simulator.collective
    links = tuple(
        dataclasses.replace(
            link, gbps=link.gbps * _share(protocol.efficiency * machine.link_class(link.kind).efficiency)
        )
        for link in graph.links
    )
    plan = simulator.plan("trees")
    assert plan.certificate is not None
    carried = dataclasses.replace(graph, links=links)
    launch, hop = machine.launch_us + protocol.start_us, max(protocol.hop_us, machine.step_us) + machine.step_us
    carrying = SIZE / (float(certificate_bound(carried, collective, simulator.root, plan.certificate)) * BYTES_PER_US)
    moved = touched(collective, graph.nranks)
    rates = [] if staged is None else [staged]
    if protocol.block_gbps is not None:
        rates.append(CUDA.max_channels * protocol.block_gbps / moved)
    if machine.memory_gbps is not None:
        rates.append(machine.memory_gbps / moved)
    return launch + max([hop + carrying, *(SIZE / (rate * BYTES_PER_US) for rate in rates)])


def _share(value: float) -> Fraction:
    return Fraction(value).limit_denominator(10**6)


def reached(name: str, contents: Contents, collective: Collective) -> Reached:
    """One row."""
    document = contents.documents[0]
    parameters, _ = machine_for(None, document.graph.gpu_model)
    simulator = Simulator(document.graph, collective, 0 if collective.rooted else None, parameters)
    machine = simulator.machine
    entry = entry_at(contents, collective, SIZE, document.graph.nranks)
    kind = entry.kind(document.plans[entry.plan])
    channels = entry.spread or own_channels(simulator.plan(kind))
    held = Variant(kind, machine.protocol(entry.when.protocol).name, entry.program.chunk_bytes, channels)
    bound = simulator.plan("trees").bound
    assert bound is not None
    rate = simulator.predict(held, SIZE, whole=True).algbw_gbps
    limit = limit_of(simulator, machine)
    hops = hops_below(contents, collective)
    return Reached(name, collective.value, float(bound), limit, rate, held.label(), hops, nccl_hops(simulator))


def hops_below(contents: Contents, collective: Collective, most: int = SMALL) -> int:
    """The most hops of a chunk, up a tree and down it, in calls of 1 KiB to below `most` bytes, of rank 0 as root."""
    document = contents.documents[0]
    sizes = [1 << at for at in range(10, most.bit_length() - 1)]
    entries = [entry_at(contents, collective, size, document.graph.nranks) for size in sizes]
    return max(1 if entry.everywhere else tree.hops for entry in entries for tree in document.plans[entry.plan].trees)


def nccl_hops(simulator: Simulator) -> int:
    """The hops of NCCL's algorithm with the fewest: for each way all of a ring or chain, or one where switches add."""
    ways = 2 if simulator.collective is Collective.ALL_REDUCE else 1
    inside = any(name in Nccl(simulator).choices() for name in ("NVLS", "NVLSTree"))
    return ways * (1 if inside else simulator.graph.nranks - 1)


def machine_rows(name: str) -> list[Reached]:
    """All rows of a machine."""
    contents = contents_for(name)
    found = [reached(name, contents, collective) for collective in COMPILED]
    print(name, *(f"{row.collective} {row.share:.3f}" for row in found), flush=True)
    return found


def measured(kept: Path, only: Sequence[str]) -> tuple[list[Reached], list[str]]:
    """Returns the rows of all machines (or of `only`) and the omissions. Machines in `kept` are not run again."""
    rows = [Reached(**json.loads(line)) for line in kept.read_text("utf-8").splitlines()] if kept.exists() else []
    seen: dict[tuple[str, str], str] = {}
    left: list[str] = []
    for name in names():
        graph = graph_for(name)
        if (like := seen.setdefault(key_of(graph), name)) != name:
            left.append(f"{name} is {like}")
            continue
        if graph.nranks > MOST_RANKS:
            left.append(
                f"{name} has {graph.nranks} GPUs, more than the {MOST_RANKS} up to which all candidates are simulated"
            )
            continue
        if (only and name not in only) or any(row.machine == name for row in rows):
            continue
        fresh = machine_rows(name)
        with kept.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(dataclasses.asdict(row)) + "\n" for row in fresh)
        rows += fresh
    return sorted(rows, key=lambda row: names().index(row.machine)), left


PAGE = f"""# 1 GiB beside what is possible, in the model

Nothing here was measured; all rates are GB/s of the buffer, with the parameters of the
machine's own generation (simulate.md).

- Certified: what the plan's certificate proves that no schedule of its kind exceeds, links at their nominal speed.
- Limit in the model: what no schedule exceeds there, whatever it is. Links at the share that carries payload, from the
  launch and the first step that sends until what the last of them carry has been seen and taken; the
  {CUDA.max_channels} blocks and the memory of a GPU at what they must read and write at least; where data are staged in
  memories of CPUs, what these leave the best candidate.
- Default: what the library of `collc compile --target cuda` runs at 1 GiB, simulated. Its share is that of the lower of
  the two; bold: below {LEAST}. Of several servers one, as `compile` makes it where no GPUs are named: gb200-nvl72 is a
  tray of 4 GPUs.

"""


SMALL_CALLS = """Small calls pay for hops, and for a launch, of which there is one with either. The most hops of a chunk
in calls of the default library from 1 KiB to below 1 MiB, and those of NCCL's algorithm with the fewest: a ring, a
chain, or sums in switches.
"""


def table(rows: Sequence[Reached], left: Sequence[str]) -> str:
    """The page's tables."""
    titles = ("machine", "collective", "certified", "limit in the model", "default", "share", "by")
    lines = ["| " + " | ".join(titles) + " |", "|---|---|--:|--:|--:|--:|---|"]
    for row in rows:
        share = f"{row.share:.2f}" if round(row.share, 2) >= LEAST else f"**{row.share:.2f}**"
        rates = f"{row.certified:.1f} | {row.limit:.1f} | {row.rate:.1f}"
        lines.append(f"| {row.machine} | {row.collective} | {rates} | {share} | {row.by} |")
    lines += ["", "## Below 1 MiB", "", SMALL_CALLS, "| machine | collective | default | NCCL |", "|---|---|--:|--:|"]
    lines += [f"| {row.machine} | {row.collective} | {row.hops} | {row.nccl_hops} |" for row in rows]
    return "\n".join([*lines, "", f"Same graph and parameters, or left out: {'; '.join(left)}."])


def main(arguments: Sequence[str] | None = None) -> None:
    run_page(__doc__, Path("build/limits.jsonl"), lambda *asked: PAGE + table(*measured(*asked)), arguments)


if __name__ == "__main__":
    main()
