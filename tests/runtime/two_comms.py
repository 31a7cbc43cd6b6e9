"""A rank with several communicators: the field "which" of rank_process.py's orders names the communicator."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

from rank_process import RankProcess, serve


class TwoComms(RankProcess):
    def __init__(self, library: Path) -> None:
        super().__init__(library)
        self.comms: dict[str, ctypes.c_void_p] = {}

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        if "which" in order:
            self.comm = self.comms.setdefault(order["which"], ctypes.c_void_p())
        return super().do(order)


if __name__ == "__main__":
    serve(TwoComms(Path(sys.argv[1])))
