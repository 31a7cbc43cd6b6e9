"""The entries of a library: each is a program with its plan and the sizes that it serves."""

from __future__ import annotations

from dataclasses import dataclass

from collc.checker.layout import ALWAYS, When
from collc.ir.nodes import Program
from collc.packing.model import EVERYWHERE, Plan


@dataclass(frozen=True)
class Entry:
    """One row of a library's table of programs.

    Args:
        program: the lowered and verified program; its `chunk_bytes` are at most the size of a slot.
        plan: the number of its plan among the plans of the allocation.
        spread: the number of channels that the plan was spread to, or that `reduce_everywhere` got; the number of
            shares of a multi-path program; 0 if the plan's trees are as they were.
        everywhere: every rank reduces (`collc.lowering.reduce_everywhere`).
        when: the smallest size that the program runs for, in bytes of NCCL's count, and its protocol.
        why: the reason for its choice, one line for people; empty if there was no choice.
    """

    program: Program
    plan: int
    spread: int = 0
    when: When = ALWAYS
    why: str = ""
    everywhere: bool = False

    def kind(self, plan: Plan) -> str:
        """Returns the plan type: `EVERYWHERE` if every rank reduces, else the type of the plan.

        Args:
            plan: the plan of this entry.
        """
        return EVERYWHERE if self.everywhere else plan.kind
