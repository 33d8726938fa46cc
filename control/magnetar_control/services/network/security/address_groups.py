# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Address groups: named sets of networks that rules of security groups refer to. They need an engine."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, select, update

from magnetar_control.services import Context
from magnetar_control.services.network import sharing
from magnetar_control.services.network.resources import (
    NetworkResource,
    NetworkStore,
    find_resource_row,
    insert_resource_row,
    run_transaction,
)
from magnetar_control.services.network.tables import address_groups, default_security_group_rules, security_group_rules
from magnetar_control.store.engine.database import utc_now
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

#: Maximum number of networks in one group.
MOST = 1000


def address_group_documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """Convert address group *rows* to documents for callers, with ``shared`` and ``shared_with`` (ids of projects)."""
    shared = sharing.sharing_of_rows(connection, rows)
    return [{**row, **shared[row["id"]]} for row in rows]


def create_address_group_row(connection: Connection, context: Context, values: Document) -> None:
    """Check *values* and insert an address group."""
    values["addresses"] = _distinct_addresses(values["addresses"])
    insert_resource_row(connection, address_groups, values)


def _distinct_addresses(requested: Sequence[str]) -> list[str]:
    distinct = list(dict.fromkeys(requested))
    if len(distinct) > MOST:
        raise InvalidRequest(
            f"addresses: an address group has at most {MOST}, and this one would have {len(distinct)}.",
                             type="InvalidInput")
    return distinct


def prepare_address_group_update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Do nothing: all *values* are allowed (name, description). Other methods change the addresses."""


def prepare_address_group_delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Delete the RBAC policies of the address group *row*, which will be deleted. Raises ``Conflict`` while a rule of a
    security group refers to the address group."""
    find_resource_row(connection, context, ADDRESS_GROUP, row["id"], lock=True)
    for table, words in ((security_group_rules, ""), (default_security_group_rules, "default ")):
        if connection.execute(select(table.c.id).where(table.c.remote_address_group_id == row["id"]).limit(1)).first():
            raise Conflict(f"Address group {row['id']} is in use on one or more {words}security group rules. Delete "
                           "those first.", type="AddressGroupInUse")
    sharing.delete_sharing_policies(connection, row["id"])


def changed_address_group_units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """Return the keys of the objects in the network engine (OVN) that a change of the address group *row* affects.
    *changed*: the new values; ``None`` if the group was created or is deleted. With ``None``, return ``addresses/ID``,
    otherwise an empty list."""
    return [f"addresses/{row['id']}"] if changed is None else []


ADDRESS_GROUP = NetworkResource(
    name="address_group", table=address_groups, visible=sharing.own_or_shared(address_groups),
    listed=sharing.own_or_shared_list(address_groups),
    documents=address_group_documents,
    create=create_address_group_row, update=prepare_address_group_update, delete=prepare_address_group_delete,
    units=changed_address_group_units, defaults={"name": "", "description": "", "addresses": []})


class AddressGroupStore(NetworkStore):
    """The operations on address groups, with methods that add and remove addresses."""

    def set_parts(self, connection: Connection, context: Context, row: RowMapping, parts: Sequence[str]) -> None:
        """Replace the addresses of the address group *row* by *parts*."""
        have = find_resource_row(connection, context, self.resource, row["id"], lock=True)
        new_addresses = _distinct_addresses(parts)
        if set(new_addresses) != set(have["addresses"]):
            self._write(connection, have, new_addresses)

    def _write(self, connection: Connection, row: RowMapping, new_addresses: Sequence[str]) -> None:
        connection.execute(update(address_groups).where(address_groups.c.id == row["id"]).values(
            addresses=list(new_addresses), updated_at=utc_now()))
        self._note(connection, row, None)

    def move(self, context: Context, id: str, changed_addresses: Sequence[str], *, put: bool) -> Document:
        """Add the addresses *changed_addresses* to the address group *id* if *put* is true, otherwise remove them; all
        of them or none. Return the address group."""
        self._check_writer(context, "add_addresses_to" if put else "remove_addresses_from")

        def act(connection: Connection) -> Document:
            row = self._owned(connection, context, id, "update", lock=True)
            have, moved = dict.fromkeys(row["addresses"]), dict.fromkeys(changed_addresses)
            if not put and (missing := [address for address in moved if address not in have]):
                raise NotFound(f"Addresses {', '.join(missing)} not found in address group {id}.",
                               type="AddressesNotFound")
            if put and (twice := [address for address in moved if address in have]):
                raise InvalidRequest(f"Addresses {', '.join(twice)} already exist in the address group {id}.",
                                     type="AddressesAlreadyExist")
            new_addresses = _distinct_addresses([*have, *moved]) if put else [address for address in have
                                                                              if address not in moved]
            self._write(connection, row, new_addresses)
            return self._documents(connection, id)[0]

        return run_transaction(self.database, act)
