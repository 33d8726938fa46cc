# SPDX-License-Identifier: GPL-3.0-or-later
"""Resource drivers of the cloud, one for each resource type (``kind``), such as flavor. They implement for a cloud what
an agent's drivers implement for a host (``complete``, ``plan``, lists and their form); ``core.reconcile`` compares the
request with the resource and decides what is done."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from magnetar_control.compute.caller import Caller
from magnetar_core import reconcile
from magnetar_core.document import Document
from magnetar_core.errors import Ambiguous, InvalidField, MagnetarError, NotFound
from magnetar_core.fields import Kind
from magnetar_core.operations import Operation
from magnetar_core.plan import Result, Step
from magnetar_core.reconcile import check_mode, compared_fields, field_differences, is_uuid_key, record_step

#: The namespace of uuids that are derived from others.
NAMESPACE = uuid.UUID("7d3f7c0e-6c1c-5a39-9d0e-3f0f6f0c7a11")
#: One lock for each key that is being ensured, so that two parallel requests do not create two resources with one name.
_LOCKS: WeakValueDictionary[tuple[str, ...], threading.Lock] = WeakValueDictionary()
_LOCK = threading.Lock()


#: The parameter of lists with which administrators see the resources of other projects.
ALL_PROJECTS = "all_projects"


@contextmanager
def lock_key(resource_type: str, project: str, key: str, operation: Operation) -> Iterator[None]:
    """Lock the resource *key* in this context, so that parallel requests do not change it. *resource_type*: such
    as ``server``. *project*: the caller's project. *operation*: the operation of the request; while
    *operation* waits for the lock, other operations may run."""
    with _LOCK:
        lock = _LOCKS.setdefault((resource_type, project, key), threading.Lock())
    if not lock.acquire(blocking=False):
        with operation.waiting():
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def missing_host_error(want: Document, kind: str) -> NotFound:
    """Return an error which says that no host of the cloud has the name in *want*. *kind*: the resource type of the
    request, such as ``host_fence``."""
    return NotFound(f"There is no host {want.get('name')!r} in this cloud. A host comes into it by the settings of its "
                    "cell's conductor.", kind=kind)


class CloudDriver:
    """The base class of the drivers of the v1 API: a driver lists, creates, changes and removes the resources of one
    type. In its methods, *want* is the desired state that the request contains, and *have* is the current state.

    *kind*: the class that declares the fields of the resource type. *makeable*: whether its resources can be created,
    changed and removed with this API."""

    kind: type[Kind]
    makeable = True
    #: Whether a new resource may be given a uuid. Otherwise its service draws it, and an unknown uuid creates nothing.
    takes_id = True
    #: Whether a removed resource can be created again as it was: it holds nothing except its document.
    only_a_document = False
    #: Whether lists take ``ALL_PROJECTS``.
    of_all_projects = False
    #: Fields that do not apply to a cloud, each with its only allowed value.
    host_only: Mapping[str, Any] = {}
    #: Fields of a new resource that are known before it exists.
    new: Mapping[str, Any] = {}
    #: The steps of creating and of removing a resource, without the step that records it.
    making: tuple[Step, ...] = ()
    removing: tuple[Step, ...] = ()

    # Resources that exist
    def every(self, caller: Caller) -> list[Document]:
        """Return all resources that the caller may see, in the format of the v1 API. Keys that begin with ``_`` are for
        internal use by the driver, and are not part of answers."""
        raise NotImplementedError

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """Return the resources for a list request. *filters*: query parameters by name. A driver removes from *filters*
        those that it has applied; the code that calls this method then applies the remaining ones."""
        return self.every(caller)

    def find(self, caller: Caller, key: str) -> Document | None:
        """Return the resource with the uuid or name *key*; ``None`` if there is none. Raises ``Ambiguous`` if several
        resources have the name *key*."""
        resources = self.every(caller)
        exact = [resource for resource in resources if resource.get("id") == (key.lower() if is_uuid_key(key) else key)]
        return exact[0] if exact else self.only(caller, [resource for resource in resources
                                                         if resource.get("name") == key], key)

    def only(self, caller: Caller, resources: list[Document], name: str) -> Document | None:
        """Return the only one of *resources*, which all have the name *name*; ``None`` if the list is empty. If there
        are several, resources of the caller's project take precedence. Raises ``Ambiguous`` if several remain."""
        resources = [resource for resource in resources if resource.get("_owner") == caller.project] or resources
        if len(resources) > 1:
            raise Ambiguous(f"{len(resources)} {self.kind.plural} have the name {name!r}; use a uuid.",
                            uuids=[str(resource["id"]) for resource in resources])
        return resources[0] if resources else None

    def one(self, caller: Caller, key: str) -> Document:
        """Return the resource with the uuid or name *key*. Raises ``NotFound`` if there is none, and ``Ambiguous`` if
        several resources have the name *key*."""
        resource = self.find(caller, key)
        if resource is None:
            raise NotFound(f"There is no {self.kind.noun} {key!r} in this cloud that you may see.", kind=self.kind.noun,
                           key=key)
        return resource

    def public(self, resource: Document) -> Document:
        """Return *resource* without the keys that are for internal use by the driver, as answers show it."""
        return {name: value for name, value in resource.items() if not name.startswith("_")}

    def comparable(self, resource: Document) -> Document:
        """Return *resource* (a current or desired state) in the form that is used to compute and show differences; by
        default unchanged."""
        return resource

    # Requests
    def given(self, key: str, want: Document) -> Document:
        """Return the desired state *want* after a check, completed by the name or uuid in *key*, the last part of the
        URL. Raises ``InvalidField``, also for the values of fields that are possible only in the API of a single host,
        which does not belong to a cloud."""
        document = reconcile.checked_request(self.kind, key, want)
        for name, only in self.host_only.items():
            if name in document and document[name] != only:
                raise InvalidField(name, f"is a matter of single hosts; in a cloud it is {only!r}", document[name])
        return document

    def referred(self, caller: Caller, key: str, field: str, rule: str = "") -> Document | None:
        """Return the resource with the uuid or name *key*, which *field* of another resource refers to.

        If the resource does not exist, raise ``InvalidField`` with the text *rule*, by default "there is no …". A dry
        run may assume that an earlier Ansible task creates the resource; then return ``None``.
        """
        resource, noun = self.find(caller, key), self.kind.noun
        if resource is None:
            rule = rule or f"there is no {noun} {key!r} in this cloud that you may use"
            reconcile.refuse_missing(InvalidField(field, rule), noun, key)
        return resource

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with references to other resources resolved, such as names replaced by uuids.
        *have*: the current state, ``None`` for a new resource. Changes nothing.

        Raises an error for an impossible request. A dry run may assume that an earlier Ansible task creates a missing
        resource; then the reference to this resource is no error (see ``reconcile.refuse_missing``).
        """
        return want

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """Check that the resource *want* can be created, without changing anything. *have*: the existing resource that
        is removed first, because *want* replaces it; ``None`` if there is none. Raises the errors that the creation
        would raise."""

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        """Check that the resource *have* can be changed to *want*, without changing anything. Raises the errors that
        the change would raise."""

    def wait_until_usable(self, caller: Caller, have: Document, operation: Operation | None) -> Document:
        """Wait until the creation of the resource *have* is complete, and return its current state. *operation*:
        ``None`` in a dry run, which does not wait. Raises ``Conflict`` if the creation fails."""
        return have

    def plan(self, want: Document | None, have: Document | None) -> Iterator[Step]:
        """Yield the steps (name and description of each part of the change, for the answer) that change the current
        state *have* (``None``: no such resource) to the desired state *want* (``None``: remove it). *have* also
        contains the permissions of the request, such as ``allow_reboot``. Every change also has a step ``record``, for
        storing the desired state in the database; the calling code adds this step, so it is not yielded. The function
        has no side effects."""
        if want is None:
            yield from self.removing
        elif have is None:
            yield from self.making

    def predicted_plan(self, caller: Caller, want: Document, have: Document) -> list[Step]:
        """Return the steps of a change for a dry run. Unlike ``plan``, this method may query other services."""
        return list(self.plan(want, have))

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the state of the resource after the change, for a dry run. Fields that the service chooses, such as
        addresses, may be missing. Raises some of the errors of ``make``."""
        if have is None:
            shown = {f.name for f in self.kind.fields if "show" in f.on}
            return {**{name: value for name, value in want.items() if name in shown}, **self.new}
        secrets = self.kind.secrets()
        return {**have, **{name: want[name] for name in compared_fields(self.kind) if name in want
                           and name not in secrets}}

    # Changes
    def make(self, caller: Caller, want: Document, operation: Operation) -> str | None:
        """Create the resource *want*. Return the new resource's uuid if only the uuid identifies it; ``None`` if the
        calling code can look up the resource by its name."""
        raise NotImplementedError

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Update those fields of the resource *have* that *names* lists, to their values in *want*."""
        raise NotImplementedError

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        raise NotImplementedError

    def recreate(self, caller: Caller, have: Document, want: Document, operation: Operation) -> str | None:
        """Replace the resource *have*: remove *have*, then create *want*. Return the new resource's uuid if only the
        uuid identifies it, otherwise ``None`` (as ``make``). If the creation of *want* fails, raise its error. Before
        that, create *have* again if the driver has the flag ``only_a_document`` (its resources have no content)."""
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
        """Create, change or remove the resource *key* so that its state is *want* (``None``: removed). *permissions*:
        options of the request, such as ``allow_reboot``. *dry_run*: only predict the change. Return the result: the
        steps and the differences."""
        if not self.makeable:
            raise InvalidField("kind", f"{self.kind.noun} is only reported here, and not made or changed")
        with lock_key(self.kind.noun, caller.project, key, operation):
            if want is None:
                have = self.find(caller, key)
                return self.checked_removal(caller, have, permissions, dry_run, lambda: self.removal(
                    caller, have, dry_run, operation))
            change = CloudChange(self, caller, self.given(key, want), permissions, dry_run, operation)
            return change.run(self.find(caller, key))

    def checked_removal(self, caller: Caller, have: Document | None, permissions: Mapping[str, Any], dry_run: bool,
                        remove: Callable[[], Result]) -> Result:
        """Call *remove*, a function that removes the resource *have*, and return the function's result. In a dry run,
        add the current revision of *have* to the result. Raises ``ChangedSince`` if *permissions* contains another
        revision, because the resource has changed since the client read it."""
        if have is None:
            return remove()
        revision = reconcile.revision_of(self.kind, self.comparable(have))
        reconcile.check_revision(self.kind, have["name"], permissions, revision)
        result = remove()
        result.revision = revision if dry_run and result.changed else None
        return result

    def removal(self, caller: Caller, have: Document | None, dry_run: bool, operation: Operation) -> Result:
        """Remove the resource *have*, unless it is ``None`` or this is a dry run. Return the result with the steps of
        the removal."""
        if have is None:
            return Result([], [], None)
        if not dry_run:
            self.remove(caller, have, operation)
        steps = [*self.plan(None, have), reconcile.forget_step(self.kind, have["name"])]
        return Result(steps, field_differences(self.kind, self.comparable(have), None), self.public(have))


class CloudChange(reconcile.Change):
    """A request that creates or changes one resource of the cloud through its ``CloudDriver``, or, in a dry run, only
    predicts the result."""

    def __init__(self, driver: CloudDriver, caller: Caller, desired: Document, permissions: Mapping[str, Any],
                 dry_run: bool, operation: Operation) -> None:
        super().__init__(driver.kind, desired, permissions, dry_run)
        self.driver, self.caller, self.operation = driver, caller, operation

    def run(self, have: Document | None) -> Result:
        """Create the resource, or change it if its current state *have* is not ``None``, and return the result. A dry
        run only predicts the result."""
        if have is None:
            return self._make()
        self.check_id(str(have["id"]), have["name"])
        want = self._complete(self.wanted({name: have.get(name) for name in compared_fields(self.kind)}), have)
        policy = self.on_immutable(have["name"], have, want, have.get("status"))
        if policy == "recreate":
            return self._recreate(have, want)
        return self._change(have, want, rebuild=policy == "rebuild")

    def _complete(self, desired: Document, have: Document | None) -> Document:
        with check_mode(self.dry_run, self.warnings):
            return self.driver.complete(self.caller, desired, have)

    def _show_document(self, key: str) -> Document:
        return self.driver.public(self.driver.one(self.caller, key))

    def _make(self) -> Result:
        driver, id = self.driver, self.given.get("id")
        if id and not driver.takes_id:
            raise InvalidField("id", f"is drawn for a new {self.kind.noun}, and none of yours has {id}. To make one, "
                                     "ask by its name, and leave the uuid out", id)
        self.check_new()
        desired = {**self.wanted(None), **({"id": id} if id else {})}
        want = self._complete(desired, None)
        steps = [record_step(self.kind, want.get("name", "")), *driver.plan(want, None)]
        self.check_revision(want.get("name", ""), None, steps)
        with check_mode(self.dry_run, self.warnings):
            if self.dry_run:
                driver.check_make(self.caller, want, None)
                shown = driver.public(driver.predicted(self.caller, want, None))
            else:
                made = driver.make(self.caller, want, self.operation)
                shown = self._show_document(made or str(want.get("id") or want["name"]))
        return self.result(steps, self._difference(None, desired), shown)

    def _difference(self, have: Document | None, want: Document) -> list[Document]:
        current = have and self.driver.comparable(have)
        return field_differences(self.kind, current, self.driver.comparable(want))

    def _change(self, have: Document, want: Document, *, rebuild: bool) -> Result:
        driver = self.driver
        have = driver.wait_until_usable(self.caller, have, None if self.dry_run else self.operation)
        names = [name for name in compared_fields(self.kind) if name in want and want.get(name) != have.get(name)]
        allowed = {**have, **self.allowed(rebuild)}
        planned = list(driver.plan(want, allowed))
        if not names and not planned:
            return self.result([], [], driver.public(have))
        steps = [record_step(self.kind, str(want.get("name", have["name"])))]
        self.check_revision(have["name"], driver.comparable(have), steps)
        driver.check_change(self.caller, want, allowed)
        changes = self._difference(have, want)
        if self.dry_run:
            with check_mode(True, self.warnings), self.operation.waiting():
                planned = driver.predicted_plan(self.caller, want, allowed)
            shown = driver.public(driver.predicted(self.caller, want, have))
        else:
            driver.change(self.caller, allowed, want, names, self.operation)
            shown = self._show_document(str(have["id"]))
        return self.result([*steps, *planned], changes, shown)

    def _recreate(self, have: Document, want: Document) -> Result:
        driver = self.driver
        driver.check_make(self.caller, want, have)
        removal_steps = list(driver.plan(None, have)) or [reconcile.forget_step(self.kind, have["name"])]
        steps = [*removal_steps, record_step(self.kind, str(want.get("name", have["name"]))), *driver.plan(want, None)]
        self.check_revision(have["name"], driver.comparable(have), steps)
        changes = self._difference(have, want)
        if self.dry_run:
            shown = driver.public(driver.predicted(self.caller, want, have))
        else:
            shown = self._show_document(driver.recreate(self.caller, have, want, self.operation) or want["name"])
        return self.result(steps, changes, shown)
