"""The hook that makes a wheel that of this platform: it holds the runtime, built (collc/build/prebuilt.py).

`make wheel` enables it by HATCH_BUILD_HOOK_ENABLE_CUSTOM; other wheels hold the sources alone and fit everywhere.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformWheel(BuildHookInterface):  # type: ignore[misc]
    """Builds the runtime before a wheel is packed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the objects to the wheel and names the platforms that they are for."""
        if version == "editable":  # a checkout builds what somebody changes there
            return
        sys.path.insert(0, self.root)
        from collc.build.prebuilt import build_prebuilt

        self._made = tempfile.TemporaryDirectory()
        platform = build_prebuilt(Path(self._made.name))
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        build_data["force_include"][self._made.name] = "collc/_data/prebuilt"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is there."""
        if version != "editable":
            self._made.cleanup()
