"""The constants of NCCL's own cost model by version: facts of src/graph/tuning.cc at the tags named below.

Microseconds are per call (`base`) and per hop over NVLink, PCIe and the network (`hop`); GB/s are the most that LL
carries in all (`ll_most`) and a tree or LL128 per channel, by chip and by one, two or more servers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from collc.errors import UsageError

# algorithm -> (LL, LL128, Simple)
_Costs = Mapping[str, tuple[float, float, float]]
PROTOCOLS = ("LL", "LL128", "Simple")
CHIPS = ("volta", "ampere", "hopper", "blackwell")


@dataclass(frozen=True)
class Era:
    """NCCL from version `since` on, up to the next era.

    Args:
        hop: by where a hop goes: nvlink, pcie, net.
        nvls_us: of one reduction inside the switches; None: before NVLS.
        ring_ll: the share of a ring's bandwidth that LL is reckoned with, on one server, and on several.
        pat: whether all_gather and reduce_scatter between servers of one GPU each use PAT.
    """

    since: tuple[int, int]
    base: _Costs
    hop: Mapping[str, _Costs]
    ll_most: Mapping[str, tuple[float, float, float]]
    nvls_us: float | None
    ring_ll: tuple[float, float]
    pat: bool

    @property
    def label(self) -> str:
        """The first version of NCCL that it is about, such as 2.27."""
        return f"{self.since[0]}.{self.since[1]}"


_LL_VOLTA, _LL_AMPERE = (39.0, 39.0, 20.4), (87.7, 22.5, 19.0)
_LL_OLD = {"volta": _LL_VOLTA, **dict.fromkeys(("ampere", "hopper", "blackwell"), _LL_AMPERE)}
_LL_NEW = {
    "volta": _LL_VOLTA,
    "ampere": _LL_AMPERE,
    "hopper": (141.0, 45.0, 35.0),
    "blackwell": (282.0, 90.0, 70.0),
}
# v2.7.8 to v2.17.1.
_OLD = Era(
    (2, 4),
    {"Tree": (4.4, 4.4, 0.0), "Ring": (3.6, 10.0, 8.4)},
    {
        "nvlink": {"Tree": (0.52, 1.25, 28.0), "Ring": (0.47, 1.9, 3.4)},
        "pcie": {"Tree": (1.0, 1.9, 28.0), "Ring": (1.0, 2.5, 5.7)},
        "net": {"Tree": (5.0, 8.5, 28.0), "Ring": (2.7, 4.0, 9.6)},
    },
    _LL_OLD,
    None,
    (0.25, 0.25),
    False,
)
# v2.18.3 to v2.22.3.
_MIDDLE = Era(
    (2, 18),
    {"Tree": (6.8, 14.0, 0.0), "Ring": (6.6, 14.0, 8.4)},
    {
        "nvlink": {"Tree": (0.6, 1.25, 28.0), "Ring": (0.6, 1.9, 3.4)},
        "pcie": {"Tree": (1.0, 1.9, 28.0), "Ring": (1.0, 2.5, 5.7)},
        "net": {"Tree": (5.0, 8.5, 28.0), "Ring": (2.7, 4.0, 14.0)},
    },
    _LL_OLD,
    23.0,
    (0.25, 0.25),
    False,
)
# v2.23.4 to v2.30.7.
_NEW = Era(
    (2, 23),
    {"Tree": (6.8, 14.0, 8.4), "Ring": (6.6, 14.0, 8.4), "PAT": (8.0, 8.0, 8.0)},
    {
        "nvlink": {"Tree": (0.6, 1.25, 4.0), "Ring": (0.6, 1.9, 3.4)},
        "pcie": {"Tree": (1.0, 1.9, 4.0), "Ring": (1.0, 2.5, 5.7)},
        "net": {"Tree": (5.0, 8.5, 14.0), "Ring": (2.7, 4.0, 14.0)},
    },
    _LL_NEW,
    25.0,
    (0.5, 0.5),
    True,
)
ERAS = (_OLD, _MIDDLE, _NEW)
DEFAULT = "2.28"

# GB/s of one channel, by one, two or more servers.
LL128_CHANNEL = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 40.0}
TREE_CHANNEL = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (70.0, 42.8, 24.0),
}
# NCCL's factors for the bandwidth of a tree, from 64 bytes on in factors of two; 1 beyond them.
TREE_FACTOR: Mapping[str, tuple[float, ...]] = {
    "LL": (*(1.0,) * 4, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "LL128": (*(1.0,) * 5, 0.9, 0.8, 0.8, 0.8, 0.7, *(0.6,) * 6, 0.8, *(0.9,) * 4),
    "Simple": (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, *(0.5,) * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}


def era_of(version: str) -> Era:
    """The era of a version such as ``2.19`` or ``2.19.3``.

    Raises:
        UsageError: it is no version, or older than the cost model.
    """
    match = re.fullmatch(r"(\d{1,2})\.(\d{1,2})(\.\d{1,3})?", version)
    found = [era for era in ERAS if match and era.since <= (int(match[1]), int(match[2]))]
    if not found or not match or int(match[1]) != 2:
        raise UsageError(
            f"no rule is known for NCCL {version[:20]!r}",
            where="--nccl-version",
            hint="choose 2.4 or newer, such as 2.19",
        )
    return found[-1]


def chip_of(generation: str) -> str:
    """The column of the tables above for a generation; older chips and unknown ones as Volta, as NCCL does."""
    known = {"a100": "ampere", "rtx4090": "ampere", "h100": "hopper", "h200": "hopper", "h800": "hopper"}
    return {**known, "b200": "blackwell"}.get(generation, "volta")
