"""Which GPU of a machine each vertex is: PCI bus ids and UUIDs, the key `devices` of a topology file.

They are data beside the graph: no plan, bound or fingerprint depends on them.
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
    """A GPU as a driver describes it, without what is no bus id or UUID of the usual form."""
    return Device(pci if PCI_FORM.fullmatch(pci) else None, uuid if _UUID.fullmatch(uuid) else None)


def add_devices(reader: Reader, draft: Draft, node: Node | None, document: Table) -> None:
    """Reads `devices`, and checks that no two GPUs of the draft are the same one.

    Raises:
        TopologyError: a vertex is no GPU, a value is none, or it is that of another GPU.
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
    """A UUID belongs to one GPU of all; servers may have GPUs in the same places."""
    server = {name: server for server, members in (draft.servers or {}).items() for name in members}
    seen: dict[tuple[str, str], str] = {}
    for vertex in draft.vertices.values():
        device = vertex.device or Device()
        for of, text in (("every server", device.uuid), (server.get(vertex.name, ""), device.pci)):
            if text is not None and (other := seen.setdefault((of, text), vertex.name)) != vertex.name:
                reader.fail(f"{other} and {vertex.name} are both {text}", node, "each GPU has its own")
