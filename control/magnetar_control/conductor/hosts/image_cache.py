# SPDX-License-Identifier: GPL-3.0-or-later
"""The delivery of images to hosts before a server needs them. Images are brought one after the other, so that builds
have priority. After a crash the delivery is repeated; an image that a host has already is not brought twice."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.conductor.worker.work import DOWN
from magnetar_control.delivery import ITSELF
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.hosts import image_requests
from magnetar_control.store.hosts.image_requests import ImageRequest
from magnetar_core.errors import MagnetarError, NotFound

log = logging.getLogger(__name__)
#: Seconds between two checks; attempts for an image; seconds to wait for a host that is down.
POLL_INTERVAL, ATTEMPTS, PATIENCE = 2.0, 3, 24 * 3600.0
#: Requests that one check reads.
BATCH_SIZE = 100


class ImageCache:
    """The background task that has hosts download images in advance, when ``POST /os-aggregates/{id}/images`` requests
    this. A thread of its own runs while there are requests."""

    def __init__(self, conductor: Conductor, over: threading.Event) -> None:
        self.conductor, self.over = conductor, over
        self._thread: threading.Thread | None = None

    def start_if_due(self) -> None:
        """Start a thread that processes the pending image requests for hosts of the cell, if there are requests and no
        such thread runs."""
        if self._thread is not None and self._thread.is_alive():
            return
        conductor = self.conductor
        with conductor.database.read() as connection:
            requests = image_requests.fetch_image_requests(connection, [
                name for name, host in list(conductor.states.hosts.items())
                if host.profile.cell_id == conductor.cell.id and host.profile.up], BATCH_SIZE) \
                if image_requests.has_image_requests(connection) else ()
        if requests:
            self._thread = threading.Thread(target=self._bring, args=(requests,), name="images", daemon=True)
            self._thread.start()

    def forget(self) -> None:
        """Delete image requests that have waited for a host longer than ``PATIENCE`` seconds."""
        with self.conductor.database.write() as connection:
            image_requests.expire_image_requests(connection, utc_now(-PATIENCE))

    def _bring(self, requests: Sequence[ImageRequest]) -> None:
        silent = set()
        for row in requests:
            if self.over.is_set():
                return
            try:
                if row.host not in silent and not self.deliver_image(row):
                    silent.add(row.host)
            except Exception:
                log.exception("image %s was not brought to host %s", row.image_id, row.host)
                self._failed(row, row.attempts + 1, "see above")

    def deliver_image(self, row: ImageRequest) -> bool:
        """Have the host of the request *row* get the image, and save the result. If the host does not answer, return
        ``False`` and save nothing."""
        conductor = self.conductor
        try:
            image = conductor.services.image.show(ITSELF, row.image_id)
            if image is None or image["status"] != "active":
                raise NotFound("The image was deleted or deactivated since.", kind="image", key=row.image_id)
            # The request needs the image on the host now, even if it was brought before.
            conductor.delivery.known.discard(("image", row.host, row.image_id))
            with conductor.client(row.host) as client:
                conductor.delivery.image(client, row.host, row.image_id)
        except DOWN as error:
            log.info("host %s does not answer; image %s waits: %s", row.host, row.image_id, error.message)
            return False
        except NotFound as error:  # the image or the host was removed since
            self._failed(row, ATTEMPTS, error.message)
        except MagnetarError as error:
            self._failed(row, row.attempts + 1, error.message)
        else:
            self._end(row)
            log.info("image %s is on host %s", row.image_id, row.host, extra={"host": row.host})
        return True

    def _failed(self, row: ImageRequest, attempts: int, why: str) -> None:
        if attempts < ATTEMPTS:
            with self.conductor.database.write() as connection:
                image_requests.defer_image_request(connection, row.host, row.image_id)
            return
        log.warning("image %s is not brought to host %s: %s", row.image_id, row.host, why, extra={"host": row.host})
        self._end(row)

    def _end(self, row: ImageRequest) -> None:
        with self.conductor.database.write() as connection:
            image_requests.remove_image_request(connection, row.host, row.image_id)
