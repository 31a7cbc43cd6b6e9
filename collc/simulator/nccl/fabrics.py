"""Networks between servers as NCCL uses them: a few numbers each, with where they come from.

NIC rates come from the topology. docs/validation.md names the table and the sizes that each set was fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collc.topology.model import PlanGraph, VertexKind


@dataclass(frozen=True)
class Fabric:
    """One kind of network.

    Args:
        efficiency: the share of the NICs' rate that carries payload.
        hop_us: from a GPU's memory to another server's, by protocol: proxies, NIC, wire, and for Simple the flush.
        message_us: time between two messages of a server, all of its NICs together, where hosts move them; 0 for RDMA.
        ring_nic_gbps: what rings move through one NIC; None: all that it carries.
        tuned: its plugin brings a tuner that knows its latencies: the least modeled time is chosen, not NCCL's rule.
        protocols: those that it can be used with.
        source: what the numbers are from.
    """

    name: str
    efficiency: float
    hop_us: Mapping[str, float]
    source: str
    message_us: float = 0.0
    ring_nic_gbps: float | None = None
    tuned: bool = False
    protocols: tuple[str, ...] = ("Simple", "LL", "LL128")


_NCCL_NET = "hops: NCCL 2.28 src/graph/tuning.cc, hwLatencies of the network"

INFINIBAND = Fabric(
    "infiniband",
    0.97,
    {"LL": 5.0, "LL128": 8.5, "Simple": 14.0},
    f"{_NCCL_NET}; 97%: 46 to 48 of 50 GB/s per NIC (a maintainer in NVIDIA/nccl-tests issue 290)",
)
ROCE = Fabric(
    "roce",
    0.95,
    {"LL": 5.0, "LL128": 8.5, "Simple": 14.0},
    f"{_NCCL_NET}; efficiency fitted at 8 GiB of oci-a100-2",
)
EFA = Fabric(
    "efa",
    0.90,
    {"LL": 27.0, "LL128": 30.0, "Simple": 45.0},
    "fitted at 1 KiB and 4 MiB of p5-2; efficiency: that of TCPXO",
    tuned=True,
)
# On P4d, aws-ofi-nccl makes NCCL use only Simple, because its EFA does not keep the order that LL needs.
EFA_P4D = Fabric(
    "efa-p4d",
    0.85,
    {"LL": 27.0, "LL128": 30.0, "Simple": 50.0},
    "fitted at 1 KiB and 2 GiB of p4d-2",
    protocols=("Simple",),
)
TCPXO = Fabric(
    "tcpxo",
    0.905,
    {"LL": 54.0, "LL128": 340.0, "Simple": 340.0},
    "fitted at 1 KiB, 512 MiB and 8 GiB of a3mega-2; LL128 taken like Simple",
    tuned=True,
)
SLINGSHOT = Fabric(
    "slingshot",
    0.90,
    {"LL": 8.0, "LL128": 11.0, "Simple": 17.0},
    "no table; InfiniBand's hops and 3 us for the OFI plugin, taken without a measurement",
)
SOCKETS = Fabric(
    "sockets",
    0.90,
    {"LL": 60.0, "LL128": 60.0, "Simple": 80.0},
    "fitted to the ring of nvlstree-2-default",
    message_us=6.7,
)

FABRICS = {f.name: f for f in (INFINIBAND, ROCE, EFA, EFA_P4D, TCPXO, SLINGSHOT, SOCKETS)}


def fabric_of(graph: PlanGraph, chip: str) -> str:
    """The network, from the names of the NICs: efa0 is EFA, hsn0 Slingshot; otherwise InfiniBand."""
    nics = [v.name.rpartition(".")[2].lower() for v in graph.vertices if v.kind is VertexKind.NIC]
    for name, prefixes in (
        ("efa", ("efa", "rdmap")),
        ("slingshot", ("hsn", "cxi")),
        ("sockets", ("eth", "ens", "ena")),
    ):
        if nics and all(nic.startswith(prefixes) for nic in nics):
            return "efa-p4d" if name == "efa" and chip in ("volta", "ampere") else name
    return "infiniband"
