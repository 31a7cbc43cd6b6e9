"""Reads a file of rails: the NICs of each switch. docs/clusters.md has the format, ``collc-rails/1``."""

from __future__ import annotations

from collections.abc import Sequence

from collc.topology.cluster.model import Cable, Network
from collc.topology.cluster.network import Nic
from collc.topology.fields import Reader
from collc.topology.yamltree import Node, Scalar, Table, parse

FORMAT = "collc-rails/1"
_KEYS = ("format", "rails", "spine")
_HINT = "`rails` maps a switch to its NICs, for example {rail0: [mlx5_0], rail1: [mlx5_1, node7.mlx5_9]}"


def rails_network(content: str, where: str, nics: Sequence[Nic]) -> Network:
    """Returns the network that a file of rails describes.

    Args:
        content: the text of the file, in YAML.
        where: the name of the file, for messages.
        nics: all NICs. A name without a server means the NICs of this name on all servers: by their names in the
            cluster file, or, if none has this name, by the servers' own names.

    Raises:
        TopologyError: the text is no file of rails, or names what does not exist; with file and line.
    """
    reader = Reader(where)
    root = parse(content, where)
    if not isinstance(root, Table):
        reader.fail("a file of rails is a mapping of keys to values", root, f"begin with `format: {FORMAT}`")
    form = root.get("format")
    if not isinstance(form, Scalar) or form.text != FORMAT:
        reader.fail("this is no file of rails that this version reads", form or root, f"begin with `format: {FORMAT}`")
    reader.known_keys(root, _KEYS)
    table = root.get("rails")
    if table is None:
        reader.fail("the key `rails` is missing", root, _HINT)
    chosen: dict[str, tuple[str, Nic, bool]] = {}
    switches: list[str] = []
    for key, value in reader.table(table, _HINT).entries:
        rail = reader.name(key, "name of a switch")
        switches.append(rail)
        for node in [value] if isinstance(value, Scalar) else reader.items(value, _HINT).items:
            for nic, exact in _nics_of(reader, node, nics):
                earlier = chosen.get(nic.vertex)
                if earlier and earlier[2] and not exact:
                    continue  # an entry for one server has priority over an entry for all servers
                if earlier and earlier[2] == exact:
                    reader.fail(f"{nic.vertex} is on {earlier[0]} already", node, "a NIC hangs on one switch")
                chosen[nic.vertex] = (rail, nic, exact)
    if not switches:
        reader.fail("`rails` is empty", table, _HINT)
    cables = [Cable(nic.vertex, rail, nic.gbps, nic.server) for rail, nic, _ in chosen.values()]
    spine = root.get("spine")
    if spine is not None:
        if "spine" in switches:
            reader.fail("`spine` is the name of a rail already", spine, "choose another name for the rail")
        gbps = reader.gbps(spine, "spine")
        cables += [Cable(rail, "spine", gbps) for rail in switches]
        switches.append("spine")
    unused_count = sum(nic.vertex not in chosen for nic in nics)
    notes = [f"network: as {where} says"]
    if unused_count:
        notes.append(f"network: {unused_count} NICs are on no rail of {where} and are not used between servers")
    return Network(tuple(switches), tuple(cables), tuple(notes))


def _nics_of(reader: Reader, node: Node, nics: Sequence[Nic]) -> list[tuple[Nic, bool]]:
    """Returns the NICs that a word means, each with True if the word names the NIC of one server."""
    word = reader.name(node, "NIC")
    exact = [nic for nic in nics if word in (nic.vertex, f"{nic.server}.{nic.local_name}")]
    if exact:
        return [(nic, True) for nic in exact[:1]]
    matches = [nic for nic in nics if nic.name == word] or [nic for nic in nics if nic.local_name == word]
    if not matches:
        reader.unknown(f"no NIC is called `{word}`", node, word, dict.fromkeys(nic.name for nic in nics))
    return [(nic, False) for nic in matches]
