"""FlexLink: NVLink and PCIe of eight H800 together, with shares that end at the same time."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from reproduction import drawings
from reproduction.claims import Answer, Generators, Made
from reproduction.models import NEEDED, M, api_functions, graph_of, markdown

from collc.collectives.model import Collective
from collc.simulator.generations import MACHINES
from collc.simulator.nccl import Nccl
from collc.simulator.nccl.baseline import SLOTS
from collc.simulator.run import Simulator
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

ANSWERS = Generators("flexlink")
# GB/s of NVLink both ways, of PCIe or C2C both ways, Gbit/s of the NIC (both ways), whether the last two share a path.
IDLE = {
    "h800": (400, 128, 800, True),
    "h100": (900, 128, 800, True),
    "a800": (400, 64, 400, True),
    "gb200": (1800, 400, 1600, True),
    "gb300": (1800, 400, 1600, False),
}
OPERATORS = {"AllReduce": Collective.ALL_REDUCE, "AllGather": Collective.ALL_GATHER}
CASES = [("AllReduce", 2, (32, 64, 128, 256)), ("AllReduce", 4, (32, 64, 128, 256)), ("AllReduce", 8, (256,))]
CASES += [("AllGather", n, (32, 64, 128, 256)) for n in (2, 4, 8)]
H800 = MACHINES["h800"]
HOW = "h800: NVLink by NCCL's call, PCIe by a ring of its own, shares that end together; "


@cache
def path(operator: str, gpus: int, links: str | None) -> Nccl:
    """Returns NCCL's rings over NVLink, or only over PCIe."""
    chosen = tuple(f"gpu{i}" for i in range(gpus))
    simulator = Simulator(graph_of("hgx-h800", chosen, links), OPERATORS[operator], None, H800, slots=SLOTS)
    return Nccl(simulator, "2.27.3", together=gpus)


@cache
def seconds(operator: str, gpus: int, links: str | None, size: int) -> float:
    """Microseconds of a call; over PCIe, with its rings and Simple."""
    if not size:
        return 0.0
    wanted = (None, None) if links is None else ("Ring", "Simple")
    return path(operator, gpus, links).predict(size, *wanted).period_us


def shown_size(operator: str, gpus: int, megabytes: int) -> int:
    """Returns bytes as nccl-tests counts them: the source's AllGather sizes are per rank."""
    return megabytes * M * (gpus if operator == "AllGather" else 1)


@cache
def split(operator: str, gpus: int, megabytes: int) -> tuple[float, float, float]:
    """Returns GB/s of only NVLink, GB/s of both, and the share over PCIe in percent."""
    size = shown_size(operator, gpus, megabytes)
    best = (seconds(operator, gpus, None, size), 0)
    for percent in range(1, 41):
        over = size * percent // 100 // 1024 * 1024
        time = max(seconds(operator, gpus, None, size - over), seconds(operator, gpus, "pcie", over))
        if time < best[0]:
            best = (time, percent)
        elif percent > best[1] + 3:
            break
    bytes_shown = megabytes * M
    alone = seconds(operator, gpus, None, size)
    return bytes_shown / alone / 1e3, bytes_shown / best[0] / 1e3, float(best[1])


@ANSWERS("Figure 1")
def pool(figures: Path) -> Made:
    kinds = {x.kind.value for x in graph_of("hgx-h800", None, "nvswitch,pcie").links}
    functions = api_functions()
    return Made(
        {
            "f1-pool": Answer("net" in kinds, "counted", f"links of a plan: {', '.join(sorted(kinds))}"),
            "f1-api": Answer(
                functions >= NEEDED, "counted", f"{len(functions)} functions of NCCL's API in the runtime's sources"
            ),
        }
    )


@ANSWERS("Figure 2")
def gains(figures: Path) -> Made:
    found = {
        operator: [100 * (split(operator, n, 256)[1] / split(operator, n, 256)[0] - 1) for n in (2, 4, 8)]
        for operator in OPERATORS
    }
    drawings.bars(
        figures / "flexlink-figure-2.svg",
        "gained by PCIe beside NVLink at 256 MB, simulated",
        ["2 GPUs", "4 GPUs", "8 GPUs"],
        found,
        "%",
    )
    return Made(
        {
            "f2-ar": Answer(max(found["AllReduce"]), "simulated", HOW + "never compared with a measurement"),
            "f2-ag": Answer(max(found["AllGather"]), "simulated", HOW + "never compared with a measurement"),
        }
    )


@ANSWERS("Figure 3")
def experts(figures: Path) -> Made:
    kinds = {x.kind.value for x in plan_graph(load_topology("hgx-h800")).links}
    return Made(
        {"f3-idle": Answer("pcie" not in kinds, "counted", f"links of the default plan: {', '.join(sorted(kinds))}")}
    )


@ANSWERS("Table 1")
def idle(figures: Path) -> Made:
    answers = {}
    for name, (nvlink, pcie, nic, shared) in IDLE.items():
        free = pcie if shared else pcie + nic / 8
        answers[f"idle-{name}"] = Answer(
            100 * free / nvlink, "counted", "PCIe alone where the NIC shares its path, else both, over NVLink"
        )
    return Made(answers)


def tuned(slowdown: float, start: dict[str, float], step: float, rounds: int = 100) -> list[dict[str, float]]:
    """Shares in percent after each round: from the slowest path to NVLink, or from NVLink to the fastest other.

    The call is an AllGather of 256 MB on 2 GPUs, with PCIe `slowdown` times slower than in reality.
    """
    size = shown_size("AllGather", 2, 256)
    shares, before, calm = dict(start), "", 0
    found = [dict(shares)]
    for _ in range(rounds):
        bytes_of = {name: int(size * share / 100) // 1024 * 1024 for name, share in shares.items()}
        took = {
            "NVLink": seconds("AllGather", 2, None, bytes_of["NVLink"]),
            "PCIe": slowdown * seconds("AllGather", 2, "pcie", bytes_of["PCIe"]),
        }
        slow, fast = max(took, key=lambda k: took[k]), min(took, key=lambda k: took[k])
        if took[slow] < 1.05 * took[fast]:
            calm += 1
            if calm == 3:
                break
            found.append(dict(shares))
            continue
        calm = 0
        if before and slow != before:
            step = max(step / 2, 0.5)
        moved = min(step, shares[slow])
        shares[slow] -= moved
        shares["PCIe" if slow == "NVLink" else "NVLink"] += moved
        before = slow
        found.append(dict(shares))
    return found


@ANSWERS("Algorithm 1")
def coarse(figures: Path) -> Made:
    walk = tuned(1.0, {"NVLink": 100.0, "PCIe": 0.0}, 8.0)
    calm = len(walk) > 2 and walk[-1] == walk[-2]
    how = HOW + "AllGather of 256 MB on 2 GPUs, within 5%"
    return Made(
        {"alg-ends": Answer(calm, "simulated", how), "alg-few": Answer(len(walk), "simulated", how)},
        "Shares of PCIe: " + ", ".join(f"{s['PCIe']:.3g}%" for s in walk) + ".",
    )


@ANSWERS("Figure 5")
def follows(figures: Path) -> Made:
    first = tuned(1.0, {"NVLink": 100.0, "PCIe": 0.0}, 8.0)
    second = tuned(3.0, first[-1], 1.0)
    walk = [*first, *second]
    series = {name: [(float(i), s[name]) for i, s in enumerate(walk)] for name in ("NVLink", "PCIe")}
    drawings.lines(
        figures / "flexlink-figure-5.svg",
        f"shares; from round {len(first)} on PCIe is three times slower",
        series,
        "round",
        "% of the bytes",
    )
    return Made(
        {
            "f5-follow": Answer(
                second[-1]["PCIe"] < first[-1]["PCIe"],
                "simulated",
                HOW + f"PCIe's share goes from {first[-1]['PCIe']:.3g} to {second[-1]['PCIe']:.3g}%",
            )
        }
    )


@ANSWERS("Table 2")
def bandwidths(figures: Path) -> Made:
    answers: dict[str, Answer] = {}
    names, alone_line, both_line, rows = [], [], [], []
    for operator, n, sizes in CASES:
        for size in sizes:
            alone, both, share = split(operator, n, size)
            key = f"{operator.lower()}-{n}-{size}mb"
            answers[f"{key}-nccl"] = Answer(alone, "simulated", "h800, NCCL 2.27.3's own choice; judged")
            answers[f"{key}-pcie"] = Answer(both, "simulated", HOW + "never compared")
            answers[f"{key}-load"] = Answer(share, "simulated", HOW + "never compared")
            names.append(f"{operator} {n} {size}")
            alone_line.append(alone)
            both_line.append(both)
            rows.append(
                [f"{operator}, {n} GPUs, {size} MB", f"{alone:.0f}", f"{both:.0f}", f"{100 * (both / alone - 1):.0f}%"]
            )
    drawings.bars(
        figures / "flexlink-table-2.svg",
        "NVLink alone and with PCIe, simulated",
        names,
        {"NVLink": alone_line, "and PCIe": both_line},
        "GB/s",
    )
    return Made(answers, markdown(["", "NVLink GB/s", "and PCIe GB/s", "gain"], rows))
