# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables with one row for each tag and each address of a server, copied from JSON columns of ``servers``, so that
filters of lists find servers by an index. Responses show the JSON columns.

A server without tags has no rows of tags. A server may have rows of addresses that it no longer has, so lists also
test the JSON column. The rows are removed with the server's row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, delete, insert

from magnetar_control.store.engine.database import INSERT
from magnetar_control.store.engine.tables import server_addresses, server_tags

#: The JSON texts of servers without tags, and without addresses.
NO_TAGS, NO_ADDRESSES = "[]", "{}"
_INSERT_TAGS = insert(server_tags)
_INSERT_ADDRESSES = {kind: made(server_addresses).on_conflict_do_nothing() for kind, made in INSERT.items()}
_DELETE_TAGS, _DELETE_ADDRESSES = (delete(table).where(table.c.server_id == bindparam("server"))
                                   for table in (server_tags, server_addresses))


def insert_filter_rows(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """Insert the tags and addresses of new servers into the tables ``server_tags`` and ``server_addresses``, which
    filters of server lists search. *rows*: columns of ``servers``."""
    for row in rows:
        _insert_tags(connection, row["id"], row.get("tags", NO_TAGS))
        _insert_addresses(connection, row["id"], row.get("addresses", NO_ADDRESSES))


def save_filter_rows(connection: Connection, id: str, values: Mapping[str, Any]) -> None:
    """Update ``server_tags`` and ``server_addresses`` (the tables that filters of server lists search) for a server
    whose columns are set to *values*. The addresses of a deleted server are removed."""
    if "tags" in values:
        connection.execute(_DELETE_TAGS, {"server": id})
        _insert_tags(connection, id, values["tags"])
    if "addresses" in values:
        _insert_addresses(connection, id, values["addresses"])
        if values.get("deleted_at"):
            connection.execute(_DELETE_ADDRESSES, {"server": id})


def _insert_tags(connection: Connection, id: str, tags: str) -> None:
    if tags != NO_TAGS:
        connection.execute(_INSERT_TAGS, [{"server_id": id, "tag": tag} for tag in orjson.loads(tags)])


def _insert_addresses(connection: Connection, id: str, addresses: str) -> None:
    if addresses != NO_ADDRESSES:
        texts = {address["addr"] for network in orjson.loads(addresses).values() for address in network}
        if texts:
            connection.execute(_INSERT_ADDRESSES[connection.dialect.name], [
                {"server_id": id, "version": _address_version(text), "address": text} for text in sorted(texts)])


def _address_version(text: str) -> int:
    return 6 if ":" in text else 4
