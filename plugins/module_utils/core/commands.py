# SPDX-License-Identifier: GPL-3.0-or-later
"""The console command ``magnetar``: hands over to the package that has the subcommand.

Agent and control plane do not import each other, and either may be installed without the other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Optional

AGENT, CONTROL = "magnetar_agent.cli", "magnetar_control.cli"
#: Subcommands of the control plane; the agent's command line has the others, and the help of all.
OF_CONTROL = ("serve", "api", "conductor", "audit", "db", "cell", "config")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the subcommand; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    wanted = CONTROL if words and words[0] in OF_CONTROL else AGENT
    try:
        module = import_module(wanted)
    except ModuleNotFoundError as error:
        extra = "agent" if wanted == AGENT else "control"
        sys.stderr.write("magnetar: %s is missing. Install magnetar[%s].\n" % (error.name, extra))
        return 1
    return int(module.main(words))
