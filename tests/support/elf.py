"""Reads the needed libraries and the exported names of a binary with pyelftools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import Symbol, SymbolTableSection


def needed(path: Path) -> set[str]:
    """The libraries that a binary asks the loader for (DT_NEEDED)."""
    with path.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        tags: list[Any] = list(dynamic.iter_tags())  # pyelftools adds `needed` to the tags of that name
        return {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}


def symbols(path: Path) -> list[Symbol]:
    """The dynamic symbols of a binary, defined and undefined."""
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection)
        return list(table.iter_symbols())


def relocated(path: Path) -> set[str]:
    """The symbols that the loader looks up by name to fill in addresses of a binary."""
    names: set[str] = set()
    with path.open("rb") as file:
        binary = ELFFile(file)
        for section in binary.iter_sections():
            if isinstance(section, RelocationSection):
                table = binary.get_section(section["sh_link"])
                assert isinstance(table, SymbolTableSection)
                names |= {table.get_symbol(one["r_info_sym"]).name for one in section.iter_relocations()}
    return names - {""}
