# SPDX-License-Identifier: GPL-3.0-or-later
"""``ensure_resource``: the one way to change a resource. Lock, observe, plan; then apply, or stop there (a dry run).
The rules are in ``core.reconcile``, which the cloud follows too.

A ``kill -9`` at any line loses nothing and leaves nothing behind: the document is written before the first step, and
removed after the last step of a deletion; every verb may be repeated.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from magnetar_agent.drivers import Driver, SubresourceDriver
from magnetar_core.ensure import Permissions
from magnetar_core.errors import Cancelled, Conflict, InvalidField, NoSpace, NotFound
from magnetar_core.fields import Kind
from magnetar_core.operations import Operation, utc_timestamp
from magnetar_core.plan import Result, Step
from magnetar_core.query import fits_filters
from magnetar_core.reconcile import (
    EMPTY,
    Change,
    allow_in_use,
    check_mode,
    check_revision,
    checked_request,
    field_differences,
    forget_step,
    record_step,
    revision_of,
)

from .documents import CLOUD, HELD, PLANNED, REPLACEMENT, Document, Fields
from .locks import CHOICES
from .steps import NOTES, cancelled_change, is_undone_by_power_loss, note_fault, perform_steps, undo_creation
from .task import NotRemovable, Task

if TYPE_CHECKING:
    from magnetar_agent.drivers import Drivers
    from magnetar_agent.host.host import LocalHost

log = logging.getLogger(__name__)


class _Changed(Exception):
    """The signal that another request has created the resource while this request waited for its lock. The caller must
    start again."""


def ensure_resource(drivers: Drivers, kind: type[Kind], key: str, want: Fields | None, permissions: Mapping[str, Any],
                    dry_run: bool, operation: Operation) -> Result:
    """Create or change the resource *key* (uuid or name) of type *kind*, so that it matches the requested fields
    *want*; ``None`` removes it. *permissions*: the caller's checked options (``core.ensure.Permissions``), such as
    ``on_immutable``: how to handle a change of fields that cannot be changed in place. Return the result, with the
    steps and differences, when everything is done; with *dry_run*, when everything is planned. Raises subclasses of
    ``MagnetarError``."""
    driver = drivers.of(kind)
    if isinstance(driver, SubresourceDriver):
        return driver.ensure(drivers.host, key, want, permissions, dry_run, operation)
    key = driver.locate(drivers.host, key)
    requested = None if want is None else checked_request(kind, key, without_fields_of_clouds(kind, want))
    while True:
        try:
            with _claim(drivers, kind, key, operation, dry_run) as document:
                if requested is None:
                    return _remove(drivers.host, driver, document, dry_run, operation, permissions)
                return _Change(drivers.host, driver, key, requested, permissions, dry_run, operation).run(document)
        except _Changed:
            continue


def without_fields_of_clouds(kind: type[Kind], want: Fields) -> Fields:
    """Return the requested fields *want* without those that only a cloud (a control plane with many hosts) can provide.
    Raises ``InvalidField`` if one of them has a value."""
    for name in sorted(kind.of_clouds & want.keys()):
        if want[name] not in EMPTY:
            raise InvalidField(name, "is for a cloud, and this is the agent of one host. Leave it out, or name a "
                                     f"cloud that makes the {kind.noun}")
    return {name: value for name, value in want.items() if name not in kind.of_clouds}


def revise_resource(drivers: Drivers, kind: type[Kind], id: str, revised: Callable[[Document], Fields], dry_run: bool,
                    operation: Operation) -> Result:
    """Change the resource with the uuid *id*. *revised* is called with the resource's current document, while the
    resource's lock is held, and returns the new values of fields. Return the result, with the steps and differences;
    with *dry_run*, they are only planned. Raises ``NotFound``."""
    with _claim(drivers, kind, id, operation, dry_run) as document:
        if document is None:
            raise NotFound(f"The {kind.noun} {id} was removed meanwhile.", kind=kind.noun, key=id)
        requested = checked_request(kind, id, revised(document))
        driver, allowed = drivers.of(kind), Permissions.defaults()
        return _Change(drivers.host, driver, id, requested, allowed, dry_run, operation).run(document)


@contextmanager
def _claim(drivers: Drivers, kind: type[Kind], key: str, operation: Operation,
           dry_run: bool) -> Iterator[Document | None]:
    """Hold the lock of the resource *key* (uuid or name) during the block, even if it does not exist yet. Yield its
    document, or ``None``. Unless *dry_run*, first finish an interrupted removal of the resource."""
    noun = kind.noun
    while True:
        document = drivers.host.documents.find(noun, key)
        with drivers.host.locks.hold(noun, document.id if document else f"new {key.lower()}"):
            again = drivers.host.documents.find(noun, key)
            if (again.id if again else None) != (document.id if document else None):
                continue
            if again and again.deleting and not dry_run:
                again = _removed(drivers, kind, again, operation)
            yield again
            return


def _removed(drivers: Drivers, kind: type[Kind], document: Document, operation: Operation) -> Document | None:
    """Finish the removal of *document* that a crash has interrupted. Return ``None``, or the document if the driver
    refuses the removal."""
    try:
        _remove(drivers.host, drivers.of(kind), document, False, operation)
    except NotRemovable:
        return drivers.host.documents.get(kind.noun, document.id)
    return None


def change_resource(drivers: Drivers, kind: type[Kind], document: Document, want: Fields,
                    permissions: Mapping[str, Any], operation: Operation) -> Result:
    """Change the resource of *document* to match *want*, as ``ensure_resource`` does. The caller must hold the
    resource's lock. *permissions*: the caller's options, such as ``on_immutable``; with the key ``rebuild`` (a request
    id), the server's root disk is recreated even if no field that requires this differs."""
    requested = checked_request(kind, document.id, want)
    return _Change(drivers.host, drivers.of(kind), document.id, requested, permissions, False, operation).run(document)


class _Change(Change):
    """One request to create or change a resource on this host."""

    def __init__(self, host: LocalHost, driver: Driver, key: str, requested: Fields, permissions: Mapping[str, Any],
                 dry_run: bool, operation: Operation) -> None:
        super().__init__(driver.kind, requested, permissions, dry_run)
        self.host, self.driver, self.key, self.operation = host, driver, key, operation
        #: The lock of choices, held from the choice (of a MAC, a bridge, a reference) until it is recorded.
        self.choosing = ExitStack()

    def run(self, document: Document | None) -> Result:
        """Plan the change, and apply it unless it is a dry run. *document*: the current one, ``None`` for a new
        resource. Return the result."""
        with ExitStack() as locks:
            fresh = document is None
            if document is None:
                document = self._new(locks)
            else:
                self.check_id(document.id, document.name)
                self._check_name(document.id, self.given.get("name", document.name))
            with self.choosing:
                return self._plan(document, fresh)

    def _new(self, locks: ExitStack) -> Document:
        """Return a document for a new resource. Add the locks of the resource's uuid and, if names are unique, of its
        name to *locks*, a stack of context managers."""
        document = Document(self.kind.noun, self.given.get("id") or str(uuid.uuid4()), self.given.get("name", ""), {})
        self.check_new()
        noun = self.kind.noun
        # First the name, then the uuid: a request by name holds the name already.
        if self.driver.unique_names and self.key.lower() != document.name.lower():
            locks.enter_context(self.host.locks.hold(noun, f"new {document.name.lower()}"))
        locks.enter_context(self.host.locks.hold(noun, document.id))
        existing = self.host.documents.get(noun, document.id)
        if existing and self.key.lower() == document.id:
            raise _Changed
        if existing:
            raise Conflict(f"The uuid {document.id} belongs to {noun} {existing.name!r}. Use another, or ask by uuid.",
                           uuids=[existing.id])
        self._check_name(document.id, document.name)
        return document

    def _check_name(self, id: str, name: str) -> None:
        if not self.driver.unique_names:
            return
        other_ids = sorted({document.id for document in self.host.documents.having(self.kind.noun, "name",
                                                                                   name)} - {id})
        if other_ids:
            raise Conflict(f"The name {name!r} belongs to {self.kind.noun} {other_ids[0]}. Choose another name.",
                           uuids=other_ids)

    def _plan(self, document: Document, fresh: bool) -> Result:
        former = None if fresh else document.state.get(REPLACEMENT, document.want)
        desired = self.wanted(former)
        want = self._complete({**desired, "id": document.id} if fresh else desired, None if fresh else document)
        for name in self.kind.passing():
            self.operation.given[name] = want.pop(name, None)
        have = None if fresh else self.driver.observe(self.host, document)
        predicted = document.copy()
        if self.operation.cloud:
            predicted.state[CLOUD] = True
            predicted.state.pop(HELD, None)
        policy = "" if fresh else self._policy(document, want, have)
        if policy == "recreate":
            first, have_then = self._removal(document, have), None
        else:
            noted = self._noted(predicted, policy == "rebuild" or "rebuild" in self.permissions)
            first, have_then = [], have if have is None else {**have, **noted}
        if fresh or first or want != document.want or {"unfinished", "rebuild"} & set(predicted.state):
            first.append(record_step(self.kind, want.get("name", document.name)))
        planned = list(self.driver.plan(want, have_then))
        steps, changes = first + planned, self._difference(document, fresh, have, desired if fresh else want)
        if fresh or not self._continues(document):
            self.check_revision(want["name"], None if fresh else _fields_before(document, have), steps)
        predicted.want, predicted.name = want, want["name"]
        if self.dry_run or not steps:
            shown = {**(have or {}), **want} if steps else have
            return self.result(steps, changes, self.driver.show(self.host, predicted, shown))
        self._apply(predicted, fresh, first, planned)
        return self.result(steps, changes, self._show_document(predicted))

    def _continues(self, document: Document) -> bool:
        """Return whether the request continues an unfinished change of *document*: both have the same option
        ``revision`` (the resource's revision when the caller planned the change in a dry run)."""
        planned = self.permissions.get("revision")
        return planned is not None and "unfinished" in document.state and document.state.get(PLANNED) == planned

    def _policy(self, document: Document, want: Fields, have: Fields | None) -> str:
        """Return how to handle differences between *document* and *want* in fields that cannot be changed in place:
        fail, ignore, rebuild (recreate only the root disk) or recreate (see ``Change.on_immutable``). *have*: the
        current fields. Raises an error if recreating the resource would fail."""
        if REPLACEMENT in document.state:  # a crash cut it short after the decision
            return "recreate"
        status = self.driver.show(self.host, document, have).get("status") if self.kind.unfilled else None
        policy = self.on_immutable(document.name, document.want, want, status)
        if policy == "recreate":
            self.driver.check_replacement(self.host, want, self.given, document)
        return policy

    def _removal(self, document: Document, have: Fields | None) -> list[Step]:
        """Return the steps that remove the old resource before it is recreated. *have*: its current fields."""
        self.driver.release(self.host, document)
        return list(self.driver.plan(None, have)) or [forget_step(self.kind, document.name)]

    def _noted(self, document: Document, rebuild: bool) -> Fields:
        """Store the caller's options, such as ``on_immutable``, in the state of *document*, so that after a crash the
        change is finished with the same options. *rebuild*: whether the change is a rebuild. Return the stored fields,
        for the driver's plan."""
        state = document.state
        state.update(self.allowed(rebuild))
        return {name: state[name] for name in NOTES if name in state}

    def _complete(self, desired: Fields, document: Document | None) -> Fields:
        """Return the requested fields *desired* in the form in which they are stored (``Driver.complete``). If the
        fields will be stored, hold the lock ``CHOICES``: two threads must not choose the same random values, and a
        resource that the fields refer to must not be removed meanwhile. *document*: the current one, ``None`` for a new
        resource."""
        with check_mode(self.dry_run, self.warnings):
            if document is not None or self.dry_run:
                want = self.driver.complete(self.host, desired, document)
                want.pop("id", None)
                if self.dry_run or want == (document and document.want):
                    return want
            return self._choose(desired, document)

    def _choose(self, desired: Fields, document: Document | None) -> Fields:
        """Hold the lock ``CHOICES`` until the result is recorded, and return the requested fields *desired* in the form
        in which they are stored (``Driver.complete``). *document*: the current one, ``None`` for a new resource."""
        self.choosing.enter_context(self.host.locks.hold(*CHOICES))
        want = self.driver.complete(self.host, desired, document)
        self._check_name(document.id if document else desired["id"], want["name"])  # another may have taken it
        want.pop("id", None)
        return want

    def _difference(self, document: Document, fresh: bool, have: Fields | None,
                    planned: Fields) -> list[dict[str, Any]]:
        """Return the differences between the current fields and the *planned* ones. *have*: the current fields that the
        host reports; for other fields, the document's values count. *fresh*: the resource is new, so all fields differ.
        """
        return field_differences(self.kind, None if fresh else _fields_before(document, have), planned)

    def _apply(self, document: Document, fresh: bool, first: list[Step], planned: list[Step]) -> None:
        former = None if fresh else self.host.documents.get(document.kind, document.id)
        task, begun = Task(self.host, document, self.operation), list[str]()
        document.updated_at = utc_timestamp()
        try:
            if former and any(step.verb != "record" for step in first):
                old = [step for step in first if step.verb not in ("record", "forget")]
                if old:
                    task = Task(self.host, former.copy(), self.operation)  # a failure belongs to the old one
                    planned = self._clear(task, document, old, begun)
                task, document.state = Task(self.host, document, self.operation), {}
            document.state["unfinished"] = True
            self._note_revision(document)
            if fresh:
                document.state["making"] = True
            task.keep(durable=not is_undone_by_power_loss(former, planned))
            self.choosing.close()
            with check_mode(False, self.warnings):
                perform_steps(self.driver, task, planned, begun)
            _finished(task)
        except Exception as error:
            self.choosing.close()
            if former is None:
                undo_creation(self.driver, task)
            elif isinstance(error, Cancelled):
                raise cancelled_change(self.driver, former, task, begun) from error
            else:
                note_fault(task, error)
            raise

    def _note_revision(self, document: Document) -> None:
        """Store in *document*, until the change is finished, the request's option ``revision``: the resource's revision
        when the caller planned the change in a dry run."""
        document.state.pop(PLANNED, None)
        if self.permissions.get("revision") is not None:
            document.state[PLANNED] = self.permissions["revision"]

    def _clear(self, task: Task, new: Document, old: list[Step], begun: list[str]) -> list[Step]:
        """Remove the old resource by the steps *old*, and add the names of these steps to *begun*, the steps that have
        begun. Return the steps that create the resource of *new* in its place. The lock ``CHOICES`` is released during
        the removal, which may take long, so ``_choose`` completes the fields of *new* again afterwards."""
        task.document.state.update({REPLACEMENT: new.want, "unfinished": True})
        self._note_revision(task.document)
        task.keep()
        self.choosing.close()
        perform_steps(self.driver, task, old, begun)
        new.want = self._choose(dict(new.want), task.document)
        new.name = new.want["name"]
        return list(self.driver.plan(new.want, None))

    def _show_document(self, document: Document) -> Fields:
        snapshot = self.driver.snapshot(self.host, document)
        return self.driver.show(self.host, document, self.driver.observe(self.host, document, snapshot), snapshot)


def _fields_before(document: Document, have: Fields | None) -> Fields:
    """Return the current fields of the resource of *document*: the fields that the host reports (*have*), and the
    document's values for all other fields."""
    return {**document.want, **(have or {}), "id": document.id}


def _finished(task: Task) -> None:
    """Record in the document that its change is finished. Raises ``NoSpace``, and then the document stays unfinished.
    """
    document, unfinished = task.document, dict(task.document.state)
    for note in ("unfinished", "making", "fault", PLANNED, *NOTES):
        document.state.pop(note, None)
    try:
        task.keep()
    except NoSpace:
        document.state = unfinished
        raise


def _remove(host: LocalHost, driver: Driver, document: Document | None, dry_run: bool, operation: Operation,
            permissions: Mapping[str, Any] = MappingProxyType({})) -> Result:
    if document is None:
        return Result([], [], None)
    warnings: list[str] = []
    if not document.deleting:
        with allow_in_use(dry_run, warnings):
            driver.release(host, document)
    snapshot = driver.snapshot(host, document)
    have = driver.observe(host, document, snapshot)
    resource = driver.show(host, document, have, snapshot)
    steps = list(driver.plan(None, have))
    named = {name: (have or {}).get(name, value) for name, value in document.want.items() if value not in EMPTY}
    forget = forget_step(driver.kind, document.name)
    revision = revision_of(driver.kind, _fields_before(document, have))
    if not document.deleting:  # otherwise all that is left is to finish the removal
        check_revision(driver.kind, document.name, permissions, revision)
    if not dry_run:
        with host.locks.hold(*CHOICES):
            if not document.deleting:
                driver.release(host, document)
            document.deleting = True
            host.documents.write(document)
        try:
            for step in steps:  # a deletion is not cancelled half way
                driver.verbs[step.verb](Task(host, document, operation), **step.args)
        except NotRemovable:
            document.deleting = False
            host.documents.write(document)
            raise
        host.documents.remove(document)
        driver.sweep(host)
    return Result([*steps, forget], field_differences(driver.kind, named, None), resource, warnings,
                  revision if dry_run else None)


def show_resource(drivers: Drivers, kind: type[Kind], key: str) -> Fields:
    """Return the resource *key* (uuid or name) of type *kind* as API responses show it. Raises ``NotFound`` or
    ``Ambiguous``."""
    driver = drivers.of(kind)
    if isinstance(driver, SubresourceDriver):
        return driver.one(drivers.host, key)
    document = drivers.host.documents.find(kind.noun, driver.locate(drivers.host, key))
    if document is None:
        raise NotFound(f"There is no {kind.noun} {key!r} on this host.", kind=kind.noun, key=key)
    snapshot = driver.snapshot(drivers.host, document)
    return driver.show(drivers.host, document, driver.observe(drivers.host, document, snapshot), snapshot)


def list_resources(drivers: Drivers, kind: type[Kind], filters: Mapping[str, Container[str]]) -> list[Fields]:
    """Return the resources of type *kind* as API responses show them, sorted by name and then uuid. *filters*: the
    permitted values, as text, by field."""
    driver = drivers.of(kind)
    if isinstance(driver, SubresourceDriver):
        return [resource for resource in driver.every(drivers.host) if fits_filters(resource, filters)]
    snapshot = driver.snapshot(drivers.host)
    resources = []
    for document in drivers.host.documents.list(kind.noun):
        if "name" in filters and document.name not in filters["name"]:
            continue
        shown = driver.show(drivers.host, document, driver.observe(drivers.host, document, snapshot), snapshot)
        if fits_filters(shown, filters):
            resources.append(shown)
    return resources
