# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``createImage``.

The host copies the root disk into a local image, named after the new image's uuid. The content is uploaded to the image
service, and the host's copy is deleted. If the server boots from a volume, the flow takes snapshots of its volumes
instead, and the image names these. The API has created the image as queued; the flow leaves it active or killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from magnetar_control.conductor.steps import keys
from magnetar_control.conductor.worker.retry import attempt_action
from magnetar_control.conductor.worker.work import RunningAction
from magnetar_core.document import Document
from magnetar_core.errors import Cancelled, Conflict, MagnetarError

log = logging.getLogger(__name__)
#: Prefix of the names of copies on hosts; the image's uuid follows.
COPY = "snapshot-"
#: Seconds between two polls of an unfinished snapshot.
POLL = 0.1


def run_image_creation(work: RunningAction, then: Callable[[], None] = lambda: None) -> None:
    """Add the content to the image ``work.args["image"]`` of the server of the action *work*: upload the root disk, or
    take snapshots of the server's volumes. If this fails, set the image's status to killed; the server is not affected.
    *then*: a function that is called after success."""
    if work.action.cancel:  # before it began, or after another conductor had begun it
        delete_copy(work)
        _fail(work, Cancelled("The server was deleted, or its state was reset, before the image had its content."))
        return

    def make() -> None:
        _make(work)
        delete_copy(work)
        then()

    def fails(error: MagnetarError) -> None:
        work.confirm_lease()
        delete_copy(work)
        _fail(work, error)

    attempt_action(work, make, fails, partial(_fail, work))


def _fail(work: RunningAction, error: MagnetarError) -> None:
    """End the action as failed, and set the image's status to killed. If the image is already active, keep it and end
    the action as successful."""
    if _fail_image(work, error.message):
        work.failed(error)
    else:
        work.done()


def fail_deleted_server_image(work: RunningAction) -> None:
    """Set the status of the action's image to killed, because the server was deleted before the action could begin."""
    _fail_image(work, "The server was deleted.")


def _fail_image(work: RunningAction, why: str) -> bool:
    """Set the image's status to killed and delete its volume snapshots, unless the image is already active. Return
    whether the status was set. *why*: the reason, which is shown with the image. A copy of the root disk on the host is
    not deleted."""
    image_document = image_of_server(work, work.args["image"])
    if image_document is not None and image_document["status"] == "active":
        return False
    work.conductor.services.image.fail(work.args["image"], why)
    for snapshot in work.args.get("snapshots") or ():
        try:
            work.conductor.services.volume.delete_snapshot(work.context(), snapshot["id"])
        except MagnetarError as error:
            log.warning("snapshot %s of an image that failed stays: %s", snapshot["id"], error.message)
    return True


def image_of_server(work: RunningAction, id: str) -> Document | None:
    """Return the image *id* as the server's user sees it; ``None`` if it does not exist."""
    return work.conductor.services.image.show(work.context(), id)


def _make(work: RunningAction) -> None:
    images, id, image_document = work.conductor.services.image, work.args["image"], image_of_server(work,
                                                                                                    work.args["image"])
    if image_document is None:
        raise Conflict(f"Image {id} was deleted before it had its content.")
    if image_document["status"] == "active":
        return
    if work.args.get("snapshots"):
        _take_snapshots(work)
        images.upload(id, [])
    else:
        upload_root_disk(work, id)


def _name(work: RunningAction) -> str:
    return COPY + str(work.args["image"])


def upload_root_disk(work: RunningAction, id: str, pending: str = "image_pending_upload",
                     uploading: str = "image_uploading") -> None:
    """Copy the server's root disk on its host, and upload the copy to the image *id*. *pending*, *uploading*: the
    server's task_state during the copy and during the upload."""
    with work.client() as client:
        work.note(task_state=pending)
        secret = keys.disk_key_of_image(work)
        args = {"name": _name(work), **({"secret_uuid": secret} if secret else {})}
        client.event("server", work.id, "create_image", args, request_id=work.idempotency_key)
        work.note(task_state=uploading)
        pieces, size = client.receive("image", _name(work))
        work.conductor.services.image.upload(id, _until_cancelled(work, pieces), size=size)


def _until_cancelled(work: RunningAction, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the *pieces* of an upload. Raises ``Cancelled`` when the action is cancelled, for example because the
    server is being deleted."""
    for piece in pieces:
        work.progress(None)
        yield piece


def delete_copy(work: RunningAction) -> None:
    """Delete the copy of the root disk on the host. If this fails, a periodic task deletes the copy later."""
    try:
        work.delete_on(work.server.host, "image", _name(work))
    except MagnetarError as error:
        log.warning("the copy %s stays on host %s for now: %s", _name(work), work.server.host, error.message)


def _take_snapshots(work: RunningAction) -> None:
    """Create the volume snapshots ``work.args["snapshots"]`` to which the image refers, and wait until they are
    available, because a server must be able to boot from an active image."""
    volumes, context = work.conductor.services.volume, work.context()
    for requested_snapshot in work.args["snapshots"]:
        volumes.create_snapshot(context, requested_snapshot["volume_id"], id=requested_snapshot["id"],
                                name=f"snapshot for {work.args['name']}")
    deadline = time.monotonic() + work.conductor.settings.action_timeout
    for requested_snapshot in work.args["snapshots"]:
        id = requested_snapshot["id"]
        while (snapshot := volumes.snapshot(context, id)) and snapshot["status"] == "creating":
            work.progress(None)
            if time.monotonic() >= deadline:
                raise Conflict(f"Snapshot {id} was not taken in time.")
            time.sleep(POLL)
        if snapshot is None or snapshot["status"] != "available":
            why = (snapshot or {}).get("fault") or "The volume service says why."
            raise Conflict(f"Snapshot {id} of volume {requested_snapshot['volume_id']} could not be taken. {why}")
