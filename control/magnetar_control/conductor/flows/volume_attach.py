# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``attach_volume`` and ``detach_volume``.

The API has saved the entry in ``servers.volumes`` and reserved the volume. The flow asks the agents, then updates the
volume service, then saves or removes the entry. Each step can be repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from magnetar_control.conductor.steps.block_devices import connect_volume, disconnect_volume
from magnetar_control.conductor.worker.retry import (
    attempt_action,
    detachment_failed,
    retry_forever,
    take_back_attachment,
)
from magnetar_control.conductor.worker.work import RunningAction
from magnetar_control.documents import VolumeOfServer
from magnetar_core.document import Document
from magnetar_core.errors import MagnetarError


def run_volume_attachment(work: RunningAction) -> None:
    """Attach a volume to the server of the action *work*. The volume attachment has the id
    ``work.args["attachment_id"]``. If attaching fails, release the volume's reservation. While a host does not answer,
    the action is repeated."""
    attachment = _attachment_of_action(work)
    if attachment is None:  # an earlier try has failed
        work.done()
        return

    def fails(error: MagnetarError) -> None:
        take_back_attachment(work, f"volume {attachment['volume_id']}", error,
                             lambda: disconnect_volume(work, work.server.host, attachment["volume_id"]),
                             partial(_forget, work, attachment))

    attempt_action(work, partial(_attach, work, attachment), fails, partial(retry_forever, work))


def _attach(work: RunningAction, attachment: VolumeOfServer) -> None:
    volumes, host = work.conductor.services.volume, work.server.host
    volumes.reserve(work.context(), attachment["volume_id"], work.id, work.confirm_lease,
                    attachment_id=attachment["attachment_id"])
    if not host:  # shelved: the next host attaches the volume; users see it in use, as in Nova
        volumes.attached(attachment["attachment_id"], "", "", work.confirm_lease)
        return
    device = f"/dev/{connect_volume(work, host, attachment)}"
    volumes.attached(attachment["attachment_id"], host, device, work.confirm_lease)
    if device != attachment["device"]:
        _change_attachment(work, attachment["attachment_id"], lambda saved_attachment: {**saved_attachment,
                                                                                        "device": device})


def run_volume_detachment(work: RunningAction) -> None:
    """Detach a volume from the server of the action *work*. The volume attachment has the id
    ``work.args["attachment_id"]``. If the guest does not release the volume, the volume remains attached. While a host
    does not answer, repeat the action instead of ending it as failed, because the guest may have released the volume
    already."""
    attachment = _attachment_of_action(work)
    if attachment is None:
        work.done()
        return

    def detach() -> None:
        work.begin("The server's state was reset, or the server deleted, before the volume was detached.")
        work.conductor.services.volume.begin_detaching(attachment["attachment_id"], work.confirm_lease)
        disconnect_volume(work, work.server.host, attachment["volume_id"])
        _forget(work, attachment)

    def has(resource: Mapping[str, Any]) -> bool:
        return any(volume["id"] == attachment["volume_id"] for volume in resource["volumes_attached"])

    keep = partial(keep_attached, attachment["attachment_id"])
    attempt_action(work, detach, partial(detachment_failed, work, f"volume {attachment['volume_id']}", has, keep=keep),
                   partial(retry_forever, work, free=keep))


def keep_attached(attachment_id: str, work: RunningAction) -> None:
    """Set the volume's status from detaching back to in-use, because the guest did not release the volume."""
    work.conductor.services.volume.roll_detaching(attachment_id, work.confirm_lease)


def _forget(work: RunningAction, attachment: VolumeOfServer) -> None:
    """Remove the attachment of a volume that the guest no longer has, in the volume service and in the server's row."""
    work.conductor.services.volume.detached(attachment["attachment_id"], work.confirm_lease)
    _change_attachment(work, attachment["attachment_id"], lambda _one: None)


def _attachment_of_action(work: RunningAction) -> VolumeOfServer | None:
    return next((attachment for attachment in work.volumes
                 if attachment["attachment_id"] == work.args["attachment_id"]), None)


def _change_attachment(work: RunningAction, attachment_id: str, how: Callable[[Document], Document | None]) -> None:
    """Replace the attachment *attachment_id* in the server's row by ``how(attachment)``. If *how* returns ``None``,
    remove the attachment."""
    def all_of(attachments: list[Document]) -> list[Document]:
        changed = [how(attachment) if attachment["attachment_id"] == attachment_id else attachment
                   for attachment in attachments]
        return [attachment for attachment in changed if attachment is not None]

    work.revise("volumes", all_of)
