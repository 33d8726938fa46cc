# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``rescue`` and ``unrescue``: boot from another image, with the root disk as second disk, and back."""

from __future__ import annotations

from typing import Any

from magnetar_control.conductor.steps.guest_data import password_field
from magnetar_control.conductor.steps.images import deliver_image
from magnetar_control.conductor.worker.retry import flow_on_host, retry_forever
from magnetar_control.conductor.worker.work import RunningAction
from magnetar_control.scheduler.request_spec import amounts_held_by, rescue_gb
from magnetar_control.store.claims.allocations import set_claimed_disk
from magnetar_core.http.client import Client
from magnetar_core.power import RUNNING, power_number


@flow_on_host(RunningAction.error, retry_forever)
def run_rescue(work: RunningAction, client: Client) -> dict[str, Any]:
    """Boot the server of the action *work* from a rescue image, with its root disk as second disk. Return the changed
    columns of the server's row."""
    image = work.args.get("image")
    if image:
        deliver_image(work, client, work.server.host, image)
    stable = {name: work.args[name] for name in ("image", "device", "bus") if work.args.get(name)}
    return _boot(work, client, stable, **password_field(work))


@flow_on_host(RunningAction.error, retry_forever)
def run_unrescue(work: RunningAction, client: Client) -> dict[str, Any]:
    """Boot the rescued server of the action *work* from its root disk again. Return the changed columns of the server's
    row."""
    return {**_boot(work, client, None), **release_rescue_disk(work)}


def release_rescue_disk(work: RunningAction) -> dict[str, Any]:
    """Reduce the server's claim by the disk space of its removed rescue disk. Return the changed columns of the
    server's row."""
    more = rescue_gb(work.server)
    if more:
        disk_gb = amounts_held_by(work.server)[0].disk_gb - more
        with work.conductor.store.api.write() as connection:
            set_claimed_disk(connection, work.id, work.server.host, disk_gb)
        work.conductor.read_host(work.server.host)
    return {"rescue_gb": None}


def _boot(work: RunningAction, client: Client, rescue_: dict[str, Any] | None, **secret_fields: str) -> dict[str, Any]:
    with work.guest(client) as watch:
        client.ensure("server", work.id, {"rescue": rescue_, "power": "running", **secret_fields}, progress=watch)
    return {"power_state": power_number(RUNNING), "fault": None}
