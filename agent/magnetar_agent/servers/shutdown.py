# SPDX-License-Identifier: GPL-3.0-or-later
"""Shut a guest down: it is asked by its power button, has its time, and then loses its power (as in Nova).

The button is pressed again and again, since a guest that still boots does not notice it, and nobody can see whether it
has.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from magnetar_core.errors import HypervisorError
from magnetar_core.power import LIVE, PAUSED

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document
    from magnetar_agent.reconcile.task import Task

log = logging.getLogger(__name__)

#: The field of a server; in the document's state, what its image says.
FIELD = "shutdown_timeout"
#: How often a wait for a domain looks, in seconds, whether an event is missed or not.
LOOK = 1.0
#: The clock, in seconds.
clock = time.monotonic


def seconds(host: LocalHost, document: Document) -> float:
    """How long the guest may take: what its server says, else its image, else the settings."""
    for given in (document.want.get(FIELD), document.state.get(FIELD)):
        if given is not None:
            return float(given)
    return host.settings.shutdown_timeout


def shut_down(task: Task) -> None:
    """Press the power button, wait as long as the guest may take, then cut its power; with no time at once."""
    allowed = seconds(task.host, task.document)
    if not (allowed and _press(task) and _off(task, allowed)):
        task.host.hypervisor.destroy(task.document.id)


def _press(task: Task) -> bool:
    """Press the power button; False for a guest that stands still, as it waits for a disk: it does not notice. A press
    that fails is no more than one that is not heard: mostly the guest has just gone off by itself, which libvirt tells
    a moment later. Who waits presses again, or cuts the power (as Nova, which ignores such errors)."""
    hypervisor, id = task.host.hypervisor, task.document.id
    try:
        hypervisor.shutdown(id)
    except HypervisorError as error:
        found = hypervisor.domain(id)
        if found is not None and found.state == PAUSED:
            return False
        log.info("the power button of server %s was not pressed: %s", id, error.message)
    return True


def _off(task: Task, allowed: float) -> bool:
    """Wait until the guest is off or gone, and press again now and then; False when it is not in time. Other
    operations have the place of this one meanwhile."""
    host, id, interval = task.host, task.document.id, task.host.settings.shutdown_retry_interval
    now = clock()
    deadline, again = now + allowed, now + interval
    with task.operation.waiting():
        while (found := host.hypervisor.domain(id)) is not None and found.state in LIVE:
            now = clock()
            if now >= deadline:
                return False
            if now >= again:
                if not _press(task):
                    return False
                again = now + interval
            task.operation.raise_if_cancelled()
            host.changes.wait(id, min(LOOK, deadline - now, again - now))
    return True
