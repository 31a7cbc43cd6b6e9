"""The parameters of hardware and protocols in the model: a few numbers, each with its unit.

The defaults are the round figures that NCCL's own cost model is described with: Simple has a hop of about 6 us and the
full bandwidth, LL 1 us and half of it, LL128 2 us and 120/128 of it, rounded to 95% (Hu et al., "Demystifying NCCL",
arXiv 2507.04786). `GENERATIONS` holds sets that were fitted to published measurements; docs/validation.md says how.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from collc.errors import UsageError
from collc.options import HOST
from collc.topology.model import LinkKind

# GB/s -> bytes per microsecond.
BYTES_PER_US = 1000.0


@dataclass(frozen=True, slots=True)
class OwnKernels:
    """Figures of collc's kernels for a protocol, where a measurement in the same run as NCCL's gave other figures."""

    block_gbps: float
    start_us: float


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way to hand a chunk to the next rank.

    Args:
        hop_us: from a rank's chunk to the next rank's, in addition to the time of the bytes: the machine's `step_us`
            and then the delay until the receiver sees the chunk.
        efficiency: payload over bytes on the link, in (0, 1].
        max_chunk: largest payload of a slot in bytes.
        block_gbps: what the thread block of one channel reads and writes together at most, its 512 threads at work;
            None: no limit. A ring's usual step reads or writes three bytes for one of payload.
        start_us: added once per call, in addition to the launch.
        own: `block_gbps` and `start_us` of collc's kernels, where those above are NCCL's; None: the same.
    """

    name: str
    hop_us: float
    efficiency: float
    max_chunk: int
    block_gbps: float | None = None
    start_us: float = 0.0
    own: OwnKernels | None = None

    def of_own_kernels(self) -> Protocol:
        """The protocol as collc's kernels run it."""
        own = self.own
        if own is None:
            return self
        return dataclasses.replace(self, block_gbps=own.block_gbps, start_us=own.start_us, own=None)


@dataclass(frozen=True, slots=True)
class LinkClass:
    """The costs of a kind of link: the payload share of its nominal speed, and time per hop beyond the protocol's."""

    efficiency: float = 1.0
    hop_us: float = 0.0


@dataclass(frozen=True, slots=True)
class CopyEngine:
    """Chunks over links of some kinds are moved by copies that are launched, not by stores of the thread block.

    collc's kernels never do this: they store into the receiver's memory over PCIe as over NVLink. Blink's generated
    code does (one cudaMemcpyPeerAsync per chunk and hop; Wang et al., MLSys 2020, section 4), and NCCL may.

    Args:
        launch_us: the cost of one copy in addition to its bytes; the copies of a step are launched in sequence. 5 to
            7 us were measured for cudaMemcpyAsync (Wu et al., "DualPath", arXiv 2602.21548, section 5.2).
        gbps: what the engine of a GPU moves at most, all its channels together; None: what the links carry.
        kinds: a hop that crosses such a link is a copy.
    """

    launch_us: float = 6.0
    gbps: float | None = None
    kinds: tuple[LinkKind, ...] = (LinkKind.PCIE,)


@dataclass(frozen=True, slots=True)
class Nvls:
    """NCCL's all_reduce inside the switches (NVLS), which our programs do not use: the baseline has it.

    Args:
        efficiency: the share of a GPU's link that carries payload while switches reduce and multicast.
        hop_us: the time of one reduction and multicast without its bytes (NCCL 2.23 and newer assume 25).
        loop_us: the cost of every round of chunks in addition to its bytes.
        tree_share: of that rate what is left where the sums go on to other servers (NVLSTree).
    """

    efficiency: float
    hop_us: float = 25.0
    loop_us: float = 3.0
    tree_share: float = 0.93


@dataclass(frozen=True, slots=True)
class Courier:
    """The thread of a server that moves chunks to and from other servers.

    Args:
        gbps: what it sends and receives together: the kernel copies every byte, and takes packets apart.
        chunk_us: the cost of a chunk in addition to its bytes.
        wake_us: from a slot being full until the courier has seen it, and from a chunk's arrival until its reader has.
        apart_us: what is added at each end where flags are apart from the data, as Simple's are: a GPU stores the flag
            when all data have arrived in the host's memory, and loads data when it has seen the flag.
    """

    gbps: float
    chunk_us: float
    wake_us: float
    apart_us: float = 0.0

    def late_us(self, protocol: Protocol) -> float:
        """From a slot being full until the courier has seen it, and the same at the other end."""
        return self.wake_us + (0.0 if protocol.name == "LL" else self.apart_us)

    @staticmethod
    def touched(protocol: Protocol) -> int:
        """Returns the bytes that the proxy moves per byte of data: it takes LL data out of lines and puts them back."""
        return 2 if protocol.name == "LL" else 1


# A block moves what NCCL gives a channel on Volta and Ampere, 20 GB/s (src/graph/tuning.cc), three bytes for one.
SIMPLE = Protocol("Simple", 6.0, 1.0, 512 << 10, 60.0)
LL = Protocol("LL", 1.0, 0.5, 16 << 10, 60.0)
LL128 = Protocol("LL128", 2.0, 0.95, 576000 // 128 * 128, 60.0)

PROTOCOLS = (SIMPLE, LL, LL128)


@dataclass(frozen=True)
class Machine:
    """A GPU generation as the model sees it.

    Args:
        launch_us: once per call: launch and the agreement that all ranks are there.
        step_us: a channel's fixed work per step (barriers, flags), during which it moves no data.
        credit_us: from the end of a step until the sender sees its slot free.
        issue_us: what a host thread needs to issue a call on one GPU; calls in a row cannot follow each other faster
            than one thread issues them to all of its GPUs.
        memory_gbps: what the card's memory reads and writes together; None: no limit.
        classes: per link kind; a kind that is absent costs nothing extra.
        copies: a copy engine in place of stores; None, as collc's programs run: no hop uses one.
        nvls: NCCL's reduction inside the switches; None: these GPUs have none.
        courier: what moves chunks between servers; None: the ranks' own steps do, as GPUs store into network buffers.
    """

    name: str
    launch_us: float = 0.0
    step_us: float = 0.0
    credit_us: float = 0.0
    issue_us: float = 0.0
    memory_gbps: float | None = None
    protocols: tuple[Protocol, ...] = PROTOCOLS
    classes: Mapping[LinkKind, LinkClass] = field(default_factory=dict)
    copies: CopyEngine | None = None
    nvls: Nvls | None = None
    courier: Courier | None = None

    def protocol(self, name: str) -> Protocol:
        """The protocol of a name, without regard to case."""
        for protocol in self.protocols:
            if protocol.name.lower() == name.lower():
                return protocol
        known = ", ".join(p.name for p in self.protocols)
        raise UsageError(f"no protocol {name!r}", hint=f"choose one of {known}")

    def of_own_kernels(self) -> Machine:
        """The machine as collc's kernels run on it: NCCL's figures are replaced where they are known to differ."""
        return self.replace(protocols=tuple(protocol.of_own_kernels() for protocol in self.protocols))

    def link_class(self, kind: LinkKind) -> LinkClass:
        """The costs of a kind of link beyond its nominal speed."""
        return self.classes.get(kind, _PLAIN)

    def with_copies(self) -> Machine:
        """The machine with a copy engine, which only Simple can use: LL and LL128 store flags with the data."""
        return self.replace(protocols=tuple(p for p in self.protocols if p.name == "Simple"), copies=CopyEngine())

    def replace(self, **changes: object) -> Machine:
        """A copy with the given fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


_PLAIN = LinkClass()

GENERIC = Machine("generic", launch_us=5.0, step_us=0.5, issue_us=4.0)

# The host target on several servers. These are orders of magnitude for a server's core and kernel, not fitted to one
# machine: the choice depends on the ratio of a proxy's 60 us to the time of the bytes on the network. TCP over Ethernet
# with an MTU of 1500 carries 1448 bytes of payload in 1514 (iperf3 reaches 95.6%).
HOST_SERVERS = Machine(
    "host-servers",
    launch_us=5.0,
    step_us=1.0,
    protocols=(Protocol("Simple", 2.0, 1.0, HOST.chunk_bytes, 20.0),),
    classes={LinkKind.NET: LinkClass(0.956)},
    courier=Courier(gbps=4.0, chunk_us=10.0, wake_us=25.0),
)


# By how much a hop over Simple through host memory and a network takes longer than one over LL, both ends together: 14
# and 5 us in NCCL 2.28's own model (hwLatencies of the network, trees, src/graph/tuning.cc). An upper guess: these are
# for RDMA, and Simple's 14 have a flush of the GPU's memory, which chunks through host memory do not need.
_APART_US = 9.0


def with_couriers_of_hosts(machine: Machine) -> Machine:
    """GPUs whose chunks between servers pass through pinned host memory and a courier, over Simple or LL.

    The courier and the network have the figures of `HOST_SERVERS`; no GPU has been measured with them.
    """
    assert HOST_SERVERS.courier is not None
    kept = tuple(protocol for protocol in machine.protocols if protocol.name in ("Simple", "LL"))
    classes = {**machine.classes, LinkKind.NET: HOST_SERVERS.link_class(LinkKind.NET)}
    courier = dataclasses.replace(HOST_SERVERS.courier, apart_us=_APART_US / 2)
    return machine.replace(protocols=kept, classes=classes, courier=courier)


# A hop over Simple through a network card, in that model.
_CARD_US = 14.0


def with_cards(machine: Machine) -> Machine:
    """GPUs of one server that network cards join beside other links, over Simple and RDMA.

    A hop takes what it takes NCCL's proxies, which do what couriers do. Each rank has a courier, and no thread moves
    the bytes, so none is a limit.
    """
    own = machine.link_class(LinkKind.NET)
    net = dataclasses.replace(own, hop_us=own.hop_us + _CARD_US)
    return machine.replace(classes={**machine.classes, LinkKind.NET: net})
