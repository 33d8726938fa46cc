# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Address groups: networks by one name, for the rules of security groups. They act on networks of an engine."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from sqlalchemy import Connection, RowMapping, select, update

from magnetar_control.services import Context, Document
from magnetar_control.services.network import sharing
from magnetar_control.services.network.resources import NetworkResource, NetworkStore, add, find, transacted
from magnetar_control.services.network.tables import address_groups, default_security_group_rules, security_group_rules
from magnetar_control.store.engine.database import now
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

#: Networks in one group.
MOST = 1000


def documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """The rows, with their addresses as a list."""
    shared = sharing.told(connection, rows)
    return [{**row, "addresses": orjson.loads(row["addresses"]), **shared[row["id"]]} for row in rows]


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it."""
    values["addresses"] = _checked(values["addresses"])
    add(connection, address_groups, values)


def _checked(given: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys(given))
    if len(found) > MOST:
        raise InvalidRequest(f"addresses: an address group has at most {MOST}, and this one would have {len(found)}.",
                             type="InvalidInput")
    return found


def change(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Name and description alone: addresses are added and removed."""


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """It goes when no rule names it."""
    find(connection, context, ADDRESS_GROUP, row["id"], lock=True)
    for table, words in ((security_group_rules, ""), (default_security_group_rules, "default ")):
        if connection.execute(select(table.c.id).where(table.c.remote_address_group_id == row["id"]).limit(1)).first():
            raise Conflict(f"Address group {row['id']} is in use on one or more {words}security group rules. Delete "
                           "those first.", type="AddressGroupInUse")
    sharing.forget(connection, row["id"])


def units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """What the engine has of it."""
    return [f"addresses/{row['id']}"] if changed is None else []


ADDRESS_GROUP = NetworkResource(
    name="address_group", table=address_groups, visible=sharing.own_or_shared(address_groups), documents=documents,
    create=create, update=change, delete=delete, units=units, defaults={"name": "", "description": "", "addresses": []})


class AddressGroupStore(NetworkStore):
    """Address groups, whose addresses are added and removed."""

    def enter(self, connection: Connection, context: Context, row: RowMapping, held: Sequence[str]) -> None:
        """All addresses of the group *row*."""
        have = find(connection, context, self.resource, row["id"], lock=True)
        wanted = _checked(held)
        if set(wanted) != set(orjson.loads(have["addresses"])):
            self._write(connection, have, wanted)

    def _write(self, connection: Connection, row: RowMapping, wanted: Sequence[str]) -> None:
        connection.execute(update(address_groups).where(address_groups.c.id == row["id"]).values(
            addresses=orjson.dumps(wanted).decode(), updated_at=now()))
        self._note(connection, row, None)

    def move(self, context: Context, id: str, given: Sequence[str], *, put: bool) -> Document:
        """Add the addresses *given* (*put*), or remove them, all or none."""
        self._check_writer(context, "add_addresses_to" if put else "remove_addresses_from")

        def act(connection: Connection) -> Document:
            row = self._owned(connection, context, id, "update", lock=True)
            have, moved = dict.fromkeys(orjson.loads(row["addresses"])), dict.fromkeys(given)
            if not put and (missing := [one for one in moved if one not in have]):
                raise NotFound(f"Addresses {', '.join(missing)} not found in address group {id}.",
                               type="AddressesNotFound")
            if put and (twice := [one for one in moved if one in have]):
                raise InvalidRequest(f"Addresses {', '.join(twice)} already exist in the address group {id}.",
                                     type="AddressesAlreadyExist")
            wanted = _checked([*have, *moved]) if put else [one for one in have if one not in moved]
            self._write(connection, row, wanted)
            return self._documents(connection, id)[0]

        return transacted(self.database, act)
