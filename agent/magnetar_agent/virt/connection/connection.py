# SPDX-License-Identifier: GPL-3.0-or-later
"""One connection to libvirt: opened in the background, kept alive, opened again when libvirtd comes back.

``Connection.call`` never waits for a connection and turns libvirt's errors into Magnetar's. The agent has several
connections: see ``pool``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import libvirt  # type: ignore[import-untyped]

from magnetar_core.errors import Conflict, HypervisorDown, HypervisorError, MagnetarError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Seconds between attempts to connect, at first and at most; doubled after each attempt.
BACK_OFF = (0.2, 5.0)
#: Seconds between keepalive messages, and how many libvirtd may leave unanswered before it counts as gone.
KEEPALIVE_SECONDS, KEEPALIVE_COUNT = 5, 3

#: Errors of a broken connection.
_DOWN = frozenset({libvirt.VIR_ERR_INVALID_CONN, libvirt.VIR_ERR_NO_CONNECT, libvirt.VIR_ERR_RPC})
#: Errors for a name or uuid that another domain or network has.
_EXISTS = frozenset({libvirt.VIR_ERR_DOM_EXIST, libvirt.VIR_ERR_NETWORK_EXIST})

libvirt.registerErrorHandler(lambda _context, _error: None, None)  # it would print every error to stderr


class EventLoop:
    """libvirt's event loop, of which a process has only one. It runs in a thread while at least one user is registered.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._registered = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add_user(self) -> None:
        """Register a user of the event loop, and start the thread for the first user. Must be called before a
        connection is opened."""
        with self._lock:
            if not self._registered:
                libvirt.virEventRegisterDefaultImpl()
                # Without a timer to wake it up, the loop would never notice that it must stop.
                libvirt.virEventAddTimeout(500, lambda _timer, _opaque: None, None)
                self._registered = True
            self._users += 1
            if self._users == 1:
                self._stop.clear()
                self._thread = threading.Thread(target=self._run, name="libvirt-events", daemon=True)
                self._thread.start()

    def give(self) -> None:
        """Unregister a user of the event loop, and stop the thread after the last user."""
        with self._lock:
            self._users -= 1
            if self._users or self._thread is None:
                return
            self._stop.set()
            self._thread.join(timeout=5)
            self._thread = None

    def _run(self) -> None:
        while not self._stop.is_set():
            libvirt.virEventRunDefaultImpl()


LOOP = EventLoop()


class Connection:
    """A libvirt connection to *uri* that reconnects automatically. *prepare*: called with each new ``virConnect``.
    *wait*: seconds to wait for the first connection."""

    def __init__(self, uri: str, prepare: Callable[[Any], None] = lambda _conn: None, wait: float = 10.0) -> None:
        self.uri = uri
        self._prepare = prepare
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._conn: Any = None
        self._why = "the agent has not connected to it yet"
        self._closing = False
        self._wake = threading.Event()
        self._first = threading.Event()
        self._opened = threading.Event()
        LOOP.add_user()
        self._thread = threading.Thread(target=self._keep, name="libvirt-connect", daemon=True)
        self._thread.start()
        self._first.wait(wait)

    def on_connect(self, listener: Callable[[], None]) -> None:
        """Call *listener* in a new thread whenever the connection is established from now on."""
        self._listeners.append(listener)

    @property
    def generation(self) -> Any:
        """Return the open ``virConnect``; ``None`` while there is no connection. Each reconnection creates a new
        object, so callers can detect the reconnection."""
        return self._conn

    def wait_until_open(self, seconds: float) -> bool:
        """Wait up to *seconds* until the connection is open. Return whether it is open."""
        if self._conn is None:
            self._wake.set()
        return self._opened.wait(seconds)

    def drop_if_dead(self) -> None:
        """Close this connection if libvirt reports it as broken; a new one is then opened in the background."""
        conn = self._conn
        if conn is not None and not _alive(conn):
            self._drop(conn, "libvirtd was started again")

    def up(self) -> bool:
        """Return whether libvirt responds to a request."""
        try:
            self.call("answer", lambda conn: conn.getLibVersion())
        except MagnetarError:
            return False
        return True

    def call(self, purpose: str, function: Callable[[Any], T]) -> T:
        """Call *function* with the open ``virConnect``, and return its result. *purpose*: completes error messages such
        as "libvirt could not …". Raises ``HypervisorDown`` if there is no connection."""
        conn = self._conn
        if conn is None:
            self._wake.set()
            raise HypervisorDown(f"libvirt at {self.uri} does not answer: {self._why}. The agent keeps trying to "
                                 "connect; see that libvirtd runs on this host, then repeat the call.")
        try:
            return function(conn)
        except libvirt.libvirtError as error:
            raise self._translate(purpose, conn, error) from None

    def close(self) -> None:
        """Close the connection and stop its thread."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=15)
        self._drop(self._conn, "the agent is stopping")
        LOOP.give()

    def _translate(self, purpose: str, conn: Any, error: Any) -> MagnetarError:
        code, text = error.get_error_code(), text_of(error)
        if is_down(conn, error):
            self._drop(conn, text)
            return HypervisorDown(
                f"libvirt could not {purpose}: the connection to it broke ({text}). The agent connects "
                                  "again by itself; repeat the call in a few seconds.", lost=True)
        if code == libvirt.VIR_ERR_NO_DOMAIN:
            return Conflict(
                f"libvirt could not {purpose}: it was removed from outside in the meantime. Repeat the call.")
        if code in _EXISTS:
            return Conflict(f"libvirt could not {purpose}: {text}. Choose another name, or remove what has it.")
        return HypervisorError(f"libvirt could not {purpose}: {text}.", libvirt_code=code)

    def _drop(self, conn: Any, why: str) -> None:
        with self._lock:
            if conn is None or conn is not self._conn:
                return
            self._conn, self._why = None, why
            self._opened.clear()
        if not self._closing:
            log.warning("a connection to libvirt is lost: %s", why)
        self._wake.set()
        with contextlib.suppress(libvirt.libvirtError):  # it may be gone already, which is why it is dropped
            conn.close()

    def _keep(self) -> None:
        pause = BACK_OFF[0]
        while not self._closing:
            if self._conn is not None:
                self._wake.wait()
            elif self._open():
                pause = BACK_OFF[0]
            else:
                self._wake.clear()
                self._wake.wait(pause)
                pause = min(pause * 2, BACK_OFF[1])
                continue
            self._wake.clear()

    def _open(self) -> bool:
        try:
            conn = libvirt.open(self.uri)
            _keep_alive(conn)
            conn.registerCloseCallback(lambda _conn, reason, _opaque: self._lost(reason), None)
            self._prepare(conn)
        except libvirt.libvirtError as error:
            why = text_of(error)
            if why != self._why:
                log.warning("no connection to libvirt at %s: %s", self.uri, why)
            self._why = why
            self._first.set()
            return False
        with self._lock:
            self._conn = conn
            self._opened.set()
        self._first.set()
        log.info("connected to libvirt at %s", self.uri)
        for listener in list(self._listeners):
            threading.Thread(target=listener, name="libvirt-connected", daemon=True).start()
        return True

    def _lost(self, reason: int) -> None:
        """Close the connection in a new thread, after libvirt reported that it is broken. libvirt calls this function
        in its event thread, where closing would deadlock."""
        words = {libvirt.VIR_CONNECT_CLOSE_REASON_ERROR: "an I/O error",
                 libvirt.VIR_CONNECT_CLOSE_REASON_EOF: "libvirtd closed it",
                 libvirt.VIR_CONNECT_CLOSE_REASON_KEEPALIVE: "libvirtd left questions without an answer"}
        if reason != libvirt.VIR_CONNECT_CLOSE_REASON_CLIENT:
            connection = self._conn
            threading.Thread(target=self._drop, args=(connection, words.get(reason, "it broke")), daemon=True).start()


def _keep_alive(conn: Any) -> None:
    with contextlib.suppress(libvirt.libvirtError):  # in-process drivers have nothing to keep alive
        conn.setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVE_COUNT)


def is_down(conn: Any, error: Any) -> bool:
    """Return whether libvirt's *error* means that the connection *conn* is broken, as opposed to a failed request."""
    return error.get_error_code() in _DOWN or not _alive(conn)


def _alive(conn: Any) -> bool:
    try:
        return bool(conn.isAlive() == 1)
    except libvirt.libvirtError:
        return False


def text_of(error: Any) -> str:
    """Return the message of libvirt's *error* on one line, without the final full stop."""
    return " ".join(str(error.get_error_message() or error).split()).rstrip(".")
