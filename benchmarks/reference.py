"""Renders the page `commands.md` of the site: every command with its options, from the commands themselves."""

from __future__ import annotations

import html

import click

from collc.cli.app import COMMANDS, cli

HEAD = """\
# Commands

`make docs` writes this page from the commands' own help. `collc --help` lists the commands, `collc COMMAND
--help` the options of one. A default value stands in brackets.

Every command takes `--json`, which prints JSON for programs, and `--debug`, which shows a traceback when something
fails. [errors.md](errors.md) has the exit codes. The commands never ask a question. They show progress on a terminal
and are silent in a pipe.

## Shell completion

Put one line into the start-up file of your shell. It completes commands and options.

For bash 4.4 or newer in `~/.bashrc`, for zsh in `~/.zshrc`, for fish in `~/.config/fish/completions/collc.fish`:

```
eval "$(_COLLC_COMPLETE=bash_source collc)"      # bash
eval "$(_COLLC_COMPLETE=zsh_source collc)"       # zsh
_COLLC_COMPLETE=fish_source collc | source       # fish
```
"""
EVERYWHERE = {"--json", "--debug", "--help"}


def text() -> str:
    """The page."""
    context = click.Context(cli, info_name="collc")
    parts = [HEAD]
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        parts.append(section(name, command, click.Context(command, info_name=f"collc {name}")))
    return "\n".join(parts)


def section(name: str, command: click.Command, context: click.Context) -> str:
    """One command: how it is called, what it does, its options."""
    usage = " ".join(command.collect_usage_pieces(context))
    what = "\n\n".join(" ".join(part.split()) for part in (command.help or "").replace("\b", "").split("\n\n"))
    lines = [f"## collc {name}", "", f"    collc {name} {usage}", "", escaped(what), ""]
    rows = [record for option in command.get_params(context) if (record := option.get_help_record(context))]
    rows = [(names, meaning) for names, meaning in rows if not set(names.replace(",", " ").split()) & EVERYWHERE]
    if rows:
        lines += ["| option | meaning |", "|---|---|"]
        lines += [f"| {code(names)} | {escaped(' '.join(meaning.split()))} |" for names, meaning in rows]
        lines.append("")
    return "\n".join(lines)


def code(names: str) -> str:
    """Returns options as code; a bar must not end the cell of a table."""
    return f"<code>{html.escape(names)}</code>".replace("|", "&#124;") if "|" in names else f"`{names}`"


def escaped(words: str) -> str:
    """Returns a help text without Markdown's tags, tables and links."""
    return words.replace("<", "&lt;").replace("|", "\\|").replace("[", "\\[").replace("*", "\\*").replace("_", "\\_")
