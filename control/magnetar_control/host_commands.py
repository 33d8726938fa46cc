# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar host drain``, ``undrain`` and ``drains``: move all servers of a cloud's host to other hosts."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import TimedOut

from .command_parts import open_operator

if TYPE_CHECKING:
    from magnetar_control.compute.caller import Caller
    from magnetar_control.compute.drains.drains import DrainReport, ServerOfDrain
#: Seconds between two looks at a drain.
POLL = 1.0


def add_host_commands(command: Any, actions: Any) -> None:
    """Add the commands ``drain``, ``undrain`` and ``drains`` to *actions*, the subparsers of the group ``host``.
    *command*: the function of ``cli`` that adds a command."""
    drain = command(actions, "drain", run_host_drain,
                    "Disable the compute service of a host of the cloud, and move its servers to other hosts: running "
                    "ones live, others cold. The conductors do the work, also after this command has ended. Asked "
                    "again, it tries the servers that stayed again. With --wait, status 1 if a server stays.",
                    "magnetar host drain kvm1 --dry-run\n  magnetar host drain kvm1 --reason 'new memory' --wait")
    drain.add_argument("host", help="name of the host")
    drain.add_argument("--reason", metavar="TEXT", help="reason that lists of compute services show (default: drained)")
    drain.add_argument("--dry-run", action="store_true", help="only print the moves, and the servers that would stay")
    drain.add_argument("--wait", action="store_true", help="wait until nothing is left to do, and show the progress")
    drain.add_argument("--timeout", type=float, metavar="SECONDS", help="wait no longer than this; the drain continues")
    undrain = command(actions, "undrain", run_host_undrain,
                      "End the drain of a host, and enable its compute service. Moves that have begun continue, and no "
                      "server is moved back.", "magnetar host undrain kvm1")
    undrain.add_argument("host", help="name of the host")
    shown = command(actions, "drains", run_host_drains, "Show the progress of drains, and why servers stay.",
                    "magnetar host drains\n  magnetar host drains kvm1 --json")
    shown.add_argument("host", nargs="?", help="name of a host; by default, all hosts that are drained")
    shown.add_argument("--json", action="store_true", help="as a JSON list of {host, state, message, servers}")


def run_host_drain(options: argparse.Namespace) -> int:
    """Run ``magnetar host drain``: move all servers of a host to other hosts, and return the exit status."""
    from magnetar_control.compute.drains import drains

    with open_operator(options) as caller:
        if options.dry_run:
            _print_servers(drains.plan_drain.function(caller, options.host))
            return 0
        drains.start_drain.function(caller, options.host, options.reason)
        report = drains.show_drain.function(caller, options.host)
        if options.wait:
            report = _wait_for_drain(caller, report, options.timeout)
        print(drains.progress_text(report))
        _print_servers(report.in_state("stays"))
    return 1 if options.wait and report.in_state("stays") else 0


def _wait_for_drain(caller: Caller, report: DrainReport, timeout: float | None) -> DrainReport:
    """Wait until a drain of a host is complete, and return its last report. During the wait, print the progress to
    stderr. *report*: the first report. *timeout*: in seconds; ``None`` for no limit. Raises ``TimedOut``, and
    ``Conflict`` if the drain was ended meanwhile."""
    from magnetar_control.compute.drains import drains

    host, begun = report.host.name, report.drain.round if report.drain else 0
    deadline, text = None if timeout is None else time.monotonic() + timeout, ""
    while not drains.check_progress(report, begun):
        if deadline is not None and time.monotonic() >= deadline:
            raise TimedOut(f"The drain of host {host} takes longer than {timeout:g} s. It continues; `magnetar host "
                           f"drains {host}` shows its progress.")
        if text != (text := drains.progress_text(report)):
            print(text, file=sys.stderr, flush=True)
        time.sleep(POLL)
        report = drains.show_drain.function(caller, host)
    return report


def run_host_undrain(options: argparse.Namespace) -> int:
    """Run ``magnetar host undrain``: end the drain of a host, and return the exit status."""
    from magnetar_control.compute.drains import drains

    with open_operator(options) as caller:
        drains.end_drain.function(caller, options.host)
    return 0


def run_host_drains(options: argparse.Namespace) -> int:
    """Run ``magnetar host drains``: print the progress of drains, and return the exit status."""
    from magnetar_control.compute.drains import drains

    with open_operator(options) as caller:
        reports = [drains.show_drain.function(caller, options.host)] if options.host else \
            drains.list_drains.function(caller)
    if options.json:
        print(json.dumps([{
            "host": report.host.name, "state": report.drain and report.drain.state,
            "message": report.drain and report.drain.message,
            "servers": [server._asdict() for server in report.servers]} for report in reports], indent=1))
        return 0
    for report in reports:
        drain = report.drain
        print(f"{drains.progress_text(report)} ({drain.state if drain else 'no drain'})")
        if drain is not None and drain.message:
            print(f"  {drain.message}")
        _print_servers(report.in_state("stays"))
    return 0


def _print_servers(servers: Iterable[ServerOfDrain]) -> None:
    """Print a line for each server of a drain: its name, its uuid, and either the type and target host of its move, or
    the reason why it stays on its host."""
    for server in servers:
        fate = f"stays: {server.reason}" if server.state == "stays" else f"{server.how} to {server.to or 'no host'}"
        print(f"{server.name}\t{server.id}\t{fate}")
