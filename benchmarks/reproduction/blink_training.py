"""Training steps with Blink's four networks: on one DGX-1 and over two (figures 5, 18 and 22)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from reproduction import drawings
from reproduction.claims import Answer, Generators, Made
from reproduction.models import GENERATION, every_set, graph_of, markdown, mean, simulator

from collc.choose.search import fastest
from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing import plan
from collc.simulator.generations import MACHINES
from collc.simulator.nccl import Nccl
from collc.simulator.run import Simulator, variants
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.model import PlanGraph
from collc.training.net import Step, buckets, step
from collc.training.net_file import read_net

ANSWERS = Generators("blink")
ALL_REDUCE = Collective.ALL_REDUCE
NETS = ("alexnet", "resnet18", "resnet50", "vgg16")
Gpus = tuple[str, ...]
HOW = "model files, {}, buckets of 25 MiB; NCCL 2.4 in the model"
# Calls in a bucket's size are as large as this or smaller; their times lie on lines between a few simulated sizes.
POINTS = (1 << 20, 16 << 20, 512 << 20)


@cache
def times(machine: str, gpus: Gpus, whose: str) -> tuple[float, ...]:
    """Microseconds of all_reduce at POINTS."""
    if whose == "collc":
        model = simulator(machine, gpus, ALL_REDUCE)
        grid = [v for v in variants(model) if v.protocol == "Simple" and v.chunk_bytes in (64 << 10, 512 << 10)]
        return tuple(fastest(model, grid, size).time_us for size in POINTS)
    try:
        communicator = Nccl(simulator(machine, gpus, ALL_REDUCE), "2.4")
        return tuple(communicator.predict(size).time_us for size in POINTS)
    except PackingError:
        communicator = Nccl(simulator(machine, gpus, ALL_REDUCE, "pcie"), "2.4")
        return tuple(communicator.predict(size).time_us for size in POINTS)


def between(found: tuple[float, ...], size: int) -> float:
    """On the line between the two nearest of POINTS."""
    i = next((i for i, point in enumerate(POINTS[1:-1], 1) if size < point), len(POINTS) - 1)
    low, high = POINTS[i - 1], POINTS[i]
    return max(found[0] * 0.5, found[i - 1] + (found[i] - found[i - 1]) * (size - low) / (high - low))


@cache
def trained(name: str, machine: str, gpus: Gpus, whose: str) -> Step:
    net = read_net(name)
    factor = net.factor(GENERATION[machine])
    assert factor is not None
    return step(net, lambda size: between(times(machine, gpus, whose), size), factor)


@ANSWERS("Figure 5")
def shares(figures: Path) -> Made:
    worst: dict[str, float] = {}
    spreads, rows = [], []
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in NETS}
    names = []
    for machine in ("dgx1p", "dgx1v"):
        for n in range(3, 9):
            sets = [gpus for gpus in every_set(machine) if len(gpus) == n]
            names.append(f"{n}\n{GENERATION[machine]}")
            row = [f"{GENERATION[machine]}, {n} GPUs"]
            for name in NETS:
                found = [100 * trained(name, machine, gpus, "nccl").share for gpus in sets]
                spans[name].append((min(found), max(found)))
                row.append(f"{min(found):.1f} to {max(found):.1f}")
                worst[machine] = max(worst.get(machine, 0.0), *found)
                if len(sets) > 1:
                    spreads.append(max(found) - min(found))
            rows.append(row)
    drawings.ranges(
        figures / "blink-figure-5.svg",
        "communication share with NCCL, best to worst allocation, simulated",
        names,
        spans,
        "% of the step",
    )
    how = HOW.format("p100 and v100")
    return Made(
        {
            "fig5-worst": Answer(worst["dgx1v"], "simulated", how),
            "fig5-spread": Answer(max(spreads) > 5, "simulated", how + f"; by up to {max(spreads):.0f} points"),
            "fig5-grows": Answer(
                worst["dgx1v"] > worst["dgx1p"], "simulated", how + f"; {worst['dgx1v']:.0f} and {worst['dgx1p']:.0f}%"
            ),
        },
        markdown(["% of the step", *NETS], rows),
    )


@ANSWERS("Figure 18")
def end_to_end(figures: Path) -> Made:
    saved, saved_calls, rows = [], [], []
    sets = every_set("dgx1v")
    series: dict[str, list[float]] = {name: [] for name in NETS}
    for gpus in sets:
        cells = []
        for name in NETS:
            before, after = trained(name, "dgx1v", gpus, "nccl"), trained(name, "dgx1v", gpus, "collc")
            whole = 100 * (1 - after.step_us / before.step_us)
            calls = 100 * (1 - after.communication_us / before.communication_us)
            saved.append(whole)
            saved_calls.append(calls)
            series[name].append(whole)
            cells.append(f"{whole:.1f}, {calls:.0f}")
        rows.append([",".join(g.removeprefix("gpu") for g in gpus), *cells])
    names = [row[0] for row in rows]
    drawings.bars(
        figures / "blink-figure-18.svg",
        "time of a step saved by collc's plan against NCCL, simulated",
        names,
        series,
        "%",
    )
    how = HOW.format("v100, all 46 allocations")
    # A mean of the remaining times, which are never zero, as a geometric mean needs.
    left = 100 * (1 - mean(1 - x / 100 for x in saved))
    left_calls = 100 * (1 - mean(1 - x / 100 for x in saved_calls))
    return Made(
        {
            "fig18-most": Answer(max(saved), "simulated", how),
            "fig18-mean": Answer(left, "simulated", how + "; of the times that are left"),
            "fig18-comm-most": Answer(max(saved_calls), "simulated", how),
            "fig18-comm-mean": Answer(left_calls, "simulated", how + "; of the times that are left"),
            "fig18-average": Answer(sum(saved_calls) / len(saved_calls), "simulated", how),
        },
        "Saved of the step and of the calls, in percent:\n\n" + markdown(["GPUs", *NETS], rows),
    )


def two_servers(gbps: float, nics: int = 4) -> PlanGraph:
    """GPUs 0 to 2 of a DGX-1V and 0 to 4 of another; NICs of `gbps` GB/s together, the first `nics` of each server."""
    each = gbps / nics
    links = "".join(f"  - [each.mlx5_{i}, net0, net, {each:.6f}]\n" for i in range(nics))
    text = f"format: collc-topology/1\nname: two-dgx1v\ntemplate: dgx1v\nservers: 2\nswitches: [net0]\nlinks:\n{links}"
    chosen = [f"server0.gpu{i}" for i in range(3)] + [f"server1.gpu{i}" for i in range(5)]
    return plan_graph(loads_topology(text), chosen)


def over_pcie(graph: PlanGraph, gbps: float) -> float:
    """GB/s of NCCL's ring over the servers as the source has it: hops inside a server go over PCIe."""
    n = graph.nranks
    pcie = 12.5
    return min(pcie, gbps) * n / (2 * (n - 1))


@ANSWERS("Figure 22")
def servers(figures: Path) -> Made:
    v100 = MACHINES["v100"]
    graph = two_servers(5.0, 1)
    model = Simulator(graph, ALL_REDUCE, None, v100)
    grid = [v for v in variants(model, ["trees", "three-phase"]) if v.protocol == "Simple" and v.channels <= 16]
    net_rate = over_pcie(graph, 5.0)
    gains = []
    rows = []
    for name in NETS:
        net = read_net(name)
        factor = net.factor("v100")
        assert factor is not None
        sizes = {bucket.bytes for bucket in buckets(net)}
        ours = {size: fastest(model, grid, size).time_us for size in sizes}
        a = step(net, ours.__getitem__, factor)
        b = step(net, lambda size: v100.launch_us + size / net_rate / 1e3, factor)
        gains.append(100 * (b.step_us / a.step_us - 1))
        rows.append([name, f"{a.step_us / 1e3:.1f}", f"{b.step_us / 1e3:.1f}", f"{gains[-1]:.1f}"])
    bandwidths = [40, 80, 120, 160, 200, 240, 280, 320, 360, 400]
    lines: dict[str, list[tuple[float, float]]] = {"collc, all NICs": [], "collc, one NIC": [], "NCCL over PCIe": []}
    for gbit in bandwidths:
        for label, nics in (("collc, all NICs", 4), ("collc, one NIC", 1)):
            rate = plan(two_servers(gbit / 8, nics), ALL_REDUCE).rate
            assert rate is not None
            lines[label].append((gbit, float(rate)))
        lines["NCCL over PCIe"].append((gbit, over_pcie(graph, gbit / 8)))
    drawings.lines(
        figures / "blink-figure-22.svg",
        "all_reduce on 3 + 5 GPUs of two DGX-1V, optimal rates",
        lines,
        "Gbit/s between the servers",
        "GB/s",
    )
    flat = lines["NCCL over PCIe"]
    inside = [plan(graph_of("dgx1v", tuple(f"gpu{i}" for i in range(n))), ALL_REDUCE).rate for n in (3, 5)]
    assert all(inside)
    slowest = min(float(rate or 0) for rate in inside)
    how = f"optimal rates over NVLink: {inside[0]} GB/s on GPUs 0 to 2, {inside[1]} on 0 to 4; the smaller in Gbit/s"
    table = markdown(
        ["Gbit/s", *map(str, bandwidths)], [[label, *(f"{y:.1f}" for _, y in line)] for label, line in lines.items()]
    )
    return Made(
        {
            "fig22a": Answer(
                max(gains), "simulated", "v100, model files, three-phase or packed trees over one NIC of 40 Gbit/s"
            ),
            "fig22b-pcie": Answer(flat[-1][1] == flat[3][1], "counted", "a ring over PCIe stops growing at 100 Gbit/s"),
            "fig22b-knee": Answer(8 * slowest, "proved", how),
        },
        "(a) milliseconds of a step:\n\n"
        + markdown(["", "collc", "ring over PCIe", "faster by %"], rows)
        + "\n\n(b) GB/s of the buffer:\n\n"
        + table,
    )
