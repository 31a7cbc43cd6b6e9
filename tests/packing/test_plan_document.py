"""Plan files: what is written is read back, and every lie or slip in one is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from graphs import dgx1, graph, star

from collc.collectives.model import Collective
from collc.errors import CertificateError
from collc.packing import plan
from collc.packing.document import from_json, parse_plan, plan_file, to_json, verify_document

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    machine = dgx1()
    kinds = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.ALL_GATHER)
    unbalanced = graph(3, [(0, 3, 1), (3, 1, 1), (3, 2, 1), (1, 0, 1), (2, 0, 1)], forwarders=1)
    made = to_json(plan_file(machine, tuple(plan(machine, c) for c in kinds)))
    made["_prices"] = to_json(plan_file(unbalanced, (plan(unbalanced, Collective.BROADCAST),)))
    return made


@pytest.fixture
def document(good: dict[str, Any]) -> dict[str, Any]:
    fresh = copy.deepcopy(good)
    del fresh["_prices"]
    return fresh


def test_what_is_written_is_read_back() -> None:
    machine = star(4)
    file = plan_file(machine, tuple(plan(machine, c) for c in Collective if c.uses_trees))
    text = json.dumps(to_json(file))
    again = parse_plan(text)
    verify_document(again)
    assert again.plans == file.plans
    assert json.dumps(to_json(again)).replace('"server": ""', '"server": "server0"') == text


def test_a_single_gpu_has_null_rates() -> None:
    machine = graph(1, [])
    made = to_json(plan_file(machine, (plan(machine, Collective.ALL_REDUCE),)))
    assert made["plans"][0]["rate_gbps"] is None
    assert made["plans"][0]["bound_gbps"] is None
    assert made["plans"][0]["trees"] == []
    verify_document(from_json(made))


def test_the_shape_is_the_contract(document: dict[str, Any]) -> None:
    assert list(document) == ["format", "topology", "ranks", "switches", "links", "plans"]
    assert document["format"] == "collc-plan/1"
    assert document["ranks"][2] == {"rank": 2, "gpu": "gpu2", "server": "server0"}
    assert document["links"][4] == {"id": 4, "src": "gpu0", "dst": "gpu3", "kind": "nvlink", "gbps": "50"}
    first = document["plans"][0]
    assert (first["collective"], first["root"], first["rate_gbps"]) == ("all_reduce", None, "600/7")
    assert sum(Fraction(t["weight_gbps"]) for t in first["trees"]) == Fraction(600, 7)
    assert set(first["trees"][0]) == {"root", "weight_gbps", "reduce", "broadcast"}
    assert set(document["plans"][1]["trees"][0]) == {"root", "weight_gbps", "broadcast"}


def edit(path: str, value: Any) -> Edit:
    """An edit that sets the entry at a dotted path, numbers being list indices."""
    *way, last = [int(x) if x.lstrip("-").isdigit() else x for x in path.split(".")]

    def apply(top: dict[str, Any]) -> None:
        at: Any = top
        for key in way:
            at = at[key]
        at[last] = value

    return apply


MALFORMED: list[tuple[Edit, str]] = [
    (edit("format", "collc-plan/2"), "format: expected"),
    (edit("extra", 1), "unknown key 'extra'"),
    (lambda d: d.pop("links"), "the key 'links' is missing"),
    (edit("topology.name", 7), "topology.name: expected text"),
    (edit("ranks.3.rank", 4), r"ranks\[3\].rank"),
    (edit("ranks.3.gpu", "gpu2"), "'gpu2' is used twice"),
    (edit("ranks", []), "at least one rank"),
    (edit("links.5.id", 6), r"links\[5\].id"),
    (edit("links.5.gbps", 25.0), r"links\[5\].gbps: expected a fraction"),
    (edit("links.5.gbps", "25.0"), r"links\[5\].gbps: expected a fraction"),
    (edit("links.5.gbps", "0"), "is not positive"),
    (edit("links.5.gbps", "-3"), "is not positive"),
    (edit("links.5.gbps", "1/0"), "division by zero"),
    (edit("links.5.kind", "string"), "expected one of nvlink"),
    (edit("links.5.src", "gpu9"), "no vertex 'gpu9'"),
    (edit("links.1", {"id": 1, "src": "gpu0", "dst": "gpu1", "kind": "nvlink", "gbps": "25"}), "listed twice"),
    (edit("plans.0.collective", "all_to_all"), r"plans\[0\].collective"),
    (edit("plans.0.collective", ["all_reduce"]), r"plans\[0\].collective"),
    (edit("plans.0.root", True), r"plans\[0\].root: expected an integer"),
    (edit("plans.0.optimal", 1), r"plans\[0\].optimal: expected true or false"),
    (edit("plans.0.rate_gbps", 85.7), r"plans\[0\].rate_gbps: expected a fraction"),
    (edit("plans.0.trees.3.weight_gbps", "1e3"), r"plans\[0\].trees\[3\].weight_gbps"),
    (edit("plans.0.trees.3.weight_gbps", "٣"), r"plans\[0\].trees\[3\].weight_gbps"),
    (edit("plans.0.trees.3.root", 8), "no rank 8"),
    (edit("plans.0.trees.3.reduce.0", [0, 1]), r"trees\[3\].reduce\[0\]: expected \[rank"),
    (edit("plans.0.trees.3.reduce.0.2", [32]), "no link 32"),
    (edit("plans.0.trees.3.reduce.0.2", [-1]), "no link -1"),
    (edit("plans.0.flows", []), "unknown key 'flows'"),
    (edit("plans.1.trees.0.reduce", []), "unknown key 'reduce'"),
    (edit("plans.1.certificate.kind", "oath"), "expected cut, partition or prices"),
    (edit("plans.1.certificate.side.0", "gpu77"), "no vertex 'gpu77'"),
    (edit("plans.1.certificate", []), r"plans\[1\].certificate: expected an object"),
]


@pytest.mark.parametrize(("change", "message"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_documents_are_named(document: dict[str, Any], change: Edit, message: str) -> None:
    change(document)
    with pytest.raises(CertificateError, match=message) as caught:
        from_json(document, "box.json")
    assert str(caught.value).startswith("box.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[", "[1]", "{}", '{"format": NaN}', '{"format": 1, "format": 2}', "[" * 100000])
def test_text_that_is_no_plan(text: str) -> None:
    with pytest.raises(CertificateError, match=r"^f\.json: "):
        parse_plan(text, "f.json")


def raise_weight(d: dict[str, Any]) -> None:
    tree = d["plans"][0]["trees"][3]
    tree["weight_gbps"] = str(Fraction(tree["weight_gbps"]) + 1)


def raise_weight_and_rate(d: dict[str, Any]) -> None:
    raise_weight(d)
    d["plans"][0]["rate_gbps"] = str(Fraction(d["plans"][0]["rate_gbps"]) + 1)


def move_gpu(d: dict[str, Any]) -> None:
    parts = d["plans"][0]["certificate"]["parts"]
    parts[0].append(parts[1].pop())


LIES: list[tuple[Edit, str]] = [
    (raise_weight, r"plans\[0\].trees: the weights add up to"),
    (raise_weight_and_rate, r"plans\[0\]: link \d+ \(gpu\d -> gpu\d\) carries"),
    (move_gpu, r"plans\[0\].certificate.parts\[1\]: this part contains no GPU"),
    (lambda d: d["plans"][1]["certificate"]["side"].append("gpu1"), r"certificate"),
    (edit("plans.2.certificate.side", ["gpu0"]), r"plans\[2\].bound_gbps: the certificate proves 1200, not 1200/7"),
    (edit("plans.1.certificate.side", ["gpu1", "gpu2"]), "does not contain the root gpu0"),
    (edit("plans.0.certificate", {"kind": "prices", "prices": {"0": "-1"}}), "negative price"),
    (edit("plans.0.certificate", {"kind": "prices", "prices": {}}), "prove nothing"),
    (edit("plans.0.certificate", None), "must be given"),
    (edit("plans.1.certificate", {"kind": "partition", "parts": [["gpu0"]]}), "only for all_reduce"),
    (edit("plans.0.rate_gbps", "600/8"), r"plans\[0\].trees: the weights add up to 600/7, the rate is 75"),
    (edit("plans.0.bound_gbps", "86"), r"plans\[0\].bound_gbps: the certificate proves 600/7, not 86"),
    (lambda d: d["plans"][2]["trees"].pop(), r"plans\[2\].trees: the trees of root 7"),
    (lambda d: d["plans"][1]["trees"][0]["broadcast"].pop(), "is not joined to the root"),
    (edit("plans.1.trees.0.broadcast.0.2", []), "the path ends at gpu0"),
    (edit("plans.1.trees.0.weight_gbps", "-25"), r"plans\[1\].trees\[0\].weight_gbps: the weight -25"),
    (edit("plans.1.trees.0.root", 1), r"plans\[1\].trees\[0\].root"),
    (edit("plans.1.root", None), r"plans\[1\].root: broadcast needs a root"),
    (edit("plans.0.root", 0), r"plans\[0\].root: all_reduce has no root"),
    (edit("links.0.gbps", "26"), "topology.fingerprint"),
    (edit("topology.fingerprint", "g1-0"), "topology.fingerprint"),
]


@pytest.mark.parametrize(("change", "message"), LIES, ids=range(len(LIES)))
def test_lies_are_named(document: dict[str, Any], change: Edit, message: str) -> None:
    verify_document(from_json(document))
    change(document)
    with pytest.raises(CertificateError, match=message):
        verify_document(from_json(document))


def test_a_changed_price_is_named(good: dict[str, Any]) -> None:
    document = copy.deepcopy(good["_prices"])
    verify_document(from_json(document))
    prices = document["plans"][0]["certificate"]["prices"]
    assert "3" not in prices
    prices["3"] = "1/10"
    with pytest.raises(CertificateError, match=r"plans\[0\].bound_gbps: the certificate proves"):
        verify_document(from_json(document))


def test_a_suboptimal_plan_must_not_say_optimal(document: dict[str, Any]) -> None:
    cut = document["plans"][1]
    cut["certificate"]["side"] = ["gpu0", "gpu1"]
    cut["bound_gbps"] = "250"
    with pytest.raises(CertificateError, match=r"plans\[1\].optimal: not proven optimal: rate 150, bound 250"):
        verify_document(from_json(document))
    cut["optimal"] = False
    verify_document(from_json(document))
