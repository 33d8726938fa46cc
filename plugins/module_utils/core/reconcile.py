# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of ``ensure``, the same on a host and in a cloud: what a request asks for, what of it cannot change, what a
dry run may assume, and what the answer calls the difference.

Pure: where resources are, and how they are made and changed, is asked of the drivers (``magnetar_agent.drivers`` of a
host, ``magnetar_control.api.v1.driver`` of a cloud).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Optional

from .errors import Conflict, Immutable, InUse, InvalidField
from .fields import Kind
from .hardware.pci import of_nic
from .plan import Result, Step, diff

#: A JSON object: the fields of a resource.
Document = dict[str, Any]
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: What a new resource's difference does not show.
EMPTY: tuple[Any, ...] = (None, "", [], {})


# Key and name ---------------------------------------------------------------------------------------------------
def is_uuid(text: str) -> bool:
    """Whether a key is a uuid, and so no name."""
    return bool(UUID.fullmatch(text.lower()))


def given_by(kind: type[Kind], key: str, want: Mapping[str, Any]) -> Document:
    """*want* checked, with the name or id that *key* says. Raises ``InvalidField``, also where the two differ."""
    given: Document = kind.check(dict(want), partial=True)
    field = "id" if is_uuid(key) else "name"
    named = key.lower() if field == "id" else key
    if given.setdefault(field, named) != named:
        raise InvalidField(field, "differs from the key %r of the request" % key
                           + ("; to rename, ask by uuid" if field == "name" else ""), given[field])
    return given


# Differences ----------------------------------------------------------------------------------------------------
def compared(kind: type[Kind]) -> list[str]:
    """Names of the fields a difference in which is a change."""
    return [f.name for f in kind.settable() if f.compared and f.name != "id"]


def difference(kind: type[Kind], before: Optional[Mapping[str, Any]],
               after: Optional[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The ``diff`` of an answer, over the fields that a user sets. ``None``: there is no resource then, and the other
    side shows only what is not empty."""
    names = compared(kind)
    sides: list[Document] = []
    for side, other in ((before, after), (after, before)):
        shown = {name: side.get(name) for name in names} if side is not None else {}
        sides.append({n: v for n, v in shown.items() if v not in EMPTY} if other is None else shown)
    return diff(sides[0], sides[1], kind.secrets())


def recorded(kind: type[Kind], name: str) -> Step:
    """The step that writes down what is wanted."""
    return Step("record", "record %s %s" % (kind.noun, name))


def forgotten(kind: type[Kind], name: str) -> Step:
    """The step that removes what was written down."""
    return Step("forget", "forget %s %s" % (kind.noun, name))


def beside(old: list[Document], given: list[Document]) -> list[Document]:
    """The NICs *given*, each in the place of the one of *old* that it means, and the others of *old*. Which one it
    means, its MAC says, or else its network, bridge, port or physical network."""
    left = sorted(given, key=lambda nic: not nic.get("port"))
    found = []
    for nic in old:
        meant = next((one for one in left if _means(one, nic)), None)
        if meant is not None:
            left.remove(meant)
        found.append(nic if meant is None else meant)
    return given if len(found) + len(left) == len(given) else found + sorted(left, key=given.index)


def _means(given: Document, nic: Document) -> bool:
    if given.get("mac"):
        return bool(given["mac"] == nic.get("mac"))
    if given.get("physical_network"):
        return bool(nic.get("physical_network")) and of_nic(given) == of_nic(nic)
    if given.get("port"):
        return given["port"] in (nic.get("port"), nic.get("_port"))
    plug = given.get("network") or given.get("bridge")
    return plug is not None and plug in (nic.get("network"), nic.get("_id"), nic.get("bridge"))


class Change:
    """One ensure of a resource that is to be there.

    *given* is what ``given_by`` returns, *permissions* a checked ``ensure.Permissions``. What the caller has to be told
    besides is added to ``warnings``.
    """

    def __init__(self, kind: type[Kind], given: Document, permissions: Mapping[str, Any], dry_run: bool) -> None:
        self.kind, self.given, self.permissions, self.dry_run = kind, given, permissions, dry_run
        self.warnings: list[str] = []

    def check_new(self) -> None:
        """Raise ``InvalidField`` unless *given* says enough to make one."""
        self.kind.check_new(self.given)

    def check_id(self, id: str, name: str) -> None:
        """Raise ``Conflict`` where the resource *name*, which there is, has another uuid than is given."""
        if self.given.get("id", id) != id:
            raise Conflict("%s %r exists with uuid %s, not %s. Use that uuid, or another name."
                           % (self.kind.noun, name, id, self.given["id"]), uuids=[id])

    def wanted(self, known: Optional[Mapping[str, Any]]) -> Document:
        """The whole document that is wanted of the resource, of which *known* is what was wanted before. ``None``: it
        is a new one, and what is left out has its default."""
        base = self.kind.giving_way(self.kind.defaults() if known is None else known, self.given)
        found = {name: value for name, value in self.given.items() if name != "id"}
        for name in self.permissions["merge"]:
            if name == "networks" and name in found:
                found[name] = beside(base.get(name) or [], found[name])
            elif isinstance(found.get(name), dict):
                found[name] = dict(base.get(name) or {}, **found[name])
            elif name in found:
                found[name] = sorted({*(base.get(name) or ()), *found[name]})
        return dict(base, **found)

    def fixed(self, old: Mapping[str, Any], want: Mapping[str, Any]) -> list[str]:
        """Names of the fields that cannot change, and in which *want* differs from *old*."""
        return [f.name for f in self.kind.settable()
                if f.fixed and f.compared and f.name != "id" and old.get(f.name) != want.get(f.name)
                and not self.kind.changes(f.name, old.get(f.name), want.get(f.name))
                and f.name not in self.permissions.get("force", ())]

    def on_immutable(self, name: str, old: Mapping[str, Any], want: Document, status: Optional[str] = None) -> str:
        """What is to be done about fixed fields of the resource *name* that differ: nothing (``""``, also where none
        does, or by its *status* its content is still to come), ``ignore``, ``rebuild`` or ``recreate``. To ignore them
        sets *want* back, and so do fields that say how it would be made. Raises ``Immutable``."""
        names = [] if status in self.kind.unfilled else self.fixed(old, want)
        policy = str(self.permissions["on_immutable"]) if names else ""
        if policy == "rebuild":
            names = [one for one in names if not self.kind.rebuilds(one, old.get(one), want.get(one))]
            policy = "fail" if names else policy
        secrets = self.kind.secrets()
        words = "; ".join("%s cannot change" % one + (
            "" if one in secrets else " from %r to %r" % (old.get(one), want.get(one))) for one in names)
        if policy == "fail":
            rebuilds = all(self.kind.rebuilds(one, old.get(one), want.get(one)) for one in names)
            ways = "to rebuild (its root disk is lost), " if rebuilds else ""
            raise Immutable(
                "%s %r: %s. Set on_immutable %sto recreate (what is there is lost) or to ignore, or ask for what is "
                "there." % (self.kind.noun, name, words, ways), fields=names)
        if policy == "ignore":
            self._set_back(old, want, [*names, *(f.name for f in self.kind.settable() if not f.compared)])
            self.warnings.append("%s %r: %s; ignored, as on_immutable says." % (self.kind.noun, name, words))
        for field, other in self.kind.found.items():
            if field not in self.given and old.get(other) != want.get(other):
                want[field] = None  # it was that of the other content
        return policy

    def allowed(self, rebuild: bool) -> Document:
        """What a plan has to know of the permissions beside what there is; empty for a caller who allows nothing.
        *rebuild*: whether the resource is to be rebuilt."""
        found: Document = {"allow_reboot": True} if self.permissions.get("allow_reboot") else {}
        if rebuild:
            found["rebuild"] = {"preserve_ephemeral": self.permissions.get("preserve_ephemeral", False),
                                "request": self.permissions.get("rebuild")}
            if self.permissions.get("keep_volume"):
                found["rebuild"]["keep_volume"] = True
            if self.given.get("personality"):  # these files are asked for now; others may be those of the first boot
                found["rebuild"]["personality"] = True
        return found

    def _set_back(self, old: Mapping[str, Any], want: Document, names: Sequence[str]) -> None:
        for name in names:
            want.pop(name, None)
            if name in old:
                want[name] = old[name]

    def result(self, steps: Sequence[Step], diff: list[dict[str, Any]], resource: Optional[Document]) -> Result:
        """The answer; without steps nothing has changed, and so there is no difference."""
        return Result(steps, diff if steps else [], resource, self.warnings)


# Check mode -----------------------------------------------------------------------------------------------------
# A dry run changes nothing, so a playbook that makes a flavor and then a server of it, or removes a server and then
# its network, would fail in check mode where it succeeds. So a dry run assumes that an earlier task makes what is
# named and not there, and removes what still uses what is to go. The assumption is a warning; a real run refuses.
_mode: ContextVar[Optional[tuple[bool, list[str]]]] = ContextVar("check_mode", default=None)


@contextmanager
def check_mode(dry_run: bool, warnings: list[str]) -> Iterator[None]:
    """What is warned of meanwhile is added to *warnings*; in a dry run that is also what ``missing`` does."""
    token = _mode.set((dry_run, warnings))
    try:
        yield
    finally:
        _mode.reset(token)


def warn(text: str) -> None:
    """Tell the caller of the ensure at hand something besides."""
    mode = _mode.get()
    if mode is not None and text not in mode[1]:
        mode[1].append(text)


def missing(error: InvalidField, noun: str, name: str) -> None:
    """The *noun* that a field names is not there. Raises *error*, unless a dry run may assume that an earlier task
    makes it; then the caller goes on with something that stands for it."""
    mode = _mode.get()
    if mode is None or not mode[0]:
        raise error
    warn(assumed(noun, name))


def assumed(noun: str, name: str) -> str:
    """The warning of a prediction that takes the *noun* for made."""
    return "There is no %s %r yet; the prediction assumes that it is made before this." % (noun, name)


@contextmanager
def freed(dry_run: bool, warnings: list[str]) -> Iterator[None]:
    """In a dry run, the refusal to remove what is in use becomes one of the *warnings*."""
    try:
        yield
    except InUse as error:
        if not dry_run:
            raise
        warnings.append("%s The prediction assumes that this is done before." % error)
