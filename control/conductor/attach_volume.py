# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``attach_volume`` and ``detach_volume``.

The API has saved the entry in ``servers.volumes`` and reserved the volume. The flow asks the agents, then tells the
volume service, then saves or removes the entry. Each step may be done again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from magnetar_control.services import Document
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.flows import attach as agent_flow
from magnetar_core.flows.migrate import Side
from magnetar_core.kinds.volume import BUSES

from .retry import attempt, detachment_failed, retry_forever, take_back
from .work import Work


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


def connect(work: Work, host: str, entry: Mapping[str, Any]) -> str:
    """Attach the volume to the server on *host*, whichever host it lies on. Returns the device, such as ``vdb``."""
    volumes, id = work.conductor.services.volume, entry["volume_id"]
    volume = volumes.show(work.context(), id)
    if volume is None:
        raise NotFound(f"Volume {id} could not be found.")
    bus = entry.get("disk_bus")
    want: Document = {"tag": entry["tag"], "readonly": bool(volume.get("readonly")),
                      **({"bus": bus} if bus in BUSES else {})}
    device = (entry["device"] or "").removeprefix("/dev/")
    with sides(work, host, volumes.where(id)) as (here, there):
        def asked(**more: str) -> str:
            answer = agent_flow.attach(here, there, work.id, id, {**want, **more}, work.confirm_old_lease,
                                       progress=work.progress)
            return str(answer["resource"]["device"])

        if not device:
            return asked()
        try:
            return asked(device=device)
        except Conflict as error:
            if error.details.get("field") != "device":
                raise
            return asked()  # the host has another disk of that name: it chooses


def disconnect(work: Work, host: str | None, id: str) -> None:
    """Detach the volume from the server on *host*."""
    if not host:
        return
    try:
        place = work.conductor.services.volume.where(id)
    except MagnetarError:  # it was force-deleted: only the server knows of it
        place = host
    with sides(work, host, place) as (here, there):
        agent_flow.detach(here, there, work.id, id, work.confirm_old_lease, progress=work.progress)


def sides(work: Work, host: str, place: str) -> AbstractContextManager[tuple[Side, Side]]:
    """The agents of the server's host and of the volume's. Raises ``HostDown``."""
    return work.sides(host, place, f"host {host} or of {place}, which has the volume,")
