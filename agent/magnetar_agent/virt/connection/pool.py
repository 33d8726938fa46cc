# SPDX-License-Identifier: GPL-3.0-or-later
"""The connections to libvirt, and the entry point of every call.

libvirtd takes few calls at a time on one connection (``max_client_requests``, 5). From a connection with that many it
reads nothing more, not even answers to its keepalive messages, and closes it after 30 s. Also, libvirt's client
sometimes loses a wake-up when two threads call on one connection, so that a call waits for the next keepalive message
(seen with 9.0: 5 s). So each connection has one call at a time. Slots (``lanes``) limit the calls of each kind, so that
libvirtd's workers are enough for all. One connection is for events only.

A call that needs an answer of a guest's QEMU goes through ``ask``, a call that needs one of a storage pool through
``ask_storage``. Each guest and pool has a limit of calls in flight (``gates``). When a guest or pool leaves a call
unanswered for ``patience`` seconds, the caller gets ``GuestSilent`` or ``StorageSilent``. The call itself cannot be
withdrawn: it stays in its thread until it is answered. After two seconds its slot is free for other calls. ``monitors``
describes how a hanging QEMU is detected.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from magnetar_core.errors import HypervisorDown, MagnetarError
from magnetar_core.operations import CURRENT

from .connection import Connection
from .gates import END, STORAGE_WAIT, STORAGE_WAITERS, CallSerializer, LibvirtCall, silent_storage
from .lanes import CallSlot, Lanes
from .limits import Lane, LibvirtLimits, ask_workers
from .monitors import MonitorWatch, monitor_state
from .workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Seconds that QEMU may leave a command of libvirt unanswered, by default.
PATIENCE = 30.0
#: Seconds that a call to end a guest may take. libvirt sends SIGTERM, SIGKILL after 10 s, and waits for 30 s more.
END_TIMEOUT = 90.0
#: Seconds that a change of a storage pool may take.
STORAGE_TIMEOUT = 600.0
#: The kind of the call that lasts as long as a migration. Other calls to the guest may run meanwhile.
MIGRATES = "migrate"
#: The kind of a call that overwrites content of a storage pool. Other calls to the pool may run meanwhile.
WIPES = "wipe"
#: Seconds until the first check of a call to a guest, and between two checks.
FIRST_CHECK, NEXT_CHECK = 2.0, 1.0
#: Seconds to wait until libvirt is back: in an operation, and in other callers after a lost call.
RETURN_TIMEOUT, SHORT_RETURN = 60.0, 5.0
#: Seconds that a connection may take to open while libvirt answers on another one.
OPEN_TIMEOUT = 10.0


class _Call:
    """A libvirt call that runs in a separate thread, so that its caller can stop waiting for the result."""

    def __init__(self, perform: Callable[[], Any], slot: CallSlot, libvirt_call: LibvirtCall | None) -> None:
        self.slot, self.libvirt_call = slot, libvirt_call
        self.began = time.monotonic()
        self._perform = perform
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self, ended: Callable[[_Call], None]) -> None:
        """Execute the call and store its result or exception, then call *ended* with this object."""
        try:
            self._result = self._perform()
        except BaseException as error:  # noqa: BLE001 (the caller raises it)
            self._error = error
        ended(self)
        self._done.set()

    def wait(self, seconds: float) -> bool:
        """Wait up to *seconds* for the end of the call. Return whether it has ended."""
        return self._done.wait(seconds)

    def outcome(self) -> Any:
        """Return the result of the call, or raise its exception."""
        if self._error is not None:
            raise self._error
        return self._result


class ConnectionPool:
    """A pool of connections to libvirt at *uri*, with limits for concurrent calls and detection of calls that hang.
    *prepare*: called with each new ``virConnect`` that receives events. *patience*: seconds after which a call counts
    as failed."""

    def __init__(self, uri: str, prepare: Callable[[Any], None], wait: float = 10.0,
                 limits: LibvirtLimits | None = None, patience: float = PATIENCE) -> None:
        self.uri, self.patience = uri, patience
        self._prepare = prepare
        self._guest_calls, self._workers = CallSerializer(), Workers()
        self._storage_calls = CallSerializer(silent_storage, STORAGE_WAITERS, STORAGE_WAIT)
        self._asks_limits: threading.Thread | None = None
        self._lanes = Lanes(limits or LibvirtLimits(), lambda: Connection(uri, wait=0.0))
        self._events = Connection(uri, self._prepared, wait)

    @property
    def generation(self) -> Any:
        """Return the ``virConnect`` that receives events, or ``None``. It is a new object after each reconnection;
        cached facts about the host are then outdated."""
        return self._events.generation

    def on_connect(self, listener: Callable[[], None]) -> None:
        """Call *listener* in a new thread whenever the connection to libvirt is established from now on."""
        self._events.on_connect(listener)

    def up(self) -> bool:
        """Return whether libvirt responds to a request."""
        if self._events.generation is None:
            return False
        try:
            self._once("answer", lambda conn: conn.getLibVersion(), Lane.READ)
        except MagnetarError:
            return False
        return True

    def close(self) -> None:
        """Close all connections."""
        self._workers.close()
        self._lanes.close()
        self._events.close()
        if self._asks_limits is not None:
            self._asks_limits.join(5)

    def call(self, purpose: str, function: Callable[[Any], T], lane: Lane = Lane.READ, guest: str = "") -> T:
        """Call *function* with a ``virConnect``, and return its result. Only for calls that neither a QEMU nor a
        storage pool can delay; for others, see ``ask`` and ``ask_storage``.

        - *purpose*: completes error messages such as "libvirt could not …".
        - *lane*: class of calls whose limit applies. In ``Lane.READ`` (reads), the call is repeated if the connection
          breaks.
        - *guest*: uuid of a guest if the call belongs to a long operation of the guest, such as a migration; otherwise
          ""."""
        for last in (lane is not Lane.READ, True):
            self._wait_until_up()
            try:
                return self._once(purpose, function, lane, guest)
            except HypervisorDown as error:
                if last or not error.details.get("lost") or not self._events.wait_until_open(SHORT_RETURN):
                    raise
        raise AssertionError

    def ask(self, purpose: str, guest: str, function: Callable[[Any], T], lane: Lane = Lane.GUEST, kind: str = "") -> T:
        """Call *function*, which depends on the QEMU of *guest* (a uuid), with a ``virConnect``, and return its result.
        *purpose*, *lane*: see ``call``. *kind*: type of call; a guest has at most one call of each kind at a time.
        Raises ``GuestSilent`` if QEMU does not respond, and ``Conflict`` if another call to the guest takes too long.
        """
        call = self._enter(self._guest_calls, purpose, guest, function, lane, END if lane is Lane.END else kind)
        if lane is Lane.END:
            return self._follow(call, _Age(call), END_TIMEOUT)  # type: ignore[no-any-return]
        return self._follow(call, MonitorWatch(self, guest, NEXT_CHECK, lane is Lane.START), self.patience)  # type: ignore[no-any-return]

    def ask_storage(self, purpose: str, pool: str, function: Callable[[Any], T], changes: bool = False,
                    wipes: bool = False) -> T:
        """Call *function*, which depends on the storage of *pool*, with a ``virConnect``, and return its result.
        *purpose*: see ``call``. *changes*: the call changes the storage, so it has a longer time limit. *wipes*: the
        call erases content; it has no time limit, and other calls to the pool may run meanwhile. Raises
        ``StorageSilent`` if the storage does not respond."""
        call = self._enter(self._storage_calls, purpose, pool, function, Lane.STORAGE, WIPES if wipes else "", wipes)
        limit = float("inf") if wipes else STORAGE_TIMEOUT if changes else self.patience
        return self._follow(call, _Age(call), limit)  # type: ignore[no-any-return]

    def is_silent(self, guest: str) -> bool:
        """Return whether a call to *guest* (a uuid) hangs."""
        return self._guest_calls.is_silent(guest)

    def in_flight(self) -> int:
        """Return the number of calls in progress."""
        return self._lanes.in_flight()

    # One call -------------------------------------------------------------------------------------------------------
    def _once(self, purpose: str, function: Callable[[Any], T], lane: Lane, guest: str = "") -> T:
        slot = self._lanes.take_slot(lane, purpose, guest)
        try:
            return self._on(slot, purpose, function)
        finally:
            self._lanes.give_back(slot)

    def _on(self, slot: CallSlot, purpose: str, function: Callable[[Any], T]) -> T:
        if slot.connection.generation is None and self._events.generation is not None:
            slot.connection.wait_until_open(OPEN_TIMEOUT)
        return slot.connection.call(purpose, function)

    def _enter(self, serializer: CallSerializer, purpose: str, guest_or_pool: str, function: Callable[[Any], Any],
               lane: Lane, kind: str,
               long: bool = False) -> _Call:
        """Wait until a call that depends on *guest_or_pool* (a guest's uuid or a pool's name) may start under the
        limits of *serializer* and *lane*, then start *function* in a thread. Return the call without waiting for its
        end. *purpose*, *kind*, *long*: see ``CallSerializer.begin_call``."""
        self._wait_until_up()
        libvirt_call = serializer.begin_call(guest_or_pool, purpose, kind, long or lane in (Lane.START, Lane.LONG))
        try:
            slot = self._lanes.take_slot(lane, purpose, guest_or_pool)
        except BaseException:
            serializer.end_call(libvirt_call)
            raise
        return self._begin(lambda: self._on(slot, purpose, function), slot, libvirt_call)

    def _begin(self, perform: Callable[[], Any], slot: CallSlot, libvirt_call: LibvirtCall | None) -> _Call:
        context = contextvars.copy_context()
        call = _Call(lambda: context.run(perform), slot, libvirt_call)
        self._workers.run(lambda: call.run(self._ended))
        return call

    def _ended(self, call: _Call) -> None:
        self._lanes.give_back(call.slot)
        if (libvirt_call := call.libvirt_call) is not None:
            if libvirt_call.given_up:
                log.warning("%s answers again or has ended: %s took %.0f s", libvirt_call.guest_or_pool,
                            libvirt_call.what,
                            time.monotonic() - call.began)
            libvirt_call.serializer.end_call(libvirt_call)

    def _follow(self, call: _Call, look: _Age | MonitorWatch, limit: float) -> Any:
        """Wait for *call* and return its result. *look*: measures for how many seconds the call has had no response; at
        *limit* seconds the error for a hanging guest or pool is raised. While waiting, the current operation does not
        count towards the limit of parallel operations."""
        if call.wait(FIRST_CHECK):
            return call.outcome()
        operation, libvirt_call = CURRENT.get(), call.libvirt_call
        assert libvirt_call is not None
        with nullcontext() if operation is None or libvirt_call.kind == MIGRATES else operation.waiting():
            while not call.wait(NEXT_CHECK):
                seconds = look.unanswered()
                self._note(call.slot, libvirt_call, seconds)
                if seconds >= limit:
                    libvirt_call.serializer.give_up(libvirt_call)
                    error = libvirt_call.serializer.error(libvirt_call.guest_or_pool, libvirt_call.what, seconds)
                    log.warning("%s", error)
                    raise error
        return call.outcome()

    def _note(self, slot: CallSlot, libvirt_call: LibvirtCall, seconds: float) -> None:
        """Mark a call as hanging, or as no longer hanging. *slot*, *libvirt_call*: the call's slot, and its entry in
        ``CallSerializer``. *seconds*: time for which the call has had no response; 0 if it no longer hangs."""
        if seconds >= FIRST_CHECK and not slot.hangs:
            self._lanes.mark_hanging(slot)
            libvirt_call.serializer.set_hanging(libvirt_call, libvirt_call.kind != WIPES)
        elif not seconds and slot.hangs:
            self._lanes.mark_answering(slot)
            libvirt_call.serializer.set_hanging(libvirt_call, False)

    def control(self, guest: str) -> _Call:
        """Start to read the monitor state of the *guest*'s QEMU (``monitor_state``), and return the call without
        waiting for its result."""
        purpose = f"look at the monitor of the domain {guest}"
        slot = self._lanes.take_slot(Lane.READ, purpose, guest)
        return self._begin(lambda: self._on(slot, purpose, lambda conn: monitor_state(conn, guest)), slot, None)

    def unplace(self, call: _Call) -> None:
        """Release the slot of *call*, which hangs, so that other calls can use it."""
        self._lanes.mark_hanging(call.slot)

    # Connection -----------------------------------------------------------------------------------------------------
    def _wait_until_up(self) -> None:
        """If an operation of the agent is running in this thread, wait until libvirt is connected, so that a restart of
        libvirtd does not make the operation fail. Otherwise return immediately."""
        operation = CURRENT.get()
        if self._events.generation is not None or operation is None:
            return
        deadline = time.monotonic() + RETURN_TIMEOUT
        with operation.waiting():
            while not self._events.wait_until_open(NEXT_CHECK) and time.monotonic() < deadline:
                operation.raise_if_cancelled()

    def _prepared(self, conn: Any) -> None:
        self._prepare(conn)
        for connection in self._lanes.connections():
            connection.drop_if_dead()
        self._asks_limits = threading.Thread(target=self._ask_limits, name="libvirt-limits", daemon=True)
        self._asks_limits.start()

    def _ask_limits(self) -> None:
        workers = ask_workers() if self.uri == "qemu:///system" else None
        if workers:
            self._lanes.limits = replace(self._lanes.limits, workers=workers)


class _Age:
    """The time since the start of a call. Used instead of ``MonitorWatch`` for calls to storage pools and calls that
    end a guest, for which libvirt reports no time without a response."""

    def __init__(self, call: _Call) -> None:
        self._began = call.began

    def unanswered(self) -> float:
        """Return the seconds since the start of the call."""
        return time.monotonic() - self._began
