"""Faults that the tests plant into copies of the headers of the kernels and of the emulator.

A fault is a list of edits. All faults are planted into one copy of the headers, which is compiled once. A library with
a fault is that code, linked with the number of the fault: `PLANTED` in an edit becomes a test for this number.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collc.resources import resource_dir

FOLDER = Path("collc") / "cuda"
EMULATION = Path(__file__).resolve().parent / "emulation"
# The name of the code that contains all faults, with every fault switched off.
NO_FAULT = "NO_FAULT"


@dataclass(frozen=True)
class Edit:
    """One change of a header: a text that the header contains exactly once, and the text in its place."""

    header: str
    before: str
    after: str

    def apply(self, text: str, number: int) -> str:
        """Returns the header with the change; refuses a text that the header contains more or less than once."""
        if text.count(self.before) != 1:
            raise AssertionError(f"{self.header} contains {text.count(self.before)} times: {self.before}")
        return text.replace(self.before, self.after.replace("PLANTED", f"(emulation::planted == {number})"))


def without(header: str, *statements: str) -> Edit:
    """Leaves out statements."""
    block = "\n".join(statements)
    return Edit(header, block, f"if (!PLANTED) {{\n{block}\n}}")


def ahead(header: str, place: str, *statements: str) -> Edit:
    """Inserts statements before a text."""
    return Edit(header, place, f"    if (PLANTED) {{\n{' '.join(statements)}\n}}\n{place}")


def instead(header: str, before: str, after: str) -> Edit:
    """Replaces an expression."""
    return Edit(header, before, f"(PLANTED ? {after} : {before})")


def unless(header: str, condition: str) -> Edit:
    """Makes the condition of an `if` false."""
    return Edit(header, condition, condition.replace("if (", "if (!PLANTED && ", 1))


_PUBLISH = "  COLLC_DEVICE void publish(const Step &step, const FifoRef *recv, const FifoRef *, const Chunk &chunk) {\n"
_PUBLISH_BARRIER = f"{_PUBLISH}    barrier();\n"
_MAY_PUBLISH_BARRIER = f"{_PUBLISH}    if (!PLANTED) barrier();\n"
_PUBLISH_CHUNK = "publish_counters(step, recv, chunk, true, chunk.elements * sizeof(T));"
_FLAG_STORE = "flag_store(end.publish_to, passed_before(end, chunk.index) + 1);"
_FREE_SLOT = "free_slot(end.publish_to, passed_before(end, chunk.index) + 1);"
_FREE_HEAD = "publish_counters(step, recv, chunk, false);"
_BUFFERS = "    const Buffers at = buffers_of<T>(step, share, chunk);\n"
_READS = "        const bool reads = i < step.nrecv;\n"
_FETCH_ROW = ("  fetch_row(state, launch, channel, row);", "  barrier();")
_PLACE_SHARES = "  place_shares(state, launch, sizeof(T), shares);\n"
_LINE_WAIT = "failed |= !wait_for(end, freed_for(end, passed), false, step, recv[i].fifo);"
_LENT_WAIT = "static_cast<void>(this->wait_for(end, last + 1, false, step, number));"
_LOOK = "for_each_of_mine(&ExchangeLane::look);\n      "
_END = "const bool ends = !open || *stop_ != 0;\n      "
_PUBLISH_EXCHANGE = """    if (sends(message))
      flag_store(end.publish_to, end.position);
    else
      free_slot(end.publish_to, end.position);"""
_OUTPUT = "(share.out_base + chunk.begin) * sizeof(T)"
_LANE_OFFSET = "(stream.done * lanes_of(message) + lane_) * state_.lane_bytes"
_LENT = "                               const char *lent) const {\n"

EDITS: dict[str, tuple[Edit, ...]] = {
    # Barriers. Without the first one addresses would be any: the copies of the tables still need theirs.
    "SHARES_BARRIER": (without("executor.h", *_FETCH_ROW), ahead("executor.h", _PLACE_SHARES, *_FETCH_ROW)),
    "WAIT_BARRIER": (instead("simple.h", "barrier_or(failed)", "failed"),),
    "LINE_WAIT_BARRIER": (instead("lines.h", "barrier_or(failed)", "failed"),),
    "PUBLISH_BARRIER": (
        Edit("simple.h", _PUBLISH_BARRIER, _MAY_PUBLISH_BARRIER),
        Edit("in_switch.h", _PUBLISH_BARRIER, _MAY_PUBLISH_BARRIER),
    ),
    "LINE_PUBLISH_BARRIER": (Edit("lines.h", _PUBLISH_BARRIER, _MAY_PUBLISH_BARRIER),),
    "FINISH_BARRIER": (unless("counters.h", "if (launch_.cached == 0) barrier();"),),
    "SCALED_BARRIER": (
        Edit("simple.h", "call_.factor));\n    barrier();\n", "call_.factor));\n    if (!PLANTED) barrier();\n"),
    ),
    # Waits.
    "SLOT_WAIT": (ahead("simple.h", _READS, "if (i >= step.nrecv) continue;"),),
    "CHUNK_WAIT": (ahead("simple.h", _READS, "if (i < step.nrecv) continue;"),),
    "LINE_SLOT_WAIT": (Edit("lines.h", _LINE_WAIT, f"{{\n    if (PLANTED) continue;\n    {_LINE_WAIT}\n    }}"),),
    "LENT_WAIT": (without("direct.h", _LENT_WAIT),),
    "EARLY_ACQUIRE": (
        unless("counters.h", "if (reads) flag_acquire(end.wait_on);"),
        ahead("counters.h", "    uint64_t have = flag_poll(end.wait_on);\n", "if (reads) flag_acquire(end.wait_on);"),
    ),
    "FLAG_CHECK": (
        Edit("ll.h", "    if (missing == 0) return true;\n", "    if (PLANTED || missing == 0) return true;\n"),
        Edit("ll128.h", "bool there = ll128_load(lines, flag, value);",
             "bool there = ll128_load(lines, flag, value) || PLANTED;"),
    ),
    "ONE_FLAG": (
        Edit("ll.h", "return kAll & ~ll_load", "return (PLANTED ? 1u : kAll) & ~ll_load"),
        Edit("ll.h", "return wanted & ~ll_load", "return (PLANTED ? wanted & (~wanted + 1) : wanted) & ~ll_load"),
    ),
    # Flags and counters.
    "HEAD_STORE": (without("counters.h", _FREE_SLOT),),
    "TAIL_STORE": (without("counters.h", _FLAG_STORE),),
    "TAIL_FREED": (Edit("counters.h", _FLAG_STORE, f"if (PLANTED) {_FREE_SLOT} else {_FLAG_STORE}"),),
    "EARLY_HEAD": (
        without("lines.h", _FREE_HEAD),
        ahead("ll.h", _BUFFERS, _FREE_HEAD),
        ahead("ll128.h", _BUFFERS, _FREE_HEAD),
    ),
    "EARLY_FLAG": (
        without("simple.h", _PUBLISH_CHUNK),
        ahead("simple.h", "    Places from{nullptr, slots_, step.nrecv};\n", _PUBLISH_CHUNK),
        without("in_switch.h", f"this->{_PUBLISH_CHUNK}"),
    ),
    "POSITION": (without("counters.h", "home.position = passed_before(end, nchunks);"),),
    "TURNS": (instead("counters.h", "end.position + index * end.turns", "end.position + index"),),
    "SAME_FLAG": (
        instead("ll.h", "static_cast<uint32_t>(passed + 1) & kLLFlags", "1"),
        Edit("ll128.h", "{ return passed + 1; }", "{ return PLANTED ? 1 : passed + 1; }"),
    ),
    "CLEANING": (without("ll.h", "clean(step, recv, u);"),),
    # Sizes and offsets.
    "CHUNK_BYTES": (unless("counters.h", "if (end.chunk_bytes != nullptr)"),),
    "LINE_BYTES": (unless("lines.h", "if (i >= step.nrecv && end.chunk_bytes != nullptr && !failed)"),),
    "SHORT_OFFSETS": (
        instead("simple.h", _OUTPUT, f"static_cast<uint32_t>({_OUTPUT})"),
        instead("exchange.h", _LANE_OFFSET, f"static_cast<uint32_t>({_LANE_OFFSET})"),
    ),
    # Buffers that peers read in place.
    "UNREAD_PLACE": (unless("simple.h", "if (reads && !failed && end.by_address != 0) {"),),
    "OTHER_BUFFER": (Edit("simple.h", "+ (is_input ? 0 : 1)];", "+ (is_input != PLANTED ? 0 : 1)];"),),
    "NOT_THERE": (unless("simple.h", "if (distance(ends_[recv[i].fifo], is_input) == kNotThere) return nullptr;"),),
    "OLD_PLACE": (Edit("simple.h", _LENT, f"{_LENT}    if (PLANTED && lent == nullptr) return;\n"),),
    "OVERWRITTEN": (Edit("simple.h", "const bool stays = ", "const bool stays = PLANTED || "),),
    "OWN_FIRST": (instead("counters.h", "step.input_at", "0"),),
    # Transfers.
    "EXCHANGE_LOOK_BARRIER": (Edit("exchange.h", _LOOK + "barrier();", _LOOK + "if (!PLANTED) barrier();"),),
    "EXCHANGE_MOVE_BARRIER": (Edit("exchange.h", _END + "barrier();", _END + "if (!PLANTED) barrier();"),),
    "EXCHANGE_SLOT_WAIT": (
        Edit("exchange.h", "if (end.seen < need) return;",
             "if (!(PLANTED && sends(message)) && end.seen < need) return;"),
    ),
    "EXCHANGE_CHUNK_WAIT": (
        Edit("exchange.h", "end.seen < need) return;", "(!PLANTED || sends(message)) && end.seen < need) return;"),
    ),
    "EXCHANGE_FLAG": (Edit("exchange.h", _PUBLISH_EXCHANGE, f"    if (PLANTED) return;\n{_PUBLISH_EXCHANGE}"),),
    "EXCHANGE_ACQUIRE": (unless("exchange.h", "if (!sends(message)) flag_acquire"),),
    # The verbs themselves: of GPUs from Volta on, of Pascal.
    "RELAXED_LOAD": (
        without("emulated_device.h", "emulation::emulator().acquire();"),
        Edit("emulated_device.h", "{ emulation::emulator().fence(); }",
             "{\n  if (!PLANTED) emulation::emulator().fence();\n}"),
    ),
    "RELAXED_STORE": (
        Edit("emulated_device.h", "release(flag, value, true)", "release(flag, value, !PLANTED)"),
        Edit("emulated_device.h", "  emulation::emulator().fence();\n  emulation",
             "  if (!PLANTED) emulation::emulator().fence();\n  emulation"),
    ),
    "SWITCH_MEMBER": (
        Edit("emulated_multimem.h", "  return found;", "  if (PLANTED) found.pop_back();\n  return found;"),
    ),
}  # fmt: skip


def number_of(fault: str) -> int:
    """Returns the number that a library with a fault is linked with; 0 for `NO_FAULT`."""
    return 0 if fault == NO_FAULT else 1 + list(EDITS).index(fault)


def plant(folder: Path) -> list[str]:
    """Writes the headers with all faults below a folder; returns the flags that must come before other includes."""
    texts: dict[str, str] = {}
    for fault, edits in EDITS.items():
        for edit in edits:
            text = texts.get(edit.header) or header(edit.header)
            texts[edit.header] = edit.apply(text, number_of(fault))
    for name, text in texts.items():
        path = folder / _place(name).relative_to(_root(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return ["-I", str(folder)]


def switch(fault: str, folder: Path) -> Path:
    """Writes the source that switches one fault on in the code with all faults."""
    source = folder / f"{fault}.cpp"
    source.write_text(f'#include "planted.h"\nconst uint32_t emulation::planted = {number_of(fault)};\n')
    return source


def header(name: str) -> str:
    """Returns the text of a header of the kernels, or of the emulator."""
    return _place(name).read_text(encoding="utf-8")


def _root(name: str) -> Path:
    return EMULATION if name.startswith("emulated_") else resource_dir("templates") / "include"


def _place(name: str) -> Path:
    return _root(name) / ("" if name.startswith("emulated_") else FOLDER) / name
