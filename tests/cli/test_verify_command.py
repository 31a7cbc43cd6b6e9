"""`collc verify` accepts what collc makes and names the place of every change made by hand."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.cli import collc, refused

import collc as package

Document = dict[str, Any]


@pytest.fixture(scope="module")
def plan() -> Document:
    """The plans of a DGX-1V."""
    result = collc("plan", "dgx1v", "--json")
    assert result.code == 0, result.err
    document: Document = json.loads(result.out)
    return document


def write(tmp_path: Path, value: Document) -> str:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(value))
    return str(path)


def of(plan: Document, collective: str) -> Document:
    return next(p for p in plan["plans"] if p["collective"] == collective)


def test_accepts_its_own_plan(plan: Document, tmp_path: Path) -> None:
    result = collc("verify", write(tmp_path, plan))
    assert result.code == 0, result.err
    assert "all_reduce: 600/7 GB/s, optimal" in result.out


def test_a_raised_weight(plan: Document, tmp_path: Path) -> None:
    bad = copy.deepcopy(plan)
    tree = of(bad, "all_reduce")["trees"][0]
    tree["weight_gbps"] = str(Fraction(tree["weight_gbps"]) + 1)
    assert "plans[0].trees: the weights add up to" in refused(collc("verify", write(tmp_path, bad)))


def test_a_weight_moved_from_tree_to_tree(plan: Document, tmp_path: Path) -> None:
    """The sum stays right, but some link carries more than it has."""
    bad = copy.deepcopy(plan)
    trees = of(bad, "all_reduce")["trees"]
    first, last = Fraction(trees[0]["weight_gbps"]), Fraction(trees[-1]["weight_gbps"])
    trees[0]["weight_gbps"], trees[-1]["weight_gbps"] = str(first + last / 2), str(last / 2)
    assert "link" in refused(collc("verify", write(tmp_path, bad)))


@pytest.mark.parametrize("collective", ["broadcast", "all_gather"])
def test_a_cut_with_one_gpu_moved(plan: Document, tmp_path: Path, collective: str) -> None:
    certificate = of(plan, collective)["certificate"]
    if certificate["kind"] != "cut":
        pytest.skip(f"the certificate of {collective} is {certificate['kind']}")
    everyone = [r["gpu"] for r in plan["ranks"]]
    caught = 0
    for gpu in everyone:
        bad = copy.deepcopy(plan)
        side = of(bad, collective)["certificate"]["side"]
        side.remove(gpu) if gpu in side else side.append(gpu)
        result = collc("verify", write(tmp_path, bad))
        if result.code:
            caught += 1
            refused(result)
    # Moving a GPU may by chance give another minimum cut, but not for most GPUs.
    assert caught >= len(everyone) // 2


def test_a_partition_with_one_gpu_moved(plan: Document, tmp_path: Path) -> None:
    bad = copy.deepcopy(plan)
    certificate = of(bad, "all_reduce")["certificate"]
    assert certificate["kind"] == "partition"
    parts = certificate["parts"]
    gpu = parts[0].pop()
    parts[1].append(gpu)
    parts[:] = [part for part in parts if part]
    assert "plans[0].bound_gbps: the certificate proves" in refused(collc("verify", write(tmp_path, bad)))


def test_changed_prices(tmp_path: Path) -> None:
    found = collc("plan", "dgx1v", "--gpus", "0,1,4,6", "--collective", "all_reduce", "--json")
    value = json.loads(found.out)
    graph_links = value["links"]
    certificate = {"kind": "prices", "prices": {str(link["id"]): "1/8" for link in graph_links}}
    value["plans"][0]["certificate"] = certificate
    assert "bound" in refused(collc("verify", write(tmp_path, value)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["links"][0].update(gbps="1000"), "fingerprint"),
        (lambda p: p["links"][0].update(gbps=25.0), r"gbps"),
        (lambda p: p["topology"].update(fingerprint="g1-" + "0" * 32), "fingerprint"),
        (lambda p: p.update(surprise=1), "surprise"),
        (lambda p: p.pop("links"), "links"),
        (lambda p: p["plans"][0].update(rate_gbps="1000"), "rate"),
        (lambda p: p["plans"][0]["trees"].pop(), "rate|weight"),
        (lambda p: p["plans"][0]["trees"][0]["reduce"].pop(), "trees"),
        (lambda p: p["plans"][0]["trees"][0]["broadcast"][0].__setitem__(0, 99), "trees"),
        (lambda p: p.update(format="collc-plan/9"), "collc-plan"),
    ],
)
def test_other_changes(plan: Document, tmp_path: Path, change: Callable[[Document], object], message: str) -> None:
    bad = copy.deepcopy(plan)
    change(bad)
    line = refused(collc("verify", write(tmp_path, bad)))
    assert any(part in line for part in message.split("|")), line


@pytest.fixture
def ir(tmp_path: Path) -> str:
    """The lowered all_reduce of three GPUs."""
    result = collc(
        *("compile", "dgx1v", "--gpus", "0-2", "--collective", "all_reduce", "--target", "host"),
        *("--dump-after", "share_slots", "--dump-dir", tmp_path / "ir", "-o", tmp_path / "l.so"),
    )
    assert result.code == 0, result.err
    return (tmp_path / "ir" / "all_reduce.share_slots.ir").read_text()


def test_ir_and_its_mutants(ir: str, tmp_path: Path) -> None:
    path = tmp_path / "p.ir"
    path.write_text(ir)
    assert collc("verify", path).code == 0
    lines = ir.splitlines()

    def verify(changed: list[str]) -> str:
        path.write_text("\n".join(changed) + "\n")
        return refused(collc("verify", path))

    receive = next(i for i, line in enumerate(lines) if line.strip().startswith("recv "))
    assert "never receives from it" in verify(lines[:receive] + lines[receive + 1 :])

    first = next(i for i, line in enumerate(lines) if "lag" in line and " share 0 " in line and "send" in line)
    assert "share" in verify([*lines[:first], lines[first].replace(" share 0 ", " share 1 "), *lines[first + 1 :]])

    assert "deadlock with 1 slots" in verify([lines[0].replace("slots=4", "slots=1"), *lines[1:]])


def test_files_that_are_nothing_of_ours(tmp_path: Path) -> None:
    for name, content in {
        "empty": b"",
        "text": b"hello\n",
        "binary": bytes(range(256)) * 8,
        "json": b'{"format": "else"}',
        "broken.json": b'{"format": ',
        "deep.json": b"{" + b'"a":[' * 100000,
        "elf": b"\x7fELF" + bytes(400),
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        result = collc("verify", path)
        assert result.code in (1, 2), name
        assert len(result.err.strip().splitlines()) == 1, (name, result.err)


def test_a_missing_file(tmp_path: Path) -> None:
    assert "No such file" in refused(collc("verify", tmp_path / "none"))


def test_version_is_the_packages() -> None:
    assert package.__version__ in collc("--version").out
