"""Topology files: both forms, templates, and that everything wrong is one line with file and line number."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collc.errors import CollcError, TopologyError
from collc.topology import zoo
from collc.topology.dump import dumps_topology
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import Link, LinkKind, Topology, Vertex, VertexKind
from collc.topology.names import decimal_text, name_problem, parse_decimal

HEAD = "format: collc-topology/1\nname: box\n"
LONG = (
    HEAD
    + """gpus: 4                      # gpu0..gpu3
switches: [nvs0, {name: nvs1, multicast: true, reduce: true}]
cpus: [cpu0]
nics: [nic0]
servers: {server0: [gpu0, gpu1, nvs0], server1: [gpu2, gpu3, nvs1]}
links:
  - {from: gpu0, to: gpu1, kind: nvlink, gbps: 25}
  - {between: [gpu1, nvs0], kind: nvswitch, gbps: 150, latency_us: 0.5}
  - {between: [gpu2, gpu3], kind: nvlink, gbps: 25, count: 2}
"""
)


def test_long_form() -> None:
    topology = loads_topology(LONG)
    assert topology.name == "box"
    assert [v.name for v in topology.vertices] == ["gpu0", "gpu1", "gpu2", "gpu3", "nvs0", "nvs1", "cpu0", "nic0"]
    assert topology.vertices[5] == Vertex("nvs1", VertexKind.SWITCH, multicast=True, reduce=True)
    assert topology.servers == {"server0": ("gpu0", "gpu1", "nvs0"), "server1": ("gpu2", "gpu3", "nvs1")}
    half = Fraction(1, 2)
    assert topology.links == (
        Link("gpu0", "gpu1", LinkKind.NVLINK, Fraction(25)),
        Link("gpu1", "nvs0", LinkKind.NVSWITCH, Fraction(150), half),
        Link("nvs0", "gpu1", LinkKind.NVSWITCH, Fraction(150), half),
        Link("gpu2", "gpu3", LinkKind.NVLINK, Fraction(50)),
        Link("gpu3", "gpu2", LinkKind.NVLINK, Fraction(50)),
    )


def test_short_forms() -> None:
    text = HEAD + "gpus: [a, b, c]\nspeeds: {nvlink: 25, pcie: {gbps: 12.5, latency_us: 1}}\nlinks:\n"
    text += "  - [a, b, nvlink x2]\n  - [b, c, nvlink]\n  - [a, c, pcie]\n  - [a, c, nvlink x3, 20]\n"
    links = {(k.src, k.dst, k.kind.value): (k.gbps, k.latency_us) for k in loads_topology(text).links}
    assert links["b", "a", "nvlink"] == (Fraction(50), Fraction(0))
    assert links["b", "c", "nvlink"] == (Fraction(25), Fraction(0))
    assert links["c", "a", "pcie"] == (Fraction(25, 2), Fraction(1))
    assert links["a", "c", "nvlink"] == (Fraction(60), Fraction(0))


@pytest.mark.parametrize(("text", "value"), [("1e-3", "1/1000"), ("0.1", "1/10"), ("12.5", "25/2"), ("1E+2", "100")])
def test_speeds_are_exact(text: str, value: str) -> None:
    topology = loads_topology(HEAD + f"gpus: 2\nlinks: [{{from: gpu0, to: gpu1, kind: nvlink, gbps: {text}}}]\n")
    assert topology.links[0].gbps == Fraction(value)


def test_one_server_by_default() -> None:
    topology = loads_topology(HEAD + "gpus: 2\ncpus: [cpu0]\n")
    assert topology.servers == {"server0": ("gpu0", "gpu1", "cpu0")}


def test_servers_from_a_template() -> None:
    text = HEAD + "servers: [a, b]\ntemplate:\n  gpus: 2\n  nics: [nic0]\n  speeds: {nvlink: 25, pcie: 12}\n  links:\n"
    text += (
        "    - [gpu0, gpu1, nvlink]\n    - [gpu0, nic0, pcie]\nswitches: [net0]\nlinks: [[each.nic0, net0, net, 25]]\n"
    )
    topology = loads_topology(text)
    assert [v.name for v in topology.gpus] == ["a.gpu0", "a.gpu1", "b.gpu0", "b.gpu1"]
    assert topology.servers == {"a": ("a.gpu0", "a.gpu1", "a.nic0"), "b": ("b.gpu0", "b.gpu1", "b.nic0")}
    net = [(k.src, k.dst) for k in topology.links if k.kind is LinkKind.NET]
    assert net == [("a.nic0", "net0"), ("net0", "a.nic0"), ("b.nic0", "net0"), ("net0", "b.nic0")]
    assert loads_topology(dumps_topology(topology)) == topology


def test_template_by_name() -> None:
    topology = loads_topology(HEAD + "template: dgx1v\nservers: 3\n")
    assert len(topology.gpus) == 24
    assert list(topology.servers) == ["server0", "server1", "server2"]


def test_extends_adds_changes_and_removes(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(LONG)
    child = HEAD.replace("box", "child") + "extends: base.yaml\nremove: [nic0, [gpu0, gpu1], [gpu3, gpu2, nvlink]]\n"
    child += "gpus: [extra]\nservers: {s: [gpu0, gpu1, gpu2, gpu3, extra]}\n"
    child += "links:\n  - {between: [nvs0, gpu1], kind: nvswitch, gbps: 100}\n  - [extra, gpu0, nvlink, 5]\n"
    (tmp_path / "child.yaml").write_text(child)
    topology = load_topology(tmp_path / "child.yaml")
    assert topology.name == "child"
    assert [v.name for v in topology.gpus] == ["gpu0", "gpu1", "gpu2", "gpu3", "extra"]
    assert not any(v.kind is VertexKind.NIC for v in topology.vertices)
    speeds = {(k.src, k.dst): k.gbps for k in topology.links}
    assert speeds == {("gpu1", "nvs0"): 100, ("nvs0", "gpu1"): 100, ("extra", "gpu0"): 5, ("gpu0", "extra"): 5}


def test_removing_takes_as_long_as_reading(tmp_path: Path) -> None:
    """Each entry removes one vertex or link of a large base. A removal does not search all links."""
    names = [f"n{i}" for i in range(6000)]
    links = "".join(f"  - {{between: [gpu0, {name}], kind: pcie, gbps: 12}}\n" for name in names)
    (tmp_path / "base.yaml").write_text(f"{HEAD}gpus: 1\nnics: [{', '.join(names)}]\nlinks:\n{links}")
    gone = "".join(f"  - {name}\n" if i % 2 else f"  - [gpu0, {name}]\n" for i, name in enumerate(names))
    (tmp_path / "child.yaml").write_text(f"{HEAD}extends: base.yaml\nremove:\n{gone}")
    seconds = []
    for file in ("base.yaml", "child.yaml"):
        start = time.process_time()
        topology = load_topology(tmp_path / file)
        seconds.append(time.process_time() - start)
    assert not topology.links
    assert len(topology.vertices) == 3001
    assert seconds[1] < 5 * seconds[0]


def test_a_file_comes_before_a_known_machine_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(load_topology("dgx1v").gpus) == 8
    (tmp_path / "dgx1v").write_text(HEAD + "gpus: 3\n")
    assert len(load_topology("dgx1v").gpus) == 3


def test_the_name_is_the_file_where_it_is_not_given(tmp_path: Path) -> None:
    (tmp_path / "lab-7.yaml").write_text("format: collc-topology/1\ngpus: 1\n")
    assert load_topology(tmp_path / "lab-7.yaml").name == "lab-7"


LINKS = HEAD + "gpus: 2\nlinks:\n"
ONE = "  - {between: [gpu0, gpu1], kind: nvlink, gbps: 25}\n"

# (what is in the file, line of the error, a word of the message)
WRONG = {
    "empty": ("", 1, "empty"),
    "only a comment": ("# nothing\n", 1, "empty"),
    "a list": ("- a\n", 1, "mapping"),
    "a word": ("hello\n", 1, "mapping"),
    "no format": ("name: box\ngpus: 2\n", 1, "`format` is missing"),
    "other format": ("format: collc-topology/2\nname: box\n", 1, "not a format"),
    "format a list": ("format: [1]\n", 1, "not a format"),
    "unknown key": (HEAD + "gpu: 2\n", 3, "did you mean `gpus`?"),
    "unknown link key": (LINKS + "  - {between: [gpu0, gpu1], kind: nvlink, gpbs: 2}\n", 5, "did you mean `gbps`?"),
    "no gpus": (HEAD + "switches: [s]\n", 1, "no GPU"),
    "zero gpus": (HEAD + "gpus: 0\n", 3, "1 to 65536"),
    "negative gpus": (HEAD + "gpus: -1\n", 3, "whole number"),
    "absurd gpus": (HEAD + "gpus: 99999999999999\n", 3, "whole number"),
    "gpus a mapping": (HEAD + "gpus: {a: b}\n", 3, "list"),
    "gpus empty": (HEAD + "gpus: []\n", 3, "empty"),
    "gpu twice": (HEAD + "gpus: [a, b, a]\n", 3, "twice"),
    "name of two kinds": (HEAD + "gpus: [a]\nnics: [a]\n", 4, "twice"),
    "numeric name": (HEAD + "gpus: [0, 1]\n", 3, "ambiguous"),
    "null name": (HEAD + "gpus: [~]\n", 3, "word"),
    "long name": (HEAD + f"gpus: [{'a' * 65}]\n", 3, "64"),
    "quote in a name": (HEAD + "gpus: ['a\"b']\n", 3, "may only have"),
    "newline in a name": (HEAD + 'gpus: ["a\\nb"]\n', 3, "may only have"),
    "template in a name": (HEAD + "gpus: ['{{ x }}']\n", 3, "may only have"),
    "comment end in a name": (HEAD + "gpus: ['*/ x']\n", 3, "may only have"),
    "hostile topology name": ("format: collc-topology/1\nname: 'x\"; system(\"id'\ngpus: 1\n", 2, "may only have"),
    "path as a name": ("format: collc-topology/1\nname: ../../etc\ngpus: 1\n", 2, "may only have"),
    "unicode name": (HEAD + "gpus: [gpü]\n", 3, "may only have"),
    "gbps nan": (LINKS + ONE.replace("25", ".nan"), 5, "decimal"),
    "gbps NaN": (LINKS + ONE.replace("25", "NaN"), 5, "decimal"),
    "gbps inf": (LINKS + ONE.replace("25", "inf"), 5, "decimal"),
    "gbps zero": (LINKS + ONE.replace("25", "0"), 5, "1e-6 to 1e7"),
    "gbps zeros": (LINKS + ONE.replace("25", "0.000e5"), 5, "1e-6 to 1e7"),
    "gbps negative": (LINKS + ONE.replace("25", "-25"), 5, "decimal"),
    "gbps tiny": (LINKS + ONE.replace("25", "1e-7"), 5, "1e-6 to 1e7"),
    "gbps absurd": (LINKS + ONE.replace("25", "1e8"), 5, "1e-6 to 1e7"),
    "gbps beyond floats": (LINKS + ONE.replace("25", "1e999999999"), 5, "decimal"),
    "gbps hex": (LINKS + ONE.replace("25", "0x19"), 5, "decimal"),
    "gbps base 60": (LINKS + ONE.replace("25", "1:30"), 5, "decimal"),
    "gbps underscore": (LINKS + ONE.replace("25", "1_000"), 5, "decimal"),
    "gbps word": (LINKS + ONE.replace("25", "fast"), 5, "decimal"),
    "gbps a list": (LINKS + ONE.replace("25", "[25]"), 5, "a list"),
    "gbps missing": (LINKS + "  - {between: [gpu0, gpu1], kind: nvlink}\n", 5, "speeds"),
    "gbps empty": (LINKS + ONE.replace("25", ""), 5, "decimal"),
    "latency negative": (LINKS + ONE.replace("25", "25, latency_us: -1"), 5, "latency_us"),
    "latency absurd": (LINKS + ONE.replace("25", "25, latency_us: 1e8"), 5, "latency_us"),
    "count zero": (LINKS + ONE.replace("25", "25, count: 0"), 5, "count"),
    "count fraction": (LINKS + ONE.replace("25", "25, count: 1.5"), 5, "whole number"),
    "count absurd": (LINKS + ONE.replace("25", "25, count: 1001"), 5, "1 to 1000"),
    "no kind": (LINKS + "  - {between: [gpu0, gpu1], gbps: 25}\n", 5, "no `kind`"),
    "unknown kind": (LINKS + ONE.replace("nvlink", "nvlnk"), 5, "did you mean `nvlink`?"),
    "dangling": (LINKS + ONE.replace("gpu1", "gpu7"), 5, "no vertex is called `gpu7`"),
    "self link": (LINKS + ONE.replace("gpu1", "gpu0"), 5, "itself"),
    "pair twice": (LINKS + ONE + ONE, 6, "first on line 5"),
    "pair twice turned": (LINKS + ONE + "  - [gpu1, gpu0, nvlink, 25]\n", 6, "first on line 5"),
    "one way twice": (LINKS + ONE + "  - {from: gpu1, to: gpu0, kind: nvlink, gbps: 1}\n", 6, "first on line 5"),
    "between of three": (LINKS + "  - {between: [gpu0, gpu1, gpu0], kind: nvlink, gbps: 25}\n", 5, "not 3"),
    "between and from": (LINKS + "  - {between: [gpu0, gpu1], from: gpu0, kind: nvlink, gbps: 25}\n", 5, "either"),
    "from without to": (LINKS + "  - {from: gpu0, kind: nvlink, gbps: 25}\n", 5, "either"),
    "link a word": (LINKS + "  - gpu0\n", 5, "short form"),
    "links a mapping": (HEAD + "gpus: 2\nlinks: {a: b}\n", 4, "list"),
    "short of two": (LINKS + "  - [gpu0, gpu1]\n", 5, "short form"),
    "short with a bad count": (LINKS + "  - [gpu0, gpu1, nvlink x, 25]\n", 5, "short form"),
    "short without speed": (LINKS + "  - [gpu0, gpu1, nvlink]\n", 5, "speeds"),
    "speeds of no kind": (HEAD + "speeds: {nvlinks: 25}\ngpus: 1\n", 3, "did you mean `nvlink`?"),
    "speeds a number": (HEAD + "speeds: 25\ngpus: 1\n", 3, "mapping"),
    "switch flag a word": (HEAD + "gpus: 1\nswitches: [{name: s, multicast: maybe}]\n", 4, "true or false"),
    "switch without name": (HEAD + "gpus: 1\nswitches: [{multicast: true}]\n", 4, "no name"),
    "gpu with flags": (HEAD + "gpus: [{name: a, multicast: true}]\n", 3, "only switches"),
    "server with a stranger": (HEAD + "gpus: 1\nservers: {s: [gpu0, gpu9]}\n", 4, "gpu9"),
    "vertex of two servers": (HEAD + "gpus: 1\nservers: {s: [gpu0], t: [gpu0]}\n", 4, "again in t"),
    "gpu of no server": (HEAD + "gpus: 2\nservers: {s: [gpu0]}\n", 4, "gpu1 is in no server"),
    "servers a number": (HEAD + "gpus: 2\nservers: 2\n", 4, "mapping"),
    "server empty": (HEAD + "gpus: 2\nservers: {s: []}\n", 4, "empty"),
    "key twice": (HEAD + "gpus: 2\nname: other\n", 4, "given twice, first on line 2"),
    "link key twice": (LINKS + "  - {between: [gpu0, gpu1], kind: nvlink, gbps: 25, gbps: 26}\n", 5, "given twice"),
    "two documents": (HEAD + "gpus: 2\n---\n" + HEAD, 4, "second document"),
    "alias": (HEAD + "gpus: &a [x]\nnics: *a\n", 3, "anchors"),
    "tag": (HEAD + "gpus: !!python/object/apply:os.system [id]\n", 3, "tags"),
    "list as a key": (HEAD + "? [a, b]\n: c\n", 3, "key"),
    "tab": (HEAD + "links:\n\t- a\n", 4, "spaces, not tabs"),
    "unclosed": (HEAD + "gpus: [a, b\n", 4, "not YAML"),
    "control character": (HEAD + "gpus: [a\x01]\n", 3, "control character"),
    "extends itself nowhere": (HEAD + "extends: no-such-file\n", 3, "no file and no known machine"),
    "template without servers": (HEAD + "template: dgx1v\n", 3, "needs `servers`"),
    "template with a server mapping": (HEAD + "template: dgx1v\nservers: {a: [b]}\n", 4, "list"),
    "each without template": (LINKS + "  - [each.gpu0, gpu1, nvlink, 25]\n", 5, "template"),
    "each of a stranger": (HEAD + "template: dgx1v\nservers: 2\nswitches: [s]\nlinks: [[each.x, s, net, 1]]\n", 6, "x"),
    "too many vertices": (HEAD + "template: {gpus: 4096}\nservers: 4096\n", 3, "more than"),
    "remove a stranger": (HEAD + "extends: dgx1v\nremove: [gpu8]\n", 4, "gpu8"),
    "remove twice": (HEAD + "extends: dgx1v\nremove: [gpu1,\n  gpu1]\n", 5, "removed already"),
    "remove a link of what is removed": (
        HEAD + "extends: dgx1v\nremove:\n  - gpu1\n  - [gpu0, gpu1]\n",
        6,
        "removed already",
    ),
    "remove a link twice": (
        HEAD + "extends: dgx1v\nremove:\n  - [gpu0, gpu1]\n  - [gpu1, gpu0]\n",
        6,
        "no such link",
    ),
    "remove no link": (HEAD + "extends: dgx1v\nremove: [[gpu0, gpu7]]\n", 4, "no such link"),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_wrong_files_are_one_line_with_file_and_line(case: str, tmp_path: Path) -> None:
    text, line, word = WRONG[case]
    path = tmp_path / "box.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TopologyError) as caught:
        load_topology(path)
    assert caught.value.where == f"{path}:{line}"
    message = str(caught.value)
    assert word in message
    assert "\n" not in message
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("data", "line", "word"),
    [
        (b"format: collc-topology/1\nname: b\xffx\n", 2, "UTF-8"),
        ("format: collc-topology/1\n".encode("utf-16"), 1, "UTF-8"),
        (b"\x7fELF\x02\x01\x01\x00\x00\n", 1, "control character"),
    ],
)
def test_bytes_that_are_no_text(data: bytes, line: int, word: str, tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    path.write_bytes(data)
    with pytest.raises(TopologyError, match=word) as caught:
        load_topology(path)
    assert caught.value.where == f"{path}:{line}"


@pytest.mark.parametrize("unit", ["[", "{a: ", "- ", "? ", "[[", "{", "- [", '"', "&a [", "a: {"])
@pytest.mark.parametrize("size", [7_000_000, 10_000_000])
def test_bombs_end_quickly(unit: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(unit * (size // len(unit)))
    started = time.monotonic()
    with pytest.raises(TopologyError) as caught:
        load_topology(path)
    assert time.monotonic() - started < 20
    assert str(path) in str(caught.value)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="did you mean `dgx1v`"):
        load_topology("dgx1w")
    with pytest.raises(TopologyError, match="directory"):
        load_topology(tmp_path)
    with pytest.raises(TopologyError, match="no file"):
        load_topology(tmp_path / "none.yaml")
    with pytest.raises(TopologyError):
        load_topology("nul\0byte")


def test_cycles_of_extends(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(HEAD + "extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text(HEAD + "template: a.yaml\nservers: 2\n")
    with pytest.raises(TopologyError, match="leads back"):
        load_topology(tmp_path / "a.yaml")
    (tmp_path / "self.yaml").write_text(HEAD + "extends: self.yaml\n")
    with pytest.raises(TopologyError, match="leads back"):
        load_topology(tmp_path / "self.yaml")


def test_long_chains_of_extends(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"f{i}.yaml").write_text(HEAD + f"extends: f{i + 1}.yaml\n")
    with pytest.raises(TopologyError, match="build on each other"):
        load_topology(tmp_path / "f0.yaml")


def test_an_error_in_a_base_names_the_base(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(HEAD + "gpus: 2\nbad: 1\n")
    (tmp_path / "top.yaml").write_text(HEAD + "extends: base.yaml\n")
    with pytest.raises(TopologyError) as caught:
        load_topology(tmp_path / "top.yaml")
    assert caught.value.where == f"{tmp_path / 'base.yaml'}:4"


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:+@-]{0,20}", fullmatch=True).filter(lambda n: name_problem(n) is None)
SPEEDS = st.integers(1, 10**12).map(lambda n: Fraction(n, 10**6))


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    names = draw(st.lists(NAMES, min_size=1, max_size=7, unique=True))
    kinds = [VertexKind.GPU, *(draw(st.sampled_from(list(VertexKind))) for _ in names[1:])]
    flags = [draw(st.booleans()) and kind is VertexKind.SWITCH for kind in kinds]
    vertices = [Vertex(n, k, f, f) for n, k, f in zip(names, kinds, flags, strict=True)]
    vertices.sort(key=lambda v: list(VertexKind).index(v.kind))
    keys = draw(
        st.lists(
            st.tuples(st.sampled_from(names), st.sampled_from(names), st.sampled_from(list(LinkKind))).filter(
                lambda key: key[0] != key[1]
            ),
            unique=True,
            max_size=8,
        )
        if len(names) > 1
        else st.just([])
    )
    links = tuple(
        Link(a, b, kind, draw(SPEEDS), draw(st.sampled_from([Fraction(0), Fraction(1, 8)]))) for a, b, kind in keys
    )
    everything = tuple(v.name for v in vertices)
    servers = {"server0": everything}
    if draw(st.booleans()):
        servers = {draw(NAMES): everything}
    return Topology(
        draw(NAMES), tuple(vertices), links, servers, tuple(draw(st.lists(st.text(max_size=30), max_size=2)))
    )


@settings(max_examples=150, deadline=None)
@given(topologies())
def test_dump_and_load_are_inverse(topology: Topology) -> None:
    text = dumps_topology(topology)
    assert loads_topology(text) == topology
    assert dumps_topology(loads_topology(text)) == "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith("#")
    )


def test_sums_beyond_the_limit_of_one_link_are_dumped_as_several() -> None:
    text = HEAD + "gpus: 2\nlinks: [[gpu0, gpu1, nvlink x7, 1e7]]\n"
    topology = loads_topology(text)
    assert topology.links[0].gbps == 7 * 10**7
    assert loads_topology(dumps_topology(topology)) == topology


def test_speeds_without_decimal_text_are_refused() -> None:
    third = Topology(
        "t",
        (Vertex("a", VertexKind.GPU), Vertex("b", VertexKind.GPU)),
        (Link("a", "b", LinkKind.NVLINK, Fraction(1, 3)),),
        {"server0": ("a", "b")},
    )
    with pytest.raises(TopologyError, match="1/3"):
        dumps_topology(third)


@given(st.fractions(min_value=0, max_value=10**9, max_denominator=10**6))
def test_decimal_text_is_exact_or_absent(value: Fraction) -> None:
    text = decimal_text(value)
    if text is not None:
        assert parse_decimal(text) == value


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("format: clgpusnvk{}[]-,\n\t 0125.x&*!|>'\"#/%")), max_size=120))
@example("{{}: 1}")
@example("format: collc-topology/1\ngpus: |\n  2\n")
@example("? |\n  block\n: 1\n")
def test_any_text_is_a_topology_or_one_line(text: str) -> None:
    for candidate in (text, HEAD + text, HEAD + "gpus: 2\nlinks:\n" + text):
        message = ""
        try:
            loads_topology(candidate)
        except CollcError as error:
            message = str(error)
        assert "\n" not in message


@pytest.mark.parametrize("name", zoo.names())
def test_known_machines_load_and_say_their_source(name: str) -> None:
    topology = load_topology(name)
    assert topology.name == name
    assert "Source:" in zoo.source(name)
    assert loads_topology(dumps_topology(topology)) == topology


KINDS = (
    HEAD
    + """templates:
  big: {gpus: 2, nics: [n0, n1], links: [[gpu0, gpu1, nvlink, 25], [gpu0, n0, pcie, 10], [gpu1, n1, pcie, 10]]}
  small: {gpus: 1, nics: [n0], links: [[gpu0, n0, pcie, 10]]}
servers: {big: [a, b], small: 2}
remove: [a.n1, [b.gpu0, b.gpu1]]
switches: [net0]
nics: [b.n2]
links: [[each.n0, net0, net, 5], [each.big.n1, net0, net, 7], [b.n2, net0, net, 9], [a.gpu0, a.gpu1, nvlink, 12]]
"""
)


def test_kinds_of_servers_and_what_single_ones_lack_or_have() -> None:
    topology = loads_topology(KINDS)
    assert {server: len(members) for server, members in topology.servers.items()} == {
        "a": 3,
        "b": 5,
        "small-0": 2,
        "small-1": 2,
    }
    assert "b.n2" in topology.servers["b"]
    net = {k.src: k.gbps for k in topology.links if k.dst == "net0"}
    assert net == {"a.n0": 5, "b.n0": 5, "small-0.n0": 5, "small-1.n0": 5, "b.n1": 7, "b.n2": 9}
    nvlink = {k.src: k.gbps for k in topology.links if k.kind is LinkKind.NVLINK}
    assert nvlink == {"a.gpu0": 12, "a.gpu1": 12}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("servers: {big: [a, b], small: 2}\n", "", "`templates` needs `servers`"),
        ("small: 2", "tiny: 2", "no template is called `tiny`"),
        ("small: 2", "small: [a]", "`a` cannot be the name of this server"),
        ("small: 2", "small: [big]", "`big` cannot be the name of this server"),
        ("templates:\n", "template: {gpus: 1}\ntemplates:\n", "`template` and `templates` are both there"),
        ("each.n0, net0", "each.small.n0, each.big.n0", "a link cannot join each server of two kinds"),
        ("each.n0", "each.n1", "no vertex is called `small-0.n1`"),
        ("servers: {", "servers: 3 #{", "expected a mapping here"),
    ],
)
def test_wrong_kinds_of_servers(old: str, new: str, line: str) -> None:
    assert old in KINDS
    with pytest.raises(TopologyError) as error:
        loads_topology(KINDS.replace(old, new), "f.yaml")
    assert line in str(error.value)
    assert str(error.value).startswith("f.yaml:")
