# SPDX-License-Identifier: GPL-3.0-or-later
"""Declarations: a ``Kind`` lists its ``Field``s once, and options, schemas, checks and docs derive from that list."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Optional, Union

from .errors import InvalidField
from .values import Value
from .versions import Version

CREATE, UPDATE, SHOW, LIST = "create", "update", "show", "list"
SETTABLE = frozenset((CREATE, UPDATE))
ALWAYS = "create update show list"
#: Settable at creation, then immutable.
FIXED = "create show list"
#: Reported, never set.
READ = "show list"


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET = _Unset()


class Field:
    """A field of a resource type: its value type, its description, and *on*, the operations that use it (create,
    update, show, list).

    *option*: the field's name in Ansible modules, if modules have another name for it; ``False``: modules do not have
    the field. *aliases*: further names in modules. *secret*: logs, diffs and Ansible output do not show the value.
    *default*: the value of an omitted field at creation. *required*: the field must be set at creation.
    ``compared=False``: the field only says how to create the resource, so a different value is no change.
    ``stored=False``: agents use the value during the request only, and do not store it.
    """

    def __init__(self, value: Value, doc: str, on: str = ALWAYS, required: bool = False, default: Any = UNSET,
                 secret: bool = False, option: Union[str, bool, None] = None, aliases: Iterable[str] = (),
                 sample: Any = None, compared: bool = True, stored: bool = True) -> None:
        self.value, self.doc, self.on = value, doc, frozenset(on.split())
        self.required, self.default, self.secret = required, default, secret
        self.option, self.aliases, self.sample = option, tuple(aliases), sample
        self.compared, self.stored = compared, stored
        self.settable = bool(self.on & SETTABLE)
        #: Settable at creation only.
        self.fixed = CREATE in self.on and UPDATE not in self.on
        self.name = ""

    def with_name(self, name: str) -> Field:
        """Set the field's name to *name*, the class attribute that holds the field, and return the field."""
        self.name = name
        if self.option is None:
            self.option = name
        return self

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        """Validate *value* and return it in normal form. *path*: the field's name in errors. *version*: the API version
        that applies (``None``: the newest). Raises ``InvalidField``; the error of a secret field does not contain the
        value.
        """
        try:
            return self.value.check(value, path, version)
        except InvalidField as error:
            if not self.secret:
                raise
            raise InvalidField(error.details["field"], error.details["rule"]) from None


class _Fields:
    """Functions that validate documents (mappings of field names to values) against declared fields; shared by ``Kind``
    and ``Record``.
    """

    @staticmethod
    def collect(namespace: Mapping[str, Any]) -> tuple[Field, ...]:
        return tuple(value.with_name(name) for name, value in namespace.items() if isinstance(value, Field))

    @staticmethod
    def by_operation(fields: Sequence[Field]) -> dict[str, dict[str, Field]]:
        """Return the *fields* by operation (create, update, show, list) and by name."""
        return {operation: {f.name: f for f in fields if operation in f.on} for operation in ALWAYS.split()}

    @staticmethod
    def check_document(fields: Mapping[str, Mapping[str, Field]], document: Any, path: str, version: Optional[Version],
                       operation: str, partial: bool = False) -> dict[str, Any]:
        """Validate *document*, a mapping of field names to values, and return it in normal form. Raises
        ``InvalidField``.

        *fields*: the result of ``by_operation``. *operation*: create, update, show or list. *path*: a prefix of field
        names in errors. *version*: the API version that applies (``None``: the newest). *partial*: required fields may
        be missing.
        """
        if not isinstance(document, dict):
            raise InvalidField(path or "document", "must be an object with fields", document)
        allowed_fields = fields[operation]
        prefix = path + "." if path else ""
        for name in document:
            if name not in allowed_fields:
                every = {field_name for names in fields.values() for field_name in names}
                raise InvalidField(prefix + str(name), unknown_field_rule(name, allowed_fields, every))
        if operation == CREATE and not partial:
            for name, field in allowed_fields.items():
                if field.required and name not in document:
                    raise InvalidField(prefix + name, "is required")
        return {name: allowed_fields[name].check(value, prefix + name, version) for name, value in document.items()}

    @staticmethod
    def schema(fields: Sequence[Field], version: Optional[Version], operation: str) -> dict[str, Any]:
        used = [f for f in fields if operation in f.on]
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {f.name: dict(f.value.schema(version), description=f.doc) for f in used},
            "additionalProperties": False,
        }
        required = [f.name for f in used if f.required and operation == CREATE]
        return dict(schema, required=required) if required else schema


#: The beginning of the rule in the error for a field that no version of a kind has.
UNKNOWN = "is not a known field"


def unknown_field_rule(name: Any, allowed: Iterable[str], fields: Iterable[str]) -> str:
    """Return the error text for the field *name*, which a request must not set. *allowed*: the fields that the request
    may set. *fields*: all fields of the resource type.
    """
    if name in fields:
        return "cannot be set here; it is reported only, or fixed when the resource is made"
    near = difflib.get_close_matches(str(name), list(allowed), 1)
    return UNKNOWN + ("; did you mean %s?" % near[0] if near else "; known are %s" % ", ".join(allowed))


class Record(Value):
    """The value type of an object that has declared fields: ``Record(vcpus=Field(...), ram=Field(...))``."""

    form = (dict,)

    def __init__(self, **fields: Field) -> None:
        self.fields = _Fields.collect(fields)
        self._by_operation = _Fields.by_operation(self.fields)

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        return _Fields.check_document(self._by_operation, value, path, version, CREATE)

    def changes(self, value: Any, path: str, version: Optional[Version] = None) -> dict[str, Any]:
        """Validate *value*, which has only the fields that change, and return it in normal form. Raises
        ``InvalidField``.
        """
        return _Fields.check_document(self._by_operation, value, path, version, UPDATE)

    def likeness(self, value: Any) -> int:
        return super().likeness(value) and 1 + sum(field.name in value for field in self.fields)

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        return _Fields.schema(self.fields, version, CREATE)

    def option(self) -> dict[str, Any]:
        return {"type": "dict"}


class Kind:
    """The declaration of a resource type, such as server or flavor: its fields, and its names in routes and modules
    (``noun`` and ``plural``).
    """

    noun: ClassVar[str] = ""
    plural: ClassVar[str] = ""
    fields: ClassVar[tuple[Field, ...]] = ()
    own: ClassVar[tuple[Field, ...]] = ()
    _by_operation: ClassVar[Mapping[str, Mapping[str, Field]]] = _Fields.by_operation(())
    _settable: ClassVar[tuple[Field, ...]] = ()
    _secrets: ClassVar[frozenset[str]] = frozenset()
    _passing: ClassVar[frozenset[str]] = frozenset()
    #: Whether reports can be narrowed (by name, uuid, fields, filters). False for kinds that are reported as a whole.
    selectable: ClassVar[bool] = True
    #: Immutable fields that a rebuild (``on_immutable: rebuild``) may change.
    rebuilt: ClassVar[frozenset[str]] = frozenset()
    #: Values of ``status`` that mean that content is still missing. No field is immutable until the content exists.
    unfilled: ClassVar[frozenset[str]] = frozenset()
    #: Fields that are derived from the value of another field, and derived again when that field changes.
    found: ClassVar[Mapping[str, str]] = {}
    #: Fields that only a cloud sets; an agent refuses them.
    of_clouds: ClassVar[frozenset[str]] = frozenset()
    #: Groups of fields that exclude each other: the sources that a resource is made from.
    alternatives: ClassVar[tuple[frozenset[str], ...]] = ()
    #: Description of the list that its info module returns; by default, the matching resources.
    report_doc: ClassVar[str] = ""
    #: Sample of ``actions`` in the documentation of its module: verbs of its driver.
    sample_actions: ClassVar[tuple[str, ...]] = ("record",)
    #: Sample of ``changes`` there, each field to its old and new value. By default, the first field with a sample is
    #: set.
    sample_changes: ClassVar[Mapping[str, tuple[Any, Any]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        merged = {f.name: f for base in cls.__mro__[-1:0:-1] for f in vars(base).get("own", ())}
        cls.own = _Fields.collect(vars(cls))
        merged.update((f.name, f) for f in cls.own)
        cls.fields = tuple(merged.values())
        cls._by_operation = _Fields.by_operation(cls.fields)
        cls._settable = tuple(f for f in cls.fields if f.settable)
        cls._secrets = frozenset(f.name for f in cls.fields if f.secret)
        cls._passing = frozenset(f.name for f in cls.fields if not f.stored)

    @classmethod
    def changes(cls, _name: str, _old: Any, _new: Any) -> bool:
        """Return whether the field *_name* may change from *_old* to *_new*, although the field is immutable otherwise.
        The default is ``False``; subclasses override this method to allow certain changes."""
        return False

    @classmethod
    def rebuilds(cls, name: str, _old: Any, _new: Any) -> bool:
        """Return whether a rebuild may change the field *name* from *_old* to *_new*, although the field is immutable
        otherwise.
        """
        return name in cls.rebuilt

    @classmethod
    def check(cls, document: Any, operation: str = CREATE, partial: bool = False) -> dict[str, Any]:
        """Validate *document*, a mapping of field names to values, for *operation* (create, update, show or list), and
        return it in normal form. *partial*: required fields may be missing, because *document* has only the fields to
        change. Raises ``InvalidField``.
        """
        return _Fields.check_document(cls._by_operation, document, "", None, operation, partial)

    @classmethod
    def check_new(cls, document: Mapping[str, Any]) -> None:
        """Raise ``InvalidField`` if *document* lacks a field that a new resource requires; null counts as missing. No
        values are validated except ``name``, which may come from the request's key (the resource's name or uuid in the
        URL or batch item).
        """
        create_fields = cls._by_operation[CREATE]
        for name, field in create_fields.items():
            if field.required and document.get(name) is None:
                raise InvalidField(name, "is required")
        if "name" in create_fields and document.get("name") is not None:
            create_fields["name"].check(document["name"], "name")

    @classmethod
    def schema(cls, operation: str = CREATE) -> dict[str, Any]:
        """Return the JSON Schema of a resource of this type in *operation* (create, update, show or list)."""
        return _Fields.schema(cls.fields, None, operation)

    @classmethod
    def field(cls, name: str) -> Field:
        """Return the field *name* of the resource type. Raises ``KeyError`` if there is none."""
        for field in cls.fields:
            if field.name == name:
                return field
        raise KeyError(name)

    @classmethod
    def settable(cls) -> tuple[Field, ...]:
        """Return the fields that a user may set."""
        return cls._settable

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the defaults of the fields that a request to create a resource may omit."""
        return {f.name: f.default for f in cls.settable() if f.default is not UNSET}

    @classmethod
    def giving_way(cls, current: Mapping[str, Any], requested: Mapping[str, Any]) -> dict[str, Any]:
        """Return *current*, the fields of an existing resource, with defaults for the fields that are alternatives to a
        *requested* field. For example, a requested source image resets the source snapshot.
        """
        chosen = {name for name, value in requested.items() if value is not None}
        dropped = {name for group in cls.alternatives if group & chosen for name in group - set(requested)}
        return {name: cls.field(name).default if name in dropped else value for name, value in current.items()}

    @classmethod
    def secrets(cls) -> frozenset[str]:
        """Return the names of fields whose values are never shown."""
        return cls._secrets

    @classmethod
    def passing(cls) -> frozenset[str]:
        """Return the names of fields whose values are used only during a request, and not stored
        (``Field(stored=False)``).
        """
        return cls._passing
