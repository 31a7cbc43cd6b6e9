"""NCCL's calls in closed form, where no program of ours does what NCCL does: several servers, and sums in switches.

Every form is a pipeline: a call is cut over channels, a channel's share into chunks; the first chunk passes all stages,
the others follow at the rate of the slowest. Rates are what links, NICs and blocks carry; launches and hops are NCCL's
own constants (2.23 and newer), measured by its authors. Sizes are bytes, times microseconds, rates bytes per
microsecond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from collc.collectives.model import Collective
from collc.simulator.nccl.fabrics import Fabric
from collc.simulator.nccl.rule import NVLS_CHANNELS, Setting
from collc.simulator.nccl.shape import Shape
from collc.simulator.nccl.versions import ERAS, PROTOCOLS
from collc.simulator.params import BYTES_PER_US, Machine

# NCCL's buffers: 4 MiB in 8 slots for Simple, 16 KiB of payload for LL, 64 KiB per chunk of LL128's trees.
_CHUNK = {"Simple": 512 << 10, "LL": 16 << 10, "LL128": 64 << 10}
_MESSAGE = 512 << 10
_TREE_SHARE = 0.92  # of a tree's blocks, which reduce and broadcast in turns: half of a ring's, each
_HALF = 0.5
# From _PLATEAU_BYTES per rank on, full chunks make the steps of a ring between servers longer: NCCL 2.12's figures.
_PLATEAU, _PLATEAU_BYTES = 1.9, 4096
# Launches and hops depend on the hardware, so the newest era's hold for every version that chooses.
_LATENCY = ERAS[-1]
_START = 6.6


@dataclass(frozen=True)
class Closed:
    """The inputs of a closed form: the setting of the rule and the GPU's parameters."""

    setting: Setting
    machine: Machine

    def time_us(self, algorithm: str, protocol: str, size: int) -> float:
        """Microseconds of one call of `size` bytes (nccl-tests' meaning)."""
        forms = {
            "Ring": self._ring,
            "Tree": self._tree,
            "NVLS": self._nvls,
            "NVLSTree": self._nvls_tree,
            "CollNet": self._collnet,
            "PAT": self._pat,
        }
        return forms[algorithm](protocol, size)

    @property
    def _shape(self) -> Shape:
        return self.setting.shape

    @property
    def _fabric(self) -> Fabric:
        return self.setting.fabric

    def _launch(self, protocol: str, algorithm: str = "Ring") -> float:
        return _LATENCY.base[algorithm][PROTOCOLS.index(protocol)]

    def _hop(self, protocol: str, algorithm: str) -> float:
        return _LATENCY.hop[self._shape.inside][algorithm][PROTOCOLS.index(protocol)]

    def _nics(self) -> float:
        return self._shape.nic_gbps * self._fabric.efficiency * BYTES_PER_US

    def _payload(self, protocol: str) -> float:
        return self.machine.protocol(protocol).efficiency

    def _ring(self, protocol: str, size: int) -> float:
        """2(n-1) steps of 1/n of the bytes (all_reduce), n-1 (all_gather, reduce_scatter), a chain (broadcast, reduce).

        Every step of every channel is a message between servers; where hosts move messages they may be what limits.
        """
        shape, fabric, hop = self._shape, self._fabric, self._hop(protocol, "Ring")
        laps = 2 if self.setting.collective is Collective.ALL_REDUCE else 1
        steps = laps * (shape.nranks - 1)
        crossing = laps * (shape.servers - 1) if shape.servers > 1 else 0
        channels = self._channels(protocol, size)
        rate = min(shape.inside_gbps * BYTES_PER_US, self._nics() if crossing else math.inf)
        if crossing and fabric.ring_nic_gbps is not None:
            rate = min(rate, shape.nics * fabric.ring_nic_gbps * BYTES_PER_US)
        rate *= self._payload(protocol)
        if crossing and protocol == "LL":
            rate = min(rate, self._through_host())
        if crossing and protocol == "Simple" and size >= _PLATEAU_BYTES * shape.nranks:
            hop *= _PLATEAU
        latency = self._launch(protocol) + (steps - crossing) * hop + crossing * fabric.hop_us[protocol]
        if self.setting.collective.rooted:
            chunk = min(_CHUNK[protocol], size / channels)
            return latency + (shape.nranks - 2) * chunk * channels / rate + size / rate
        carried = size * steps / shape.nranks
        messages = max(channels * steps, carried / _MESSAGE)
        return latency + _overlapped(messages * fabric.message_us, carried / rate)

    def _tree(self, protocol: str, size: int) -> float:
        """Double binary trees between servers, chains inside: up and down, pipelined in chunks."""
        shape, fabric, hop = self._shape, self._fabric, self._hop(protocol, "Tree")
        rounds = _rounds(shape.servers)
        hops = 2 * (shape.per_server - 1 + rounds)
        rate = min(
            shape.inside_gbps * BYTES_PER_US * _TREE_SHARE * _HALF,
            self._nics() * shape.servers / (2 * (shape.servers - 1)),
        )
        rate *= self._payload(protocol)
        if protocol == "LL":
            rate = min(rate, self._through_host() * _HALF)
        channels = self._channels(protocol, size)
        chunk = min(_CHUNK[protocol], size / channels)
        latency = self._launch(protocol, "Tree") + 2 * ((shape.per_server - 1) * hop + rounds * fabric.hop_us[protocol])
        each = self._block(protocol)
        return latency + (hops - 1) * chunk / each + size / min(rate, channels * each)

    def _through_host(self) -> float:
        """LL between servers is staged in host memory, where the CPU polls its flags: NCCL's figures for a server."""
        setting = self.setting
        return _LATENCY.ll_most[setting.chip][min(setting.shape.servers, 3) - 1] * BYTES_PER_US

    def _block(self, protocol: str) -> float:
        """The payload rate of a channel's block: a third of the bytes that it touches."""
        block = self.machine.protocol(protocol).block_gbps
        return math.inf if block is None else block / 3 * BYTES_PER_US

    def _nvls(self, protocol: str, size: int) -> float:
        nvls = self.machine.nvls
        assert nvls is not None
        rate, loop = self._in_switches(size, self._shape.nranks, _nvls_chunk)
        if self.setting.collective is not Collective.ALL_REDUCE:
            # Only one direction: each GPU's part is multicast, or summed, once.
            rate = self._shape.inside_gbps * BYTES_PER_US * self._shape.nranks / (self._shape.nranks - 1)
        return _START + nvls.hop_us + loop / rate + size / rate

    def _in_switches(self, size: int, heads: int, chunk_of: object) -> tuple[float, float]:
        """The rate of reduction and multicast in one server with NCCL's chunks, and the bytes of a round of chunks.

        Each byte of a GPU's buffer goes to the switches once and comes back once, and the part that it heads once more.
        """
        nvls = self.machine.nvls
        assert nvls is not None
        wires = self._shape.link_gbps * nvls.efficiency * BYTES_PER_US / (1 + 1 / heads)
        chunk = chunk_of(size, NVLS_CHANNELS * heads)  # type: ignore[operator]
        loop = min(float(size), float(chunk * NVLS_CHANNELS * heads))
        return wires * (loop / wires) / (loop / wires + nvls.loop_us), loop

    def _nvls_tree(self, protocol: str, size: int) -> float:
        """Sums in each server's switches, trees between the servers: a chunk goes in, over, back over and out."""
        shape, fabric, nvls = self._shape, self._fabric, self.machine.nvls
        assert nvls is not None
        heads = shape.per_server
        largest = (128 << 10) if shape.servers < 4 else (64 << 10)
        inside, loop = self._in_switches(size, heads, lambda s, c: _nvls_tree_chunk(s, c, largest))
        rounds = _rounds(shape.servers)
        rate = min(inside * nvls.tree_share, self._nics() * shape.servers / (2 * (shape.servers - 1)))
        latency = _START + nvls.hop_us + 2 * rounds * fabric.hop_us["Simple"]
        moved = size / rate
        if fabric.message_us:
            chunk = min(largest, size / (NVLS_CHANNELS * heads))
            messages = max(NVLS_CHANNELS * heads, size / chunk) * 2 * (shape.servers - 1) / shape.servers
            moved = _overlapped(messages * fabric.message_us, moved)
        return latency + 2 * rounds * loop / rate + moved

    def _collnet(self, protocol: str, size: int) -> float:
        """Sums in the network's switches (SHARP): every byte leaves a server once and comes back once."""
        shape = self._shape
        rate = min(self._nics() * COLLNET_SHARE, shape.inside_gbps * BYTES_PER_US)
        channels = min(self._channels("Simple", size), max(1, shape.nics))
        chunk = min(_CHUNK["Simple"], size / channels)
        latency = _START + 2 * (shape.per_server - 1) * 2.8 + 30.0
        return latency + shape.per_server * chunk * channels / rate / 2 + size / rate

    def _pat(self, protocol: str, size: int) -> float:
        """Parallel trees of log depth between servers of one GPU each (NCCL 2.23)."""
        shape = self._shape
        carried = size * (shape.nranks - 1) / shape.nranks
        latency = self._launch("Simple", "PAT") + _rounds(shape.servers) * self._fabric.hop_us["Simple"]
        return latency + carried / (self._nics() * 0.75)

    def _channels(self, protocol: str, size: int) -> int:
        """Fewer channels for small calls, so that each has some bytes for every thread."""
        least = {"Simple": 64 << 10, "LL": 4 << 10, "LL128": 8 << 10}[protocol]
        return max(1, min(self.setting.channels, size // least))


# CollNet's share of the NICs' rate in its only table (abci-sharp-2), fitted at 2 GiB and not judged elsewhere.
COLLNET_SHARE = 0.58


def _rounds(servers: int) -> int:
    return math.ceil(math.log2(servers)) if servers > 1 else 0


def _overlapped(one_us: float, other_us: float) -> float:
    """Two kinds of work that overlap in part: between the larger and the sum."""
    return math.hypot(one_us, other_us)


def _nvls_chunk(size: int, concurrent: int) -> int:
    """NCCL's chunk of NVLS (src/enqueue.cc): smaller ones until a call has several rounds of them."""
    chunk = 128 << 10
    for rounds, smaller in ((64, 64 << 10), (8, 32 << 10), (2, 16 << 10)):
        if size < rounds * concurrent * chunk and chunk > smaller:
            chunk = smaller
    return chunk


def _nvls_tree_chunk(size: int, concurrent: int, largest: int) -> int:
    chunk = largest
    for rounds, smaller in ((4, 64 << 10), (1, 32 << 10)):
        if size < rounds * concurrent * chunk and chunk > smaller:
            chunk = smaller
    return chunk
