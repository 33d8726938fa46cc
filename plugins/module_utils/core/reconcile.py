# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of ``ensure``, the same on a host and in a cloud: checks of a request, immutable fields, what a dry run
assumes, and the difference in the answer.

Pure: the drivers find, make and change resources (``magnetar_agent.drivers`` on a host,
``magnetar_control.api.v1.driver`` in a cloud).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Optional

from .document import Document
from .errors import ChangedSince, Conflict, Immutable, InUse, InvalidField
from .fields import Kind
from .hardware.pci import nic_devices_name
from .plan import Result, Step, diff_documents

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Values that the difference of a new resource leaves out.
EMPTY: tuple[Any, ...] = (None, "", [], {})
#: The revision of a resource that does not exist.
NO_RESOURCE = "absent"


# Key and name ---------------------------------------------------------------------------------------------------
def is_uuid_key(text: str) -> bool:
    """Return whether *text*, a key of a resource, is a uuid and not a name."""
    return bool(UUID.fullmatch(text.lower()))


def checked_request(kind: type[Kind], key: str, want: Mapping[str, Any]) -> Document:
    """Validate *want*, the requested fields of a resource, and return them in normal form, with the name or id from
    *key*, which is the resource's name or uuid in the request. Raises ``InvalidField`` for invalid fields, and if
    *want* and *key* name different resources.
    """
    requested: Document = kind.check(dict(want), partial=True)
    field = "id" if is_uuid_key(key) else "name"
    named = key.lower() if field == "id" else key
    if requested.setdefault(field, named) != named:
        raise InvalidField(field, "differs from the key %r of the request" % key
                           + ("; to rename, ask by uuid" if field == "name" else ""), requested[field])
    return requested


# Differences ----------------------------------------------------------------------------------------------------
def compared_fields(kind: type[Kind]) -> list[str]:
    """Return the names of the fields of *kind* that are compared to decide whether a resource changes."""
    return [f.name for f in kind.settable() if f.compared and f.name != "id"]


def field_differences(kind: type[Kind], before: Optional[Mapping[str, Any]],
                      after: Optional[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the differences (see ``diff_documents``) between the compared fields of a resource *before* and *after* a
    change. ``None``: the resource does not exist at this time; empty fields of the resource are then not reported.
    """
    names = compared_fields(kind)
    sides: list[Document] = []
    for side, other in ((before, after), (after, before)):
        shown = {name: side.get(name) for name in names} if side is not None else {}
        sides.append({n: v for n, v in shown.items() if v not in EMPTY} if other is None else shown)
    return diff_documents(sides[0], sides[1], kind.secrets())


def revision_of(kind: type[Kind], document: Optional[Mapping[str, Any]]) -> str:
    """Return the revision of a resource: a digest of its uuid and its compared fields without secrets. *document*: its
    fields; ``None`` if it does not exist (the revision is then ``NO_RESOURCE``).
    """
    if document is None:
        return NO_RESOURCE
    names = {"id", *compared_fields(kind)} - {*kind.secrets()}
    fields = {name: document[name] for name in sorted(names) if document.get(name) not in EMPTY}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()[:32]


def check_revision(kind: type[Kind], name: str, permissions: Mapping[str, Any], revision: str) -> None:
    """Raise ``ChangedSince`` if *permissions* require a revision (a digest of the fields) of the resource *name* that
    differs from *revision*, the current revision. Call it before a change, while the resource is locked.
    """
    planned = permissions.get("revision")
    if planned is None or planned == revision:
        return
    happened = ("exists now, and did not exist when this was planned" if planned == NO_RESOURCE else
                "no longer exists, and existed when this was planned" if revision == NO_RESOURCE else
                "has changed since this was planned")
    raise ChangedSince("%s %r %s. Make a new plan." % (kind.noun, name, happened), kind=kind.noun, key=name,
                       revision=revision)


def record_step(kind: type[Kind], name: str) -> Step:
    """Return the step that stores the desired state of the resource *name*."""
    return Step("record", "record %s %s" % (kind.noun, name))


def forget_step(kind: type[Kind], name: str) -> Step:
    """Return the step that removes the stored desired state of the resource *name*."""
    return Step("forget", "forget %s %s" % (kind.noun, name))


def merge_nics(old: list[Document], requested: list[Document]) -> list[Document]:
    """Merge *requested* NICs into the *old* NICs of a server, and return the result. A requested NIC replaces the old
    one with the same MAC or, without a MAC, with the same network, bridge, port or physical network; other requested
    NICs are appended. If all old NICs are replaced, the result is in the order of *requested*.
    """
    unmatched = sorted(requested, key=lambda nic: not nic.get("port"))
    merged = []
    for nic in old:
        matched = next((nic_request for nic_request in unmatched if _means(nic_request, nic)), None)
        if matched is not None:
            unmatched.remove(matched)
        merged.append(nic if matched is None else matched)
    return requested if len(merged) + len(unmatched) == len(requested) else merged + sorted(unmatched,
                                                                                            key=requested.index)


def _means(requested: Document, nic: Document) -> bool:
    if requested.get("mac"):
        return bool(requested["mac"] == nic.get("mac"))
    if requested.get("physical_network"):
        return bool(nic.get("physical_network")) and nic_devices_name(requested) == nic_devices_name(nic)
    if requested.get("port"):
        return requested["port"] in (nic.get("port"), nic.get("_port"))
    plug = requested.get("network") or requested.get("bridge")
    return plug is not None and plug in (nic.get("network"), nic.get("_id"), nic.get("bridge"))


class Change:
    """A request to create or change a resource, and the rules for the change.

    *kind*: the resource type. *requested*: the result of ``checked_request``. *permissions*: validated options of
    ``ensure.Permissions``. ``warnings``: texts for the caller.
    """

    def __init__(self, kind: type[Kind], requested: Document, permissions: Mapping[str, Any], dry_run: bool) -> None:
        self.kind, self.given, self.permissions, self.dry_run = kind, requested, permissions, dry_run
        self.warnings: list[str] = []
        self.revision: Optional[str] = None

    def check_new(self) -> None:
        """Raise ``InvalidField`` if the request lacks a field that a new resource must have."""
        self.kind.check_new(self.given)

    def check_id(self, id: str, name: str) -> None:
        """Raise ``Conflict`` if the request has a different uuid than *id*, the uuid of the existing resource *name*.
        """
        if self.given.get("id", id) != id:
            raise Conflict("%s %r exists with uuid %s, not %s. Use that uuid, or another name."
                           % (self.kind.noun, name, id, self.given["id"]), uuids=[id])

    def wanted(self, current: Optional[Mapping[str, Any]]) -> Document:
        """Return all desired fields of the resource: the requested ones, completed by *current*, the previous desired
        fields. *current* is ``None`` for a new resource, which gets defaults.
        """
        base = self.kind.giving_way(self.kind.defaults() if current is None else current, self.given)
        merged = {name: value for name, value in self.given.items() if name != "id"}
        for name in self.permissions["merge"]:
            if name == "networks" and name in merged:
                merged[name] = merge_nics(base.get(name) or [], merged[name])
            elif isinstance(merged.get(name), dict):
                merged[name] = dict(base.get(name) or {}, **merged[name])
            elif name == "rules" and name in merged:
                merged[name] = [*(base.get(name) or ()), *merged[name]]
            elif name in merged:
                merged[name] = sorted({*(base.get(name) or ()), *merged[name]})
        return dict(base, **merged)

    def fixed(self, old: Mapping[str, Any], want: Mapping[str, Any]) -> list[str]:
        """Return the names of immutable fields that differ between *old* and *want*. Fields that the resource type or
        the caller (permission ``force``) allows to change are not included.
        """
        return [f.name for f in self.kind.settable()
                if f.fixed and f.compared and f.name != "id" and old.get(f.name) != want.get(f.name)
                and not self.kind.changes(f.name, old.get(f.name), want.get(f.name))
                and f.name not in self.permissions.get("force", ())]

    def on_immutable(self, name: str, old: Mapping[str, Any], want: Document, status: Optional[str] = None) -> str:
        """Decide how to handle immutable fields of the resource *name* that differ between *old* and *want*. Return the
        policy that the caller has chosen: ``ignore``, ``rebuild`` or ``recreate``. Return "" if no such field differs,
        or if the *status* says that the resource has no content yet, because until then no field is immutable. Raises
        ``Immutable`` if the policy is ``fail``, or if it is ``rebuild`` and a rebuild cannot change all these fields.

        For ``ignore``, reset these fields in *want* to their old values, and also the fields that only say how to
        create the resource.
        """
        names = [] if status in self.kind.unfilled else self.fixed(old, want)
        policy = str(self.permissions["on_immutable"]) if names else ""
        if policy == "rebuild":
            names = [field_name for field_name in names if not self.kind.rebuilds(field_name, old.get(field_name),
                                                                                  want.get(field_name))]
            policy = "fail" if names else policy
        secrets = self.kind.secrets()
        words = "; ".join(
            "%s cannot change" % field_name
            + ("" if field_name in secrets else " from %r to %r" % (old.get(field_name), want.get(field_name)))
            for field_name in names)
        if policy == "fail":
            rebuilds = all(self.kind.rebuilds(field_name, old.get(field_name), want.get(field_name))
                           for field_name in names)
            ways = "to rebuild (its root disk is lost), " if rebuilds else ""
            raise Immutable(
                "%s %r: %s. Set on_immutable %sto recreate (what is there is lost) or to ignore, or ask for what is "
                "there." % (self.kind.noun, name, words, ways), fields=names)
        if policy == "ignore":
            self._set_back(old, want, [*names, *(f.name for f in self.kind.settable() if not f.compared)])
            self.warnings.append("%s %r: %s; ignored, as on_immutable says." % (self.kind.noun, name, words))
        for field, other in self.kind.found.items():
            if field not in self.given and old.get(other) != want.get(other):
                want[field] = None  # the value belonged to the previous content
        return policy

    def allowed(self, rebuild: bool) -> Document:
        """Return the caller's permissions as a mapping for ``plan_server``; empty if nothing is permitted. *rebuild*:
        whether the resource will be rebuilt.
        """
        allowed: Document = {"allow_reboot": True} if self.permissions.get("allow_reboot") else {}
        if rebuild:
            allowed["rebuild"] = {"preserve_ephemeral": self.permissions.get("preserve_ephemeral", False),
                                  "request": self.permissions.get("rebuild")}
            if self.permissions.get("keep_volume"):
                allowed["rebuild"]["keep_volume"] = True
            if self.given.get("personality"):  # files of this request; others may date from the first boot
                allowed["rebuild"]["personality"] = True
        return allowed

    def _set_back(self, old: Mapping[str, Any], want: Document, names: Sequence[str]) -> None:
        for name in names:
            want.pop(name, None)
            if name in old:
                want[name] = old[name]

    def check_revision(self, name: str, before: Optional[Document], steps: Sequence[Step]) -> None:
        """Store the revision of the resource *name* (see ``revision_of``) before the *steps*. Raise ``ChangedSince`` if
        the caller requires another revision. Without *steps*, do nothing. *before*: the fields of the resource;
        ``None`` if it does not exist.
        """
        if steps:
            self.revision = revision_of(self.kind, before)
            check_revision(self.kind, name, self.permissions, self.revision)

    def result(self, steps: Sequence[Step], diff: list[dict[str, Any]], resource: Optional[Document]) -> Result:
        """Return the result of the request. *steps*: the performed steps; if there are none, the differences *diff* are
        ignored. *resource*: the fields of the resource after the steps.
        """
        return Result(steps, diff if steps else [], resource, self.warnings, self.revision if self.dry_run else None)


# Check mode -----------------------------------------------------------------------------------------------------
# A dry run changes nothing, so a playbook that makes a flavor and then a server of it, or removes a server and then its
# network, would fail in check mode although it succeeds. So a dry run assumes that an earlier task makes the missing
# resources and removes the users of the ones to delete. The assumption is a warning; a real run refuses.
_mode: ContextVar[Optional[tuple[bool, list[str]]]] = ContextVar("check_mode", default=None)


@contextmanager
def check_mode(dry_run: bool, warnings: list[str]) -> Iterator[None]:
    """Inside the context, collect the texts of ``warn_caller`` in *warnings*. If *dry_run*, ``refuse_missing`` adds a
    warning instead of raising its error.
    """
    token = _mode.set((dry_run, warnings))
    try:
        yield
    finally:
        _mode.reset(token)


def warn_caller(text: str) -> None:
    """Add *text* to the warnings in the answer to the current request."""
    mode = _mode.get()
    if mode is not None and text not in mode[1]:
        mode[1].append(text)


def refuse_missing(error: InvalidField, resource_type: str, name: str) -> None:
    """Raise *error*, because a field names the resource *name* of the type *resource_type*, which does not exist. In a
    dry run, only add a warning, since an earlier task of the playbook may create the resource; the caller then
    continues with a placeholder.
    """
    mode = _mode.get()
    if mode is None or not mode[0]:
        raise error
    warn_caller(assumed_warning(resource_type, name))


def assumed_warning(resource_type: str, name: str) -> str:
    """Return a warning for a dry run: the resource *name* of the type *resource_type* is assumed to exist, because an
    earlier task of the playbook may create it.
    """
    return "There is no %s %r yet; the prediction assumes that it is made before this." % (resource_type, name)


@contextmanager
def allow_in_use(dry_run: bool, warnings: list[str]) -> Iterator[None]:
    """Inside the context of a dry run, turn the error ``InUse`` (the resource is used and cannot be removed) into a
    text in *warnings*. Without *dry_run*, do nothing.
    """
    try:
        yield
    except InUse as error:
        if not dry_run:
            raise
        warnings.append("%s The prediction assumes that this is done before." % error)
