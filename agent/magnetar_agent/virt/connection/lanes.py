# SPDX-License-Identifier: GPL-3.0-or-later
"""Slots that limit the concurrent calls to libvirt. Each call in flight has a separate connection."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from magnetar_core.errors import GuestSilent, StorageSilent, Unavailable, abbreviate_names

from .connection import Connection
from .limits import DELAYABLE, OF_GUESTS, Lane

if TYPE_CHECKING:
    from collections.abc import Callable

    from .limits import LibvirtLimits

#: Seconds that a call waits for a slot.
SLOT_TIMEOUT = 120.0
#: The number of unused connections that stay open.
IDLE = 6
#: The number of guests and storage pools whose last answer is remembered.
ANSWERED = 1000
#: The most names of guests or storage pools in an error.
MOST_NAMES = 5


class CallSlot:
    """A slot that a libvirt call occupies in its *lane* (class of calls) until it returns, with the *connection* that
    the call uses. *guest_or_pool*: the uuid of the guest, or the name of the storage pool, that the call depends on; ""
    for none."""

    def __init__(self, lane: Lane, connection: Connection, guest_or_pool: str) -> None:
        self.lane, self.connection, self.guest_or_pool = lane, connection, guest_or_pool
        self.began = time.monotonic()
        self.hangs = False

    @property
    def of_guests(self) -> bool:
        """Return whether the slot counts towards the limit of calls to all guests: its call is in a lane for guests, or
        hangs in any other lane except storage."""
        return self.lane in OF_GUESTS or (self.hangs and self.lane is not Lane.STORAGE)


class Lanes:
    """The slots for concurrent libvirt calls in each lane (class of calls), and the connections that the calls use. A
    call that hangs releases its slot to another call, but keeps its connection.

    All guests together have a limit of calls, and so do all storage pools. While calls hang, the last slot within a
    limit is reserved for guests or pools that have responded recently."""

    def __init__(self, limits: LibvirtLimits, connect: Callable[[], Connection]) -> None:
        self.limits = limits
        self._connect = connect
        self._changed = threading.Condition()
        self._idle: list[Connection] = []
        self._taken: set[CallSlot] = set()
        #: The time of the last answer of each guest and storage pool, sorted by time.
        self._answered: dict[str, float] = {}

    def connections(self) -> list[Connection]:
        """Return all connections to libvirt, used and idle."""
        with self._changed:
            return [*self._idle, *(slot.connection for slot in self._taken)]

    def in_flight(self) -> int:
        """Return the number of calls in progress, including hanging ones."""
        return len(self._taken)

    def take_slot(self, lane: Lane, purpose: str, guest_or_pool: str = "", timeout: float = SLOT_TIMEOUT) -> CallSlot:
        """Wait for a free slot in *lane* and occupy it for a call that depends on *guest_or_pool* (a guest's uuid or a
        pool's name; "" for none). *purpose*: verb phrase for error messages. Raises ``GuestSilent`` or
        ``StorageSilent`` if hanging calls occupy all slots, and ``Unavailable`` after *timeout* seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._has_room(lane, guest_or_pool):
                self._refuse_if_all_hang(lane, purpose, guest_or_pool)
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"libvirt could not {purpose}: the host has been busy with other calls to libvirt "
                                      f"for {timeout:.0f} s. Repeat the call later.")
                self._changed.wait(max(0.0, deadline - time.monotonic()))
            slot = CallSlot(lane, self._free_connection(), guest_or_pool)
            self._taken.add(slot)
        return slot

    def mark_hanging(self, slot: CallSlot) -> None:
        """Mark the call in *slot* as hanging, so that another call can use its slot in the lane. In a lane that is
        neither for guests nor for storage, a hanging call counts towards the limit for guests. Such a call is therefore
        marked only if at least two slots of that limit are free."""
        with self._changed:
            group = [other for other in self._taken if other.of_guests]
            if slot.lane not in DELAYABLE and len(group) >= self.limits.guests - 1:
                return
            self._set_hanging(slot, True)
            self._answered.pop(slot.guest_or_pool, None)
            self._changed.notify_all()

    def mark_answering(self, slot: CallSlot) -> None:
        """Mark the call in *slot* as no longer hanging: its guest or storage pool responds again."""
        with self._changed:
            self._set_hanging(slot, False)
            self._note_answer(slot)
            self._changed.notify_all()

    def give_back(self, slot: CallSlot) -> None:
        """Release *slot* after its call returned. Close its connection if there are already ``IDLE`` idle
        connections."""
        with self._changed:
            self._taken.discard(slot)
            self._note_answer(slot)
            stays = len(self._idle) < IDLE
            if stays:
                self._idle.append(slot.connection)
            self._changed.notify_all()
        if not stays:
            threading.Thread(target=slot.connection.close, name="close-connection", daemon=True).start()

    def close(self) -> None:
        """Close all connections in parallel, because closing is slow if libvirtd hangs."""
        threads = [threading.Thread(target=connection.close, daemon=True) for connection in self.connections()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(15)

    def _set_hanging(self, slot: CallSlot, hangs: bool) -> None:
        """Mark the call in *slot* as hanging or not, and likewise the calls (lane ``WATCH``) that read the state
        of the same guest's QEMU to monitor it."""
        for other in self._taken:
            if other is slot or (other.lane is Lane.WATCH and other.guest_or_pool == slot.guest_or_pool):
                other.hangs = hangs

    def _note_answer(self, slot: CallSlot) -> None:
        if slot.guest_or_pool and not slot.hangs and slot.lane in DELAYABLE:
            self._answered.pop(slot.guest_or_pool, None)
            self._answered[slot.guest_or_pool] = time.monotonic()
            if len(self._answered) > ANSWERED:
                del self._answered[next(iter(self._answered))]

    def _reserved_slots(self, guest_or_pool: str, group: list[CallSlot]) -> int:
        """Return how many free slots (0 or 1) are reserved for other guests or pools than *guest_or_pool*: 1 while a
        call in *group* hangs, unless *guest_or_pool* has responded since the oldest hanging call began. For a pool, a
        response since its own last hanging call is enough. *group*: the occupied slots of all guests, or of all storage
        pools."""
        began = min((slot.began for slot in group if slot.hangs), default=None)
        if began is None:
            return 0
        if any(slot.lane is Lane.STORAGE for slot in group):
            return int(guest_or_pool not in self._answered)
        return int(self._answered.get(guest_or_pool, 0.0) < began)

    def _group(self, lane: Lane) -> tuple[list[CallSlot], int]:
        """Return the occupied slots that share a limit with *lane* (of all storage pools, or of all guests), and this
        limit."""
        if lane is Lane.STORAGE:
            return [slot for slot in self._taken if slot.lane is lane], self.limits.storage
        return [slot for slot in self._taken if slot.of_guests], self.limits.guests

    def _has_room(self, lane: Lane, guest_or_pool: str) -> bool:
        live = sum(slot.lane is lane and not slot.hangs for slot in self._taken)
        if live >= self.limits.max_calls(lane):
            return False
        if lane not in DELAYABLE:
            return True
        group, most = self._group(lane)
        return len(group) < most - self._reserved_slots(guest_or_pool, group)

    def _refuse_if_all_hang(self, lane: Lane, purpose: str, guest_or_pool: str) -> None:
        if lane not in DELAYABLE:
            return
        group, most = self._group(lane)
        hanging = [slot for slot in group if slot.hangs]
        if not hanging or len(hanging) < most - self._reserved_slots(guest_or_pool, group):
            return
        names = sorted({slot.guest_or_pool for slot in hanging})
        shown = abbreviate_names(names, MOST_NAMES)
        hold_text = f"hold {len(hanging)} of the {most} calls that libvirtd has for"
        if lane is Lane.STORAGE:
            raise StorageSilent(
                f"libvirt could not {purpose}: storage pools that do not answer {hold_text} them: {shown}. See "
                                "to their storage; the pools that have answered since go on.")
        raise GuestSilent(
            f"libvirt could not {purpose}: guests whose QEMU does not answer {hold_text} guests: {shown}. Fix "
                          "their storage or stop them, or raise max_workers in libvirtd.conf.")

    def _free_connection(self) -> Connection:
        """Return an idle connection, preferably an open one that was used recently; a new connection if none is idle.
        """
        for at in range(len(self._idle) - 1, -1, -1):
            if self._idle[at].generation is not None:
                return self._idle.pop(at)
        return self._idle.pop() if self._idle else self._connect()
