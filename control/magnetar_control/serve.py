# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the control plane put together: in one process (``magnetar serve``), or each by itself."""

from __future__ import annotations

import contextlib
import logging
import ssl
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import orjson
import uvicorn
from sqlalchemy.exc import DBAPIError

from magnetar_control.api.console import ConsoleApplication
from magnetar_control.api.health import HealthServer, Healthz, MetricsForAdmins
from magnetar_control.api.identity import app as identity
from magnetar_control.api.image import app as image
from magnetar_control.api.network import app as network
from magnetar_control.api.nova.app import ComputeApplication
from magnetar_control.api.nova.operations import OPERATIONS
from magnetar_control.api.placement import app as placement
from magnetar_control.api.v1 import V1Application
from magnetar_control.api.volume import app as volume
from magnetar_control.compute.attachments import interfaces
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.cloud import Cloud, Hosts
from magnetar_control.compute.servers import told_guests
from magnetar_control.conductor.flows.flows import FLOWS
from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.conductor.periodic.notification_sender import NotificationSender
from magnetar_control.conductor.periodic.periodic import Periodic
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.scheduler.rules import rules_of
from magnetar_control.services import Images, KeyManager, Services
from magnetar_control.services.barbican import BarbicanKeys
from magnetar_control.services.identity import EmbeddedIdentity, clouds_yaml, keystone
from magnetar_control.services.identity.service_user import ServiceUser
from magnetar_control.services.image import EmbeddedImages
from magnetar_control.services.image import quotas as image_quotas
from magnetar_control.services.image.remote import Remote
from magnetar_control.services.key_manager import EmbeddedKeys
from magnetar_control.services.network import EmbeddedNetworks, Wait, engine_of
from magnetar_control.services.network import quotas as network_quotas
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume import quotas as volume_quotas
from magnetar_control.store.engine import schema
from magnetar_control.store.engine.database import Database, full
from magnetar_control.store.engine.tables import API, CELL
from magnetar_control.store.hosts import hosts
from magnetar_control.store.hosts import services as compute_services
from magnetar_control.store.hosts.services import COMPUTE, Service
from magnetar_control.store.servers import servers
from magnetar_control.store.store import CELL0, CellMapping, Store
from magnetar_control.web.application import Application, by_token
from magnetar_control.web.asgi import AsgiServer
from magnetar_control.web.protocol import served
from magnetar_control.web.transfers import Pace, Places, Transfers
from magnetar_core import garbage
from magnetar_core.http.connections import SHARE, Connections, open_more

from .agents import Agents
from .delivery import Delivery
from .health import Health
from .metrics import Metrics
from .settings import Settings

log = logging.getLogger(__name__)
#: Seconds that requests in hand may take when the process is told to end.
GRACE = 15
#: GiB of a host's disk, and of what is free of it.
DISK = ("disk_gb", "disk_gb_free")


class Parts:
    """Everything that a process of the control plane may need, made of *settings*."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        rules_of(settings)  # refuses what cannot be followed
        #: The password of admin, when the first start made it.
        self.bootstrapped: str | None = None
        self.working: Conductor | None = None
        #: Ends the work and gives everything back, what was begun last first.
        self._ends = contextlib.ExitStack()
        self.close = self._ends.close
        self.api_database = Database(settings.url("api"), "api", limit=settings.statement_timeout)
        self.store = Store(self.api_database)
        self._ends.callback(self.store.close)
        self.hosts = Hosts(self.store, settings)
        self.agents = Agents(settings.agent_ca_cert, settings.agent_client_cert, settings.agent_client_key,
                             settings.action_timeout)
        self._ends.callback(self.agents.close)
        self.health = Health(self.store, settings.host_down_after)
        self.metrics = Metrics(self.health)

    def services(self) -> Services:
        """The embedded services; or a real Keystone, in place of the embedded identity."""
        database, settings = self.api_database, self.settings
        self.identity = EmbeddedIdentity(database, settings.token_hours * 3600) if settings.keystone_url is None else \
            keystone.of(settings)
        #: Gives tokens by which a part asks another, or another service.
        own = ServiceUser(self.identity.tokens).token if isinstance(
            self.identity, EmbeddedIdentity) else self.identity.token
        keys: KeyManager = EmbeddedKeys(settings.certificates, settings.keys) if settings.barbican_url is None else \
            BarbicanKeys(settings.barbican_url, own, settings.barbican_ca_cert)
        self.images = EmbeddedImages(database, settings.images, reserve=settings.image_reserve_mb << 20,
                                     limits=image_quotas.defaults(settings),
                                     keys=keys if settings.verify_image_signatures else None)
        self.networks = EmbeddedNetworks(
            database, settings.network_cidr, settings.pools(), network_quotas.defaults(settings), engine_of(settings),
            Wait(settings.ovn_wait, settings.ovn_hosts_wait), settings.physical_mtu,
            settings.ovn_gateway_hosts, settings.dhcp_domain)
        #: As conductors and volumes ask for them: here, or at the machine that has them.
        self.asked: Images = self.images if settings.image_url is None else Remote(
            settings.image_url, own, settings.image_ca_cert)
        self.delivery = Delivery(self.asked, settings.action_timeout)
        self.volumes = EmbeddedVolumes(database, self.places, self.agents, self.bring, self.asked,
                                       zone=settings.default_availability_zone, used=self.has,
                                       limits=volume_quotas.defaults(settings), keys=keys,
                                       pools=settings.volume_pools)
        return Services(self.identity, self.asked, self.networks, self.volumes, keys)

    def places(self) -> list[dict[str, Any]]:
        """The hosts on which volumes may lie."""
        with self.api_database.read() as connection:
            told = {row["name"]: orjson.loads(row["info"]) for row in hosts.every(connection)}
        sizes = {name: {size: info.get(size) or 0 for size in DISK} for name, info in told.items()}
        return [{"name": host.name, "endpoint": host.endpoint, "up": host.up and not host.forced_down and
                 not host.disabled, **sizes.get(host.name, dict.fromkeys(DISK, 0))}
                for host in self.hosts.all().values()]

    def bring(self, host: str, id: str) -> None:
        """Have an image on a host."""
        if place := self.hosts.get(host):
            with self.agents.client(place.endpoint) as client:
                self.delivery.image(client, host, id)

    def has(self, server: str, attachment: str) -> bool:
        """Whether a server has an attachment, or is being given it."""
        found = servers.find(self.store, server)
        return found is not None and any(
            attachment in (one["attachment_id"], (one.get("swap") or {}).get("attachment_id"))
            for one in orjson.loads(found[1].volumes))

    def upgrade(self) -> list[tuple[str, bool]]:
        """Bring all databases that answer up to date, with cell0, and the cell of the settings where it is made of
        these: (name, whether there was anything to do). ``late``: cells that are away, which their conductors upgrade.
        May be done again, by many at once."""
        changed = [("api", schema.upgrade(self.api_database, API))]
        self.store.add_cell("cell0", self.settings.url("cell0"), CELL0)
        if not self.settings.spread:
            self.store.add_cell(self.settings.cell, self.settings.url("cell"))
        self.store.cells(fresh=True)
        self.late: list[tuple[CellMapping, DBAPIError]] = []
        for cell, database in self.store.databases():
            try:
                changed.append((cell.name, schema.upgrade(database, CELL)))
            except DBAPIError as error:
                if cell.id == CELL0:
                    raise
                self.late.append((cell, error))
        return changed

    def bootstrap(self) -> None:
        """What a cloud has from its beginning."""
        url = self.settings.public_url or f"http{'s' if self.settings.tls_cert else ''}://{self.settings.listen}"
        path = self.settings.state_dir / "clouds.yaml"
        if isinstance(self.identity, EmbeddedIdentity):
            # Kept before it counts: a crash in between loses no password.
            with _unless_full("users and endpoints"):
                self.bootstrapped = self.identity.bootstrap(url, keep=lambda password: clouds_yaml(path, url, password))
        if self.bootstrapped:
            log.info("the password of admin is in %s: export OS_CLIENT_CONFIG_FILE=%s OS_CLOUD=magnetar", path, path)
        with _unless_full("the first network"):
            self.networks.bootstrap()
        self._ends.callback(self.images.sweeping().set)

    def conductor(self, services: Services) -> Conductor:
        """The conductor of the settings' cell."""
        return Conductor(self.settings, self.store, services, self.agents, self.settings.cell, FLOWS, self.delivery,
                         self.settings.schedules)

    def applications(self, services: Services) -> dict[str, Application]:
        """What is mounted where."""
        cloud = Cloud(self.settings, self.store, services, self.agents, self.hosts)
        self.networks.on_moved(partial(told_guests.note_guests, self.store))
        console = ConsoleApplication(cloud)
        self.metrics.consoles = console.proxy.count
        where = self.settings.keystone_url or "/identity"
        authenticate = by_token(self.identity.validate, where)
        of_operators = by_token(self.identity.validate, where, ("project", "system", ""))
        return {"": ComputeApplication(cloud, OPERATIONS, V1Application(cloud)),
                "/identity": identity.application(
                    self.identity, {"image": self.images.quota}) if isinstance(self.identity, EmbeddedIdentity) else
                identity.Elsewhere(self.identity.url),
                "/image": image.application(self.images, authenticate),
                "/network": network.application(
                    self.networks, authenticate, self.compute_hosts, lambda request: interfaces.delete_port(
                        Caller(cloud, request.context, request.id), request.params["id"])),
                "/volume": volume.VolumeApplication(self.volumes, authenticate),
                "/placement": placement.PlacementApplication(cloud, of_operators),
                "/console": console,
                "/healthz": Healthz(self.health),
                "/metrics": MetricsForAdmins(self.metrics.text, of_operators)}

    def compute_hosts(self) -> list[Service]:
        """The services of compute hosts."""
        zone, silence = self.settings.default_availability_zone, self.settings.host_down_after
        found = compute_services.every(self.store, zone, silence)
        return [one for one in found if one.binary == COMPUTE]

    def work(self, services: Services) -> None:
        """Begin to conduct."""
        self.working = self.conductor(services)
        self.working.ended = self.metrics.ended
        self._ends.callback(self.volumes.worker.stop)
        self._ends.callback(self.working.stop)
        senders = [NotificationSender(self.working, one) for one in self.working.notifications.receivers.values()]
        self.working.start(HostWatch(self.working).run, Periodic(self.working).run, *senders)
        self.volumes.worker.start()

    def wire(self) -> None:
        """Begin to write networks to the engine, where there is one."""
        if worker := self.networks.worker:
            self.api_database.listen()
            self._ends.callback(worker.stop)
            worker.start()

    def watched(self) -> None:
        """Offer health and figures on the address of the settings, where there is one."""
        if self.settings.health_listen:
            self._ends.callback(HealthServer(self.settings.health_listen, self.metrics, self.working).close)

    def transfers(self) -> Transfers:
        """The limits of content that comes and goes."""
        uploads, downloads, share = (
            self.settings.image_uploads, self.settings.image_downloads, self.settings.of_project)
        return Transfers(Places("uploads", uploads, share(uploads)), Places("downloads", downloads, share(downloads)),
                         Pace(self.settings.image_min_rate, self.settings.image_rate_window))

    def server(self, services: Services) -> AsgiServer:
        """The API."""
        return AsgiServer(self.applications(services), self.settings.threads, self.settings.trust_proxy,
                      observe=self.metrics.request, url=self.settings.public_url, transfers=self.transfers(),
                      connections=Connections(min(self.settings.connections_per_address, open_more() // SHARE)))


@contextlib.contextmanager
def _unless_full(what: str) -> Iterator[None]:
    """A start that finds no room to write goes on: what is there can be read."""
    try:
        yield
    except (DBAPIError, OSError) as error:
        if not full(error):
            raise
        log.error("the disk is full (%s): %s are as they were; start again when there is room", error, what)  # noqa: TRY400


@contextlib.contextmanager
def running(settings: Settings, with_api: bool, with_conductor: bool) -> Iterator[AsgiServer | None]:
    """What ``magnetar serve``, ``api`` and ``conductor`` run."""
    with contextlib.closing(Parts(settings)) as parts:
        if with_api:
            parts.upgrade()
            for cell, error in parts.late:
                log.warning("database of cell %s is away: %s", cell.name, error)
        else:  # what a conductor needs: the API database, and its cell's, which has to be listed
            schema.upgrade(parts.api_database, API)
            schema.upgrade(parts.store.cell(parts.store.named(settings.cell).id), CELL)
        services = parts.services()
        if with_api:
            parts.bootstrap()
        parts.wire()
        if with_conductor:
            parts.work(services)
        parts.watched()
        open_more()  # conductors too
        garbage.began()
        sys.setswitchinterval(0.001)  # a thread that computes lets others go on: answers do not wait for the conductor
        yield parts.server(services) if with_api else None


def listen(settings: Settings, server: AsgiServer) -> None:
    """Serve until SIGTERM; requests that are on their way are answered."""
    host, _colon, port = settings.listen.rpartition(":")
    tls = None
    if settings.tls_cert:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(settings.tls_cert, settings.tls_key)
    # A proxy has all of its clients' connections: what is counted then is their requests, by the address that it tells.
    places = Connections(0) if settings.trust_proxy else server.connections
    uvicorn.run(server, host=host.strip("[]"), port=int(port), log_config=None, access_log=False, lifespan="off",
                timeout_graceful_shutdown=GRACE, server_header=False, proxy_headers=False,
                **served(places, tls, settings.image_min_rate))
