# SPDX-License-Identifier: GPL-3.0-or-later
"""Fields of the Compute API, declared as rows. Request bodies and answers at each version are made from these rows.

The file of a resource type (such as servers) has one ``Fields`` of ``ApiField`` rows. ``Fields.body`` builds the value
type of a request's body, ``Fields.arguments`` the arguments of the use case, and ``View`` the documents of answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Row

from magnetar_control.api.values import Lenient
from magnetar_control.store.engine.prepared import make_row_class
from magnetar_control.store.engine.rows import SelectedRow
from magnetar_core.errors import InvalidField
from magnetar_core.fields import unknown_field_rule
from magnetar_core.values import Value
from magnetar_core.versions import Version

from .operation import NEVER, Call, Query
from .versions import FIRST, NEWEST

#: The value of a field that is not shown.
ABSENT: Any = object()


@dataclass(frozen=True)
class ListFilter:
    """One or more query parameters that filter a list by a field.

    *names*: the parameters, separated by blanks. *add*: a function that adds the filter to a list request, such as a
    ``ServerListRequest``; its arguments are the list request, the field's column and the checked value. *value*: the
    validator of the parameter. *everyone*: the first minor version at which all callers may use the parameters; in
    earlier versions, the parameters have an effect for administrators only.
    """

    names: str
    add: Callable[[Any, str, Any], None]
    value: Value = Value()  # noqa: RUF009 - it has no state
    everyone: int = NEVER


@dataclass(frozen=True, eq=False)
class ApiField:
    """The declaration of one field of the Compute API, in the minor versions from *since* to *until*.

    * *wire*: the field's name in request bodies and answers.
    * *value*: the validator of its values in request bodies.
    * *name*: the column of the row and the argument of the use case (the function that does the work), if their name
      differs from *wire*; ``None`` if the use case does not get the field.
    * *takes*: the requests that may contain it (create, update, …); *required*: the requests that must contain it.
    * *shows*: the answers that contain it (list, show, …).
    * *show*: a function of the ``View`` (which converts the row to JSON) and the row; it returns the shown value, if it
      is not the column's value.
    * *when*: for a field that is not always shown, a function of the other shown fields and the row; it returns whether
      the field is shown. If a field has *when*, its *show* may return ``ABSENT``, which hides the field too.
    * *reads*: the columns that *show* and *when* read, if they are not the field's column.
    * *rule*: the policy rule that a caller must pass to see the field. A field may be declared several times, with
      different *rule* and *when*.
    * *filters*, *sorts*: the filter parameters and the sort keys of lists that use the field.
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
        """The name of the field outside the API: the column of rows, and the argument of the use case (the function
        that does the work of a request)."""
        return self.name or self.wire

    def at(self, version: int) -> bool:
        """Return whether the field exists at the minor version *version*."""
        return self.since <= version <= self.until

    def clashes(self, other: ApiField) -> bool:
        """Return whether this field and *other* have the same name in the same request or answer at some version; then
        one ``Fields`` object may not contain both fields. Fields with different policy rules do not clash."""
        if self.rule and other.rule and self.rule != other.rule:
            return False
        return self.wire == other.wire and self.since <= other.until and other.since <= self.until and bool(
            {*self.takes.split()} & {*other.takes.split()} or {*self.shows.split()} & {*other.shows.split()})


class Body(Value):
    """A validator of a JSON object in a request body: it accepts *fields* and no others, and requires those in
    *required*."""

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
        """Return the object *value* with each field checked and in normal form. *path*: the name of the object in the
        body, for errors. Raises ``InvalidField``."""
        if not isinstance(value, dict):
            raise InvalidField(path or "document", "must be an object with fields", value)
        fields, prefix = self._at(version), path + "." if path else ""
        if isinstance(version, Lenient):
            value = {name: _trimmed(fields[name], field_value) for name, field_value in value.items() if name in fields}
        for name in value:
            if name not in fields:
                raise InvalidField(prefix + str(name), self._rule_of_unknown(name, fields))
        for name, field in fields.items():
            if field in self.required and name not in value:
                raise InvalidField(prefix + name, "is required")
        return {name: fields[name].value.check(field_value, prefix + name, version) for name,
                field_value in value.items()}

    def _rule_of_unknown(self, name: Any, fields: Mapping[str, ApiField]) -> str:
        """Return the error text for the unknown field *name*: it lists the versions that have a field *name*; if no
        version has one, it lists the names in *fields* (the fields of the requested version)."""
        spans = [f"2.{field.since} and later" if field.until >= NEWEST else f"2.{field.since} to 2.{field.until}"
                 for field in self.fields if field.wire == name]
        return f"is a field of microversions {', '.join(spans)}; leave it out" if spans else unknown_field_rule(
            name, fields, ())

    def likeness(self, value: Any) -> int:
        """Return a score of how well *value* fits this validator. If *value* matches none of several validators, the
        error comes from the validator with the highest score. The score is 0 if *value* is not an object; it grows with
        the number of this body's fields in *value*."""
        return super().likeness(value) and 1 + sum(field.wire in value for field in self.fields)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """Return the JSON schema of the object at *version*."""
        fields = self._at(version)
        required = [name for name, field in fields.items() if field in self.required]
        return {"type": "object", "properties": {name: field.value.schema(version) for name, field in fields.items()},
                "additionalProperties": False, **({"required": required} if required else {})}


def _trimmed(field: ApiField, value: Any) -> Any:
    """Return *value* without leading and trailing blanks if *field* is ``name``, otherwise unchanged. Used for API
    versions such as Nova's ``/v2``, which accept names with such blanks."""
    return value.strip() if field.wire == "name" and isinstance(value, str) else value


class Shape(NamedTuple):
    """The fields of an answer for one version and one set of permissions, prepared so that rows are converted to JSON
    quickly.

    *empty*: a dict with all keys that are always shown; it is copied for each row. *names*: the fields whose value is
    the column's value; *plain*: a function that returns the values of the fields *names* of a row. *made*: other
    fields, each with the function that makes its value. *optional*: fields that are not always shown, each with the
    function that makes its value, and a function that tells whether it is shown. *columns*: all columns that the answer
    needs.
    """

    empty: dict[str, Any]
    names: tuple[str, ...]
    plain: Callable[[Any], tuple[Any, ...]]
    made: tuple[tuple[str, Callable[[Any, Any], Any]], ...]
    optional: tuple[tuple[str, Callable[[Any, Any], Any], Callable[[Mapping[str, Any], Any], Any]], ...]
    columns: frozenset[str]


class Fields:
    """The declaration of all fields of one resource type in the API. *rows*: one ``ApiField`` for each field and range
    of versions. *mapping*: whether a resource is a mapping, whose keys are the columns; otherwise its attributes are
    the columns."""

    def __init__(self, *rows: ApiField, mapping: bool = False) -> None:
        clash = [field.wire for at, field in enumerate(rows) for two in rows[at + 1:] if field.clashes(two)]
        if clash:
            raise TypeError(f"fields overlap in version and name: {', '.join(clash)}")
        self.rows = rows
        self._getter: Callable[..., Any] = itemgetter if mapping else attrgetter
        self._at: dict[tuple[str, int], tuple[tuple[ApiField, ...], tuple[str, ...]]] = {}
        self._shapes: dict[tuple[str, int, tuple[str, ...]], Shape] = {}
        request_fields = [row for row in rows if row.takes and row.name is not None]
        #: For each request, and for all together: the names of its fields in bodies and below the API.
        self._names = {request: {row.wire: row.column for row in request_fields if not request
                                 or request in row.takes.split()}
                       for request in ("", *(request_name for row in rows for request_name in row.takes.split()))}
        #: By name: filters with their rows, and rows of sort keys.
        self.filters = {name: (row, list_filter) for row in rows for list_filter in row.filters
                        for name in list_filter.names.split()}
        self.sorts = {name: row for row in rows for name in row.sorts.split()}

    def body(self, request: str) -> Body:
        """Return the validator of the body of *request* (create, update, …)."""
        rows = [row for row in self.rows if request in row.takes.split()]
        return Body(rows, [row for row in rows if request in row.required.split()])

    def arguments(self, body: Mapping[str, Any], request: str = "") -> dict[str, Any]:
        """Return the values of *body*, a checked request body, by the argument names of the use case (the function that
        does the work of the request). *request* (create, update, …): needed only if these names differ by request."""
        names = self._names[request]
        return {names[name]: value for name, value in body.items() if name in names}

    def query(self) -> dict[str, Query]:
        """Return the declarations of the query parameters that filter lists, by name. If all callers may use a
        parameter, the declaration has the validator of its values. Otherwise the declaration accepts any value, and
        ``add_filter`` checks the value later, after the check of the caller's permission."""
        return {name: Query(value=list_filter.value if list_filter.everyone <= row.since else Value(), since=row.since)
                for name, (row, list_filter) in self.filters.items()}

    def add_filter(self, request: Any, name: str, value: Any) -> None:
        """Add the filter of the query parameter *name* with *value* to *request*, a list request such as
        ``ServerListRequest``. Raises ``InvalidField`` for an invalid value."""
        row, list_filter = self.filters[name]
        list_filter.add(request, row.column, value if list_filter.everyone <= row.since
                        else list_filter.value.check(value, name))

    def shape(self, call: Call, answer: str) -> Shape:
        """Return the fields of *answer* that the caller may see. *answer*: list, show, … or several of these words,
        separated by blanks. The result is cached by version and permissions."""
        if (cached_shape := call.shapes.get((self, answer))) is not None:
            return cached_shape  # type: ignore[no-any-return]
        key = answer, call.version
        if key not in self._at:
            words = {*answer.split()}
            rows = tuple(row for row in self.rows if row.at(call.version) and not words.isdisjoint(row.shows.split()))
            self._at[key] = rows, tuple({row.rule: None for row in rows if row.rule})
        rows, rules = self._at[key]
        allowed = tuple([rule for rule in rules if call.cloud.policy.allows(rule, call.context)])
        shape = self._shapes.get((*key, allowed))
        if shape is None:
            shape = self._shapes[*key, allowed] = self._shape([
                row for row in rows if row.rule is None or row.rule in allowed])
        call.shapes[self, answer] = shape
        return shape

    def one(self, key: str, answer: str = "show") -> Callable[[Call, Any], dict[str, Any]]:
        """Return a function for ``ApiOperation.shown``: it converts a row to the answer ``{key: {field: value}}``, with
        the fields of *answer* (list, show, …)."""
        return lambda call, row: {key: View(call, self, answer).document(row)}

    def many(self, key: str, answer: str = "show") -> Callable[[Call, Any], dict[str, Any]]:
        """Return a function for ``ApiOperation.shown``: it converts rows to the answer ``{key: [{field: value}]}``,
        with the fields of *answer* (list, show, …)."""
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


class View:
    """A converter of rows of one resource type to JSON, for one caller and version. Each answer needs a new ``View``.
    """

    def __init__(self, call: Call, fields: Fields, answer: str = "show") -> None:
        self.call, self.version = call, call.version
        self.root = call.request.root + ("/" + call.request.extra["project"] if "project" in call.request.extra else "")
        self.empty, self.names, self.plain, self.made, self.optional, _columns = fields.shape(call, answer)

    def document(self, row: Any) -> dict[str, Any]:
        """Return *row* as a dict for the answer: the fields that the caller may see."""
        return self.documents((row,))[0]

    def documents(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        """Return *rows* as dicts for the answer: the fields that the caller may see. All rows must have the same
        columns. For a ``SelectedRow``, a row whose JSON columns are parsed only when its attributes are read, these
        columns stay JSON text."""
        names, plain, made, optional, documents = self.names, self.plain, self.made, self.optional, []
        if rows and isinstance(rows[0], SelectedRow):
            rows = [row.stored for row in rows]
        elif rows and isinstance(rows[0], Row):
            rows = list(map(make_row_class(tuple(rows[0]._fields))._make, rows))
        for row in rows:
            shown: dict[str, Any] = self.empty.copy()
            shown.update(zip(names, plain(row), strict=True))
            for name, show in made:
                shown[name] = show(self, row)
            for name, show, when in optional:
                if when(shown, row) and (value := show(self, row)) is not ABSENT:
                    shown[name] = value
            documents.append(shown)
        return documents

    def links(self, resource_type: str, id: str) -> list[dict[str, str]]:
        """Return the ``self`` link and the ``bookmark`` link of the resource *id*. *resource_type*: the collection in
        the URL, such as servers."""
        return [{"rel": "self", "href": f"{self.call.base}/{resource_type}/{id}"},
                {"rel": "bookmark", "href": f"{self.root}/{resource_type}/{id}"}]


@contextmanager
def field_errors_below(key: str) -> Iterator[None]:
    """In this context, prefix the field name in each ``InvalidField`` error with *key*, such as ``server``, because the
    code in the context checks only the object under this key of the request body."""
    try:
        yield
    except InvalidField as error:
        error.details["field"] = f"{key}.{error.details['field']}"
        error.message = f"{key}.{error.message}"
        raise
