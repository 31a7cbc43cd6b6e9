"""Builds a tuner plugin for NCCL from templates/tuner and a table, as a shared library in plain C."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from collc import __version__
from collc.build.toolchain import find_cxx, run_tool
from collc.codegen.render import environment
from collc.errors import BuildError
from collc.export.nccl_tuner import ALGORITHMS, FUNCTIONS, PROTOCOL_NUMBERS, TunerTable
from collc.outputs import written_aside
from collc.process import temporary_folder
from collc.resources import resource_dir

FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
LINK_FLAGS = ("-shared", "-Wl,-z,defs", "-Wl,-z,relro,-z,now", "-Wl,--build-id=none")
_SOURCES = ("plugin.c", "table.h", "tuner_api.h")
# A C++ compiler compiles a file as C++ unless `-x c` precedes it.
_UNITS = ("-x", "c", "plugin.c", "-x", "c", "table.c")


def library_name(machine: str) -> str:
    """Returns the file name of the plugin of a machine, which NCCL_TUNER_PLUGIN finds: libnccl-tuner-<machine>.so."""
    return f"libnccl-tuner-{machine}.so"


def table_source(name: str, tables: Sequence[TunerTable], remark: str) -> str:
    """Returns the table as a C file.

    Args:
        name: the name of the plugin in NCCL's log.
        remark: the source of the times.
    """
    heads: list[dict[str, object]] = []
    rows: list[dict[str, object]] = []
    choices: list[dict[str, object]] = []
    for table in tables:
        if not table.tuned:
            continue
        label = f"{table.collective.value}, {table.ranks} ranks on {table.nodes} nodes"
        heads.append(
            {
                "function": FUNCTIONS[table.collective],
                "ranks": table.ranks,
                "nodes": table.nodes,
                "first": len(rows),
                "count": len(table.rows),
                "label": label,
            }
        )
        for row in table.rows:
            rows.append({"least": row.least, "first": len(choices), "count": len(row.choices)})
            choices += [
                {
                    "algorithm": ALGORITHMS[choice.algorithm],
                    "protocol": PROTOCOL_NUMBERS[choice.protocol],
                    "channels": choice.channels,
                    "label": str(choice),
                }
                for choice in row.choices
            ]
    values = {"version": __version__, "remark": _plain(remark), "name": _plain(name)}
    return environment().get_template("tuner/table.c.j2").render(**values, tables=heads, rows=rows, choices=choices)


def build_tuner(path: Path, name: str, tables: Sequence[TunerTable], remark: str) -> None:
    """Writes the plugin to `path`, completely or not at all. Equal tables and compilers give equal bytes.

    Args:
        name, remark: as for `table_source`.

    Raises:
        BuildError: there is no compiler, or the file cannot be written.
    """
    compiler = find_cxx()
    templates = resource_dir("templates")
    with temporary_folder() as folder:
        for source in _SOURCES:
            shutil.copyfile(templates / "tuner" / source, folder / source)
        shutil.copyfile(templates / "include" / "nccl.h", folder / "nccl.h")
        (folder / "table.c").write_text(table_source(name, tables, remark), encoding="utf-8")
        run_tool([compiler.path, *FLAGS, *_UNITS, *LINK_FLAGS, "-o", "made.so"], cwd=str(folder))
        try:
            with written_aside(path, 0o755) as aside:
                shutil.copyfile(folder / "made.so", aside)
        except OSError as error:
            raise BuildError(f"cannot write the plugin: {error.strerror}", where=str(path)) from error


def _plain(text: str) -> str:
    """Returns the text with only characters that are safe in a C string or comment."""
    return re.sub(r"[^A-Za-z0-9 .,:;()_+-]", "_", text)[:200]
