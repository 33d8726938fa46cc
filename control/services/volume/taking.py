# SPDX-License-Identifier: GPL-3.0-or-later
"""What requests say: bodies with known keys, and the query of a list (filters, sorting, pages)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, func, select, true

from magnetar_control.services import Document
from magnetar_control.store.paging import beyond
from magnetar_control.web import Request
from magnetar_core.errors import InvalidRequest, MagnetarError

from .tables import volumes

TRUE, FALSE = ("true", "1", "yes", "on", "t", "y"), ("false", "0", "no", "off", "f", "n")
Check = Callable[[str, Any], Any]
MOST = 1000


def invalid(field: str, rule: str) -> MagnetarError:
    """A field that cannot be so."""
    return InvalidRequest(f"Invalid input for field/attribute {field}. {rule}")


def text(field: str, value: Any) -> str | None:
    """Text of at most 255 characters, or null; blanks around it are dropped."""
    if value is None:
        return None
    if not isinstance(value, str) or "\0" in value:
        raise invalid(field, "It must be text without NUL characters.")
    if len(value) > 255:
        raise invalid(field, f"It has {len(value)} characters; at most 255 are allowed.")
    return value.strip()


def ident(field: str, value: Any) -> str | None:
    """A uuid, or null."""
    if value in (None, ""):
        return None
    try:
        return str(uuid.UUID(value))
    except (ValueError, AttributeError, TypeError):
        raise invalid(field, "It must be a uuid.") from None


def size(field: str, value: Any) -> int | None:
    """GiB, or null."""
    if value is None:
        return None
    plain = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not plain.isdecimal() or not 1 <= int(plain) <= 2**20:
        raise invalid(field, f"It must be an integer from 1 to {2**20} (GiB).")
    return int(plain)


def limit(field: str, value: Any) -> int:
    """A limit: -1 for none, 0 and more."""
    plain = str(value).removeprefix("-") if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not plain.isdecimal() or not -1 <= int(value) <= 2**31 - 1:
        raise invalid(field, "It must be an integer that is -1 (no limit) or more.")
    return int(value)


def boolean(field: str, value: Any) -> bool:
    """True or false, also as words."""
    if isinstance(value, bool):
        return value
    if str(value).lower() not in TRUE + FALSE:
        raise invalid(field, "It must be true or false.")
    return str(value).lower() in TRUE


def metadata(field: str, value: Any) -> dict[str, str]:
    """Keys and values of at most 255 characters."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(field, "It must be an object of texts.")
    for name, one in value.items():
        if not 1 <= len(name) <= 255 or not isinstance(one, str) or len(one) > 255 or "\0" in name + one:
            raise invalid(f"{field}.{name[:40]}", "Keys have 1 to 255 characters, and values are texts of up to 255.")
    return dict(value)


def record(field: str, value: Any) -> Document:
    """An object."""
    if not isinstance(value, dict):
        raise invalid(field, "It must be an object.")
    return value


def nothing(_field: str, value: Any) -> Any:
    """A field whose value changes nothing here."""
    return value


def body(request: Request, name: str, checks: Mapping[str, Check], required: Sequence[str] = ()) -> Document:
    """The object *name* of the body, checked."""
    given = request.json()
    if not isinstance(given, dict) or not isinstance(given.get(name), dict):
        raise InvalidRequest(f"Missing required element '{name}' in request body; it must be an object.")
    return fields(given[name], checks, required)


def fields(given: Mapping[str, Any], checks: Mapping[str, Check], required: Sequence[str] = ()) -> Document:
    """What was *given*, checked; raises ``InvalidRequest`` for a key that is unknown or missing."""
    unknown = sorted(set(given) - set(checks))
    if unknown:
        raise InvalidRequest(f"Additional properties are not allowed ({', '.join(map(repr, unknown))} unexpected); "
                             "known "
                    f"are {', '.join(sorted(checks))}.")
    missing = [name for name in required if given.get(name) is None]
    if missing:
        raise InvalidRequest(f"'{missing[0]}' is a required property.")
    return {name: checks[name](name, value) for name, value in given.items()}


class Listing:
    """The query of a list of *table*: filters by *columns*, metadata, sorting, limit, marker, offset."""

    def __init__(self, request: Request, table: Any, columns: Sequence[str]) -> None:
        self.request, self.table, self.columns = request, table, columns
        self.given = dict(request.query)
        self.limit = min(self._number("limit", MOST), MOST)
        self.offset = self._number("offset", 0)

    def _number(self, name: str, default: int) -> int:
        value = self.given.get(name)
        if value is None:
            return default
        if not value.isdecimal() or len(value) > 9:
            raise InvalidRequest(f"{name} param must be an integer from 0 to 999999999, and is '{value[:40]}'.")
        return int(value)

    def where(self) -> list[ColumnElement[bool]]:
        """Conditions of the filters. What is no filter is not looked at, as in Cinder."""
        found = [self._mine()]
        found += [self._equals(name, self.given[name]) for name in self.columns if name in self.given]
        if "name~" in self.given and "name" in self.table.c:
            found.append(self.table.c.name.contains(self.given["name~"], autoescape=True))
        return found

    def _mine(self) -> ColumnElement[bool]:
        context = self.request.context
        everybody = context.is_admin and self.given.get("all_tenants", "0").lower() in TRUE
        project = self.given.get("project_id") if everybody else context.project_id or ""
        return true() if project is None else self.table.c.project_id == project

    def _equals(self, name: str, value: str) -> ColumnElement[bool]:
        column = self.table.c[name]
        if name in ("bootable", "multiattach"):
            found: ColumnElement[bool] = column.is_(boolean(name, value))
        elif name == "size":
            found = column == size(name, value)
        else:
            found = column == value
        return found

    def rows(self, connection: Connection) -> tuple[Sequence[RowMapping], int | None]:
        """A page of rows, and how many there are on all pages where ``with_count`` asks for it (3.45)."""
        query: Select[Any] = select(self.table).where(*self.where())
        count = None
        if self.request.extra["version"] >= (3, 45) and self.given.get("with_count", "0").lower() in TRUE:
            count = connection.execute(select(func.count()).select_from(query.subquery())).scalar()
        order = self._order()
        if "marker" in self.given:
            query = query.where(self._after(connection, order, self.given["marker"]))
        query = query.order_by(*(column.desc() if down else column.asc() for column, down in order))
        return connection.execute(query.limit(self.limit).offset(self.offset)).mappings().all(), count

    def _order(self) -> list[tuple[Any, bool]]:
        words = [word for word in self.given.get("sort", "").split(",") if word] or [
            f"{self.given.get('sort_key', 'created_at')}:{self.given.get('sort_dir', 'desc')}"]
        order = []
        for word in [*words, "id"]:
            name, _colon, direction = word.partition(":")
            if name not in SORTED or name not in self.table.c:
                raise InvalidRequest(f"Invalid input received: {name} cannot be sorted by.")
            column = self.table.c[name]
            order.append((func.coalesce(column, "") if column.nullable else column, direction != "asc"))
        return order

    def _after(self, connection: Connection, order: Sequence[tuple[Any, bool]], marker: str) -> ColumnElement[bool]:
        row = connection.execute(select(*(column for column, _down in order)).where(
            self.table.c.id == marker, self._mine())).first()
        if row is None:
            raise InvalidRequest(f"marker [{marker}] not found.")
        return beyond(order, row)

    def links(self, rows: Sequence[RowMapping]) -> list[Document]:
        """To the next page, where this one is full."""
        if len(rows) < self.limit or not rows:
            return []
        query = [(name, value) for name, value in self.request.query if name not in ("marker", "offset")]
        query.append(("marker", rows[-1]["id"]))
        return [{"rel": "next", "href": f"{self.request.base}{self.request.path}?{urlencode(query)}"}]


SORTED = ("id", "name", "size", "status", "created_at", "updated_at", "bootable")
VOLUME_FILTERS = tuple(name for name in ("name", "status", "bootable", "multiattach", "availability_zone", "size",
                                         "user_id", "id", "snapshot_id", "source_volid") if name in volumes.c)
