"""Recognizes the format of a dump by its content and reads it, for `collc probe --from FILE`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from collc.errors import TopologyError
from collc.topology.model import Topology
from collc.topology.names import name_problem
from collc.topology.probe.amd import looks_like_amd, read_amd
from collc.topology.probe.build import build
from collc.topology.probe.lines import Text, clean
from collc.topology.probe.lookalikes import refuse_lookalike
from collc.topology.probe.machine import Machine
from collc.topology.probe.matrix import machine_of
from collc.topology.probe.models import GpuModel, model_by_name
from collc.topology.probe.nccl_xml import read_nccl
from collc.topology.probe.nvlink_text import Links, apply_links, looks_like_nvlink, machine_of_links, read_nvlink
from collc.topology.probe.p2p import apply_p2p, looks_like_p2p, refuse_p2p_alone
from collc.topology.probe.smi import looks_like_topo, read_topo

KNOWN = (
    "nvidia-smi topo -m or -p2p, nvidia-smi nvlink -s or -R, NCCL topology XML, rocm-smi --showtopo, amd-smi topology"
)


def topology_from_dumps(
    dumps: Sequence[tuple[str, str]], *, gpu_model: str | None = None, name: str | None = None
) -> Topology:
    """Returns the topology that one dump, or several dumps of the same machine, describe.

    Args:
        dumps: (name for messages, text) of each file.
        gpu_model: a model such as ``V100``; supplies facts that a dump lacks (NVLink generation, PCIe).
        name: the name of the topology; default: derived from the first file's name.

    Returns:
        The topology; its `notes` list the assumptions.

    Raises:
        TopologyError: a dump is damaged or of an unknown format; the message names the line.
        UsageError: the model is unknown.
    """
    model = model_by_name(gpu_model) if gpu_model is not None else None
    texts = [clean(text, where) for where, text in dumps]
    title = name or _name(texts[0].where)
    return _read(texts, title, model)


def _name(where: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9_.+-]+", "-", Path(where).stem).strip("-.")[:64]
    return "probed" if name_problem(stem) else stem


def _kind(text: Text) -> str:
    """Returns the format of a dump by its content."""
    first = text.whole.lstrip()[:1]
    if first == "<":
        return "nccl"
    if looks_like_amd(text):
        return "amd"
    if looks_like_p2p(text):
        return "p2p"
    if looks_like_topo(text):
        refuse_lookalike(text)
        return "topo"
    if looks_like_nvlink(text):
        return "nvlink"
    hint = f"known: {KNOWN}"
    if re.search(r"^format:\s*collc-topology/", text.whole, re.MULTILINE):
        raise TopologyError("this is a topology file already, not a dump", where=text.at(1), hint="use it as it is")
    refuse_lookalike(text)
    raise TopologyError("collc does not recognise this dump", where=text.at(1), hint=hint)


def _read(texts: Sequence[Text], name: str, model: GpuModel | None) -> Topology:
    found: dict[str, list[Text]] = {"topo": [], "nccl": [], "amd": [], "nvlink": [], "p2p": []}
    for text in texts:
        kind = _kind(text)
        found[kind].append(text)
        if kind not in ("nvlink", "amd") and len(found[kind]) > 1:
            raise TopologyError("a second dump of this kind", where=text.at(1), hint="one machine at a time")
    links = Links()
    for text in found["nvlink"]:
        read_nvlink(text, links)
    for text in found["topo"]:
        # Users often paste `nvidia-smi -L` before the table.
        if looks_like_nvlink(text):
            read_nvlink(text, links)
    if found["p2p"] and not any(found[kind] for kind in ("topo", "nccl", "nvlink")):
        refuse_p2p_alone(found["p2p"][0])
    known = model or links.model
    machine = _machine(found, name, links, known)
    for text in found["p2p"]:
        apply_p2p(text, machine)
    return build(machine, known, texts[0].where)


def _machine(found: dict[str, list[Text]], name: str, links: Links, model: GpuModel | None) -> Machine:
    if found["amd"]:
        others = [text for kind in ("topo", "nccl", "nvlink", "p2p") for text in found[kind]]
        if others:
            raise TopologyError(
                "this does not go with the tables of AMD GPUs", where=others[0].at(1), hint="one machine"
            )
        return read_amd(found["amd"], name)
    machine = None
    if found["topo"]:
        text = found["topo"][0]
        machine = machine_of(read_topo(text), name, text.where, model)
    if found["nccl"]:
        text = found["nccl"][0]
        machine = read_nccl(text.whole, text.where, name, machine)
    if machine is None:
        return machine_of_links(links, name)
    apply_links(links, machine)
    return machine
