# SPDX-License-Identifier: GPL-3.0-or-later
"""Incidents of dead hosts: conductors open them, and operators read and close them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.hosts.services import RULE
from magnetar_control.store.hosts import incidents
from magnetar_control.store.hosts.incidents import CLOSED, OPEN, IncidentRow, IncidentServer
from magnetar_core.errors import Conflict, NotFound

#: The most incidents of a list.
SHOWN = 200


class IncidentReport(NamedTuple):
    """An incident (the failure of a host or of a whole cell), with the name of the cell, and with the affected servers
    in the order of their evacuation."""

    cell: str
    incident: IncidentRow
    servers: Sequence[IncidentServer]

    @property
    def name(self) -> str:
        """The name of the host, or of the cell for an incident of a whole cell."""
        return self.incident.host or self.cell

    def count(self, state: str) -> int:
        """Return how many servers of the incident are in *state*: waiting (for evacuation), moving, moved, failed, or
        remains (is not evacuated)."""
        return sum(server.state == state for server in self.servers)


@use_case(f"{RULE}list")
def list_incidents(caller: Caller) -> list[IncidentReport]:
    """Return the latest incidents (failures of a host or of a cell), newest first: at most ``SHOWN`` incidents. Cells
    that do not answer are left out."""
    names = {cell.id: cell.name for cell in caller.cloud.store.cells()}
    return [IncidentReport(names.get(cell_id, ""), incident, servers)
            for cell_id, incident, servers in incidents.gather_incidents(caller.cloud.store, SHOWN)]


@use_case(f"{RULE}list")
def show_incident(caller: Caller, id: str) -> IncidentReport:
    """Return the incident (the failure of a host or cell) with the uuid *id*. Raises ``NotFound``."""
    return _find(caller, id)[1]


@use_case(f"{RULE}update")
def close_incident(caller: Caller, id: str) -> IncidentReport:
    """Close an open incident, so that no further server is evacuated for it, and return the incident. Evacuations in
    progress continue. If the failed host still does not answer and is not fenced, a new incident is opened. Raises
    ``NotFound``, ``Conflict``."""
    cell_id, report = _find(caller, id)
    incident, cloud = report.incident, caller.cloud
    if incident.state not in OPEN:
        raise Conflict(f"Incident {incident.id} is not open: it is {incident.state}. `magnetar incidents list` shows "
                       "the open ones.")
    with cloud.store.cell(cell_id).write() as connection:
        changed = incidents.update_incident_row(connection, incident, state=CLOSED,
                                                message=f"Closed by an operator while it was {incident.state}.")
        if changed is None:
            raise Conflict(f"Incident {incident.id} has changed meanwhile. Look at it, and repeat this if it is still "
                           "open.")
        cloud.notifications.add_incident(connection, changed, "incident.end", cloud.notifications.service, report.cell)
    return report._replace(incident=changed)


def _find(caller: Caller, id: str) -> tuple[str, IncidentReport]:
    """Return (uuid of the cell, incident) for the incident *id*. Raises ``NotFound``."""
    found = incidents.find_incident(caller.cloud.store, id)
    if found is None:
        raise NotFound(f"There is no incident {id[:80]!r} in this cloud. `magnetar incidents list` shows them.",
                       kind="incident", key=id[:80])
    cell_id, incident, servers = found
    name = next((cell.name for cell in caller.cloud.store.cells() if cell.id == cell_id), "")
    return cell_id, IncidentReport(name, incident, servers)
