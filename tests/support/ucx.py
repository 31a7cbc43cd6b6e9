"""UCX for tests, on machines without RDMA."""

from __future__ import annotations

import os
from pathlib import Path

from support.libraries import shared_library

from collc.network.ucx import find_ucx

_SOURCE = Path(__file__).parent.parent / "runtime" / "cards_by_memory.c"


def with_cards() -> dict[str, str]:
    """UCX where the shared memory of this machine is its RDMA cards."""
    ucx = find_ucx(os.environ)
    assert ucx is not None
    folder = Path(ucx.path).parent
    needs = ("-Wl,--no-as-needed", ucx.path, f"-Wl,-rpath,{folder}")
    return {"COLLC_UCX": str(shared_library(_SOURCE, *needs))}
