"""Blink's throughputs: every allocation of both DGX-1, the DGX-2, PCIe beside NVLink (figures 15 to 17, 19 to 21)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from reproduction import drawings
from reproduction.claims import Answer, Generators, Made
from reproduction.models import K, M, every_set, graph_of, markdown, mean, nccl, ours, trusted

from collc.choose.search import fastest
from collc.collectives.model import Collective
from collc.collectives.sizes import short_size, size_series
from collc.packing import plan
from collc.simulator.generations import MACHINES
from collc.simulator.run import Simulator, variants

ANSWERS = Generators("blink")
BROADCAST, ALL_REDUCE = Collective.BROADCAST, Collective.ALL_REDUCE
SIZE = 500_000_000
Gpus = tuple[str, ...]


def short(gpus: Gpus) -> str:
    return ",".join(gpu.removeprefix("gpu") for gpu in gpus)


def rates(machine: str, collective: Collective) -> dict[Gpus, tuple[float, float, bool]]:
    """Of every allocation: GB/s of collc, of NCCL, and whether NCCL has a ring over NVLink."""
    return {g: (ours(machine, g, collective, SIZE), *nccl(machine, g, collective, SIZE)) for g in every_set(machine)}


def drawn(machine: str, collective: Collective, path: Path) -> tuple[list[float], str]:
    """The speedups, after drawing both rates; and the table behind the drawing."""
    found = rates(machine, collective)
    names = [short(g) for g in found]
    series = {"collc": [r[0] for r in found.values()], "NCCL": [r[1] for r in found.values()]}
    drawings.bars(path, f"{collective.value} of 500 MB, {machine}, simulated", names, series, "GB/s")
    rows = [
        [short(g), f"{a:.1f}", f"{b:.1f}", f"{a / b:.2f}", "NVLink" if c else "PCIe"] for g, (a, b, c) in found.items()
    ]
    return [a / b for a, b, _ in found.values()], markdown(
        ["GPUs", "collc GB/s", "NCCL GB/s", "speedup", "NCCL over"], rows
    )


@ANSWERS("Figure 15")
def broadcast_v100(figures: Path) -> Made:
    gains, table = drawn("dgx1v", BROADCAST, figures / "blink-figure-15.svg")
    how = trusted("dgx1v", BROADCAST, SIZE)
    # The representatives of the source's two examples may be other GPUs: the graphs are the same.
    example, even = ("gpu1", "gpu4", "gpu5", "gpu6"), ("gpu2", "gpu3", "gpu6", "gpu7")
    over_nvlink = nccl("dgx1v", example, BROADCAST, SIZE)[1]
    more = ours("dgx1v", even, BROADCAST, SIZE) - nccl("dgx1v", even, BROADCAST, SIZE)[0]
    return Made(
        {
            "fig15-most": Answer(max(gains), "simulated", how),
            "fig15-mean": Answer(mean(gains), "simulated", how),
            "fig15-pcie": Answer(not over_nvlink, "proved", "all rings of these GPUs listed: none closes over NVLink"),
            "fig15-equal": Answer(more, "simulated", how),
        },
        table,
    )


@ANSWERS("Figure 16")
def broadcast_p100(figures: Path) -> Made:
    gains, table = drawn("dgx1p", BROADCAST, figures / "blink-figure-16.svg")
    how = trusted("dgx1p", BROADCAST, SIZE)
    return Made(
        {"fig16-most": Answer(max(gains), "simulated", how), "fig16-mean": Answer(mean(gains), "simulated", how)}, table
    )


@ANSWERS("Figure 17")
def all_reduce_v100(figures: Path) -> Made:
    gains, table = drawn("dgx1v", ALL_REDUCE, figures / "blink-figure-17.svg")
    how = trusted("dgx1v", ALL_REDUCE, SIZE)
    few = [g for g in every_set("dgx1v") if len(g) in (3, 4)]
    lower = [ours("dgx1v", g, BROADCAST, SIZE) - ours("dgx1v", g, ALL_REDUCE, SIZE) for g in few]
    (whole,) = (g for g in every_set("dgx1v") if len(g) == 8)
    half = {
        "ours": ours("dgx1v", whole, ALL_REDUCE, SIZE) / ours("dgx1v", whole, BROADCAST, SIZE),
        "nccl": nccl("dgx1v", whole, ALL_REDUCE, SIZE)[0] / nccl("dgx1v", whole, BROADCAST, SIZE)[0],
    }
    return Made(
        {
            "fig17-most": Answer(max(gains), "simulated", how),
            "fig17-mean": Answer(mean(gains), "simulated", how),
            "fig17-lower": Answer(sum(lower) / len(lower), "simulated", how),
            "fig17-half-ours": Answer(half["ours"], "simulated", how),
            "fig17-half-nccl": Answer(half["nccl"], "simulated", how),
        },
        table,
    )


@cache
def dgx2(generation: str, collective: Collective, sizes: tuple[int, ...]) -> dict[str, list[float]]:
    """Microseconds by kind of plan, each with its best protocol, chunk and channels at each size."""
    model = Simulator(graph_of("dgx2"), collective, 0 if collective.rooted else None, MACHINES[generation])
    kinds = [kind for kind in ("trees", "one-hop", "double-binary", "ring") if kind in model.kinds]
    found: dict[str, list[float]] = {}
    for kind in kinds:
        grid = variants(model, [kind])
        found[kind] = [fastest(model, grid, size).time_us for size in sizes]
    return found


SIZES = tuple(size_series(K, 64 * M, 16))


def gains_of(times: dict[str, list[float]]) -> list[float]:
    """NCCL's better kind over ours at each size."""
    pairs = zip(times["trees"], times["one-hop"], times["double-binary"], times["ring"], strict=True)
    return [min(tree, ring) / min(packed, star) for packed, star, tree, ring in pairs]


def kinds_table(times: dict[str, list[float]]) -> str:
    rows = [[short_size(size), *(f"{line[i]:.1f}" for line in times.values())] for i, size in enumerate(SIZES)]
    return markdown(["bytes", *(f"{kind} us" for kind in times)], rows)


@ANSWERS("Figure 19")
def dgx2_bandwidth(figures: Path) -> Made:
    times = dgx2("v100", ALL_REDUCE, SIZES)
    series = {
        kind: [(float(size), size / time / 1e3) for size, time in zip(SIZES, line, strict=True)]
        for kind, line in times.items()
    }
    ticks = {float(size): short_size(size) for size in SIZES}
    drawings.lines(
        figures / "blink-figure-19.svg",
        "all_reduce on a DGX-2, simulated",
        series,
        "bytes",
        "GB/s",
        logx=True,
        logy=True,
        ticks=ticks,
    )
    gains = gains_of(times)
    return Made(
        {"fig19-most": Answer(max(gains), "simulated", trusted("dgx2", ALL_REDUCE, 64 * M))}, kinds_table(times)
    )


@ANSWERS("Figure 20")
def dgx2_latency(figures: Path) -> Made:
    times = dgx2("v100", ALL_REDUCE, SIZES)
    small = [i for i, size in enumerate(SIZES) if size <= M]
    series = {kind: [(float(SIZES[i]), line[i]) for i in small] for kind, line in times.items()}
    ticks = {float(SIZES[i]): short_size(SIZES[i]) for i in small}
    drawings.lines(
        figures / "blink-figure-20.svg",
        "all_reduce on a DGX-2, simulated",
        series,
        "bytes",
        "us",
        logx=True,
        ticks=ticks,
    )
    over_ring = max(times["ring"][i] / min(times["trees"][i], times["one-hop"][i]) for i in small)
    broadcast = dgx2("generic", BROADCAST, SIZES)
    text = (
        "Broadcast with generic parameters; `one-hop` is one star from the root, `trees` are two-hop trees (root to i, "
        "i to all):\n\n" + kinds_table(broadcast)
    )
    how = trusted("dgx2", ALL_REDUCE, 16 * K) + "; over the ring, which is the slower of NCCL's two"
    return Made({"fig20-most": Answer(over_ring, "simulated", how)}, text)


@ANSWERS("Figure 21")
def hybrid(figures: Path) -> Made:
    nvlink, both = {}, {}
    for n in range(3, 9):
        chosen = tuple(f"gpu{i}" for i in range(n))
        found = [plan(graph_of("dgx1v", chosen, links), BROADCAST, 0).rate for links in ("nvlink", "nvlink,pcie")]
        assert all(rate is not None for rate in found)
        nvlink[n], both[n] = (float(rate or 0) for rate in found)
    series = {"NVLink": list(nvlink.values()), "NVLink and PCIe": list(both.values())}
    drawings.bars(
        figures / "blink-figure-21.svg",
        "broadcast, optimal rates, GPUs 0 to n - 1 of a DGX-1V",
        [str(n) for n in nvlink],
        series,
        "GB/s",
    )
    gain = {n: both[n] - nvlink[n] for n in nvlink}
    how = "optimal rates with PCIe beside NVLink, `collc plan dgx1v --links nvlink,pcie`"
    return Made(
        {
            "fig21-few": Answer((gain[3] + gain[4]) / 2, "proved", how),
            "fig21-many": Answer((gain[7] + gain[8]) / 2, "proved", how),
            "fig21-positive": Answer(min(gain.values()) > 0, "proved", how),
        },
        markdown(
            ["GB/s over", *(f"{n} GPUs" for n in nvlink)],
            [[name, *(f"{v:.4g}" for v in line)] for name, line in series.items()],
        ),
    )
