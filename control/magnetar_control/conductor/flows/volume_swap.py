# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``swap_volume``: replace a volume of a running server by another one.

The API has saved the new volume in the entry of the old one (``swap`` in ``servers.volumes``), and reserved the new
one. The flow asks the server's agent, which lets QEMU copy the old volume; then the entry names the new one, and the
old one is free. A swap that fails leaves the guest on the old volume, and frees the new one. Each step can be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from magnetar_control.conductor.steps.block_devices import agents_of_volume, disconnect_volume
from magnetar_control.conductor.worker.retry import attempt_action, retry_forever
from magnetar_control.conductor.worker.work import HostDown, RunningAction, full_is_down
from magnetar_control.documents import VolumeOfServer, attachment_ids
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, MagnetarError, NotFound, TimedOut
from magnetar_core.flows import attach as agent_flow

from .volume_attach import keep_attached

log = logging.getLogger(__name__)


def run_volume_swap(work: RunningAction) -> None:
    """Replace the volume ``work.args["volume_id"]`` of the server of the action *work* by the volume
    ``work.args["new_volume_id"]``. While a host does not answer, the action is repeated."""
    attachment = _swapped_attachment(work)
    if attachment is None:  # an earlier try has failed, or the old volume was detached before
        keep_attached(work.args["attachment_id"], work)
        work.conductor.services.volume.detached(work.args["new_attachment_id"], work.confirm_lease)
        work.done()
        return
    attempt_action(work, partial(_swap, work, attachment), partial(_failed, work),
                   partial(retry_forever, work, free=_free))


def _swapped_attachment(work: RunningAction) -> VolumeOfServer | None:
    """Return the attachment that the action is replacing or has replaced; ``None`` if it no longer exists."""
    new = work.args["new_attachment_id"]
    return next((attachment for attachment in work.volumes if new in attachment_ids(attachment)), None)


def _swap(work: RunningAction, attachment: VolumeOfServer) -> None:
    volumes, args, host = work.conductor.services.volume, work.args, work.server.host
    if attachment["attachment_id"] == args["attachment_id"]:
        work.begin()
        volumes.begin_detaching(args["attachment_id"], work.confirm_lease)
        volumes.reserve(work.context(), args["new_volume_id"], work.id, work.confirm_lease,
                        attachment_id=args["new_attachment_id"])
        device = f"/dev/{_swap_on_host(work, volumes.where(args['new_volume_id']))}"
        volumes.attached(args["new_attachment_id"], host, device, work.confirm_lease)
        _change_swapped_attachment(work, {"volume_id": args["new_volume_id"],
                                          "attachment_id": args["new_attachment_id"], "device": device})
    disconnect_volume(work, host, args["volume_id"])
    volumes.detached(args["attachment_id"], work.confirm_lease)


def _swap_on_host(work: RunningAction, volume_host: str) -> str:
    """Have the server's agent copy the old volume to the new one and switch the guest to it. Return the device name.
    *volume_host*: the host that stores the new volume. During the copy, the worker thread is available to other
    actions. The copy is cancelled when the server is deleted, or after the setting ``action_timeout``."""
    with work.conductor.slots.resting((work.database.name, work.action.id)), \
            agents_of_volume(work, work.server.host, volume_host) as (server_agent, volume_agent):
        def cancel(operation: str) -> None:
            with suppress(Conflict, NotFound):  # it has ended meanwhile
                server_agent.client.cancel(operation)

        def watch(operation: Mapping[str, Any]) -> None:
            if work.cancelled.is_set():
                cancel(operation["id"])

        try:
            made = agent_flow.attach_remote_volume(server_agent, volume_agent, work.id, work.args["new_volume_id"],
                                                   {"replaces": work.args["volume_id"]}, work.confirm_old_lease,
                                                   progress=watch, timeout=work.conductor.settings.action_timeout)
        except TimedOut as error:
            if error.details.get("operation"):
                cancel(error.details["operation"])
            raise
        return str(made["resource"]["device"])


def _change_swapped_attachment(work: RunningAction, values: Document) -> None:
    """Set *values* in the attachment that is being replaced, and remove the field ``swap`` of the attachment."""
    new = work.args["new_attachment_id"]

    def all_of(attachments: list[Document]) -> list[Document]:
        return [{**{name: value for name, value in attachment.items() if name != "swap"}, **values}
                if (attachment.get("swap") or {}).get("attachment_id") == new else attachment
                for attachment in attachments]

    work.revise("volumes", all_of)


def _failed(work: RunningAction, error: MagnetarError) -> None:
    """Handle the failure *error*: abort the swap, release the new volume, and end the action as failed. If the guest
    already uses the new volume, or the host does not answer, repeat the action instead."""
    try:
        with full_is_down():
            goes_on = _is_swapped(work) or not _abort_copy(work)
    except HostDown:
        goes_on = True
    except MagnetarError as why:
        log.warning("server %s: the swap of its volume %s is not given up yet: %s", work.id, work.args["volume_id"],
                    why.message)
        goes_on = True
    if goes_on:
        retry_forever(work, free=_free)
        return
    _free(work)
    work.failed(error)


def _is_swapped(work: RunningAction) -> bool:
    """Return whether the guest uses the new volume and the host's copy operation has ended."""
    try:
        with work.client() as client:
            resource = client.get("volume_attachment", f"{work.id}:{work.args['new_volume_id']}")
    except NotFound:
        return False
    return not resource.get("replaces")


def _abort_copy(work: RunningAction) -> bool:
    """Have the host abort the copy to the new volume, and return whether the copy was aborted. Return ``False`` if the
    guest already uses the new volume."""
    try:
        disconnect_volume(work, work.server.host, work.args["new_volume_id"])
    except NotFound:
        pass
    except Conflict:
        return False
    return True


def _free(work: RunningAction) -> None:
    """Release the reservation of the new volume. The server keeps the old volume."""
    keep_attached(work.args["attachment_id"], work)
    work.conductor.services.volume.detached(work.args["new_attachment_id"], work.confirm_lease)
    _change_swapped_attachment(work, {})
