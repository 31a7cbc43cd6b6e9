"""What idle links are worth: `python benchmarks/classes.py --write docs/measurements/classes.md`.

For every machine of `collc topologies` (one server of it), the joint rate of NVLink, PCIe through host memory and NICs
beside that of the fastest class, proved. Then in the model FlexLink's table 2 and Blink's figure 21, beside what these
measured, and what a second class costs a library.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from measured import publish

from collc.build.compile import Contents
from collc.build.manifest import slot_bytes
from collc.build.memory import fifo_bytes_by_rank, pinned_bytes, transfer_bytes
from collc.choose.idle_links import AUTO
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.choose.split import LEAST, class_curve, split_by_size
from collc.codegen.entry import Entry
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import bytes_per_call
from collc.ir.nodes import Channel, Program
from collc.options import CUDA
from collc.packing.classes import ClassPlans, plan_classes
from collc.simulator.generations import machine_for
from collc.simulator.run import Simulator, Variant
from collc.topology import zoo
from collc.topology.load import load_topology
from collc.topology.model import JOINT, Topology

SOURCE = Path(__file__).parent / "reproduction" / "sources" / "flexlink.yaml"
OPERATORS = {"allreduce": Collective.ALL_REDUCE, "allgather": Collective.ALL_GATHER}
INTRODUCTION = """# What idle links are worth

Written by `make bench-classes`. [classes.md](../classes.md) says what the classes are and how they are joined.

## Proved rates

Rates in GB/s of the buffer (algbw) over all GPUs of one server: of the fastest class alone, of all classes together,
and what each further class adds by trees of its own. Every rate has a certificate (`collc plan MACHINE --classes
nvlink,pcie,net --json`). NICs are left out where the machine's file has no speed for them. Host memory is no limit
where the file has no `memory_gbps`: where it is one, PCIe adds less.

"""
SIMULATED = """
## FlexLink's table 2, simulated

Gains of bandwidth over NVLink alone on H800: measured by FlexLink (arXiv 2510.15882, table 2, over NCCL 2.27.3) with
PCIe and with PCIe and NICs; and **simulated** here, over collc's own NVLink plans, with PCIe. The model's PCIe has no
gaps between chunks, so that it comes nearer to its bound than NVLink does, and gains can be above those of the bounds;
it was never compared with a measurement of PCIe beside NVLink. NICs share the GPU's PCIe link on H800: the bound is the
same with and without them. The share is that of PCIe; sizes are FlexLink's, of a rank for AllGather.

"""
LIBRARY = """
## The library that `compile` makes, simulated

The same calls on 8 GPUs with the programs of `collc compile hgx-h800`, as they are compiled: each class has the blocks
that it has there. They run on the joint graph with all of PCIe's speed, beside the library of `--classes nvlink`. *As
compiled* has the weights that the library begins with, which trust half of that speed; *balanced* has the best weights
of the same program, to which balancing leads. A share of PCIe of s gains 1 / (1 - s) - 1 where NVLink's part is as fast
per byte as it was; cut calls have other chunks and blocks, so it may be more or less. The bound has the nominal
rates of both; in the model NVLink carries 82% of its own ([limits.md](limits.md)), so gains beside NVLink can pass it.

"""
BLINK = """
## Blink's figure 21, simulated

Broadcast over NVLink and PCIe of a DGX-1V against NVLink alone, GB/s: what Blink gained (Wang et al., section 5.3, in
words: about 5 GB/s with 3 and 4 GPUs, 2 with 7 and 8; it switches peer access off and on in every call), and
**simulated** here for 256 MB over GPUs 0 to N-1, root 0. The bound is proved: of both classes together, less NVLink's.

"""
COSTS = """
## What a second class costs

As in FlexLink's section 5.4, which names 4 MB of pinned memory for each path, CPU time for polling, and multiprocessors
without a number. Libraries for 8 GPUs, as `collc compile --target cuda` makes them; all of it counted, not measured.
Blocks are of one GPU in the largest of its programs; the slower class has up to eight of them. Pinned memory is of the
whole communicator, GPU memory of one GPU. Inside a server no CPU thread moves data; the one that watches for deaths is
there anyway.

"""
FIXED = """
A class's fixed cost is what its smallest call takes in the model (**simulated**, 1 KB, calls in a row): the second
class takes part only in calls that last longer than that.

"""


def one_server(machine: Topology) -> list[str]:
    """The GPUs of the first server."""
    first = next(iter(machine.servers.values()))
    return [v.name for v in machine.gpus if v.name in first]


def planned(machine: Topology, collective: Collective) -> ClassPlans:
    """Over all classes that the file knows enough of."""
    speeds = any(v.port is not None and v.port.gbps for v in machine.vertices)
    return plan_classes(machine, one_server(machine), JOINT if speeds else JOINT[:2], collective)


def proved() -> list[str]:
    lines = ["| machine | GPUs | collective | alone | together | gain | by class |", "|---|--:|---|--:|--:|--:|---|"]
    for name in zoo.names():
        machine = load_topology(name)
        for collective in COMPILED:
            made = planned(machine, collective)
            alone = next((own.rate for own in made.classes if own.rate), None)
            assert made.joint.rate is not None
            assert alone is not None
            gain = f"{float(made.joint.rate / alone - 1):+.1%}"
            parts = ", ".join(f"{own.name} {float(own.rate):.4g}" for own in made.classes)
            if made.mixed:
                parts += f", trees of several classes {float(made.mixed):.4g}"
            row = [name, str(made.graph.nranks), collective.value]
            row += [f"{float(alone):.4g}", f"{float(made.joint.rate):.4g}", gain, parts]
            lines.append("| " + " | ".join(row) + " |")
    return lines


def simulated() -> list[str]:
    items = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))["items"]
    claims = {claim["id"]: claim for item in items for claim in item["claims"]}
    machine = load_topology("hgx-h800")
    parameters, _ = machine_for(None, machine.gpu_model)
    header = ["operator", "GPUs", "MB", "FlexLink, PCIe", "PCIe and NICs", "simulated", "share", "bound"]
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * 7 + "|"]
    for key in [key for key in claims if re.fullmatch(r"all\w+-\d-\d+mb-nccl", key)]:
        operator, gpus, size, _ = key.split("-")
        base, pcie = (float(claims[f"{operator}-{gpus}-{size}-{which}"]["theirs"]) for which in ("nccl", "pcie"))
        both = re.search(r"NICs, (\d+)", claims[f"{operator}-{gpus}-{size}-rdma"]["says"])
        assert both is not None
        count = int(size.removesuffix("mb")) << 20
        collective = OPERATORS[operator]
        names = [v.name for v in machine.gpus[: int(gpus)]]
        plans = plan_classes(machine, names, ("nvlink", "pcie"), collective)
        total = count * int(gpus) if collective is Collective.ALL_GATHER else count
        (split,) = split_by_size(plans, parameters, [total])
        assert plans.joint.rate is not None
        bound = float(plans.joint.rate / plans.classes[0].rate - 1)
        row = [collective.value, gpus, size.removesuffix("mb"), f"{pcie / base - 1:+.0%}"]
        row += [
            f"{float(both[1]) / base - 1:+.0%}",
            f"{split.gain:+.0%}",
            f"{split.shares['pcie']:.0%}",
            f"{bound:+.0%}",
        ]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def library() -> list[str]:
    machine = load_topology("hgx-h800")
    contents = library_contents(LibraryRequest("hgx-h800", classes=AUTO), CUDA)
    alone = library_contents(LibraryRequest("hgx-h800", classes="nvlink"), CUDA)
    header = ["operator", "MB", "share", "as compiled", "share, balanced", "balanced", "bound"]
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * 6 + "|"]
    for collective, sizes in ((Collective.ALL_REDUCE, (256,)), (Collective.ALL_GATHER, (32, 64, 128, 256))):
        plans = plan_classes(machine, None, ("nvlink", "pcie"), collective)
        assert plans.joint.rate is not None
        bound = float(plans.joint.rate / plans.classes[0].rate - 1)
        for mega in sizes:
            total = (mega << 20) * (8 if collective is Collective.ALL_GATHER else 1)
            entry, before = library_us(alone, collective, total)
            entry, first = library_us(contents, collective, total)
            best, least = entry.program.weights[1], first
            for percent in range(entry.program.weights[1] + 1, 31):
                _, time = library_us(contents, collective, total, percent)
                best, least = (percent, time) if time < least else (best, least)
            row = [collective.value, str(mega), f"{entry.program.weights[1]}%", f"{before / first - 1:+.1%}"]
            lines.append("| " + " | ".join([*row, f"{best}%", f"{before / least - 1:+.1%}", f"{bound:+.0%}"]) + " |")
    return lines


def library_us(contents: Contents, collective: Collective, size: int, pcie: int | None = None) -> tuple[Entry, float]:
    """The program that a library runs for a call of `size` bytes, and its time with PCIe's weight in hundredths."""
    graph = contents.documents[0].graph
    per_call = bytes_per_call(collective, size, graph.nranks)
    held = [entry for entry in contents.entries[0] if entry.program.collective is collective]
    entry = [one for one in held if (one.when.min_bytes or 0) <= per_call][-1]
    parameters, _ = machine_for(None, graph.gpu_model)
    program = entry.program if pcie is None else entry.program.replace(weights=(100 - pcie, pcie, 0))
    simulator = Simulator(graph, collective, None, parameters, slots=program.slots)
    plan = contents.documents[0].plans[entry.plan]
    simulator.plans["trees"], simulator.programs["trees", 1] = plan, (plan, program)
    variant = Variant("trees", "Simple" if program.weights else entry.when.protocol or "Simple", program.chunk_bytes, 1)
    return entry, simulator.predict(variant, size).period_us(parameters)


BLINK_GAINS = {3: "5", 4: "5", 7: "2", 8: "2"}


def blink() -> list[str]:
    machine = load_topology("dgx1v")
    parameters, _ = machine_for(None, machine.gpu_model)
    header = ["GPUs", "NVLink", "both", "gain", "share of PCIe", "bound of the gain", "Blink's gain"]
    lines = ["| " + " | ".join(header) + " |", "|" + "--:|" * len(header)]
    for count in range(3, 9):
        names = [v.name for v in machine.gpus[:count]]
        plans = plan_classes(machine, names, ("nvlink", "pcie"), Collective.BROADCAST, 0)
        (split,) = split_by_size(plans, parameters, [256 << 20])
        assert plans.joint.rate is not None
        alone, both = (split.bytes / time / 1e3 for time in (split.alone_us, split.time_us))
        row = [str(count), f"{alone:.1f}", f"{both:.1f}", f"{both - alone:.1f}", f"{split.shares.get('pcie', 0):.0%}"]
        row += [f"{float(plans.joint.rate - plans.classes[0].rate):.1f}", BLINK_GAINS.get(count, "")]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def costs() -> list[str]:
    ways = (("nvlink", "`--classes nvlink`"), (AUTO, "by default"), ("nvlink,pcie", "`--classes nvlink,pcie`"))
    header = ["machine", "library", "cut collectives", "blocks", "of them PCIe's", "GPU MB", "pinned MB"]
    lines = ["| " + " | ".join(header) + " |", "|---|---|---" + "|--:" * 4 + "|"]
    for name in ("hgx-h800", "hgx-a800", "hgx-h100"):
        for classes, title in ways:
            contents = library_contents(LibraryRequest(name, classes=classes), CUDA)
            entries, nranks = contents.entries[0], contents.documents[0].graph.nranks
            programs = [entry.program for entry in entries]
            cut = [program for program in programs if program.weights]
            gpu = max(fifo_bytes_by_rank(entries, nranks)) + transfer_bytes(nranks, slot_bytes(programs))
            row = [name, title, ", ".join(dict.fromkeys(p.collective.value for p in cut)) or "none"]
            row += [str(max(len(p.channels) for p in programs)), str(most_slow(cut)), f"{gpu / 1e6:.0f}"]
            row.append(f"{pinned_bytes(entries, nranks, slot_bytes(programs), set()) / 1e6:.0f}")
            lines.append("| " + " | ".join(row) + " |")
    return lines


def most_slow(programs: Sequence[Program]) -> int:
    """Channels of classes other than the fastest, of the program that has most."""
    return max((sum(is_slow(p, c) for c in p.channels) for p in programs), default=0)


def is_slow(program: Program, channel: Channel) -> bool:
    return any(program.shares[step.share].part != 0 for steps in channel.steps for step in steps)


def fixed() -> list[str]:
    lines = ["| machine | collective | NVLink, us | PCIe, us |", "|---|---|--:|--:|"]
    for name in ("hgx-h800", "dgx1v"):
        machine = load_topology(name)
        parameters, _ = machine_for(None, machine.gpu_model)
        for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST):
            plans = plan_classes(machine, one_server(machine), ("nvlink", "pcie"), collective)
            row = [name, collective.value]
            for own in plans.classes:
                assert own.graph is not None
                curve = class_curve(Simulator(own.graph, collective, plans.joint.root, parameters), [LEAST], True)
                row.append(f"{curve.time_us[0]:.1f}")
            lines.append("| " + " | ".join(row) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there instead of printing it")
    arguments = parser.parse_args()
    sections = [
        (INTRODUCTION, proved), (SIMULATED, simulated), (LIBRARY, library), (BLINK, blink), (COSTS, costs),
        (FIXED, fixed),
    ]  # fmt: skip
    publish("".join(words + "\n".join(table()) + "\n" for words, table in sections), arguments.write)


if __name__ == "__main__":
    main()
