"""Finds UCX, the library of the engine `ucx`, on this machine.

The runtime has the same rule in `templates/runtime/wire/ucx_api.cpp`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collc.network.scripts import script_output


@dataclass(frozen=True)
class Ucx:
    """An installed UCX.

    Attributes:
        version: a version such as "1.13.1".
        path: the path of its libucp.so.0.
        verbs: True if it has a module for InfiniBand and RoCE.
        usable: True if the engine supports its version.
    """

    version: str
    path: str
    verbs: bool
    usable: bool

    def __str__(self) -> str:
        return f"UCX {self.version} ({self.path})"


def asked_for(environment: Mapping[str, str]) -> bool:
    """Returns whether COLLC_NET names the engine `ucx`."""
    named = environment.get("COLLC_NET", "").replace(" ", "")
    return named.split(",")[0] == "ucx" or named.startswith("ucx:")


def find_ucx(environment: Mapping[str, str]) -> Ucx | None:
    """Returns the UCX that the runtime would load (of COLLC_UCX, else of the system); None if there is none."""
    said = script_output("load_ucx.py", environment.get("COLLC_UCX") or "libucp.so.0")
    version, _, path = (said or "").strip().partition(" ")
    if not path:
        return None
    major, minor = (int(part) for part in version.split(".")[:2])
    verbs = any(Path(path).resolve().parent.glob("ucx/libuct_ib*.so*"))
    return Ucx(version, path, verbs, major == 1 and minor >= 13)


def wheel_setting(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns COLLC_UCX for processes that use the engine `ucx`: the wheel's library, if the system has no UCX.

    Returns an empty dict if nothing needs to be set.
    """
    if not asked_for(environment) or environment.get("COLLC_UCX"):
        return {}
    try:
        wheel = importlib.util.find_spec("libucx")
    except (ImportError, ValueError):
        return {}
    if wheel is None or wheel.origin is None or find_ucx(environment) is not None:
        return {}
    library = Path(wheel.origin).parent / "lib" / "libucp.so.0"
    return {"COLLC_UCX": str(library)} if library.exists() else {}
