# SPDX-License-Identifier: GPL-3.0-or-later
"""The hardware that a server's row stores from its image: machine type and properties. Operators read it, and change it
while the server is off, without a rebuild.

A server on a host is changed there first. Its agent refuses impossible values, and repeating the call changes nothing.
The row is updated afterwards, in any state of the server, so an interrupted change can be repeated.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import select

from magnetar_control.agents import AgentClient
from magnetar_control.compute.flavors.hardware import check_encryption_unchanged, check_placement_unchanged, root_name
from magnetar_control.compute.target import boots_from_volume, server_not_found
from magnetar_control.documents import ImageOfServer
from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import Database
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_control.store.store import Store
from magnetar_core.errors import Conflict, InvalidField, MagnetarError, NotFound
from magnetar_core.hardware import machines
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES
from magnetar_core.hardware.merge import requested_hardware
from magnetar_core.hardware.rescue import rescue_device_of_image
from magnetar_core.hardware.rows import BY_PROPERTY, parse_hardware_specs
from magnetar_core.power import OFFLOADED, SHELVED, STOPPED

#: vm_states of servers that are off, and may be changed.
OFF_STATES = (STOPPED, SHELVED, OFFLOADED)
#: A function that opens a client of the agent of a host, by name.
ClientOf = Callable[[str], AbstractContextManager[AgentClient]]


class NotOff(Conflict):
    """Raised when an operation requires a stopped server, and the server is not stopped."""


class UnknownName(InvalidField):
    """Raised when the given name is not the name of a machine type or image property."""


def find_stored_server(store: Store, id: str) -> tuple[Database, ServerRow]:
    """Return the database that has the server *id*, and the server's row. Raises ``NotFound``."""
    located_server = servers.find_server_row(store, id.lower())
    if located_server is None:
        raise server_not_found(id)
    return located_server


def stored_machine_type(server: ServerRow) -> str:
    """Return the machine type in the server's row, otherwise the machine type that the server's image specifies; "" if
    neither has one."""
    image = server.image
    return machines.machine_of_image(image, str(parse_hardware_specs(image.get("properties") or {},
                                                                     BY_PROPERTY).get("machine", "")))


def stored_image_property(server: ServerRow, name: str) -> str | None:
    """Return the value of the image property *name* that the server's row stores; ``None`` if it is not stored."""
    if name == machines.PROPERTY:
        return stored_machine_type(server) or None
    value = (server.image.get("properties") or {}).get(name)
    return None if value is None else str(value)


def rescue_device(server: ServerRow, image: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the device and the bus of the rescue disk when *server* is rescued with *image*; ``None`` if the image
    specifies neither (``hardware.rescue.rescue_device_of_image``). Raises ``InvalidField``."""
    hardware = parse_hardware_specs(server.image.get("properties") or {}, BY_PROPERTY)
    return rescue_device_of_image(image.get("properties") or {},
                                  stored_machine_type(server) or machines.default_machine(hardware))


def servers_without_machine_type(databases: Sequence[Database]) -> Iterator[str]:
    """Yield the uuids of servers in *databases* whose rows have no machine type. New servers get a machine type from
    their host."""
    for database in databases:
        with database.read() as connection:
            rows = connection.execute(select(tables.servers.c.id, tables.servers.c.image).where(
                tables.servers.c.deleted_at.is_(None), tables.servers.c.leaving.is_(None)).order_by(
                    tables.servers.c.created_at, tables.servers.c.id))
            for server in map(ServerRow, rows):
                if not server.image.get("machine"):
                    yield server.id


def update_machine_type(store: Store, client_of: ClientOf, id: str, machine_type: str,
                        force: bool = False) -> tuple[str, str]:
    """Set the machine type of a stopped server and of its guest; return (previous, new). Raises ``NotFound``,
    ``NotOff``, ``UnknownName``. Without *force*, also raises ``Conflict`` when the server has a machine type and the
    new one is not a later version of it. *client_of*: a function that returns a client of the agent of a host."""
    if not machines.machine_family(machine_type):
        raise UnknownName("TYPE", machines.RULE, machine_type)
    database, server = find_stored_server(store, id)
    previous = stored_machine_type(server)
    _check_off(server)
    if not force and previous != machine_type:
        _check_update(previous, machine_type)
    image = {**server.image, "machine": machine_type}
    requested_hardware(server.flavor, image)
    if server.host:
        with client_of(server.host) as client:
            answer = client.event("server", server.id, "change_machine", {"machine": machine_type},
                                  request_id=str(uuid.uuid4()))
            machine_type = str(answer["resource"]["machine"])
    _write_stored_image(database, server.id, lambda stored_image: {**stored_image, "machine": machine_type})
    return previous, machine_type


def _check_off(server: ServerRow) -> None:
    if server.vm_state not in OFF_STATES or server.task_state:
        doing = f", and is {server.task_state}" if server.task_state else ""
        raise NotOff(f"Server {server.id} is {server.vm_state}{doing}; this changes while it is stopped, shelved or "
                     "shelved_offloaded only. Stop it, then repeat the command.")


def _check_update(previous: str, machine_type: str) -> None:
    if machines.is_machine_upgrade(previous, machine_type) or (not previous and machines.is_versioned(machine_type)):
        return
    if not machines.is_versioned(machine_type):
        why = f"{machine_type} says no version, and what a server has does not follow QEMU's newest"
    elif machines.machine_family(previous) != machines.machine_family(machine_type):
        why = (f"it has {previous}, and {machine_type} is another machine: its system may not find its disks and NICs "
               "there")
    else:
        why = f"it has {previous}, and {machine_type} is no later version of that"
    raise Conflict(f"The machine type does not change: {why}. --force has it changed all the same.")


def set_image_properties(store: Store, client_of: ClientOf, id: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Change the image properties that are stored with a stopped server, and return the changed properties.
    *client_of*: a function that returns a client of the agent of a host. Raises ``NotFound``, ``NotOff``,
    ``UnknownName``, and ``InvalidField`` for invalid or contradictory values."""
    for name in properties:
        row = IMAGE_PROPERTIES.find(name)
        if name == machines.PROPERTY:
            raise UnknownName("--property", f"must not be {machines.PROPERTY}: use `magnetar machine-type update`")
        if row is None or row.row is None:
            raise UnknownName("--property", "must be one that asks for hardware (docs/reference/hardware.md)", name)
    if odd := next(IMAGE_PROPERTIES.without_effect(properties), None):
        raise InvalidField("--property", f"must have a value that acts: {odd}")
    database, server = find_stored_server(store, id)
    _check_off(server)
    flavor, image = server.flavor, server.image
    new = _with_properties(image, properties)
    hardware = requested_hardware(flavor, new).get("hardware", {})
    _check_claims(server, new)
    if server.host:
        with client_of(server.host) as client:
            client.ensure("server", server.id, {"hardware": hardware})
    more = {} if boots_from_volume(server) else {"root_device_name": root_name(flavor, new)}
    _write_stored_image(database, server.id, lambda stored_image: _with_properties(stored_image, properties), **more)
    had = image.get("properties") or {}
    return {name: value for name, value in properties.items() if had.get(name) != value}


def _with_properties(image: Mapping[str, Any], properties: Mapping[str, str]) -> dict[str, Any]:
    return {**image, "properties": {**(image.get("properties") or {}), **properties}}


def _check_claims(server: ServerRow, new: Mapping[str, Any]) -> None:
    """Raise ``InvalidField`` when the image properties *new* would change the server's CPUs, NUMA cells or pages on its
    host, or its encryption."""
    flavor = server.flavor
    try:
        check_placement_unchanged(flavor, server.image, new)
        check_encryption_unchanged(server, (flavor, new))
    except MagnetarError as error:
        raise InvalidField("--property", f"must leave what the server has of its host as it is. {error.message}"
                           ) from None


def _write_stored_image(database: Database, id: str, change: Callable[[ImageOfServer], Mapping[str, Any]],
                        **more: Any) -> None:
    """Replace the stored image fields in a server's row by *change(current fields)*, and set the columns *more* of the
    row too. Raises ``NotFound``."""
    with database.write() as connection:
        server_row = servers.fetch_server_row(connection, id, lock=True)
        if server_row is None:
            raise NotFound(f"Server {id} was deleted meanwhile, or is in another cell by now. Repeat the command.")
        servers.update_server_row(connection, id, image=servers.json_text(change(server_row.image)), **more)
