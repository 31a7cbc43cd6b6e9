"""Reads the key `devices` of a topology file: the PCI bus ids and UUIDs of GPUs.

No plan, bound or fingerprint depends on them.
"""

from __future__ import annotations

import re
from dataclasses import replace

from collc.topology.draft import Draft
from collc.topology.fields import PCI_FORM, PCI_HINT, Reader
from collc.topology.model import Device, VertexKind
from collc.topology.yamltree import Node, Table

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HINT = '`devices` maps GPUs to {pci: "0000:3b:00.0", uuid: GPU-...}, as `collc probe` writes it'


def known_device(pci: str, uuid: str) -> Device:
    """Returns the identity that a driver reports for a GPU, without a bus id or UUID of an unusual form."""
    return Device(pci if PCI_FORM.fullmatch(pci) else None, uuid if _UUID.fullmatch(uuid) else None)


def add_devices(reader: Reader, draft: Draft, node: Node | None, document: Table) -> None:
    """Reads `devices` into the draft, and checks that no two GPUs of the draft are the same device.

    Args:
        node: the value of `devices`, or None.
        document: the whole file, for the place of errors if `node` is None.

    Raises:
        TopologyError: a vertex is no GPU, a value has a wrong form, or two GPUs have the same value.
    """
    for key, value in reader.table(node, _HINT).entries if node else ():
        name = reader.name(key, "name")
        vertex = draft.vertices.get(name)
        if vertex is None or vertex.kind is not VertexKind.GPU:
            gpus = [v.name for v in draft.vertices.values() if v.kind is VertexKind.GPU]
            reader.unknown(f"no GPU is called `{name}`", key, name, gpus)
        table = reader.table(value, _HINT)
        reader.known_keys(table, ("pci", "uuid"))
        pci, uuid = table.get("pci"), table.get("uuid")
        device = Device(
            _one(reader, pci, "pci", PCI_FORM, PCI_HINT),
            _one(reader, uuid, "uuid", _UUID, "as nvidia-smi -L prints it, such as GPU-0e5c1b4a- and so on"),
        )
        draft.vertices[name] = replace(vertex, device=device)
    _check_unique(reader, draft, node or document)


def _one(reader: Reader, node: Node | None, key: str, form: re.Pattern[str], hint: str) -> str | None:
    if node is None:
        return None
    text = reader.text(node, hint)
    if not form.fullmatch(text):
        reader.fail(f"`{key}` cannot be `{text if len(text) <= 40 else text[:37] + '...'}`", node, hint)
    return text


def _check_unique(reader: Reader, draft: Draft, node: Node) -> None:
    """Checks that UUIDs are unique in the file, and bus ids in each server."""
    server = {name: server for server, members in (draft.servers or {}).items() for name in members}
    owners: dict[tuple[str, str], str] = {}
    for vertex in draft.vertices.values():
        device = vertex.device or Device()
        for scope, text in (("every server", device.uuid), (server.get(vertex.name, ""), device.pci)):
            if text is not None and (other := owners.setdefault((scope, text), vertex.name)) != vertex.name:
                reader.fail(f"{other} and {vertex.name} are both {text}", node, "each GPU has its own")
