# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the reference page of the commands: ``python -m tools.reference commands >docs/reference/commands.md``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from magnetar_agent.cli import build_command_line
from magnetar_control.cli import subcommands
from magnetar_control.settings_file import FILE

TOOLS = Path(__file__).parent
#: The help of the option that the head of the page describes.
CONFIG = f"settings (default: {FILE} when it exists)"
HEAD = """# Commands

For operators and developers: the commands `magnetar`, `magnetar-metadata`, `./quickstart` and `./check`, with all
arguments. `python -m tools.reference commands` prints this page from their parsers.

```sh
magnetar --help
source <(magnetar completion bash)     # or zsh
```

On hosts of the control plane the roles install the same command as `magnetar-control`. Its commands also take
`--config FILE`; the default is `/etc/magnetar/control.yml` if that exists. A failed command prints one sentence on
stderr and ends with status 1; wrong arguments give status 2.

## magnetar

"""
METADATA = """
## magnetar-metadata

The process that answers guests at 169.254.169.254. systemd and the agent start it; it takes no arguments for users. See
[metadata](metadata.md#process-and-limits).
"""
QUICKSTART = """
## quickstart

`./quickstart` in a copy of the repository (root) makes this machine a host with a control plane, and boots servers.

"""
CHECK = """
## check

`./check` in a copy of the repository (root) runs the tests. `./check fast` leaves out tests with guests and long ones;
`./check NAME …` runs single stages.

"""


def commands_page() -> str:
    """Return the whole page in Markdown."""
    top = build_command_line(subcommands)
    groups = list(_subcommands(top))
    rows = "".join(f"| [`magnetar {name}`](#magnetar-{name}) | {parser.description} |\n" for name, parser in groups)
    sections = "".join(_section(f"magnetar {name}", parser) for name, parser in groups)
    check, quickstart = _script("check"), _script("quickstart")
    stages = "".join(f"| `{name}` | {text} |\n" for name, (text, _run) in check.STAGES.items())
    return (f"{HEAD}| Command | Effect |\n|---|---|\n{rows}{sections}{METADATA}{QUICKSTART}"
            f"{_arguments([('', quickstart.quickstart_command_line())])}{CHECK}"
            f"{_arguments([('', check.check_command_line())])}\n| Stage | Content |\n|---|---|\n{stages}")


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield from action.choices.items()


def _section(name: str, parser: argparse.ArgumentParser) -> str:
    """Return the section about the subcommand *name*, with its own subcommands. *parser*: of this subcommand."""
    actions = list(_subcommands(parser))
    described = [(f"`{name} {action}`", *(of_action.description or "").partition(". "))
                 for action, of_action in actions]
    rows = "".join(f"| {command} | {effect}{'.' if rest else ''} |\n" for command, effect, _dot, rest in described)
    table = f"\n| Command | Effect |\n|---|---|\n{rows}" if actions else ""
    notes = "".join(f"\n* {command}: {rest}" for command, _effect, _dot, rest in described if rest)
    arguments = _arguments(actions or [("", parser)])
    return "\n".join((f"\n### {name}\n\n{parser.description}\n{table}", *([f"{notes[1:]}\n"] if notes else []),
                      *([arguments] if arguments else [])))


def _arguments(parsers: list[tuple[str, argparse.ArgumentParser]]) -> str:
    """Return a table of the arguments of *parsers*; empty when there are none. Subcommands with the same argument share
    a row.
    """
    names: dict[tuple[str, str], list[str]] = {}
    for name, parser in parsers:
        for action in parser._actions:  # noqa: SLF001
            if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)) and (  # noqa: SLF001
                    action.help != CONFIG):
                names.setdefault((_usage(action), _help(action)), []).append(name)
    if not names:
        return ""
    if len(parsers) == 1 and not parsers[0][0]:
        return "| Argument | Meaning |\n|---|---|\n" + "".join(f"| {usage} | {text} |\n" for usage, text in names)
    rows = "".join(f"| {'all' if len(sharing) == len(parsers) else ', '.join(f'`{name}`' for name in sharing)} "
                   f"| {usage} | {text} |\n" for (usage, text), sharing in names.items())
    return f"| Command | Argument | Meaning |\n|---|---|---|\n{rows}"


def _usage(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return f"`{action.option_strings[0]}{value}`"


def _help(action: argparse.Action) -> str:
    text = (action.help or "").replace("%(default)s", str(action.default)).replace("|", "\\|")
    named = action.choices if isinstance(action.choices, tuple) and action.metavar is None else ()
    choices = ", ".join(f"`{choice}`" for choice in named)
    return f"{text}: {choices}" if text and choices else text or choices


def _script(name: str) -> Any:
    """Return a script of this folder as a module. Scripts import each other by their names alone."""
    sys.path.insert(0, str(TOOLS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(TOOLS))
