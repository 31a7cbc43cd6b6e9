"""The formats of dumps: the test that recognizes each format, and the function that reads it.

A new format is a file with a function `looks_like_...` and one that reads, and a row in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from collc.errors import TopologyError
from collc.topology.probe.amd import looks_like_amd, read_amd
from collc.topology.probe.hwloc import looks_like_hwloc, read_hwloc
from collc.topology.probe.identity import (
    Identities,
    looks_like_list,
    looks_like_query,
    looks_like_smi_xml,
    read_list,
    read_query,
    read_smi_xml,
)
from collc.topology.probe.lines import Text
from collc.topology.probe.machine import Machine
from collc.topology.probe.matrix import machine_of
from collc.topology.probe.models import GpuModel
from collc.topology.probe.nccl_xml import looks_like_nccl, read_nccl
from collc.topology.probe.nvlink_text import Links, looks_like_nvlink, read_nvlink
from collc.topology.probe.p2p import apply_p2p, looks_like_p2p, refuse_p2p_alone
from collc.topology.probe.ports import apply_ibstat, looks_like_ibstat, refuse_ibstat_alone
from collc.topology.probe.smi import looks_like_topo, read_topo


@dataclass
class Facts:
    """All that the dumps of one machine say.

    Attributes:
        outputs: name of the format -> the outputs of this format.
        identities, links: the names and bus ids of GPUs, and their NVLinks one by one.
        additions: functions that add to the machine, each with a function that refuses the output without a machine.
    """

    outputs: dict[str, list[Text]] = field(default_factory=dict)
    identities: Identities = field(default_factory=Identities)
    links: Links = field(default_factory=Links)
    additions: list[tuple[Callable[[Machine], None], Callable[[], None]]] = field(default_factory=list)


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        name: what messages call it.
        matches: returns True if a text is of this format.
        add: adds a text to the facts; None for a format that `machine` reads.
        machine: (texts, name of the machine, GPU model, the machine of an earlier row or None) -> the machine.
        can_join: True if the format may come together with an earlier row that also describes a machine.
    """

    name: str
    matches: Callable[[Text], bool]
    add: Callable[[Text, Facts], None] | None = None
    machine: Callable[[list[Text], str, GpuModel | None, Machine | None], Machine] | None = None
    can_join: bool = False


def _is_topo(text: Text) -> bool:
    """Returns True for `topo -m`; the tables of access and of AMD's tools begin with the same header."""
    return looks_like_topo(text) and not looks_like_p2p(text) and not looks_like_amd(text)


def _topo(texts: list[Text], name: str, model: GpuModel | None, table: Machine | None) -> Machine:
    matrix = read_topo(texts[0])
    if any(read_topo(text) != matrix for text in texts[1:]):
        raise TopologyError("a second table, which differs", where=texts[1].at(1), hint="one machine at a time")
    return machine_of(matrix, name, texts[0], model)


def _amd(texts: list[Text], name: str, model: GpuModel | None, table: Machine | None) -> Machine:
    return read_amd(texts, name)


def _nccl(texts: list[Text], name: str, model: GpuModel | None, table: Machine | None) -> Machine:
    return read_nccl(_only(texts), name, table)


def _hwloc(texts: list[Text], name: str, model: GpuModel | None, table: Machine | None) -> Machine:
    return read_hwloc(_only(texts), name, table)


def _only(texts: list[Text]) -> Text:
    if any(text.lines != texts[0].lines for text in texts[1:]):
        raise TopologyError("a second dump of this kind", where=texts[1].at(1), hint="one machine at a time")
    return texts[0]


def _p2p(text: Text, facts: Facts) -> None:
    facts.additions.append((partial(apply_p2p, text), partial(refuse_p2p_alone, text)))


def _ibstat(text: Text, facts: Facts) -> None:
    facts.additions.append((partial(apply_ibstat, text), partial(refuse_ibstat_alone, text)))


# Rows with `machine` are read in this order; a later row gets the machine of the earlier one.
FORMATS = (
    Format("nvidia-smi topo -m", _is_topo, machine=_topo),
    Format("rocm-smi --showtopo or amd-smi topology", looks_like_amd, machine=_amd),
    Format("NCCL's topology XML", looks_like_nccl, machine=_nccl, can_join=True),
    Format("hwloc's XML (lstopo --of xml)", looks_like_hwloc, machine=_hwloc, can_join=True),
    Format("nvidia-smi nvlink -s or -R", looks_like_nvlink, add=lambda text, facts: read_nvlink(text, facts.links)),
    Format("nvidia-smi -q -x", looks_like_smi_xml, add=lambda text, facts: read_smi_xml(text, facts.identities)),
    Format("nvidia-smi --query-gpu", looks_like_query, add=lambda text, facts: read_query(text, facts.identities)),
    Format("nvidia-smi -L", looks_like_list, add=lambda text, facts: read_list(text, facts.identities)),
    Format("nvidia-smi topo -p2p", looks_like_p2p, add=_p2p),
    Format("ibstat", looks_like_ibstat, add=_ibstat),
)
