# SPDX-License-Identifier: GPL-3.0-or-later
"""Delivery of servers' images to hosts."""

from __future__ import annotations

from functools import partial

from magnetar_control.conductor.worker.work import RunningAction
from magnetar_control.delivery import ITSELF
from magnetar_control.services import Context
from magnetar_core.http.client import Client


def deliver_image(work: RunningAction, client: Client, host: str, id: str) -> None:
    """Send the image *id* of the server to *host*, unless the host has it. First verify the image's signature if the
    settings or the server's trusted certificates require this. The image of a shelved server is not verified, since it
    is a copy of the server's own disk. *client*: calls the agent of *host*.

    Raises ``ImageRefused``, before anything is sent, if the verification fails; then no other host is tried.
    """
    conductor = work.conductor
    trusted = work.server.trusted_certs or ()

    def verified_checksum(image_id: str, context: Context) -> str | None:
        return conductor.signatures.check(context, image_id, trusted, partial(work.progress, None))

    checksum = verified_checksum(id, work.context()) if id != work.server.shelved_image_id else None
    conductor.delivery.image(client, host, id, work.context(), checksum, partial(verified_checksum, context=ITSELF))
