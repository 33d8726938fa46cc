# SPDX-License-Identifier: GPL-3.0-or-later
"""A kind as the cloud serves it: list, show, and ``ensure`` with the agents' meaning of every word.

A ``Noun`` says where its resources are (``every``) and how they are made, changed and removed; what is to be done about
a difference is decided here, once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from magnetar_core.errors import Ambiguous, Conflict, Immutable, InvalidField, MagnetarError, NotFound
from magnetar_core.fields import CREATE, Kind
from magnetar_core.plan import Result, Step, diff

from .asks import Asks, Document
from .operations import Operation

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
EMPTY: tuple[Any, ...] = (None, "", [], {})


#: Who ensures something of one name, one after the other, so that two at once do not make two.
_LOCKS: WeakValueDictionary[tuple[str, ...], _Lock] = WeakValueDictionary()
_LOCK = threading.Lock()


class _Lock:
    def __init__(self) -> None:
        self.lock = threading.Lock()


@contextmanager
def _alone(*words: str) -> Iterator[None]:
    with _LOCK:
        held = _LOCKS.setdefault(words, _Lock())
    with held.lock:
        yield


def is_uuid(text: str) -> bool:
    """Whether a key is one."""
    return bool(UUID.fullmatch(text.lower()))


def foreseen(dry: bool, warnings: list[str], error: InvalidField, noun: str, name: str) -> None:
    """Something named is not there: *error*, unless a dry run may assume that an earlier task makes it."""
    if not dry:
        raise error
    text = f"There is no {noun} {name!r} yet; the prediction assumes that it is made before this."
    if text not in warnings:
        warnings.append(text)


class Noun:
    """The common part. *kind* is the declaration; *makeable*: whether one can be made and removed here."""

    kind: type[Kind]
    makeable = True
    #: Whether a new one may be given a uuid. Else its service draws it, and a uuid that nothing has makes none.
    takes_id = True
    #: Whether one that was removed can be made again as it was: it holds nothing but its document.
    plain = False
    #: Fields that the cloud has no place for, with the only value that may be given.
    absent: Mapping[str, Any] = {}
    #: What a new one will say of itself.
    new: Mapping[str, Any] = {}
    #: What is done on a making, besides recording it.
    made_by: tuple[Step, ...] = ()
    unmade_by: tuple[Step, ...] = ()

    def every(self, asks: Asks) -> list[Document]:
        """All that the caller may see, as answers show them. ``_`` keys are for the noun itself."""
        raise NotImplementedError

    def make(self, asks: Asks, want: Document, operation: Operation) -> None:
        """Make one."""
        raise NotImplementedError

    def change(self, asks: Asks, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Have the fields *names* be as in *want*."""
        raise NotImplementedError

    def remove(self, asks: Asks, have: Document, operation: Operation) -> None:
        """Remove it."""
        raise NotImplementedError

    def changed_by(self, want: Document, names: list[str]) -> tuple[Step, ...]:
        """What is done on a change of the fields *names*, besides recording it."""
        return ()

    def unmade(self, have: Document) -> tuple[Step, ...]:
        """What is done on a removal, besides forgetting it."""
        return self.unmade_by

    def complete(self, asks: Asks, want: Document, have: Document | None, warnings: list[str], dry: bool) -> Document:
        """What is wanted with references resolved. May raise."""
        return want

    def possible(self, asks: Asks, want: Document, have: Document | None) -> None:
        """Whether *want* can be made, in the place of *have* where there is one, which goes before. Asked before
        anything goes, and in dry runs. Raises what the service would refuse; changes nothing."""

    def sound(self, asks: Asks, have: Document, operation: Operation | None) -> Document:
        """*have*, when it can be relied on; what is being made is waited for (not in a dry run, without *operation*).
        Raises ``Conflict``."""
        return have

    # Reading
    def find(self, asks: Asks, key: str) -> Document | None:
        """The one that *key*, its uuid or name, means. Raises ``Ambiguous``."""
        found = self.every(asks)
        exact = [one for one in found if one.get("id") == (key.lower() if is_uuid(key) else key)]
        named = exact or [one for one in found if one.get("name") == key]
        if len(named) > 1:
            raise Ambiguous(f"{len(named)} {self.kind.plural} have the name {key!r}; use a uuid.",
                            uuids=[str(one["id"]) for one in named])
        return named[0] if named else None

    def one(self, asks: Asks, key: str) -> Document:
        """As ``find``. Raises ``NotFound``."""
        found = self.find(asks, key)
        if found is None:
            raise NotFound(f"There is no {self.kind.noun} {key!r} in this cloud that you may see.", kind=self.kind.noun,
                           key=key)
        return found

    # Changing
    def ensure(self, asks: Asks, key: str, want: Document | None, permissions: Mapping[str, Any], dry: bool,
               operation: Operation) -> Result:
        """Have it be as *want*; ``None``: absent."""
        if not self.makeable:
            raise InvalidField("kind", f"{self.kind.noun} is only reported here, and not made or changed")
        with _alone(self.kind.noun, asks.project, key):
            if want is None:
                return self._removed(asks, key, dry, operation)
            given = self.given(key, want)
            return Change(self, asks, given, permissions, dry, operation).run(self.find(asks, key))

    def given(self, key: str, want: Document) -> Document:
        """*want* checked; key, name and id may not contradict each other; nothing is taken that cannot be had."""
        found: Document = self.kind.check(want, partial=True)
        field = "id" if is_uuid(key) else "name"
        named = key.lower() if field == "id" else key
        if found.setdefault(field, named) != named:
            raise InvalidField(field, f"differs from the key {key!r} of the request"
                                      + ("; to rename, ask by uuid" if field == "name" else ""), found[field])
        for name, only in self.absent.items():
            if name in found and found[name] != only:
                raise InvalidField(name, f"is a matter of single hosts; in a cloud it is {only!r}", found[name])
        return found

    def makes(self, given: Document) -> None:
        """Whether *given* says enough to make one. Raises ``InvalidField``."""
        self.kind.check({name: value for name, value in given.items() if not name.startswith("_")}, operation=CREATE)

    def _removed(self, asks: Asks, key: str, dry: bool, operation: Operation) -> Result:
        have = self.find(asks, key)
        if have is None:
            return Result([], [], None)
        if not dry:
            self.remove(asks, have, operation)
        steps = [*self.unmade(have), Step("forget", f"forget {self.kind.noun} {have['name']}")]
        named = {name: have.get(name) for name in self.compared() if have.get(name) not in EMPTY}
        return Result(steps, diff(named, {}, self.kind.secrets()), public(have))

    def compared(self) -> list[str]:
        """Fields a difference in which counts."""
        return [f.name for f in self.kind.settable() if f.compared and f.name != "id"]


def public(resource: Document) -> Document:
    """Without what is for the noun itself."""
    return {name: value for name, value in resource.items() if not name.startswith("_")}


class Change:
    """One ensure of something that is to be there."""

    def __init__(self, noun: Noun, asks: Asks, given: Document, permissions: Mapping[str, Any], dry: bool,
                 operation: Operation) -> None:
        self.noun, self.asks, self.given, self.permissions = noun, asks, given, permissions
        self.dry, self.operation = dry, operation
        self.warnings: list[str] = []

    def run(self, have: Document | None) -> Result:
        """Plan; then do it, or stop there."""
        return self._made() if have is None else self._changed(have)

    def _made(self) -> Result:
        noun, kind = self.noun, self.noun.kind
        if self.given.get("id") and not noun.takes_id:
            raise InvalidField("id", f"is drawn for a new {kind.noun}, and none of yours has {self.given['id']}. To "
                                     "make one, ask by its name, and leave the uuid out", self.given["id"])
        noun.makes(self.given)
        want = {**kind.defaults(), **self.given}
        completed = noun.complete(self.asks, want, None, self.warnings, self.dry)
        steps = [Step("record", f"record {kind.noun} {completed.get('name', '')}"), *noun.made_by]
        after = {name: want.get(name) for name in noun.compared() if want.get(name) not in EMPTY}
        if not self.dry:
            noun.make(self.asks, completed, self.operation)
            found = noun.one(self.asks, str(completed.get("id") or completed["name"]))
        else:
            noun.possible(self.asks, completed, None)
            found = {**predicted(kind, completed), **noun.new}
        return Result(steps, diff({}, after, kind.secrets()), public(found), self.warnings)

    def _changed(self, have: Document) -> Result:
        noun, kind = self.noun, self.noun.kind
        if self.given.get("id", have.get("id")) != have.get("id"):
            raise Conflict(f"{kind.noun} {have['name']!r} exists with id {have['id']}, not {self.given['id']}. Use "
                           "that, or another name.", uuids=[str(have["id"])])
        known = kind.giving_way({n: have.get(n) for n in noun.compared()}, self.given)
        want = noun.complete(self.asks, {**known, **merged(self.given, have, self.permissions["merge"])}, have,
                             self.warnings, self.dry)
        names = [name for name in noun.compared() if name in want and want.get(name) != have.get(name)]
        fixed = [name for name in names if kind.field(name).fixed]
        anew = bool(fixed) and immutable(kind, have, want, fixed, self.permissions, self.warnings) == "recreate"
        names = [name for name in names if want.get(name) != have.get(name)]
        if anew:
            noun.possible(self.asks, want, have)
        else:
            have = noun.sound(self.asks, have, None if self.dry else self.operation)
        if not names:
            return Result([], [], public(have), self.warnings)
        steps = [Step("record", f"record {kind.noun} {want.get('name', have['name'])}"), *noun.changed_by(want, names)]
        if anew:
            gone = noun.unmade(have) or (Step("forget", f"forget {kind.noun} {have['name']}"),)
            steps = [*gone, steps[0], *noun.made_by]
        compared = noun.compared()
        changes = diff({n: have.get(n) for n in compared}, {n: want.get(n) for n in compared}, kind.secrets())
        if self.dry:
            secrets = kind.secrets()
            after = {**have, **{n: want[n] for n in names if n not in secrets}}
            return Result(steps, changes, public(after), self.warnings)
        if anew:
            self._replace(have, want)
            found = noun.one(self.asks, want["name"])
        else:
            noun.change(self.asks, have, want, names, self.operation)
            found = noun.one(self.asks, str(have["id"]))
        return Result(steps, changes, public(found), self.warnings)

    def _replace(self, have: Document, want: Document) -> None:
        """Remove it and make it as wanted; what could not be foreseen does not cost the old one where it is plain."""
        noun, defaults = self.noun, self.noun.kind.defaults()
        noun.remove(self.asks, have, self.operation)
        try:
            noun.make(self.asks, {**defaults, **want}, self.operation)
        except MagnetarError as error:
            if not noun.plain:
                raise
            old = {**defaults, **have}
            noun.make(self.asks, old if noun.takes_id else {n: v for n, v in old.items() if n != "id"}, self.operation)
            error.message = f"{error.message.rstrip('.')}. {noun.kind.noun} {have['name']!r} is there again as it was."
            raise


def merged(given: Document, have: Document, names: list[str]) -> Document:
    """*given* with what is there already in the fields *names*."""
    found = {name: value for name, value in given.items() if name != "id"}
    for name in names:
        if isinstance(found.get(name), dict):
            found[name] = {**(have.get(name) or {}), **found[name]}
        elif name in found:
            found[name] = sorted({*(have.get(name) or []), *found[name]})
    return found


def immutable(kind: type[Kind], have: Document, want: Document, names: list[str], permissions: Mapping[str, Any],
              warnings: list[str]) -> str:
    """What to do about the fixed fields *names*, which differ; for ``ignore`` *want* is set back."""
    policy = str(permissions["on_immutable"])
    if policy == "rebuild":
        names = [name for name in names if name not in kind.rebuilt]
        if not names:
            return policy
    secrets = kind.secrets()
    words = "; ".join(f"{n} cannot change" + ("" if n in secrets else f" from {have.get(n)!r} to {want.get(n)!r}")
                      for n in names)
    if policy in ("fail", "rebuild"):
        ways = "to rebuild (its root disk is lost), " if kind.rebuilt.issuperset(names) else ""
        raise Immutable(f"{kind.noun} {have['name']!r}: {words}. Set on_immutable {ways}to recreate (what is there is "
                        "lost) or to ignore, or ask for what is there.", fields=names)
    if policy == "ignore":
        for name in names:
            want[name] = have.get(name)
        warnings.append(f"{kind.noun} {have['name']!r}: {words}; ignored, as on_immutable says.")
    return policy


def predicted(kind: type[Kind], want: Document) -> Document:
    """What a resource that is made would look like, as far as that is known."""
    names = {f.name for f in kind.fields if "show" in f.on}
    return {name: value for name, value in want.items() if name in names}
