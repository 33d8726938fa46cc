# SPDX-License-Identifier: GPL-3.0-or-later
"""Nova's force complete: a live migration that does not converge ends, because its guest is paused until then; or its
guest runs on at the target, where it was begun so that its memory may follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict, NotFound
from magnetar_core.power import RUNNING

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost

#: Name of the event.
EVENT = "force_complete"


def force_complete(host: LocalHost, key: str) -> None:
    """Go over to post-copy where migration *key* may and memory flows already; else pause the guest, which the target
    resumes, or the source if the migration fails. May be done twice. Raises ``NotFound``, or ``Conflict`` for one that
    is not under way from here."""
    document = host.documents.find("migration", key)
    if document is None:
        raise NotFound(f"There is no migration {key!r} on this host.", kind="migration", key=key)
    want = document.want
    if want["side"] != "source" or want["type"] != "live" or document.id not in host.progress:
        raise Conflict(f"Migration {document.id} is no live migration that is under way from this host. Look at its "
                       "status with migration_info.")
    domain = host.hypervisor.domain(want["server"])
    if domain is not None and domain.state == RUNNING and not (
            want.get("post_copy") and host.hypervisor.post_copy(want["server"])):
        host.hypervisor.pause(want["server"])
