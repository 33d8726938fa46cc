# SPDX-License-Identifier: GPL-3.0-or-later
"""Fields of the Compute API as rows: what bodies may say and what answers show, at each version, comes from these.

A noun's file has one ``Fields`` of ``ApiField`` rows. ``Fields.body`` makes the value type of a request's body of them,
``Fields.arguments`` what the use case is called with, and ``View`` what answers show.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Row

from magnetar_control.api.values import Lenient
from magnetar_core.errors import InvalidField
from magnetar_core.fields import unknown
from magnetar_core.values import Value
from magnetar_core.versions import Version

from .operation import NEVER, Call, Query
from .versions import FIRST, NEWEST

#: The value of a field that is not shown.
ABSENT: Any = object()


@dataclass(frozen=True)
class ListFilter:
    """Query parameters that filter lists by a field. *names*: what they are called. *add* puts a checked value into the
    list request (given the request, the field's column and the value). *everyone*: since which version who is no
    administrator may use them; those of others are left out."""

    names: str
    add: Callable[[Any, str, Any], None]
    value: Value = Value()  # noqa: RUF009 - it has no state
    everyone: int = NEVER


@dataclass(frozen=True, eq=False)
class ApiField:
    """One field in the versions from *since* to *until*.

    *wire* is its name in bodies and answers, *value* what a body may say. *name* is what it is called below the API,
    where that differs: the column of the row, the argument of the use case; ``None``: nothing below the API is given
    it. *takes* names the requests that have it (create, update, …), *required* those that must, *shows* the answers
    (list, show, …). *show* makes what is shown of the view and the row, where that is not the column as it is. *when*
    says (of what is shown besides, and the row) whether it is shown at all; then *show* may be ``ABSENT``, too.
    *reads*: the columns that *show* and *when* read, where those are others than its own. *rule*: who sees it; a row
    with another *rule* and *when* may show it to others. *filters* and *sorts*: parameters that filter lists by it, and
    sort keys.
    """

    wire: str
    value: Value = Value()  # noqa: RUF009 - it has no state
    _: KW_ONLY  # pylint: disable=disallowed-name
    name: str | None = ""
    takes: str = ""
    required: str = ""
    shows: str = ""
    since: int = FIRST
    until: int = NEWEST
    show: Callable[[Any, Any], Any] | None = None
    when: Callable[[Mapping[str, Any], Any], Any] | None = None
    reads: str = ""
    rule: str | None = None
    filters: tuple[ListFilter, ...] = ()
    sorts: str = ""

    def __post_init__(self) -> None:
        if self.until < self.since:
            raise ValueError(f"{self.wire}: a range cannot end (2.{self.until}) before it begins (2.{self.since})")

    @property
    def column(self) -> str:
        """What it is called below the API."""
        return self.name or self.wire

    def at(self, version: int) -> bool:
        """Whether it exists at *version*."""
        return self.since <= version <= self.until

    def clashes(self, other: ApiField) -> bool:
        """Whether both are one field of one request or answer in some version."""
        if self.rule and other.rule and self.rule != other.rule:
            return False
        return self.wire == other.wire and self.since <= other.until and other.since <= self.until and bool(
            {*self.takes.split()} & {*other.takes.split()} or {*self.shows.split()} & {*other.shows.split()})


class Body(Value):
    """An object with these fields and no others; those of *required* must be there."""

    form = (dict,)

    def __init__(self, fields: Sequence[ApiField], required: Sequence[ApiField]) -> None:
        self.fields, self.required = fields, frozenset(required)
        self._known: dict[int, dict[str, ApiField]] = {}

    def _at(self, version: Version | None) -> dict[str, ApiField]:
        minor = NEWEST if version is None else version.minor
        if minor not in self._known:
            self._known[minor] = {field.wire: field for field in self.fields if field.at(minor)}
        return self._known[minor]

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """The object with each value in normal form."""
        if not isinstance(value, dict):
            raise InvalidField(path or "document", "must be an object with fields", value)
        known, prefix = self._at(version), path + "." if path else ""
        if isinstance(version, Lenient):
            value = {name: _trimmed(known[name], one) for name, one in value.items() if name in known}
        for name in value:
            if name not in known:
                raise InvalidField(prefix + str(name), self._rule_of_unknown(name, known))
        for name, field in known.items():
            if field in self.required and name not in value:
                raise InvalidField(prefix + name, "is required")
        return {name: known[name].value.check(one, prefix + name, version) for name, one in value.items()}

    def _rule_of_unknown(self, name: Any, known: Mapping[str, ApiField]) -> str:
        """Return the rule that the field *name* breaks, which is none of the *known* ones of the version."""
        spans = [f"2.{field.since} and later" if field.until >= NEWEST else f"2.{field.since} to 2.{field.until}"
                 for field in self.fields if field.wire == name]
        return f"is a field of microversions {', '.join(spans)}; leave it out" if spans else unknown(name, known, ())

    def likeness(self, value: Any) -> int:
        """The more of its fields it has, the more it is like it."""
        return super().likeness(value) and 1 + sum(field.wire in value for field in self.fields)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """An object."""
        known = self._at(version)
        required = [name for name, field in known.items() if field in self.required]
        return {"type": "object", "properties": {name: field.value.schema(version) for name, field in known.items()},
                "additionalProperties": False, **({"required": required} if required else {})}


def _trimmed(field: ApiField, value: Any) -> Any:
    """Names may have blanks around them where the version is lenient."""
    return value.strip() if field.wire == "name" and isinstance(value, str) else value


class Shape(NamedTuple):
    """An answer at a version to one who may see it: a document of all names that are always shown, to be copied, which
    is quicker than one that grows name by name; names and reader of the plain columns; the others with what makes
    them; those that are not always shown, with what says when; the columns that all of them read."""

    empty: dict[str, Any]
    names: tuple[str, ...]
    plain: Callable[[Any], tuple[Any, ...]]
    made: tuple[tuple[str, Callable[[Any, Any], Any]], ...]
    optional: tuple[tuple[str, Callable[[Any, Any], Any], Callable[[Mapping[str, Any], Any], Any]], ...]
    columns: frozenset[str]


class Fields:
    """The rows of one noun. *mapping*: its columns are keys, and not attributes."""

    def __init__(self, *rows: ApiField, mapping: bool = False) -> None:
        clash = [one.wire for at, one in enumerate(rows) for two in rows[at + 1:] if one.clashes(two)]
        if clash:
            raise TypeError(f"fields overlap in version and name: {', '.join(clash)}")
        self.rows = rows
        self._getter: Callable[..., Any] = itemgetter if mapping else attrgetter
        self._at: dict[tuple[str, int], tuple[tuple[ApiField, ...], tuple[str, ...]]] = {}
        self._shapes: dict[tuple[str, int, tuple[str, ...]], Shape] = {}
        given = [row for row in rows if row.takes and row.name is not None]
        #: Of each request, and of all: the names of its fields in bodies and below the API.
        self._names = {request: {row.wire: row.column for row in given if not request or request in row.takes.split()}
                       for request in ("", *(word for row in rows for word in row.takes.split()))}
        #: By their names: filters with the rows that they belong to, and rows of sort keys.
        self.filters = {name: (row, one) for row in rows for one in row.filters for name in one.names.split()}
        self.sorts = {name: row for row in rows for name in row.sorts.split()}

    def body(self, request: str) -> Body:
        """What the body of *request* (create, update, …) may say."""
        rows = [row for row in self.rows if request in row.takes.split()]
        return Body(rows, [row for row in rows if request in row.required.split()])

    def arguments(self, given: Mapping[str, Any], request: str = "") -> dict[str, Any]:
        """A checked body, of *request* where requests differ, by the names below the API."""
        names = self._names[request]
        return {names[name]: value for name, value in given.items() if name in names}

    def query(self) -> dict[str, Query]:
        """The parameters that filter. The values of those that everybody may use are checked at once, the others when
        it is known that the caller may use them (``add_filter``)."""
        return {name: Query(value=one.value if one.everyone <= row.since else Value(), since=row.since)
                for name, (row, one) in self.filters.items()}

    def add_filter(self, request: Any, name: str, value: Any) -> None:
        """Put the value of the parameter *name* into a list request. Raises ``InvalidField``."""
        row, one = self.filters[name]
        one.add(request, row.column, value if one.everyone <= row.since else one.value.check(value, name))

    def shape(self, call: Call, answer: str) -> Shape:
        """What *answer* (list, show, …; or words of several) shows the caller; made once for each version and set of
        rules that hold."""
        if (known := call.shapes.get((self, answer))) is not None:
            return known  # type: ignore[no-any-return]
        key = answer, call.version
        if key not in self._at:
            words = {*answer.split()}
            rows = tuple(row for row in self.rows if row.at(call.version) and not words.isdisjoint(row.shows.split()))
            self._at[key] = rows, tuple({row.rule: None for row in rows if row.rule})
        rows, rules = self._at[key]
        allowed = tuple([rule for rule in rules if call.cloud.policy.allows(rule, call.context)])
        found = self._shapes.get((*key, allowed))
        if found is None:
            found = self._shapes[*key, allowed] = self._shape([
                row for row in rows if row.rule is None or row.rule in allowed])
        call.shapes[self, answer] = found
        return found

    def one(self, key: str, answer: str = "show") -> Callable[[Call, Any], dict[str, Any]]:
        """An operation's answer: a row's document under *key*."""
        return lambda call, row: {key: View(call, self, answer).document(row)}

    def many(self, key: str, answer: str = "show") -> Callable[[Call, Any], dict[str, Any]]:
        """An operation's answer: the documents of rows under *key*."""
        return lambda call, rows: {key: View(call, self, answer).documents(rows)}

    def _shape(self, rows: Sequence[ApiField]) -> Shape:
        plain = [row for row in rows if row.show is None and row.when is None]
        columns = [row.column for row in plain]
        read = self._getter(*columns) if columns else lambda _row: ()
        names = tuple(row.wire for row in plain)
        made = tuple((row.wire, row.show) for row in rows if row.show is not None and row.when is None)
        return Shape(dict.fromkeys((*names, *dict(made))), names,
                     read if len(columns) != 1 else lambda row: (read(row),), made,
                     tuple((row.wire, row.show or self._reader(row.column), row.when)
                           for row in rows if row.when is not None),
                     frozenset(name for row in rows for name in (row.reads or row.column).split()))

    def _reader(self, column: str) -> Callable[[Any, Any], Any]:
        read = self._getter(column)
        return lambda _view, row: read(row)


@lru_cache(maxsize=200)
def _named_tuple(columns: tuple[str, ...]) -> Any:
    return namedtuple("columns", columns)  # noqa: PYI024 - its fields are not known before


class View:
    """How one caller sees rows of a noun at one version; made once for an answer."""

    def __init__(self, call: Call, fields: Fields, answer: str = "show") -> None:
        self.call, self.version = call, call.version
        self.root = call.request.root + ("/" + call.request.extra["project"] if "project" in call.request.extra else "")
        self.empty, self.names, self.plain, self.made, self.optional, _columns = fields.shape(call, answer)

    def document(self, row: Any) -> dict[str, Any]:
        """All fields of a row."""
        return self.documents((row,))[0]

    def documents(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        """All fields of rows of one shape."""
        names, plain, made, optional, found = self.names, self.plain, self.made, self.optional, []
        # A field of a named tuple is read in a fifth of the time that a field of SQLAlchemy's row takes.
        quick = rows and isinstance(rows[0], Row)
        for row in map(_named_tuple(tuple(rows[0]._fields))._make, rows) if quick else rows:
            shown: dict[str, Any] = self.empty.copy()
            shown.update(zip(names, plain(row), strict=True))
            for name, show in made:
                shown[name] = show(self, row)
            for name, show, when in optional:
                if when(shown, row) and (value := show(self, row)) is not ABSENT:
                    shown[name] = value
            found.append(shown)
        return found

    def links(self, noun: str, id: str) -> list[dict[str, str]]:
        """Self and bookmark of the *noun* (its word in the path) *id*."""
        return [{"rel": "self", "href": f"{self.call.base}/{noun}/{id}"},
                {"rel": "bookmark", "href": f"{self.root}/{noun}/{id}"}]


@contextmanager
def below(key: str) -> Iterator[None]:
    """Fields that are refused within are named as they stand in the body, below *key*."""
    try:
        yield
    except InvalidField as error:
        error.details["field"] = f"{key}.{error.details['field']}"
        error.message = f"{key}.{error.message}"
        raise
