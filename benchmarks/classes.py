"""What idle links are worth: `python benchmarks/classes.py --write docs/measurements/classes.md`.

For every machine of `collc topologies` (one server of it), the joint rate of NVLink, PCIe through host memory and NICs
beside that of the fastest class, proved. Then FlexLink's table 2: its measured gains on H800 beside those of the model.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import yaml
from measured import publish

from collc.choose.split import split_by_size
from collc.collectives.model import COMPILED, Collective
from collc.packing.classes import ClassPlans, plan_classes
from collc.simulator.generations import machine_for
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there instead of printing it")
    arguments = parser.parse_args()
    publish(INTRODUCTION + "\n".join(proved()) + "\n" + SIMULATED + "\n".join(simulated()) + "\n", arguments.write)


if __name__ == "__main__":
    main()
