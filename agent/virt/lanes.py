# SPDX-License-Identifier: GPL-3.0-or-later
"""Places for calls in flight, each on a connection of its own."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from magnetar_core.errors import GuestSilent, Unavailable

from .connection import Connection
from .limits import OF_GUESTS, Lane

if TYPE_CHECKING:
    from collections.abc import Callable

    from .limits import LibvirtLimits

#: Seconds that a call waits for a place.
PLACE_TIMEOUT = 120.0
#: Connections without a call that stay open.
IDLE = 6
#: Guests that an error names.
NAMED = 5


class CallPlace:
    """A place of a call in its *lane*. It is held, with its *connection*, until the call returns."""

    def __init__(self, lane: Lane, connection: Connection, guest: str) -> None:
        self.lane, self.connection, self.guest = lane, connection, guest
        self.hangs = False


class Lanes:
    """All places, and the connections, of which each has one call at a time. A call that hangs gives its place in the
    lane to others and keeps its connection."""

    def __init__(self, limits: LibvirtLimits, connect: Callable[[], Connection]) -> None:
        self.limits = limits
        self._connect = connect
        self._changed = threading.Condition()
        self._idle: list[Connection] = []
        self._taken: set[CallPlace] = set()

    def connections(self) -> list[Connection]:
        """Return all connections."""
        with self._changed:
            return [*self._idle, *(place.connection for place in self._taken)]

    def in_flight(self) -> int:
        """Return how many places are taken, those of hanging calls included."""
        return len(self._taken)

    def take(self, lane: Lane, what: str, guest: str = "", timeout: float = PLACE_TIMEOUT) -> CallPlace:
        """Wait for a place in *lane*, and take it. Raises ``GuestSilent`` where guests that hang hold all places, and
        ``Unavailable`` after *timeout* seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._has_room(lane):
                self._refuse_if_all_hang(lane, what)
                if time.monotonic() >= deadline:
                    raise Unavailable(f"libvirt could not {what}: the host has been busy with other calls to libvirt "
                                      f"for {timeout:.0f} s. Repeat the call later.")
                self._changed.wait(max(0.0, deadline - time.monotonic()))
            place = CallPlace(lane, self._free_connection(), guest)
            self._taken.add(place)
        return place

    def mark_hanging(self, place: CallPlace) -> None:
        """Let another call have the lane's place of this one, which hangs."""
        with self._changed:
            place.hangs = True
            self._changed.notify_all()

    def give_back(self, place: CallPlace) -> None:
        """Free the *place*. Of the connections without a call few stay open."""
        with self._changed:
            self._taken.discard(place)
            stays = len(self._idle) < IDLE
            if stays:
                self._idle.append(place.connection)
            self._changed.notify_all()
        if not stays:
            threading.Thread(target=place.connection.close, name="close-connection", daemon=True).start()

    def close(self) -> None:
        """Close all connections, side by side: one whose libvirtd hangs takes a while."""
        threads = [threading.Thread(target=connection.close, daemon=True) for connection in self.connections()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(15)

    def _has_room(self, lane: Lane) -> bool:
        live = sum(place.lane is lane and not place.hangs for place in self._taken)
        if live >= self.limits.places(lane):
            return False
        return lane not in OF_GUESTS or sum(place.lane in OF_GUESTS for place in self._taken) < self.limits.guests

    def _refuse_if_all_hang(self, lane: Lane, what: str) -> None:
        hanging = [place for place in self._taken if place.hangs and place.lane in OF_GUESTS]
        if lane in OF_GUESTS and len(hanging) >= self.limits.guests:
            names = sorted({place.guest for place in hanging})
            shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
            raise GuestSilent(f"libvirt could not {what}: guests whose QEMU does not answer hold all {len(hanging)} "
                              f"calls that libvirtd has for guests: {shown}. Fix their storage or stop them, or raise "
                              "max_workers in libvirtd.conf.")

    def _free_connection(self) -> Connection:
        """Return the connection that was used last and is open, else another one, else a new one."""
        for at in range(len(self._idle) - 1, -1, -1):
            if self._idle[at].generation is not None:
                return self._idle.pop(at)
        return self._idle.pop() if self._idle else self._connect()
