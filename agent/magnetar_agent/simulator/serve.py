# SPDX-License-Identifier: GPL-3.0-or-later
"""The process of a simulation: listeners of all hosts, signals, and a graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import grp
import json
import logging
import os
import shutil
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.api import access
from magnetar_agent.api.serve import make_http_server, tcp_socket, unix_socket
from magnetar_agent.api.watch import EventLane
from magnetar_agent.process_sections import report_simulation
from magnetar_agent.settings import AgentSettings
from magnetar_core.daemon import garbage
from magnetar_core.daemon.report import REPORT
from magnetar_core.http.connections import Connections, raise_file_limit
from magnetar_core.http.endpoint import HTTPS_PORT

from .certificates import CLIENT, CertificateFiles, make_certificates
from .control import SimulationControl
from .host import DEAD, UP, SharedParts
from .hypervisor import HostSize
from .simulation import SimulatedApplication, Simulation

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

#: Threads for operations and events of all hosts.
THREADS = 256
#: Memory that a temporary state may use.
MEMORY = Path("/dev/shm")  # noqa: S108 - a file system; the folder in it is ours


@dataclass(frozen=True)
class SimulationOptions:
    """The command line options of a simulation. With *port*, the hosts listen on it with TLS, each on its own address
    in 127.0.0.0/8. Without *port*, each host has a unix socket in *socket_folder*."""

    hosts: int
    prefix: str = "kvm"
    socket_folder: Path | None = None
    port: int | None = None
    size: HostSize = dataclasses.field(default_factory=HostSize)
    state_dir: Path | None = None
    socket: Path | None = None
    settings_file: Path | None = None


def loopback_address(number: int) -> str:
    """Return the loopback address (127.66.x.y) of the simulated host *number*, which is from 0 to 63,999."""
    return f"127.66.{number // 250}.{number % 250 + 1}"


def run_simulation(options: SimulationOptions, settings: AgentSettings) -> None:
    """Run the simulated hosts until SIGTERM or SIGINT. SIGUSR1 sets a random tenth of them to the condition dead;
    SIGRTMIN sets all to up.
    """
    with _state_folder(options.state_dir) as state:
        asyncio.run(serve_simulation(options, settings, state, _handle_signals))


def _handle_signals(simulation: Simulation, stop: Callable[[], None]) -> None:
    for number, action in ((signal.SIGUSR1, lambda: simulation.set_condition(DEAD)),
                           (signal.SIGRTMIN, lambda: simulation.set_condition(UP)),
                           (signal.SIGTERM, stop), (signal.SIGINT, stop)):
        simulation.parts.loop.add_signal_handler(number, action)


@contextlib.contextmanager
def _state_folder(folder: Path | None) -> Iterator[Path]:
    """Yield the absolute path of *folder*, which is created if missing. If it is ``None``, yield a temporary folder in
    memory and remove it afterwards."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.absolute()
        return
    temporary = tempfile.mkdtemp(prefix="magnetar-simulation-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
    try:
        yield Path(temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


async def serve_simulation(options: SimulationOptions, settings: AgentSettings, state: Path,
                           begin: Callable[[Simulation, Callable[[], None]], None]) -> None:
    """Serve the simulated hosts. *state*: folder for their files. *begin*: called before the hosts accept connections;
    its arguments are the simulation and a function that stops it."""
    REPORT.add_loop(asyncio.get_running_loop())
    raise_file_limit()
    addresses = name_hosts(options)
    files = make_certificates(state / "certificates", addresses.values()) if options.port else None
    settings = _host_settings(settings, options, state, files)
    with contextlib.ExitStack() as ending:
        threads, lane = ending.enter_context(_pool()), EventLane("watch")
        ending.callback(lane.close)
        endpoints, sockets = _listen(options, state, addresses, settings, ending)
        simulation = Simulation({place: name for name, (place, _endpoint) in endpoints.items()}, addresses,
                                SharedParts(settings, options.size, ending.enter_context(_run_folder()), threads, lane,
                                            asyncio.get_running_loop()))
        ending.callback(simulation.close)
        application = SimulatedApplication(simulation, SimulationControl(simulation).app)
        tls = access.server_tls_context(settings, application.tokens) if files else None
        own_path = (options.socket or state / "simulation.sock").absolute()
        ending.callback(own_path.unlink, missing_ok=True)
        servers = [(make_http_server(application, settings, tls, Connections(0)), sockets), (
            make_http_server(application, settings, None), [unix_socket(own_path, settings.socket_group)])]
        snippet = options.settings_file or state / "hosts.yml"
        snippet.write_text(settings_snippet({name: endpoint for name, (_place, endpoint) in endpoints.items()}, files))
        report_simulation(simulation)
        begin(simulation, lambda: _stop(application, servers))
        garbage.tune_garbage_collection()
        log.info("simulating", extra={"hosts": options.hosts, "socket": str(own_path), "settings_file": str(snippet),
                                      "pid": os.getpid()})
        await asyncio.gather(*(server.serve(sockets=listeners) for server, listeners in servers))


def name_hosts(options: SimulationOptions) -> dict[str, str]:
    """Return ``{host name: loopback address}`` of the simulated hosts, such as kvm0001 with 127.66.0.1."""
    digits = max(4, len(str(options.hosts)))
    return {f"{options.prefix}{number + 1:0{digits}}": loopback_address(number) for number in range(options.hosts)}


@contextlib.contextmanager
def _run_folder() -> Iterator[Path]:
    """Yield a temporary folder with a short path, because paths of unix sockets are limited to about 100 characters."""
    with tempfile.TemporaryDirectory(prefix="msim", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextlib.contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    """Yield the thread pool that all simulated hosts share. At the end, cancel work that has not started."""
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="simulated")
    try:
        yield threads
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _stop(application: SimulatedApplication, servers: list[tuple[Any, list[socket.socket]]]) -> None:
    application.feed.close()
    for server, _listeners in servers:
        server.should_exit = True


def _listen(options: SimulationOptions, state: Path, addresses: dict[str, str], settings: AgentSettings,
            ending: contextlib.ExitStack) -> tuple[dict[str, tuple[str, str]], list[socket.socket]]:
    """Open the listening sockets of all hosts. *addresses*: ``{host name: loopback address}``. *ending*: removes the
    socket files when it closes. Returns ``{host name: (address or socket path, endpoint URL)}`` and the open sockets.
    """
    if options.port:
        return ({name: (address, f"https://{address}:{options.port}") for name, address in addresses.items()},
                [tcp_socket((address, options.port)) for address in addresses.values()])
    folder = (options.socket_folder or state / "sockets").absolute()
    places = {name: folder / f"{name}.sock" for name in addresses}
    group = settings.socket_group if access.group_id(settings.socket_group) is not None else _own_group()
    sockets = []
    for path in places.values():
        sockets.append(unix_socket(path, group))
        ending.callback(path.unlink, missing_ok=True)
    return {name: (str(path), f"unix://{path}") for name, path in places.items()}, sockets


def _own_group() -> str:
    """Return the name of this process's group, to which the sockets belong if the group in the settings does not exist;
    "" if the group has no name."""
    try:
        return grp.getgrgid(os.getegid()).gr_name
    except KeyError:
        return ""


def _host_settings(settings: AgentSettings, options: SimulationOptions, state: Path,
                   files: CertificateFiles | None) -> AgentSettings:
    """Return *settings* with the values for all simulated hosts: the folder *state*, the port at which hosts reach each
    other, and the TLS certificates in *files* (``None`` for no TLS)."""
    pki: dict[str, Any] = {"tls_cert": state / "none.pem", "tls_key": state / "none.key"}
    if files:
        pki = {"tls_cert": files.host_cert, "tls_key": files.host_key, "tls_client_ca": files.ca,
               "client_certs": {CLIENT: access.OPERATE}}
    return dataclasses.replace(settings, state_dir=state, listen=f"127.0.0.1:{options.port or HTTPS_PORT}",
                               tokens_file=state / "tokens.yml", metadata_service=False, **pki)


def settings_snippet(endpoints: dict[str, str], files: CertificateFiles | None) -> str:
    """Return YAML settings for a control plane that uses the simulated hosts. *endpoints*: ``{host name: URL}``.
    *files*: the certificates; ``None`` for no TLS."""
    lines = [] if files is None else [f"agent_ca_cert: {json.dumps(str(files.ca))}",
                                      f"agent_client_cert: {json.dumps(str(files.client_cert))}",
                                      f"agent_client_key: {json.dumps(str(files.client_key))}"]
    lines += ["hosts:", *(f"  {name}: {json.dumps(endpoint)}" for name, endpoint in endpoints.items())]
    return "\n".join(lines) + "\n"
