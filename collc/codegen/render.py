"""Renders the generated sources of a library with Jinja. All decisions are in the contexts."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import jinja2

from collc.codegen.context import SourceContext
from collc.resources import resource_dir

TEMPLATE, KERNELS = "tables.cpp.j2", "specialised.cu.j2"


@cache
def environment() -> jinja2.Environment:
    """Returns the Jinja environment: undefined values are errors, and a line with only a block tag prints nothing."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource_dir("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(context: SourceContext) -> str:
    """Returns the text of generated.cpp."""
    return _render(TEMPLATE, context)


def render_kernels(context: Any) -> str:
    """Returns the source of the specialized kernels.

    Args:
        context: a KernelsContext of `collc.codegen.specialise`.
    """
    return _render(KERNELS, context)


def _render(template: str, context: Any) -> str:
    values = {field.name: getattr(context, field.name) for field in dataclasses.fields(context)}
    return environment().get_template(template).render(values)
