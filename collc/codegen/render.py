"""Prints the generated source of a library through Jinja; decides nothing."""

from __future__ import annotations

import dataclasses
from functools import cache

import jinja2

from collc.codegen.context import SourceContext
from collc.resources import resource_dir

TEMPLATE = "tables.cpp.j2"


@cache
def environment() -> jinja2.Environment:
    """Jinja with undefined values as errors and without tricks of whitespace."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource_dir("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(context: SourceContext) -> str:
    """The text of generated.cpp."""
    values = {field.name: getattr(context, field.name) for field in dataclasses.fields(context)}
    return environment().get_template(TEMPLATE).render(values)
