"""Faults that the tests plant into copies of the kernels' headers, each at one place of a protocol.

A fault is a list of edits: a text that stands exactly once in a header, and the text in its place. Faults of the
verbs themselves (`RELAXED_LOAD`, `RELAXED_STORE`, `SWITCH_MEMBER`) are part of the emulator's headers, which a macro
switches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collc.resources import resource_dir

FOLDER = Path("collc") / "cuda"


@dataclass(frozen=True)
class Edit:
    """One change of a header of `templates/include/collc/cuda`."""

    header: str
    before: str
    after: str = ""

    def apply(self, text: str) -> str:
        """Returns the header with the change; refuses a text that stands there more or less than once."""
        if text.count(self.before) != 1:
            raise AssertionError(f"{self.header} contains {text.count(self.before)} times: {self.before}")
        return text.replace(self.before, self.after)


_BARRIER_OR = "return barrier_or(failed) ? Progress::kAborted : Progress::kDone;"
_NO_BARRIER_OR = "return failed ? Progress::kAborted : Progress::kDone;"
_PUBLISH = "  COLLC_DEVICE void publish(const Step &step, const FifoRef *recv, const FifoRef *, const Chunk &chunk) {\n"
_PUBLISH_CHUNK = "publish_counters(step, recv, chunk, true, chunk.elements * sizeof(T));"
_FLAG_STORE = "      flag_store(end.publish_to, passed_before(end, chunk.index) + 1);"
_FREE_SLOT = "      free_slot(end.publish_to, passed_before(end, chunk.index) + 1);"
_FREE_HEAD = "publish_counters(step, recv, chunk, false);"
_BUFFERS = "    const Buffers at = buffers_of<T>(step, share, chunk);\n"
_READS = "        const bool reads = i < step.nrecv;\n"
_FETCH_ROW = "  fetch_row(state, launch, channel, row);\n  barrier();\n"
_PLACE_SHARES = "  place_shares(state, launch, sizeof(T), shares);\n"
_LOOK = "for_each_of_mine(&ExchangeLane::look);\n      "
_END = "const bool ends = !open || *stop_ != 0;\n      "
_PUBLISH_EXCHANGE = """    if (sends(message))
      flag_store(end.publish_to, end.position);
    else
      free_slot(end.publish_to, end.position);"""
_PLACE = """          if (reads && !failed && end.by_address != 0) {
            const uint64_t at = load(place_word(end.wait_on, end, passed));
            if (at != 0) place = reinterpret_cast<char *>(at);
          }
"""
_READER_TEST = "      if (distance(ends_[recv[i].fifo], is_input) == kNotThere) return nullptr;\n"
_OUTPUT = "(share.out_base + chunk.begin) * sizeof(T)"
_LANE_OFFSET = "(stream.done * lanes_of(message) + lane_) * state_.lane_bytes"
_STAYS = "(step.flags & kOverwritten) == 0 || call_.input != call_.output;"
_CHUNK_BYTES = """      if (end.chunk_bytes != nullptr)
        store(end.chunk_bytes + slot_number(end, passed_before(end, chunk.index)) * kWordsPerLine, bytes);
"""

EDITS: dict[str, tuple[Edit, ...]] = {
    # Barriers.
    "SHARES_BARRIER": (
        Edit("executor.h", _FETCH_ROW),
        # The copies of the tables still need their barrier: without it addresses would be any.
        Edit("executor.h", _PLACE_SHARES, _FETCH_ROW + _PLACE_SHARES),
    ),
    "WAIT_BARRIER": (Edit("simple.h", _BARRIER_OR, _NO_BARRIER_OR),),
    "LINE_WAIT_BARRIER": (Edit("lines.h", _BARRIER_OR, _NO_BARRIER_OR),),
    "PUBLISH_BARRIER": (
        Edit("simple.h", _PUBLISH + "    barrier();\n", _PUBLISH),
        Edit("in_switch.h", _PUBLISH + "    barrier();\n", _PUBLISH),
    ),
    "LINE_PUBLISH_BARRIER": (Edit("lines.h", _PUBLISH + "    barrier();\n", _PUBLISH),),
    "FINISH_BARRIER": (Edit("counters.h", "    if (launch_.cached == 0) barrier();"),),
    "SCALED_BARRIER": (
        Edit("simple.h", "call_.factor));\n    barrier();\n", "call_.factor));\n"),
    ),
    # Waits.
    "SLOT_WAIT": (Edit("simple.h", _READS, "        if (i >= step.nrecv) continue;\n" + _READS),),
    "CHUNK_WAIT": (Edit("simple.h", _READS, "        if (i < step.nrecv) continue;\n" + _READS),),
    "LINE_SLOT_WAIT": (
        Edit("lines.h", "failed |= !wait_for(end, freed_for(end, passed), false, step, recv[i].fifo);", "continue;"),
    ),
    "LENT_WAIT": (
        Edit("direct.h", "static_cast<void>(this->wait_for(end, last + 1, false, step, number));"),
    ),
    "EARLY_ACQUIRE": (
        Edit("counters.h", "    if (reads) flag_acquire(end.wait_on);\n"),
        Edit("counters.h", "    uint64_t have = flag_poll(end.wait_on);\n",
             "    if (reads) flag_acquire(end.wait_on);\n    uint64_t have = flag_poll(end.wait_on);\n"),
    ),
    "FLAG_CHECK": (
        Edit("ll.h", "    if (missing == 0) return true;\n", "    return true;\n"),
        Edit("ll128.h", "    bool there = ll128_load(lines, flag, value);\n",
             "    bool there = ll128_load(lines, flag, value);\n    there = true;\n"),
    ),
    "ONE_FLAG": (
        Edit("ll.h", "return kAll & ~ll_load", "return 1u & ~ll_load"),
        Edit("ll.h", "return wanted & ~ll_load", "return (wanted & (~wanted + 1)) & ~ll_load"),
    ),
    # Flags and counters.
    "TAIL_STORE": (Edit("counters.h", _FLAG_STORE),),
    "TAIL_FREED": (Edit("counters.h", _FLAG_STORE, _FREE_SLOT),),
    "HEAD_STORE": (Edit("counters.h", "      free_slot(end.publish_to, passed_before(end, chunk.index) + 1);"),),
    "EARLY_HEAD": (
        Edit("lines.h", "    " + _FREE_HEAD + "\n"),
        Edit("ll.h", _BUFFERS, f"    {_FREE_HEAD}\n{_BUFFERS}"),
        Edit("ll128.h", _BUFFERS, f"    {_FREE_HEAD}\n{_BUFFERS}"),
    ),
    "EARLY_FLAG": (
        Edit("simple.h", f"    {_PUBLISH_CHUNK}\n"),
        Edit("simple.h", "    Places from{nullptr, slots_, step.nrecv};\n",
             f"    {_PUBLISH_CHUNK}\n    Places from{{nullptr, slots_, step.nrecv}};\n"),
        Edit("in_switch.h", f"    this->{_PUBLISH_CHUNK}\n"),
    ),
    "POSITION": (Edit("counters.h", "        home.position = passed_before(end, nchunks);\n"),),
    "TURNS": (Edit("counters.h", "end.position + index * end.turns;", "end.position + index;"),),
    "SAME_FLAG": (
        Edit("ll.h", "static_cast<uint32_t>(passed + 1) & kLLFlags;", "1;"),
        Edit("ll128.h", "{ return passed + 1; }", "{ return 1; }"),
    ),
    "CLEANING": (Edit("ll.h", "    clean(step, recv, u);\n"),),
    # Sizes and offsets.
    "CHUNK_BYTES": (Edit("counters.h", _CHUNK_BYTES),),
    "LINE_BYTES": (
        Edit("lines.h", "if (i >= step.nrecv && end.chunk_bytes != nullptr && !failed)", "if (false)"),
    ),
    "SHORT_OFFSETS": (
        Edit("simple.h", _OUTPUT, f"static_cast<uint32_t>({_OUTPUT})"),
        Edit("exchange.h", f"const uint64_t at = {_LANE_OFFSET};",
             f"const uint32_t at = static_cast<uint32_t>({_LANE_OFFSET});"),
    ),
    # Buffers that peers read in place.
    "UNREAD_PLACE": (Edit("simple.h", _PLACE),),
    "OTHER_BUFFER": (Edit("simple.h", "+ (is_input ? 0 : 1)];", "+ (is_input ? 1 : 0)];"),),
    "NOT_THERE": (Edit("simple.h", _READER_TEST),),
    "OLD_PLACE": (
        Edit("simple.h", "                               const char *lent) const {\n",
             "                               const char *lent) const {\n    if (lent == nullptr) return;\n"),
    ),
    "OVERWRITTEN": (Edit("simple.h", f"const bool stays = {_STAYS}", "const bool stays = true;"),),
    "OWN_FIRST": (Edit("counters.h", "return step.input_at;", "return 0;"),),
    # Transfers. The build has all six; `is_left_out` of the emulator says which one a run has.
    "EXCHANGE": (
        Edit("exchange.h", _LOOK + "barrier();\n", _LOOK + "if (!is_left_out(1)) barrier();\n"),
        Edit("exchange.h", _END + "barrier();\n", _END + "if (!is_left_out(2)) barrier();\n"),
        Edit("exchange.h", "if (end.seen < need) return;",
             "if (!is_left_out(sends(message) ? 3 : 4) && end.seen < need) return;"),
        Edit("exchange.h", _PUBLISH_EXCHANGE, "    if (is_left_out(5)) return;\n" + _PUBLISH_EXCHANGE),
        Edit("exchange.h", "if (!sends(message)) flag_acquire", "if (!sends(message) && !is_left_out(6)) flag_acquire"),
    ),
}  # fmt: skip


def plant(fault: str, folder: Path) -> list[str]:
    """Writes the headers with a fault below `folder`; returns the compiler's flags, to stand before other includes."""
    texts: dict[str, str] = {}
    for edit in EDITS.get(fault, ()):
        text = texts.get(edit.header) or header(edit.header)
        texts[edit.header] = edit.apply(text)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / FOLDER / name).write_text(text, encoding="utf-8")
    # A fault leaves variables and parameters unused: no warnings.
    return ["-w", "-I", str(folder), f"-DCOLLC_FAULT_{fault}"]


def header(name: str) -> str:
    """Returns the text of a header of the kernels."""
    return (resource_dir("templates") / "include" / FOLDER / name).read_text(encoding="utf-8")
