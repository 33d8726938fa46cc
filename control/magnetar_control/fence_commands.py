# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar host fence``, ``unfence`` and ``fence-status``."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .command_parts import open_parts

if TYPE_CHECKING:
    from magnetar_control.fencing.host_fencing import HostFencing, HostStatus

_WHERE = "Run it where the conductor of the host's cell runs, with its settings and as its user or root."


def add_fence_commands(command: Any, actions: Any) -> None:
    """Add the commands ``fence``, ``unfence`` and ``fence-status`` to *actions*, the subparsers of the group ``host``.
    *command*: the function of ``cli`` that adds a command."""
    fence = command(actions, "fence", run_fence, "Switch a host off by its fence agent, confirm that, and keep the "
                    f"host disabled and down. Status 1 if the host is not off for certain. {_WHERE}",
                    "magnetar host fence kvm1\n  magnetar host fence kvm1 --confirmed")
    unfence = command(actions, "unfence", run_unfence, "Switch a fenced host on, and give it back the status that it "
                      f"had. Status 1 if that failed; the host then stays fenced. {_WHERE}",
                      "magnetar host unfence kvm1")
    status = command(actions, "fence-status", run_fence_status, "Print the last fencing of hosts, and ask their fence "
                     "agents for their power. Status 1 if an agent does not answer, or a fenced host is on. "
                     f"{_WHERE}", "magnetar host fence-status\n  magnetar host fence-status kvm1 --json")
    for parser in (fence, unfence):
        parser.add_argument("host", help="name of the host")
    fence.add_argument("--confirmed", action="store_true", help="the host was switched off by hand and is off for "
                       "certain; no fence agent is run")
    unfence.add_argument("--confirmed", action="store_true", help="the host was switched on by hand, or will be; no "
                         "fence agent is run")
    status.add_argument("host", nargs="?", help="name of the host; by default, all hosts with a power device or a "
                        "fencing")
    status.add_argument("--json", action="store_true", help="as a JSON list of {host, agent, state, power, problem, "
                        "requested_at, requested_by, ended_at, message}")


@contextlib.contextmanager
def _host_fencing(options: argparse.Namespace) -> Iterator[HostFencing]:
    from magnetar_control.fencing.host_fencing import HostFencing

    with open_parts(options) as parts:
        yield HostFencing(parts.store, parts.settings)


def _operator() -> str:
    """Return the system user who runs the command, as USER@MACHINE, to be saved with the fencing. Under sudo this is
    the user who called sudo."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # the user has no name here
        user = str(os.geteuid())
    return f"{user}@{socket.gethostname()}"[:200]


def run_fence(options: argparse.Namespace) -> int:
    """Run ``magnetar host fence``: switch a host off, and print the result. Return the exit status."""
    with _host_fencing(options) as fencing:
        row = fencing.fence_host(options.host, _operator(), confirmed=options.confirmed)
    print(f"{row.host}\t{row.state}\t{row.message}")
    return 0


def run_unfence(options: argparse.Namespace) -> int:
    """Run ``magnetar host unfence``: switch a fenced host on, and print the result. Print a warning if the host stays
    down because it was forced down before it was fenced. Return the exit status."""
    with _host_fencing(options) as fencing:
        row = fencing.unfence_host(options.host, _operator(), confirmed=options.confirmed)
        forced_down = fencing.is_forced_down(options.host)
    print(f"{row.host}\t{row.state}\t{row.message}")
    if forced_down:
        print(f"magnetar: host {row.host} was forced down before it was fenced, and stays so. When it is back: "
              f"openstack compute service set --up {row.host} nova-compute", file=sys.stderr)
    return 0


def run_fence_status(options: argparse.Namespace) -> int:
    """Run ``magnetar host fence-status``: print the last fencing and the power state of hosts. Return the exit status.
    """
    with _host_fencing(options) as fencing:
        statuses = fencing.host_statuses(options.host)
    if options.json:
        print(json.dumps([_document(status) for status in statuses], indent=1))
    for status in statuses:
        row = status.fencing
        if not options.json:
            print("\t".join((status.host, row.state if row else "never fenced", f"power {status.power or 'unknown'}",
                             row.message if row else "")).rstrip())
        if status.problem:
            print(f"magnetar: {status.problem}", file=sys.stderr)
        elif status.contradicts:
            print(f"magnetar: host {status.host} is fenced, and its power is on. Fence it again, or unfence it.",
                  file=sys.stderr)
    return 1 if any(status.problem or status.contradicts for status in statuses) else 0


def _document(status: HostStatus) -> dict[str, Any]:
    row = status.fencing
    columns = ("state", "requested_at", "requested_by", "ended_at", "message")
    return {"host": status.host, "agent": status.agent, "power": status.power, "problem": status.problem,
            **{name: getattr(row, name) if row else None for name in columns}}
