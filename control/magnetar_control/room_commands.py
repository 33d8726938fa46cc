# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar host room``: whether the servers of a failed host would find a place on the other hosts."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from .command_parts import open_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from magnetar_control.scheduler.room_report import RoomReport


def add_room_command(command: Any, actions: Any) -> None:
    """Add the command ``room`` to *actions*, the subparsers of the group ``host``. *command*: the function of ``cli``
    that adds a command."""
    room = command(actions, "room", run_host_room,
                   "Report whether all servers of each host would have a place on other hosts if it failed (N+1), for "
                   "the cloud, its zones and its aggregates. Changes nothing. Status 1 if this does not hold.",
                   "magnetar host room\n  magnetar host room --zone hall2\n  magnetar host room --aggregate ssd --json")
    room.add_argument("--zone", metavar="Z", help="only for the hosts of this availability zone")
    room.add_argument("--aggregate", metavar="A", help="only for the hosts of this aggregate, by name or uuid")
    room.add_argument("--json", action="store_true", help="as a JSON list, as of GET /v1/capacity")


def run_host_room(options: argparse.Namespace) -> int:
    """Run ``magnetar host room``: report for each host whether its servers would fit on other hosts if this host
    failed. Return the exit status."""
    from magnetar_control.scheduler.room_report import report_room

    with open_parts(options) as parts:
        reports = report_room(parts.store, parts.services().volume, parts.settings, options.zone, options.aggregate)
    if options.json:
        print(json.dumps([report.as_document() for report in reports], indent=1))
    else:
        _print_reports(reports)
    return 0 if all(report.holds for report in reports) else 1


def _print_reports(reports: Sequence[RoomReport]) -> None:
    """Print a line for each report. For each host whose servers would not all fit on other hosts if it failed, also
    print a line on stderr."""
    from magnetar_control.scheduler.room_report import CLOUD, describe_lacking_host

    for report in reports:
        name = CLOUD if report.scope.kind == CLOUD else f"{report.scope.kind} {report.scope.name}"
        print(f"{name}\tN+1 {'holds' if report.holds else 'does not hold'}\t{report.reason}")
    texts = {room.host: describe_lacking_host(room) for report in reports for room in report.lacking}
    for _host, text in sorted(texts.items()):
        print(f"magnetar: {text}", file=sys.stderr)
