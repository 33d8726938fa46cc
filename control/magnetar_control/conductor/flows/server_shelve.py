# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``shelve`` and ``shelveOffload``, and the periodic offload of servers that were shelved long enough.

A shelve stops the guest and copies its root disk into an image; then the server is shelved. An offload, immediately or
later, removes the server from its host; the image, its volumes and its ports stay with the server. A root disk is
removed only when the image has its content, so the flow can stop at any line and be repeated without losing anything.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from magnetar_control.agents import PATIENCE
from magnetar_control.conductor.steps import block_devices, keys
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.conductor.worker.expired import ask_for_expired, waiting_since
from magnetar_control.conductor.worker.retry import attempt_action, retry_forever
from magnetar_control.conductor.worker.work import RunningAction, full_is_down
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.servers import servers
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.image_format import SECRET_UUID
from magnetar_core.power import ACTIVE, LIVE, OFF, OFFLOADED, POWERS, SHELVED, SUSPENDED, power_number

from . import server_create_image
from .server_power import stop_guest

log = logging.getLogger(__name__)
#: Seconds between two searches for servers that were shelved long enough.
POLL_INTERVAL = 15.0
TAKING_OFF = "shelving_offloading"


def run_shelve(work: RunningAction) -> None:
    """Shelve the server of the action *work*. Offload it immediately if its root disk is a volume, or if the setting
    ``shelved_offload_time`` is 0."""
    def do() -> dict[str, Any]:
        if work.server.vm_state != SHELVED:
            saved = _save(work)
            if work.args["image"] and work.conductor.settings.shelved_offload_time != 0:
                return saved
            work.notifications.followed_by("shelve_offload", work.server.host)
            work.note(task_state=TAKING_OFF, **saved)
        return _leave_host(work)

    fails = partial(_handle_failure, work)
    attempt_action(work, do, fails, fails, None if work.args["image"] else "compute_shelve_offload_instance")


def run_offload(work: RunningAction) -> None:
    """Offload the shelved server of the action *work*: remove it from its host. If this fails, the server stays shelved
    on its host."""
    stays = partial(_handle_failed_offload, work)
    attempt_action(work, partial(_leave_host, work), stays, stays)


def _save(work: RunningAction) -> dict[str, Any]:
    """Stop the guest, and upload its root disk to the shelved image, unless the root disk is a volume. Return the
    changed columns of the server's row."""
    work.begin("The server was deleted, or its state was reset, before it was shelved.")
    id = work.args["image"]
    image = _shelved_image(work, id) if id else None  # first: if the quota refuses it, the guest keeps running
    stop_guest(work, work.server.host)
    if image is not None:
        if image["status"] != "active":
            server_create_image.upload_root_disk(work, id, "shelving_image_pending_upload", "shelving_image_uploading")
        server_create_image.delete_copy(work)
    return {"vm_state": SHELVED, "shelved_at": utc_now(), "power_state": power_number(OFF), "fault": None}


def _shelved_image(work: RunningAction, id: str) -> Document:
    """Return the shelved image *id* of the server; create it if it does not exist."""
    image = server_create_image.image_of_server(work, id)
    if image is None:
        work.confirm_lease()
        fields, secret = work.args["fields"], keys.disk_key_of_image(work)
        if secret:
            fields = {**fields, "properties": {**(fields.get("properties") or {}), SECRET_UUID: secret}}
        image = work.conductor.services.image.create(work.context(), id=id, **fields)
    return image


def _leave_host(work: RunningAction) -> dict[str, Any]:
    """Remove the server from its host, and release its resources there. Return the changed columns of the server's row.
    """
    server = work.server
    if not any(volume["boot_index"] == 0 for volume in work.volumes):
        image = server_create_image.image_of_server(work, server.shelved_image_id) if server.shelved_image_id else None
        if image is None or image["status"] != "active":
            raise Conflict("The image with the root disk of the shelved server was deleted or deactivated, so the "
                           "server cannot leave its host. Unshelve it; it can be shelved again then.")
    stop_guest(work, server.host)
    work.confirm_lease()
    with full_is_down():
        work.delete_on(server.host)
    release_host_resources(work)
    return {"vm_state": OFFLOADED, "host": None, "power_state": power_number(OFF), "fault": None}


def release_host_resources(work: RunningAction) -> None:
    """Disconnect the volumes, unbind the ports and release the claims of a server that has just been removed from its
    host."""
    block_devices.disconnect_volumes(work)
    work.conductor.services.network.unbind(work.id, work.confirm_lease)
    with work.conductor.store.api.write() as connection:
        work.confirm_lease()
        claimed_hosts = [claim.host for claim in allocations.fetch_server_claims(connection, work.id)]
        allocations.release_consumer_claims(connection, work.id)
    for host in claimed_hosts:
        work.conductor.read_host(host)


def _handle_failure(work: RunningAction, error: MagnetarError) -> None:
    """End a failed shelve action. A server that was already shelved before the action remains shelved on its host. Any
    other server returns to its previous state, except that a paused or suspended server is stopped."""
    work.confirm_lease()
    work.load()
    if work.server.vm_state == SHELVED:
        _handle_failed_offload(work, error)
        return
    if work.args["image"]:
        server_create_image.delete_copy(work)
        delete_image(work, work.args["image"])
    going = work.server.task_state in (servers.DELETING, servers.SOFT_DELETING)
    again = {} if going else _start_again(work)
    work.failed(error, shelved_image_id=None, **again)


def _handle_failed_offload(work: RunningAction, error: MagnetarError) -> None:
    """End a failed offload: the server remains shelved on its host. If the host has lost the server or does not answer,
    repeat the action instead, because the server's row would otherwise describe a guest that does not exist."""
    try:
        with work.client(patience=PATIENCE) as client:
            client.get("server", work.id)
    except MagnetarError as why:
        log.warning("server %s was not offloaded, and its host does not show it: %s", work.id, why.message)
        retry_forever(work)
    else:
        work.failed(error)


def _start_again(work: RunningAction) -> dict[str, Any]:
    """Start the guest after a failed shelve if the guest ran before. Return the columns of the server's row for the
    guest's actual state; {} if it cannot be started."""
    try:
        with work.client(patience=PATIENCE) as client:
            resource = client.get("server", work.id)
            if work.server.vm_state == ACTIVE and resource["power_state"] not in LIVE:
                resource = client.ensure("server", work.id, {"power": "running"})["resource"]
    except MagnetarError as why:
        log.warning("server %s was not shelved, and does not start again: %s", work.id, why.message)
        return {}
    power = POWERS.get(resource["power_state"])
    if power is None or power.vm_state is None or work.server.vm_state not in (ACTIVE, "paused", SUSPENDED):
        return {}
    return {"vm_state": power.vm_state, "power_state": power.number}


def delete_image(work: RunningAction, id: str | None) -> None:
    """Delete the shelved image *id* of a server that is no longer shelved. If the image cannot be deleted, it remains.
    """
    if not id:
        return
    try:
        work.conductor.services.image.delete(work.context(), id)
    except MagnetarError as error:
        log.warning("server %s: its image %s stays: %s", work.id, id, error.message)


def offload_expired(conductor: Conductor) -> int:
    """Queue the action ``shelveOffload`` for servers that have been shelved longer than the setting
    ``shelved_offload_time``. Return the number of these servers."""
    return ask_for_expired(conductor, conductor.settings.shelved_offload_time,
                           partial(waiting_since, SHELVED, "shelved_at"), "shelveOffload")
