# SPDX-License-Identifier: GPL-3.0-or-later
"""The virtual GPU of a server: a part of a device of this host.

Which device it is a part of is chosen under the lock of choices, and kept in the server's document (``FIELD``). The
part itself is made before a guest starts, since the kernel forgets it with each boot of the host. It is removed with
the server, or when the server is off and is to have none any more.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware.mdev import Mdev, MdevParent, parents
from magnetar_agent.reconcile.locks import CHOICES
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.pci import VGPU_CLASS
from magnetar_core.power import LIVE, SUSPENDED

from . import placement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields

#: What a document has in its ``want``: {uuid, parent, type}; and what its guest had before a change.
FIELD, BEFORE = "mdev", "mdev_before"


def asked(want: Mapping[str, Any]) -> bool:
    """Whether a server of these fields is to have one."""
    return bool((want.get("hardware") or {}).get("vgpus"))


def devices(host: LocalHost) -> list[MdevParent]:
    """Those of the host that can be divided."""
    return parents(host.settings.sysfs, host.settings.enabled_mdev_types)


def _taken(host: LocalHost, parent: MdevParent, without: str = "") -> int:
    """How many parts servers have, or others have made."""
    held = {one["uuid"] for want in placement.holders(host, without) for name in (FIELD, BEFORE)
            if (one := want.get(name)) and one["parent"] == parent.address}
    return len(held | parent.made - {_uuid(without)})


def _uuid(server: str) -> str:
    """That of a server's part, which needs no note."""
    return str(uuid.uuid5(uuid.UUID(server), "mdev")) if server else ""


def told(host: LocalHost, there: Sequence[MdevParent]) -> dict[str, Any]:
    """``mdevs`` of ``kinds.Host``. *there*: ``devices``."""
    return {"mdevs": [{"parent": one.address, "type": one.type, "numa_node": one.node, "total": one.total,
                       "free": max(0, one.total - _taken(host, one)), "provider": _provider(one.address),
                       **({"traits": list(one.traits)} if one.traits else {})} for one in there]}


def _provider(address: str) -> str:
    """What a device that can be divided is called among ``providers``: libvirt's name of it, as in Nova."""
    return f"pci_{re.sub('[:.]', '_', address)}"


def providers(host: LocalHost, there: Sequence[MdevParent], above: Mapping[int, str]) -> list[dict[str, Any]]:
    """The devices *there* as ``providers`` of ``kinds.Host`` (row XDEV-03). *above*: the provider of each NUMA cell."""
    found: dict[str, dict[str, Any]] = {}
    for one in there:
        inventory = {"total": one.total, "reserved": 0, "max_unit": one.total}
        found[one.address] = {"name": _provider(one.address), "parent": above.get(one.node, ""),
                              "inventories": {VGPU_CLASS: inventory}, "traits": list(one.traits), "held": {}}
    for id, want in placement.wants(host) if found else ():
        for parent in {want[name]["parent"] for name in (FIELD, BEFORE) if want.get(name)} & found.keys():
            found[parent]["held"][id] = {VGPU_CLASS: 1}
    return list(found.values())


def whole(host: LocalHost) -> dict[str, Any]:
    """The same as if no server had any."""
    return {"mdevs": [{**one, "free": one["total"]} for one in told(host, devices(host))["mdevs"]]}


def choose(host: LocalHost, want: Mapping[str, Any], id: str, had: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the server *id* with these fields gets: a part of the device that it *had* one of, or of the first with a
    free one, near its NUMA cells if there is one. Hold the lock of choices until it is written. Raises ``Conflict``."""
    if not asked(want):
        return {}
    near = placement.on_cells(want)
    trait = want["hardware"].get("vgpu_trait", "")
    free = [one for one in devices(host) if _taken(host, one, id) < one.total and (not trait or trait in one.traits)]
    if not free:
        what = f" of a device with trait {trait}" if trait else ""
        raise Conflict(f"hardware.vgpus: host {host.name} has no virtual GPU{what} left. Choose another host, free one "
                       "there, or look at its agent's setting enabled_mdev_types.", field="hardware.vgpus")
    best = min(free, key=lambda one: ((had or {}).get("parent") != one.address, one.node not in near, one.address))
    return {"uuid": _uuid(id), "parent": best.address, "type": best.type}


def complete(host: LocalHost, found: Fields, old: Fields, id: str) -> None:
    """Set ``FIELD`` of *found*, whose hardware and placement are known. *old*: what was wanted before. Raises
    ``Conflict``, and ``InvalidField`` for a server that is to be suspended with one."""
    if asked(found) and found.get("power") == SUSPENDED:
        raise InvalidField("power", "cannot be suspended while the server has a virtual GPU, whose state cannot be "
                                    "saved; stop it, or pause it", SUSPENDED)
    had, before = old.get(FIELD) or {}, old.get(BEFORE) or {}
    found.pop(FIELD, None)
    found.pop(BEFORE, None)
    same = (found.get("hardware") or {}).get("vgpu_trait") == (old.get("hardware") or {}).get("vgpu_trait")
    made = had if had and asked(found) and same else choose(host, found, id, had)
    found.update({FIELD: made} if made else {})
    before = {} if made else before or had
    found.update({BEFORE: before} if before else {})


def arrive(host: LocalHost, want: Fields, id: str) -> None:
    """Choose what a server that comes from another host gets here. Hold the lock of choices until it is written.
    Raises ``Conflict``."""
    want.pop(FIELD, None)
    want.pop(BEFORE, None)
    if made := choose(host, want, id):
        want[FIELD] = made


def settle(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    """Before a domain is defined or started: have the part that it is to have, and no other. Where its device is gone,
    it gets one of another. *keep* writes the document. Raises ``Conflict``."""
    want = document.want
    if FIELD not in want and BEFORE not in want and not asked(want):
        return
    domain = host.hypervisor.domain(document.id)
    if domain is not None and domain.state in LIVE:
        return  # the guest has it
    if not asked(want):  # its part goes first: without the fields nothing would look for it any more
        _have(host, document.id, None)
    with host.locks.hold(*CHOICES):
        had = want.get(FIELD) or {}
        made = choose(host, want, document.id, had)
        if made != had or BEFORE in want:
            want.pop(FIELD, None)
            want.pop(BEFORE, None)
            want.update({FIELD: made} if made else {})
            placement.write_choice(document, keep)
    if made:
        _have(host, document.id, Mdev(**made))


def _have(host: LocalHost, id: str, wanted: Mdev | None) -> None:
    there = next((one for one in host.hypervisor.mdevs() if one.uuid == _uuid(id)), None)
    if there == wanted:
        return
    if there is not None:
        host.hypervisor.remove_mdev(there.uuid)
    if wanted is not None:
        host.hypervisor.make_mdev(wanted)


def remove(host: LocalHost, document: Document) -> None:
    """The server goes: so does its part."""
    if FIELD in document.want or BEFORE in document.want:
        _have(host, document.id, None)
