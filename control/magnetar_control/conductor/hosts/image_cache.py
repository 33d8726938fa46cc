# SPDX-License-Identifier: GPL-3.0-or-later
"""Images are brought to hosts before a server needs them, one after the other, so that servers that are made meanwhile
come first. What a crash cuts short is done again: an image that a host has already is not brought twice."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from magnetar_control.conductor.worker.environment import Environment
from magnetar_control.conductor.worker.work import DOWN
from magnetar_control.delivery import ITSELF
from magnetar_control.store.engine.database import now
from magnetar_control.store.hosts import image_requests
from magnetar_core.errors import MagnetarError, NotFound

log = logging.getLogger(__name__)
#: Seconds between two looks; how often an image is tried; seconds for which a host that is down is waited for.
LOOK, ATTEMPTS, PATIENCE = 2.0, 3, 24 * 3600.0
#: How many are read in one look.
AT_ONCE = 100


class ImageCache:
    """What brings them, in a thread of its own while there are some."""

    def __init__(self, conductor: Environment, over: threading.Event) -> None:
        self.conductor, self.over = conductor, over
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Begin to bring what hosts of the cell are to have, unless that is under way."""
        if self._thread is not None and self._thread.is_alive():
            return
        conductor = self.conductor
        with conductor.database.read() as connection:
            found = image_requests.waiting(connection, [
                name for name, host in list(conductor.states.hosts.items())
                if host.profile.cell_id == conductor.cell.id and host.profile.up], AT_ONCE)
        if found:
            self._thread = threading.Thread(target=self._bring, args=(found,), name="images", daemon=True)
            self._thread.start()

    def forget(self) -> None:
        """Give up what hosts that do not come back are to have."""
        with self.conductor.database.write() as connection:
            image_requests.forget(connection, now(-PATIENCE))

    def _bring(self, found: Sequence[Row[Any]]) -> None:
        silent = set()
        for row in found:
            if self.over.is_set():
                return
            try:
                if row.host not in silent and not self.bring(row):
                    silent.add(row.host)
            except Exception:
                log.exception("image %s was not brought to host %s", row.image_id, row.host)
                self._failed(row, row.attempts + 1, "see above")

    def bring(self, row: Row[Any]) -> bool:
        """Bring one image to one host, and note what becomes of it. ``False``, with nothing noted, when the host does
        not answer."""
        conductor = self.conductor
        try:
            image = conductor.services.image.show(ITSELF, row.image_id)
            if image is None or image["status"] != "active":
                raise NotFound("The image was deleted or deactivated since.", kind="image", key=row.image_id)
            # Who asks for it wants it to be there, whatever was brought before.
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

    def _failed(self, row: Row[Any], attempts: int, why: str) -> None:
        if attempts < ATTEMPTS:
            with self.conductor.database.write() as connection:
                image_requests.failed(connection, row.host, row.image_id)
            return
        log.warning("image %s is not brought to host %s: %s", row.image_id, row.host, why, extra={"host": row.host})
        self._end(row)

    def _end(self, row: Row[Any]) -> None:
        with self.conductor.database.write() as connection:
            image_requests.done(connection, row.host, row.image_id)
