# SPDX-License-Identifier: GPL-3.0-or-later
"""The assembly of the control plane's parts: in one process (``magnetar serve``), or each in its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn
from sqlalchemy.exc import DBAPIError
from uvicorn.config import STARTUP_FAILURE

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
from magnetar_control.compute.availability.ha_policy import check_project_policies
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.cloud import Cloud, Hosts
from magnetar_control.compute.servers import due_guests
from magnetar_control.conductor.flows.flows import FLOWS
from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.conductor.periodic.notification_sender import NotificationSender
from magnetar_control.conductor.periodic.periodic import Periodic
from magnetar_control.conductor.worker.action_runner import ActionRunner
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.documents import attachment_ids
from magnetar_control.fencing.fence_devices import fence_devices
from magnetar_control.scheduler.rules import scheduler_rules
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
from magnetar_control.store.engine.database import Database, is_disk_full
from magnetar_control.store.engine.tables import API, CELL
from magnetar_control.store.hosts import hosts
from magnetar_control.store.hosts import services as compute_services
from magnetar_control.store.hosts.capability_marks import KnownCapabilities
from magnetar_control.store.hosts.host_row import DiskHost
from magnetar_control.store.hosts.services import COMPUTE, Service
from magnetar_control.store.servers import servers
from magnetar_control.store.store import CELL0, CellMapping, Store
from magnetar_control.web.application import Application, by_token
from magnetar_control.web.asgi import AsgiServer
from magnetar_control.web.protocol import uvicorn_http_options
from magnetar_control.web.transfers import Pace, TransferLimit, Transfers
from magnetar_control.workers.peers import PREFIX, MainPages, Peers, WorkerPages
from magnetar_core.daemon import garbage
from magnetar_core.daemon.report import REPORT
from magnetar_core.http.connections import SHARE, Connections, raise_file_limit

from . import memory
from .agents import Agents
from .announcement import Announcement, AnnouncingThread, process_name
from .delivery import Delivery
from .health import Health
from .metrics import Metrics
from .process_sections import reporting_parts
from .settings import Settings

log = logging.getLogger(__name__)
#: Seconds that requests in progress may take when the process is told to end.
GRACE = 15
#: The GiB of the disk of a host that has not reported it yet.
NO_DISK = {"disk_gb": 0, "disk_gb_free": 0}


class Parts:
    """The objects of which a process of the control plane is built, such as databases, services and the conductor, as
    *settings* configure them."""

    def __init__(self, settings: Settings) -> None:
        memory.limit_malloc_arenas()
        self.settings = settings
        # Refuse settings that cannot be followed.
        for check in (scheduler_rules, fence_devices, check_project_policies):
            check(settings)
        #: The password of admin, when the first start generated it.
        self.bootstrapped: str | None = None
        self.working: Conductor | None = None
        self.runner: ActionRunner | None = None
        #: The announcement of the conductor, when it has joined the others.
        self.announced: Announcement | None = None
        self.cloud: Cloud | None = None
        #: Stops the workers and closes everything, in reverse order of the start.
        self._ends = contextlib.ExitStack()
        self.close = self._ends.close
        self.api_database = Database(settings.url("api"), "api", limit=settings.statement_timeout)
        self.store = Store(self.api_database)
        self._ends.callback(self.store.close)
        self.known = KnownCapabilities(self.store, lambda: settings.host_down_after, lambda: settings.hold_upgrade)
        self.hosts = Hosts(self.store, settings)
        self.agents = Agents(settings.agent_ca_cert, settings.agent_client_cert, settings.agent_client_key,
                             settings.action_timeout)
        self._ends.callback(self.agents.close)
        self.health = Health(self.store, lambda: settings.host_down_after)
        self.metrics = Metrics(self.health)

    def services(self) -> Services:
        """Return the services that the process uses: the embedded ones, or clients of Keystone, Barbican and a remote
        image service if the settings name them."""
        database, settings = self.api_database, self.settings
        self.identity = EmbeddedIdentity(database, settings.token_hours * 3600) if settings.keystone_url is None else \
            keystone.keystone_of_settings(settings)
        #: Returns tokens for requests of one part to another, or to another service.
        service_token = ServiceUser(self.identity.tokens).token if isinstance(
            self.identity, EmbeddedIdentity) else self.identity.token
        keys: KeyManager = EmbeddedKeys(settings.certificates, settings.keys) if settings.barbican_url is None else \
            BarbicanKeys(settings.barbican_url, service_token, settings.barbican_ca_cert)
        self.images = EmbeddedImages(database, settings.images, reserve=settings.image_reserve_mb << 20,
                                     limits=image_quotas.image_quota_defaults(settings),
                                     keys=keys if settings.verify_image_signatures else None)
        self.networks = EmbeddedNetworks(
            database, settings.network_cidr, settings.pools(), network_quotas.default_network_limits(settings),
            engine_of(settings),
            Wait(settings.ovn_wait, settings.ovn_hosts_wait), settings.physical_mtu,
            settings.ovn_gateway_hosts, settings.dhcp_domain)
        #: The image service of conductors and volumes: in this process, or at ``image_url``.
        self.image_service: Images = self.images if settings.image_url is None else Remote(
            settings.image_url, service_token, settings.image_ca_cert)
        self.delivery = Delivery(self.image_service, settings.action_timeout)
        self.volumes = EmbeddedVolumes(database, self.volume_hosts, self.agents, self.deliver_image, self.image_service,
                                       zone=settings.default_availability_zone, used=self.has_attachment,
                                       limits=volume_quotas.default_volume_limits(settings), keys=keys,
                                       pools=settings.volume_pools, knows=self.known.all_processes_know)
        return Services(self.identity, self.image_service, self.networks, self.volumes, keys)

    def volume_hosts(self) -> list[dict[str, Any]]:
        """Return the hosts that may store volumes, as {name, endpoint, up, disk_gb, disk_gb_free}."""
        with self.api_database.read() as connection:
            rows = hosts.fetch_every_host(connection, DiskHost)
        sizes = {row.name: {"disk_gb": row.disk_gb, "disk_gb_free": row.disk_gb_free or 0} for row in rows}
        return [{"name": host.name, "endpoint": host.endpoint, "up": host.up and not host.forced_down and
                 not host.disabled, **sizes.get(host.name, NO_DISK)}
                for host in self.hosts.all().values()]

    def deliver_image(self, host: str, id: str) -> None:
        """Send the image *id* to the host *host*."""
        if place := self.hosts.get(host):
            with self.agents.client(place.endpoint) as client:
                self.delivery.image(client, host, id)

    def has_attachment(self, server: str, attachment: str) -> bool:
        """Return whether the server *server* has the volume attachment *attachment* (both uuids), or is about to get
        it."""
        located_server = servers.find_server_row(self.store, server)
        return located_server is not None and any(
            attachment in attachment_ids(attached_volume) for attached_volume in located_server[1].volumes)

    def upgrade(self) -> list[tuple[str, bool]]:
        """Upgrade the tables of all databases that answer. Register cell0, and also the cell if the settings define
        one. Return (name of the database, whether its tables were changed) for each database. Cells that do not answer
        are added to ``late``; their own conductors upgrade them later. May be repeated, also by several processes at
        the same time."""
        changed = [("api", schema.upgrade_schema(self.api_database, API))]
        self.store.add_cell("cell0", self.settings.url("cell0"), CELL0)
        if not self.settings.spread:
            self.store.add_cell(self.settings.cell, self.settings.url("cell"))
        self.store.cells(fresh=True)
        self.late: list[tuple[CellMapping, DBAPIError]] = []
        for cell, database in self.store.databases():
            try:
                changed.append((cell.name, schema.upgrade_schema(database, CELL)))
            except DBAPIError as error:
                if cell.id == CELL0:
                    raise
                self.late.append((cell, error))
        return changed

    def bootstrap(self) -> None:
        """Create the initial resources of a cloud that do not exist yet, such as the user admin."""
        url = self.settings.public_url or f"http{'s' if self.settings.tls_cert else ''}://{self.settings.listen}"
        path = self.settings.state_dir / "clouds.yaml"
        if isinstance(self.identity, EmbeddedIdentity):
            # Stored before it takes effect: a crash in between loses no password.
            with _unless_full("users and endpoints"):
                self.bootstrapped = self.identity.bootstrap(url, keep=lambda password: clouds_yaml(path, url, password))
        if self.bootstrapped:
            log.info("the password of admin is in %s: export OS_CLIENT_CONFIG_FILE=%s OS_CLOUD=magnetar", path, path)
        with _unless_full("the first network"):
            self.networks.bootstrap()
        self._ends.callback(self.images.sweeping().set)

    def conductor(self, services: Services) -> Conductor:
        """Return the conductor of the settings' cell."""
        return Conductor(self.settings, self.store, services, self.agents, self.settings.cell, self.delivery,
                         self.settings.schedules, self.announced)

    def join_as_conductor(self) -> None:
        """Register this process in the database as a conductor of the settings' cell. Raises ``ProcessTooOld`` if its
        release is too old for the other processes."""
        cell = self.store.cell(self.store.find_cell(self.settings.cell).id)
        self.announced = Announcement(self.store, "conductor", process_name(self.settings.conductor_name), cell)
        with _unless_full("the announcement of the conductor"):
            self.announced.join()
        self._ends.callback(self.announced.leave)

    def join_as_api(self, *name: str, announced: bool = True) -> None:
        """Register this API process in the database, and renew the registration until the process ends. *name*:
        distinguishes the process from others on this machine. *announced*: ``False`` for the parent of several API
        processes: do not register it, only check its release. Raises ``ProcessTooOld`` if the release of this process
        is too old for the other processes."""
        announcement = Announcement(self.store, "api", process_name(None, name), self.api_database)
        if not announced:
            announcement.check()
            return
        with _unless_full("the announcement of the API"):
            announcement.join()
        self._ends.callback(AnnouncingThread(announcement).stop)

    def applications(self, services: Services) -> dict[str, Application]:
        """Return the HTTP applications (compute, identity, image, …) by the prefix of their paths."""
        self.cloud = cloud = Cloud(self.settings, self.store, services, self.agents, self.hosts)
        self.networks.on_moved(partial(due_guests.mark_guests_due, self.store))
        console = ConsoleApplication(cloud)
        self.metrics.count_consoles(console.proxy.count)
        where = self.settings.keystone_url or "/identity"
        authenticate = by_token(self.identity.validate, where)
        of_operators = by_token(self.identity.validate, where, ("project", "system", ""))
        self.v1 = V1Application(cloud)
        return {"": ComputeApplication(cloud, OPERATIONS, self.v1),
                "/identity": identity.identity_application(
                    self.identity, {"image": self.images.quota}) if isinstance(self.identity, EmbeddedIdentity) else
                identity.ExternalKeystone(self.identity.url),
                "/image": image.image_application(self.images, authenticate),
                "/network": network.network_application(
                    self.networks, authenticate, self.compute_hosts, lambda request: interfaces.delete_port(
                        Caller(cloud, request.context, request.id), request.params["id"])),
                "/volume": volume.VolumeApplication(self.volumes, authenticate),
                "/placement": placement.PlacementApplication(cloud, of_operators),
                "/console": console,
                "/healthz": Healthz(self.health),
                "/metrics": MetricsForAdmins(self.metrics.text, of_operators)}

    def compute_hosts(self) -> list[Service]:
        """Return the compute services of all hosts, as in ``os-services``."""
        zone, silence = self.settings.default_availability_zone, self.settings.host_down_after
        services = compute_services.fetch_service_rows(self.store, zone, silence)
        return [service for service in services if service.binary == COMPUTE]

    def work(self, services: Services) -> None:
        """Start the conductor's threads: the runner of actions, the host watch, periodic tasks, notification senders
        and the volume worker."""
        self.working = self.conductor(services)
        self.runner = ActionRunner(self.working, FLOWS)
        self.working.ended, self.working.room_checked = self.metrics.ended, self.metrics.set_room
        self._ends.callback(self.volumes.worker.stop)
        self._ends.callback(self.runner.stop)
        senders = [NotificationSender(self.working, receiver)
                   for receiver in self.working.notifications.receivers.values()]
        self.runner.start(HostWatch(self.working).run, Periodic(self.working).run, *senders)
        self.volumes.worker.start()

    def start_network_worker(self) -> None:
        """Start the worker that configures the network engine (OVN), if there is one."""
        if worker := self.networks.worker:
            self.api_database.listen()
            self._ends.callback(worker.stop)
            worker.start()

    def serve_health(self) -> None:
        """Serve health and metrics on a separate address, if the settings name one (``health_listen``)."""
        if self.settings.health_listen:
            self._ends.callback(HealthServer(self.settings.health_listen, self.metrics, self.runner).close)

    def transfers(self) -> Transfers:
        """Return the limits for concurrent uploads and downloads, and for their rates."""
        uploads, downloads, share = (
            self.settings.image_uploads, self.settings.image_downloads, self.settings.of_project)
        return Transfers(TransferLimit("uploads", uploads, share(uploads)),
                         TransferLimit("downloads", downloads, share(downloads)),
                         Pace(self.settings.image_min_rate, self.settings.image_rate_window))

    def server(self, services: Services, peers: Peers | None = None) -> AsgiServer:
        """Return the API's ASGI server. *peers*: the other API processes that share its port, if any."""
        applications = self.applications(services)
        if peers is not None:
            applications[PREFIX] = WorkerPages(peers, self.metrics)
            self.v1.ask_other_processes = peers.repeated
            self.metrics.name, self.metrics.others = peers.name, peers.samples
        return AsgiServer(applications, self.settings.threads, self.settings.trust_proxy,
                          observe=self.metrics.request, url=self.settings.public_url, transfers=self.transfers(),
                          connections=Connections(min(self.settings.connections_per_address,
                                                      raise_file_limit() // SHARE)), on_stop=self.health.stop)

    def keep_workers(self, peers: Peers) -> None:
        """Serve the metrics of this parent process to its API processes *peers*, and collect the metrics of *peers*."""
        self.metrics.name, self.metrics.others = peers.name, peers.samples
        self._ends.callback(MainPages(peers, self.metrics).close)

    def follow_cells(self) -> None:
        """Listen for change signals in the databases of cell0 and of the settings' cell, so that this process sees
        their changes immediately."""
        for name in ("cell0", *(() if self.settings.spread else (self.settings.cell,))):
            self.store.cell(self.store.find_cell(name).id).listen()


@contextlib.contextmanager
def _unless_full(subject: str) -> Iterator[None]:
    """Log and ignore errors of the ``with`` block that a full disk causes, so that the process starts and can serve
    existing data. *subject*: what the block changes, for the log."""
    try:
        yield
    except (DBAPIError, OSError) as error:
        if not is_disk_full(error):
            raise
        log.error("the disk is full (%s): %s are as they were; start again when there is room", error, subject)  # noqa: TRY400


@contextlib.contextmanager
def running_server(settings: Settings, with_api: bool, with_conductor: bool,
                   workers: Peers | None = None,
                   follow: Callable[[Parts], None] = lambda _parts: None) -> Iterator[AsgiServer | None]:
    """Run the process of ``magnetar serve``, ``api`` or ``conductor`` while the ``with`` block runs. Yield the API's
    server; ``None`` if this process serves no API. *workers*: the child processes that serve the API, if any. *follow*:
    called with the process's ``Parts`` after everything was started."""
    with contextlib.closing(Parts(settings)) as parts, reporting_parts(parts):
        if with_api:
            parts.upgrade()
            for cell, error in parts.late:
                log.warning("database of cell %s is away: %s", cell.name, error)
        else:  # a conductor needs the API database and its cell's, which must be listed
            schema.upgrade_schema(parts.api_database, API)
            schema.upgrade_schema(parts.store.cell(parts.store.find_cell(settings.cell).id), CELL)
        if with_conductor:
            parts.join_as_conductor()
        if with_api:
            parts.join_as_api(announced=workers is None)
        services = parts.services()
        if with_api:
            parts.bootstrap()
        parts.start_network_worker()
        if with_conductor:
            parts.work(services)
        if workers is not None:
            parts.keep_workers(workers)
        parts.serve_health()
        _tune_process()
        server = parts.server(services) if with_api and workers is None else None
        follow(parts)
        yield server


@contextlib.contextmanager
def running_worker(settings: Settings, peers: Peers) -> Iterator[AsgiServer]:
    """Run one of several API processes while the ``with`` block runs, and yield its server. *peers*: the other API
    processes. The parent process has already upgraded the databases."""
    with contextlib.closing(Parts(settings)) as parts, reporting_parts(parts):
        parts.join_as_api(peers.name)
        services = parts.services()
        parts.start_network_worker()
        parts.follow_cells()
        _tune_process()
        yield parts.server(services, peers)


def _tune_process() -> None:
    raise_file_limit()  # conductors too
    garbage.tune_garbage_collection()
    sys.setswitchinterval(0.001)  # a computing thread lets others run: answers do not wait for the conductor


class ApiServer(uvicorn.Server):
    """A uvicorn server that runs its periodic tasks only once a second, to save CPU time, and still stops immediately
    at a signal. *ready*: called when the server begins to serve. *drain*: called at the first SIGTERM; returns for how
    many seconds the server still accepts requests."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], drain: Callable[[], float]) -> None:
        super().__init__(config)
        self._ready, self._drain, self._end = ready, drain, asyncio.Event()
        self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        """Override ``uvicorn.Server.main_loop``: serve until the process must end."""
        self._loop = asyncio.get_running_loop()
        REPORT.add_loop(self._loop)
        self._ready()
        while not await self.on_tick(0):  # updates the Date header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), 1.0)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Override ``uvicorn.Server.handle_exit``. At the first SIGTERM, call *drain* of the constructor, and stop the
        server after the number of seconds that *drain* returns. Stop the server without a delay at any other signal,
        and at a second SIGTERM."""
        if sig == signal.SIGTERM and not self._draining and self._loop is not None:
            self._draining = True
            if (seconds := self._drain()) > 0:
                self._loop.call_soon_threadsafe(self._stop_later, seconds, sig, frame)
                return
        self._stop(sig, frame)

    def _stop_later(self, seconds: float, sig: int, frame: Any) -> None:
        log.info("the API stops in %g s; until then it serves, and /healthz is 503", seconds)
        asyncio.get_running_loop().call_later(seconds, self._stop, sig, frame)

    def _stop(self, sig: int, frame: Any) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)


def api_tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the API; ``None`` if the settings have no certificate. Raises ``OSError`` if its files
    cannot be read."""
    if not settings.tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(settings.tls_cert, settings.tls_key)
    return context


def serve_requests(settings: Settings, server: AsgiServer, sockets: Sequence[socket.socket] | None = None,
                   ready: Callable[[], None] = lambda: None) -> None:
    """Serve the API until ``api_stop_delay`` seconds after SIGTERM, and complete the requests in progress. *sockets*:
    the sockets to listen on; by default the address in the settings. *ready*: called when the server listens."""
    host, _colon, port = settings.listen.rpartition(":")
    # A proxy holds all of its clients' connections: their requests are counted instead, by the address that it reports.
    slots = Connections(0) if settings.trust_proxy else server.connections

    def drain() -> float:
        server.begin_stop()
        return settings.api_stop_delay

    api = ApiServer(uvicorn.Config(
        server, host=host.strip("[]"), port=int(port), log_config=None, access_log=False, lifespan="off",
        timeout_graceful_shutdown=GRACE, server_header=False, proxy_headers=False,
        **uvicorn_http_options(slots, api_tls_context(settings), settings.image_min_rate)), ready, drain)
    api.run(sockets=list(sockets) if sockets else None)
    if not api.started:
        sys.exit(STARTUP_FAILURE)
