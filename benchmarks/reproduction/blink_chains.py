"""Blink's micro-benchmarks over chains and stars of GPUs (figures 6 to 8 and 23 to 26)."""

from __future__ import annotations

from pathlib import Path

from reproduction import drawings
from reproduction.claims import Answer, Generators, Made
from reproduction.models import chain, graph_of, markdown, program, text_graph, tree_rate

from collc.collectives.model import Collective
from collc.simulator.generations import MACHINES
from collc.simulator.params import Machine
from collc.topology.model import PlanGraph

ANSWERS = Generators("blink")
BROADCAST, ALL_REDUCE, REDUCE = Collective.BROADCAST, Collective.ALL_REDUCE, Collective.REDUCE
LARGE = 1_000_000_000
V100 = MACHINES["v100"]
CHAIN_MODEL = "v100, one NVLink from GPU to GPU, never compared with a measurement of such a call"


@ANSWERS("Figure 6")
def chain_steps(figures: Path) -> Made:
    made = program(chain(8), REDUCE)
    steps = {step.name for channel in made.channels for rank in channel.steps for step in rank}
    found = sum(
        any(step.name == "recvReduceSend" for channel in made.channels for step in channel.steps[rank])
        for rank in range(made.nranks)
    )
    return Made(
        {
            "fig6-steps": Answer(
                found, "counted", f"ranks of the verified program of reduce; its steps: {', '.join(sorted(steps))}"
            )
        }
    )


def depth(collective: Collective, n: int, size: int = LARGE, machine: Machine = V100) -> float:
    return max(tree_rate(chain(n), collective, size, machine, channels=channels) for channels in (2, 4, 8))


@ANSWERS("Figure 7")
def depth_test(figures: Path) -> Made:
    lengths = range(3, 9)
    found = {
        f"{size // 1_000_000} MB": [(float(n), depth(REDUCE, n, size)) for n in lengths]
        for size in (10_000_000, 100_000_000, LARGE)
    }
    drawings.lines(figures / "blink-figure-7.svg", "reduce and forward over a chain, simulated", found, "GPUs", "GB/s")
    large, small = found["1000 MB"], found["10 MB"]
    return Made(
        {
            "fig7-3": Answer(large[0][1], "simulated", CHAIN_MODEL),
            "fig7-8": Answer(large[-1][1], "simulated", CHAIN_MODEL),
            "fig7-sizes": Answer(all(a[1] < b[1] for a, b in zip(small, large, strict=True)), "simulated", CHAIN_MODEL),
        },
        markdown(
            ["GB/s over a chain of", *map(str, lengths)],
            [[name, *(f"{y:.1f}" for _, y in line)] for name, line in found.items()],
        ),
    )


@ANSWERS("Figure 8")
def transfers(figures: Path) -> Made:
    # A chain a - c - b per transfer: the two share nothing but c's memory, which carries twenty times as much.
    single = depth(BROADCAST, 2)
    mimo = depth(REDUCE, 3)
    links = "  - [gpu1, gpu2, nvlink]\n  - [gpu2, gpu0, nvlink]\n  - [gpu3, gpu4, nvlink]\n  - [gpu4, gpu0, nvlink]\n"
    mca = tree_rate(text_graph(f"gpus: 5\nspeeds: {{nvlink: 25}}\nlinks:\n{links}"), REDUCE, LARGE, V100, channels=2)
    return Made(
        {
            "fig8-mimo": Answer(mimo, "simulated", CHAIN_MODEL),
            "fig8-mca": Answer(mca, "simulated", CHAIN_MODEL),
            "fig8-loss": Answer(100 * (1 - mca / single), "simulated", CHAIN_MODEL),
        }
    )


@ANSWERS("Figure 23")
def chains(figures: Path) -> Made:
    ran = [program(chain(4), collective).nranks for collective in (BROADCAST, REDUCE, ALL_REDUCE)]
    return Made(
        {"fig23-kinds": Answer(ran == [4, 4, 4], "proved", "programs of broadcast, reduce and all_reduce, verified")}
    )


@ANSWERS("Figure 24")
def depth_tests(figures: Path) -> Made:
    names = {"forward": BROADCAST, "reduce and forward": REDUCE, "reduce and broadcast": ALL_REDUCE}
    found = {name: [(float(n), depth(collective, n)) for n in range(3, 9)] for name, collective in names.items()}
    drawings.lines(figures / "blink-figure-24.svg", "a chain of GPUs, 1000 MB, simulated", found, "GPUs", "GB/s")
    reduce = [y for _, y in found["reduce and forward"]]
    return Made(
        {
            "fig24-forward-3": Answer(found["forward"][0][1], "simulated", CHAIN_MODEL),
            "fig24-forward-8": Answer(found["forward"][-1][1], "simulated", CHAIN_MODEL),
            "fig24-reduce": Answer(sum(reduce) / len(reduce), "simulated", CHAIN_MODEL),
            "fig24-both-3": Answer(found["reduce and broadcast"][0][1], "simulated", CHAIN_MODEL),
            "fig24-both-8": Answer(found["reduce and broadcast"][-1][1], "simulated", CHAIN_MODEL),
        }
    )


@ANSWERS("Figure 25")
def degrees(figures: Path) -> Made:
    graph = graph_of("dgx1v")
    least = min(len({x.dst for x in graph.links if x.src == rank}) for rank in graph.ranks)
    return Made({"fig25-degree": Answer(least, "counted", "NVLink neighbors of every GPU of a DGX-1V")})


def star(leaves: int) -> PlanGraph:
    """gpu0 - gpu1 - leaves: gpu1 is the center."""
    links = "  - [gpu0, gpu1, nvlink]\n" + "".join(f"  - [gpu1, gpu{i + 2}, nvlink]\n" for i in range(leaves))
    return text_graph(f"gpus: {leaves + 2}\nspeeds: {{nvlink: 25}}\nlinks:\n{links}")


@ANSWERS("Figure 26")
def breadth(figures: Path) -> Made:
    sizes = [10_000_000, 50_000_000, 100_000_000, 500_000_000, LARGE]
    found = {
        f"{name}, {n}": [(float(size), tree_rate(star(n), collective, size, V100, channels=2)) for size in sizes]
        for name, collective in (("fan-out forward", BROADCAST), ("fan-in reduce and forward", REDUCE))
        for n in (2, 3)
    }
    drawings.lines(
        figures / "blink-figure-26.svg",
        "fan-in and fan-out of 2 and 3 GPUs, simulated",
        found,
        "bytes",
        "GB/s",
        logx=True,
        ticks={float(s): f"{s // 1_000_000} MB" for s in sizes},
    )
    out, into = found["fan-out forward, 3"][-1][1], found["fan-in reduce and forward, 3"][-1][1]
    return Made(
        {
            "fig26-out": Answer(out, "simulated", CHAIN_MODEL),
            "fig26-in": Answer(out - into, "simulated", CHAIN_MODEL),
        }
    )
