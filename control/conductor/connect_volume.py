# SPDX-License-Identifier: GPL-3.0-or-later
"""Connect a volume to a guest: by the agent of one host, or by two agents when the volume lies on another host."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from magnetar_control.services import Document
from magnetar_core.errors import Conflict, MagnetarError, NotFound, Unreachable
from magnetar_core.flows import attach as agent_flow
from magnetar_core.flows.migrate import Side

from .work import HostDown, Work


def connect(work: Work, host: str, entry: Mapping[str, Any]) -> str:
    """Attach the volume to the server on *host*, whichever host it lies on. Returns the device name, such as
    ``vdb``."""
    volumes, id = work.conductor.services.volume, entry["volume_id"]
    volume = volumes.show(work.context(), id)
    if volume is None:
        raise NotFound(f"Volume {id} could not be found.")
    want: Document = {"tag": entry["tag"], "readonly": bool(volume.get("readonly"))}
    device = (entry["device"] or "").removeprefix("/dev/")
    with sides(work, host, volumes.where(id)) as (here, there):
        def asked(**more: str) -> str:
            answer = agent_flow.attach(here, there, work.id, id, {**want, **more}, progress=work.progress,
                                    timeout=work.conductor.settings.action_timeout)
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
        agent_flow.detach(here, there, work.id, id, timeout=work.conductor.settings.action_timeout,
                          progress=work.progress)


@contextlib.contextmanager
def sides(work: Work, host: str, place: str) -> Iterator[tuple[Side, Side]]:
    """The agents of the server's *host* and of the volume's *place*, which may be one. Raises ``HostDown``."""
    conductor = work.conductor
    try:
        with conductor.agents.side(conductor.endpoint(host)) as here:
            if place == host:
                yield here, here
                return
            with conductor.agents.side(conductor.endpoint(place)) as there:
                yield here, there
    except Unreachable as error:
        raise HostDown(f"The agent of host {host} or of {place}, which has the volume, does not answer: "
                       f"{error.message}") from None
