# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``attach_volume`` and ``detach_volume``.

The API has saved the entry in ``servers.volumes`` and reserved the volume. The flow asks the agents, then tells the
volume service, then saves or removes the entry. Each step may be done again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import orjson

from magnetar_control.services import Document
from magnetar_control.store import servers
from magnetar_core.errors import MagnetarError, NotFound

from .connect_volume import connect, disconnect
from .retry import retry_forever, retry_or_fail
from .work import HostDown, Work

log = logging.getLogger(__name__)


def attach_volume(work: Work) -> None:
    """Attach the volume of ``args["attachment_id"]``; free it again when that fails. While a host does not answer, try
    again."""
    entry = entry_of(work)
    if entry is None:  # a try before has failed already
        work.done()
        return
    try:
        with work.event():
            _attach(work, entry)
    except HostDown:
        retry_forever(work)
    except MagnetarError as error:
        _undo(work, entry, error)
    else:
        work.done()


def _attach(work: Work, entry: Document) -> None:
    volumes, host = work.conductor.services.volume, work.server.host
    volumes.reserve(work.context(), entry["volume_id"], work.id, attachment_id=entry["attachment_id"])
    if not host:  # shelved: it gets the volume when it is on a host again
        return
    device = f"/dev/{connect(work, host, entry)}"
    volumes.attached(entry["attachment_id"], host, device)
    if device != entry["device"]:
        change_entry(work, entry["attachment_id"], lambda one: {**one, "device": device})


def _undo(work: Work, entry: Document, error: Exception) -> None:
    """Free the volume once the guest is without it. Where the guest does not release it, it stays the server's and can
    be detached."""
    try:
        disconnect(work, work.server.host, entry["volume_id"])
    except HostDown:
        retry_forever(work)
        return
    except NotFound:
        pass
    except MagnetarError as kept:
        log.warning("server %s may have volume %s, which it was not to get: %s", work.id, entry["volume_id"],
                    kept.message)
        work.failed(error)
        return
    work.conductor.services.volume.detached(entry["attachment_id"])
    change_entry(work, entry["attachment_id"], lambda _one: None)
    work.failed(error)


def detach_volume(work: Work) -> None:
    """Detach the volume of ``args["attachment_id"]``; the server keeps it when the guest does not release it."""
    entry = entry_of(work)
    if entry is None:
        work.done()
        return
    try:
        with work.event():
            if work.server.host:
                disconnect(work, work.server.host, entry["volume_id"])
            work.conductor.services.volume.detached(entry["attachment_id"])
    except HostDown as error:
        retry_or_fail(work, error)
        return
    except MagnetarError as error:
        work.failed(error)
        return
    change_entry(work, entry["attachment_id"], lambda _one: None)
    work.done()


def entry_of(work: Work) -> Document | None:
    """The entry of the action's attachment in ``servers.volumes``."""
    kept: list[Document] = orjson.loads(work.server.volumes)
    return next((one for one in kept if one["attachment_id"] == work.args["attachment_id"]), None)


def change_entry(work: Work, attachment_id: str, how: Callable[[Document], Document | None]) -> None:
    """Change one entry, or remove it (``None``)."""
    def all_of(kept: list[Document]) -> list[Document]:
        changed = [how(one) if one["attachment_id"] == attachment_id else one for one in kept]
        return [one for one in changed if one is not None]

    def once() -> None:
        with work.database.write() as connection:
            servers.revise(connection, work.id, "volumes", all_of)
            work.database.ring(connection, servers.SERVERS_BELL)

    work.database.retried(once)
    work.load()
