"""`collc opt`: runs named passes on an IR text, like mlir-opt."""

from __future__ import annotations

from pathlib import Path

import click

from collc.cli import report
from collc.cli.report import debug_option, emit_json, json_option
from collc.cli.sections import SectionedCommand
from collc.collectives.blocks import block_layout
from collc.errors import IRError
from collc.inputs import read_text
from collc.ir.interpret import run_on_sets
from collc.ir.nodes import Program
from collc.ir.printer import parse_program, print_program
from collc.ir.verify import verify
from collc.options import TARGETS, TargetKind
from collc.pipeline import PASSES, parse_passes, run_passes

# The most steps of a program to interpret, because the interpreter does every element of every step.
MOST_STEPS = 20_000


@click.command("opt", cls=SectionedCommand, epilog=f"Passes: {', '.join(PASSES)}.")
@click.argument("file", metavar="IN.ir", type=click.Path(path_type=Path))
@click.option("--passes", "names", default="", help="Passes in order, such as fuse_copies,merge_channels=2.")
@click.option(
    "--target",
    type=click.Choice([kind.value for kind in TargetKind]),
    default="cuda",
    show_default=True,
    help="The target whose defaults the passes use.",
)
@click.option("--verify", "proved", is_flag=True, help="Verify the program before the first pass and after each one.")
@click.option("--interpret", is_flag=True, help="Interpret the result and print which inputs every block contains.")
@json_option
@debug_option
def command(file: Path, names: str, target: str, proved: bool, interpret: bool, as_json: bool) -> None:
    """Run passes on IN.ir, the text that `collc compile --dump-after` writes, and print the result."""
    chosen = parse_passes(names, TARGETS[TargetKind(target)])
    program = parse_program(read_text(file), str(file))
    try:
        program = run_passes(program, chosen, proved=proved)
        shown = _interpreted(program) if interpret else print_program(program)
    except IRError as error:
        place = f"{file}: {error.where}" if error.where else str(file)
        raise IRError(error.what, where=place, hint=error.hint) from None
    if as_json:
        emit_json({"file": str(file), "passes": [name for name, _ in chosen], "lines": shown.splitlines()})
    else:
        report.text(shown, nl=False)


def _interpreted(program: Program) -> str:
    """Returns one line per rank and block of its output: the ranks whose inputs the block contains.

    Raises:
        IRError: the program does not verify, or has too many steps.
    """
    # A program that does not verify may never end, or read data that was never written.
    verify(program)
    steps = sum(len(steps) for channel in program.channels for steps in channel.steps)
    if steps > MOST_STEPS:
        raise IRError(f"{steps} steps are too many to interpret", hint=f"give a program of {MOST_STEPS} at most")
    outputs = run_on_sets(program)
    layout = block_layout(program.collective, program.nranks, program.root)
    lines = []
    for rank, output in enumerate(outputs):
        blocks = layout.out_blocks[rank]
        size = len(output) // (max(blocks.values()) + 1) if blocks else 0
        for block, at in sorted(blocks.items()):
            held = sorted({int(mask) for mask in output[at * size : (at + 1) * size]})
            text = " or ".join(",".join(str(r) for r in range(program.nranks) if mask >> r & 1) for mask in held)
            lines.append(f"rank {rank}: block {block} holds the input of {text}\n")
    return "".join(lines)
