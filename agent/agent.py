# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent itself: what its parts share, and how it begins and ends."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from magnetar_agent.documents import Documents
from magnetar_agent.drivers.attachment import AttachmentDriver
from magnetar_agent.drivers.export import ExportDriver
from magnetar_agent.drivers.flavor import FlavorDriver
from magnetar_agent.drivers.image import ImageDriver
from magnetar_agent.drivers.interface import InterfaceDriver
from magnetar_agent.drivers.keypair import KeypairDriver
from magnetar_agent.drivers.migration import MigrationDriver
from magnetar_agent.drivers.network import NetworkDriver
from magnetar_agent.drivers.server import ServerDriver
from magnetar_agent.drivers.volume import SnapshotDriver, VolumeDriver
from magnetar_agent.follow import Changes, Follower
from magnetar_agent.link import Links
from magnetar_agent.locks import Locks
from magnetar_agent.migrations import target
from magnetar_agent.operations import Operations
from magnetar_agent.servers import choose, fixed
from magnetar_agent.volumes import exports, ways
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import Server

if TYPE_CHECKING:
    from magnetar_agent.drivers import Driver
    from magnetar_agent.hypervisor import Event, Hypervisor
    from magnetar_agent.settings import Settings
    from magnetar_core.fields import Kind


class Agent:
    """What the agent works with: settings, the hypervisor, the documents, operations and the drivers by noun."""

    def __init__(self, settings: Settings, hypervisor: Hypervisor) -> None:
        self.settings = settings
        self.hypervisor = hypervisor
        self.documents = Documents(settings.state_dir)
        self.documents.index(Server.noun, "mac", choose.macs)
        self.documents.index(Server.noun, "address", fixed.given)
        self.operations = Operations(settings.parallel)
        self.locks = Locks()
        self.host_name = socket.gethostname()
        self.changes = Changes()
        self.links = Links(settings)
        #: How far each migration of a server away from here is: ``kinds.migration``'s field progress.
        self.progress: dict[str, dict[str, Any]] = {}
        #: How often each domain rebooted since the agent started.
        self.reboots: dict[str, int] = {}
        drivers: tuple[Driver, ...] = (FlavorDriver(), KeypairDriver(), ImageDriver(), NetworkDriver(), VolumeDriver(),
                                       SnapshotDriver(), ExportDriver(), ServerDriver(), AttachmentDriver(),
                                       InterfaceDriver(), MigrationDriver())
        self.drivers: Mapping[str, Driver] = {driver.kind.noun: driver for driver in drivers}
        self.follower = Follower(self)
        self.tending = ways.Tending(self)

    def start(self) -> None:
        """Follow events from now on, and put right what happened while no agent ran."""
        self.hypervisor.on_event(self._count_reboot)
        exports.resume(self)
        ways.resume(self)
        target.resume(self)
        self.follower.start()
        self.tending.start()

    def close(self) -> None:
        """End operations and threads; the hypervisor is its maker's to close."""
        self.operations.close(self.settings.grace)
        self.tending.close()
        self.follower.close()
        self.links.close()

    def _count_reboot(self, event: Event) -> None:
        if event.what == "rebooted":
            self.reboots[event.uuid] = self.reboots.get(event.uuid, 0) + 1

    def driver(self, kind: type[Kind]) -> Driver:
        """The driver of *kind*; kinds without one are read only."""
        found = self.drivers.get(kind.noun)
        if not found:
            raise InvalidField(kind.noun, "is read only")
        return found
