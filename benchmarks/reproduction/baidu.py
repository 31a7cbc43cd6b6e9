"""Baidu's ring: a single reducer against it, its steps, and a language model on 1 to 40 GPUs."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path

from reproduction import drawings
from reproduction.claims import Answer, Generators, Made
from reproduction.models import markdown, text_graph

from collc.collectives.model import Collective
from collc.ir.nodes import Program
from collc.options import CUDA
from collc.packing import plan
from collc.packing.candidates.plans import candidate
from collc.pipeline import lower_spread
from collc.simulator.params import Machine, Protocol
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.model import PlanGraph
from collc.training.libraries import ring_by_hand, single_reducer
from collc.training.net import Step, step
from collc.training.net_file import read_net

ANSWERS = Generators("baidu-ring")
ALL_REDUCE = Collective.ALL_REDUCE
# Only links, as in the source's count.
BARE = Machine("bare", protocols=(Protocol("Simple", 0.0, 1.0, 1 << 29, None),))
BYTES = 1_200_000_000
NO_LATENCY = "bytes over the slowest link, no latency"


def star(n: int) -> PlanGraph:
    """GPUs on one switch, 1 GB/s each."""
    links = "".join(f"  - [gpu{i}, nvs0, nvswitch]\n" for i in range(n))
    return text_graph(f"gpus: {n}\nswitches: [nvs0]\nspeeds: {{nvswitch: 1}}\nlinks:\n{links}")


@ANSWERS("The Communication Problem")
def reducer(figures: Path) -> Made:
    def seconds(n: int) -> float:
        return single_reducer(star(n), BARE)(BYTES) / 1e6

    speech = read_net("speech-300m")
    growth = [seconds(n) / (n - 1) for n in range(2, 41)]
    return Made(
        {
            "bytes": Answer(speech.gradient_bytes / 1e9, "counted", "the model file speech-300m"),
            "two": Answer(seconds(2), "counted", f"{NO_LATENCY}, there and back"),
            "ten": Answer(seconds(10), "counted", f"{NO_LATENCY}, there and back"),
            "ten-in": Answer(seconds(10) / 2, "counted", f"{NO_LATENCY}; half of the way there and back"),
            "linear": Answer(max(growth) - min(growth) < 1e-9, "counted", "2 to 40 GPUs"),
        }
    )


@cache
def ring(n: int) -> Program:
    graph = star(n)
    return lower_spread(candidate(graph, ALL_REDUCE, None, "ring"), 1, graph, CUDA)[1]


@ANSWERS("The Ring Allreduce")
def neighbors(figures: Path) -> Made:
    made = ring(5)
    to = {rank: {dst for fifo in made.fifos if fifo.src == rank for dst in fifo.dsts} for rank in range(5)}
    sides = all(len(dsts) == 1 for dsts in to.values()) and len(set.union(*to.values())) == 5
    optimum, rings = plan(star(5), ALL_REDUCE).rate, candidate(star(5), ALL_REDUCE, None, "ring").rate
    how = f"{rings} of {optimum} GB/s that any plan with a root reaches on five GPUs behind a switch"
    return Made(
        {
            "neighbors": Answer(sides, "proved", "the FIFOs of the verified program of a ring of five"),
            "optimal": Answer(rings == optimum, "proved", how),
        }
    )


def steps_of(rank: int) -> list[tuple[str, int]]:
    """(primitive, chunk) of a rank of the ring of five; a chunk is a share of the buffer."""
    return [(step.name, step.share) for channel in ring(5).channels for step in channel.steps[rank]]


def order(n: int, shift: int) -> list[list[tuple[int, int]]]:
    """The (sent, received) chunk of each GPU in each iteration by the source's rule, computed from the first one."""
    return [[((r - i + shift) % n, (r - i - 1 + shift) % n) for r in range(n)] for i in range(n - 1)]


def run_by_hand(n: int) -> tuple[list[list[set[int]]], list[list[set[int]]]]:
    """Returns for each GPU and chunk the ranks that have contributed, after each of the source's two loops."""
    held = [[{r} for _ in range(n)] for r in range(n)]
    for moves in order(n, 0):
        sent = [set(held[r][moves[r][0]]) for r in range(n)]
        for r in range(n):
            chunk = moves[r][1]
            assert chunk == moves[(r - 1) % n][0]
            held[r][chunk] |= sent[(r - 1) % n]
    first = [[set(chunk) for chunk in row] for row in held]
    for moves in order(n, 1):
        sent = [set(held[r][moves[r][0]]) for r in range(n)]
        for r in range(n):
            held[r][moves[r][1]] = sent[(r - 1) % n]
    return first, held


@ANSWERS("The Scatter-Reduce")
def scatter(figures: Path) -> Made:
    reduces = [name for name, _ in steps_of(0) if "Reduce" in name]
    after, _ = run_by_hand(5)
    complete = [sum(chunk == set(range(5)) for chunk in row) for row in after]
    table = [[str(r), f"Chunk {s}", f"Chunk {t}"] for r, (s, t) in enumerate(order(5, 0)[0])]
    return Made(
        {
            "scatter-steps": Answer(len(reduces), "counted", "steps of a rank's verified program that reduce"),
            "scatter-table": Answer(
                order(5, 0)[0] == [(0, 4), (1, 0), (2, 1), (3, 2), (4, 3)],
                "counted",
                "the rule of examples/ring_by_hand.py",
            ),
            "scatter-end": Answer(complete == [1] * 5, "proved", "sets of contributors through all iterations"),
        },
        markdown(["GPU", "send", "receive"], table),
    )


@ANSWERS("The Allgather")
def gather(figures: Path) -> Made:
    plain = [name for name, _ in steps_of(0) if name.startswith("recv") and "Reduce" not in name]
    _, after = run_by_hand(5)
    table = [[str(r), f"Chunk {s}", f"Chunk {t}"] for r, (s, t) in enumerate(order(5, 1)[0])]
    return Made(
        {
            "gather-steps": Answer(len(plain), "counted", "steps of a rank's verified program that receive results"),
            "gather-table": Answer(
                order(5, 1)[0] == [(1, 0), (2, 1), (3, 2), (4, 3), (0, 4)],
                "counted",
                "the rule of examples/ring_by_hand.py",
            ),
            "gather-end": Answer(
                after == [[set(range(5))] * 5] * 5, "proved", "sets of contributors through all iterations"
            ),
        },
        markdown(["GPU", "send", "receive"], table),
    )


@ANSWERS("Allreduce Communication Cost")
def cost(figures: Path) -> Made:
    n = 40
    made = ring(n)
    sent = sum(float(s.hi - s.lo) / 1 for f in made.fifos if f.src == 0 for s in [made.shares[f.share]] for _ in f.dsts)
    slow = text_graph(
        "gpus: 4\nlinks:\n  - [gpu0, gpu1, nvlink, 10]\n  - [gpu1, gpu2, nvlink, 10]\n"
        "  - [gpu2, gpu3, nvlink, 5]\n  - [gpu3, gpu0, nvlink, 10]\n"
    )
    rate = candidate(slow, ALL_REDUCE, None, "ring").rate
    return Made(
        {
            "volume": Answer(sent, "counted", "shares of the FIFOs that leave a rank of the verified ring of 40"),
            "slowest": Answer(
                rate == Fraction(5) * 4 / 6, "proved", f"links of 10, 10, 5, 10 GB/s: {rate} GB/s, that of 5"
            ),
        }
    )


def cluster(servers: int, gpus: int = 8) -> PlanGraph:
    """Servers of eight GPUs on one PCIe tree each (10 GB/s by GPUDirect), an InfiniBand NIC of 6 GB/s per server."""
    names = [f"s{i}" for i in range(servers)]
    lines = [
        "format: collc-topology/1",
        "name: five",
        "gpus: [" + ", ".join(f"{s}g{i}" for s in names for i in range(gpus)) + "]",
        "switches: [net0, " + ", ".join(f"{s}p" for s in names) + "]",
        "nics: [" + ", ".join(f"{s}n" for s in names) + "]",
        "servers: {"
        + ", ".join(f"{s}: [" + ", ".join([*(f"{s}g{i}" for i in range(gpus)), f"{s}p", f"{s}n"]) + "]" for s in names)
        + "}",
        "links:",
    ]
    for s in names:
        lines += [f"  - [{s}g{i}, {s}p, pcie, 10]" for i in range(gpus)]
        lines += [f"  - [{s}n, {s}p, pcie, 10]", f"  - [{s}n, net0, net, 6]"]
    return plan_graph(loads_topology("\n".join(lines) + "\n"))


# MPI's call and a kernel for the sum, for each step.
MPI = Machine("mpi", launch_us=5.0, protocols=(Protocol("Simple", 6.0, 1.0, 1 << 29, None),))


def iteration(gpus: int) -> Step:
    net = read_net("language-300m")
    if gpus == 1:
        return step(net, None)
    return step(net, ring_by_hand(cluster(-(-gpus // 8), min(gpus, 8)), MPI))


@ANSWERS("Applying the Allreduce to Deep Learning")
def scaling(figures: Path) -> Made:
    counts = [1, 2, 4, 8, 16, 24, 32, 40]
    steps = {n: iteration(n) for n in counts}
    speed = {n: n * 32 / steps[n].step_us * 1e6 for n in counts}
    linear = [(float(n), n * speed[16] / 16) for n in counts]
    drawings.lines(
        figures / "baidu-scaling.svg",
        "a language model of 300 million parameters, a ring over servers of 8 GPUs, simulated",
        {"samples per second": [(float(n), speed[n]) for n in counts], "in proportion to 16 GPUs": linear},
        "GPUs",
        "samples/s",
    )
    last = steps[40]
    sent = 2 * 39 / 40 * read_net("language-300m").gradient_bytes / 1e9
    how = "model file language-300m, a ring by hand, 10 GB/s inside, 6 GB/s between; compared with nothing else"
    rows = [
        [str(n), f"{s.step_us / 1e3:.0f}", f"{s.share:.0%}", f"{s.overlap:.0%}", f"{speed[n]:.0f}"]
        for n, s in steps.items()
    ]
    return Made(
        {
            "sent": Answer(sent, "counted", "2 x 39/40 of the gradients"),
            "all-reduce": Answer(ring_by_hand(cluster(5), MPI)(BYTES) / 1e3, "simulated", how),
            "forty": Answer(last.step_us / 1e3, "simulated", how),
            "hidden": Answer((last.communication_us - (last.step_us - last.compute_us)) / 1e3, "simulated", how),
            "scales": Answer(speed[40] / speed[16], "simulated", how),
        },
        markdown(["GPUs", "ms", "communication", "hidden of it", "samples/s"], rows),
    )
