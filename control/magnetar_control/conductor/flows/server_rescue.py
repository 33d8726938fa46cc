# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``rescue`` and ``unrescue``: boot from another image, the root disk as second disk, and back."""

from __future__ import annotations

from typing import Any

from magnetar_control.conductor.steps.guest_data import password
from magnetar_control.conductor.steps.images import deliver
from magnetar_control.conductor.worker.retry import of_host, retry_forever
from magnetar_control.conductor.worker.work import Work
from magnetar_control.scheduler.request_spec import held_by, rescue_gb
from magnetar_control.store.claims.rescue_claims import set_disk
from magnetar_core.http.client import Client
from magnetar_core.power import RUNNING, number


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
    return {**_boot(work, client, None), **release_disk(work)}


def release_disk(work: Work) -> dict[str, Any]:
    """Have the server hold its own disks only: its rescue disk is gone. Return what its row says then."""
    more = rescue_gb(work.server._mapping)  # noqa: SLF001 - SQLAlchemy's name
    if more:
        own = held_by(work.server)[0].disk_gb - more
        with work.conductor.store.api.write() as connection:
            set_disk(connection, work.id, work.server.host, own)
        work.conductor.read_host(work.server.host)
    return {"rescue_gb": None}


def _boot(work: Work, client: Client, rescue_: dict[str, Any] | None, **told: str) -> dict[str, Any]:
    with work.guest(client) as watch:
        client.ensure("server", work.id, {"rescue": rescue_, "power": "running", **told}, progress=watch)
    return {"power_state": number(RUNNING), "fault": None}
