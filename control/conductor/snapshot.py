# SPDX-License-Identifier: GPL-3.0-or-later
"""An image of a server: the flow of ``createImage``.

The host makes a copy of the root disk, as an image of its own that is called by the uuid of ours; its content goes to
the image service; the host's image goes. Of a server on a volume, snapshots of its volumes are taken, which the image
names. The API has made the image already, queued; it ends active or killed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator

from magnetar_control.services import Context, Document
from magnetar_core.errors import Cancelled, Conflict, MagnetarError, NotFound

from .failures import message
from .retry import retry
from .work import HostDown, Work

log = logging.getLogger(__name__)
#: How hosts call their copies begins so, and ends with the uuid of the image.
COPY = "snapshot-"
#: Seconds between two looks at a snapshot that is being taken.
LOOK = 0.1


def create_image(work: Work) -> None:
    """The image of ``args["image"]`` is active, or killed when that cannot be; the server goes on as before."""
    if work.action.cancel:  # before it began, or after another conductor had begun it
        _clear(work)
        _ended(work, Cancelled("The server was deleted, or its state was reset, before the image had its content."))
        return
    try:
        with work.event():
            _make(work)
    except HostDown as error:
        if not retry(work):
            _ended(work, error)
    except MagnetarError as error:
        work.confirm_lease()
        _clear(work)
        _ended(work, error)
    else:
        _clear(work)
        work.done()


def _ended(work: Work, error: Exception) -> None:
    """It failed; but an image that has its content stays, whatever came after."""
    if _given_up(work, message(error)):
        work.failed(error)
    else:
        work.done()


def given_up(work: Work) -> None:
    """The server was deleted before its image was made."""
    _given_up(work, "The server was deleted.")


def _given_up(work: Work, why: str) -> bool:
    """The image will not come, and what was taken for it goes. What a host has that is away goes from there later.
    False, and nothing is done, when the image has its content."""
    found = _found(work)
    if found is not None and found["status"] == "active":
        return False
    work.conductor.services.image.fail(work.args["image"], why)
    for one in work.args.get("snapshots") or ():
        try:
            work.conductor.services.volume.delete_snapshot(work.context(), one["id"])
        except MagnetarError as error:
            log.warning("snapshot %s of an image that failed stays: %s", one["id"], error.message)
    return True


def _found(work: Work) -> Document | None:
    """The image, whoever it belongs to: who asks may be an admin of another project than the server's."""
    server = work.server
    return work.conductor.services.image.show(
        Context(server.user_id, server.project_id, frozenset(("admin",))), work.args["image"])


def _make(work: Work) -> None:
    images, id, found = work.conductor.services.image, work.args["image"], _found(work)
    if found is None:
        raise Conflict(f"Image {id} was deleted before it had its content.")
    if found["status"] == "active":
        return
    if work.args.get("snapshots"):
        _snapshots(work)
        images.upload(id, [])
    else:
        _content(work, id)


def _name(work: Work) -> str:
    """What the host calls its copy."""
    return COPY + str(work.args["image"])


def _content(work: Work, id: str) -> None:
    with work.client() as client:
        work.note(task_state="image_pending_upload")
        client.event("server", work.id, "create_image", {"name": _name(work)},
                     timeout=work.conductor.settings.action_timeout,
                     request_id=work.once)
        work.note(task_state="image_uploading")
        pieces, _size = client.receive("image", _name(work))
        work.conductor.services.image.upload(id, _watched(work, pieces))


def _watched(work: Work, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces, until the server is to go."""
    for piece in pieces:
        work.progress(None)
        yield piece


def _clear(work: Work) -> None:
    """The host has its copy no more; where that cannot be now, the periodic work sees to it."""
    try:
        with contextlib.suppress(NotFound), work.client() as client:
            client.delete("image", _name(work))
    except MagnetarError as error:
        log.warning("the copy %s stays on host %s for now: %s", _name(work), work.server.host, error.message)


# Servers on volumes ---------------------------------------------------------------------------------------------
def _snapshots(work: Work) -> None:
    """Take the snapshots that the image names, and wait for them: an active image can be booted from."""
    volumes, context = work.conductor.services.volume, work.context()
    for one in work.args["snapshots"]:
        volumes.create_snapshot(context, one["volume_id"], id=one["id"], name=f"snapshot for {work.args['name']}")
    deadline = time.monotonic() + work.conductor.settings.action_timeout
    for one in work.args["snapshots"]:
        id = one["id"]
        while (found := volumes.snapshot(context, id)) and found["status"] == "creating":
            work.progress(None)
            if time.monotonic() >= deadline:
                raise Conflict(f"Snapshot {id} was not taken in time.")
            time.sleep(LOOK)
        if found is None or found["status"] != "available":
            raise Conflict(f"Snapshot {id} of volume {one['volume_id']} could not be taken; the volume service says "
                           "why.")
