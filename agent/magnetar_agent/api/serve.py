# SPDX-License-Identifier: GPL-3.0-or-later
"""The server process of an agent: one per state folder, uvicorn on the unix socket and, if allowed, on TCP, and a
graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import stat
import threading
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from magnetar_agent.agent import Agent
from magnetar_agent.hardware import pci, pmem
from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.host.sockets import bind_unix_socket
from magnetar_agent.link import ALPN, TCP
from magnetar_agent.process_sections import report_agent
from magnetar_agent.servers.disks import own_disks
from magnetar_agent.servers.hardware import cpu_modes, machines
from magnetar_agent.settings import AgentSettings
from magnetar_core import bandwidth
from magnetar_core.daemon import garbage
from magnetar_core.daemon.report import REPORT
from magnetar_core.errors import HypervisorDown, InvalidSettings, MagnetarError
from magnetar_core.http.connections import KEEP_ALIVE, SHARE, Admitting, Connections, ConnectionSlot, raise_file_limit
from magnetar_core.http.deadline import Deadline
from magnetar_core.http.websockets import WebSocketProtocol
from magnetar_core.version import describe_least_versions, older_programs

from . import access
from .app import AgentApplication

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from magnetar_agent.host.hypervisor import LocalHypervisor

log = logging.getLogger(__name__)

#: Seconds that the line and headers of a request may take to arrive; h11 limits their size.
PATIENCE = 60
#: The lowest rate, in bytes per second, of an arriving body, and of a client that reads a response.
RATE = 1024
#: Seconds that the client of an idle connection may take to close it when the agent stops.
FAREWELL = 0.5
#: The most bytes of one message of a console.
LONGEST = 1 << 20
#: Seconds that responses under way may take once no operation runs any more.
LAST_ANSWERS = 5


class CannotStart(MagnetarError):
    """The error for an agent that cannot start."""

    code = "cannot-start"


@contextlib.contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Lock *state_dir* while the context is open, so that only one agent uses it. The kernel releases the lock when the
    process ends, even after a crash. Raises ``CannotStart`` if another agent has the lock."""
    try:
        make_state_folder(state_dir)
        descriptor = os.open(state_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotStart(f"The state folder {state_dir} cannot be used: {error.strerror}.") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise CannotStart(f"Another agent (process {holder}) works in {state_dir}. Stop it, or give this one "
                              "another folder with --state-dir.") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def unix_socket(path: Path, group: str) -> socket.socket:
    """Return a listening unix socket at *path* with mode 0660 and the group *group*. Replaces a socket file on which no
    process listens."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise CannotStart(f"{path} exists and is not a socket. Remove it, or set another socket.")
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(ConnectionRefusedError):
            probe.connect(str(path))
            raise CannotStart(f"Somebody answers on {path} already. Stop that agent, or set another socket.")
        path.unlink()
    gid = access.group_id(group)
    if gid is None:
        log.warning("There is no group %s; only root can use %s. Make it: groupadd --system %s", group, path, group)
    try:
        make_state_folder(path.parent, 0o755)
        listener = bind_unix_socket(path, -1 if gid in (None, os.getegid()) else gid)
        listener.listen(128)
    except OSError as error:
        raise CannotStart(f"The agent cannot listen on {path}: {error.strerror or error}.") from error
    return listener


def tcp_socket(address: tuple[str, int]) -> socket.socket:
    """Return a TCP socket that listens on *address* (host, port). The kernel copies its TCP options (keepalive,
    timeout, ``TCP_NODELAY``) to accepted connections (tcp(7), socket(7)). Raises ``CannotStart``."""
    try:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        server_socket = socket.create_server(address, family=family, backlog=128)
    except OSError as error:
        raise CannotStart(f"The agent cannot listen on {address[0]}:{address[1]}: {error.strerror or error}. "
                          "Correct the setting listen.") from error
    for option in TCP:
        server_socket.setsockopt(*option)
    return server_socket


def websocket_protocol(**protocol_arguments: Any) -> Any:
    """Return an instance of uvicorn's WebSocket protocol. *protocol_arguments*: its constructor's arguments. Used as a
    factory, so that its module, which takes some MiB of memory, is imported only for the first console."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    from websockets.exceptions import InvalidState

    class Protocol(WebSocketProtocol, WebSocketsSansIOProtocol):
        invalid_state = InvalidState

    return Protocol(**protocol_arguments)


class HttpServer(uvicorn.Server):
    """A uvicorn server that installs no signal handlers; ``_serve`` handles signals for all servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Override ``Server.capture_signals``: install no signal handlers, because ``_serve`` handles signals for all
        servers."""
        yield


class TimelyHttp(H11Protocol):
    """uvicorn's HTTP protocol, with a limit of ``PATIENCE`` seconds for the arrival of a request. uvicorn itself only
    limits how long a connection is idle after a response."""

    late: Deadline
    #: Bytes of a body that arrived after its response, since the wait began.
    rest = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.late = Deadline(self._end)
        self.late.begin(self.loop, PATIENCE)

    def connection_lost(self, exc: Exception | None) -> None:
        self.late.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        previous_cycle, inside = self.cycle, self.conn.their_state is h11.SEND_BODY
        super().data_received(data)
        if self.cycle is not previous_cycle:
            self.late.end()
        elif previous_cycle is None or previous_cycle.response_complete:
            self.rest = self.rest + len(data) if inside else 0
            if self.rest >= RATE * PATIENCE:  # the rest of a body that already has its response
                self.late.end()
                self.rest = 0
            self.late.begin(self.loop, PATIENCE)

    def _end(self) -> None:
        if self.transport.get_protocol() is self:  # not a WebSocket
            self.transport.abort()


def make_http_server(application: AgentApplication, settings: AgentSettings, tls: ssl.SSLContext | None,
                     connections: Connections | None = None) -> HttpServer:
    """Return a server for *application*, with TLS if *tls* is given. *connections*: the limit of connections for each
    client address; ``None`` for no limit. The caller's client certificate or unix user is read once for each
    connection, not for each request."""

    class Known(TimelyHttp):
        slot: ConnectionSlot

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            tls_object = transport.get_extra_info("ssl_object")
            if tls_object is not None and tls_object.selected_alpn_protocol() == ALPN:
                application.accept_link(transport, self.slot.free)
                return
            super().connection_made(transport)  # type: ignore[arg-type]
            self.app_state = {**self.app_state, "peer": access.of_connection(transport, settings),
                              "transport": transport}
            if not application.admit_connection(transport):
                transport.abort()  # type: ignore[attr-defined]

        def shutdown(self) -> None:
            """Override ``H11Protocol.shutdown``: also abort an idle connection after ``FAREWELL`` seconds. Over TLS,
            asyncio would wait 30 s for the client to close it."""
            idle = self.cycle is None or self.cycle.response_complete
            super().shutdown()
            if idle:
                self.loop.call_later(FAREWELL, self.transport.abort)

    class Protocol(Admitting, Known):
        slots = connections or Connections(0)

    Protocol.tls = tls  # own TLS: uvicorn does none
    config = uvicorn.Config(
        application, http=Protocol, ws=websocket_protocol, ws_max_size=LONGEST,  # type: ignore[arg-type]
        ws_per_message_deflate=False, loop="asyncio", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=LAST_ANSWERS)
    return HttpServer(config)


async def _serve(agent: Agent, application: AgentApplication, servers: list[tuple[HttpServer, socket.socket]]) -> None:
    """Serve requests of *application* on all *servers* until a signal arrives.

    After the first signal, running operations get time to end. Meanwhile, reads still work, and changes are rejected
    with status 503, so clients do not consider the host dead. A second signal ends the wait immediately.
    """
    loop, stopping = asyncio.get_running_loop(), False
    REPORT.add_loop(loop)

    def end() -> None:
        application.feed.close()
        for server, _thread in servers:
            server.should_exit = True

    def wind_up() -> None:
        agent.host.operations.close(agent.host.settings.grace)
        with contextlib.suppress(RuntimeError):  # a second signal has ended the loop
            loop.call_soon_threadsafe(end)

    def stop() -> None:
        nonlocal stopping
        if stopping:
            end()
            return
        stopping = True
        log.info("stopping; running operations have %s s", agent.host.settings.grace)
        tell_systemd("STOPPING=1")
        threading.Thread(target=wind_up, name="wind-up", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    tell_systemd("READY=1")
    await asyncio.gather(*(server.serve(sockets=[sock]) for server, sock in servers))


def refuse_old_programs(hypervisor: LocalHypervisor) -> None:
    """Raise ``CannotStart`` if libvirt or QEMU is older than ``LEAST_VERSIONS``. If libvirt does not answer, only write
    this to the log."""
    try:
        older = older_programs(hypervisor.host())
    except HypervisorDown as error:
        log.warning("the versions of libvirt and QEMU are not checked: %s", error.message)
        return
    if older:
        raise CannotStart(f"This host has {' and '.join(older)}, and this agent needs {describe_least_versions()} or "
                          "newer. Upgrade the operating system, or run the agent of an earlier release.", older=older)


def run_agent_server(settings: AgentSettings, connect: Callable[[], LocalHypervisor]) -> None:
    """Run the agent until a signal arrives. *connect* returns the hypervisor connection; it is called after the state
    directory is locked. Raises ``CannotStart`` or another ``MagnetarError`` whose message says what to do."""
    slots = Connections(min(settings.connections_per_address, raise_file_limit() // SHARE))
    pci.check_parents(pci.may_be_allowed(settings.sysfs, settings.pci_device_spec))
    with only_one(settings.state_dir), contextlib.ExitStack() as ending:
        hypervisor = connect()
        ending.callback(hypervisor.close)
        refuse_old_programs(hypervisor)
        cpu_modes.check_cpu_settings(settings, hypervisor)
        machines.check_machine_settings(settings, hypervisor)
        agent = Agent(settings, hypervisor)
        own_disks.check_folders_moved(agent.host)
        ending.callback(agent.close)
        application = AgentApplication(agent)
        unix = unix_socket(settings.socket, settings.socket_group)
        ending.callback(settings.socket.unlink, missing_ok=True)
        servers = [(make_http_server(application, settings, None), unix)]
        if settings.address:
            tls = access.server_tls_context(settings, application.tokens)
            if tls is None:
                log.warning(NO_TCP)
            else:
                servers.append((make_http_server(application, settings, tls, slots), tcp_socket(settings.address)))
        report_agent(agent)
        agent.start()
        garbage.tune_garbage_collection()
        log.info("serving", extra={"socket": str(settings.socket), "listen": settings.listen, "pid": os.getpid()})
        asyncio.run(_serve(agent, application, servers))
        log.info("stopped", extra={"left": agent.host.operations.running()})


NO_TCP = ("listen is set, and there is neither tls_client_ca nor a token, so nobody could be told apart: the agent "
          "does not listen on TCP. Make a token with `magnetar token create NAME --scope operate` and start it again.")


def check_settings(settings: AgentSettings) -> list[str]:
    """Return warnings about *settings*, without starting an agent. Raises ``InvalidSettings`` or another error if no
    agent could start with these settings."""
    warnings = []
    tokens = access.BearerTokens(settings.tokens_file)
    if settings.address and access.server_tls_context(settings, tokens) is None:
        warnings.append(NO_TCP)
    if access.group_id(settings.socket_group) is None:
        warnings.append(f"There is no group {settings.socket_group}; only root could use the socket. "
                        f"Make it: groupadd --system {settings.socket_group}")
    if settings.client_certs and not settings.tls_client_ca:
        raise InvalidSettings("client_certs needs tls_client_ca, or no certificate could be believed.")
    warnings.extend(f"{path} is not a folder yet; nothing can be imported from it."
                    for path in settings.image_paths if not path.is_dir())
    pci.check_parents(pci.may_be_allowed(settings.sysfs, settings.pci_device_spec))
    warnings.extend(pmem.pmem_warnings(settings.sysfs, settings.pmem_namespaces))
    warnings.extend(pci.pci_warnings(settings.sysfs, settings.pci_device_spec, settings.enabled_mdev_types,
                                     bandwidth.parse_bandwidth_setting(settings.resource_provider_bandwidths)))
    return warnings


def tell_systemd(state: str) -> None:
    """Send *state*, such as ``READY=1``, to systemd (for a unit of Type=notify). Does nothing if systemd does not
    manage this process."""
    where: Any = os.environ.get("NOTIFY_SOCKET")
    if where:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
            sock.connect("\0" + where[1:] if where.startswith("@") else where)
            sock.sendall(state.encode())
