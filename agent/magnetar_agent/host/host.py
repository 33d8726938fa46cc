# SPDX-License-Identifier: GPL-3.0-or-later
"""What drivers work with. It knows neither drivers nor ``reconcile``: where a driver needs another resource made or
changed, it calls ``ensure`` or ``revise``, which the agent sets."""

from __future__ import annotations

import socket
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from magnetar_agent.link import Links
from magnetar_agent.reconcile.documents import Documents
from magnetar_agent.reconcile.locks import Locks
from magnetar_core.operations import Operations

from .changes import Changes
from .cpu_meter import CpuMeter
from .provider_config import read as read_provider_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.settings import AgentSettings
    from magnetar_core.fields import Kind
    from magnetar_core.operations import Operation
    from magnetar_core.plan import Result

    from .hypervisor import DomainEvent, LocalHypervisor


class EnsureCall(Protocol):
    """``reconcile.ensure`` without any permission, and not as a dry run."""

    def __call__(self, kind: type[Kind], key: str, want: Fields | None, operation: Operation) -> Result: ...


class ReviseCall(Protocol):
    """``reconcile.revise``."""

    def __call__(self, kind: type[Kind], id: str, revised: Callable[[Document], Fields], dry_run: bool,
                 operation: Operation) -> Result: ...


#: Kinds of consoles.
VNC, SERIAL, SPICE = "vnc", "serial", "spice"
CONSOLES = (SERIAL, SPICE, VNC)


class LocalHost:
    """The host that the agent runs on: hypervisor, documents, locks, operations, links and settings."""

    #: Change another resource.
    ensure: EnsureCall
    #: Where guests are answered, for ``kinds.Host``.
    metadata_status: Callable[[], dict[str, Any]]
    #: How guests' ports are filtered, for ``kinds.Host``.
    port_security_status: Callable[[], dict[str, Any]]
    revise: ReviseCall

    def __init__(self, settings: AgentSettings, hypervisor: LocalHypervisor) -> None:
        self.settings, self.hypervisor = settings, hypervisor
        self.name = socket.gethostname()
        self.documents = Documents(settings.state_dir)
        self.operations = Operations(settings.parallel)
        self.meter = CpuMeter()
        self.provider_config = read_provider_config(settings.provider_config_location, self.name)
        self.locks = Locks()
        self.links = Links(settings)
        self.changes = Changes()
        #: How far each migration of a server away from here is: the field ``progress`` of ``kinds.Migration``.
        self.progress: dict[str, dict[str, Any]] = {}
        #: The talk of a migration for which libvirt has keys of a server that comes.
        self.lent_keys: dict[str, object] = {}
        #: How often the domain of each server rebooted since the agent started.
        self.reboots: dict[str, int] = {}
        #: How many consoles are open, by server and kind.
        self.consoles: Counter[tuple[str, str]] = Counter()
        self.documents.listen(self._forget)

    def kinds_of_consoles(self) -> list[str]:
        """Those that servers which start now have."""
        has_spice = self.settings.spice and self.hypervisor.has_spice()
        return [one for one in CONSOLES if one != SPICE or has_spice]

    def _forget(self, document: Document, removed: bool) -> None:
        if removed:
            self.reboots.pop(document.id, None)

    def count_reboot(self, event: DomainEvent) -> None:
        """Listens to the hypervisor's events."""
        if event.what == "rebooted" and self.documents.look("server", event.uuid):
            self.reboots[event.uuid] = self.reboots.get(event.uuid, 0) + 1
