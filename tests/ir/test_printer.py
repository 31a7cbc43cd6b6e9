"""The text form is stable: what is printed reads back, what is not IR is refused at its line."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs import CUDA, HOST, TREE_COLLECTIVES, chain, final, random_schedule, schedule_of

from collc.collectives.model import Collective
from collc.errors import IRError
from collc.ir import printer
from collc.ir.printer import parse_program, print_program
from collc.ir.verify import verify
from collc.options import Target


@given(st.sampled_from(TREE_COLLECTIVES), st.integers(1, 7), st.integers(0, 99), st.sampled_from([HOST, CUDA]))
def test_reads_back_what_it_prints(collective: Collective, nranks: int, seed: int, target: Target) -> None:
    program = final(random_schedule(collective, nranks, seed), target)
    text = print_program(program)
    assert parse_program(text) == program
    assert print_program(parse_program(text)) == text


def test_comments_and_blank_lines_are_ignored() -> None:
    program = final(schedule_of(Collective.REDUCE, 3, [chain(3, 1)], root=1))
    lines = print_program(program).splitlines()
    text = "# by hand\n\n" + "\n".join(f"{line}   # why" for line in lines)
    assert parse_program(text) == program


BASE = print_program(final(schedule_of(Collective.ALL_REDUCE, 3, [chain(3, 0)])))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("collc-ir/1", "collc-ir/2", r"x.ir:1: expected 'collc-ir/1"),
        ("all_reduce", "all_reduse", r"x.ir:1: no collective is called 'all_reduse'"),
        ("share 0: ", "share 1: ", r"x.ir:2: expected share 0, not 1"),
        ("[0, 1)", "[0, 1/0)", r"x.ir:2: "),
        ("[0, 1)", "[1, 1)", r"x.ir:2: a share must be a non-empty part"),
        ("fifo 0: 0 -> ", "fifo 0: 0 -> 0,", r"x.ir:3: a FIFO must go from one rank to other"),
        ("  rank 0", "  rank 7", r"x.ir:\d+: rank 7 out of order or not below 3"),
        ("recvReduceSend share 0", "recvReduce share 0", r"x.ir:\d+: no primitive is called 'recvReduce'"),
        ("    send share 0 lag 0 send", "    send share 0 lag 0 recv", r"x.ir:\d+: send needs no recv and send"),
        ("lag 0", "lag zero", r"x.ir:\d+: unexpected line"),
        ("slots=4", "slots=0", r"x.ir: a FIFO has 1 to 64 slots, not 0"),
        ("slots=4", "slots=99999999999", r"x.ir:1: expected"),
        ("ranks=3", "ranks=0", r"x.ir: .*a program has 1 to|x.ir:\d+: rank"),
        ("share 0 lag 0 send 3", "share 5 lag 0 send 3", r"names share 5, which does not exist"),
        ("share 0 lag 0 send 3", "share 0 lag 0 send 50", r"names FIFO 50, which does not exist"),
    ],
)
def test_refuses_at_the_line(old: str, new: str, message: str) -> None:
    assert old in BASE
    with pytest.raises(IRError, match=message) as caught:
        parse_program(BASE.replace(old, new, 1), "x.ir")
    assert "\n" not in str(caught.value)


@given(st.text(max_size=300))
def test_any_text_is_refused_with_one_line(text: str) -> None:
    with pytest.raises(IRError) as caught:
        parse_program(text, "x.ir")
    assert len(str(caught.value).splitlines()) == 1


@given(st.data())
def test_a_damaged_line_never_escapes_as_another_error(data: st.DataObject) -> None:
    lines = BASE.splitlines()
    i = data.draw(st.integers(0, len(lines) - 1))
    j = data.draw(st.integers(0, len(lines[i])))
    lines[i] = lines[i][:j] + data.draw(st.text(max_size=3)) + lines[i][j + data.draw(st.integers(0, 3)) :]
    with contextlib.suppress(IRError):
        parse_program("\n".join(lines), "x.ir")


def test_the_example_of_the_docstring_is_a_program() -> None:
    lines = [line[4:] for line in (printer.__doc__ or "").splitlines() if line.startswith("    ")]
    verify(parse_program("\n".join(lines)))


def test_a_huge_number_of_ranks_is_refused_before_memory_is_taken() -> None:
    text = "collc-ir/1 all_gather ranks=999999999 slots=1 chunk=16\nchannel 0\n"
    with pytest.raises(IRError, match="1 to 4096 ranks, not 999999999") as error:
        parse_program(text, "many.ir")
    assert error.value.where == "many.ir:1"


@pytest.mark.parametrize("text", ["nvlink", "nvlink:", "nvlink:x", "sea:1", "nvlink:1,nvlink:2"])
def test_weights_that_are_no_weights(text: str) -> None:
    with pytest.raises(IRError, match="weights of nvlink"):
        printer.parse_weights(text)
