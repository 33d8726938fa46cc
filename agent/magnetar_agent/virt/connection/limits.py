# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of libvirtd, and the shares of them that the agent uses."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from enum import Enum

from magnetar_agent.virt.tools.process import run
from magnetar_core.errors import MagnetarError

log = logging.getLogger(__name__)

#: libvirtd's default of max_workers.
WORKERS = 20
#: The admin sockets of libvirt's daemons for QEMU, by the name of their server.
_SERVERS = {"libvirtd": "libvirtd:///system", "virtqemud": "virtqemud:///system"}
#: Seconds that libvirt's admin interface may take to answer.
_ADMIN_TIMEOUT = 5.0


class Lane(Enum):
    """A kind of calls. Each lane has its own places, so no lane can use up another one."""

    #: Reads that libvirt answers without asking a QEMU.
    LOOK = "look"
    #: What the host is and has: capabilities, networks, secrets.
    HOST = "host"
    #: Storage pools, whose storage may hang. Each pool has one call in flight.
    STORAGE = "storage"
    #: Calls that end a guest or a job of it. They must get through when the guest hangs.
    END = "end"
    #: Short calls that wait for an answer of a guest's QEMU.
    GUEST = "guest"
    #: Starts of guests: a QEMU may prepare its memory for minutes before it answers.
    START = "start"
    #: Other calls to guests that may last: managed save, migration, block copy.
    LONG = "long"
    #: Looks at long calls, which take these calls' time. Who has a place among the long calls has one here.
    WATCH = "watch"
    #: Calls that a guest agent inside a guest answers, or not, as it likes.
    AGENT = "guest agent"


#: Lanes whose calls a guest can keep in flight.
OF_GUESTS = frozenset({Lane.GUEST, Lane.START, Lane.LONG, Lane.AGENT})
#: The same, and those whose calls a storage pool can keep.
KEPT = OF_GUESTS | {Lane.STORAGE}
#: Places of the lanes that neither a guest nor a storage pool can keep.
_FIXED = {Lane.LOOK: 3, Lane.HOST: 3, Lane.END: 3}
#: The fewest places of all guests together, and of all storage pools.
_FEWEST, _FEWEST_STORAGE = 4, 4
#: Places that the lanes of guests leave to each other.
_LEFT = 2


@dataclass(frozen=True)
class LibvirtLimits:
    """The calls that libvirtd serves at once: it has so many *workers* (max_workers), and others for what never waits
    for a QEMU (prio_workers)."""

    workers: int = WORKERS

    @property
    def storage(self) -> int:
        """Calls to storage pools in flight, hung ones included."""
        return max(_FEWEST_STORAGE, self.workers // 10)

    @property
    def guests(self) -> int:
        """Calls to guests in flight, hung ones included. libvirtd's other workers serve the other lanes."""
        return max(_FEWEST, self.workers - self.storage - sum(_FIXED.values()))

    def places(self, lane: Lane) -> int:
        """Calls of *lane* in flight, without those that hang."""
        if lane is Lane.AGENT:
            return max(1, self.guests // 4)
        if lane is Lane.STORAGE:
            return self.storage - 1
        return _FIXED.get(lane, self.guests - _LEFT)  # of WATCH as many as of LONG


def ask_workers() -> int | None:
    """Return the number of workers that libvirt's daemon for QEMU may have, as its admin interface says; ``None`` where
    nothing answers there."""
    for server, uri in _SERVERS.items():
        try:
            reply = run(["virt-admin", "-c", uri, "server-threadpool-info", server], "ask libvirtd for its limits",
                        _ADMIN_TIMEOUT)
        except MagnetarError as error:
            log.debug("%s", error)
            continue
        if match := re.search(r"^maxWorkers\s{0,20}:\s{0,20}([0-9]{1,6})$", reply, re.MULTILINE):
            return int(match[1])
    return None
