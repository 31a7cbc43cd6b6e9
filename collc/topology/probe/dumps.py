"""`collc probe --from FILE`: recognises what a dump is by its content and reads it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from collc.errors import TopologyError
from collc.topology.model import Topology
from collc.topology.names import name_problem
from collc.topology.probe.lines import Text, clean
from collc.topology.probe.machine import build
from collc.topology.probe.matrix import machine_of
from collc.topology.probe.models import GpuModel, model_by_name
from collc.topology.probe.smi import looks_like_topo, read_topo

KNOWN = "nvidia-smi topo -m, nvidia-smi nvlink -s or -R, NCCL topology XML, rocm-smi --showtopo"


def topology_from_dumps(
    dumps: Sequence[tuple[str, str]], *, gpu_model: str | None = None, name: str | None = None
) -> Topology:
    """The topology that one dump, or several of the same machine, describe.

    Args:
        dumps: (name for messages, text) of each file.
        gpu_model: such as ``V100``; tells what a dump cannot say (NVLink generation, PCIe).
        name: of the topology; by default made from the first file's name.

    Returns:
        The topology; `notes` says what had to be assumed.

    Raises:
        TopologyError: a dump is damaged or not known; names the line.
        UsageError: the model is not known.
    """
    model = model_by_name(gpu_model) if gpu_model else None
    texts = [clean(text, where) for where, text in dumps]
    title = name or _name(texts[0].where)
    return _read(texts, title, model)


def _name(where: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9_.+-]+", "-", Path(where).stem).strip("-.")[:64]
    return "probed" if name_problem(stem) else stem


def _read(texts: Sequence[Text], name: str, model: GpuModel | None) -> Topology:
    main = texts[0]
    if looks_like_topo(main):
        return build(machine_of(read_topo(main), name, main.where), model, main.where)
    raise TopologyError("this is no dump that collc knows", where=main.at(1), hint=f"known: {KNOWN}")
