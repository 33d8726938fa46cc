# SPDX-License-Identifier: GPL-3.0-or-later
"""The persistent memory of a server: namespaces of this host.

They are chosen under the lock of choices, and kept in the server's document (``FIELD``), in the order in which the
guest has them. One that a server gets is emptied before its guest starts, and is noted as ``clean`` from then on; one
that it gives up is emptied too. So no server ever reads what another has written, whatever dies in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware.pmem import GuestPmem, Namespace, guest_device, namespaces
from magnetar_agent.host.provider_config import inventory
from magnetar_agent.reconcile.locks import CHOICES
from magnetar_agent.servers.hardware import placement
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.pmem import class_of, labels
from magnetar_core.power import LIVE, SUSPENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields

#: What a document has in its ``want``: a list of {label, name, clean}; and what its guest had before a change.
FIELD, BEFORE = "pmem_namespaces", "pmem_namespaces_before"


def asked(want: Mapping[str, Any]) -> list[str]:
    """The labels that a server of these fields is to have namespaces of."""
    return labels((want.get("hardware") or {}).get("pmem") or "")


def devices(host: LocalHost) -> list[Namespace]:
    """Those that servers may have, given away or not."""
    return namespaces(host.settings.sysfs, host.settings.pmem_namespaces)


def held(host: LocalHost, without: str = "") -> set[str]:
    """Names of those that servers of this host have, and those on their way here, but for the server *without*."""
    return {one["name"] for want in placement.holders(host, without)
            for field in (FIELD, BEFORE) for one in want.get(field) or ()}


def told(host: LocalHost) -> dict[str, dict[str, Any]]:
    """The field ``pmem`` of ``kinds.Host``."""
    found: dict[str, dict[str, Any]] = {}
    had = held(host) if host.settings.pmem_namespaces else set()
    for one in devices(host):
        mine = found.setdefault(one.label, {"total": 0, "free": 0, "sizes_mb": []})
        mine["total"] += 1
        mine["free"] += one.name not in had
        mine["sizes_mb"].append(one.size_kib // 1024)
    return found


def resources(there: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What is ``told`` as inventories by resource class, of which a cloud claims (row A11.6)."""
    return {class_of(label): inventory(one["total"], one["total"]) for label, one in there.items()}


def check(host: LocalHost, want: Mapping[str, Any]) -> None:
    """Raise ``InvalidField`` for labels of which this host has too few, given away or not."""
    wanted, there = asked(want), [one.label for one in devices(host)]
    for label in dict.fromkeys(wanted):
        if wanted.count(label) > there.count(label):
            raise InvalidField(
                "hardware.pmem", f"cannot be had on host {host.name}, which has {there.count(label)} namespaces of "
                f"persistent memory with the label {label}, and the server needs {wanted.count(label)}. Its agent's "
                "setting pmem_namespaces says which there are; choose another host", ",".join(wanted))


def choose(host: LocalHost, want: Mapping[str, Any], id: str, had: list[Fields] | None = None) -> list[Fields]:
    """What the server *id* with these fields gets: what it *had*, as far as that is asked for and there, and free ones.
    Hold the lock of choices until it is written. Raises ``Conflict``."""
    if not (wanted := asked(want)):
        return []
    there, taken = devices(host), held(host, id)
    known, kept, found = {(one.label, one.name) for one in there}, list(had or ()), list[dict[str, Any]]()
    for label in wanted:
        mine = next((one for one in kept if one["label"] == label and (label, one["name"]) in known), None)
        if mine is not None:
            kept.remove(mine)
        else:
            free = next((one.name for one in there if one.label == label and one.name not in taken
                         and one.name not in [other["name"] for other in (*found, *(had or ()))]), None)
            if free is None:
                raise Conflict(f"hardware.pmem: host {host.name} has no free namespace of persistent memory with the "
                               f"label {label} left. Choose another host, or free one there.", field="hardware.pmem")
            mine = {"label": label, "name": free, "clean": False}
        found.append(mine)
    return found


def complete(host: LocalHost, found: Fields, old: Fields, id: str) -> None:
    """Set ``FIELD`` of *found*, whose hardware is known. *old*: what was wanted before. Raises ``Conflict``, and
    ``InvalidField`` for a server that is to be suspended with some."""
    if asked(found) and found.get("power") == SUSPENDED:
        raise InvalidField("power", "cannot be suspended while the server has persistent memory, which would be saved "
                                    "with its RAM, and written over at the next start; stop it, or pause it", SUSPENDED)
    had, before = list(old.get(FIELD) or ()), list(old.get(BEFORE) or ())
    found.pop(FIELD, None)
    found.pop(BEFORE, None)
    made = had if had and asked(found) == asked(old) else choose(host, found, id, had)
    before += [one for one in had if one["name"] not in [other["name"] for other in made]]
    found.update({FIELD: made} if made else {})
    found.update({BEFORE: before} if before else {})


def arrive(host: LocalHost, want: Fields, id: str) -> None:
    """Choose what a server that comes from another host gets here: other namespaces, which are empty (row A11.5). Hold
    the lock of choices until it is written. Raises ``Conflict``."""
    want.pop(FIELD, None)
    want.pop(BEFORE, None)
    if made := choose(host, want, id):
        want[FIELD] = made


def settle(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    """Before a domain is defined or started: have those that it is to have, empty where they are new, and no others;
    those that it gives up are emptied. Raises ``Conflict``, also where one is gone that the guest may have written to:
    another would be empty, and what is there, nobody's, when it comes back."""
    want = document.want
    if FIELD not in want and BEFORE not in want and not asked(want):
        return
    domain = host.hypervisor.domain(document.id)
    if domain is not None and domain.state in LIVE:
        return  # the guest has them
    _empty(host, _written(want, BEFORE))  # first: without the field nobody would look for them any more
    with host.locks.hold(*CHOICES):
        had = want.get(FIELD) or []
        _check_there(host, document.name, had)
        made = choose(host, want, document.id, had)
        if made != had or BEFORE in want:
            want.pop(FIELD, None)
            want.pop(BEFORE, None)
            want.update({FIELD: made} if made else {})
            placement.write_choice(document, keep)
    if any(not one["clean"] for one in made):
        _empty(host, [one for one in made if not one["clean"]])
        want[FIELD] = [{**one, "clean": True} for one in made]
        keep()


def _check_there(host: LocalHost, server: str, had: list[Fields]) -> None:
    there = {(one.label, one.name) for one in devices(host)}
    if gone := next((one for one in had if one["clean"] and (one["label"], one["name"]) not in there), None):
        raise Conflict(f"hardware.pmem: host {host.name} has no persistent memory {gone['name']} with the label "
                       f"{gone['label']} any more, to which server {server!r} has written. Bring it back (ndctl list, "
                       "and the agent's setting pmem_namespaces); or let the server have another, which is empty: "
                       "migrate it cold, or give it hardware without it and then with it again.", field="hardware.pmem")


def of(host: LocalHost, want: Mapping[str, Any]) -> tuple[GuestPmem, ...]:
    """What its domain has."""
    there = {one.name: one for one in devices(host)} if want.get(FIELD) else {}
    return tuple(guest_device(there[one["name"]]) for one in want.get(FIELD) or () if one["name"] in there)


def _written(want: Mapping[str, Any], field: str) -> list[Fields]:
    """Those that its guest may have written to. Others have never been emptied, and have what was there before."""
    return [one for one in want.get(field) or () if one["clean"]]


def _empty(host: LocalHost, given: list[Fields]) -> None:
    """Those that are gone are none of ours any more."""
    there = {one.name: one.path for one in devices(host)} if given else {}
    for one in given:
        if one["name"] in there:
            host.hypervisor.empty_pmem(there[one["name"]])


def remove(host: LocalHost, document: Document) -> None:
    """The server goes: what it has written goes, too."""
    _empty(host, _written(document.want, FIELD) + _written(document.want, BEFORE))
