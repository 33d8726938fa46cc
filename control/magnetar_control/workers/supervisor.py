# SPDX-License-Identifier: GPL-3.0-or-later
"""The parent process of several API processes (workers) on one port.

Each worker has a listening socket of its own (SO_REUSEPORT), which the parent keeps open: while a worker is replaced,
new connections wait, and none is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from magnetar_control import serve
from magnetar_control.metrics import MAIN
from magnetar_control.reloading import SettingsReloader
from magnetar_control.settings import Settings
from magnetar_core.daemon.report import REPORT
from magnetar_core.errors import InvalidSettings

from .peers import Peers
from .worker import pack_orders

log = logging.getLogger(__name__)
#: Seconds before a worker that ended is replaced: after the first failure, and at most. A worker that lived for
#: ``LONG`` seconds counts as the first one again.
FIRST, MOST, LONG = 0.1, 30.0, 60.0
#: Connections that wait for a worker, as uvicorn has it.
BACKLOG = 2048
#: Seconds that workers have to end in addition to the requests in progress.
MORE = 10.0
#: Settings of the parent process. The workers have all others.
OF_PARENT = frozenset({"listen", "health_listen", "api_workers", "database_url", "cell0_database_url", "ovn_northbound",
                       "ovn_key", "ovn_cert", "ovn_ca_cert", "ovn_gateway_hosts", "physical_mtu", "dhcp_domain"})
#: Seconds that a new worker may take until it serves, when settings are read again.
START = 120.0


class ApiWorker:
    """One API process, started as a subprocess. *listening*: its listening socket, which the parent process does not
    close when this process ends."""

    def __init__(self, settings: Settings, peers: Peers, listening: socket.socket) -> None:
        self.ready, self.retired, self.began = threading.Event(), False, time.monotonic()
        self.process = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-P", "-m", "magnetar_control.workers.worker", str(listening.fileno())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(listening.fileno(),))
        with contextlib.suppress(OSError):  # it has ended
            assert self.process.stdin
            self.process.stdin.write(pack_orders(settings, peers))
            self.process.stdin.flush()

    def wait(self) -> int:
        """Set the event ``ready`` when the process accepts requests. Wait until the process ends, and return its exit
        status."""
        assert self.process.stdout
        if self.process.stdout.read(1):
            self.ready.set()
        status = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        return status

    def end(self, delay: bool = True) -> None:
        """Tell the process to finish its running requests and exit. *delay*: the process first continues to serve for
        ``api_stop_delay`` seconds, with status 503 at /healthz (SIGTERM). Pass false (SIGINT) if a successor serves the
        same port already, because load balancers would take the 503 for the health of the successor."""
        self.retired = True
        self.process.send_signal(signal.SIGTERM if delay else signal.SIGINT)


class ApiWorkers:
    """The API processes of one service: *count* of them. A process that ends is replaced, with growing delays after
    repeated failures."""

    def __init__(self, settings: Settings, count: int) -> None:
        self.settings = settings
        self._ends = contextlib.ExitStack()
        self.close = self._ends.close
        folder = Path(self._ends.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-workers")))
        self._sockets = [self._ends.enter_context(listening) for listening in _listen(settings.listen, count)]
        #: This process as a peer of the workers.
        self.peers = Peers(folder, MAIN, secrets.token_urlsafe(), settings.tls_cert is not None)
        self._workers: list[ApiWorker | None] = [None] * count
        self._failures, self._over, self._lock = [0] * count, threading.Event(), threading.Lock()
        #: Called when the service begins to stop.
        self.on_stop: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start all API processes."""
        for number, listening in enumerate(self._sockets):
            listening.listen(BACKLOG)
            self._begin(number)
        log.info("%d API processes serve on %s", len(self._sockets), self.settings.listen)

    def _begin(self, number: int) -> ApiWorker | None:
        """Start the API process with this *number* and return it; return ``None`` if the service is stopping."""
        with self._lock:
            if self._over.is_set():
                return None
            peers = dataclasses.replace(self.peers, name=str(number + 1), tls=self.settings.tls_cert is not None)
            worker = self._workers[number] = ApiWorker(self.settings, peers, self._sockets[number])
        threading.Thread(target=self._keep, args=(number, worker), name=f"worker {number + 1}", daemon=True).start()
        return worker

    def _keep(self, number: int, worker: ApiWorker) -> None:
        """Wait until the API process *worker* ends, and start a new process, unless *worker* was ended on purpose.
        *number*: the number of the process."""
        status = worker.wait()
        if worker.retired or self._over.is_set():
            return
        lived = time.monotonic() - worker.began
        self._failures[number] = failures = 1 if lived > LONG else self._failures[number] + 1
        pause = min(FIRST * 2 ** min(failures - 1, 20), MOST)
        log.error("API process %d has ended with status %d; a new one starts in %.1f s", number + 1, status, pause)
        if not self._over.wait(pause):
            self._begin(number)

    def reload(self, settings: Settings) -> None:
        """Replace each API process by a new one with *settings*, one after the other. An old process ends after its
        successor accepts requests. If a successor does not start in time, stop replacing: the remaining processes keep
        the old settings."""
        self.settings = settings
        for number, old in enumerate(list(self._workers)):
            successor = self._begin(number)
            if successor is None:
                return
            if not successor.ready.wait(START):
                log.error("API process %d does not serve with the new settings; the others keep theirs", number + 1)
                return
            if old is not None:
                old.end(delay=False)
        log.info("the API processes have the new settings")

    def describe_workers(self) -> list[str]:
        """Return a line about each API process, for reports of this parent process."""
        return [f"api worker {number + 1}: id {worker.process.pid}, started {time.monotonic() - worker.began:.0f} s ago"
                f"{'' if worker.ready.is_set() else ', does not serve yet'}"
                for number, worker in enumerate(self._workers) if worker is not None]

    def stop(self) -> None:
        """End all API processes after their running requests; kill processes that do not end in time."""
        self.on_stop()
        with self._lock:
            self._over.set()
        workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            worker.end()
        deadline = time.monotonic() + self.settings.api_stop_delay + serve.GRACE + MORE
        for worker in workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("an API process did not end, and is killed")
                worker.process.kill()
                worker.process.wait()


def serve_with_workers(settings: Settings, count: int, with_conductor: bool, reloader: SettingsReloader) -> None:
    """Run ``magnetar serve`` (*with_conductor*) or ``magnetar api`` with *count* API processes until SIGTERM. SIGHUP
    replaces these processes by processes with new settings, which *reloader* reads, and also applies the new settings
    to this parent process."""
    signals: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda caught, _frame: signals.put(caught))
    serve.api_tls_context(settings)  # refuses certificates that cannot be read

    def follow(parts: serve.Parts) -> None:
        workers.on_stop = parts.health.stop
        REPORT.add_section("API processes", workers.describe_workers)
        reloader.follow(parts)

    with contextlib.closing(ApiWorkers(settings, count)) as workers, serve.running_server(
            settings, True, with_conductor, workers.peers, follow):
        try:
            workers.start()
            while signals.get() == signal.SIGHUP:
                _reload(workers, reloader, with_conductor)
        finally:
            workers.stop()


def _reload(workers: ApiWorkers, reloader: SettingsReloader, with_conductor: bool) -> None:
    settings = reloader.read()
    if settings is None:
        return
    try:
        serve.api_tls_context(settings)
    except OSError as error:
        log.error("the settings are not read again: %s", error)  # noqa: TRY400
        return
    names = {setting.name for setting in dataclasses.fields(Settings)}
    reloader.apply(settings, () if with_conductor else names - OF_PARENT)
    workers.reload(settings)


def _listen(address: str, count: int) -> list[socket.socket]:
    """Return *count* listening sockets for the same *address* (``HOST:PORT``), which share the port. Raises
    ``InvalidSettings``."""
    host, _colon, port = address.rpartition(":")
    try:
        family, kind, protocol, _name, where = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind, protocol) as alone:  # another service may listen there, and share the port
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(where)
            where = alone.getsockname()
        sockets = []
        for _number in range(count):
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                listening.setsockopt(socket.SOL_SOCKET, option, 1)
            listening.bind(where)
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"listen is {address}, which cannot be listened on: {error}. Give it as host:port of a "
                              "free port of this machine.") from None
    return sockets
