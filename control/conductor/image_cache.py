# SPDX-License-Identifier: GPL-3.0-or-later
"""Images on hosts that no server needs any more."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select

from magnetar_control.store.database import now
from magnetar_control.store.tables import actions, servers
from magnetar_core.errors import InUse, MagnetarError, NotFound

from . import snapshot
from .environment import Environment

log = logging.getLogger(__name__)
#: Seconds that an unused image stays on a host.
UNUSED = 24 * 3600.0
#: Names of the copies on hosts.
OF_A_SERVER = re.compile(re.escape(snapshot.COPY) + "[0-9a-f-]{36}")


def remove_unused(conductor: Environment) -> int:
    """Remove images from hosts where no server has needed them for a day, and copies of servers that ``createImage``
    has left; returns how many. A build brings images again."""
    count = 0
    for name, host in list(conductor.states.hosts.items()):
        if host.profile.cell_id != conductor.cell.id or not host.profile.up:
            continue
        try:
            with conductor.agents.client(conductor.endpoint(name)) as client:
                used = _needed_images(conductor, name)
                for image in client.list("image"):
                    # Those that were brought have their uuid for a name; others are the host's own.
                    brought = image["name"] == image["id"]
                    if not (brought and image["id"] not in used and _is_old(image)) and not _is_spent_copy(
                            conductor, image["name"]):
                        continue
                    try:
                        client.delete("image", image["id"])
                        count += 1
                    except (InUse, NotFound):
                        continue
        except MagnetarError as error:
            log.info("images of host %s: %s", name, error.message)
        else:
            conductor.delivery.forget(name)
    return count


def _is_spent_copy(conductor: Environment, name: str) -> bool:
    """Whether an image on a host is the copy of a ``createImage`` that has ended."""
    if not OF_A_SERVER.fullmatch(name):
        return False
    with conductor.database.read() as connection:
        states = set(connection.execute(select(actions.c.state).where(
            actions.c.action == "createImage",
            actions.c.args.contains(name.removeprefix(snapshot.COPY), autoescape=True))).scalars())
    return bool(states) and not states & {"queued", "running"}


def _is_old(image: Mapping[str, Any]) -> bool:
    before = datetime.fromisoformat(now()) - timedelta(seconds=UNUSED)
    moment = datetime.fromisoformat(str(image["updated_at"] or image["created_at"]).rstrip("Z").partition("+")[0])
    return moment < before


def _needed_images(conductor: Environment, host: str) -> set[str]:
    """Images of servers that are on the host or were there a day ago: another conductor may believe that they are
    delivered."""
    before = (datetime.fromisoformat(now()) - timedelta(seconds=UNUSED)).isoformat(timespec="microseconds")
    with conductor.database.read() as connection:
        return set(connection.execute(select(servers.c.image_id).distinct().where(
            servers.c.host == host, servers.c.image_id.is_not(None),
            servers.c.deleted_at.is_(None) | (servers.c.deleted_at > before))).scalars())
