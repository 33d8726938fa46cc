# SPDX-License-Identifier: GPL-3.0-or-later
"""The console command ``magnetar``. It passes control to the package that has the subcommand: the agent or the control
plane. These do not import each other, and each may be installed alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Optional

AGENT, CONTROL = "magnetar_agent.cli", "magnetar_control.cli"
#: Subcommands of the control plane; the agent's command line has all others, and shows the help of both.
OF_CONTROL = ("serve", "api", "conductor", "audit", "db", "upgrade", "cell", "config", "policy",
              "balance", "backup", "incidents", "machine-type", "image-property")
#: Actions of the control plane in a group of both.
SHARED = {"host": ("drain", "undrain", "drains", "fence", "unfence", "fence-status", "room", "adopt")}
#: Subcommands of the agent that do not depend on the control plane.
OF_AGENT = ("agent", "token", "console", "logs", "version")
#: Exit status when the reader of the output has gone, as shells report it: 128 plus the number of SIGPIPE.
READER_GONE = 141


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the command line ``magnetar`` with *arguments* (default: from ``sys.argv``), and return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _run(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # such as `| head`: further output goes nowhere, also at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE


def _run(words: list[str]) -> int:
    of_control = bool(words) and (words[0] in OF_CONTROL or (len(words) > 1 and words[1] in SHARED.get(words[0], ())))
    module_name = CONTROL if of_control else AGENT
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        extra = "agent" if module_name == AGENT else "control"
        sys.stderr.write("magnetar: %s is missing. Install magnetar[%s].\n" % (error.name, extra))
        return 1
    if module_name == CONTROL or (words and words[0] in OF_AGENT):
        return int(module.main(words))
    return int(module.main(words, also=_of_control()))


def _of_control() -> Any:
    """Return the function that adds the control plane's subcommands to the agent's command line; ``None`` if the
    control plane's package is not installed.
    """
    try:
        return import_module(CONTROL).subcommands
    except ModuleNotFoundError:
        return None
