"""Reads model files (`collc-net/1`), YAML with layers, the bytes of their gradients and times of backward passes.

format: collc-net/1
name: small
source: who measured it, where
gpu: v100
forward_us: 900
layers:
  - [conv1, 37632, 410.5]       # name, bytes of its gradient, microseconds of its backward pass
  - [fc, 8196000, 60]
"""

from __future__ import annotations

import math
from pathlib import Path

from collc.errors import CollcError, TopologyError, UsageError
from collc.inputs import read_input
from collc.simulator.generations import MACHINES
from collc.topology.fields import Reader
from collc.topology.yamltree import MAX_BYTES, Items, Node, Scalar, Table, decode, parse
from collc.training.net import BUCKET_BYTES, FIRST_BUCKET_BYTES, Layer, Net

FORMAT = "collc-net/1"
NETS = Path(__file__).parent / "nets"
# Larger values are mistakes: a gradient of a petabyte, a pass of an hour, a name of a line.
_MOST_BYTES, _MOST_US, _MOST_NAME = 1 << 50, 3.6e9, 80
_MOST_LAYERS = 100_000
_KEYS = ("format", "name", "source", "gpu", "forward_us", "layers", "times_on", "bucket_bytes", "first_bucket_bytes")
_LAYER = "write [name, bytes of its gradient, microseconds of its backward pass]"
_SEE = "docs/simulate.md describes model files"


def names() -> tuple[str, ...]:
    """Returns the names of the models that come with collc, sorted."""
    return tuple(sorted(path.stem for path in NETS.glob("*.yaml")))


def read_net(path: Path | str) -> Net:
    """Returns the model of a file, or the model of `names` if no such file exists.

    Raises:
        CollcError: the file cannot be read.
        UsageError: a value is missing, unknown or out of range. The error names the line.
    """
    where = str(path)
    file = Path(path)
    if not file.exists() and where in names():
        file = NETS / f"{where}.yaml"
    try:
        data = read_input(file, limit=MAX_BYTES)
    except OSError as error:
        hint = f"name a file, or one of {', '.join(names())}"
        raise CollcError(f"cannot read: {error.strerror}", where=where, hint=hint) from None
    try:
        return _net(_Fields(where), parse(decode(data, where), where))
    except TopologyError as error:
        hint = _SEE if error.hint is None or "topology" in error.hint else error.hint
        raise UsageError(error.what, where=error.where, hint=hint) from None


class _Fields(Reader):
    """The reader of topology files, with methods for model files."""

    def number(self, node: Node, what: str, most: float, *, least: float = 0.0) -> float:
        """Returns a number from `least` to `most`."""
        text = node.text if isinstance(node, Scalar) else ""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            self.fail(f"{what} cannot be {text[:40] or 'a list'!r}", node)
        return value

    def whole(self, node: Node, what: str, least: int) -> int:
        """Returns a whole number of bytes."""
        value = self.number(node, what, _MOST_BYTES, least=least)
        if value != int(value):
            self.fail(f"{what} cannot be a part of a byte", node)
        return int(value)

    def word(self, node: Node, what: str, most: int = _MOST_NAME) -> str:
        """Returns a text of one line."""
        text = node.text if isinstance(node, Scalar) else ""
        if not text or len(text) > most or not text.isprintable():
            self.fail(f"{what} is a text of one line of at most {most} characters", node)
        return text


def _net(reader: _Fields, node: Node) -> Net:
    table = reader.table(node, _SEE)
    kind = table.get("format")
    if not isinstance(kind, Scalar) or kind.text != FORMAT:
        reader.fail(f"this is no model file: it does not begin with format: {FORMAT}", table)
    reader.known_keys(table, _KEYS)
    found = {key.text: value for key, value in table.entries}
    for key in ("name", "gpu", "forward_us", "layers"):
        if key not in found:
            reader.fail(f"{key} is missing", table)
    layers = reader.items(found["layers"], _LAYER).items
    if not 1 <= len(layers) <= _MOST_LAYERS:
        reader.fail(f"a model has 1 to {_MOST_LAYERS} layers, not {len(layers)}", found["layers"])
    made = tuple(_layer(reader, layer) for layer in layers)
    if not any(layer.gradient_bytes for layer in made):
        reader.fail("no layer has a gradient", found["layers"])
    sizes = {"bucket_bytes": BUCKET_BYTES, "first_bucket_bytes": FIRST_BUCKET_BYTES}
    sizes |= {key: reader.whole(found[key], key, 1) for key in sizes if key in found}
    return Net(
        reader.word(found["name"], "name"),
        reader.word(found["source"], "source", 2000) if "source" in found else "",
        _generation(reader, found["gpu"]),
        reader.number(found["forward_us"], "forward_us", _MOST_US),
        made,
        _times_on(reader, found.get("times_on")),
        sizes["bucket_bytes"],
        sizes["first_bucket_bytes"],
    )


def _layer(reader: _Fields, node: Node) -> Layer:
    if not isinstance(node, Items) or len(node.items) != 3:
        reader.fail("this is no layer", node, _LAYER)
    name, size, time = node.items
    return Layer(
        reader.word(name, "the name of a layer"),
        reader.whole(size, "the bytes of a gradient", 0),
        reader.number(time, "a time", _MOST_US),
    )


def _generation(reader: _Fields, node: Node) -> str:
    text = reader.word(node, "gpu")
    if text not in MACHINES:
        reader.fail(f"no parameters for gpu {text!r}: choose one of {', '.join(MACHINES)}", node)
    return text


def _times_on(reader: _Fields, node: Node | None) -> dict[str, float]:
    """Returns the factors of `times_on`. `times_on: {p100: 1.5}` means that all times are 1.5 times as long there."""
    if node is None:
        return {}
    if not isinstance(node, Table):
        reader.fail("times_on maps generations to factors", node)
    return {_generation(reader, key): reader.number(value, "a factor", 1e3, least=1e-3) for key, value in node.entries}
