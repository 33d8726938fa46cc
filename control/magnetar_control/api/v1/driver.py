# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers: one for each kind that the cloud serves. They answer the questions that an agent's drivers answer on a host
(``complete``, ``plan``, what there is and how it is shown); what follows from the answers is ``core.reconcile``.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from magnetar_control.compute.caller import Caller
from magnetar_core import reconcile
from magnetar_core.errors import Ambiguous, InvalidField, MagnetarError, NotFound
from magnetar_core.fields import Kind
from magnetar_core.operations import Operation
from magnetar_core.plan import Result, Step
from magnetar_core.reconcile import Document, check_mode, compared, difference, is_uuid, recorded

#: Namespace of uuids that follow from others.
NAMESPACE = uuid.UUID("7d3f7c0e-6c1c-5a39-9d0e-3f0f6f0c7a11")
#: One lock for each key that is being ensured, so that two requests at once do not make two resources of one name.
_LOCKS: WeakValueDictionary[tuple[str, ...], threading.Lock] = WeakValueDictionary()
_LOCK = threading.Lock()


#: The parameter of lists with which administrators see what is of other projects.
ALL_PROJECTS = "all_projects"


@contextmanager
def _held(lock: threading.Lock, operation: Operation) -> Iterator[None]:
    """Within, *lock* is held; who does the same already is waited for."""
    if not lock.acquire(blocking=False):
        with operation.waiting():
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


class CloudDriver:
    """The common part. *kind* is the declaration; *makeable*: whether one can be made, changed and removed here."""

    kind: type[Kind]
    makeable = True
    #: Whether a new one may be given a uuid. Else its service draws it, and a uuid that nothing has makes none.
    takes_id = True
    #: Whether one that was removed can be made again as it was: it holds nothing but its document.
    only_a_document = False
    #: Whether lists take ``ALL_PROJECTS``.
    of_all_projects = False
    #: Fields that the cloud has no place for, with the only value that may be given.
    host_only: Mapping[str, Any] = {}
    #: What a new one says of itself.
    new: Mapping[str, Any] = {}
    #: The steps of making and of removing one, besides writing it down.
    making: tuple[Step, ...] = ()
    removing: tuple[Step, ...] = ()

    # What there is
    def every(self, caller: Caller) -> list[Document]:
        """All that the caller may see, as answers show them. Keys that begin with ``_`` are the driver's own."""
        raise NotImplementedError

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """As ``every``, for a list with *filters*; those that the driver has applied it takes out of them."""
        return self.every(caller)

    def find(self, caller: Caller, key: str) -> Document | None:
        """The one that *key*, its uuid or name, means. Raises ``Ambiguous``."""
        found = self.every(caller)
        exact = [one for one in found if one.get("id") == (key.lower() if is_uuid(key) else key)]
        return exact[0] if exact else self.only(caller, [one for one in found if one.get("name") == key], key)

    def only(self, caller: Caller, found: list[Document], name: str) -> Document | None:
        """The one of *found*, which all have the *name*; the project's own go before others. Raises ``Ambiguous``."""
        found = [one for one in found if one.get("_owner") == caller.project] or found
        if len(found) > 1:
            raise Ambiguous(f"{len(found)} {self.kind.plural} have the name {name!r}; use a uuid.",
                            uuids=[str(one["id"]) for one in found])
        return found[0] if found else None

    def one(self, caller: Caller, key: str) -> Document:
        """As ``find``. Raises ``NotFound``."""
        found = self.find(caller, key)
        if found is None:
            raise NotFound(f"There is no {self.kind.noun} {key!r} in this cloud that you may see.", kind=self.kind.noun,
                           key=key)
        return found

    def public(self, resource: Document) -> Document:
        """The resource as answers show it."""
        return {name: value for name, value in resource.items() if not name.startswith("_")}

    def comparable(self, resource: Document) -> Document:
        """The resource, or what is wanted of it, as differences show it."""
        return resource

    # What is wanted
    def given(self, key: str, want: Document) -> Document:
        """*want* checked, with what *key* says. Raises ``InvalidField``, also for what only a single host can have."""
        found = reconcile.given_by(self.kind, key, want)
        for name, only in self.host_only.items():
            if name in found and found[name] != only:
                raise InvalidField(name, f"is a matter of single hosts; in a cloud it is {only!r}", found[name])
        return found

    def referred(self, caller: Caller, key: str, field: str, rule: str = "") -> Document | None:
        """The one that *field* of another resource names; ``None`` where a dry run may assume it. Raises
        ``InvalidField``, with a *rule* of its own if given."""
        found, noun = self.find(caller, key), self.kind.noun
        if found is None:
            rule = rule or f"there is no {noun} {key!r} in this cloud that you may use"
            reconcile.missing(InvalidField(field, rule), noun, key)
        return found

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """What is wanted with its references resolved, in place of *have* where there is one. Changes nothing. Raises
        what cannot be; ``reconcile.missing`` says which reference a dry run may assume."""
        return want

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """Whether *want* can be made, in the place of *have* where there is one, which is removed before. Raises what
        the service would refuse; changes nothing."""

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        """Whether *have* can be changed into *want*. Raises what would be refused; changes nothing."""

    def wait_until_usable(self, caller: Caller, have: Document, operation: Operation | None) -> Document:
        """*have*, when it can be relied on; what is being made is waited for (not in a dry run, without *operation*).
        Raises ``Conflict``."""
        return have

    def plan(self, want: Document | None, have: Document | None) -> Iterator[Step]:
        """Yield the steps from *have* to *want* (``None``: absent), besides writing it down. *have* also says what the
        caller allows: ``allow_reboot``, ``rebuild``. Pure."""
        if want is None:
            yield from self.removing
        elif have is None:
            yield from self.making

    def predicted_plan(self, caller: Caller, want: Document, have: Document) -> list[Step]:
        """As ``plan`` of a change, for a dry run, in which others may be asked."""
        return list(self.plan(want, have))

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """What the resource will look like, as far as that is known. May raise what a making would."""
        if have is None:
            shown = {f.name for f in self.kind.fields if "show" in f.on}
            return {**{name: value for name, value in want.items() if name in shown}, **self.new}
        secrets = self.kind.secrets()
        return {**have, **{name: want[name] for name in compared(self.kind) if name in want and name not in secrets}}

    # What is done
    def make(self, caller: Caller, want: Document, operation: Operation) -> str | None:
        """Make one. Returns its uuid where that says better than the name which one it is."""
        raise NotImplementedError

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Have the fields *names* be as in *want*."""
        raise NotImplementedError

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        raise NotImplementedError

    def recreate(self, caller: Caller, have: Document, want: Document, operation: Operation) -> str | None:
        """Remove it and make it as wanted. Where that fails, one that is only a document is made again as it was."""
        defaults = self.kind.defaults()
        self.remove(caller, have, operation)
        try:
            return self.make(caller, {**defaults, **want}, operation)
        except MagnetarError as error:
            if not self.only_a_document:
                raise
            old = {**defaults, **have}
            self.make(caller, old if self.takes_id else {n: v for n, v in old.items() if n != "id"}, operation)
            error.message = f"{error.message.rstrip('.')}. {self.kind.noun} {have['name']!r} is there again as it was."
            raise

    # Ensure
    def ensure(self, caller: Caller, key: str, want: Document | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """Have it be as *want*; ``None``: absent."""
        if not self.makeable:
            raise InvalidField("kind", f"{self.kind.noun} is only reported here, and not made or changed")
        with _LOCK:
            lock = _LOCKS.setdefault((self.kind.noun, caller.project, key), threading.Lock())
        with _held(lock, operation):
            if want is None:
                return self.removal(caller, self.find(caller, key), dry_run, operation)
            change = CloudChange(self, caller, self.given(key, want), permissions, dry_run, operation)
            return change.run(self.find(caller, key))

    def removal(self, caller: Caller, have: Document | None, dry_run: bool, operation: Operation) -> Result:
        """Remove *have*, if there is one."""
        if have is None:
            return Result([], [], None)
        if not dry_run:
            self.remove(caller, have, operation)
        steps = [*self.plan(None, have), reconcile.forgotten(self.kind, have["name"])]
        return Result(steps, difference(self.kind, self.comparable(have), None), self.public(have))


class CloudChange(reconcile.Change):
    """One ensure of something that is to be there, in a cloud."""

    def __init__(self, driver: CloudDriver, caller: Caller, given: Document, permissions: Mapping[str, Any],
                 dry_run: bool, operation: Operation) -> None:
        super().__init__(driver.kind, given, permissions, dry_run)
        self.driver, self.caller, self.operation = driver, caller, operation

    def run(self, have: Document | None) -> Result:
        """Plan it; then do it, or in a dry run stop there."""
        if have is None:
            return self._make()
        self.check_id(str(have["id"]), have["name"])
        want = self._complete(self.wanted({name: have.get(name) for name in compared(self.kind)}), have)
        policy = self.on_immutable(have["name"], have, want, have.get("status"))
        if policy == "recreate":
            return self._recreate(have, want)
        return self._change(have, want, rebuild=policy == "rebuild")

    def _complete(self, wanted: Document, have: Document | None) -> Document:
        with check_mode(self.dry_run, self.warnings):
            return self.driver.complete(self.caller, wanted, have)

    def _shown(self, key: str) -> Document:
        return self.driver.public(self.driver.one(self.caller, key))

    def _make(self) -> Result:
        driver, id = self.driver, self.given.get("id")
        if id and not driver.takes_id:
            raise InvalidField("id", f"is drawn for a new {self.kind.noun}, and none of yours has {id}. To make one, "
                                     "ask by its name, and leave the uuid out", id)
        self.check_new()
        wanted = {**self.wanted(None), **({"id": id} if id else {})}
        want = self._complete(wanted, None)
        steps = [recorded(self.kind, want.get("name", "")), *driver.plan(want, None)]
        with check_mode(self.dry_run, self.warnings):
            if self.dry_run:
                driver.check_make(self.caller, want, None)
                shown = driver.public(driver.predicted(self.caller, want, None))
            else:
                made = driver.make(self.caller, want, self.operation)
                shown = self._shown(made or str(want.get("id") or want["name"]))
        return self.result(steps, self._difference(None, wanted), shown)

    def _difference(self, have: Document | None, want: Document) -> list[Document]:
        before = have and self.driver.comparable(have)
        return difference(self.kind, before, self.driver.comparable(want))

    def _change(self, have: Document, want: Document, *, rebuild: bool) -> Result:
        driver = self.driver
        have = driver.wait_until_usable(self.caller, have, None if self.dry_run else self.operation)
        names = [name for name in compared(self.kind) if name in want and want.get(name) != have.get(name)]
        allowed = {**have, **self.allowed(rebuild)}
        planned = list(driver.plan(want, allowed))
        if not names and not planned:
            return self.result([], [], driver.public(have))
        driver.check_change(self.caller, want, allowed)
        changes = self._difference(have, want)
        if self.dry_run:
            with check_mode(True, self.warnings), self.operation.waiting():
                planned = driver.predicted_plan(self.caller, want, allowed)
            shown = driver.public(driver.predicted(self.caller, want, have))
        else:
            driver.change(self.caller, allowed, want, names, self.operation)
            shown = self._shown(str(have["id"]))
        return self.result([recorded(self.kind, str(want.get("name", have["name"]))), *planned], changes, shown)

    def _recreate(self, have: Document, want: Document) -> Result:
        driver = self.driver
        driver.check_make(self.caller, want, have)
        gone = list(driver.plan(None, have)) or [reconcile.forgotten(self.kind, have["name"])]
        steps = [*gone, recorded(self.kind, str(want.get("name", have["name"]))), *driver.plan(want, None)]
        changes = self._difference(have, want)
        if self.dry_run:
            shown = driver.public(driver.predicted(self.caller, want, have))
        else:
            shown = self._shown(driver.recreate(self.caller, have, want, self.operation) or want["name"])
        return self.result(steps, changes, shown)
