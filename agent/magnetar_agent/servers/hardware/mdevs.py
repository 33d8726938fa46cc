# SPDX-License-Identifier: GPL-3.0-or-later
"""The virtual GPU of a server: a part (mdev) of a device of this host.

The device is chosen under the lock ``CHOICES`` and kept in the server's document (``FIELD``). The agent creates the
part before the guest starts, since the kernel forgets parts when the host boots, and removes it with the server, or
when the server is off and no longer requests one.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware.mdev import Mdev, MdevParent, mdev_parents
from magnetar_agent.reconcile.locks import CHOICES
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.pci import VGPU_CLASS
from magnetar_core.power import LIVE, SUSPENDED

from . import placement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields

#: Keys of ``want``: {uuid, parent, type}, and the same of the guest before a change.
FIELD, BEFORE = "mdev", "mdev_before"


def requests_vgpu(want: Mapping[str, Any]) -> bool:
    """Return whether a server with the desired fields *want* requests a virtual GPU."""
    return bool((want.get("hardware") or {}).get("vgpus"))


def divisible_devices(host: LocalHost) -> list[MdevParent]:
    """Return the PCI devices of the host that can be divided into mediated devices (vGPUs)."""
    return mdev_parents(host.settings.sysfs, host.settings.enabled_mdev_types)


def _taken(host: LocalHost, parent: MdevParent, excluded_server: str = "") -> int:
    """Return the number of mediated devices of the PCI device *parent* that servers or other programs use. The device
    of the server *excluded_server* (a uuid) is not counted."""
    part_ids = {part["uuid"] for want in placement.fields_of_holders(host, excluded_server) for name in (FIELD, BEFORE)
                if (part := want.get(name)) and part["parent"] == parent.address}
    return len(part_ids | parent.made - {_uuid(excluded_server)})


def _uuid(server: str) -> str:
    """Return the uuid of a server's mediated device, which is computed from the uuid of the *server*."""
    return str(uuid.uuid5(uuid.UUID(server), "mdev")) if server else ""


def mdev_facts(host: LocalHost, mdev_devices: Sequence[MdevParent]) -> dict[str, Any]:
    """Return ``{"mdevs": [{parent, type, total, free, …}, …]}`` for *mdev_devices*, the result of
    ``divisible_devices``: ``total`` and ``free`` are the numbers of all and of free mediated devices. The agent reports
    this as a field of the host."""
    return {"mdevs": [{"parent": device.address, "type": device.type, "numa_node": device.node, "total": device.total,
                       "free": max(0, device.total - _taken(host, device)), "provider": _provider(device.address),
                       **({"traits": list(device.traits)} if device.traits else {})} for device in mdev_devices]}


def _provider(address: str) -> str:
    """Return the name of the Placement resource provider for the PCI device at *address*: libvirt's name of the device,
    as in Nova."""
    return f"pci_{re.sub('[:.]', '_', address)}"


def mdev_providers(host: LocalHost, mdev_devices: Sequence[MdevParent],
                   above: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return a Placement resource provider for each of *mdev_devices*, with the inventory of its vGPUs and the servers
    that use them. *above*: ``{NUMA cell: name of its resource provider}``, the parent providers."""
    by_address: dict[str, dict[str, Any]] = {}
    for device in mdev_devices:
        inventory = {"total": device.total, "reserved": 0, "max_unit": device.total}
        by_address[device.address] = {"name": _provider(device.address), "parent": above.get(device.node, ""),
                                      "inventories": {VGPU_CLASS: inventory}, "traits": list(device.traits), "held": {}}
    for id, want in placement.fields_by_server(host) if by_address else ():
        for parent in {want[name]["parent"] for name in (FIELD, BEFORE) if want.get(name)} & by_address.keys():
            by_address[parent]["held"][id] = {VGPU_CLASS: 1}
    return list(by_address.values())


def mdev_totals(host: LocalHost) -> dict[str, Any]:
    """Return the result of ``mdev_facts`` for this host with all mediated devices counted as free, to check whether the
    host can provide a vGPU at all."""
    return {"mdevs": [{**mdev, "free": mdev["total"]} for mdev in mdev_facts(host, divisible_devices(host))["mdevs"]]}


def choose_mdev(host: LocalHost, want: Mapping[str, Any], id: str,
                current_device: Mapping[str, str] | None = None) -> dict[str,
                                                                         str]:
    """Return the mediated device ``{uuid, parent, type}`` for the server *id* with the desired fields *want*; empty if
    *want* requests no vGPU. The parent of *current_device* is preferred, then a parent on one of the server's NUMA
    cells. Raises ``Conflict`` if no vGPU is free. The caller must hold the lock ``CHOICES`` until the choice is stored
    in the server's JSON document. The lock allows one choice at a time on the host."""
    if not requests_vgpu(want):
        return {}
    near = placement.on_cells(want)
    trait = want["hardware"].get("vgpu_trait", "")
    free = [device for device in divisible_devices(host) if _taken(host, device, id) < device.total
            and (not trait or trait in device.traits)]
    if not free:
        with_trait = f" of a device with trait {trait}" if trait else ""
        raise Conflict(
            f"hardware.vgpus: host {host.name} has no virtual GPU{with_trait} left. Choose another host, free one "
                       "there, or look at its agent's setting enabled_mdev_types.", field="hardware.vgpus")
    best = min(free, key=lambda device: ((current_device or {}).get("parent") != device.address,
                                         device.node not in near,
                                         device.address))
    return {"uuid": _uuid(id), "parent": best.address, "type": best.type}


def complete_mdev(host: LocalHost, desired: Fields, old: Fields, id: str) -> None:
    """Choose the vGPU for the changed server *id* and store it in its new fields *desired*, in which hardware and
    placement are already set. *old*: the fields before the change. Raises ``Conflict`` if no vGPU is free, and
    ``InvalidField`` if *desired* would suspend the server, which a vGPU does not allow."""
    if requests_vgpu(desired) and desired.get("power") == SUSPENDED:
        raise InvalidField("power", "cannot be suspended while the server has a virtual GPU, whose state cannot be "
                                    "saved; stop it, or pause it", SUSPENDED)
    had, former = old.get(FIELD) or {}, old.get(BEFORE) or {}
    desired.pop(FIELD, None)
    desired.pop(BEFORE, None)
    same = (desired.get("hardware") or {}).get("vgpu_trait") == (old.get("hardware") or {}).get("vgpu_trait")
    made = had if had and requests_vgpu(desired) and same else choose_mdev(host, desired, id, had)
    desired.update({FIELD: made} if made else {})
    former = {} if made else former or had
    desired.update({BEFORE: former} if former else {})


def choose_target_mdev(host: LocalHost, want: Fields, id: str) -> None:
    """Replace the vGPU in *want* by a free vGPU of this host, to which the server *id* migrates. Raises ``Conflict`` if
    no vGPU is free. The caller must hold the lock ``CHOICES`` until the choice is stored in the server's JSON document.
    The lock allows one choice at a time on the host."""
    want.pop(FIELD, None)
    want.pop(BEFORE, None)
    if made := choose_mdev(host, want, id):
        want[FIELD] = made


def prepare_mdev(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    """Create the server's mediated device before its domain is defined or started, and remove the device that the
    server had before the last change. If the parent PCI device is gone or has no free vGPU, another parent is chosen.
    Do nothing while the guest runs. *keep*: writes the document to disk. Raises ``Conflict`` if no vGPU is free."""
    want = document.want
    if FIELD not in want and BEFORE not in want and not requests_vgpu(want):
        return
    domain = host.hypervisor.domain(document.id)
    if domain is not None and domain.state in LIVE:
        return  # the guest has it
    if not requests_vgpu(want):  # Remove the part first: without the fields nothing would look for it.
        _replace_mdev(host, document.id, None)
    with host.locks.hold(*CHOICES):
        had = want.get(FIELD) or {}
        made = choose_mdev(host, want, document.id, had)
        if made != had or BEFORE in want:
            want.pop(FIELD, None)
            want.pop(BEFORE, None)
            want.update({FIELD: made} if made else {})
            placement.write_choice(document, keep)
    if made:
        _replace_mdev(host, document.id, Mdev(**made))


def _replace_mdev(host: LocalHost, id: str, desired: Mdev | None) -> None:
    existing = next((mdev for mdev in host.hypervisor.mdevs() if mdev.uuid == _uuid(id)), None)
    if existing == desired:
        return
    if existing is not None:
        host.hypervisor.remove_mdev(existing.uuid)
    if desired is not None:
        host.hypervisor.make_mdev(desired)


def remove_server_mdev(host: LocalHost, document: Document) -> None:
    """Remove the mediated device of a server that is being deleted."""
    if FIELD in document.want or BEFORE in document.want:
        _replace_mdev(host, document.id, None)
