"""The page as a file: it holds its data, asks nothing of a network, and no name can become markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from support.cli import collc, refused
from support.show_inputs import HOSTILE, hostile_drawing

from collc.show.drawing import of_topology
from collc.show.page import View, machine_data, page
from collc.topology.load import load_topology


def data_of(text: str) -> dict[str, object]:
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert len(found) == 1
    value = json.loads(found[0])
    assert isinstance(value, dict)
    return value


def test_names_cannot_end_the_data() -> None:
    text = page(HOSTILE, [View("machine", HOSTILE, machine_data(hostile_drawing()))])
    assert "<img" not in text
    assert text.count("</script>") == 2
    value = data_of(text)
    assert value["title"] == HOSTILE


def test_the_policy_allows_this_script_and_this_style_alone() -> None:
    text = page("x", [View("machine", "Machine", machine_data(of_topology(load_topology("dgx1v"))))])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    script = re.search(r"<script>(.*)</script>\s*</body>", text, re.DOTALL)
    style = re.search(r"<style>(.*)</style>", text, re.DOTALL)
    assert script is not None
    assert style is not None
    for rule, part in (("script-src", script[1]), ("style-src", style[1])):
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text.partition('id="data"')[0])


@pytest.mark.parametrize(("name", "most"), [("dgx1v", 0.5), ("hgx-h100", 0.5), ("gb200-nvl72", 1.5)])
def test_pages_are_small(tmp_path: Path, name: str, most: float) -> None:
    out = tmp_path / "page.html"
    assert collc("show", name, "-o", out).code == 0
    assert out.stat().st_size < most * 1e6
    assert [v["kind"] for v in data_of(out.read_text(encoding="utf-8"))["views"]] == ["machine", "plan"]  # type: ignore[attr-defined]


def test_the_same_input_gives_the_same_page(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert collc("show", "dgx1v", "--gpus", "0,1,4,6", "-o", tmp_path / name).code == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_data_of_a_plan_is_what_plan_json_prints(tmp_path: Path) -> None:
    printed = json.loads(collc("plan", "dgx1v", "--gpus", "0,1,4,6", "--json").out)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(printed))
    for words in (["dgx1v", "--gpus", "0,1,4,6"], [file]):
        value = json.loads(collc("show", *words, "--json").out)
        assert value["format"] == "collc-show/1"
        view = value["views"][-1]
        assert view["plan"]["document"] == printed
        # Loads and gains by hand from the trees and the certificate.
        note = view["plan"]["notes"][0]
        loads: dict[str, Fraction] = {}
        for tree in printed["plans"][0]["trees"]:
            for hop in [*tree["reduce"], *tree["broadcast"]]:
                for link in map(str, hop[2]):
                    loads[link] = loads.get(link, Fraction(0)) + Fraction(tree["weight_gbps"])
        assert {link: Fraction(load) for link, load in note["loads"].items()} == loads
        crossing = {str(x["id"]) for x in printed["links"] if {x["src"], x["dst"]} != {"gpu0", "gpu4"}}
        assert note["gain"] == dict.fromkeys(crossing, "1/4")


def test_what_limits_an_all_reduce_stands_in_words() -> None:
    view = json.loads(collc("show", "dgx1v", "--gpus", "0,1,4,6", "--json").out)["views"][-1]
    words = " ".join(view["plan"]["notes"][0]["words"])
    assert "all_reduce runs at 25 GB/s" in words
    assert "100 GB/s lead out of 3 parts: {gpu0 gpu4}, {gpu1}, {gpu6}" in words
    assert "2 x (3 - 1) = 4 times" in words


def test_a_plan_that_does_not_hold_is_not_drawn(tmp_path: Path) -> None:
    printed = json.loads(collc("plan", "dgx1v", "--gpus", "0,1,4,6", "--collective", "broadcast", "--json").out)
    printed["plans"][0]["rate_gbps"] = "1000"
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(printed))
    assert refused(collc("show", file, "-o", tmp_path / "out.html")).startswith(f"collc: {file}")
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["dgx1v", "--collective", "all_reduce", "--root", "1"], 2),
        (["dgx1v", "--compare", "dgx2"], 2),
        (["dgx1v", "--json", "-o", "x.html"], 2),
        (["dgx1v", "-o", "missing/x.html"], 1),
        (["dgx1v", "--gpus", "0,99"], 2),
        (["no-such-machine"], 1),
    ],
)
def test_what_cannot_be_drawn_is_refused(words: list[str], code: int) -> None:
    refused(collc("show", *words), code=code)
