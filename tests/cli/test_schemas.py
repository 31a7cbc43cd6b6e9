"""The JSON Schemas of docs/schemas describe what commands really print and read, refusals among it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support.cli import collc

from collc.cli.app import COMMANDS
from collc.topology import fields, load, zoo
from collc.topology.make import KINDS, make
from collc.topology.model import LinkKind

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def schema(name: str) -> dict[str, Any]:
    path = SCHEMAS / f"{name}.schema.json"
    if not path.is_file():
        pytest.skip("the schemas are not beside these tests")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def check(name: str, value: object) -> None:
    jsonschema.Draft202012Validator(schema(name)).validate(value)


def test_schemas_are_schemas() -> None:
    for path in SCHEMAS.glob("*.json"):
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "argv",
    [
        ["dgx1v"],
        ["dgx1v", "--gpus", "0,1,4,6"],
        ["dgx1v", "--gpus", "0"],
        ["dgx1v", "--gpus", "0,1,2,3,6", "--relay", "idle", "--collective", "all_gather"],
        ["hgx-h100", "--collective", "all_reduce", "--orbits"],
        ["mi300x", "--collective", "alltoall"],
        ["hgx-h800", "--classes", "all", "--collective", "all_reduce"],
    ],
)
def test_plans(argv: list[str]) -> None:
    made = json.loads(collc("plan", *argv, "--json").out)
    check("plan", made)
    # Each key that the document needs is one that the schema misses when it is gone.
    for key in ("format", "topology", "ranks", "links", "plans"):
        with pytest.raises(jsonschema.ValidationError):
            check("plan", {k: v for k, v in made.items() if k != key})
    less = copy.deepcopy(made)
    less["plans"][0]["rate_gbps"] = 85.7
    with pytest.raises(jsonschema.ValidationError):
        check("plan", less)


def test_rows_of_the_simulator() -> None:
    check("rows", json.loads(collc("simulate", "dgx1v", "--gpus", "0,1", "-b", "1K", "-e", "1K", "--json").out))
    argv = ("dgx1v", "--gpus", "0,1", "--classes", "nvlink,pcie", "-b", "1K", "-e", "1K")
    check("rows", json.loads(collc("simulate", *argv, "--json").out))


@pytest.mark.parametrize("name", zoo.names())
def test_topologies_that_come_with_collc(name: str) -> None:
    path = zoo.find(name)
    assert path is not None
    check("topology", yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("kind", KINDS)
def test_topologies_that_are_made(kind: str) -> None:
    check("topology", yaml.safe_load(make(kind, {})))


def test_the_schema_of_topologies_knows_the_keys_of_the_reader() -> None:
    found = schema("topology")
    assert set(found["properties"]) == set(load._KEYS)
    assert set(found["$defs"]["body"]["properties"]) == set(load._BODY_KEYS)
    _, long = found["$defs"]["link"]["oneOf"]
    assert set(long["properties"]) == set(fields._LINK_KEYS)
    assert set(found["$defs"]["kind"]["enum"]) == {kind.value for kind in LinkKind}


@pytest.mark.parametrize(
    "change",
    [
        {"gpu": 4},
        {"gpus": 0},
        {"links": [["gpu0", "gpu1"]]},
        {"links": [["gpu0", "gpu1", "nvlnk"]]},
        {"links": [{"between": ["gpu0", "gpu1"], "from": "gpu0", "kind": "nvlink", "gbps": 1}]},
        {"links": [{"from": "gpu0", "kind": "nvlink", "gbps": 1}]},
        {"speeds": {"nvlink": -1}},
        {"switches": [{"multicast": True}]},
    ],
)
def test_what_the_reader_refuses_the_schema_refuses(change: dict[str, object]) -> None:
    base = {"format": "collc-topology/1", "name": "x", "gpus": 2, "links": [["gpu0", "gpu1", "nvlink", 25]]}
    check("topology", base)
    with pytest.raises(jsonschema.ValidationError):
        check("topology", {**base, **change})


@pytest.mark.parametrize("command", COMMANDS)
def test_errors_of_every_command(command: str) -> None:
    """With --json, standard output also has the refusal as JSON; standard error still has the line."""
    result = collc(command, "--no-such-option", "--json")
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    found = json.loads(result.out)
    check("error", found)
    assert found["error"]["exit_code"] == 2
    assert found["error"]["what"] in result.err


def test_errors_that_are_no_usage_errors(tmp_path: Path) -> None:
    broken = tmp_path / "a.yaml"
    broken.write_text("format: collc-topology/1\nname: a\ngpus: 2\nlink: []\n")
    found = json.loads(collc("plan", broken, "--json").out)
    check("error", found)
    assert found["error"] == {
        "what": "unknown key `link`",
        "where": f"{broken}:4",
        "hint": "did you mean `links`?",
        "exit_code": 1,
    }
    missing = json.loads(collc("verify", tmp_path / "none.json", "--json").out)
    check("error", missing)
    assert collc("plan", broken).out == ""


def test_a_document_is_not_followed_by_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that shows after the result was printed (wrong elements in a benchmark) leaves one document."""
    from collc.cli import report
    from collc.errors import RunError

    def printed_then_failed(value: object, print_it: Any = report.emit_json) -> None:
        print_it(value)
        raise RunError("too late")

    monkeypatch.setattr("collc.cli.plan.emit_json", printed_then_failed)
    result = collc("plan", "dgx1v", "--gpus", "0,1", "--collective", "broadcast", "--json")
    assert result.code == 1
    check("plan", json.loads(result.out))
    assert result.err == "collc: too late\n"
