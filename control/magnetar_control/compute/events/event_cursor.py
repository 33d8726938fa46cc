# SPDX-License-Identifier: GPL-3.0-or-later
"""Cursors of ``/v1/events``: the last event that a client has, of each database."""

from __future__ import annotations

import re
from collections.abc import Mapping

from magnetar_control.store.store import CellMapping
from magnetar_core.errors import InvalidField

#: The words for positions that a client may name instead of a cursor.
OLDEST, NOW = "oldest", "now"
#: The name of the API database in cursors.
API = "api"
#: Most characters of a cursor: enough for some hundred cells.
LIMIT = 12_000
_PART = re.compile(r"([a-z0-9]{1,12}):([0-9]{1,18})", re.ASCII)
#: A position: the id of the last event of each database, by the database's name in cursors.
Position = Mapping[str, int]


def database_key(cell: CellMapping) -> str:
    """Return the name that event cursors use for the database of *cell*: the first 12 hexadecimal digits of the cell's
    uuid. A cursor is a client's position in the event stream."""
    return cell.id.replace("-", "")[:12]


def format_cursor(position: Position) -> str:
    """Return the cursor for *position*, as text for clients. *position*: the id of the last event that a client has, by
    name of the database."""
    return ",".join(f"{name}:{id}" for name, id in position.items())


def parse_cursor(text: str) -> dict[str, int]:
    """Parse a cursor that a client has sent. Return the position in the cursor: the id of the last event, by name of
    the database. Raises ``InvalidField``."""
    parts = [_PART.fullmatch(part) for part in text.split(",")] if len(text) <= LIMIT else [None]
    position = {part[1]: int(part[2]) for part in parts if part}
    if len(position) != len(parts):
        raise InvalidField("cursor", f"must be {OLDEST}, {NOW}, or the cursor of an event or answer as it came", text)
    return position
