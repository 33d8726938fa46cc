# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections of volumes to servers on their hosts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from magnetar_control.conductor.worker.work import Work
from magnetar_control.services import Document
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.flows import attach as agent_flow
from magnetar_core.flows.migrate import Side
from magnetar_core.kinds.volume import BUSES


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
