# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``swap_volume``: another volume takes the place of one that a server has, while it runs.

The API has noted the new volume in the entry of the old one (``swap`` in ``servers.volumes``) and reserved it. The flow
asks the server's agent, which has QEMU copy the old volume; then the entry names the new one, and the old one is free.
A swap that fails leaves the guest on the old volume, and frees the new one. Each step may be done again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from magnetar_control.conductor.steps.volume_connections import disconnect, sides
from magnetar_control.conductor.worker.retry import attempt, retry_forever
from magnetar_control.conductor.worker.work import HostDown, Work, full_is_down
from magnetar_control.services import Document
from magnetar_core.errors import Conflict, MagnetarError, NotFound, TimedOut
from magnetar_core.flows import attach as agent_flow

from .volume_attach import keep_attached

log = logging.getLogger(__name__)


def swap_volume(work: Work) -> None:
    """Put the volume ``args["new_volume_id"]`` in the place of ``args["volume_id"]``. Try until the hosts answer."""
    entry = _entry_of(work)
    if entry is None:  # a try before has failed already, or the old volume was detached before
        keep_attached(work.args["attachment_id"], work)
        work.conductor.services.volume.detached(work.args["new_attachment_id"], work.confirm_lease)
        work.done()
        return
    attempt(work, partial(_swap, work, entry), partial(_failed, work), partial(retry_forever, work, free=_free))


def _entry_of(work: Work) -> Document | None:
    """The entry that has, or is given, the new volume."""
    new = work.args["new_attachment_id"]
    return next((one for one in work.volumes
                 if new in (one["attachment_id"], (one.get("swap") or {}).get("attachment_id"))), None)


def _swap(work: Work, entry: Document) -> None:
    volumes, args, host = work.conductor.services.volume, work.args, work.server.host
    if entry["attachment_id"] == args["attachment_id"]:
        work.begin()
        volumes.begin_detaching(args["attachment_id"], work.confirm_lease)
        volumes.reserve(work.context(), args["new_volume_id"], work.id, work.confirm_lease,
                        attachment_id=args["new_attachment_id"])
        device = f"/dev/{_ask(work, volumes.where(args['new_volume_id']))}"
        volumes.attached(args["new_attachment_id"], host, device, work.confirm_lease)
        _change_entry(work, {"volume_id": args["new_volume_id"], "attachment_id": args["new_attachment_id"],
                             "device": device})
    disconnect(work, host, args["volume_id"])
    volumes.detached(args["attachment_id"], work.confirm_lease)


def _ask(work: Work, place: str) -> str:
    """Have the server's agent swap the volumes, of which the new one lies on *place*: returns the device. Others have
    the worker's place meanwhile, as the volume's size says how long it takes. The agent ends the copy when the server
    is deleted, or after the setting ``action_timeout``."""
    with work.conductor.resting((work.database.name, work.action.id)), \
            sides(work, work.server.host, place) as (here, there):
        def cancel(operation: str) -> None:
            with suppress(Conflict, NotFound):  # it has ended meanwhile
                here.client.cancel(operation)

        def watch(operation: Mapping[str, Any]) -> None:
            if work.cancelled.is_set():
                cancel(operation["id"])

        try:
            made = agent_flow.attach(here, there, work.id, work.args["new_volume_id"],
                                     {"replaces": work.args["volume_id"]}, work.confirm_old_lease, progress=watch,
                                     timeout=work.conductor.settings.action_timeout)
        except TimedOut as error:
            if error.details.get("operation"):
                cancel(error.details["operation"])
            raise
        return str(made["resource"]["device"])


def _change_entry(work: Work, values: Document) -> None:
    """Change the entry, which has no ``swap`` any more."""
    new = work.args["new_attachment_id"]

    def all_of(kept: list[Document]) -> list[Document]:
        return [{**{name: value for name, value in one.items() if name != "swap"}, **values}
                if (one.get("swap") or {}).get("attachment_id") == new else one for one in kept]

    work.revise("volumes", all_of)


def _failed(work: Work, error: MagnetarError) -> None:
    """Have the host give it up; where the guest is on the new volume already, go on until all is done."""
    try:
        with full_is_down():
            gone = _is_swapped(work) or not _is_given_up(work)
    except HostDown:
        gone = True
    except MagnetarError as why:
        log.warning("server %s: the swap of its volume %s is not given up yet: %s", work.id, work.args["volume_id"],
                    why.message)
        gone = True
    if gone:
        retry_forever(work, free=_free)
        return
    _free(work)
    work.failed(error)


def _is_swapped(work: Work) -> bool:
    """Whether the guest has the new volume, and the host nothing left to do."""
    try:
        with work.client() as client:
            found = client.get("volume_attachment", f"{work.id}:{work.args['new_volume_id']}")
    except NotFound:
        return False
    return not found.get("replaces")


def _is_given_up(work: Work) -> bool:
    """Have the host end the copy. ``False`` where the guest is on the new volume."""
    try:
        disconnect(work, work.server.host, work.args["new_volume_id"])
    except NotFound:
        pass
    except Conflict:
        return False
    return True


def _free(work: Work) -> None:
    """The server keeps the old volume, and does not get the new one."""
    keep_attached(work.args["attachment_id"], work)
    work.conductor.services.volume.detached(work.args["new_attachment_id"], work.confirm_lease)
    _change_entry(work, {})
