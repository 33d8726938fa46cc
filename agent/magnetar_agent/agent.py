# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent: the host, its drivers and threads, and their start and end."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from magnetar_agent.drivers import Drivers
from magnetar_agent.drivers.adoption import AdoptionDriver
from magnetar_agent.drivers.attachment import AttachmentDriver
from magnetar_agent.drivers.backup import BackupDriver
from magnetar_agent.drivers.export import ExportDriver
from magnetar_agent.drivers.flavor import FlavorDriver
from magnetar_agent.drivers.group_filter import GroupFilterDriver
from magnetar_agent.drivers.image import ImageDriver
from magnetar_agent.drivers.interface import InterfaceDriver
from magnetar_agent.drivers.keypair import KeypairDriver
from magnetar_agent.drivers.migration import MigrationDriver
from magnetar_agent.drivers.network import NetworkDriver
from magnetar_agent.drivers.server import ServerDriver
from magnetar_agent.drivers.server_export import ServerExportDriver
from magnetar_agent.drivers.volume import SnapshotDriver, VolumeDriver
from magnetar_agent.host.file_modes import close_state
from magnetar_agent.host.host import LocalHost
from magnetar_agent.host.port_security import PortSecurity
from magnetar_agent.host.power_sync import PowerSync
from magnetar_agent.metadata.service import MetadataService
from magnetar_agent.migrations import target
from magnetar_agent.reconcile import reconcile
from magnetar_agent.servers import resolve
from magnetar_agent.servers.admin_password import AdminPasswords
from magnetar_agent.servers.disks import own_disks
from magnetar_agent.servers.nics import addresses
from magnetar_agent.volumes import exports, moving, remote
from magnetar_core.ensure import Permissions
from magnetar_core.kinds import Server

if TYPE_CHECKING:
    from magnetar_agent.host.hypervisor import LocalHypervisor
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_core.fields import Kind
    from magnetar_core.operations import Operation
    from magnetar_core.plan import Result

    from .settings import AgentSettings

log = logging.getLogger(__name__)


class ManagedHost:
    """A host with a driver for each resource type, as needed to handle API requests. It starts no threads; the subclass
    ``Agent`` does."""

    def __init__(self, host: LocalHost) -> None:
        self.host = host
        self.host.documents.index(Server.noun, "mac", resolve.macs_of_server)
        self.host.documents.index(Server.noun, "port", resolve.port_names_of_server)
        self.host.documents.index(Server.noun, "address", addresses.fixed_addresses)
        self.images = ImageDriver()
        self.drivers = Drivers(self.host, (
            FlavorDriver(), KeypairDriver(), self.images, NetworkDriver(), VolumeDriver(), SnapshotDriver(),
            BackupDriver(), ExportDriver(), GroupFilterDriver(), ServerDriver(), AttachmentDriver(), InterfaceDriver(),
            MigrationDriver(), AdoptionDriver(), ServerExportDriver()))
        self.host.ensure = self._ensure
        self.host.revise = partial(reconcile.revise_resource, self.drivers)

    def _ensure(self, kind: type[Kind], key: str, want: Fields | None, operation: Operation) -> Result:
        return reconcile.ensure_resource(self.drivers, kind, key, want, Permissions.defaults(), False, operation)


class Agent(ManagedHost):
    """A ``ManagedHost`` with the threads of a running agent, which watch the host and update the stored state of its
    resources."""

    def __init__(self, settings: AgentSettings, hypervisor: LocalHypervisor) -> None:
        super().__init__(LocalHost(settings, hypervisor))
        self.power_sync = PowerSync(self.drivers)
        self.remote_volumes = remote.RemoteVolumes(self.host)
        self.admin_passwords = AdminPasswords(self.host)
        self.metadata = MetadataService(self.host)
        self.host.metadata_status = self.metadata.status
        self.port_security = PortSecurity(self.host)
        self.host.port_security_status = self.port_security.status

    def start(self) -> None:
        """Start all threads. From now on the agent follows events of the hypervisor. It also updates the stored state
        of resources that were changed while no agent ran."""
        if count := close_state(self.host.settings.state_dir):
            log.info("took from other users of the host the right to read %s files and folders", count)
        own_disks.flush_noted(self.host)
        self.host.hypervisor.on_event(self.host.count_reboot)
        self.power_sync.hold()
        self.port_security.start()
        moving.settle_pivots(self.host)
        exports.resume_exports(self.host)
        remote.reopen_sockets(self.host)
        target.resume_migrations(self.host)
        self.power_sync.start()
        self.remote_volumes.start()
        self.admin_passwords.start()
        self.metadata.start()

    def close(self) -> None:
        """End running operations and all threads. Does not close the hypervisor connection, which the caller must do.
        """
        self.host.operations.close(self.host.settings.grace)
        self.metadata.close()
        self.admin_passwords.close()
        self.remote_volumes.close()
        self.power_sync.close()
        self.port_security.close()
        self.host.links.close()
