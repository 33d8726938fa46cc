# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``shelve`` and ``shelveOffload``, and servers that have been shelved for long enough.

The guest is stopped, and its root disk copied into an image; then the server is shelved. When it is offloaded, at once
or later, it leaves its host: the image, its volumes and its ports stay its own. A root disk is removed only when the
image has it, so the flow can end at any line and be repeated, and nothing is lost.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from magnetar_control.agents import PATIENCE
from magnetar_control.conductor.steps import block_devices, disk_keys
from magnetar_control.conductor.worker.environment import Environment
from magnetar_control.conductor.worker.expired import ask_for_expired, waiting_since
from magnetar_control.conductor.worker.retry import attempt, retry_forever
from magnetar_control.conductor.worker.work import Work, full_is_down
from magnetar_control.services import Document
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.database import now
from magnetar_control.store.servers import servers
from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.image_format import SECRET_UUID
from magnetar_core.power import ACTIVE, LIVE, OFF, OFFLOADED, POWERS, SHELVED, SUSPENDED, number

from . import server_create_image
from .server_power import stop_guest

log = logging.getLogger(__name__)
#: Seconds between two searches for servers that have been shelved for long enough.
LOOK = 15.0
TAKING_OFF = "shelving_offloading"


def shelve(work: Work) -> None:
    """Shelve the server, and offload it where it is not to wait: its root disk is a volume, or the settings say so."""
    def do() -> dict[str, Any]:
        if work.server.vm_state != SHELVED:
            saved = _save(work)
            if work.args["image"] and work.conductor.settings.shelved_offload_time != 0:
                return saved
            work.notifications.followed_by("shelve_offload", work.server.host)
            work.note(task_state=TAKING_OFF, **saved)
        return _leave_host(work)

    fails = partial(_fails, work)
    attempt(work, do, fails, fails, None if work.args["image"] else "compute_shelve_offload_instance")


def offload(work: Work) -> None:
    """``shelveOffload``. The server stays shelved on its host when that fails."""
    stays = partial(_stays, work)
    attempt(work, partial(_leave_host, work), stays, stays)


def _save(work: Work) -> dict[str, Any]:
    """Stop the guest, and give the image its content; returns columns of a server that is shelved."""
    work.begin("The server was deleted, or its state was reset, before it was shelved.")
    id = work.args["image"]
    found = _image(work, id) if id else None  # first: where the quota refuses it, the guest runs on
    stop_guest(work, work.server.host)
    if found is not None:
        if found["status"] != "active":
            server_create_image.upload(work, id, "shelving_image_pending_upload", "shelving_image_uploading")
        server_create_image.delete_copy(work)
    return {"vm_state": SHELVED, "shelved_at": now(), "power_state": number(OFF), "fault": None}


def _image(work: Work, id: str) -> Document:
    """The image *id*, which is made when there is none."""
    found = server_create_image.image(work, id)
    if found is None:
        work.confirm_lease()
        fields, secret = work.args["fields"], disk_keys.of_image(work)
        if secret:
            fields = {**fields, "properties": {**(fields.get("properties") or {}), SECRET_UUID: secret}}
        found = work.conductor.services.image.create(work.context(), id=id, **fields)
    return found


def _leave_host(work: Work) -> dict[str, Any]:
    """Remove the server from its host, and give back what it has of it; returns columns of one that is offloaded."""
    server = work.server
    if not any(one["boot_index"] == 0 for one in work.volumes):
        found = server_create_image.image(work, server.shelved_image_id) if server.shelved_image_id else None
        if found is None or found["status"] != "active":
            raise Conflict("The image with the root disk of the shelved server was deleted or deactivated, so the "
                           "server cannot leave its host. Unshelve it; it can be shelved again then.")
    stop_guest(work, server.host)
    work.confirm_lease()
    with full_is_down():
        work.delete_on(server.host)
    give_back(work)
    return {"vm_state": OFFLOADED, "host": None, "power_state": number(OFF), "fault": None}


def give_back(work: Work) -> None:
    """The server is on no host: nobody connects its volumes, its ports are not bound, and it claims nothing."""
    block_devices.disconnect(work)
    work.conductor.services.network.unbind(work.id, work.confirm_lease)
    with work.conductor.store.api.write() as connection:
        work.confirm_lease()
        held = [row["host"] for row in allocations.held(connection, work.id)]
        allocations.release(connection, work.id)
    for host in held:
        work.conductor.read_host(host)


def _fails(work: Work, error: MagnetarError) -> None:
    """The action has failed. A server that is shelved by now stays so, on its host. Any other is as it was before, but
    for one that was paused or suspended, which is off."""
    work.confirm_lease()
    work.load()
    if work.server.vm_state == SHELVED:
        _stays(work, error)
        return
    if work.args["image"]:
        server_create_image.delete_copy(work)
        delete_image(work, work.args["image"])
    going = work.server.task_state in (servers.DELETING, servers.SOFT_DELETING)
    again = {} if going else _start_again(work)
    work.failed(error, shelved_image_id=None, **again)


def _stays(work: Work, error: MagnetarError) -> None:
    """The server could not leave its host. It stays shelved there; but where the host has lost it by now, or does not
    say, it goes on leaving: its row would tell of a guest that is nowhere."""
    try:
        with work.client(patience=PATIENCE) as client:
            client.get("server", work.id)
    except MagnetarError as why:
        log.warning("server %s was not offloaded, and its host does not show it: %s", work.id, why.message)
        retry_forever(work)
    else:
        work.failed(error)


def _start_again(work: Work) -> dict[str, Any]:
    """Start the guest where it ran before; returns columns by the state that it has."""
    try:
        with work.client(patience=PATIENCE) as client:
            found = client.get("server", work.id)
            if work.server.vm_state == ACTIVE and found["power_state"] not in LIVE:
                found = client.ensure("server", work.id, {"power": "running"})["resource"]
    except MagnetarError as why:
        log.warning("server %s was not shelved, and does not start again: %s", work.id, why.message)
        return {}
    power = POWERS.get(found["power_state"])
    if power is None or power.vm_state is None or work.server.vm_state not in (ACTIVE, "paused", SUSPENDED):
        return {}
    return {"vm_state": power.vm_state, "power_state": power.number}


def delete_image(work: Work, id: str | None) -> None:
    """Delete the image of a shelved server, which nobody needs any more; one that cannot be deleted stays."""
    if not id:
        return
    try:
        work.conductor.services.image.delete(work.context(), id)
    except MagnetarError as error:
        log.warning("server %s: its image %s stays: %s", work.id, id, error.message)


def offload_expired(conductor: Environment) -> int:
    """Offload servers that have been shelved for ``shelved_offload_time``; returns how many."""
    return ask_for_expired(conductor, conductor.settings.shelved_offload_time,
                           partial(waiting_since, SHELVED, "shelved_at"), "shelveOffload")
