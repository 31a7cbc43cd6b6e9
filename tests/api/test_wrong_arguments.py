"""Every parameter of every function of the API: a wrong type and a wrong value raise `CollcError` with one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.libraries import library as library_file

import collc

# The right call of each function. Tests add one wrong argument to it.
TOPOLOGY: dict[str, Any] = {"topology": "dgx1v", "gpus": "0,1"}
# Parameter -> wrong values, the first of a wrong type. What takes any text has texts that name nothing.
COMMON: dict[str, list[Any]] = {
    "topology": [7, None, b"dgx1v", "", "no-such-machine", "a\0b", Path("/"), "tests"],
    "gpus": [
        7,
        1.5,
        b"0",
        {0, 1},
        frozenset({"gpu0"}),
        {0: 1},
        [],
        "",
        "0,0",
        [0, 99],
        [0, -1],
        [True],
        [None],
        ["gpu0", 1.5],
        "zero",
    ],
    "links": [7, b"nvlink", {"nvlink": 1}, [], "", "nvlnk", ["nvlink", 3], ["nvlnk"], "pcie,"],
    "collective": [7, None, b"all_reduce", "", "allreduce", ["all_reduce"], "All_Reduce"],
    "root": ["0", 1.0, True, -1, 2, 10**30],
    "model": [7, b"h100", "", "h1000"],
    "params": [7, b"file", "", "no-such-file", "/", "a\0b"],
}
# For GPUs 0 and 1, as the library; and for others.
OWN = collc.plan("dgx1v", gpus="0,1")
OTHER: Any = collc.plan("dgx1v", gpus="0-2")
LOWERED = collc.lower(OTHER)
SPECIFIC: dict[str, dict[str, list[Any]]] = {
    "load": {"topology": COMMON["topology"]},
    "plan": {
        **{name: COMMON[name] for name in ("topology", "gpus", "links", "collective")},
        "root": COMMON["root"],
        "relay": [1, "idle", None, 0],
        "solver": [7, None, "", "simplex", b"exact"],
        "tolerance": [0.05, None, True, "", "x", "1", "-0.1", 1, -1, "1/0", "1e999999999", [0]],
    },
    "lower": {
        "planned": [None, "dgx1v", 7],
        "target": [7, None, "", "tpu", b"host"],
        "channels": ["1", 1.0, None, True, -1, 513, 10**30],
        "chunk": [1.5, True, [1], 0, 100, 129, -128, "64", "1G", "", "x", 10**30],
        "everywhere": [1, "yes", None],
    },
    "simulate": {
        **{name: COMMON[name] for name in ("topology", "gpus", "links", "model", "params")},
        "collective": [*COMMON["collective"], "alltoall"],
        "root": COMMON["root"],
        "sizes": [7, "1K", b"1", {8: 8}, [], [0], [-1], ["0"], ["1T"], [1.5], [True], [10**30], [None], ["1K", "x"]],
        "plan": [7, "", "tree", b"trees"],
        "protocol": [7, "", "LL256", "ll"],
        "chunk": [1.5, True, [1], 0, 15, -1, "", "x", "8", 10**30],
        "channels": ["1", 1.0, True, 0, -1, 513, 10**30],
        "throughput": [1, "yes", None],
        "copy_engine": [1, "yes", None],
        "nccl": [1, "yes", None],
        "nccl_version": [7, b"2.28", "", "newest", "2.28"],
        "fabric": [7, b"x", "", "avian", "InfiniBand"],
    },
    "compile": {
        **{name: COMMON[name] for name in ("topology", "gpus", "links", "model", "params")},
        "output": [7, b"a.so", "", "a\0b", "/", "/no/such/folder/lib.so"],
        "target": [7, "", "tpu", b"host"],
        "allocations": [7, b"all", "", ["all"], "some", "9..10", "0..0"],
        "classes": [7, b"nvlink", "", [], ["nvlink", "nvlink"], "warp", [None], "pcie"],
        "collectives": [7, "all_reduce", [], ["allreduce"], ["alltoall"], [None], [7]],
        "roots": [7, "0", [], ["0"], [-1], [2], [True], [1.0]],
        "cuda": ["12", 12.0, True, 11, 13],
        "counters": [1, "yes", None, True],
        "specialise": [1, "yes", None, True],
        "in_switch": [1, "yes", None, True],
        "direct": [1, "yes", None, "True"],
        "rebuild": [1, "yes", None],
        "relay": [1, "idle", None, 0],
        "tune_candidates": [1, "yes", None],
        "survive": ["1", 1.0, None, True, 2, -1],
        "plans": [7, b"plan", "", "no-such-file", "/", [], [None], ["file"], OTHER, [OTHER], [OWN, OTHER], [OWN, OWN]],
        "programs": [7, b"ir", "", "no-such-file", [], [None], ["no-such-file"], ["/"], LOWERED, [LOWERED], [OWN]],
        "keep_source": [7, b"a.cpp", "", "a\0b", "/"],
    },
}
# The other arguments that make the wrong value the only fault of a call.
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("plan", "root"): {"collective": "broadcast"},
    ("simulate", "root"): {"collective": "broadcast"},
    ("simulate", "nccl_version"): {"sizes": ["1K"]},
    ("simulate", "fabric"): {"sizes": ["1K"]},
    ("compile", "allocations"): {"gpus": None},
}


def right(function: str) -> dict[str, Any]:
    if function == "lower":
        return {"planned": collc.plan("dgx1v", gpus="0,1")}
    if function == "load":
        return {"topology": "dgx1v"}
    # No call gets as far as a compiler.
    return {**TOPOLOGY, **({"target": "host"} if function == "compile" else {})}


CASES = [(f, name, value) for f, table in SPECIFIC.items() for name, values in table.items() for value in values]


@pytest.mark.parametrize(("function", "name", "value"), CASES)
def test_a_wrong_argument(
    function: str, name: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {**right(function), **BESIDE.get((function, name), {}), name: value}
    with pytest.raises(collc.CollcError) as caught:
        getattr(collc, function)(**given)
    text = str(caught.value)
    assert text
    assert "\n" not in text
    assert len(text) < 1200
    assert "--" not in text, "a message of the API names parameters, not options"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("function", SPECIFIC)
def test_every_parameter_is_tried(function: str) -> None:
    parameters = set(inspect.signature(getattr(collc, function)).parameters)
    assert set(SPECIFIC[function]) == parameters
    assert all(len(values) >= 3 for values in SPECIFIC[function].values())


@pytest.fixture(scope="module")
def library() -> Any:
    with collc.Library(library_file("odd")) as found:
        yield found


ONES = [np.ones(6, np.float32)] * 3
OP: list[Any] = [7, None, "", "mean", b"sum"]
ROOT: list[Any] = ["0", 1.0, None, True, -1, 3]
INPUTS: list[Any] = [
    7,
    None,
    "ones",
    [],
    ONES[:2],
    [*ONES, ONES[0]],
    [None, *ONES[:2]],
    [ONES[0], ONES[0], ONES[0].astype(np.float64)],
    [ONES[0], ONES[0], ONES[0][:5]],
    [np.ones(6, complex)] * 3,
    [np.ones(6, ">f4")] * 3,
    [np.array(["a"] * 6)] * 3,
    [[[1], [1, 2]]] * 3,
    [object()] * 3,
]
METHODS: dict[str, dict[str, list[Any]]] = {
    "all_reduce": {"inputs": INPUTS, "op": OP},
    "all_gather": {"inputs": INPUTS},
    "reduce_scatter": {"inputs": [*INPUTS, [np.ones(5)] * 3], "op": OP},
    "broadcast": {"inputs": [7, [], ONES, [None] * 3, [ONES[0], None]], "root": ROOT},
    "reduce": {"inputs": INPUTS, "op": OP, "root": ROOT},
}


@pytest.mark.parametrize(("method", "name"), [(m, name) for m, table in METHODS.items() for name in table])
def test_a_wrong_argument_of_a_library(library: collc.Library, method: str, name: str) -> None:
    good: dict[str, Any] = {"inputs": [ONES[0], None, None] if method == "broadcast" else ONES}
    for value in METHODS[method][name]:
        with pytest.raises(collc.CollcError) as caught:
            getattr(library, method)(**{**good, name: value})
        assert "\n" not in str(caught.value)
    assert getattr(library, method)(**good), "the library works on"


def test_every_method_is_tried() -> None:
    for method, table in METHODS.items():
        assert set(inspect.signature(getattr(collc.Library, method)).parameters) - {"self"} == set(table)
    public = {name for name in vars(collc.Library) if not name.startswith("_")} - {"close", "verify"}
    assert public == set(METHODS)


@pytest.mark.parametrize("path", [7, None, b"x", "", "/", "no-such.so", __file__])
def test_what_is_no_library(path: Any) -> None:
    with pytest.raises(collc.CollcError) as caught:
        collc.Library(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("nranks", ["3", 3.0, True, 0, 2, 4, -1, 10**30])
def test_a_wrong_number_of_ranks(nranks: Any) -> None:
    with pytest.raises(collc.CollcError):
        collc.Library(library_file("odd"), nranks)


@pytest.mark.parametrize(("name", "value"), [("inputs", value) for value in INPUTS] + [("op", v) for v in [*OP, "avg"]])
def test_a_wrong_argument_of_the_interpreter(name: str, value: Any) -> None:
    lowered = collc.lower(collc.plan("dgx1v", gpus="0-2"))
    with pytest.raises(collc.CollcError):
        lowered.run(**{"inputs": ONES, name: value})


@pytest.mark.parametrize("seed", ["1", 1.0, None, True, -1])
def test_a_wrong_seed(seed: Any) -> None:
    with pytest.raises(collc.CollcError):
        collc.lower(collc.plan("dgx1v", gpus="0-2")).run(ONES, seed=seed)


def own(**parts: Any) -> Any:
    """A plan of a user's own."""
    return replace(OTHER, plan=replace(OTHER.plan, **parts))


def with_tree(**parts: Any) -> Any:
    """The same with another first tree."""
    first, *others = OTHER.plan.trees
    return own(trees=(replace(first, **parts), *others))


def with_hop(**parts: Any) -> Any:
    """The same with another first hop."""
    first, *others = OTHER.plan.trees[0].broadcast
    return with_tree(broadcast=(replace(first, **parts), *others))


# Wrong plans of a user, by the fault.
OWN_PLANS: dict[str, Callable[[], collc.Planned]] = {
    "a graph that is none": lambda: replace(OTHER, graph=None),
    "a plan that is none": lambda: replace(OTHER, plan="x"),
    "another graph": lambda: replace(OTHER, graph=OWN.graph),
    "a collective's name": lambda: own(collective="all_reduce"),
    "another collective": lambda: own(collective=collc.Collective.BROADCAST, root=0),
    "a root that it has not": lambda: own(root=1),
    "a rate above the links": lambda: own(rate=OTHER.rate * 2),
    "a rate that is no fraction": lambda: own(rate=float(OTHER.rate)),
    "a bound that is not proved": lambda: own(bound=OTHER.bound / 2),
    "trees that are none": lambda: own(trees=None),
    "no trees": lambda: own(trees=()),
    "a tree that is none": lambda: own(trees=(None,)),
    "trees above the links, without a claim": lambda: replace(
        with_tree(weight=OTHER.rate),
        plan=replace(
            with_tree(weight=OTHER.rate).plan,
            rate=OTHER.rate + sum(tree.weight for tree in OTHER.trees[1:]),
            bound=None,
            certificate=None,
            optimal=False,
        ),
    ),
    "a weight below zero": lambda: with_tree(weight=Fraction(-1)),
    "a root that is no rank": lambda: with_tree(root=99),
    "a tree without hops": lambda: with_tree(broadcast=()),
    "a hop to no rank": lambda: with_hop(dst=77),
    "a hop over no link": lambda: with_hop(links=(999,)),
}


@pytest.mark.parametrize("name", OWN_PLANS)
def test_an_own_plan_that_does_not_hold(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither becomes a program, nor blames a pass of the compiler, which leaves a file in this folder."""
    monkeypatch.chdir(tmp_path)
    asked: dict[str, Any] = {"target": "host", "gpus": "0-2", "collectives": ["all_reduce"]}
    for use in (collc.lower, lambda planned: collc.compile("dgx1v", "own.so", plans=planned, **asked)):
        with pytest.raises(collc.CollcError) as caught:
            use(OWN_PLANS[name]())
        assert "\n" not in str(caught.value)
        assert "broke" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_own_plan_that_holds() -> None:
    """One tree of the best plan, with no claim of a bound; and the same parts put together again."""
    (tree, *_) = OTHER.trees
    alone = own(trees=(tree,), rate=tree.weight, bound=None, certificate=None, optimal=False)
    assert all((found == 3).all() for found in collc.lower(alone).run(ONES) if found is not None)
    assert collc.lower(replace(OTHER)).text == collc.lower(OTHER).text
