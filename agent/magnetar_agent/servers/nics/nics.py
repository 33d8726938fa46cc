# SPDX-License-Identifier: GPL-3.0-or-later
"""Hot-plug of NICs: plugging and unplugging while the server runs.

The state of NICs that are devices of the host cannot be saved. So they are unplugged before a guest is suspended, and
plugged again when it runs. The state field ``PULLED`` is in the document from before the first NIC is unplugged until
all are plugged in again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar_agent.servers import spec
from magnetar_agent.servers.hardware import pci
from magnetar_agent.volumes import attaching
from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.power import PAUSED, SUSPENDED

from . import function_settings

if TYPE_CHECKING:
    from magnetar_agent.host.hypervisor import Domain
    from magnetar_agent.host.networks import Nic
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task


#: Key of the state: the guest is without its NICs that are devices of the host.
PULLED = "nics_pulled"


def unplug_device_nics(task: Task) -> None:
    """Unplug the NICs that are PCI devices of the host, before the guest is suspended or migrated. If the guest does
    not release a NIC, plug in all these NICs again and raise ``Conflict``. In this case, also set the desired power
    state in the document to the guest's present state."""
    host, id = task.host, task.document.id
    running, domain = host.hypervisor.running(id), host.hypervisor.domain(id)
    pulled = [nic for nic in running.nics if nic.device] if running else []
    if not (running and domain and pulled):
        return
    task.document.state[PULLED] = True
    task.keep()
    try:
        if domain.state == PAUSED:
            raise Conflict(f"Server {task.document.name!r} is paused, and has NICs that are devices of its host "
                           f"({', '.join(nic.mac for nic in pulled)}), of which its guest has to let go before it is "
                           "suspended. Unpause it first.")
        for nic in pulled:
            attaching.unplug_device(host, id, nic, f"NIC {nic.mac}", task.operation)
    except Exception:
        for nic in _missing(task):  # also NICs that a killed agent had unplugged
            with suppress(MagnetarError):  # the next change plugs it
                attaching.plug_device(host, id, nic)
        if not _missing(task):
            del task.document.state[PULLED]
        task.document.want["power"] = domain.state
        task.document.state.pop("unfinished", None)
        task.keep()
        raise


def check_nics_live(document: Document, power: str) -> None:
    """Raise ``Conflict`` if the guest is paused and has NICs that are PCI devices of the host. A live migration has to
    unplug these NICs, and a paused guest cannot release them. *power*: the guest's power state."""
    if power == PAUSED and pci.device_nics(document.want):
        raise Conflict(f"Server {document.name!r} is paused, and has NICs that are devices of its host, of which its "
                       "guest has to let go before it goes live. Unpause it first, or ask for type cold.")


def release_source_nics(task: Task) -> None:
    """On the source host of a live migration, before the guest is moved: unplug the guest's NICs that are PCI devices
    of this host, and restore the default settings of their virtual functions, which also removes their OVN ports."""
    unplug_device_nics(task)
    function_settings.reset_guest_functions(task.host, task.document)


def restore_nics(task: Task) -> None:
    """Plug in the NICs again that were unplugged to suspend or migrate the guest, after the suspension or migration has
    failed. Errors are ignored: the next change of the server plugs the NICs in."""
    if PULLED in task.document.state:
        with suppress(MagnetarError):
            plug(task, task.document.want["networks"])


def forget_pulled(task: Task) -> None:
    """Before a start, remove the state field ``PULLED``, which means that the running guest's NICs were unplugged: a
    guest that boots has all its NICs. A suspended guest keeps the field, because its NICs are still unplugged after the
    start."""
    if PULLED in task.document.state:
        domain = task.host.hypervisor.domain(task.document.id)
        if domain is None or domain.state != SUSPENDED:
            del task.document.state[PULLED]
            task.keep()


def plug(task: Task, networks: list[Fields]) -> None:
    """Plug and unplug NICs of the running guest until it has the NICs in the server's document. If this fails, restore
    *networks*, the previous NICs, in the document and in the guest."""
    host, id = task.host, task.document.id
    running = host.hypervisor.running(id)
    if running is None:
        return  # it has stopped; its next start brings them
    desired = {nic.mac: nic for nic in spec.domain_nics(host, task.document)}
    try:
        for nic in running.nics:
            if nic.mac not in desired or not _alike(nic, desired[nic.mac]):
                attaching.unplug_device(host, id, nic, f"NIC {nic.mac}", task.operation)
        function_settings.apply_function_settings(host, task.document)
        for nic in desired.values():
            attaching.plug_device(host, id, nic)
    except Exception:
        device_addresses = _replug_nics(task, running)
        task.document.want["networks"] = networks
        pci.follow_nics(task.document.want, failed=True, present=device_addresses)
        task.document.state.pop("unfinished", None)
        task.keep()
        function_settings.reset_free_functions(host)
        raise
    if task.document.state.pop(PULLED, None):
        task.keep()
    if pci.BEFORE in task.document.want:
        pci.follow_nics(task.document.want, failed=False)
        task.keep()
        function_settings.reset_free_functions(host)


def _missing(task: Task) -> list[Nic]:
    """Return the NICs in the server's document that are PCI devices of the host and that the running guest lacks; empty
    if the guest is not running."""
    now = task.host.hypervisor.running(task.document.id)
    plugged_macs = {nic.mac for nic in now.nics} if now else set()
    return [nic for nic in spec.domain_nics(task.host, task.document) if nic.device
            and nic.mac not in plugged_macs] if now else []


def _replug_nics(task: Task, former: Domain) -> set[str]:
    """Plug in the NICs that the running guest lacks but had in *former*, its domain before a failed change. Return the
    PCI addresses of the NICs that are host devices and were in the guest before this call."""
    now = task.host.hypervisor.running(task.document.id)
    plugged_macs = {nic.mac for nic in now.nics} if now else set()
    for nic in former.nics:
        if now and nic.mac not in plugged_macs:
            with suppress(MagnetarError):  # its next start brings it
                attaching.plug_device(task.host, task.document.id, nic)
    return {nic.device for nic in now.nics if nic.device} if now else set()


def _alike(nic: Nic, other: Nic) -> bool:
    """Return whether two NICs are equal except for their tags, which the guest does not see as part of the device."""
    return replace(nic, tag=None) == replace(other, tag=None)
