# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of servers: functions that reserve ports for a new server, and release them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, String, bindparam, case, delete, select, update

from magnetar_control.services.network.engine import changes
from magnetar_control.services.network.engine.changes import ChangeLog
from magnetar_control.services.network.routers.floating_ips import release_floating_ips
from magnetar_control.services.network.security import host_groups
from magnetar_control.services.network.tables import OWNER, RESERVED, SUBPORT, TAKEN, ports
from magnetar_control.store.engine.database import utc_now
from magnetar_core.errors import Conflict, NotFound

# Statements that each server needs, built once: building one takes longer than executing it.
_RELEASED = (ports.c.device_id == bindparam("server")) & TAKEN & (
    bindparam("port", type_=String).is_(None) | (ports.c.id == bindparam("port", type_=String)))
_ON_BRIDGES = host_groups.on_bridges(_RELEASED)
_MADE_RELEASED = delete(ports).where(_RELEASED, ports.c.made_for_server)
#: Frees ports. A reserved port keeps the name that its owner gave it: the server has not taken it yet.
_LET_GO = update(ports).where(_RELEASED).values(
    device_id="", device_owner="", host="", next_host="", arriving=False, status="DOWN", place=None, tag=None,
    dns_name=case((ports.c.place == RESERVED, ports.c.dns_name), else_=""), device={})


def reserve_ports(connection: Connection, server_id: str, port_ids: Sequence[str]) -> None:
    """Reserve the ports *port_ids* for a server that is not built yet: all of them, or none if an error is raised. A
    repeated call changes nothing.

    Raise ``NotFound`` for a port that does not exist, ``Conflict`` for a port that another server has.
    """
    for id in sorted(port_ids):  # sorted, so that of two requests one waits for the other
        if connection.execute(update(ports).where(
                ports.c.id == id, ports.c.device_id == "", ports.c.device_owner != SUBPORT).values(
                device_id=server_id, device_owner=OWNER, place=RESERVED, updated_at=utc_now())).rowcount:
            continue
        device_id = connection.execute(select(ports.c.device_id).where(ports.c.id == id)).scalar()
        if device_id is None:
            raise NotFound(f"Port {id} could not be found.", type="PortNotFound")
        if device_id != server_id:
            raise Conflict(f"Port {id} is still in use.", type="PortInUse")


def release_ports(connection: Connection, log: ChangeLog, server_id: str, port_id: str | None, *, delete: bool) -> None:
    """Detach all ports of a server, or only the port *port_id*. Ports that were created with the server are deleted; if
    *delete* is true, all are deleted. *log*: records the changes for the network engine (OVN)."""
    which = {"server": server_id, "port": port_id}
    if delete:
        connection.execute(update(ports).where(_RELEASED).values(made_for_server=True), which)
    if log.enabled:
        rows = connection.execute(select(*ports.c["id", "made_for_server"]).where(_RELEASED), which).all()
        log.note(connection, *changes.port_unit_keys(row.id for row in rows),
                 *release_floating_ips(connection, [row.id for row in rows if row.made_for_server]))
    host_groups.note_changed_units(connection, [
        f"group/{id}" for id in host_groups.groups_of_rows(connection.execute(_ON_BRIDGES, which))])
    connection.execute(_MADE_RELEASED, which)
    connection.execute(_LET_GO, {**which, "updated_at": utc_now()})
