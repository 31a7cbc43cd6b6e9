"""A ring in Python against NCCL on 2 x 8 H100: its steps, its times, and the cost of each shortcoming."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from reproduction import drawings
from reproduction.baidu import order, run_by_hand
from reproduction.claims import Answer, Generators, Made
from reproduction.models import G, K, M, markdown

from collc.collectives.model import Collective
from collc.packing import plan
from collc.packing.candidates.plans import candidate
from collc.simulator.generations import MACHINES
from collc.simulator.nccl import Nccl
from collc.simulator.nccl.baseline import SLOTS
from collc.simulator.run import Simulator
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.model import PlanGraph, VertexKind

ANSWERS = Generators("ring-by-hand")
ALL_REDUCE = Collective.ALL_REDUCE
BENCHMARKS = Path(__file__).parents[1]
H100 = MACHINES["h100"]
SIZES = {"4kb": 4 * K, "256kb": 256 * K, "4mb": 4 * M, "64mb": 64 * M, "512mb": 512 * M, "8gb": 8 * G}
# The source's time at 4 KB, in 30 steps. Its ring is fitted only to this figure.
STEP_US = 1810 / 30
# The rate of a ring through one NIC with one queue pair, fitted to NCCL's time in the same source at 8 GB.
NIC_GBPS, WIDE_GBPS, NICS = 17.5, 48.5, 8
N = 16


@cache
def cluster(servers: int) -> PlanGraph:
    text = (
        (BENCHMARKS / "clusters" / "h100-2.yaml")
        .read_text(encoding="utf-8")
        .replace("servers: 2", f"servers: {servers}")
    )
    return plan_graph(loads_topology(text))


@cache
def nccl(servers: int, ring_gbps: float | None = None) -> Nccl:
    simulator = Simulator(cluster(servers), ALL_REDUCE, None, H100, slots=SLOTS)
    return Nccl(simulator, "2.28.9", "infiniband", ring_nic_gbps=ring_gbps)


def by_hand(size: float, step_us: float = STEP_US, gbps: float = NIC_GBPS, chunks: int = 1, rings: int = 1) -> float:
    """Microseconds of the source's function: each step moves a share and then adds it.

    Args:
        gbps: of a ring over its slowest link; `rings` of them share the bytes.
        chunks: with more, a share's sum overlaps with its transfer, and steps with each other.
    """
    share = size / N / rings
    move = share / gbps / 1e3
    add = 3 * share * rings / H100.memory_gbps / 1e3 if H100.memory_gbps else 0.0
    steps = 2 * (N - 1)
    if chunks == 1:
        return steps * (step_us + move) + (N - 1) * add
    return steps * step_us + max(steps * move, (N - 1) * add) + (N - 1) * add / chunks


def default_us(size: int) -> float:
    """NCCL by PyTorch: its rule below a megabyte, the ring that the source says above."""
    if size < M:
        return nccl(2).predict(size).time_us
    return nccl(2, NIC_GBPS).predict(size, "Ring").time_us


@ANSWERS("What is AllReduce?")
def example(figures: Path) -> Made:
    data = np.arange(1, 13).reshape(4, 3)
    return Made(
        {
            "sums": Answer(
                bool((ring_of(data) == [22, 26, 30]).all()), "counted", "the two loops on the example's numbers"
            )
        }
    )


def ring_of(data: np.ndarray) -> np.ndarray:
    """Returns the data of every rank after the two loops; columns are split into chunks, some of them empty."""
    n = len(data)
    held = [np.array_split(row.copy(), n) for row in data]
    for phase, moves_of in ((0, order(n, 0)), (1, order(n, 1))):
        for moves in moves_of:
            sent = [held[r][moves[r][0]].copy() for r in range(n)]
            for r in range(n):
                came = sent[(r - 1) % n]
                held[r][moves[r][1]] = came if phase else held[r][moves[r][1]] + came
    return np.array([np.concatenate(row) for row in held])


@ANSWERS("Phase 1: Reduce-Scatter")
def phase_1(figures: Path) -> Made:
    after, _ = run_by_hand(4)
    owned = "".join("ABCD"[c] for row in after for c, chunk in enumerate(row) if len(chunk) == 4)
    return Made({"owners": Answer(owned == "BCDA", "proved", "sets of contributors through all iterations")})


@ANSWERS("Phase 2: AllGather")
def phase_2(figures: Path) -> Made:
    _, after = run_by_hand(4)
    return Made(
        {"whole": Answer(after == [[set(range(4))] * 4] * 4, "proved", "sets of contributors through all iterations")}
    )


def star(n: int) -> PlanGraph:
    links = "".join(f"  - [gpu{i}, nvs0, nvswitch]\n" for i in range(n))
    text = (
        f"format: collc-topology/1\nname: star\ngpus: {n}\nswitches: [nvs0]\nspeeds: {{nvswitch: 25}}\nlinks:\n{links}"
    )
    return plan_graph(loads_topology(text))


@ANSWERS("Why Ring is Bandwidth-Optimal")
def volume(figures: Path) -> Made:
    graph = star(N)
    ring, best = candidate(graph, ALL_REDUCE, None, "ring"), plan(graph, ALL_REDUCE)
    sent = sum(float(t.weight) for t in ring.trees for h in (*t.reduce, *t.broadcast) if h.src == 0)
    assert ring.rate is not None
    how = f"the ring has {ring.rate} of the {best.rate} GB/s that are proven to be the most"
    return Made(
        {
            "volume": Answer(sent / float(ring.rate), "counted", "hops of the plan `ring` that leave a rank"),
            "least": Answer(ring.rate == best.rate, "proved", how),
        }
    )


@ANSWERS("Tree AllReduce: The Alternative")
def tree(figures: Path) -> Made:
    graph = star(N)
    binary, ring = (
        max(t.hops for t in candidate(graph, ALL_REDUCE, None, kind).trees) for kind in ("double-binary", "ring")
    )
    return Made(
        {
            "tree-steps": Answer(binary, "counted", "the plan double-binary, up and down"),
            "ring-steps": Answer(ring, "counted", "the plan ring"),
        }
    )


@ANSWERS("When to Use Each")
def crossover(figures: Path) -> Made:
    sizes = [K << i for i in range(20)]
    first = next(size for size in sizes if nccl(2).rule(size).algorithm != "Tree")
    rule = nccl(2).rule(first)
    return Made(
        {"crossover": Answer(first / K, "counted", f"the rule of NCCL 2.28 on 2 x 8 H100; then {rule.algorithm}")}
    )


@ANSWERS("Setup")
def setup(figures: Path) -> Made:
    graph = cluster(2)
    nics = sum(v.kind is VertexKind.NIC for v in graph.vertices) / 2
    return Made(
        {
            "gpus": Answer(graph.nranks, "counted", "benchmarks/clusters/h100-2.yaml"),
            "nics": Answer(nics, "counted", "the same"),
        }
    )


@ANSWERS("The Implementation")
def implementation(figures: Path) -> Made:
    steps = sum(len(order(N, phase)) for phase in (0, 1))
    return Made({"calls": Answer(steps, "counted", "both loops for 16 ranks; examples/ring_by_hand.py")})


@ANSWERS("Correctness Verification")
def correct(figures: Path) -> Made:
    data = np.random.default_rng(1).integers(-1000, 1000, (N, 4096)).astype(np.float32)
    same = all((row.view(np.int32) == data.sum(axis=0).view(np.int32)).all() for row in ring_of(data))
    return Made(
        {
            "same": Answer(
                bool(same), "counted", "the two loops for 16 ranks against a plain sum of whole numbers, bit for bit"
            )
        }
    )


@ANSWERS("Results")
def results(figures: Path) -> Made:
    answers: dict[str, Answer] = {}
    hand = {name: by_hand(size) for name, size in SIZES.items()}
    library = {name: default_us(size) for name, size in SIZES.items()}
    ring = "h100; 60 us per step fitted at 4 KB, 17.5 GB/s per NIC fitted to NCCL at 8 GB"
    for name in SIZES:
        if name != "4kb":
            answers[f"hand-{name}"] = Answer(hand[name] / 1e3, "simulated", ring)
        answers[f"nccl-{name}"] = Answer(
            library[name] / 1e3, "simulated", "h100, NCCL 2.28.9 over InfiniBand; 8 GB fitted, the others judged"
        )
        answers[f"gain-{name}"] = Answer(hand[name] / library[name], "simulated", ring)
    series = {
        "by hand": [(float(s), hand[n] / 1e3) for n, s in SIZES.items()],
        "NCCL": [(float(s), library[n] / 1e3) for n, s in SIZES.items()],
    }
    _draw(figures / "ring-by-hand-results.svg", "all_reduce on 2 x 8 H100, simulated", series)
    return Made(answers)


def _draw(file: Path, title: str, series: dict[str, list[tuple[float, float]]]) -> None:
    """Milliseconds by size, both logarithmic, with the source's sizes as marks."""
    ticks = {float(size): name.upper() for name, size in SIZES.items()}
    drawings.lines(file, title, series, "bytes", "ms", logx=True, logy=True, ticks=ticks)


def factors() -> dict[str, dict[str, float]]:
    """Microseconds by size: the ring by hand, then one shortcoming less in each line."""
    flags = H100.protocol("Simple").hop_us
    library = nccl(2)
    lines: dict[str, dict[str, float]] = {}
    for name, size in SIZES.items():
        lines.setdefault("by hand", {})[name] = by_hand(size)
        lines.setdefault("one launch, flags between steps", {})[name] = H100.launch_us + by_hand(size, flags)
        lines.setdefault("chunks that overlap", {})[name] = H100.launch_us + by_hand(size, flags, chunks=8)
        lines.setdefault("eight rings, one for each NIC", {})[name] = H100.launch_us + by_hand(
            size, flags, chunks=8, rings=NICS
        )
        lines.setdefault("four queue pairs for each NIC", {})[name] = H100.launch_us + by_hand(
            size, flags, WIDE_GBPS, 8, NICS
        )
        lines.setdefault("protocol and algorithm by size (NCCL)", {})[name] = library.predict(size).time_us
    return lines


@ANSWERS("Why NCCL is 7x Faster (Large Messages)")
def apart(figures: Path) -> Made:
    lines = factors()
    series = {label: [(float(SIZES[n]), t / 1e3) for n, t in found.items()] for label, found in lines.items()}
    _draw(figures / "ring-by-hand-factors.svg", "one shortcoming less in each line, 2 x 8 H100, simulated", series)
    order_of = list(lines)
    gains = {b: {n: lines[a][n] / lines[b][n] for n in SIZES} for a, b in pairwise(order_of)}
    large = {label: found["8gb"] for label, found in gains.items()}
    helps = all(max(found.values()) > 1.01 for found in gains.values())
    rows = [[label, *(f"{t / 1e3:.3g}" for t in found.values())] for label, found in lines.items()]
    how = "h100, closed forms: 60 us per step, 17.5 GB/s per NIC and ring, 48.5 with four queue pairs"
    return Made(
        {
            "factors": Answer(helps, "simulated", how),
            "channels": Answer(
                max(large, key=lambda k: large[k]).startswith("eight rings"),
                "simulated",
                how + f": {large['eight rings, one for each NIC']:.1f} times",
            ),
        },
        "Milliseconds:\n\n" + markdown(["", *(n.upper() for n in SIZES)], rows) + "\n\n" + KNOBS,
    )


KNOBS = (
    "What the source tunes has these names here: the rings in parallel (NCCL_MIN_NCHANNELS) are `collc simulate "
    "--channels` and `COLLC_CHANNELS` or NCCL_MAX_CTAS, which cap them; the protocol (NCCL_PROTO) is `--proto` and "
    "`COLLC_PROTO`, or NCCL_PROTO itself; the algorithm (NCCL_ALGO) is `--plan`. Queue pairs "
    "(NCCL_IB_QPS_PER_CONNECTION) are a matter of UCX, where COLLC_NET chooses it."
)


@ANSWERS("Why NCCL is 34x Faster (Small Messages)")
def small(figures: Path) -> Made:
    shape = nccl(2).shape
    hops = 2 * (shape.per_server - 1 + 1)
    return Made(
        {
            "steps-15": Answer(sum(len(order(N, phase)) for phase in (0, 1)), "counted", "both loops for 16 ranks"),
            "tree-4": Answer(hops, "counted", "chains inside the servers and a tree of two servers, up and down"),
        }
    )


@ANSWERS("Comparison with nccl-tests")
def compared(figures: Path) -> Made:
    size = 8 * G
    default = nccl(2, NIC_GBPS).predict(size, "Ring")
    found = {servers: nccl(servers).predict(size) for servers in (2, 3)}

    def crossing(servers: int) -> float:
        graph = cluster(servers)
        ring = candidate(graph, ALL_REDUCE, None, "ring")
        server = graph.servers
        pairs = {(h.src, h.dst) for t in ring.trees for h in (*t.reduce, *t.broadcast)}
        return 100 * sum(server[a] != server[b] for a, b in pairs) / len(pairs)

    how = {s: f"h100, {p.algorithm} {p.protocol} over InfiniBand" for s, p in found.items()}
    fitted = "h100, a ring at 17.5 GB/s per NIC, fitted to this time"
    return Made(
        {
            "cmp-ring": Answer(
                size / by_hand(size) / 1e3 * 2 * (N - 1) / N,
                "simulated",
                "h100, bus bandwidth: 8 GB in 806 ms are 10.7 GB/s of the buffer",
            ),
            "cmp-pytorch": Answer(default.algbw_gbps, "simulated", fitted),
            "cmp-pytorch-bus": Answer(default.busbw_gbps, "simulated", fitted),
            "cmp-two": Answer(found[2].algbw_gbps, "simulated", how[2]),
            "cmp-two-bus": Answer(found[2].busbw_gbps, "simulated", how[2]),
            "cmp-three": Answer(found[3].algbw_gbps, "simulated", how[3]),
            "cmp-three-bus": Answer(found[3].busbw_gbps, "simulated", how[3]),
            "cross-two": Answer(crossing(2), "counted", "hops of the plan ring"),
            "cross-three": Answer(crossing(3), "counted", "hops of the plan ring"),
        }
    )


@ANSWERS("Key Takeaways")
def takeaways(figures: Path) -> Made:
    size = 8 * G
    default, wide = nccl(2, NIC_GBPS).predict(size, "Ring"), nccl(2).predict(size, "Ring")
    gain = 100 * (wide.algbw_gbps / default.algbw_gbps - 1)
    most = NICS * 50 * N / (2 * (N - 1))
    return Made(
        {
            "tuning": Answer(
                gain, "simulated", "h100, a ring at full NICs over one at 17.5 GB/s per NIC, both of the buffer"
            ),
            "line-rate": Answer(
                most >= 257, "counted", f"the most that a ring can do with eight ports: {most:.0f} GB/s of the buffer"
            ),
        }
    )


@ANSWERS("Reproduce This")
def script(figures: Path) -> Made:
    text = (BENCHMARKS.parent / "examples" / "ring_by_hand.py").read_text(encoding="utf-8")
    return Made(
        {
            "script": Answer(
                "dist.all_reduce" in text and "batch_isend_irecv" in text,
                "counted",
                "examples/ring_by_hand.py, on the host target",
            )
        }
    )
