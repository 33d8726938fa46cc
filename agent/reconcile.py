# SPDX-License-Identifier: GPL-3.0-or-later
"""``ensure``: the one way to change something. Lock, observe, plan; then apply, or stop there (a dry run).

Order of writing, so that a ``kill -9`` at any line loses nothing and leaves nothing: the document is written before
the first step, and removed after the last step of a deletion; every verb may be done twice.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from magnetar_agent.documents import REPLACEMENT, Document, Fields, now
from magnetar_agent.drivers import Driver, SubresourceDriver
from magnetar_agent.foresee import foreseeing, foreseen
from magnetar_agent.locks import CHOICES
from magnetar_agent.operations import Operation
from magnetar_agent.steps import NOTES, cancelled, note_fault, perform, undo
from magnetar_agent.task import Task
from magnetar_core.ensure import Permissions
from magnetar_core.errors import Cancelled, Conflict, Immutable, InvalidField, NotFound
from magnetar_core.fields import Kind
from magnetar_core.plan import Result, Step, diff
from magnetar_core.query import fits

if TYPE_CHECKING:
    from magnetar_agent.drivers import Drivers
    from magnetar_agent.host import LocalHost

log = logging.getLogger(__name__)

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class _Changed(Exception):
    """Somebody made the resource while we waited for its lock; look again."""


def ensure(drivers: Drivers, kind: type[Kind], key: str, want: Fields | None, permissions: Mapping[str, Any],
           dry_run: bool, operation: Operation) -> Result:
    """Make the resource *key* (uuid or name) of *kind* be as *want* says; ``None``: absent.

    *permissions* is a checked ``core.ensure.Permissions``. Blocks until done. Raises the errors of the core.
    """
    driver = drivers.of(kind)
    if isinstance(driver, SubresourceDriver):
        return driver.ensure(drivers.host, key, want, permissions, dry_run, operation)
    key = driver.locate(drivers.host, key)
    given = None if want is None else given_by(kind, key, want)
    while True:
        try:
            with _claim(drivers, kind, key, operation, dry_run) as document:
                if given is None:
                    return _remove(drivers.host, driver, document, dry_run, operation)
                return _Change(drivers.host, driver, key, given, permissions, operation).run(document, dry_run)
        except _Changed:
            continue


def revise(drivers: Drivers, kind: type[Kind], id: str, revised: Callable[[Document], Fields], dry_run: bool,
           operation: Operation) -> Result:
    """Ensure what *revised* makes of the resource as it is: nobody changes it in between. Raises ``NotFound``."""
    with _claim(drivers, kind, id, operation, dry_run) as document:
        if document is None:
            raise NotFound(f"The {kind.noun} {id} was removed meanwhile.", kind=kind.noun, key=id)
        given = given_by(kind, id, revised(document))
        driver, allowed = drivers.of(kind), Permissions.defaults()
        return _Change(drivers.host, driver, id, given, allowed, operation).run(document, dry_run)


@contextmanager
def _claim(drivers: Drivers, kind: type[Kind], key: str, operation: Operation,
           dry_run: bool) -> Iterator[Document | None]:
    """Hold the lock of what *key* names, also when it names nothing yet; yields the document or ``None``."""
    noun = kind.noun
    while True:
        document = drivers.host.documents.find(noun, key)
        with drivers.host.locks.hold(noun, document.id if document else f"new {key.lower()}"):
            again = drivers.host.documents.find(noun, key)
            if (again.id if again else None) != (document.id if document else None):
                continue
            if again and again.deleting and not dry_run:
                _remove(drivers.host, drivers.of(kind), again, False, operation)  # a crash cut its deletion short
                again = None
            yield again
            return


def given_by(kind: type[Kind], key: str, want: Fields) -> Fields:
    """Check *want*; its key and its own name and id may not contradict each other."""
    given: Fields = kind.check(want, partial=True)
    field = "id" if UUID.fullmatch(key.lower()) else "name"
    named = key.lower() if field == "id" else key
    if given.setdefault(field, named) != named:
        raise InvalidField(field, f"differs from the key {key!r} of the request"
                                  + ("; to rename, ask by uuid" if field == "name" else ""), given[field])
    return given


def change(drivers: Drivers, kind: type[Kind], document: Document, want: Fields, permissions: Mapping[str, Any],
           operation: Operation) -> Result:
    """As ``ensure``, for a *document* whose lock the caller holds. The key ``rebuild`` in *permissions* asks for a
    rebuild whether fixed fields differ or not; it is the id of the request."""
    given = given_by(kind, document.id, want)
    return _Change(drivers.host, drivers.of(kind), document.id, given, permissions, operation).run(document, False)


class _Change:
    """One ensure of something that is to be there."""

    def __init__(self, host: LocalHost, driver: Driver, key: str, given: Fields, permissions: Mapping[str, Any],
                 operation: Operation) -> None:
        self.host, self.driver, self.kind, self.key = host, driver, driver.kind, key
        self.given, self.permissions, self.operation = given, permissions, operation
        self.warnings: list[str] = []
        #: Held from what is chosen (a MAC, a bridge, a reference) until it is recorded.
        self.choosing = ExitStack()

    def run(self, document: Document | None, dry_run: bool) -> Result:
        with ExitStack() as held:
            fresh = document is None
            if document is None:
                document = self._new(held)
            elif self.given.get("id", document.id) != document.id:
                raise Conflict(f"{self.kind.noun} {document.name!r} exists with uuid {document.id}, not "
                               f"{self.given['id']}. Use that uuid, or another name.", uuids=[document.id])
            else:
                self._check_name(document.id, self.given.get("name", document.name))
            with self.choosing:
                return self._plan(document, fresh, dry_run)

    def _new(self, held: ExitStack) -> Document:
        """Draw the uuid, and hold its lock and (where names are unique) its name's."""
        document = Document(self.kind.noun, self.given.get("id") or str(uuid.uuid4()), self.given.get("name", ""), {})
        self.kind.check({k: v for k, v in {"name": None, **self.given}.items() if v is not None})
        noun = self.kind.noun
        # First the name, then the uuid: who asks by name holds the name already.
        if self.driver.unique_names and self.key.lower() != document.name.lower():
            held.enter_context(self.host.locks.hold(noun, f"new {document.name.lower()}"))
        held.enter_context(self.host.locks.hold(noun, document.id))
        there = self.host.documents.get(noun, document.id)
        if there and self.key.lower() == document.id:
            raise _Changed
        if there:
            raise Conflict(f"The uuid {document.id} belongs to {noun} {there.name!r}. Use another, or ask by uuid.",
                           uuids=[there.id])
        self._check_name(document.id, document.name)
        return document

    def _check_name(self, id: str, name: str) -> None:
        if not self.driver.unique_names:
            return
        others = sorted({one.id for one in self.host.documents.having(self.kind.noun, "name", name)} - {id})
        if others:
            raise Conflict(f"The name {name!r} belongs to {self.kind.noun} {others[0]}. Choose another name.",
                           uuids=others)

    def _plan(self, document: Document, fresh: bool, dry_run: bool) -> Result:
        known = self.kind.defaults() if fresh else document.state.get(REPLACEMENT, document.want)
        known = self.kind.giving_way(known, self.given)
        merged = {**known, **self._merged(known)}
        if fresh:
            merged["id"] = document.id
        want = self._complete(merged, None if fresh else document, dry_run)
        have = None if fresh else self.driver.observe(self.host, document)
        steps: list[Step] = []
        differing = [] if fresh else self._differing(document.want, want)
        policy = self._immutable(document, differing, want) if differing and REPLACEMENT not in document.state else ""
        policy = "recreate" if REPLACEMENT in document.state else policy
        predicted = document.copy()
        if policy == "recreate":
            self.driver.release(self.host, document)
            steps += list(self.driver.plan(None, have)) or [Step("forget", f"forget {self.kind.noun} {document.name}")]
            have_then = None
        else:
            noted = self._noted(predicted, policy == "rebuild" or "rebuild" in self.permissions)
            have_then = have if have is None else {**have, **noted}
        if fresh or steps or want != document.want or {"unfinished", "rebuild"} & set(predicted.state):
            steps.append(Step("record", f"record {self.kind.noun} {want.get('name', document.name)}"))
        planned = list(self.driver.plan(want, have_then))
        change = self._diff(document, fresh, have, merged if fresh else want)
        predicted.want, predicted.name = want, want["name"]
        if dry_run or not (steps or planned):
            seen = {**(have or {}), **want} if steps or planned else have
            shown = self.driver.show(self.host, predicted, seen)
            return Result(steps + planned, change if steps or planned else [], shown, self.warnings)
        self._apply(predicted, fresh, steps, planned)
        return Result(steps + planned, change, self._shown(predicted), self.warnings)

    def _noted(self, document: Document, rebuild: bool) -> Fields:
        """What the driver's plan has to know of the permissions. It is noted in *document*, so that what a crash cuts
        short is finished as it was allowed."""
        state = document.state
        if rebuild:
            state["rebuild"] = {"preserve_ephemeral": self.permissions.get("preserve_ephemeral", False),
                                "request": self.permissions.get("rebuild")}
        if self.permissions.get("allow_reboot"):
            state["allow_reboot"] = True
        return {name: state[name] for name in NOTES if name in state}

    def _complete(self, merged: Fields, document: Document | None, dry_run: bool) -> Fields:
        """What the driver makes of it. When that will be recorded, it is chosen under one lock, so that two at once
        never draw the same, and nothing refers to what is being removed."""
        with foreseeing(dry_run, self.warnings):
            if document is not None or dry_run:
                want = self.driver.complete(self.host, merged, document)
                want.pop("id", None)
                if dry_run or want == (document and document.want):
                    return want
            return self._choose(merged, document)

    def _choose(self, merged: Fields, document: Document | None) -> Fields:
        """Complete it, and keep others from choosing the same until it is recorded."""
        self.choosing.enter_context(self.host.locks.hold(*CHOICES))
        want = self.driver.complete(self.host, merged, document)
        self._check_name(document.id if document else merged["id"], want["name"])  # one may have got it meanwhile
        want.pop("id", None)
        return want

    def _merged(self, known: Fields) -> Fields:
        found = {name: value for name, value in self.given.items() if name != "id"}
        for name in self.permissions["merge"]:
            if name in found and isinstance(found[name], dict):
                found[name] = {**known.get(name, {}), **found[name]}
            elif name in found:
                found[name] = sorted({*known.get(name, []), *found[name]})
        return found

    def _differing(self, old: Fields, new: Fields) -> list[str]:
        """Names of fixed fields that differ."""
        return [f.name for f in self.kind.settable()
                if f.fixed and f.compared and f.name != "id" and old.get(f.name) != new.get(f.name)]

    def _immutable(self, document: Document, names: list[str], want: Fields) -> str:
        """What to do about fixed fields that differ; for ``ignore`` sets *want* back."""
        policy = str(self.permissions["on_immutable"])
        if policy == "rebuild":
            names = [name for name in names if name not in self.kind.rebuilt]
            if not names:
                return policy
        secrets = self.kind.secrets()
        words = "; ".join(
            f"{n} cannot change" + ("" if n in secrets else f" from {document.want.get(n)!r} to {want.get(n)!r}")
            for n in names)
        if policy in ("fail", "rebuild"):
            ways = "to rebuild (its root disk is lost), " if self.kind.rebuilt.issuperset(names) else ""
            raise Immutable(
                f"{self.kind.noun} {document.name!r}: {words}. Set on_immutable {ways}to recreate (what is there is "
                f"lost) or to ignore, or ask for what is there.", fields=names)
        if policy == "recreate":
            self.driver.check_replacement(self.host, want, self.given, document)
        if policy == "ignore":
            how = [f.name for f in self.kind.settable() if not f.compared]  # it would be made
            for name in (*names, *how):
                want.pop(name, None)
                want.update({name: document.want[name]} if name in document.want else {})
            self.warnings.append(f"{self.kind.noun} {document.name!r}: {words}; ignored, as on_immutable says.")
        return policy

    def _diff(self, document: Document, fresh: bool, have: Fields | None, after: Fields) -> list[dict[str, Any]]:
        """Difference of what is and what will be, over the fields a user sets."""
        compared = [f.name for f in self.kind.settable() if f.compared and f.name != "id"]
        before = {} if fresh else {n: (have or {}).get(n, document.want.get(n)) for n in compared}
        wanted = {n: after.get(n) for n in compared if not fresh or after.get(n) not in (None, "", [], {})}
        found: list[dict[str, Any]] = diff(before, wanted, self.kind.secrets())
        return found

    def _apply(self, document: Document, fresh: bool, before: list[Step], planned: list[Step]) -> None:
        former = None if fresh else self.host.documents.get(document.kind, document.id)
        task, begun = Task(self.host, document, self.operation), list[str]()
        document.updated_at = now()
        try:
            if former and any(step.verb != "record" for step in before):
                old = [step for step in before if step.verb not in ("record", "forget")]
                if old:
                    task = Task(self.host, former.copy(), self.operation)  # a failure is the old one's
                    planned = self._clear(task, document, old, begun)
                task, document.state = Task(self.host, document, self.operation), {}
            document.state["unfinished"] = True
            if fresh:
                document.state["making"] = True
            task.keep()
            self.choosing.close()
            perform(self.driver, task, planned, begun)
            for note in ("unfinished", "making", "fault", *NOTES):
                document.state.pop(note, None)
            task.keep()
        except Exception as error:
            self.choosing.close()
            if former is None:
                undo(self.host, self.driver, document, self.operation)
            elif isinstance(error, Cancelled):
                raise cancelled(self.driver, former, task, begun) from error
            else:
                note_fault(task, error)
            raise

    def _clear(self, task: Task, new: Document, old: list[Step], begun: list[str]) -> list[Step]:
        """Remove what *new* takes the place of, and plan *new*. The removal may take long, and other locks, so others
        may choose meanwhile; what *new* is to be is completed again after it."""
        task.document.state.update({REPLACEMENT: new.want, "unfinished": True})
        task.keep()
        self.choosing.close()
        perform(self.driver, task, old, begun)
        new.want = self._choose(dict(new.want), task.document)
        new.name = new.want["name"]
        return list(self.driver.plan(new.want, None))

    def _shown(self, document: Document) -> Fields:
        snapshot = self.driver.snapshot(self.host, document)
        return self.driver.show(self.host, document, self.driver.observe(self.host, document, snapshot), snapshot)


def _remove(host: LocalHost, driver: Driver, document: Document | None, dry_run: bool, operation: Operation) -> Result:
    if document is None:
        return Result([], [], None)
    warnings: list[str] = []
    if not document.deleting:
        with foreseen(dry_run, warnings):
            driver.release(host, document)
    snapshot = driver.snapshot(host, document)
    have = driver.observe(host, document, snapshot)
    resource = driver.show(host, document, have, snapshot)
    steps = list(driver.plan(None, have))
    named = {f.name: document.want.get(f.name) for f in driver.kind.settable()
             if f.compared and f.name != "id" and document.want.get(f.name) not in (None, "", [], {})}
    found = diff({**named, **{k: v for k, v in (have or {}).items() if k in named}}, {}, driver.kind.secrets())
    forget = Step("forget", f"forget {document.kind} {document.name}")
    if not dry_run:
        with host.locks.hold(*CHOICES):
            if not document.deleting:
                driver.release(host, document)
            document.deleting = True
            host.documents.write(document)
        for step in steps:  # a deletion is not cancelled half way
            driver.verbs[step.verb](Task(host, document, operation), **step.args)
        host.documents.remove(document)
        driver.sweep(host)
    return Result([*steps, forget], found, resource, warnings)


def show(drivers: Drivers, kind: type[Kind], key: str) -> Fields:
    """One resource as answers show it. Raises ``NotFound``, ``Ambiguous``."""
    driver = drivers.of(kind)
    if isinstance(driver, SubresourceDriver):
        return driver.one(drivers.host, key)
    document = drivers.host.documents.find(kind.noun, driver.locate(drivers.host, key))
    if document is None:
        raise NotFound(f"There is no {kind.noun} {key!r} on this host.", kind=kind.noun, key=key)
    snapshot = driver.snapshot(drivers.host, document)
    return driver.show(drivers.host, document, driver.observe(drivers.host, document, snapshot), snapshot)


def collection(drivers: Drivers, kind: type[Kind], filters: Mapping[str, Container[str]]) -> list[Fields]:
    """All resources of *kind* whose fields have, as text, a value of *filters*, by name and then uuid."""
    driver = drivers.of(kind)
    if isinstance(driver, SubresourceDriver):
        return [one for one in driver.every(drivers.host) if fits(one, filters)]
    snapshot = driver.snapshot(drivers.host)
    found = []
    for document in drivers.host.documents.list(kind.noun):
        if "name" in filters and document.name not in filters["name"]:
            continue
        shown = driver.show(drivers.host, document, driver.observe(drivers.host, document, snapshot), snapshot)
        if fits(shown, filters):
            found.append(shown)
    return found
