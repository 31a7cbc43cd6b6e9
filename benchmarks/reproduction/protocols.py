"""NCCL's protocols, buffers, steps and choices, and NVLSTree beside the default on two and eight nodes."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from reproduction import drawings
from reproduction.claims import Answer, Generators, Made
from reproduction.models import G, K, M, markdown, simulator, text_graph

from collc.collectives.model import Collective
from collc.ir.nodes import Program
from collc.options import CUDA
from collc.packing.candidates.plans import candidate
from collc.pipeline import lower_spread
from collc.resources import resource_dir
from collc.simulator.generations import MACHINES
from collc.simulator.nccl import Nccl
from collc.simulator.nccl.baseline import SLOTS
from collc.simulator.nccl.fabrics import SOCKETS
from collc.simulator.nccl.rule import algorithms, guesses
from collc.simulator.params import GENERIC
from collc.simulator.run import Simulator
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

ANSWERS = Generators("nccl-protocols")
ALL_REDUCE = Collective.ALL_REDUCE
FIVE = (ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
BENCHMARKS = Path(__file__).parents[1]


@cache
def unit(protocol: str) -> tuple[int, int]:
    """Bytes of data and of a whole unit with its flag, from the CUDA kernels' own constants."""
    header = (resource_dir("templates") / "runtime" / "cuda" / "slot_sizes.h").read_text(encoding="utf-8")
    if protocol == "Simple":
        return 1, 1
    if protocol == "LL128":
        found = re.search(r"kLL128Chunk = (\d+) << 10", header)
        assert found is not None
        return int(found[1]), 128
    found = re.search(r"kLLChunk = (\d+) << 10", header)
    assert found is not None
    return 8 * int(found[1]) // 32, 8


@ANSWERS("Table 1")
def properties(figures: Path) -> Made:
    found = {p.name: p for p in MACHINES["h100"].protocols}
    how = "H100's parameters: NCCL's constants and what logs show (validation.md)"
    line = unit("LL128")[0]
    return Made(
        {
            "p-simple-hop": Answer(found["Simple"].hop_us, "counted", how),
            "p-ll-hop": Answer(found["LL"].hop_us, "counted", how),
            "p-ll128-hop": Answer(found["LL128"].hop_us, "counted", how),
            "p-ll-band": Answer(100 * found["LL"].efficiency, "counted", how),
            "p-ll128-band": Answer(100 * found["LL128"].efficiency, "counted", how),
            "p-simple-band": Answer(100 * found["Simple"].efficiency, "counted", how),
            "p-ll-unit": Answer(unit("LL")[0], "counted", "the slot of LL in the kernels, and NCCL's with flags"),
            "p-ll128-unit": Answer(line, "counted", "bytes of data in a line of the runtime"),
        }
    )


@ANSWERS("Table 2")
def buffers(figures: Path) -> Made:
    data = {p.name: p.max_chunk / K for p in GENERIC.protocols}
    slot = {name: data[name] * unit(name)[1] / unit(name)[0] for name in data}
    how = "chunks of the model's protocols with NCCL's slots"
    waste = {name: 100 * (1 - part / whole) for name in data for part, whole in (unit(name),)}
    return Made(
        {
            "b-slots": Answer(SLOTS, "counted", how),
            "b-simple": Answer(data["Simple"], "counted", how),
            "b-simple-all": Answer(SLOTS * slot["Simple"], "counted", how),
            "b-ll": Answer(data["LL"], "counted", how),
            "b-ll-slot": Answer(slot["LL"], "counted", how),
            "b-ll-all": Answer(SLOTS * slot["LL"], "counted", how),
            "b-ll128": Answer(data["LL128"], "counted", how),
            "b-ll128-slot": Answer(slot["LL128"], "counted", how),
            "b-ll128-all": Answer(SLOTS * slot["LL128"], "counted", how),
            "b-ll-waste": Answer(waste["LL"], "counted", how),
            "b-ll128-waste": Answer(waste["LL128"], "counted", how),
        }
    )


def cluster(name: str) -> str:
    return str(BENCHMARKS / "clusters" / f"{name}.yaml")


@cache
def communicator(topology: str, collective: Collective, version: str = "2.26", fabric: str = "infiniband") -> Nccl:
    graph = plan_graph(load_topology(topology))
    root = 0 if collective.rooted else None
    return Nccl(Simulator(graph, collective, root, MACHINES["h100"], slots=SLOTS), version, fabric)


@ANSWERS("Table 3")
def combinations(figures: Path) -> Made:
    one = {c: algorithms(communicator("hgx-h100", c).setting) for c in FIVE}
    two = {c: algorithms(communicator(cluster("h100-2"), c).setting) for c in FIVE}
    nvls = {c for c in FIVE if "NVLS" in one[c]}
    tree = {c for c in FIVE if "NVLSTree" in two[c]}
    simple = {
        g.protocol
        for c, where in ((ALL_REDUCE, "hgx-h100"), (ALL_REDUCE, cluster("h100-2")))
        for g in guesses(communicator(where, c).setting, M, ("LL", "LL128", "Simple"))
        if g.algorithm.startswith("NVLS")
    }
    how = "the rule for 8 H100 and for 2 x 8, NCCL 2.26"
    return Made(
        {
            "a-ring": Answer(all("Ring" in one[c] for c in FIVE), "counted", how),
            "a-tree": Answer(all("Tree" in one[c] for c in FIVE), "counted", how),
            "a-nvls": Answer(nvls == {ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER}, "counted", how),
            "a-nvlstree": Answer(tree == {ALL_REDUCE} and not any("NVLSTree" in one[c] for c in FIVE), "counted", how),
            "a-nvls-simple": Answer(simple == {"Simple"}, "counted", how),
        }
    )


@ANSWERS("Protocols in prose")
def prose(figures: Path) -> Made:
    nvlink = {p.name for p in simulator("dgx1v", None, ALL_REDUCE).protocols}
    pcie = {p.name for p in simulator("dgx1v", None, ALL_REDUCE, "pcie").protocols}
    two = communicator(cluster("h100-2"), ALL_REDUCE)
    slow = two.predict(64 * M, "Ring", "LL").time_us / two.predict(64 * M, "Ring", "Simple").time_us
    one = communicator("hgx-h100", ALL_REDUCE)
    small, large = one.rule(4 * K).protocol, one.rule(256 * M).protocol
    return Made(
        {
            "s-ll128-nvlink": Answer(
                "LL128" in nvlink and "LL128" not in pcie, "counted", "protocols of a DGX-1V over NVLink and over PCIe"
            ),
            "s-ll-host": Answer(
                slow > 2,
                "simulated",
                f"h100, 2 x 8 GPUs, a ring of 64 MiB: LL takes {slow:.1f} times as long as Simple",
            ),
            "s-small-ll": Answer(
                small in ("LL", "LL128") and large == "Simple",
                "counted",
                f"the rule on 8 H100: {small} at 4 KiB, {large} at 256 MiB",
            ),
        }
    )


def ring(n: int) -> Program:
    links = "".join(f"  - [gpu{i}, nvs0, nvswitch]\n" for i in range(n))
    graph = text_graph(f"gpus: {n}\nswitches: [nvs0]\nspeeds: {{nvswitch: 25}}\nlinks:\n{links}")
    return lower_spread(candidate(graph, ALL_REDUCE, None, "ring"), 1, graph, CUDA)[1]


@ANSWERS("Channels")
def channels(figures: Path) -> Made:
    graph = plan_graph(load_topology("dgx1v"))
    made = lower_spread(candidate(graph, ALL_REDUCE, None, "rings"), 12, graph, CUDA)[1]
    used = [{step.share for rank in channel.steps for step in rank} for channel in made.channels]
    disjoint = sum(map(len, used)) == len(set.union(*used))
    from collc.simulator.nccl.closed import _MESSAGE, Closed

    closed = Closed(communicator(cluster("h100-2"), ALL_REDUCE).setting, MACHINES["h100"])
    by_size = [closed._channels("Simple", size) for size in (16 * K, 256 * K, M, 64 * M)]
    return Made(
        {
            "c-disjoint": Answer(
                disjoint, "proved", f"{len(made.channels)} channels of a verified program, their shares"
            ),
            "c-fewer": Answer(
                by_size[0] < by_size[1] < by_size[-1],
                "counted",
                f"2 x 8 H100, Simple: {by_size} channels at 16K, 256K, 1M, 64M",
            ),
            "c-fifo": Answer(_MESSAGE / K, "counted", "the closed form of calls between servers"),
        }
    )


@ANSWERS("Table 4")
def ring_steps(figures: Path) -> Made:
    k = 5
    steps = [step for channel in ring(k).channels for step in channel.steps[0]]
    names = [step.name for step in steps]
    expected = ["send", *["recvReduceSend"] * (k - 2), "recvReduceCopySend", *["recvCopySend"] * (k - 2), "recv"]
    how = "a rank of the verified program of a ring of five"
    in_time = [step.name for step in sorted(steps, key=lambda step: step.lag)]
    rows = [[str(i), name] for i, name in enumerate(in_time)]
    return Made(
        {
            "r-count": Answer(len(names), "counted", how),
            "r-order": Answer(in_time == expected, "counted", how),
        },
        markdown(["Step", "Primitive"], rows)
        + "\n`collc plan TOPO --collective all_reduce --steps ring` prints this table with the peers of every rank.\n",
    )


@ANSWERS("Tree AllReduce")
def tree_steps(figures: Path) -> Made:
    links = "".join(f"  - [gpu{i}, nvs0, nvswitch]\n" for i in range(8))
    graph = text_graph(f"gpus: 8\nswitches: [nvs0]\nspeeds: {{nvswitch: 25}}\nlinks:\n{links}")
    plan = candidate(graph, ALL_REDUCE, None, "double-binary")
    made = lower_spread(plan, len(plan.trees), graph, CUDA)[1]
    ups, downs = set(), set()
    for tree, channel in zip(plan.trees, made.channels, strict=True):
        parents = {hop.dst for hop in tree.reduce}
        for rank, steps in enumerate(channel.steps):
            names = tuple(step.name for step in steps)
            kind = "root" if rank == tree.root else "middle" if rank in parents else "leaf"
            ups.add((kind, names[0]))
            downs.add((kind, names[-1]))
    how = "the verified program of a double binary tree on eight GPUs"
    return Made(
        {
            "t-up": Answer(
                ups == {("leaf", "send"), ("middle", "recvReduceSend"), ("root", "recvReduceCopySend")}, "counted", how
            ),
            "t-down": Answer(
                {d for d in downs if d[0] != "root"} == {("middle", "recvCopySend"), ("leaf", "recv")}, "counted", how
            ),
            "t-two": Answer(len(plan.trees), "counted", how),
        }
    )


@ANSWERS("Table 5")
def by_size(figures: Path) -> Made:
    two = communicator(cluster("h100-2"), ALL_REDUCE, "2.19")
    one = communicator("hgx-h100", ALL_REDUCE, "2.19")
    small = [two.rule(size) for size in (K, 16 * K, 64 * K)]
    large = [where.rule(size) for where in (one, two) for size in (64 * M, G)]
    sizes = [K << (2 * i) for i in range(11)]
    rows = [[f"{s // K}K", *(f"{w.rule(s).algorithm} {w.rule(s).protocol}" for w in (one, two))] for s in sizes]
    how = "the rule of NCCL 2.19 on 8 H100 and 2 x 8 H100"
    return Made(
        {
            "z-small": Answer(
                all(g.algorithm == "Tree" and g.protocol in ("LL", "LL128") for g in small), "counted", how
            ),
            "z-large": Answer(
                all(g.algorithm in ("Ring", "NVLS", "NVLSTree") and g.protocol == "Simple" for g in large),
                "counted",
                how,
            ),
        },
        markdown(["bytes", "8 H100", "2 x 8 H100"], rows),
    )


@ANSWERS("Table 6")
def settings(figures: Path) -> Made:
    forced = communicator(cluster("sockets-2"), ALL_REDUCE, "2.19", "sockets").predict(M, "Ring", "Simple")
    return Made(
        {
            "x-algo": Answer(
                (forced.algorithm, forced.protocol) == ("Ring", "Simple"), "counted", "a forced call in the model"
            ),
            "x-ib": Answer(
                SOCKETS.message_us > 0, "counted", "the network `sockets` of the model, where hosts move messages"
            ),
        }
    )


TABLES = {row["name"]: row for row in json.loads((BENCHMARKS / "published.json").read_text(encoding="utf-8"))}


@cache
def times(nodes: int, algorithm: str) -> dict[int, float]:
    """Milliseconds of all_reduce from 1 MiB to 1 GiB, over sockets."""
    asked = communicator(cluster(f"sockets-{nodes}"), ALL_REDUCE, "2.19", "sockets")
    protocol = "Simple" if algorithm == "Ring" else None
    return {M << i: asked.predict(M << i, algorithm, protocol).period_us / 1e3 for i in range(11)}


def _table(nodes: int, number: int, most: int, figures: Path) -> Made:
    default, tree = times(nodes, "Ring"), times(nodes, "NVLSTree")
    fit = "its ring's parameters were fitted to the two nodes' table" if nodes == 2 else "judged"
    how = {"default": f"h100, sockets; {fit}", "nvlstree": "h100, sockets; judged"}
    answers: dict[str, Answer] = {}
    for i in range(most):
        size = M << i
        label = "1gb" if size == G else f"{size // M}mb"
        answers[f"t{number}-{label}-default"] = Answer(default[size], "simulated", how["default"])
        if size < G:
            answers[f"t{number}-{label}-nvlstree"] = Answer(tree[size], "simulated", how["nvlstree"])
            measured = {
                name: dict(TABLES[name]["rows"])[size] for name in (f"nvlstree-{nodes}-default", f"nvlstree-{nodes}")
            }
            theirs = measured[f"nvlstree-{nodes}"] < measured[f"nvlstree-{nodes}-default"]
            answers[f"t{number}-{label}-winner"] = Answer(
                (tree[size] < default[size]) == theirs, "simulated", how["nvlstree"]
            )
    series = {
        "default": [(float(s), t) for s, t in default.items()],
        "default (source)": [(float(s), t / 1e3) for s, t in TABLES[f"nvlstree-{nodes}-default"]["rows"]],
        "NVLSTree": [(float(s), t) for s, t in tree.items()],
        "NVLSTree (source)": [(float(s), t / 1e3) for s, t in TABLES[f"nvlstree-{nodes}"]["rows"]],
    }
    ticks = {float(M << i): f"{1 << i} MiB" for i in range(0, 11, 2)}
    title = f"all_reduce on {nodes} x 8 GPUs over sockets, simulated beside the source"
    drawings.lines(
        figures / f"protocols-table-{number}.svg", title, series, "bytes", "ms", logx=True, logy=True, ticks=ticks
    )
    return Made(answers)


@ANSWERS("Table 7")
def two_nodes(figures: Path) -> Made:
    return _table(2, 7, 11, figures)


@ANSWERS("Table 8")
def eight_nodes(figures: Path) -> Made:
    return _table(8, 8, 9, figures)


@ANSWERS("Table 9")
def growth(figures: Path) -> Made:
    two, eight = times(2, "Ring"), times(8, "Ring")
    how = "h100, sockets; two nodes were fitted to, eight judged"
    answers = {
        f"t9-{size // M}mb": Answer(eight[size] / two[size], "simulated", how)
        for size in (M << i for i in (0, 2, 4, 6, 7, 8, 9))
    }
    return Made({**answers, "t9-512mb-8": Answer(eight[512 * M], "simulated", how)})


@ANSWERS("Table 10")
def variables(figures: Path) -> Made:
    sources = "\n".join(
        p.read_text(encoding="utf-8")
        for p in sorted(resource_dir("templates").rglob("*"))
        if p.suffix in (".h", ".cpp")
    )

    def read(name: str) -> Answer:
        return Answer(f'"{name}"' in sources, "counted", f"the runtime reads {name}")

    return Made(
        {
            "v-debug": read("NCCL_DEBUG"),
            "v-proto": read("NCCL_PROTO"),
            "v-algo": read("COLLC_TUNING"),
            "v-hca": read("NCCL_IB_HCA"),
            "v-ifname": read("NCCL_SOCKET_IFNAME"),
        }
    )
