# SPDX-License-Identifier: GPL-3.0-or-later
"""Declarations: a ``Kind`` lists its ``Field``s once; options, schemas, checks and docs come from that list."""

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
#: Settable when the resource is made and fixed afterwards.
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
    """One property of a kind: its value type, what it means, and where it is used.

    *on* names the operations (create, update, show, list). *option* is the name in Ansible where it differs, *aliases*
    further names there; ``option=False`` hides the field from modules. *secret* keeps the value out of logs, diffs and
    Ansible output. *default* is what an omitted field means when the resource is made. *required* asks for it then.
    ``compared=False``: the field says how to make the resource, not what it is, so a difference in it is none.
    ``kept=False``: an agent has it while it does what it was given with, and writes it nowhere.
    """

    def __init__(self, value: Value, doc: str, on: str = ALWAYS, required: bool = False, default: Any = UNSET,
                 secret: bool = False, option: Union[str, bool, None] = None, aliases: Iterable[str] = (),
                 sample: Any = None, compared: bool = True, kept: bool = True) -> None:
        self.value, self.doc, self.on = value, doc, frozenset(on.split())
        self.required, self.default, self.secret = required, default, secret
        self.option, self.aliases, self.sample = option, tuple(aliases), sample
        self.compared, self.kept = compared, kept
        self.settable = bool(self.on & SETTABLE)
        #: Set at creation only.
        self.fixed = CREATE in self.on and UPDATE not in self.on
        self.name = ""

    def named(self, name: str) -> Field:
        """Give the field the name under which it was declared."""
        self.name = name
        if self.option is None:
            self.option = name
        return self

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        """The value in its normal form. Raises ``InvalidField``, which does not repeat a secret."""
        try:
            return self.value.check(value, path, version)
        except InvalidField as error:
            if not self.secret:
                raise
            raise InvalidField(error.details["field"], error.details["rule"]) from None


class _Fields:
    """A list of fields that checks a document; shared by ``Kind`` and ``Record``."""

    @staticmethod
    def collect(namespace: Mapping[str, Any]) -> tuple[Field, ...]:
        return tuple(value.named(name) for name, value in namespace.items() if isinstance(value, Field))

    @staticmethod
    def by_operation(fields: Sequence[Field]) -> dict[str, dict[str, Field]]:
        """Of each operation, the fields that it has, by name."""
        return {operation: {f.name: f for f in fields if operation in f.on} for operation in ALWAYS.split()}

    @staticmethod
    def check_document(fields: Mapping[str, Mapping[str, Field]], document: Any, path: str, version: Optional[Version],
                       operation: str, partial: bool = False) -> dict[str, Any]:
        """*fields*: ``by_operation``."""
        if not isinstance(document, dict):
            raise InvalidField(path or "document", "must be an object with fields", document)
        known = fields[operation]
        prefix = path + "." if path else ""
        for name in document:
            if name not in known:
                every = {one for names in fields.values() for one in names}
                raise InvalidField(prefix + str(name), unknown(name, known, every))
        if operation == CREATE and not partial:
            for name, field in known.items():
                if field.required and name not in document:
                    raise InvalidField(prefix + name, "is required")
        return {name: known[name].check(value, prefix + name, version) for name, value in document.items()}

    @staticmethod
    def schema(fields: Sequence[Field], version: Optional[Version], operation: str) -> dict[str, Any]:
        used = [f for f in fields if operation in f.on]
        found: dict[str, Any] = {
            "type": "object",
            "properties": {f.name: dict(f.value.schema(version), description=f.doc) for f in used},
            "additionalProperties": False,
        }
        required = [f.name for f in used if f.required and operation == CREATE]
        return dict(found, required=required) if required else found


def unknown(name: Any, known: Iterable[str], fields: Iterable[str]) -> str:
    """The rule that a document breaks which has *name*: *known* are the names that it may have, *fields* all that there
    are."""
    if name in fields:
        return "cannot be set here; it is reported only, or fixed when the resource is made"
    near = difflib.get_close_matches(str(name), list(known), 1)
    return "is not a known field" + ("; did you mean %s?" % near[0] if near else "; known are %s" % ", ".join(known))


class Record(Value):
    """An object value with fields of its own: ``Record(vcpus=Field(...), ram=Field(...))``."""

    form = (dict,)

    def __init__(self, **fields: Field) -> None:
        self.fields = _Fields.collect(fields)
        self._by_operation = _Fields.by_operation(self.fields)

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        return _Fields.check_document(self._by_operation, value, path, version, CREATE)

    def changes(self, value: Any, path: str, version: Optional[Version] = None) -> dict[str, Any]:
        """What is to change, in normal form: only fields that can be updated."""
        return _Fields.check_document(self._by_operation, value, path, version, UPDATE)

    def likeness(self, value: Any) -> int:
        return super().likeness(value) and 1 + sum(field.name in value for field in self.fields)

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        return _Fields.schema(self.fields, version, CREATE)

    def option(self) -> dict[str, Any]:
        return {"type": "dict"}


class Kind:
    """A noun of the system. Subclasses list fields; ``noun`` and ``plural`` name it in routes and modules."""

    noun: ClassVar[str] = ""
    plural: ClassVar[str] = ""
    fields: ClassVar[tuple[Field, ...]] = ()
    own: ClassVar[tuple[Field, ...]] = ()
    _by_operation: ClassVar[Mapping[str, Mapping[str, Field]]] = _Fields.by_operation(())
    _settable: ClassVar[tuple[Field, ...]] = ()
    _secrets: ClassVar[frozenset[str]] = frozenset()
    _passing: ClassVar[frozenset[str]] = frozenset()
    #: Whether reports can be narrowed (by name, uuid, fields, filters). False for what is reported as a whole.
    selectable: ClassVar[bool] = True
    #: Fixed fields that a rebuild (``on_immutable: rebuild``) may change.
    rebuilt: ClassVar[frozenset[str]] = frozenset()
    #: Words of ``status`` that say that content is still to come. No field is fixed until it is there.
    unfilled: ClassVar[frozenset[str]] = frozenset()
    #: Fields that are found from what another one names, and are found again when that changes.
    found: ClassVar[Mapping[str, str]] = {}
    #: Fields that only a cloud gives a resource; an agent refuses them.
    of_clouds: ClassVar[frozenset[str]] = frozenset()
    #: Groups of fields of which a resource has one: what it is made from.
    alternatives: ClassVar[tuple[frozenset[str], ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        merged = {f.name: f for base in cls.__mro__[-1:0:-1] for f in vars(base).get("own", ())}
        cls.own = _Fields.collect(vars(cls))
        merged.update((f.name, f) for f in cls.own)
        cls.fields = tuple(merged.values())
        cls._by_operation = _Fields.by_operation(cls.fields)
        cls._settable = tuple(f for f in cls.fields if f.settable)
        cls._secrets = frozenset(f.name for f in cls.fields if f.secret)
        cls._passing = frozenset(f.name for f in cls.fields if not f.kept)

    @classmethod
    def changes(cls, _name: str, _old: Any, _new: Any) -> bool:
        """Whether a fixed field may change from one value to the other all the same."""
        return False

    @classmethod
    def rebuilds(cls, name: str, _old: Any, _new: Any) -> bool:
        """Whether a rebuild may change the fixed field *name* from one value to the other."""
        return name in cls.rebuilt

    @classmethod
    def check(cls, document: Any, operation: str = CREATE, partial: bool = False) -> dict[str, Any]:
        """Return *document* in normal form; raise ``InvalidField`` naming the field and the rule.

        *partial* lets required fields be missing: the document says only what is to differ.
        """
        return _Fields.check_document(cls._by_operation, document, "", None, operation, partial)

    @classmethod
    def check_new(cls, given: Mapping[str, Any]) -> None:
        """Raise ``InvalidField`` unless *given* says enough to make one; null says nothing. Its values are checked, but
        for a name that only the key of the request says."""
        known = cls._by_operation[CREATE]
        for name, field in known.items():
            if field.required and given.get(name) is None:
                raise InvalidField(name, "is required")
        if "name" in known and given.get("name") is not None:
            known["name"].check(given["name"], "name")

    @classmethod
    def schema(cls, operation: str = CREATE) -> dict[str, Any]:
        """JSON Schema of a document of this kind for *operation*."""
        return _Fields.schema(cls.fields, None, operation)

    @classmethod
    def field(cls, name: str) -> Field:
        """The field called *name*; ``KeyError`` when there is none."""
        for field in cls.fields:
            if field.name == name:
                return field
        raise KeyError(name)

    @classmethod
    def settable(cls) -> tuple[Field, ...]:
        """The fields a user may set."""
        return cls._settable

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """What omitted fields mean when a resource is made."""
        return {f.name: f.default for f in cls.settable() if f.default is not UNSET}

    @classmethod
    def giving_way(cls, known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """The document *known*, in which fields to which *given* names an alternative are as if never set."""
        chosen = {name for name, value in given.items() if value is not None}
        gone = {name for group in cls.alternatives if group & chosen for name in group - set(given)}
        return {name: cls.field(name).default if name in gone else value for name, value in known.items()}

    @classmethod
    def secrets(cls) -> frozenset[str]:
        """Names of fields whose values are never shown."""
        return cls._secrets

    @classmethod
    def passing(cls) -> frozenset[str]:
        """Names of fields whose values are kept nowhere (``kept=False``)."""
        return cls._passing
