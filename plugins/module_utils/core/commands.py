# SPDX-License-Identifier: GPL-3.0-or-later
"""The console command ``magnetar``: hands over to the package that has the subcommand.

Agent and control plane do not import each other, and either may be installed without the other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Optional

AGENT, CONTROL = "magnetar_agent.cli", "magnetar_control.cli"
#: Subcommands of the control plane; the agent's command line has the others, and shows the help of all.
OF_CONTROL = ("serve", "api", "conductor", "audit", "db", "cell", "config", "policy",
              "machine-type", "image-property")
#: Those of the agent that need not know what the control plane has.
OF_AGENT = ("agent", "token", "console", "version")
#: The status of a command whose reader has gone, as shells report it: 128 and the number of SIGPIPE.
READER_GONE = 141


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the subcommand; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _run(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # as of `| head`: what is still to be written goes nowhere, also when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE


def _run(words: list[str]) -> int:
    wanted = CONTROL if words and words[0] in OF_CONTROL else AGENT
    try:
        module = import_module(wanted)
    except ModuleNotFoundError as error:
        extra = "agent" if wanted == AGENT else "control"
        sys.stderr.write("magnetar: %s is missing. Install magnetar[%s].\n" % (error.name, extra))
        return 1
    if wanted == CONTROL or (words and words[0] in OF_AGENT):
        return int(module.main(words))
    return int(module.main(words, also=_of_control()))


def _of_control() -> Any:
    """What adds the control plane's subcommands to a command line; ``None`` where it is not installed."""
    try:
        return import_module(CONTROL).subcommands
    except ModuleNotFoundError:
        return None
