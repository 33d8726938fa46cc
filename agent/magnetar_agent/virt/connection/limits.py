# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of libvirtd on concurrent calls, and their division among kinds of calls."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from enum import Enum

from magnetar_agent.virt.tools.process import run_program
from magnetar_core.errors import MagnetarError

log = logging.getLogger(__name__)

#: libvirtd's default of max_workers.
WORKERS = 20
#: The admin sockets of libvirt's daemons for QEMU, by the name of their server.
_SERVERS = {"libvirtd": "libvirtd:///system", "virtqemud": "virtqemud:///system"}
#: Seconds that libvirt's admin interface may take to answer.
_ADMIN_TIMEOUT = 5.0


class Lane(Enum):
    """A class of libvirt calls. Each lane has its own slots, so that slow calls in one lane do not block another lane.
    """

    #: Reads that libvirt answers without asking a QEMU.
    READ = "read"
    #: Calls about the host: capabilities, networks, secrets.
    HOST = "host"
    #: Calls to storage pools, whose storage may hang. Each pool has one call in flight.
    STORAGE = "storage"
    #: Calls that end a guest or one of its jobs. They must succeed when the guest hangs.
    END = "end"
    #: Short calls that need an answer of a guest's QEMU.
    GUEST = "guest"
    #: Starts of guests: a QEMU may prepare its memory for minutes before it answers.
    START = "start"
    #: Other calls to guests that may take long: managed save, migration, block copy.
    LONG = "long"
    #: Reads that watch long calls, and take as long. This lane has as many slots as the lane of long calls.
    WATCH = "watch"
    #: Calls to the guest agent inside a guest, which may never answer.
    AGENT = "guest agent"


#: Lanes whose calls a guest can delay.
OF_GUESTS = frozenset({Lane.GUEST, Lane.START, Lane.LONG, Lane.AGENT})
#: Lanes whose calls a guest or a storage pool can delay.
DELAYABLE = OF_GUESTS | {Lane.STORAGE}
#: Slots of the lanes that neither a guest nor a storage pool can delay.
_FIXED = {Lane.READ: 3, Lane.HOST: 3, Lane.END: 3}
#: The fewest slots of all guests together, and of all storage pools.
_FEWEST, _FEWEST_STORAGE = 4, 4
#: Slots that each lane of calls to guests leaves free for the others.
_LEFT = 2


@dataclass(frozen=True)
class LibvirtLimits:
    """The limits of concurrent libvirt calls. *workers*: number of libvirtd's worker threads (max_workers). Calls that
    never wait for a QEMU can use additional threads (prio_workers)."""

    workers: int = WORKERS

    @property
    def storage(self) -> int:
        """Return the maximum number of concurrent calls to storage pools, including hanging ones."""
        return max(_FEWEST_STORAGE, self.workers // 10)

    @property
    def guests(self) -> int:
        """Return the maximum number of concurrent calls to guests, including hanging ones. The other worker threads
        serve the other lanes (classes of calls, see ``Lane``)."""
        return max(_FEWEST, self.workers - self.storage - sum(_FIXED.values()))

    def max_calls(self, lane: Lane) -> int:
        """Return the maximum number of concurrent calls in *lane*, not counting calls that hang."""
        if lane is Lane.AGENT:
            return max(2, self.guests // 4)  # so that one silent guest agent leaves a slot for the others
        if lane is Lane.STORAGE:
            return self.storage - 1
        return _FIXED.get(lane, self.guests - _LEFT)  # as many for WATCH as for LONG


def ask_workers() -> int | None:
    """Return the maximum number of worker threads of libvirtd or virtqemud, from its admin interface; ``None`` if it
    does not respond."""
    for server, uri in _SERVERS.items():
        try:
            reply = run_program(["virt-admin", "-c", uri, "server-threadpool-info", server],
                                "ask libvirtd for its limits", _ADMIN_TIMEOUT)
        except MagnetarError as error:
            log.debug("%s", error)
            continue
        if match := re.search(r"^maxWorkers\s{0,20}:\s{0,20}([0-9]{1,6})$", reply, re.MULTILINE):
            return int(match[1])
    return None
