# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits on the calls to each guest and storage pool: on calls in flight, and on callers that wait.

A guest has one call in flight. During a long call (start, managed save, migration) a second one may run, such as a read
of statistics, unless a call hangs. A call that ends the guest waits only for other calls that end it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from magnetar_core.errors import Conflict, GuestSilent, HypervisorError, StorageSilent

#: The most calls that wait for another call to the same guest, and the seconds that they wait at most.
WAITERS, WAIT = 4, 30.0
#: The same for storage pools.
STORAGE_WAITERS, STORAGE_WAIT = 64, 120.0
#: Seconds that a call waits for an earlier one whose caller has given up: QEMU may just have answered or ended.
GRACE = 1.0
#: The kind of calls that end a guest or one of its jobs.
END = "end"
ADVICE = ("The rest of its host goes on. See to the storage of the guest (NFS, NBD, Ceph) and to its QEMU process, or "
          "stop it hard: a forced power-off, a hard reboot or a deletion ends it.")


def silent_guest(guest: str, purpose: str, seconds: float) -> HypervisorError:
    """Return the error for a *guest* whose QEMU has not responded for *seconds*. *purpose*: verb phrase that describes
    the request."""
    return GuestSilent(
        f"The guest {guest} does not answer: its QEMU is hung and has left libvirt's request to {purpose} "
                       f"without an answer for {seconds:.0f} s. {ADVICE}", guest=guest)


def silent_storage(pool: str, purpose: str, seconds: float) -> HypervisorError:
    """Return the error for a storage *pool* that has not responded for *seconds*. *purpose*: verb phrase that describes
    the request."""
    return StorageSilent(
        f"The storage pool {pool!r} does not answer: libvirt could not {purpose} within {seconds:.0f} s. "
                         "The rest of its host goes on. See to the storage behind the pool (its NFS server, disks or "
                         "Ceph cluster).", pool=pool)


class LibvirtCall:
    """A libvirt call in progress to a guest or storage pool. *kind*: type of call; a guest or pool has at most one call
    of each kind at a time. *long*: whether calls of other kinds may run during this call."""

    def __init__(self, serializer: CallSerializer, guest_or_pool: str, purpose: str, kind: str, long: bool) -> None:
        self.serializer, self.guest_or_pool, self.what = serializer, guest_or_pool, purpose
        self.kind, self.long = kind, long
        self.began = time.monotonic()
        #: Whether the call has been unanswered for long, and whether its caller has given up.
        self.hangs = self.given_up = False
        self.waiters = 0


class CallSerializer:
    """A limiter that makes libvirt calls that depend on the same guest or storage pool wait for each other. The
    *guest_or_pool* of a call is the uuid of that guest or the name of that pool.

    - *error*: function that creates the error for a guest or pool that does not respond.
    - *waiters*: maximum number of callers that wait for one call.
    - *wait*: maximum number of seconds that a caller waits.
    """

    def __init__(self, error: Callable[[str, str, float], HypervisorError] = silent_guest, waiters: int = WAITERS,
                 wait: float = WAIT) -> None:
        self.error = error
        self._waiters, self._wait = waiters, wait
        self._changed = threading.Condition()
        self._calls: dict[tuple[str, str], LibvirtCall] = {}

    def is_silent(self, guest_or_pool: str) -> bool:
        """Return whether a libvirt call that depends on *guest_or_pool* (a uuid or a name) hangs."""
        with self._changed:
            return any(libvirt_call.hangs or libvirt_call.given_up
                       for (name, _kind), libvirt_call in self._calls.items() if name == guest_or_pool)

    def begin_call(self, guest_or_pool: str, purpose: str, kind: str = "", long: bool = False) -> LibvirtCall:
        """Wait until a libvirt call that depends on *guest_or_pool* (a uuid or a name) may start, and return its
        ``LibvirtCall``. *purpose*: verb phrase for error messages. *kind*, *long*: see ``LibvirtCall``. Raises
        ``GuestSilent`` or ``StorageSilent`` if an earlier call hangs and its caller has given up (``give_up``). Raises
        ``Conflict`` if an earlier call takes too long or too many callers wait."""
        now = time.monotonic()
        deadline, soon = now + self._wait, now + GRACE
        with self._changed:
            while (libvirt_call := self._before(guest_or_pool, kind)) is not None:
                now = time.monotonic()
                if libvirt_call.given_up and now >= soon:
                    raise self.error(guest_or_pool, libvirt_call.what, now - libvirt_call.began)
                if libvirt_call.waiters >= self._waiters or now >= deadline:
                    raise Conflict(
                        f"libvirt could not {purpose} now: it is still busy with the request to {libvirt_call.what}. "
                                   "Repeat the call when that is done.")
                with _counted(libvirt_call):
                    self._changed.wait((soon if libvirt_call.given_up else deadline) - now)
            libvirt_call = self._calls[guest_or_pool, kind] = LibvirtCall(self, guest_or_pool, purpose, kind, long)
            return libvirt_call

    def set_hanging(self, libvirt_call: LibvirtCall, hangs: bool) -> None:
        """Set whether the call *libvirt_call* hangs. While it hangs, no other call to the same guest or pool may start,
        except calls that end the guest."""
        with self._changed:
            libvirt_call.hangs = hangs
            self._changed.notify_all()

    def give_up(self, libvirt_call: LibvirtCall) -> None:
        """Record that the caller of *libvirt_call* stopped waiting for the result. Until the call returns,
        ``begin_call`` fails for calls that would have to wait for it."""
        with self._changed:
            libvirt_call.given_up = True
            self._changed.notify_all()

    def end_call(self, libvirt_call: LibvirtCall) -> None:
        """Remove *libvirt_call*, because its call has returned."""
        with self._changed:
            if self._calls.get((libvirt_call.guest_or_pool, libvirt_call.kind)) is libvirt_call:
                del self._calls[libvirt_call.guest_or_pool, libvirt_call.kind]
            self._changed.notify_all()

    def _before(self, guest_or_pool: str, kind: str) -> LibvirtCall | None:
        """Return the call in progress to *guest_or_pool* for which a new call of this *kind* has to wait;
        ``None`` if the new call can start."""
        if kind == END:
            return self._calls.get((guest_or_pool, END))
        calls = {other: libvirt_call for (name, other), libvirt_call in self._calls.items()
                 if name == guest_or_pool and other != END}
        return calls.get(kind) or next(
            (libvirt_call for libvirt_call in calls.values() if libvirt_call.hangs or not libvirt_call.long), None)


@contextmanager
def _counted(libvirt_call: LibvirtCall) -> Iterator[None]:
    libvirt_call.waiters += 1
    try:
        yield
    finally:
        libvirt_call.waiters -= 1
