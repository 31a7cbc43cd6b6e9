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
        spread: the number of trees that `collc.packing.candidates.spread` cut the plan's trees into; 0 if it left them
            as they are.
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
        """Returns the plan type among the candidates.

        Args:
            plan: the plan of this entry.
        """
        return EVERYWHERE if self.everywhere else plan.kind
