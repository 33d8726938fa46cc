# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that speaks to libvirt and QEMU: the only package that imports libvirt."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .backup import Backups
from .capabilities import Capabilities
from .consoles import Consoles
from .cpu_models import CpuModels
from .devices import Devices
from .disks import Disks
from .events import listen
from .guest_agent import GuestAgent
from .injection import Injections
from .mdev import Mdevs
from .migrate import Migrations
from .mirror import Mirrors
from .nbd import Exports
from .network import LibvirtNetworks
from .pmem import Pmem
from .pool import PATIENCE, ConnectionPool
from .port_filter import NftPortFilter
from .probe import Kvm
from .product_data import ProductData
from .statistics import Statistics
from .storage import Storage
from .switch_filter import SwitchFilter
from .templates import FOLDER
from .tpm import Tpms

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar_agent.hypervisor import DomainEvent

__all__ = ["LibvirtHypervisor"]

log = logging.getLogger(__name__)


class LibvirtHypervisor(Capabilities, CpuModels, Backups, Mirrors, Exports, GuestAgent, Consoles, Devices, Statistics,
                        Migrations, LibvirtNetworks, NftPortFilter, Storage, Disks, Injections, Tpms, Mdevs, Pmem,
                        ProductData):
    """``LocalHypervisor`` on the libvirt at *uri*; what it finds out about the host is kept in *state_dir*. A
    guest's QEMU has *patience* seconds for an answer."""

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
        """Whether libvirt answers a question."""
        return self.connection.up()

    def on_event(self, listener: Callable[[DomainEvent], None]) -> None:
        """Events of every connection, also of later ones."""
        self._listeners.append(listener)

    def on_connect(self, listener: Callable[[], None]) -> None:
        """See ``Connection.on_connect``."""
        self.connection.on_connect(listener)

    def close(self) -> None:
        """Close the connections, end the probe; events end."""
        self.close_exports()
        self.end_filters()
        self.switch_filter.close()
        self.probe.close()
        self.connection.close()

    def _prepare(self, conn: Any) -> None:
        listen(conn, self._tell)
        threading.Thread(target=self.start_pools, args=(conn,), name="libvirt-pools", daemon=True).start()

    def _tell(self, event: DomainEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:  # one listener must not keep the event from the others, nor end libvirt's loop
                log.exception("a listener failed on %s", event)
