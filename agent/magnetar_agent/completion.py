# SPDX-License-Identifier: GPL-3.0-or-later
"""Shell completion for bash and zsh, generated from the argument parser, so that it has all commands and options."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = ("bash", "zsh")

_BASH = r"""# bash completion for {name}; load it with: source <({name} completion bash)
_{name}() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" path="" word at
    for ((at = 1; at < COMP_CWORD; at++)); do
        word="${{COMP_WORDS[at]}}"
        case " $(_{name}_words "$path") " in
            *" $word "*) [[ "$word" == -* ]] || path="${{path:+$path }}$word" ;;
        esac
    done
    case "${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
    esac
    COMPREPLY=($(compgen -W "$(_{name}_words "$path")" -- "$current"))
}}
_{name}_words() {{
    case "$1" in
{words}
    esac
}}
complete -F _{name} {name}
"""


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script that completes the commands and options of *parser* in *shell* (``bash`` or ``zsh``). zsh uses
    the script for bash, through bashcompinit."""
    words, values = [], []
    for path, command in _commands(parser):
        words.append(f'        "{path}") echo "{" ".join(_completion_words(command))}" ;;')
        for action in _actions(command):
            if action.choices and action.option_strings:
                values.append((action.option_strings, " ".join(map(str, action.choices)), "-W"))
            elif action.type is not None and getattr(action.type, "__name__", "") == "Path":
                values.append((action.option_strings, "", "-f"))
    cases = [f'        {"|".join(options)}) COMPREPLY=($(compgen {flag} '
             + (f'"{chosen}" ' if flag == "-W" else "") + '-- "$current")); return ;;'
             for options, chosen, flag in dict.fromkeys((tuple(o), c, f) for o, c, f in values if o)]
    text = _BASH.format(name=parser.prog, words="\n".join(words), values="\n".join(cases))
    if shell == "zsh":
        return "autoload -U +X bashcompinit && bashcompinit\n" + text
    return text


def _commands(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield path, parser
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - the only way to see them
            for name, command in action.choices.items():
                yield from _commands(command, f"{path} {name}".strip())


def _completion_words(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in _actions(parser):
        yield from action.option_strings
        if not action.option_strings and action.choices:
            yield from map(str, action.choices)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001 - argparse shows them nowhere else
