# SPDX-License-Identifier: GPL-3.0-or-later
"""The persistent memory of a server: namespaces of this host.

They are chosen under the lock ``CHOICES``, and kept in the server's document (``FIELD``) in the guest's order. A
namespace that a server gets is emptied before its guest starts, and is noted as ``clean`` from then on; a namespace
that the server releases is emptied, too. So no server ever reads the data of another one, even after a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware.pmem import GuestPmem, Namespace, guest_device, present_namespaces
from magnetar_agent.host.provider_config import make_inventory
from magnetar_agent.reconcile.locks import CHOICES
from magnetar_agent.servers.hardware import placement
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.pmem import parse_pmem_labels, pmem_resource_class
from magnetar_core.power import LIVE, SUSPENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields

#: Keys of ``want``: a list of {label, name, clean}, and the same of the guest before a change.
FIELD, BEFORE = "pmem_namespaces", "pmem_namespaces_before"


def requested_pmem_labels(want: Mapping[str, Any]) -> list[str]:
    """Return the labels of the persistent memory (PMEM) namespaces that a server with the desired fields *want*
    requests."""
    return parse_pmem_labels((want.get("hardware") or {}).get("pmem") or "")


def host_pmem_namespaces(host: LocalHost) -> list[Namespace]:
    """Return the PMEM namespaces of this host that servers may use, including those in use."""
    return present_namespaces(host.settings.sysfs, host.settings.pmem_namespaces)


def held_pmem_names(host: LocalHost, excluded_server: str = "") -> set[str]:
    """Return the names of PMEM namespaces assigned to servers on this host or to servers that are migrating to it. The
    server with the uuid *excluded_server* is ignored.
    """
    return {namespace["name"] for want in placement.fields_of_holders(host, excluded_server)
            for field in (FIELD, BEFORE) for namespace in want.get(field) or ()}


def pmem_facts(host: LocalHost) -> dict[str, dict[str, Any]]:
    """Return the host's PMEM namespaces as ``{label: {"total", "free", "sizes_mb"}}``: the number of all namespaces
    with the label, the number of free ones, and the sizes of all of them in MiB."""
    by_label: dict[str, dict[str, Any]] = {}
    held_names = held_pmem_names(host) if host.settings.pmem_namespaces else set()
    for namespace in host_pmem_namespaces(host):
        mine = by_label.setdefault(namespace.label, {"total": 0, "free": 0, "sizes_mb": []})
        mine["total"] += 1
        mine["free"] += namespace.name not in held_names
        mine["sizes_mb"].append(namespace.size_kib // 1024)
    return by_label


def pmem_inventories(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Convert *facts*, the result of ``pmem_facts``, to Placement inventories by resource class."""
    return {pmem_resource_class(label): make_inventory(counts["total"], counts["total"]) for label,
            counts in facts.items()}


def check_pmem_labels(host: LocalHost, want: Mapping[str, Any]) -> None:
    """Raise ``InvalidField`` if *want* requests more PMEM namespaces with a label than the host has, including those in
    use."""
    requested, present_labels = requested_pmem_labels(want), [namespace.label
                                                              for namespace in host_pmem_namespaces(host)]
    for label in dict.fromkeys(requested):
        if requested.count(label) > present_labels.count(label):
            raise InvalidField(
                "hardware.pmem",
                f"cannot be had on host {host.name}, which has {present_labels.count(label)} namespaces of "
                f"persistent memory with the label {label}, and the server needs {requested.count(label)}. Its agent's "
                "setting pmem_namespaces says which there are; choose another host", ",".join(requested))


def choose_pmem(host: LocalHost, want: Mapping[str, Any], id: str,
                current_namespaces: list[Fields] | None = None) -> list[Fields]:
    """Choose one PMEM namespace for each label that *want*, the desired fields of the server *id*, contains. Return
    each as ``{"label", "name", "clean"}`` (``clean``: whether it was erased for this server). Namespaces in
    *current_namespaces* are used again if they still exist; for the remaining labels, free namespaces are chosen.
    Raises ``Conflict`` if too few are free. The caller must hold the lock ``CHOICES``, which allows one choice at a
    time on the host, until the choice is stored in the server's JSON document."""
    if not (requested := requested_pmem_labels(want)):
        return []
    present, taken = host_pmem_namespaces(host), held_pmem_names(host, id)
    present_keys, former, chosen = {(namespace.label, namespace.name)
                                    for namespace in present}, list(current_namespaces or ()), list[dict[str, Any]]()
    for label in requested:
        mine = next((namespace for namespace in former if namespace["label"] == label
                     and (label, namespace["name"]) in present_keys), None)
        if mine is not None:
            former.remove(mine)
        else:
            free = next((namespace.name for namespace in present if namespace.label == label
                         and namespace.name not in taken
                         and namespace.name not in [other["name"] for other in (*chosen, *(current_namespaces or ()))]),
                         None)
            if free is None:
                raise Conflict(f"hardware.pmem: host {host.name} has no free namespace of persistent memory with the "
                               f"label {label} left. Choose another host, or free one there.", field="hardware.pmem")
            mine = {"label": label, "name": free, "clean": False}
        chosen.append(mine)
    return chosen


def complete_pmem(host: LocalHost, desired: Fields, old: Fields, id: str) -> None:
    """Choose PMEM namespaces for the changed server *id* and store them in its new desired fields *desired*. *old*: the
    previous desired fields, whose namespaces are used again if possible. Raises ``Conflict`` if too few are free, and
    ``InvalidField`` if *desired* would suspend the server, which PMEM does not allow."""
    if requested_pmem_labels(desired) and desired.get("power") == SUSPENDED:
        raise InvalidField("power", "cannot be suspended while the server has persistent memory, which would be saved "
                                    "with its RAM, and written over at the next start; stop it, or pause it", SUSPENDED)
    had, former = list(old.get(FIELD) or ()), list(old.get(BEFORE) or ())
    desired.pop(FIELD, None)
    desired.pop(BEFORE, None)
    made = had if had and requested_pmem_labels(desired) == requested_pmem_labels(old) else choose_pmem(host, desired,
                                                                                                        id, had)
    former += [namespace for namespace in had if namespace["name"] not in [other["name"] for other in made]]
    desired.update({FIELD: made} if made else {})
    desired.update({BEFORE: former} if former else {})


def choose_target_pmem(host: LocalHost, want: Fields, id: str) -> None:
    """Replace the PMEM namespaces in *want* by free ones of this host, for the server *id* that migrates to it. Raises
    ``Conflict`` if too few are free. The caller must hold the lock ``CHOICES``, which allows one choice at a time on
    the host, until the choice is stored in the server's JSON document."""
    want.pop(FIELD, None)
    want.pop(BEFORE, None)
    if made := choose_pmem(host, want, id):
        want[FIELD] = made


def prepare_pmem(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    """Prepare the server's PMEM namespaces before its domain is defined or started: erase and release namespaces that
    the server no longer uses, replace those that no longer exist, and erase newly assigned ones. *keep*: writes the
    document to disk. Raises ``Conflict`` if too few are free, or if a namespace that may contain data of the guest is
    missing."""
    want = document.want
    if FIELD not in want and BEFORE not in want and not requested_pmem_labels(want):
        return
    domain = host.hypervisor.domain(document.id)
    if domain is not None and domain.state in LIVE:
        return  # the guest has them
    _empty(host, _written(want, BEFORE))  # first: without the field nothing would look for them
    with host.locks.hold(*CHOICES):
        had = want.get(FIELD) or []
        _check_present(host, document.name, had)
        made = choose_pmem(host, want, document.id, had)
        if made != had or BEFORE in want:
            want.pop(FIELD, None)
            want.pop(BEFORE, None)
            want.update({FIELD: made} if made else {})
            placement.write_choice(document, keep)
    if any(not namespace["clean"] for namespace in made):
        _empty(host, [namespace for namespace in made if not namespace["clean"]])
        want[FIELD] = [{**namespace, "clean": True} for namespace in made]
        keep()


def _check_present(host: LocalHost, server: str, current_namespaces: list[Fields]) -> None:
    present_keys = {(namespace.label, namespace.name) for namespace in host_pmem_namespaces(host)}
    if lost := next((namespace for namespace in current_namespaces if namespace["clean"]
                     and (namespace["label"], namespace["name"]) not in present_keys), None):
        raise Conflict(f"hardware.pmem: host {host.name} has no persistent memory {lost['name']} with the label "
                       f"{lost['label']} any more, to which server {server!r} has written. Bring it back (ndctl list, "
                       "and the agent's setting pmem_namespaces); or let the server have another, which is empty: "
                       "migrate it cold, or give it hardware without it and then with it again.", field="hardware.pmem")


def guest_pmem(host: LocalHost, want: Mapping[str, Any]) -> tuple[GuestPmem, ...]:
    """Return the PMEM devices for the libvirt domain of a server with the desired fields *want*."""
    by_name = {namespace.name: namespace for namespace in host_pmem_namespaces(host)} if want.get(FIELD) else {}
    return tuple(guest_device(by_name[namespace["name"]]) for namespace in want.get(FIELD) or ()
                 if namespace["name"] in by_name)


def _written(want: Mapping[str, Any], field: str) -> list[Fields]:
    """Return the namespaces in *want[field]*, the server's current or previous ones, that were erased for this server:
    its guest may have written to them. The other namespaces still contain data of earlier users."""
    return [namespace for namespace in want.get(field) or () if namespace["clean"]]


def _empty(host: LocalHost, to_empty: list[Fields]) -> None:
    """Erase the PMEM namespaces *to_empty*. Namespaces that the host no longer has are ignored."""
    paths = {namespace.name: namespace.path for namespace in host_pmem_namespaces(host)} if to_empty else {}
    for namespace in to_empty:
        if namespace["name"] in paths:
            host.hypervisor.empty_pmem(paths[namespace["name"]])


def release_pmem(host: LocalHost, document: Document) -> None:
    """Erase the PMEM namespaces of a server that is being deleted."""
    _empty(host, _written(document.want, FIELD) + _written(document.want, BEFORE))
