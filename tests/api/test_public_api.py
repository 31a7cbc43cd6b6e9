"""`dir(collc)` is the API: complete, typed, cheap to import, and no module of the package can take a name's place."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys
import typing
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any

import pytest

import collc
from collc import _HOMES

FUNCTIONS = ("compile", "load", "lower", "plan", "simulate")
RESULTS = ("Built", "Compiled", "Lowered", "Planned", "SimulatedCall", "Simulation")


def fresh(code: str) -> list[str]:
    """Returns what a new Python process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_dir_is_the_api() -> None:
    assert dir(collc) == sorted(collc.__all__)
    assert set(_HOMES) == set(collc.__all__) - {"__version__"}
    assert {"load", "plan", "lower", "simulate", "compile", "Library", "CollcError"} <= set(dir(collc))
    assert fresh("import collc; print(*dir(collc))") == dir(collc)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = collc.nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize("home", sorted(set(_HOMES.values())))
def test_every_name_comes_from_its_home(home: str) -> None:
    """Runs in a new process, in which nothing has been imported before."""
    names = [name for name in _HOMES if _HOMES[name] == home]
    used = ", ".join(f"collc.{name}" for name in names)
    code = f"import collc; print(*(f'{{found.__module__}}.{{found.__name__}}' for found in ({used},)))"
    assert fresh(code) == [f"{home}.{name}" for name in names]


def test_importing_collc_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import collc; dir(collc); print(*sorted(set(sys.modules) - before))"
    loaded = fresh(code)
    assert [name for name in loaded if name.startswith("collc")] == ["collc"]
    assert {"numpy", "highspy", "igraph", "networkx", "click", "yaml"}.isdisjoint(loaded)


@pytest.mark.parametrize(
    ("use", "absent"),
    [
        ("collc.load('dgx1v')", {"highspy", "click", "jinja2", "networkx", "matplotlib"}),
        ("collc.Library", {"highspy", "click", "jinja2", "networkx", "matplotlib"}),
        ("collc.CollcError", {"numpy", "highspy", "igraph", "click"}),
    ],
)
def test_a_name_loads_no_more_than_it_needs(use: str, absent: set[str]) -> None:
    assert absent.isdisjoint(fresh(f"import collc, sys; {use}; print(*sys.modules)"))


def test_no_module_of_the_package_can_take_the_place_of_a_name() -> None:
    modules = {found.name for found in pkgutil.iter_modules(collc.__path__)}
    assert {"topology", "compiler", "lowering", "simulator"} <= modules
    assert modules.isdisjoint(dir(collc))
    # The proof for all of them: every module imported (torch is an extra, __main__ runs), before any name is used.
    code = (
        "import importlib, pkgutil, collc\n"
        "for found in pkgutil.walk_packages(collc.__path__, 'collc.'):\n"
        "    if not found.name.startswith('collc.torch') and not found.name.endswith('__main__'):\n"
        "        importlib.import_module(found.name)\n"
        "print(*(f'{name}={getattr(collc, name).__module__}' for name in collc._HOMES))\n"
    )
    assert fresh(code) == [f"{name}={home}" for name, home in _HOMES.items()]


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_frozen_dataclasses(name: str) -> None:
    kind: Any = getattr(collc, name)
    assert is_dataclass(kind)
    made: Any = kind
    blank = made.__new__(made)
    with pytest.raises(FrozenInstanceError):
        setattr(blank, fields(kind)[0].name, 1)


@pytest.mark.parametrize("name", [*FUNCTIONS, *RESULTS, "Library"])
def test_everything_is_typed_and_documented(name: str) -> None:
    found = getattr(collc, name)
    for part in [found, *(m for n, m in inspect.getmembers(found, inspect.isfunction) if not n.startswith("_"))]:
        assert inspect.getdoc(part), part
    function = found if inspect.isfunction(found) else found.__init__
    hints = typing.get_type_hints(inspect.unwrap(function))
    parameters = [p for p in inspect.signature(function).parameters if p != "self"]
    assert set(parameters) <= set(hints)
    if name in FUNCTIONS:
        text = inspect.getdoc(found) or ""
        assert "Raises:" in text
        for parameter in parameters:
            assert parameter in text, f"{name} does not describe {parameter}"


def test_the_package_says_that_it_is_typed() -> None:
    assert "py.typed" in {path.name for path in __import__("pathlib").Path(collc.__path__[0]).iterdir()}
