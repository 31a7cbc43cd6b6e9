"""Litmus tests of the three protocols under PTX's memory model: what the orders in the verbs' table are there for.

`litmus/*.litmus` are the protocols in few instructions, each with a forbidden or an allowed outcome. `ptx_model.py`
tries every execution. Each order that a protocol needs is weakened once, and then the forbidden outcome occurs.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ptx_model import holds, parse
from test_verbs import PTX

FOLDER = Path(__file__).with_name("litmus")
TESTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.litmus"))}

# Tests in which a counter announces the data.
COUNTED = {"simple-chunk", "simple-forward", "simple-next-step", "slot-freed-by-release", "transfer-look"}
# Weakened order -> the tests that it breaks.
WEAKER: dict[str, tuple[str, str, set[str]]] = {
    "a relaxed release": ("st.release.sys", "st.relaxed.sys", {*COUNTED, "host-word"}),
    "a release at GPU scope": ("st.release.sys", "st.release.gpu", {*COUNTED, "host-word"}),
    "a relaxed acquire": ("ld.acquire.sys", "ld.relaxed.sys", {*COUNTED, "host-word"}),
    "an acquire at GPU scope": ("ld.acquire.sys", "ld.acquire.gpu", {*COUNTED, "host-word"}),
    "polls that may be kept in a cache": ("ld.relaxed.sys", "ld.weak", {*COUNTED, "ll-again", "ll128-one-piece"}),
    "polls at GPU scope": ("ld.relaxed.sys", "ld.relaxed.gpu", {*COUNTED, "ll-again", "ll128-one-piece"}),
    "lines that may be kept back": ("st.relaxed.sys", "st.weak", {"ll-again", "ll128-one-piece"}),
    "no first barrier of a block": ("bar.cta.sync 1 ", " " * 15, COUNTED),
    "no second barrier of a block": ("bar.cta.sync 2 ", " " * 15, {"simple-forward"}),
}

# Classical tests with the verdicts of the paper and the PTX ISA, which show that the axioms are the model's.
CLASSICAL: dict[str, tuple[str, bool]] = {
    "message passing, relaxed": (
        """PTX { x=0; f=0; }
        P0@cta 0,gpu 0      | P1@cta 1,gpu 0       ;
        st.relaxed.gpu x, 1 | ld.relaxed.gpu r0, f ;
        st.relaxed.gpu f, 1 | ld.relaxed.gpu r1, x ;
        exists (P1:r0 == 1 /\\ P1:r1 == 0)""",
        True,
    ),
    "message passing, release and acquire": (
        """PTX { x=0; f=0; }
        P0@cta 0,gpu 0      | P1@cta 1,gpu 0       ;
        st.weak x, 1        | ld.acquire.gpu r0, f ;
        st.release.gpu f, 1 | ld.weak r1, x        ;
        exists (P1:r0 == 1 /\\ P1:r1 == 0)""",
        False,
    ),
    "message passing, scopes that do not reach": (
        """PTX { x=0; f=0; }
        P0@cta 0,gpu 0      | P1@cta 1,gpu 0       ;
        st.weak x, 1        | ld.acquire.cta r0, f ;
        st.release.cta f, 1 | ld.weak r1, x        ;
        exists (P1:r0 == 1 /\\ P1:r1 == 0)""",
        True,
    ),
    "store buffering, fences": (
        """PTX { x=0; y=0; }
        P0@cta 0,gpu 0      | P1@cta 1,gpu 0       ;
        st.relaxed.gpu x, 1 | st.relaxed.gpu y, 1  ;
        fence.sc.gpu        | fence.sc.gpu         ;
        ld.relaxed.gpu r0, y | ld.relaxed.gpu r1, x ;
        exists (P0:r0 == 0 /\\ P1:r1 == 0)""",
        False,
    ),
    "store buffering, fences that only acquire and release": (
        """PTX { x=0; y=0; }
        P0@cta 0,gpu 0      | P1@cta 1,gpu 0       ;
        st.relaxed.gpu x, 1 | st.relaxed.gpu y, 1  ;
        fence.acq_rel.gpu   | fence.acq_rel.gpu    ;
        ld.relaxed.gpu r0, y | ld.relaxed.gpu r1, x ;
        exists (P0:r0 == 0 /\\ P1:r1 == 0)""",
        True,
    ),
    "load buffering": (
        """PTX { x=0; y=0; }
        P0@cta 0,gpu 0       | P1@cta 1,gpu 0       ;
        ld.relaxed.gpu r0, x | ld.relaxed.gpu r1, y ;
        st.relaxed.gpu y, 1  | st.relaxed.gpu x, 1  ;
        exists (P0:r0 == 1 /\\ P1:r1 == 1)""",
        True,
    ),
    "load buffering with dependencies: out of thin air": (
        """PTX { x=0; y=0; }
        P0@cta 0,gpu 0       | P1@cta 1,gpu 0       ;
        ld.relaxed.gpu r0, x | ld.relaxed.gpu r1, y ;
        st.relaxed.gpu y, r0 | st.relaxed.gpu x, r1 ;
        exists (P0:r0 == 1 /\\ P1:r1 == 1)""",
        False,
    ),
    "reads of one place do not go back": (
        """PTX { x=0; }
        P0@cta 0,gpu 0      | P1@cta 1,gpu 0       ;
        st.relaxed.gpu x, 1 | ld.relaxed.gpu r0, x ;
                            | ld.relaxed.gpu r1, x ;
        exists (P1:r0 == 1 /\\ P1:r1 == 0)""",
        False,
    ),
    "weak reads of one place may": (
        """PTX { x=0; }
        P0@cta 0,gpu 0 | P1@cta 1,gpu 0 ;
        st.weak x, 1   | ld.weak r0, x  ;
                       | ld.weak r1, x  ;
        exists (P1:r0 == 1 /\\ P1:r1 == 0)""",
        True,
    ),
    "two atomics do not both find the first value": (
        """PTX { x=0; }
        P0@cta 0,gpu 0                | P1@cta 1,gpu 0                ;
        atom.relaxed.gpu.add r0, x, 1 | atom.relaxed.gpu.add r1, x, 1 ;
        exists (P0:r0 == 0 /\\ P1:r1 == 0)""",
        False,
    ),
    "a barrier orders what is before it": (
        """PTX { x=0; }
        P0@cta 0,gpu 0 | P1@cta 0,gpu 0 ;
        st.weak x, 1   | bar.cta.sync 1 ;
        bar.cta.sync 1 | ld.weak r0, x  ;
        exists (P1:r0 == 0)""",
        False,
    ),
    "a barrier of another block does not": (
        """PTX { x=0; }
        P0@cta 0,gpu 0 | P1@cta 1,gpu 0 ;
        st.weak x, 1   | bar.cta.sync 1 ;
        bar.cta.sync 1 | ld.weak r0, x  ;
        exists (P1:r0 == 0)""",
        True,
    ),
}


@pytest.mark.parametrize("name", TESTS)
def test_the_protocols_keep_what_they_promise(name: str) -> None:
    assert holds(parse(TESTS[name]))


@pytest.mark.parametrize("fault", WEAKER)
def test_a_weaker_order_breaks_it(fault: str) -> None:
    right, wrong, broken = WEAKER[fault]
    touched = {name: text for name, text in TESTS.items() if right in text and "~exists" in text}
    assert broken == {name for name, text in touched.items() if not holds(parse(text.replace(right, wrong)))}


def test_an_acquire_before_the_poll_breaks_it() -> None:
    text = TESTS["simple-chunk"]
    for old, new in (("ld.relaxed.sys r0, t", "ld.?"), ("ld.acquire.sys r1, t", "ld.relaxed.sys r0, t")):
        assert old in text
        text = text.replace(old, new)
    assert not holds(parse(text.replace("ld.?", "ld.acquire.sys r1, t")))


def test_a_chunk_announced_by_the_verb_that_frees_slots_breaks_it() -> None:
    free = next(op for op in PTX["free_slot_"]).replace(".global.u64", "")
    assert not holds(parse(TESTS["simple-chunk"].replace("st.release.sys", free)))


@pytest.mark.parametrize("name", CLASSICAL)
def test_the_axioms_are_those_of_the_model(name: str) -> None:
    text, allowed = CLASSICAL[name]
    assert holds(parse(text)) == allowed


def test_every_instruction_is_what_a_verb_becomes() -> None:
    """The litmus tests use exactly the orders and scopes in the table of verbs."""
    verbs = {op for row in PTX.values() for op in row if op.startswith(("ld.", "st."))}
    ordered = {".".join(op.split(".")[:3]) for op in verbs if "relaxed" in op or "acquire" in op or "release" in op}
    written = {op for text in TESTS.values() for op in re.findall(r"\b(?:ld|st)\.(?!weak)\w+\.\w+", text)}
    assert written == ordered
