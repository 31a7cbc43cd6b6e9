"""Network plugins made for NCCL, for the engine `plugin`, as this machine has them.

The runtime's own rule, in `templates/runtime/wire/plugin_net.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collc.network.elsewhere import said_elsewhere

OLDEST, NEWEST = 8, 12  # as in wire/plugin_abi.h


@dataclass(frozen=True)
class NetPlugin:
    """A library that was found.

    Args:
        version: of NCCL's interface, 0 if it has none that can be used.
        path: of the library.
        name: what the plugin calls itself.
    """

    version: int
    path: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} (version {self.version}, {self.path})"


def asked_for(environment: Mapping[str, str]) -> str:
    """The names of libraries, with commas between: of COLLC_NET, else of NCCL_NET_PLUGIN, else the usual one."""
    engine, colon, named = environment.get("COLLC_NET", "").replace(" ", "").split(",")[0].partition(":")
    own = named if engine == "plugin" and colon else ""
    return own or environment.get("NCCL_NET_PLUGIN") or "libnccl-net.so"


def find_plugin(environment: Mapping[str, str]) -> NetPlugin | None:
    """The first that the runtime would start, else a library of that name that is none; loaded in another process."""
    found = None
    for word in asked_for(environment).split(","):
        name = word.strip()
        if not name or name.lower() == "none":
            continue
        whole = "/" in name or (name.startswith("lib") and name.endswith(".so"))
        names = [name] if whole else [name, f"libnccl-net-{name}.so"]
        lines = (said_elsewhere("load_plugin.py", str(OLDEST), str(NEWEST), *names) or "").splitlines()
        if len(lines) < 2 or not lines[0].isdigit():
            continue
        one = NetPlugin(int(lines[0]), lines[1], lines[2] if len(lines) > 2 else "")
        if one.version:
            return one
        found = found or one
    return found
