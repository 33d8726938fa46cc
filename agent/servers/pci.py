# SPDX-License-Identifier: GPL-3.0-or-later
"""Which PCI devices of this host a server has.

They are chosen under the lock of choices, and kept in the server's document (``FIELD``: alias by address) before
anything acts on them: no two servers ever get the same. A server that changes holds what its guest still runs with
(``BEFORE``) until its domain is defined anew. A server whose device is gone gets another one at its next start, or an
error that says what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware.pci import PciDevice, allowed, named
from magnetar_agent.locks import CHOICES
from magnetar_agent.servers import placement
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.pci import counts
from magnetar_core.power import LIVE, SUSPENDED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar_agent.documents import Document, Fields
    from magnetar_agent.host import LocalHost

#: What a document has in its ``want``: address to alias; and what its guest had before a change.
FIELD, BEFORE = "pci_devices", "pci_devices_before"


def devices(host: LocalHost) -> list[PciDevice]:
    """Those that servers may have, given away or not."""
    return allowed(host.settings.sysfs, host.settings.pci_device_spec)


def asked(want: Mapping[str, Any]) -> dict[str, int]:
    """How many devices of which alias a server of these fields is to have."""
    text = (want.get("hardware") or {}).get("pci_alias")
    return counts(text) if text else {}


def held(host: LocalHost, without: str = "") -> set[str]:
    """Addresses that servers of this host have, and those on their way here, but for the server *without*."""
    return {address for want in placement.holders(host, without)
            for name in (FIELD, BEFORE) for address in want.get(name) or ()}


def told(host: LocalHost, whole: bool = False) -> dict[str, dict[str, int]]:
    """``pci_devices`` of ``kinds.Host``: total and free by alias. *whole*: as if no server had any."""
    aliases = host.settings.pci_alias
    if not aliases:
        return {}
    there, taken = devices(host), set() if whole else held(host)
    found = {}
    for alias in dict.fromkeys(one["name"] for one in aliases):
        suited = [one for one in there if named(one, alias, aliases)]
        found[alias] = {"total": len(suited), "free": sum(one.address not in taken for one in suited)}
    return found


def choose(host: LocalHost, want: Mapping[str, Any], id: str, had: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the server *id* with these fields gets: of what it *had*, what is there still, and then the first free
    ones. Hold the lock of choices until it is written. Raises ``Conflict``."""
    if not asked(want):
        return {}
    taken, aliases, found = held(host, id), host.settings.pci_alias, {}
    free = [one for one in devices(host) if one.address not in taken]
    # What fewer aliases name is left for those that need it.
    for alias, count in sorted(asked(want).items(), key=lambda one: sum(named(d, one[0], aliases) for d in free)):
        suited = [one for one in free if named(one, alias, aliases) and one.address not in found
                  and _near(one, want)]
        suited.sort(key=lambda one: ((had or {}).get(one.address) != alias, one.address))
        if len(suited) < count:
            raise Conflict(
                f"hardware.pci_alias: the server needs {count} PCI devices of alias {alias}, and host {host.name} has "
                f"{len(suited)} free{_where(want)}. Choose another host, free some there, or look at its agent's "
                "settings pci_device_spec and pci_alias.", field="hardware.pci_alias")
        found.update(dict.fromkeys([one.address for one in suited[:count]], alias))
    return found


def _cells(want: Mapping[str, Any]) -> set[int]:
    return {one["host"] for one in (want.get("placement") or {}).get("cells", ())}


def _near(device: PciDevice, want: Mapping[str, Any]) -> bool:
    """A guest with NUMA cells gets devices of its cells, or those of which the host tells none (Nova's policy
    legacy)."""
    cells = _cells(want)
    return not cells or device.numa_node < 0 or device.numa_node in cells


def _where(want: Mapping[str, Any]) -> str:
    cells = _cells(want)
    return f" at the server's NUMA cells ({', '.join(map(str, sorted(cells)))} of the host)" if cells else ""


def complete(host: LocalHost, found: Fields, old: Fields, id: str) -> None:
    """Set ``FIELD`` of *found*, whose hardware and placement are known. *old*: what was wanted before. Raises
    ``Conflict``, and ``InvalidField`` for a server that is to be suspended with devices."""
    had, before = old.get(FIELD) or {}, old.get(BEFORE) or {}
    found.pop(FIELD, None)
    found.pop(BEFORE, None)
    if asked(found) and found.get("power") == SUSPENDED:
        raise InvalidField("power", "cannot be suspended while the server has PCI devices, whose state cannot be "
                                    "saved; stop it, or pause it", SUSPENDED)
    same = asked(found) == asked(old) if old else False
    made = dict(had) if same and had else choose(host, found, id, had)
    found.update({FIELD: made} if made else {})
    before = {**before, **({} if same else had)}
    found.update({BEFORE: before} if before else {})


def arrive(host: LocalHost, want: Fields, id: str) -> None:
    """Choose what a server that comes from another host gets here. Hold the lock of choices until it is written.
    Raises ``Conflict``."""
    want.pop(FIELD, None)
    want.pop(BEFORE, None)
    if made := choose(host, want, id):
        want[FIELD] = made


def check_coming(host: LocalHost, told: Fields, live: bool) -> None:
    """Raise ``Conflict`` where a server cannot get what its manifest asks for, or is to move while it runs."""
    if asked(told) and live:
        raise Conflict("The server has PCI devices (hardware.pci_alias), which cannot move while the guest runs. "
                       "Migrate it cold.")
    choose(host, {"hardware": told.get("hardware")}, told["server"])


def settle(host: LocalHost, document: Document) -> bool:
    """Before a domain is defined or started: give up what the server had before a change, and choose anew where a
    device is gone. Returns whether the document has changed. Raises ``Conflict``."""
    want = document.want
    if FIELD not in want and BEFORE not in want and not asked(want):
        return False
    domain = host.hypervisor.domain(document.id)
    if domain is not None and domain.state in LIVE:
        return False  # the guest has them
    with host.locks.hold(*CHOICES):
        had = want.get(FIELD) or {}
        made = choose(host, want, document.id, had)
        if made == had and BEFORE not in want:
            return False
        want.pop(FIELD, None)
        want.pop(BEFORE, None)
        want.update({FIELD: made} if made else {})
        host.documents.write(document)
        return True


def of(host: LocalHost, want: Mapping[str, Any]) -> tuple[PciDevice, ...]:
    """The devices of the domain of a server with these fields, by address. One that is gone stays: libvirt says so."""
    had = want.get(FIELD) or {}
    there = {one.address: one for one in devices(host)} if had else {}
    return tuple(there.get(one) or PciDevice(one, "", "", -1) for one in sorted(had))
