"""The JSON row that `collc simulate` and `collc bench` share."""

from __future__ import annotations

from collc.collectives.model import Collective


def simulated_row(
    collective: Collective, root: int | None, nranks: int, size: int, plan: str, protocol: str, time_us: float
) -> dict[str, object]:
    """A call of `size` bytes of float sums, as nccl-tests counts bytes and bandwidths; nothing of it was checked."""
    algbw = size / time_us / 1e3 if time_us else 0.0
    return {
        "collective": collective.value,
        "type": "float",
        "op": "sum" if collective.reduces else "none",
        "root": -1 if root is None else root,
        "in_place": False,
        "bytes": size,
        "plan": plan,
        "proto": protocol,
        "time_us": time_us,
        "algbw_gbps": algbw,
        "busbw_gbps": algbw * collective.bus_factor(nranks),
        "wrong": None,
    }
