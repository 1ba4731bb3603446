"""docs/reference/commands.md: every command with its options, and the exit statuses, from the command line itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from api.cli import app
from api.cli.run import Exit
from tests.docs.markdown import table

HEAD = """# Commands

`nightmill COMMAND --help` says the same on a terminal. Progress and messages go to stderr, what a script would read
to stdout.

## Exit status

"""
COMPLETION = """
## Shell completion

`nightmill --install-completion` writes completion of commands and options for the shell that it is called from (bash,
zsh, fish, PowerShell); a new shell has it. `nightmill --show-completion` prints it instead, to be put where you like.

"""


def render() -> str:
    root = typer.main.get_command(app)
    parts = [HEAD, table(("status", "meaning"), statuses()), COMPLETION]
    parts += [section(name, command) for name, command in commands(root, "nightmill")]
    return "".join(parts).rstrip() + "\n"


def statuses() -> Iterator[tuple[str, str]]:
    """The comments of the class are the words: they stand beside the numbers."""
    told = dict(re.findall(r"^\s+(\w+) = \d+  # (.*)$", inspect.getsource(Exit), re.MULTILINE))
    for status in Exit:
        yield str(int(status)), told.get(status.name, "done")


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Depth first, in the order of the help; groups are not commands themselves."""
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child, inner in children.items():
        yield from commands(inner, f"{name} {child}")


def section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    usage = " ".join([name, *(metavar(each) for each in arguments), *(["[OPTIONS]"] if options else [])])
    words = " ".join((command.help or "").split())
    rows = [
        (f"`{metavar(each).strip('[]')}`", "required" if each.required else "", words_of(each)) for each in arguments
    ]
    rows += [(f"`{spelling(each)}`", default(each), words_of(each)) for each in options]
    told = table(("argument or option", "default", "meaning"), rows) + "\n" if rows else ""
    return f"## {name}\n\n`{usage}`\n\n{words}\n\n{told}"


def metavar(argument: Any) -> str:
    text = argument.metavar or argument.name.upper()
    if argument.required or text.startswith("["):
        return str(text)
    return f"[{text}]"


def spelling(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {value(option)}"


def value(option: Any) -> str:
    annotation = option.type_descriptor.annotation
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return "|".join(str(each.value) for each in annotation)
    return {int: "INTEGER", float: "NUMBER", Path: "PATH", str: "TEXT"}.get(annotation, "TEXT")


def default(option: Any) -> str:
    if option.required:
        return "required"
    found = option.default
    if found is None or found is False or found == ():
        return ""
    return f"`{found.value if isinstance(found, Enum) else found}`"


def words_of(parameter: Any) -> str:
    told = str(parameter.help or "")
    return f"{told} Repeatable." if parameter.multiple and "repeatable" not in told else told
