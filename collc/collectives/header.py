"""Renders the table of collectives as C++: the texts of two headers under templates/include/collc/.

Device code includes only the header with the numbers, because NVRTC compiles no host functions.
"""

from __future__ import annotations

from collc.collectives.model import Collective, Traits

_NUMBERS = """\
// The collectives: rendered from collc/collectives/model.py by `make golden`. Do not edit.
#pragma once
#include <cstdint>

namespace collc {

// Their numbers stand in step tables.
enum class Collective : uint32_t {
ENUMERATORS};

constexpr uint32_t kCollectives = COUNT;

}  // namespace collc
"""

_TRAITS = """\
// What each collective is: rendered from collc/collectives/model.py by `make golden`. Do not edit.
#pragma once
#include "collc/collectives.h"

namespace collc {

// A row of collc.collectives.model.TRAITS.
struct CollectiveTraits {
  Collective collective;
  const char *name;     // nccl-tests'
  bool uses_trees;      // runs programs of its own; else made of transfers
  bool reduces;         // an operation combines the inputs
  bool rooted;          // the caller names a root
  bool root_has_input;  // only the root's input counts
  bool root_has_output;
  bool input_per_rank;  // the input holds `count` elements for every rank
  bool output_per_rank;
};

constexpr CollectiveTraits kTraits[kCollectives] = {
ROWS};

constexpr bool in_order(uint32_t n) { \
return n == 0 || (kTraits[n - 1].collective == Collective(n - 1) && in_order(n - 1)); }
static_assert(in_order(kCollectives), "a collective's number is its row");

constexpr const CollectiveTraits &traits(Collective collective) { return kTraits[static_cast<uint32_t>(collective)]; }

}  // namespace collc
"""


def headers() -> dict[str, str]:
    """Returns the text of each header by its file name."""
    rows = sorted(Collective, key=lambda collective: collective.traits.number)
    enumerators = "".join(f"  k{c.traits.title} = {c.traits.number},\n" for c in rows)
    table = "".join(f"    {{{_cells(c, c.traits)}}},\n" for c in rows)
    return {
        "collectives.h": _NUMBERS.replace("ENUMERATORS", enumerators).replace("COUNT", str(len(rows))),
        "collective_traits.h": _TRAITS.replace("ROWS", table),
    }


def _cells(collective: Collective, row: Traits) -> str:
    flags = (
        row.uses_trees,
        row.reduces,
        row.rooted,
        row.input.at_root,
        row.output.at_root,
        row.input.per_rank,
        row.output.per_rank,
    )
    words = ", ".join("true" if flag else "false" for flag in flags)
    return f'Collective::k{row.title}, "{collective.value}", {words}'
