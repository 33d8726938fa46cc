# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``rescue`` and ``unrescue``: boot from another image, the root disk as second disk, and back."""

from __future__ import annotations

from typing import Any

from magnetar_core.client import Client
from magnetar_core.power import RUNNING, number

from .guest_data import password
from .images import deliver
from .retry import of_host, retry_forever
from .work import Work


@of_host(Work.error, retry_forever)
def rescue(work: Work, client: Client) -> dict[str, Any]:
    """Boot from another image, the root disk as second disk."""
    image = work.args.get("image")
    if image:
        deliver(work, client, work.server.host, image)
    stable = {name: work.args[name] for name in ("image", "device", "bus") if work.args.get(name)}
    return _boot(work, client, stable, **password(work))


@of_host(Work.error, retry_forever)
def unrescue(work: Work, client: Client) -> dict[str, Any]:
    """Boot from the root disk again."""
    return _boot(work, client, None)


def _boot(work: Work, client: Client, rescue_: dict[str, Any] | None, **told: str) -> dict[str, Any]:
    with work.guest(client) as watch:
        client.ensure("server", work.id, {"rescue": rescue_, "power": "running", **told}, progress=watch)
    return {"power_state": number(RUNNING), "fault": None}
