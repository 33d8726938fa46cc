# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server keeps of its image's word on hardware: its machine type, and properties. Operators look at it, and
change it while the server is off, without a rebuild (spec rows A23.3, A23.4, A26.26 to A26.30).

A server on a host is changed there first: its agent refuses what it cannot give, and the same call again changes
nothing. The row follows, in whatever state the server is by then, so what was cut short is asked for again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import orjson
from sqlalchemy import select

from magnetar_control.agents import AgentClient
from magnetar_control.compute.flavors.hardware import check_keys, check_placed, root_name
from magnetar_control.compute.target import not_found, on_volume
from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import Database
from magnetar_control.store.servers import servers
from magnetar_control.store.store import Store
from magnetar_core.errors import Conflict, InvalidField, MagnetarError, NotFound
from magnetar_core.hardware import machines
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES
from magnetar_core.hardware.merge import asked_of
from magnetar_core.hardware.rescue import stable
from magnetar_core.hardware.rows import BY_PROPERTY, said
from magnetar_core.power import OFFLOADED, SHELVED, STOPPED

#: vm_states of servers that are off, and may be changed.
OFF_STATES = (STOPPED, SHELVED, OFFLOADED)
#: Gives a client of the agent of the host with a name.
ClientOf = Callable[[str], AbstractContextManager[AgentClient]]


class NotOff(Conflict):
    """The server is not off."""


class UnknownName(InvalidField):
    """There is no such machine type or property."""


def find(store: Store, id: str) -> tuple[Database, servers.Found]:
    """A server and its database. Raises ``NotFound``."""
    found = servers.find(store, id.lower())
    if found is None:
        raise not_found(id)
    return found


def machine(server: servers.Found) -> str:
    """The machine type that is recorded of it, or that its image says; "" for none."""
    image = orjson.loads(server.image)
    return machines.machine_of(image, str(said(image.get("properties") or {}, BY_PROPERTY).get("machine", "")))


def image_property(server: servers.Found, name: str) -> str | None:
    """What is kept of a property of its image; ``None`` for nothing."""
    if name == machines.PROPERTY:
        return machine(server) or None
    value = (orjson.loads(server.image).get("properties") or {}).get(name)
    return None if value is None else str(value)


def rescue_device(server: servers.Found, image: Mapping[str, Any]) -> dict[str, str] | None:
    """As ``hardware.rescue.stable``: as what the server gets the *image* that rescues it. Raises ``InvalidField``."""
    asked = said(orjson.loads(server.image).get("properties") or {}, BY_PROPERTY)
    return stable(image.get("properties") or {}, machine(server) or machines.usual(asked))


def without_machine(databases: Sequence[Database]) -> Iterator[str]:
    """The uuids of servers of which no machine type is recorded, so that their host chooses one when it makes them."""
    for database in databases:
        with database.read() as connection:
            rows = connection.execute(select(tables.servers.c.id, tables.servers.c.image).where(
                tables.servers.c.deleted_at.is_(None), tables.servers.c.leaving.is_(None)).order_by(
                    tables.servers.c.created_at, tables.servers.c.id))
            for id, image in rows:
                if not orjson.loads(image).get("machine"):
                    yield str(id)


def update_machine(store: Store, client_of: ClientOf, id: str, wanted: str, force: bool = False) -> tuple[str, str]:
    """Record the machine type *wanted*; returns those before and after. Only a later version of what the server has,
    unless *force*. Raises ``NotFound``, ``NotOff``, ``UnknownName``, and ``Conflict`` for what may not follow."""
    if not machines.family(wanted):
        raise UnknownName("TYPE", machines.RULE, wanted)
    database, server = find(store, id)
    before = machine(server)
    _check_off(server)
    if not force and before != wanted:
        _check_update(before, wanted)
    image = {**orjson.loads(server.image), "machine": wanted}
    asked_of(orjson.loads(server.flavor), image)
    if server.host:
        with client_of(server.host) as client:
            answer = client.event("server", server.id, "change_machine", {"machine": wanted},
                                  request_id=str(uuid.uuid4()))
            wanted = str(answer["resource"]["machine"])
    _write(database, server.id, lambda kept: {**kept, "machine": wanted})
    return before, wanted


def _check_off(server: servers.Found) -> None:
    if server.vm_state not in OFF_STATES or server.task_state:
        doing = f", and is {server.task_state}" if server.task_state else ""
        raise NotOff(f"Server {server.id} is {server.vm_state}{doing}; this changes while it is stopped, shelved or "
                     "shelved_offloaded only. Stop it, then repeat the command.")


def _check_update(before: str, wanted: str) -> None:
    if machines.upgrades(before, wanted) or (not before and machines.is_versioned(wanted)):
        return
    if not machines.is_versioned(wanted):
        why = f"{wanted} says no version, and what a server has does not follow QEMU's newest"
    elif machines.family(before) != machines.family(wanted):
        why = f"it has {before}, and {wanted} is another machine: its system may not find its disks and NICs there"
    else:
        why = f"it has {before}, and {wanted} is no later version of that"
    raise Conflict(f"The machine type does not change: {why}. --force has it changed all the same.")


def set_properties(store: Store, client_of: ClientOf, id: str, given: Mapping[str, str]) -> dict[str, str]:
    """Keep these image properties of a server instead of what they were; returns those that were others before. Raises
    ``NotFound``, ``NotOff``, ``UnknownName``, and ``InvalidField`` for a value, or what does not go together."""
    for name in given:
        row = IMAGE_PROPERTIES.find(name)
        if name == machines.PROPERTY:
            raise UnknownName("--property", f"must not be {machines.PROPERTY}: use `magnetar machine-type update`")
        if row is None or row.row is None:
            raise UnknownName("--property", "must be one that asks for hardware (docs/reference/hardware.md)", name)
    if odd := next(IMAGE_PROPERTIES.without_effect(given), None):
        raise InvalidField("--property", f"must have a value that acts: {odd}")
    database, server = find(store, id)
    _check_off(server)
    flavor, image = orjson.loads(server.flavor), orjson.loads(server.image)
    new = _with(image, given)
    hardware = asked_of(flavor, new).get("hardware", {})
    _check_claims(server, new)
    if server.host:
        with client_of(server.host) as client:
            client.ensure("server", server.id, {"hardware": hardware})
    more = {} if on_volume(server) else {"root_device_name": root_name(flavor, new)}
    _write(database, server.id, lambda kept: _with(kept, given), **more)
    had = image.get("properties") or {}
    return {name: value for name, value in given.items() if had.get(name) != value}


def _with(image: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    return {**image, "properties": {**(image.get("properties") or {}), **given}}


def _check_claims(server: servers.Found, new: Mapping[str, Any]) -> None:
    """Raises ``InvalidField`` for what would need more of a host than the server has claimed."""
    flavor = orjson.loads(server.flavor)
    try:
        check_placed(flavor, orjson.loads(server.image), new)
        check_keys(server, (flavor, new))
    except MagnetarError as error:
        raise InvalidField("--property", f"must leave what the server has of its host as it is. {error.message}"
                           ) from None


def _write(database: Database, id: str, change: Callable[[dict[str, Any]], Mapping[str, Any]], **more: Any) -> None:
    """Change what the row keeps of the image, as it is by now."""
    with database.write() as connection:
        found = servers.row(connection, id, lock=True)
        if found is None:
            raise NotFound(f"Server {id} was deleted meanwhile, or is in another cell by now. Repeat the command.")
        kept = orjson.loads(found.image)
        servers.change(connection, id, image=servers.text(change(kept)), **more)
