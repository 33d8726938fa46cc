# SPDX-License-Identifier: GPL-3.0-or-later
"""incident: incidents of dead hosts, for administrators."""

from __future__ import annotations

from magnetar_control.api.v1.servers.server_view import agent_timestamp
from magnetar_control.compute.availability import incidents
from magnetar_control.compute.availability.incidents import IncidentReport
from magnetar_control.compute.caller import Caller
from magnetar_control.store.hosts.incidents import LOST, MOVED, REMAINS, IncidentServer
from magnetar_core.document import Document
from magnetar_core.errors import NotFound
from magnetar_core.kinds import Incident
from magnetar_core.reconcile import is_uuid_key

from .driver import CloudDriver


class Incidents(CloudDriver):
    """The driver of the v1 API for incidents: failures of a host or of a whole cell, with the evacuation of the
    servers. A key that is a host's name refers to the last incident of that host."""

    kind, makeable = Incident, False

    def every(self, caller: Caller) -> list[Document]:
        return [incident_document(report) for report in incidents.list_incidents(caller)]

    def find(self, caller: Caller, key: str) -> Document | None:
        if not is_uuid_key(key):
            return next((shown for shown in self.every(caller) if shown["name"] == key), None)
        try:
            return incident_document(incidents.show_incident(caller, key.lower()))
        except NotFound:
            return None


def incident_document(report: IncidentReport) -> Document:
    """Return the incident in *report* in the format of the v1 API."""
    incident = report.incident
    return {"id": incident.id, "name": report.name, "host": incident.host, "cell": report.cell, "state": incident.state,
            "message": incident.message, **{name: agent_timestamp(getattr(incident, name)) for name in (
                "noticed_at", "fencing_at", "fenced_at", "finished_at")},
            "moved": report.count(MOVED), "failed": report.count(LOST), "remaining": report.count(REMAINS),
            "servers": [_shown_server(server) for server in report.servers]}


def _shown_server(server: IncidentServer) -> Document:
    return {"id": server.server_id, "name": server.name, "policy": server.policy, "priority": server.priority,
            "state": server.state, "attempts": server.attempts, "to": server.target, "reason": server.message}
