"""Help in sections: the options of each command by purpose."""

from __future__ import annotations

import enum

import click


class Section(enum.Enum):
    """A heading in the help of a command, in the order of the help."""

    COMMON = "Options"
    LINKS = "Links and GPUs"
    CUDA = "CUDA"
    EXPERT = "Expert"


# The section of an option is the same in all commands. Options that are not listed are common.
SECTIONS: dict[str, Section] = {
    option: section
    for section, options in {
        Section.LINKS: (
            "allocations classes cluster cpu fabric free gpus interfaces links merge partial rails relay survive "
            "topology"
        ),
        Section.CUDA: "counters cuda direct gpu-model in-switch model nccl-version params specialise",
        Section.EXPERT: (
            "breakdown budget channels chunk chunks copy-engine debug dump-after dump-dir expand ir keep-source "
            "machine orbits passes proto rebuild routes scaling solver steps time-limit time-stages tolerance trace "
            "trade tune-candidates wait"
        ),
    }.items()
    for option in (f"--{name}" for name in options.split())
}


class SectionedCommand(click.Command):
    """A command whose help lists its options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[Section, list[tuple[str, str]]] = {section: [] for section in Section}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                rows[section_of(parameter)].append(record)
        for section, records in rows.items():
            if records:
                with formatter.section(section.value):
                    formatter.write_dl(records)


def section_of(parameter: click.Option) -> Section:
    """Returns the section that shows `parameter`."""
    return next((SECTIONS[name] for name in parameter.opts if name in SECTIONS), Section.COMMON)
