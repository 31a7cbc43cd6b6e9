"""Blink's design: meshes, trees, chunks (figures 1 to 4 and 9 to 14, sections 3.2 and 3.3, equation 8)."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from reproduction import drawings
from reproduction.claims import Answer, Generators, Made
from reproduction.models import (
    NEEDED,
    K,
    M,
    api_functions,
    chain,
    every_set,
    graph_of,
    markdown,
    mean,
    program,
    simulator,
    text_graph,
    trusted,
)

from collc import pipeline
from collc.collectives.model import Collective
from collc.collectives.sizes import short_size
from collc.options import CUDA
from collc.packing import plan
from collc.packing.candidates.plans import candidate
from collc.packing.candidates.ring_rates import best_rings, ring_rate
from collc.simulator.generations import MACHINES
from collc.simulator.params import Machine, Protocol
from collc.simulator.run import Simulator, Variant, own_channels
from collc.topology.load import load_topology
from collc.topology.model import LinkKind
from collc.tune.miad import miad

ANSWERS = Generators("blink")
BROADCAST, ALL_REDUCE, REDUCE = Collective.BROADCAST, Collective.ALL_REDUCE, Collective.REDUCE
LARGE = 1_000_000_000
SIX = tuple(f"gpu{i}" for i in (0, 1, 2, 4, 5, 6))
V100 = MACHINES["v100"]
CHAIN_MODEL = "v100, one NVLink from GPU to GPU, never compared with a measurement of such a call"


def gpus(*numbers: int) -> tuple[str, ...]:
    return tuple(f"gpu{i}" for i in numbers)


@ANSWERS("Figure 1")
def meshes(figures: Path) -> Made:
    def links(machine: str) -> tuple[int, float]:
        found = [x for x in load_topology(machine).links if x.kind is LinkKind.NVLINK]
        lane = min(float(x.gbps) for x in found)
        leaving = Counter[str]()
        for x in found:
            leaving[x.src] += round(float(x.gbps) / lane)
        (each,) = set(leaving.values())
        return each, lane

    (p100, slow), (v100, fast) = links("dgx1p"), links("dgx1v")
    counted = "the topology files dgx1p and dgx1v"
    return Made(
        {
            "fig1-p100": Answer(p100, "counted", counted),
            "fig1-v100": Answer(v100, "counted", counted),
            "fig1-gen1": Answer(slow, "counted", counted),
            "fig1-gen2": Answer(fast, "counted", counted),
        }
    )


@ANSWERS("Figure 2")
def three_gpus(figures: Path) -> Made:
    unit = Fraction(20)
    joined, apart = graph_of("dgx1p", gpus(0, 1, 3)), graph_of("dgx1p", gpus(0, 1, 4))
    trees = plan(apart, BROADCAST, 0).rate
    pcie = plan(graph_of("dgx1p", gpus(0, 1, 4), "pcie"), BROADCAST, 0).rate
    assert trees is not None
    assert pcie is not None
    return Made(
        {
            "fig2-rings": Answer(best_rings(joined, unit), "proved", "an integer program over all rings"),
            "fig2-no-ring": Answer(best_rings(apart, unit) == 0, "proved", "all rings listed"),
            "fig2-trees": Answer(trees > pcie, "proved", f"optimal rates, {trees} GB/s over NVLink, {pcie} over PCIe"),
        }
    )


@ANSWERS("Figure 4")
def six_gpus(figures: Path) -> Made:
    graph, unit = graph_of("dgx1p", SIX), Fraction(20)
    rings = best_rings(graph, unit)
    made = plan(graph, BROADCAST, 0)
    fewest = plan(graph, BROADCAST, 0, "ilp")
    over_rings = ring_rate(BROADCAST, graph.nranks, rings, unit)
    assert made.rate is not None
    how = f"GPUs 0, 1, 2, 4, 5, 6: {made.rate} GB/s by trees, {over_rings} by rings"
    return Made(
        {
            "fig4-rings": Answer(rings, "proved", "an integer program over all rings of GPUs 0, 1, 2, 4, 5, 6"),
            "fig4-unused": Answer(made.rate > over_rings, "proved", how),
            "fig4-trees": Answer(len(fewest.trees), "proved", "the fewest trees of the optimal rate, ilp"),
        }
    )


@ANSWERS("Figure 9")
def workflow(figures: Path) -> Made:
    graph = graph_of("dgx1v", gpus(0, 1, 2, 3))
    made = plan(graph, ALL_REDUCE)
    ran = program(graph, ALL_REDUCE)
    stages = ", ".join(pipeline.stage_names(CUDA))
    whole = sum(tree.weight for tree in made.trees) == made.rate and bool(ran.channels)
    functions = api_functions()
    return Made(
        {
            "fig9-stages": Answer(
                whole,
                "proved",
                f"GPUs 0 to 3: {len(made.trees)} trees with weights, then {stages}, verified after each",
            ),
            "fig9-preload": Answer(
                functions >= NEEDED,
                "counted",
                f"{len(functions)} functions of NCCL's API in the runtime's sources",
            ),
        }
    )


@ANSWERS("Figure 10")
def phases(figures: Path) -> Made:
    graph = graph_of(str(Path(__file__).parents[1] / "clusters" / "h100-2.yaml"))
    made = candidate(graph, ALL_REDUCE, None, "three-phase")
    server = {rank: graph.servers[rank] for rank in graph.ranks}
    crossing = {tree.root: [hop for hop in tree.broadcast if server[hop.src] != server[hop.dst]] for tree in made.trees}
    single = all(hop.src == root for root, hops in crossing.items() for hop in hops) and all(crossing.values())
    verified = program(graph, ALL_REDUCE, "three-phase")
    return Made(
        {
            "fig10-phases": Answer(
                verified.nranks == graph.nranks, "proved", "the plan three-phase on 2 x 8 GPUs, its program verified"
            ),
            "fig10-one-hop": Answer(single, "counted", f"the crossing hops of its {len(made.trees)} trees"),
        }
    )


@ANSWERS("Figure 11")
def two_chunks(figures: Path) -> Made:
    free = Machine("free", protocols=(Protocol("Simple", 0.0, 1.0, 1 << 29, None),))
    model = Simulator(chain(4), BROADCAST, 0, free)
    size = 64 * M
    whole, halves = (model.predict(Variant("trees", "Simple", chunk, 1), size).time_us for chunk in (size, size // 2))
    how = "a chain of four GPUs whose steps cost nothing but bytes"
    return Made({"fig11-two": Answer(100 * (1 - halves / whole), "counted", how)})


@ANSWERS("Figure 12")
def chunk_search(figures: Path) -> Made:
    model = simulator("dgx1v", gpus(0, 1, 2, 3), BROADCAST)
    channels = 2 * own_channels(model.plan("trees"))
    ladder = [8 * K << i for i in range(7)]
    times: dict[int, float] = {}

    def time(chunk: int) -> float:
        if chunk not in times:
            times[chunk] = model.predict(Variant("trees", "Simple", chunk, channels), LARGE).time_us
        return times[chunk]

    walk = miad(ladder, lambda a, b: (time(a), time(b)))
    path = [ladder[0], *(trial.other for trial in walk.trials)]
    curve = [(float(i), LARGE / time(chunk) / 1e3) for i, chunk in enumerate(path)]
    best = min(ladder, key=time)
    steps = next(i for i, chunk in enumerate(path) if time(chunk) <= 1.02 * time(best))
    drawings.lines(
        figures / "blink-figure-12.svg",
        "MIAD from chunks of 8 KiB, broadcast of 1000 MB over 4 GPUs, simulated",
        {"broadcast": curve},
        "iteration",
        "GB/s",
    )
    how = trusted("dgx1v", BROADCAST, LARGE) + "; from 8 KiB, for slots hold 512 KiB; within 2% of the best"
    table = _chunk_table()
    return Made(
        {
            "fig12-steps": Answer(steps, "simulated", how),
            "fig12-best": Answer(time(walk.chunk) <= 1.02 * time(best), "simulated", how),
        },
        "The trials: " + ", ".join(f"{short_size(c)} {LARGE / time(c) / 1e3:.0f} GB/s" for c in path) + ".\n\n" + table,
    )


def _chunk_table() -> str:
    """GB/s by chunk size of broadcasts over 8 GPUs, as a library holds them."""
    chunks, rows = [c * K for c in (4, 16, 32, 64, 128, 256, 512)], []
    for name in ("generic", "v100"):
        model = Simulator(graph_of("dgx1v"), BROADCAST, 0, MACHINES[name])
        channels = own_channels(model.plan("trees"))
        for size in (M, 16 * M, 64 * M, 512 * M):
            rates = [model.predict(Variant("trees", "Simple", c, channels), size).algbw_gbps for c in chunks]
            rows.append([f"{short_size(size)}, {name}", *(f"{rate:.0f}" for rate in rates)])
    return "Broadcast over 8 GPUs of a DGX-1V, GB/s by the size of chunks:\n\n" + markdown(
        ["", *map(short_size, chunks)], rows
    )


@ANSWERS("Figure 13")
def fair_shares(figures: Path) -> Made:
    # Two equal trees leave gpu0 over one link of 50 GB/s and part behind gpu1.
    links = (
        "  - [gpu0, gpu1, nvlink x2]\n  - [gpu1, gpu2, nvlink]\n  - [gpu1, gpu3, nvlink]\n  - [gpu2, gpu3, nvlink]\n"
    )
    graph = text_graph(f"gpus: 4\nspeeds: {{nvlink: 25}}\nlinks:\n{links}")
    model = Simulator(graph, BROADCAST, 0, V100)
    made = model.plan("trees")
    run = model.predict(Variant("trees", "Simple", 512 * K, len(made.trees)), 64 * M)
    first = {i for i, loop in enumerate(run.case.loops) if loop.rank == 0}
    order = [row.loop for row in sorted(run.outcome.executions, key=lambda row: row.end) if row.loop in first]
    longest = current = 1
    for before, after in pairwise(order):
        current = current + 1 if before == after else 1
        longest = max(longest, current)
    how = f"{len(order)} chunks of {len(made.trees)} trees over one link, in the order in which they end"
    return Made({"fig13-turns": Answer(longest, "simulated", f"v100, {how}")})


@ANSWERS("Figure 14")
def theoretical(figures: Path) -> Made:
    unit = {"dgx1v": Fraction(25), "dgx1p": Fraction(20)}
    found: dict[str, list[float]] = {}
    rows = []
    for machine, name in (("dgx1p", "P100"), ("dgx1v", "V100")):
        sized: dict[tuple[int, Collective], list[float]] = {}
        for chosen in every_set(machine):
            graph = graph_of(machine, chosen)
            rings = best_rings(graph, unit[machine])
            for collective in (ALL_REDUCE, BROADCAST, Collective.ALL_GATHER):
                rate = plan(graph, collective, 0 if collective.rooted else None).rate
                assert rate is not None
                gain = float(rate / ring_rate(collective, graph.nranks, rings, unit[machine]))
                found.setdefault(f"{collective.value}\n{name}", []).append(gain)
                sized.setdefault((graph.nranks, collective), []).append(gain)
        for n in sorted({n for n, _ in sized}):
            cells = [
                f"{max(sized[n, c]):.2f}, {mean(sized[n, c]):.2f}"
                for c in (BROADCAST, Collective.ALL_GATHER, ALL_REDUCE)
            ]
            rows.append([f"{name}, {n} GPUs", str(len(sized[n, BROADCAST])), *cells])
    shown = {name: values for name, values in found.items() if not name.startswith("all_gather")}
    drawings.boxes(
        figures / "blink-figure-14.svg", "optimal trees over the best rings, every allocation", shown, "speedup"
    )
    gains = [gain for values in shown.values() for gain in values]
    how = "exact rates, best rings by an integer program; `collc plan dgx1v --allocations connected --compare rings`"
    return Made(
        {
            "fig14-v": Answer(len(every_set("dgx1v")), "counted", "canonical forms of all sets"),
            "fig14-p": Answer(len(every_set("dgx1p")), "counted", "canonical forms of all sets"),
            "fig14-least": Answer(min(gains), "proved", how),
            "fig14-most": Answer(max(gains), "proved", how),
            "fig14-rings": Answer(float(ring_rate(ALL_REDUCE, 8, 4, Fraction(1))), "counted", "rings of one link"),
        },
        "Largest and geometric mean of the speedup:\n\n"
        + markdown(["", "sets", "broadcast", "all_gather", "all_reduce"], rows),
    )


@ANSWERS("Section 3.2")
def trees(figures: Path) -> Made:
    graph = graph_of("dgx1v")
    many, few = plan(graph, BROADCAST, 0, "mwu"), plan(graph, BROADCAST, 0, "ilp")
    exact = plan(graph, BROADCAST, 0)
    assert many.rate is not None
    assert exact.rate is not None
    equal = [tree.weight for tree in exact.trees]
    shares = [float(1000 * weight / exact.rate) for weight in equal]
    how = f"the exact plan: {len(equal)} trees of {', '.join(sorted({str(w) for w in equal}))} GB/s"
    return Made(
        {
            "mwu-rate": Answer(float(many.rate) / 25, "proved", f"{many.rate} of {exact.rate} GB/s, checked"),
            "mwu-many": Answer(len(many.trees), "counted", "the solver mwu, stopped at 99% of the rate"),
            "ilp-few": Answer(len(few.trees), "proved", f"the solver ilp: {few.remark}"),
            "ilp-share": Answer(max(shares), "counted", how),
        }
    )


@ANSWERS("Section 3.3")
def messages(figures: Path) -> Made:
    made = plan(graph_of("dgx1v"), ALL_REDUCE)
    (found,) = {len(tree.reduce) + len(tree.broadcast) for tree in made.trees}
    return Made({"messages": Answer(found, "counted", "hops of every tree of the optimal plan")})


@ANSWERS("Equation 8")
def split(figures: Path) -> Made:
    chosen = gpus(0, 1, 2)
    both = plan(graph_of("dgx1v", chosen, "nvlink,pcie"), BROADCAST, 0).rate
    one, other = (plan(graph_of("dgx1v", chosen, kind), BROADCAST, 0).rate for kind in ("nvlink", "pcie"))
    assert both is not None
    assert one is not None
    assert other is not None
    how = f"optimal rates: {one} over NVLink, {other} over PCIe, {both} over both"
    return Made({"eq8": Answer(both == one + other, "proved", how)})
