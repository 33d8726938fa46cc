# SPDX-License-Identifier: GPL-3.0-or-later
"""``LibvirtHypervisor``: the implementation of ``LocalHypervisor`` by libvirt and QEMU. Only this package imports
libvirt."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.virt.connection.pool import PATIENCE, ConnectionPool
from magnetar_agent.virt.disks.backup import Backups
from magnetar_agent.virt.disks.disks import Disks
from magnetar_agent.virt.disks.injection import Injections
from magnetar_agent.virt.disks.nbd import Exports
from magnetar_agent.virt.disks.pmem import Pmem
from magnetar_agent.virt.disks.storage import Storage
from magnetar_agent.virt.domain.adoption import Adoptions
from magnetar_agent.virt.domain.consoles import Consoles
from magnetar_agent.virt.domain.cpu_models import CpuModels
from magnetar_agent.virt.domain.devices import Devices
from magnetar_agent.virt.domain.events import listen_to_domains
from magnetar_agent.virt.domain.guest_agent import GuestAgent
from magnetar_agent.virt.domain.migrate import Migrations
from magnetar_agent.virt.domain.mirror import Mirrors
from magnetar_agent.virt.domain.statistics import Statistics
from magnetar_agent.virt.domain.tpm import Tpms
from magnetar_agent.virt.host.capabilities import Capabilities
from magnetar_agent.virt.host.mdev import Mdevs
from magnetar_agent.virt.host.probe import Kvm
from magnetar_agent.virt.host.product_data import ProductData
from magnetar_agent.virt.network.network import LibvirtNetworks
from magnetar_agent.virt.network.port_filter import NftPortFilter
from magnetar_agent.virt.network.switch_filter import SwitchFilter
from magnetar_agent.virt.tools.templates import FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar_agent.host.hypervisor import DomainEvent

__all__ = ["LibvirtHypervisor"]

log = logging.getLogger(__name__)


class LibvirtHypervisor(Capabilities, CpuModels, Backups, Mirrors, Exports, GuestAgent, Consoles, Devices, Statistics,
                        Migrations, LibvirtNetworks, NftPortFilter, Storage, Disks, Injections, Tpms, Mdevs, Pmem,
                        ProductData, Adoptions):
    """The ``LocalHypervisor`` that controls libvirt at *uri*. *state_dir*: folder for facts about the host. *patience*:
    seconds without a response after which QEMU counts as hanging."""

    def __init__(self, uri: str = "qemu:///system", state_dir: Path = Path("/var/lib/magnetar"),
                 templates: Path = FOLDER, patience: float = PATIENCE) -> None:
        Capabilities.__init__(self)
        CpuModels.__init__(self)
        GuestAgent.__init__(self)
        Exports.__init__(self)
        Injections.__init__(self, state_dir)
        self.templates = templates
        self._listeners: list[Callable[[DomainEvent], None]] = []
        self.probe = Kvm(state_dir)
        self.switch_filter = SwitchFilter()
        self.connection = ConnectionPool(uri, self._prepare, patience=patience)

    def connected(self) -> bool:
        """Return whether libvirt answers a request."""
        return self.connection.up()

    def on_event(self, listener: Callable[[DomainEvent], None]) -> None:
        """Call *listener* for each libvirt event of a domain, also after a reconnection."""
        self._listeners.append(listener)

    def on_connect(self, listener: Callable[[], None]) -> None:
        """Call *listener* in a new thread whenever a connection to libvirt is established from now on."""
        self.connection.on_connect(listener)

    def close(self) -> None:
        """Stop the qemu-nbd processes of all exports, the threads that watch nftables and Open vSwitch, and the KVM
        probe. Then close the connections to libvirt."""
        self.close_exports()
        self.end_filters()
        self.switch_filter.close()
        self.probe.close()
        self.connection.close()

    def _prepare(self, conn: Any) -> None:
        listen_to_domains(conn, self._tell)
        threading.Thread(target=self.start_pools, args=(conn,), name="libvirt-pools", daemon=True).start()

    def _tell(self, event: DomainEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:  # a failing listener must not stop other listeners, or libvirt's loop
                log.exception("a listener failed on %s", event)
