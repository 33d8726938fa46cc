# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``attach_volume`` and ``detach_volume``.

The API has saved the entry in ``servers.volumes`` and reserved the volume. The flow asks the agents, then tells the
volume service, then saves or removes the entry. Each step may be done again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from magnetar_control.conductor.steps.volume_connections import connect, disconnect
from magnetar_control.conductor.worker.retry import attempt, detachment_failed, retry_forever, take_back
from magnetar_control.conductor.worker.work import Work
from magnetar_control.services import Document
from magnetar_core.errors import MagnetarError


def attach_volume(work: Work) -> None:
    """Attach the volume of ``args["attachment_id"]``; free it when that fails. Try until the hosts answer."""
    entry = _entry_of(work)
    if entry is None:  # a try before has failed already
        work.done()
        return

    def fails(error: MagnetarError) -> None:
        take_back(work, f"volume {entry['volume_id']}", error,
                  lambda: disconnect(work, work.server.host, entry["volume_id"]), partial(_forget, work, entry))

    attempt(work, partial(_attach, work, entry), fails, partial(retry_forever, work))


def _attach(work: Work, entry: Document) -> None:
    volumes, host = work.conductor.services.volume, work.server.host
    volumes.reserve(work.context(), entry["volume_id"], work.id, work.confirm_lease,
                    attachment_id=entry["attachment_id"])
    if not host:  # shelved: it gets the volume when it is on a host again, and users see it in use, as at Nova
        volumes.attached(entry["attachment_id"], "", "", work.confirm_lease)
        return
    device = f"/dev/{connect(work, host, entry)}"
    volumes.attached(entry["attachment_id"], host, device, work.confirm_lease)
    if device != entry["device"]:
        _change_entry(work, entry["attachment_id"], lambda one: {**one, "device": device})


def detach_volume(work: Work) -> None:
    """Detach the volume of ``args["attachment_id"]``; the server keeps it when the guest does not release it. Try until
    the hosts answer: the guest may be without it already."""
    entry = _entry_of(work)
    if entry is None:
        work.done()
        return

    def detach() -> None:
        work.begin("The server's state was reset, or the server deleted, before the volume was detached.")
        work.conductor.services.volume.begin_detaching(entry["attachment_id"], work.confirm_lease)
        disconnect(work, work.server.host, entry["volume_id"])
        _forget(work, entry)

    def has(seen: Mapping[str, Any]) -> bool:
        return any(one["id"] == entry["volume_id"] for one in seen["volumes_attached"])

    keep = partial(keep_attached, entry["attachment_id"])
    attempt(work, detach, partial(detachment_failed, work, f"volume {entry['volume_id']}", has, keep=keep),
            partial(retry_forever, work, free=keep))


def keep_attached(attachment_id: str, work: Work) -> None:
    """Show a volume whose detachment is given up as in use again."""
    work.conductor.services.volume.roll_detaching(attachment_id, work.confirm_lease)


def _forget(work: Work, entry: Document) -> None:
    """The guest is without the volume: free it, and remove the entry."""
    work.conductor.services.volume.detached(entry["attachment_id"], work.confirm_lease)
    _change_entry(work, entry["attachment_id"], lambda _one: None)


def _entry_of(work: Work) -> Document | None:
    return next((one for one in work.volumes if one["attachment_id"] == work.args["attachment_id"]), None)


def _change_entry(work: Work, attachment_id: str, how: Callable[[Document], Document | None]) -> None:
    """Change one entry, or remove it (``None``)."""
    def all_of(kept: list[Document]) -> list[Document]:
        changed = [how(one) if one["attachment_id"] == attachment_id else one for one in kept]
        return [one for one in changed if one is not None]

    work.revise("volumes", all_of)
