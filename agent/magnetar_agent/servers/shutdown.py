# SPDX-License-Identifier: GPL-3.0-or-later
"""The shutdown of a guest: press its power button, wait some time, then cut its power (as Nova does).

The button is pressed repeatedly: a guest that is still booting ignores it, and the host cannot see whether it did.
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

#: The field of a server; in the document's state, the value from its image.
FIELD = "shutdown_timeout"
#: Seconds between two checks of a domain during a wait, in case an event is missed.
POLL_INTERVAL = 1.0
#: The clock, in seconds.
clock = time.monotonic


def shutdown_seconds(host: LocalHost, document: Document) -> float:
    """Return how many seconds the guest may take to shut down: the value of the server, or else of its image, or else
    of the settings. 0 means that it is powered off without a shutdown."""
    for timeout in (document.want.get(FIELD), document.state.get(FIELD)):
        if timeout is not None:
            return float(timeout)
    return host.settings.shutdown_timeout


def shut_down_guest(task: Task) -> None:
    """Ask the guest to shut down (ACPI power button). Power it off if it does not shut down within
    ``shutdown_seconds``; immediately if that is 0."""
    allowed = shutdown_seconds(task.host, task.document)
    if not (allowed and _press(task) and _off(task, allowed)):
        task.host.hypervisor.destroy(task.document.id)


def _press(task: Task) -> bool:
    """Send the guest an ACPI power button event. Return False if the guest is paused and cannot react.

    Return True even if libvirt reports an error: usually the guest has just powered off, and libvirt notices it a
    moment later. As in Nova, the caller tries again or powers the guest off.
    """
    hypervisor, id = task.host.hypervisor, task.document.id
    try:
        hypervisor.shutdown(id)
    except HypervisorError as error:
        domain = hypervisor.domain(id)
        if domain is not None and domain.state == PAUSED:
            return False
        log.info("the power button of server %s was not pressed: %s", id, error.message)
    return True


def _off(task: Task, allowed: float) -> bool:
    """Wait up to *allowed* seconds until the guest is off, pressing the power button again at intervals. Return whether
    it is off. While waiting, the operation does not count towards the limit of parallel operations."""
    host, id, interval = task.host, task.document.id, task.host.settings.shutdown_retry_interval
    now = clock()
    deadline, again = now + allowed, now + interval
    with task.operation.waiting():
        while (domain := host.hypervisor.domain(id)) is not None and domain.state in LIVE:
            now = clock()
            if now >= deadline:
                return False
            if now >= again:
                if not _press(task):
                    return False
                again = now + interval
            task.operation.raise_if_cancelled()
            host.changes.wait(id, min(POLL_INTERVAL, deadline - now, again - now))
    return True
