# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of incidents, each with its notification in the same transaction, and a line in the log."""

from __future__ import annotations

import logging
from typing import Any

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.store.hosts import incidents
from magnetar_control.store.hosts.incidents import (
    BLOCKED,
    CLOSED,
    DONE,
    EVACUATING,
    FAILED,
    NOTICED,
    RETURNED,
    IncidentRow,
)

log = logging.getLogger(__name__)
#: The event types of notifications, by the new state.
EVENTS = {NOTICED: "incident.start", EVACUATING: "incident.fence.end", FAILED: "incident.error",
          BLOCKED: "incident.error", DONE: "incident.end", RETURNED: "incident.end", CLOSED: "incident.end"}


def open_incident(conductor: Conductor, host: str | None, state: str, message: str) -> IncidentRow | None:
    """Open an incident for the failure of *host*, or of the whole cell if *host* is ``None``, and return the incident.
    Return ``None`` if such an incident is open already."""
    with conductor.database.write() as connection:
        incident = incidents.insert_incident_row(connection, host, state=state, message=message)
        if incident is not None:
            conductor.notifications.add_incident(connection, incident, EVENTS[state], conductor.name,
                                                 conductor.cell.name)
    if incident is not None:
        log.warning("incident %s: %s", incident.id, message, extra={"host": host})
    return incident


def change_incident(conductor: Conductor, incident: IncidentRow, state: str, message: str,
                    **columns: Any) -> IncidentRow | None:
    """Set the state, the message and further *columns* of an incident, and return its new row. Return ``None`` if
    another process has changed the incident's state since *incident* was read. A notification is sent only if the state
    changes."""
    with conductor.database.write() as connection:
        changed = incidents.update_incident_row(connection, incident, state=state, message=message, **columns)
        if changed is not None and state != incident.state:
            conductor.notifications.add_incident(connection, changed, EVENTS[state], conductor.name,
                                                 conductor.cell.name)
    if changed is not None and message != incident.message:
        log.warning("incident %s: %s", changed.id, message, extra={"host": changed.host})
    return changed
