# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar export``: write a stopped server of this host to a folder, from which it runs without Magnetar."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_core.http.client import Client
from magnetar_core.http.endpoint import SOCKET
from magnetar_core.kinds import Server, ServerExport
from magnetar_core.plan import describe_outcome

if TYPE_CHECKING:
    import argparse

NOUN = ServerExport.noun
#: Seconds that an export may take.
TIMEOUT = 7 * 24 * 3600.0


def add_export_command(add_command: Any, commands: Any) -> None:
    """Add the command ``export`` to the subparsers *commands*. *add_command*: the function ``_command`` of ``cli``,
    which adds a subcommand."""
    command = add_command(commands, "export", run_export_command, "Write a stopped server to a folder, from which it "
                          "runs without Magnetar.",
                          "magnetar export web1\n  magnetar export web1 /srv/exports/web1 --check\n"
                          "  magnetar export web1 /srv/exports/web1")
    command.add_argument("server", help="name or uuid of a stopped server")
    command.add_argument("folder", nargs="?", help="new or empty folder in one of the agent's export_paths (default: "
                         "one with the name of the export, in the first of them)")
    command.add_argument("--name", help="name of the export (default: that of the folder, or of the server)")
    command.add_argument("--check", action="store_true", help="only say what would be done, or what hinders")
    command.add_argument("--json", action="store_true", dest="prints_json", help="print the result as JSON")
    command.add_argument("--socket", metavar="PATH", help=f"unix socket of the host's agent (default: {SOCKET})")


def run_export_command(options: argparse.Namespace) -> int:
    """Run ``magnetar export``, and return the exit status. A repeated command changes nothing."""
    folder = str(Path(options.folder).absolute()) if options.folder else None
    want: dict[str, Any] = {"server": options.server}
    with Client(f"unix://{options.socket or SOCKET}") as client:
        name = options.name or (Path(folder).name if folder else str(client.get(Server.noun, options.server)["name"]))
        answer = client.ensure(NOUN, name, {**want, "name": name, **({"folder": folder} if folder else {})},
                               dry_run=options.check, timeout=TIMEOUT, progress=_print_progress)
    if options.prints_json:
        print(json.dumps(answer, indent=2))
        return 0
    export = answer["resource"]
    print(describe_outcome(name, answer, options.check))
    if not options.check:
        print(f"{export['folder']} has {len(export['files'])} files, {export['stored_bytes']} bytes; its README.txt "
              "says how to start the guest elsewhere.")
        for note in export["notes"]:
            print(f"note: {note}")
    return 0


def _print_progress(operation: dict[str, Any]) -> None:
    """Print the phase of the running *operation*, and how much of it is done, to stderr."""
    progress = operation.get("progress") or {}
    if progress.get("total"):
        print(f"{progress['phase']}: {progress['done'] * 100 // progress['total']} %", file=sys.stderr)
