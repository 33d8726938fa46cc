# SPDX-License-Identifier: GPL-3.0-or-later
"""A live migration that does not come to an end is brought to one: the guest stands still until all of it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict, NotFound
from magnetar_core.power import RUNNING

if TYPE_CHECKING:
    from magnetar_agent.host import LocalHost

#: Name of the event.
EVENT = "force_complete"


def hurry(host: LocalHost, key: str) -> None:
    """Pause the guest of the migration *key*, which goes on meanwhile; whoever takes the guest over, or back, runs it
    again. Done twice it is done once. Raises ``NotFound``, or ``Conflict`` for one that is not under way from here."""
    document = host.documents.find("migration", key)
    if document is None:
        raise NotFound(f"There is no migration {key!r} on this host.", kind="migration", key=key)
    want = document.want
    if want["side"] != "source" or want["type"] != "live" or document.id not in host.progress:
        raise Conflict(f"Migration {document.id} is no live migration that is under way from this host. Look at its "
                       "status with migration_info.")
    domain = host.hypervisor.domain(want["server"])
    if domain is not None and domain.state == RUNNING:
        host.hypervisor.pause(want["server"])
