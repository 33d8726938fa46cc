# SPDX-License-Identifier: GPL-3.0-or-later
"""Slots ("places") that limit the concurrent calls to libvirt. Each call in flight has a separate connection."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from magnetar_core.errors import GuestSilent, StorageSilent, Unavailable, abbreviate_names

from .connection import Connection
from .limits import KEPT, OF_GUESTS, Lane

if TYPE_CHECKING:
    from collections.abc import Callable

    from .limits import LibvirtLimits

#: Seconds that a call waits for a slot.
PLACE_TIMEOUT = 120.0
#: The number of unused connections that stay open.
IDLE = 6
#: The number of guests and storage pools whose last answer is remembered.
ANSWERED = 1000
#: The most names of guests or storage pools in an error.
NAMED = 5


class CallPlace:
    """The slot of one call in its *lane*. The call holds slot and *connection* until it returns. *owner*: the guest or
    storage pool that may delay the call."""

    def __init__(self, lane: Lane, connection: Connection, owner: str) -> None:
        self.lane, self.connection, self.owner = lane, connection, owner
        self.began = time.monotonic()
        self.hangs = False

    @property
    def of_guests(self) -> bool:
        """Return whether the call counts towards the limit of all guests: each call that a guest can delay (lanes
        ``OF_GUESTS``), and each hanging call except those to storage pools."""
        return self.lane in OF_GUESTS or (self.hangs and self.lane is not Lane.STORAGE)


class Lanes:
    """The slots of all lanes, and the connections, each for one call at a time. A call that hangs frees its slot in the
    lane for another call and keeps its connection.

    The calls to all guests together have a limit, and so have the calls to all storage pools. While calls of such a
    group hang, the last slot of the group is reserved: for guests that have answered since the first call hung, or for
    storage pools that have answered."""

    def __init__(self, limits: LibvirtLimits, connect: Callable[[], Connection]) -> None:
        self.limits = limits
        self._connect = connect
        self._changed = threading.Condition()
        self._idle: list[Connection] = []
        self._taken: set[CallPlace] = set()
        #: The time of the last answer of each guest and storage pool, sorted by time.
        self._answered: dict[str, float] = {}

    def connections(self) -> list[Connection]:
        """Return all connections, used and unused."""
        with self._changed:
            return [*self._idle, *(place.connection for place in self._taken)]

    def in_flight(self) -> int:
        """Return the number of calls in flight, including hanging ones."""
        return len(self._taken)

    def take_slot(self, lane: Lane, purpose: str, owner: str = "", timeout: float = PLACE_TIMEOUT) -> CallPlace:
        """Wait for a free slot in *lane*, take the slot for *owner*, and return it. Raises ``GuestSilent`` or
        ``StorageSilent`` when hanging calls hold the slots, and ``Unavailable`` after *timeout* seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._has_room(lane, owner):
                self._refuse_if_all_hang(lane, purpose, owner)
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"libvirt could not {purpose}: the host has been busy with other calls to libvirt "
                                      f"for {timeout:.0f} s. Repeat the call later.")
                self._changed.wait(max(0.0, deadline - time.monotonic()))
            place = CallPlace(lane, self._free_connection(), owner)
            self._taken.add(place)
        return place

    def mark_hanging(self, place: CallPlace) -> None:
        """Free the slot *place* of a hanging call in its lane, for another call. If at most one slot of the calls to
        guests is left, do this only for lanes in ``KEPT`` (calls that a guest or a storage pool can delay), and not for
        calls that end a guest or only read."""
        with self._changed:
            group = [other for other in self._taken if other.of_guests]
            if place.lane not in KEPT and len(group) >= self.limits.guests - 1:
                return
            self._set_hanging(place, True)
            self._answered.pop(place.owner, None)
            self._changed.notify_all()

    def mark_answering(self, place: CallPlace) -> None:
        """Record that the call in this slot does not hang any more: its guest or storage pool answers again."""
        with self._changed:
            self._set_hanging(place, False)
            self._note_answer(place)
            self._changed.notify_all()

    def give_back(self, place: CallPlace) -> None:
        """Free the slot *place*. Close its connection if ``IDLE`` unused connections are open already."""
        with self._changed:
            self._taken.discard(place)
            self._note_answer(place)
            stays = len(self._idle) < IDLE
            if stays:
                self._idle.append(place.connection)
            self._changed.notify_all()
        if not stays:
            threading.Thread(target=place.connection.close, name="close-connection", daemon=True).start()

    def close(self) -> None:
        """Close all connections, in parallel: closing takes long for a connection whose libvirtd hangs."""
        threads = [threading.Thread(target=connection.close, daemon=True) for connection in self.connections()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(15)

    def _set_hanging(self, place: CallPlace, hangs: bool) -> None:
        """Record whether the call in this slot *hangs*. Reads that watch the call (lane ``WATCH``) get the same mark.
        """
        for other in self._taken:
            if other is place or (other.lane is Lane.WATCH and other.owner == place.owner):
                other.hangs = hangs

    def _note_answer(self, place: CallPlace) -> None:
        if place.owner and not place.hangs and place.lane in KEPT:
            self._answered.pop(place.owner, None)
            self._answered[place.owner] = time.monotonic()
            if len(self._answered) > ANSWERED:
                del self._answered[next(iter(self._answered))]

    def _kept(self, owner: str, group: list[CallPlace]) -> int:
        """Return how many free slots of *group* (the calls to all guests, or to all storage pools) a call to *owner*, a
        guest or pool, must leave to others. This is 0 while no call of the group hangs, otherwise 1. It is also 0 for a
        guest that has answered since the first call hung, and for a pool that has answered."""
        began = min((place.began for place in group if place.hangs), default=None)
        if began is None:
            return 0
        if any(place.lane is Lane.STORAGE for place in group):
            return int(owner not in self._answered)
        return int(self._answered.get(owner, 0.0) < began)

    def _group(self, lane: Lane) -> tuple[list[CallPlace], int]:
        """Return the taken slots in the group of *lane* (all calls to storage pools, or all to guests), and the group's
        limit."""
        if lane is Lane.STORAGE:
            return [place for place in self._taken if place.lane is lane], self.limits.storage
        return [place for place in self._taken if place.of_guests], self.limits.guests

    def _has_room(self, lane: Lane, owner: str) -> bool:
        live = sum(place.lane is lane and not place.hangs for place in self._taken)
        if live >= self.limits.places(lane):
            return False
        if lane not in KEPT:
            return True
        group, most = self._group(lane)
        return len(group) < most - self._kept(owner, group)

    def _refuse_if_all_hang(self, lane: Lane, purpose: str, owner: str) -> None:
        if lane not in KEPT:
            return
        group, most = self._group(lane)
        hanging = [place for place in group if place.hangs]
        if not hanging or len(hanging) < most - self._kept(owner, group):
            return
        names = sorted({place.owner for place in hanging})
        shown = abbreviate_names(names, NAMED)
        hold_text = f"hold {len(hanging)} of the {most} calls that libvirtd has for"
        if lane is Lane.STORAGE:
            raise StorageSilent(
                f"libvirt could not {purpose}: storage pools that do not answer {hold_text} them: {shown}. See "
                                "to their storage; the pools that have answered since go on.")
        raise GuestSilent(
            f"libvirt could not {purpose}: guests whose QEMU does not answer {hold_text} guests: {shown}. Fix "
                          "their storage or stop them, or raise max_workers in libvirtd.conf.")

    def _free_connection(self) -> Connection:
        """Return the unused open connection that was used last. If none is open, return any unused one, or a new
        one."""
        for at in range(len(self._idle) - 1, -1, -1):
            if self._idle[at].generation is not None:
                return self._idle.pop(at)
        return self._idle.pop() if self._idle else self._connect()
