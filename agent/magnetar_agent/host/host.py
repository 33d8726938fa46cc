# SPDX-License-Identifier: GPL-3.0-or-later
"""``LocalHost``: the host that drivers act on.

It does not depend on drivers or ``reconcile``: a driver that needs another resource created or changed calls ``ensure``
or ``revise``, which the agent sets.
"""

from __future__ import annotations

import shutil
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from magnetar_agent.link import Links
from magnetar_agent.reconcile.documents import Documents
from magnetar_agent.reconcile.locks import Locks
from magnetar_core.operations import Operations

from .background_reads import BackgroundReads
from .changes import Changes
from .cpu_meter import CpuMeter
from .load_meter import LoadMeter
from .provider_config import read_provider_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.settings import AgentSettings
    from magnetar_core.fields import Kind
    from magnetar_core.operations import Operation
    from magnetar_core.plan import Result

    from .hypervisor import DomainEvent, LocalHypervisor


class EnsureCall(Protocol):
    """The signature of ``LocalHost.ensure``, which creates, changes or removes a resource:
    ``reconcile.ensure_resource`` without a dry run, and with default options such as ``on_immutable``."""

    def __call__(self, kind: type[Kind], key: str, want: Fields | None, operation: Operation) -> Result: ...


class ReviseCall(Protocol):
    """The signature of ``LocalHost.revise``, which changes an existing resource (``reconcile.revise_resource``).
    *revised* returns the new fields for the current document."""

    def __call__(self, kind: type[Kind], id: str, revised: Callable[[Document], Fields], dry_run: bool,
                 operation: Operation) -> Result: ...


#: Kinds of consoles.
VNC, SERIAL, SPICE = "vnc", "serial", "spice"
CONSOLES = (SERIAL, SPICE, VNC)


class LocalHost:
    """The host that the agent runs on, with the objects that all functions of the agent share: settings, hypervisor,
    documents (desired states of resources), locks, operations (running requests and background tasks), and links (TLS
    connections) to other agents."""

    #: Create, change or remove another resource.
    ensure: EnsureCall
    #: Return where guests reach the metadata service, for ``kinds.Host``.
    metadata_status: Callable[[], dict[str, Any]]
    #: Return how guests' ports are filtered, for ``kinds.Host``.
    port_security_status: Callable[[], dict[str, Any]]
    revise: ReviseCall

    def __init__(self, settings: AgentSettings, hypervisor: LocalHypervisor, name: str = "",
                 documents: Documents | None = None, operations: Operations | None = None,
                 links: Links | None = None) -> None:
        self.settings, self.hypervisor = settings, hypervisor
        self.name = name or socket.gethostname()
        self.documents = documents or Documents(settings.state_dir)
        self.operations = operations or Operations(settings.parallel)
        self.meter = CpuMeter()
        self.load = LoadMeter()
        #: State and size of each pool of volumes (``volumes.pool_reports``), and of the ``disk_folder``.
        self.pool_reads: BackgroundReads[dict[str, Any]] = BackgroundReads()
        self.provider_config = read_provider_config(settings.provider_config_location, self.name)
        self.locks = Locks()
        self.links = links or Links(settings)
        self.changes = Changes()
        #: The progress of each outgoing migration: the field ``progress`` of ``kinds.Migration``.
        self.progress: dict[str, dict[str, Any]] = {}
        #: By server, the connection of an incoming migration that brought the keys that libvirt has.
        self.lent_keys: dict[str, object] = {}
        #: The number of reboots of each server's domain since the agent started.
        self.reboots: dict[str, int] = {}
        #: The number of open consoles, by server and kind.
        self.consoles: Counter[tuple[str, str]] = Counter()
        self.documents.listen(self._forget)

    def disk_space(self) -> tuple[int, int]:
        """Return the total and free bytes of the file system with the servers' local disks."""
        usage = shutil.disk_usage(self.settings.instances_path or self.settings.state_dir)
        return usage.total, usage.free

    def kinds_of_consoles(self) -> list[str]:
        """Return the console types, such as vnc and spice, that a server would have if it were started now."""
        has_spice = self.settings.spice and self.hypervisor.has_spice()
        return [kind for kind in CONSOLES if kind != SPICE or has_spice]

    def _forget(self, document: Document, removed: bool) -> None:
        if removed:
            self.reboots.pop(document.id, None)

    def count_reboot(self, event: DomainEvent) -> None:
        """Count the reboots of this host's servers in ``reboots``. *event*: an event of the hypervisor; events that are
        no reboots are ignored."""
        if event.what == "rebooted" and self.documents.peek_by_id("server", event.uuid):
            self.reboots[event.uuid] = self.reboots.get(event.uuid, 0) + 1
