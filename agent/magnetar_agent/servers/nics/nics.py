# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs of a running server: unplugged and plugged while it runs.

Nobody can save the state of those that are devices of the host. So a guest that is suspended is without them, and gets
them again when it runs: ``PULLED`` of its document's state says so from before the first is unplugged until all are
plugged in again.
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


#: Whether the guest is without its NICs that are devices of the host.
PULLED = "nics_pulled"


def pull(task: Task) -> None:
    """Before a guest is suspended: unplug its NICs that are devices of the host. Raises ``Conflict`` where it keeps
    one; it goes on with all of them then, and nothing else is wanted of it."""
    host, id = task.host, task.document.id
    seen, domain = host.hypervisor.running(id), host.hypervisor.domain(id)
    pulled = [nic for nic in seen.nics if nic.device] if seen else []
    if not (seen and domain and pulled):
        return
    task.document.state[PULLED] = True
    task.keep()
    try:
        if domain.state == PAUSED:
            raise Conflict(f"Server {task.document.name!r} is paused, and has NICs that are devices of its host "
                           f"({', '.join(nic.mac for nic in pulled)}), of which its guest has to let go before it is "
                           "suspended. Unpause it first.")
        for nic in pulled:
            attaching.unplug(host, id, nic, f"NIC {nic.mac}", task.operation)
    except Exception:
        for nic in _missing(task):  # also what an agent had unplugged that died
            with suppress(MagnetarError):  # the next change brings it
                attaching.plug(host, id, nic)
        if not _missing(task):
            del task.document.state[PULLED]
        task.document.want["power"] = domain.state
        task.document.state.pop("unfinished", None)
        task.keep()
        raise


def check_live(document: Document, power: str) -> None:
    """Raises ``Conflict`` where the guest of a server cannot let go of them, as it has to before it goes live."""
    if power == PAUSED and pci.functions(document.want):
        raise Conflict(f"Server {document.name!r} is paused, and has NICs that are devices of its host, of which its "
                       "guest has to let go before it goes live. Unpause it first, or ask for type cold.")


def leave(task: Task) -> None:
    """Before a guest goes to another host: as ``pull``, and OVN finds no port of it here any more."""
    pull(task)
    function_settings.let_go(task.host, task.document)


def put_back(task: Task) -> None:
    """A guest that was not suspended after all has its NICs again; where that fails too, with the next change."""
    if PULLED in task.document.state:
        with suppress(MagnetarError):
            plug(task, task.document.want["networks"])


def forget_pulled(task: Task) -> None:
    """Before a start: a guest whose saved memory is gone boots with all its NICs."""
    if PULLED in task.document.state:
        domain = task.host.hypervisor.domain(task.document.id)
        if domain is None or domain.state != SUSPENDED:
            del task.document.state[PULLED]
            task.keep()


def plug(task: Task, networks: list[Fields]) -> None:
    """Plug and unplug NICs until the guest has those of the document. If it does not release one, the document gets its
    former *networks* back."""
    host, id = task.host, task.document.id
    seen = host.hypervisor.running(id)
    if seen is None:
        return  # it has stopped; its next start brings them
    wanted = {nic.mac: nic for nic in spec.nics(host, task.document)}
    try:
        for nic in seen.nics:
            if nic.mac not in wanted or not _alike(nic, wanted[nic.mac]):
                attaching.unplug(host, id, nic, f"NIC {nic.mac}", task.operation)
        function_settings.apply(host, task.document)
        for nic in wanted.values():
            attaching.plug(host, id, nic)
    except Exception:
        there = _back(task, seen)
        task.document.want["networks"] = networks
        pci.follow_nics(task.document.want, failed=True, there=there)
        task.document.state.pop("unfinished", None)
        task.keep()
        function_settings.give_back(host)
        raise
    if task.document.state.pop(PULLED, None):
        task.keep()
    if pci.BEFORE in task.document.want:
        pci.follow_nics(task.document.want, failed=False)
        task.keep()
        function_settings.give_back(host)


def _missing(task: Task) -> list[Nic]:
    """NICs of the document that are devices of the host, and that its guest, if it runs, is without."""
    now = task.host.hypervisor.running(task.document.id)
    there = {nic.mac for nic in now.nics} if now else set()
    return [nic for nic in spec.nics(task.host, task.document) if nic.device and nic.mac not in there] if now else []


def _back(task: Task, before: Domain) -> set[str]:
    """Plug again what was unplugged. Returns the addresses of devices that are NICs of the guest."""
    now = task.host.hypervisor.running(task.document.id)
    there = {nic.mac for nic in now.nics} if now else set()
    for nic in before.nics:
        if now and nic.mac not in there:
            with suppress(MagnetarError):  # its next start brings it
                attaching.plug(task.host, task.document.id, nic)
    return {nic.device for nic in now.nics if nic.device} if now else set()


def _alike(one: Nic, other: Nic) -> bool:
    """Whether they differ at most in their tags, which the guest does not see."""
    return replace(one, tag=None) == replace(other, tag=None)
