"""The programs of a library, each with its plan and the sizes that it serves."""

from __future__ import annotations

from dataclasses import dataclass

from collc.checker.layout import ALWAYS, When
from collc.ir.nodes import Program
from collc.packing.model import EVERYWHERE, Plan


@dataclass(frozen=True)
class Entry:
    """One row of a library's table of programs.

    Args:
        program: lowered and verified; its `chunk_bytes` are at most a slot.
        plan: number of its plan among the plans of the allocation.
        spread: into how many trees the plan's were cut (`collc.packing.candidates.spread`); 0: left as they are.
        everywhere: the reduction was moved to every rank (`collc.lowering.reduce_everywhere`).
        when: from how many bytes of NCCL's count on it runs, and over which protocol.
        why: one line for people; empty where there was nothing to choose.
    """

    program: Program
    plan: int
    spread: int = 0
    when: When = ALWAYS
    why: str = ""
    everywhere: bool = False

    def kind(self, plan: Plan) -> str:
        """The kind of plan that it is among the candidates, where `plan` is its plan."""
        return EVERYWHERE if self.everywhere else plan.kind
