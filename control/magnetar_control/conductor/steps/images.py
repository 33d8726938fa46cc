# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of servers, on their way to a host."""

from __future__ import annotations

from functools import partial

import orjson

from magnetar_control.conductor.worker.work import Work
from magnetar_control.delivery import ITSELF
from magnetar_control.services import Context
from magnetar_core.http.client import Client


def deliver(work: Work, client: Client, host: str, id: str) -> None:
    """Have an image of the server on *host*, with the content whose signature was verified, where the settings or the
    server's trusted certificates ask for that. Raises ``ImageRefused`` before anything is sent: no other host is tried
    then. The image in which a server was shelved is its own disk, and nobody's to sign."""
    conductor = work.conductor
    trusted = orjson.loads(work.server.trusted_certs) if work.server.trusted_certs else ()

    def verified_checksum(image_id: str, context: Context) -> str | None:
        return conductor.signatures.check(context, image_id, trusted, partial(work.progress, None))

    checksum = verified_checksum(id, work.context()) if id != work.server.shelved_image_id else None
    conductor.delivery.image(client, host, id, work.context(), checksum, partial(verified_checksum, context=ITSELF))
