# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar incidents``: the deaths of hosts, and what conductors have done about them."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from .command_parts import open_operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar_control.compute.availability.incidents import IncidentReport


def add_incident_commands(command: Any, group: Callable[[str, str], Any]) -> None:
    """Add the command group ``incidents`` with its commands. *command*, *group*: the functions of ``cli`` that add a
    command and a command group."""
    actions = group("incidents", "Show hosts that have died, and the automatic evacuation of their servers.")
    shown = command(actions, "list", run_incidents_list, "List the last incidents, newest first.",
                    "magnetar incidents list\n  magnetar incidents list --open --json")
    shown.add_argument("--open", action="store_true", dest="only_open", help="only incidents that are not closed")
    details = command(actions, "show", run_incidents_show, "Show an incident and its servers. Status 1 if a server "
                      "could not be evacuated.", "magnetar incidents show 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    close = command(actions, "close", run_incidents_close,
                    "Close an open incident: no further server is evacuated for it. A host that is still silent, and "
                    "not fenced, gets a new incident, so this also lets a blocked or failed one be tried again.",
                    "magnetar incidents close 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    for parser in (details, close):
        parser.add_argument("id", help="uuid of the incident")
    for parser in (shown, details):
        parser.add_argument("--json", action="store_true", help="as JSON, as of GET /v1/incident")


def run_incidents_list(options: argparse.Namespace) -> int:
    """Run ``magnetar incidents list``: print the last incidents (hosts that died), and return the exit status."""
    from magnetar_control.api.v1.incident import incident_document
    from magnetar_control.compute.availability import incidents

    with open_operator(options) as caller:
        reports = [report for report in incidents.list_incidents.function(caller)
                   if not options.only_open or report.incident.open_key is not None]
    if options.json:
        print(json.dumps([incident_document(report) for report in reports], indent=1))
        return 0
    for report in reports:
        _print_incident(report)
    return 0


def run_incidents_show(options: argparse.Namespace) -> int:
    """Run ``magnetar incidents show``: print one incident with its servers, and return the exit status."""
    from magnetar_control.api.v1.incident import incident_document
    from magnetar_control.compute.availability import incidents
    from magnetar_control.store.hosts.incidents import LOST

    with open_operator(options) as caller:
        report = incidents.show_incident.function(caller, options.id)
    if options.json:
        print(json.dumps(incident_document(report), indent=1))
    else:
        _print_incident(report)
        for server in report.servers:
            place = f"to {server.target}" if server.target else server.message or ""
            print(f"  {server.name}\t{server.server_id}\t{server.policy}\t{server.priority}\t{server.state}\t{place}")
    return 1 if report.count(LOST) else 0


def run_incidents_close(options: argparse.Namespace) -> int:
    """Run ``magnetar incidents close``: close an open incident, and return the exit status."""
    from magnetar_control.compute.availability import incidents

    with open_operator(options) as caller:
        _print_incident(incidents.close_incident.function(caller, options.id))
    return 0


def _print_incident(report: IncidentReport) -> None:
    incident = report.incident
    print(f"{incident.id}\t{incident.noticed_at[:19]}Z\t{report.name}\t{incident.state}\t{incident.message}")
