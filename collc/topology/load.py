"""Reads topology files: YAML text becomes a `Topology`. docs/topology.md describes the format.

Every number is read as exact decimal text. Every error names the file; an error in its text also names the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from collc.errors import CollcError, TopologyError
from collc.inputs import read_input
from collc.topology import zoo
from collc.topology.devices import add_devices
from collc.topology.draft import MAX_LINKS, MAX_VERTICES, Draft
from collc.topology.fields import LinkSpec, Reader, Speed
from collc.topology.model import LinkKind, Topology, Vertex, VertexKind
from collc.topology.names import name_problem
from collc.topology.yamltree import MAX_BYTES, Node, Scalar, Table, decode, parse

FORMAT = "collc-topology/1"
MAX_EXTENDS = 16
MAX_SERVERS = MAX_VERTICES
# In a link of a file with a template, `each.nic0` means nic0 of every server.
EACH = "each."

_VERTEX_KEYS = {
    "gpus": VertexKind.GPU,
    "switches": VertexKind.SWITCH,
    "cpus": VertexKind.CPU,
    "nics": VertexKind.NIC,
}
_BODY_KEYS = ("extends", "gpu_model", "assumes", "speeds", *_VERTEX_KEYS, "devices", "remove", "links")
_FORMAT_KEY = re.compile(r"(?:^|[{,\s])[\"']?format[\"']?\s*:")
_DUMP = f"a file begins with `format: {FORMAT}`; `collc probe --from FILE -o machine.yaml` reads the dump of a tool"
_KEYS = ("format", "name", "template", "templates", "servers", *_BODY_KEYS)


def load_topology(path_or_zoo_name: str | Path) -> Topology:
    """Reads a topology file, or a machine that comes with collc.

    Args:
        path_or_zoo_name: a path; or, if no such file exists, the bare name of a machine in `topologies/` such as
            ``dgx1v``.

    Raises:
        TopologyError: there is no such file, or its text is wrong.
    """
    text, where, directory = _fetch(str(path_or_zoo_name), Path(), f"{path_or_zoo_name}")
    return _Loader((where,)).document(text, where, directory)


def loads_topology(text: str, where: str = "<text>") -> Topology:
    """Reads the text of a topology file. `extends` and `template` name machines that come with collc, or paths.

    Raises:
        TopologyError: the text is wrong; the message begins with `where` and the line.
    """
    return _Loader((where,)).document(text, where, Path())


def _fetch(source: str, directory: Path, where: str) -> tuple[str, str, Path]:
    """Returns text, name for messages and directory of a file, or of a zoo machine if no such file exists."""
    if not source:
        raise TopologyError("the name is empty", where=where or "topology", hint="name a file or a known machine")
    path = directory / source
    try:
        if not path.exists() and (known := zoo.find(source)):
            path = known
        if path.is_dir():
            raise TopologyError("this is a directory, not a topology file", where=where, hint="name a file in it")
        data = read_input(path, limit=MAX_BYTES)
    except CollcError as error:
        raise TopologyError(error.what, where=where, hint=error.hint) from None
    except FileNotFoundError:
        raise TopologyError(
            f"no file and no known machine is called `{source}`", where=where, hint=zoo.suggest(source)
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TopologyError(f"cannot read `{source}`: {reason}", where=where, hint="check its permissions") from None
    return decode(data, str(path)), str(path), path.parent


class _Loader:
    """Reads one document and the files that it extends. `chain` has the files of the current path, to refuse cycles."""

    def __init__(self, chain: tuple[str, ...]) -> None:
        self.chain = chain

    def document(self, text: str, where: str, directory: Path) -> Topology:
        reader = Reader(where)
        try:
            root = parse(text, where)
        except TopologyError as error:
            if _FORMAT_KEY.search(text):
                raise
            raise TopologyError(f"this is no topology file: {error.what}", where=error.where, hint=_DUMP) from None
        if not isinstance(root, Table):
            hint = f"begin with `format: {FORMAT}`"
            reader.fail("a topology is a mapping of keys to values", root, hint if _FORMAT_KEY.search(text) else _DUMP)
        self.check_format(reader, root)
        reader.known_keys(root, _KEYS)
        draft = self.body(reader, root, directory, whole=True)
        name = root.get("name")
        return draft.finish(reader.name(name, "name") if name else _default_name(where), f"{where}:{root.line}")

    def check_format(self, reader: Reader, root: Table) -> None:
        node = root.get("format")
        if node is None:
            reader.fail("the key `format` is missing", root, f"begin with `format: {FORMAT}`")
        if not isinstance(node, Scalar) or node.text != FORMAT:
            shown = f"`{node.text}`" if isinstance(node, Scalar) else "this"
            reader.fail(f"{shown} is not a format that this version reads", node, f"write `format: {FORMAT}`")

    def body(self, reader: Reader, table: Table, directory: Path, *, whole: bool, outer: Draft | None = None) -> Draft:
        """Returns the machine in a document (`whole`) or in an inline template."""
        base = table.get("extends")
        draft = self.other(reader, base, directory, "extends") if base else Draft()
        if outer:
            draft.speeds = {**outer.speeds, **draft.speeds}
        draft.speeds |= _speeds(reader, table.get("speeds"))
        if model := table.get("gpu_model"):
            draft.gpu_model = reader.model_name(model)
        if assumes := table.get("assumes"):
            hint = "`assumes` lists the kinds of links that `collc probe` assumed, such as [net]"
            for node in reader.items(assumes, hint).items:
                draft.assumes[reader.kind(node, reader.text(node, hint))] = None
        kinds: dict[str, list[str]] = {}
        if whole and (table.get("template") or table.get("templates")):
            kinds = self.expand(reader, table, directory, draft)
        for key, kind in _VERTEX_KEYS.items():
            _add_vertices(reader, draft, key, kind, table.get(key))
        _remove(reader, draft, table.get("remove"))
        draft.begin_links()
        _add_links(reader, draft, table.get("links"), kinds)
        if whole and not kinds:
            _set_servers(reader, draft, table.get("servers"))
        add_devices(reader, draft, table.get("devices"), table)
        return draft

    def other(self, reader: Reader, node: Node, directory: Path, key: str) -> Draft:
        """Returns the machine of the file, or of the zoo name, that `extends` or `template` gives."""
        source = reader.text(node, f"`{key}` is a file or the name of a machine")
        at = reader.at(node)
        text, where, folder = _fetch(source, directory, at)
        resolved = str(Path(where).resolve())
        chain = [str(Path(c).resolve()) for c in self.chain]
        if resolved in chain:
            reader.fail(f"`{key}: {source}` leads back to a file that is being read", node, "break the cycle")
        if len(chain) >= MAX_EXTENDS:
            reader.fail(f"more than {MAX_EXTENDS} files build on each other", node, "flatten some of them")
        return Draft.of(_Loader((*self.chain, where)).document(text, where, folder))

    def expand(self, reader: Reader, table: Table, directory: Path, draft: Draft) -> dict[str, list[str]]:
        """Adds a copy of the template for each server, with vertices ``server.vertex``. Returns the servers by kind."""
        kinds: dict[str, list[str]] = {}
        models = []
        for kind, template, names in _templates(reader, table):
            if isinstance(template, Table):
                reader.known_keys(template, _BODY_KEYS)
                part = self.body(reader, template, directory, whole=False, outer=draft)
            else:
                part = self.other(reader, template, directory, "template")
            _check_size(reader, template, draft, part, len(names))
            for name in names:
                problem = draft.add_server(name, part)
                if problem:
                    reader.fail(problem, template, "choose another name for the server")
            kinds[kind] = names
            models.append(part.gpu_model)
        # GPUs of different models have no common name.
        if draft.gpu_model is None and len(set(models)) == 1:
            draft.gpu_model = models[0]
        return kinds


def _check_size(reader: Reader, template: Node, draft: Draft, part: Draft, servers: int) -> None:
    """Checks the number of vertices and links before they are created, because a few words can mean millions."""
    for what, before, each, most in (
        ("vertices", len(draft.vertices), len(part.vertices), MAX_VERTICES),
        ("links", len(draft.links), len(part.links), MAX_LINKS),
    ):
        number = before + servers * each
        if number > most:
            problem = f"{servers} servers of {each} {what} are {number}, more than {most}"
            reader.fail(problem, template, "take fewer servers")


def _default_name(where: str) -> str:
    stem = Path(where).stem
    return "topology" if name_problem(stem) else stem


def _speeds(reader: Reader, node: Node | None) -> dict[LinkKind, Speed]:
    """Returns the default speeds of links: `speeds: {nvlink: 25, pcie: {gbps: 12, latency_us: 1}}`."""
    if node is None:
        return {}
    table = reader.table(node, "`speeds` maps a kind of link to GB/s, for example {nvlink: 25}")
    return {reader.kind(key, key.text): reader.speed(value) for key, value in table.entries}


def _add_vertices(reader: Reader, draft: Draft, key: str, kind: VertexKind, node: Node | None) -> None:
    if node is None:
        return
    if kind is VertexKind.GPU and isinstance(node, Scalar) and node.plain:
        names = [f"gpu{i}" for i in range(reader.count(node, "gpus", MAX_VERTICES))]
        found: list[tuple[Node, Vertex]] = [(node, Vertex(name, kind)) for name in names]
    else:
        items = reader.items(node, f"`{key}` is a list of names" + (" or a number" if key == "gpus" else ""))
        found = [(item, reader.vertex(item, kind)) for item in items.items]
        if kind is VertexKind.GPU and not found:
            reader.fail("`gpus` is empty", node, "a topology needs at least one GPU")
    for item, vertex in found:
        if vertex.name in draft.vertices:
            reader.fail(f"the name `{vertex.name}` is given twice", item, "names are unique over all kinds")
        if len(draft.vertices) >= MAX_VERTICES:
            reader.fail(f"more than {MAX_VERTICES} vertices", item, "no machine is that large")
        draft.add_vertex(vertex)


def _remove(reader: Reader, draft: Draft, node: Node | None) -> None:
    """Removes vertices and links of the base: `remove: [nic0, [gpu0, gpu3], [gpu0, gpu4, nvlink]]`."""
    if node is None:
        return
    gone: set[str] = set()

    def known(end: Node) -> str:
        name = _known(reader, draft, end)
        if name in gone:
            reader.fail(f"`{name}` is removed already", end, "remove it once; its links go with it")
        return name

    for item in reader.items(node, "`remove` is a list of names and of pairs").items:
        if isinstance(item, Scalar):
            gone.add(known(item))
            continue
        pair = reader.items(item, "a link to remove is [one end, other end] or [one end, other end, kind]")
        if not 2 <= len(pair.items) <= 3:
            reader.fail("a link to remove is [one end, other end] or [one end, other end, kind]", item)
        a, b = (known(end) for end in pair.items[:2])
        kind = reader.kind(pair.items[2], reader.text(pair.items[2], "a kind of link")) if pair.items[2:] else None
        if not draft.remove_links(a, b, kind):
            reader.fail(f"there is no such link between {a} and {b} to remove", item)
    draft.remove_vertices(gone)


def _add_links(reader: Reader, draft: Draft, node: Node | None, kinds: Mapping[str, list[str]]) -> None:
    if node is None:
        return
    hint = "`links` is a list of {between: [a, b], kind: nvlink, gbps: 25} or [a, b, nvlink x2]"
    for item in reader.items(node, hint).items:
        spec = reader.link(item, draft.speeds)
        for a, b in _ends(reader, draft, spec, kinds):
            src, dst = _known(reader, draft, spec.a, a), _known(reader, draft, spec.b, b)
            if src == dst:
                reader.fail(f"{src} is linked to itself", item, "a link joins two different vertices")
            if len(draft.links) >= MAX_LINKS:
                reader.fail(f"more than {MAX_LINKS} links", item, "no machine is that large")
            for one, other in [(src, dst), (dst, src)] if spec.both else [(src, dst)]:
                before = draft.add_link(one, other, spec.kind, spec.speed, spec.line)
                if before:
                    hint = f"first on line {before}; for several links of one kind write one with `count`"
                    reader.fail(f"the {spec.kind.value} link {one} -> {other} is given twice", item, hint)


def _ends(reader: Reader, draft: Draft, spec: LinkSpec, kinds: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yields the ends of a link; with `each.` one pair per server, except servers without an end due to `remove`."""
    ends = (spec.a.text, spec.b.text)
    if not any(end.startswith(EACH) for end in ends):
        yield ends
        return
    if not kinds:
        reader.fail(f"`{EACH}` stands for every server of a template, and there is none", spec.a, "add `template`")
    # `each.KIND.nic0` means nic0 of the servers of one kind.
    meant = {end.removeprefix(EACH).partition(".")[0] for end in ends if end.startswith(EACH)} & set(kinds)
    if len(meant) > 1:
        reader.fail("a link cannot join each server of two kinds", spec.a, "write the links one by one")
    kind = f"{EACH}{meant.pop()}." if meant else EACH
    servers = kinds[kind.split(".")[1]] if kind != EACH else [name for names in kinds.values() for name in names]
    for server in servers:
        one, other = (
            f"{server}.{end.removeprefix(kind).removeprefix(EACH)}" if end.startswith(EACH) else end for end in ends
        )
        if one not in draft.removed and other not in draft.removed:
            yield one, other


def _known(reader: Reader, draft: Draft, node: Node, text: str | None = None) -> str:
    name = text if text is not None else reader.name(node, "name")
    if name not in draft.vertices:
        reader.unknown(f"no vertex is called `{name}`", node, name, draft.vertices)
    return name


def _templates(reader: Reader, table: Table) -> Iterator[tuple[str, Node, list[str]]]:
    """Yields for each kind of server its name ("" if it has none), its template, and the names of its servers."""
    template, templates, servers = table.get("template"), table.get("templates"), table.get("servers")
    if template is not None:
        if templates is not None:
            reader.fail("`template` and `templates` are both there", templates, "write all kinds under `templates`")
        yield "", template, _server_names(reader, servers, template)
        return
    assert templates is not None
    hint = "`templates` and `servers` map each kind of server to its template and to its servers"
    if servers is None:
        reader.fail("`templates` needs `servers`", templates, hint)
    known, named = reader.table(templates, hint), reader.table(servers, hint)
    for key, _ in named.entries:
        if known.get(key.text) is None:
            reader.unknown(f"no template is called `{key.text}`", key, key.text, [k.text for k, _ in known.entries])
    kinds = {reader.name(key, "kind of server"): value for key, value in known.entries}
    taken = set(kinds)
    for kind, value in kinds.items():
        node = named.get(kind)
        names = _server_names(reader, node, value, f"{kind}-") if node is not None else []
        for name in names:
            if name in taken or "." in kind:
                reader.fail(f"`{name}` cannot be the name of this server", value, "servers and kinds have unique names")
        taken.update(names)
        yield kind, value, names


def _server_names(reader: Reader, node: Node | None, template: Node, prefix: str = "server") -> list[str]:
    hint = "with a template, `servers` is how many there are, or a list of their names"
    if node is None:
        reader.fail("`template` needs `servers`", template, hint)
    if isinstance(node, Scalar) and node.plain:
        return [f"{prefix}{i}" for i in range(reader.count(node, "servers", MAX_SERVERS))]
    names = [reader.name(item, "server name") for item in reader.items(node, hint).items]
    if not names:
        reader.fail("`servers` is empty", node, hint)
    if len(names) > MAX_SERVERS:
        reader.fail(f"{len(names)} servers are more than {MAX_SERVERS}", node, "no cluster is that large")
    before: set[str] = set()
    for name in names:
        if name in before or f"{name}." == EACH:
            reader.fail(f"`{name}` cannot be the name of this server", node, "names are unique, and `each` is reserved")
        before.add(name)
    return names


def _set_servers(reader: Reader, draft: Draft, node: Node | None) -> None:
    if node is None:
        return
    hint = "`servers` maps a server to its vertices, for example {server0: [gpu0, gpu1]}"
    table = reader.table(node, hint)
    owner: dict[str, str] = {}
    servers: dict[str, tuple[str, ...]] = {}
    for key, value in table.entries:
        server = reader.name(key, "server name")
        members = [(_known(reader, draft, item), item) for item in reader.items(value, hint).items]
        if not members:
            reader.fail(f"server {server} is empty", key, hint)
        for member, item in members:
            if member in owner:
                reader.fail(f"{member} is in {owner[member]} and again in {server}", item, "a vertex has one server")
            owner[member] = server
        servers[server] = tuple(member for member, _ in members)
    if not servers:
        reader.fail("`servers` is empty", node, hint)
    for vertex in draft.vertices.values():
        if vertex.kind is VertexKind.GPU and vertex.name not in owner:
            reader.fail(f"{vertex.name} is in no server", node, "list every GPU under one of `servers`")
    draft.servers = servers
