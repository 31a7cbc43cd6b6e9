"""Recognizes the format of each dump by its content and reads all dumps of a machine, for `collc probe --from FILE`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collc.errors import TopologyError
from collc.topology.model import Topology
from collc.topology.names import name_problem
from collc.topology.probe.build import build
from collc.topology.probe.formats import FORMATS, Facts, Format
from collc.topology.probe.identity import apply_identities, machine_of_identities
from collc.topology.probe.lines import Text, clean
from collc.topology.probe.lookalikes import refuse_lookalike, refuse_vendor
from collc.topology.probe.machine import Machine
from collc.topology.probe.models import GpuModel, model_by_name
from collc.topology.probe.nvlink_text import apply_links, machine_of_links

KNOWN = ", ".join(row.name for row in FORMATS)


@dataclass(frozen=True)
class Reading:
    """A topology from dumps, and (table of a dump, what was taken from it) in the order of reading."""

    topology: Topology
    tables: tuple[tuple[str, str], ...]


def topology_from_dumps(
    dumps: Sequence[tuple[str, str]], *, gpu_model: str | None = None, name: str | None = None
) -> Topology:
    """Returns the topology of `read_dumps`."""
    return read_dumps(dumps, gpu_model=gpu_model, name=name).topology


def read_dumps(dumps: Sequence[tuple[str, str]], *, gpu_model: str | None = None, name: str | None = None) -> Reading:
    """Returns the topology that one dump, or several dumps of the same machine, describe.

    Args:
        dumps: (name for messages, text) of each file. A file may have the outputs of several commands.
        gpu_model: a model such as ``V100``; supplies facts that a dump lacks (NVLink generation, PCIe).
        name: the name of the topology; default: derived from the first file's name.

    Returns:
        The topology, whose `notes` list the assumptions, and what was taken from each table.

    Raises:
        TopologyError: a dump is damaged or of an unknown format, or dumps contradict each other; the message names the
            line.
        UsageError: the model is unknown.
    """
    given = model_by_name(gpu_model) if gpu_model is not None else None
    texts = [clean(text, where) for where, text in dumps]
    facts = Facts()
    for text in texts:
        _sort(text, facts)
    for row in FORMATS:
        for text in facts.outputs.get(row.name, ()):
            if row.add is not None:
                row.add(text, facts)
    model = given or facts.links.model or facts.identities.model
    machine = _machine(facts, name or _name(texts[0].where), model)
    for add, _ in facts.additions:
        add(machine)
    return Reading(build(machine, model, texts[0].where), tuple(machine.tables))


def _name(where: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9_.+-]+", "-", Path(where).stem).strip("-.")[:64]
    return "probed" if name_problem(stem) else stem


def _sort(text: Text, facts: Facts) -> None:
    """Adds the outputs in a text to `facts.outputs`.

    Raises:
        TopologyError: no output is of a known format.
    """
    found = False
    for section in text.sections():
        for row in _formats(section):
            found = True
            facts.outputs.setdefault(row.name, []).append(section)
    if found:
        return
    if re.search(r"^format:\s*collc-topology/", text.whole, re.MULTILINE):
        raise TopologyError("this is a topology file already, not a dump", where=text.at(1), hint="use it as it is")
    refuse_lookalike(text)
    raise TopologyError("collc does not recognize this dump", where=text.at(1), hint=f"known: {KNOWN}")


def _formats(text: Text) -> list[Format]:
    rows = [row for row in FORMATS if row.matches(text)]
    if any(row.machine is not None for row in rows):
        refuse_vendor(text)
    return rows


def _machine(facts: Facts, name: str, model: GpuModel | None) -> Machine:
    machine = None
    for row in FORMATS:
        if row.machine is not None and (texts := facts.outputs.get(row.name)):
            if machine is not None and not row.can_join:
                what = f"the output of {row.name} does not go with the other dump"
                raise TopologyError(what, where=texts[0].at(1), hint="one machine at a time")
            machine = row.machine(texts, name, model, machine)
    if machine is not None:
        apply_links(facts.links, machine)
    elif facts.links.names:
        machine = machine_of_links(facts.links, name)
    elif facts.identities.gpus:
        machine = machine_of_identities(facts.identities, name, model)
    else:
        for _, refuse in facts.additions:
            refuse()
        raise AssertionError("every format describes a machine, adds to one, or refuses to be alone")
    apply_identities(facts.identities, machine)
    return machine
