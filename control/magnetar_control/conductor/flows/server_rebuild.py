# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``rebuild``: replace the root disk by the content of an image. If the root disk is a volume, the volume
service writes the image into it while the guest is off, also if the volume lies on another host."""

from __future__ import annotations

from functools import partial
from typing import Any

from magnetar_control.conductor.steps import block_devices, keys, machines
from magnetar_control.conductor.steps.guest_data import guest_facts
from magnetar_control.conductor.steps.images import deliver_image
from magnetar_control.conductor.steps.schedule import spec_of
from magnetar_control.conductor.worker.retry import attempt_action, retry_forever
from magnetar_control.conductor.worker.work import RunningAction
from magnetar_control.documents import VolumeOfServer
from magnetar_control.scheduler.choose import NoValidHost, why_not_image
from magnetar_control.scheduler.place import read_hosts
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.servers import servers
from magnetar_core.errors import MagnetarError
from magnetar_core.hardware.merge import requested_hardware
from magnetar_core.http.client import Client
from magnetar_core.power import REBUILD, STOPPED, power_number

from .server_create import note_agent_warnings


def run_rebuild(work: RunningAction) -> None:
    """Rebuild the root disk of the server of the action *work* from an image. A stopped server remains stopped, as in
    Nova.

    If the scheduler rejects the new image for the server's host, the previous image is restored in the server's row
    when the action ends. Otherwise a later rebuild with the rejected image would count as a rebuild with an unchanged
    image, which the scheduler does not check.
    """
    asked = False

    def do() -> dict[str, Any]:
        nonlocal asked
        if "before" in work.args:
            _check_image(work)
        asked = True
        with work.client() as client:
            return _rebuild_on_host(work, client)

    def fails(error: MagnetarError) -> None:
        if not asked:
            work.defer(**work.args["before"])
        work.error(error)

    attempt_action(work, do, fails, partial(retry_forever, work))


def _rebuild_on_host(work: RunningAction, client: Client) -> dict[str, Any]:
    """Have the host's agent rebuild the root disk. Return the changed columns of the server's row."""
    old_vm_state = work.args.get("vm_state") or work.server.vm_state
    root = block_devices.root_volume_of(work)
    if root is not None and work.args.get("reimage"):
        _reimage(work, client, root)
    work.note(task_state=REBUILD[-1])
    if root is None:
        deliver_image(work, client, work.server.host, work.args["image"])
    with work.guest(client) as watch:
        answer = client.event("server", work.id, "rebuild", _rebuild_body(work), request_id=work.idempotency_key,
                              progress=watch)
    keys.forget_old_disk_keys(work)
    reply = client.ensure("server", work.id, {"name": work.server.hostname or work.server.name,
                                              "power": "off" if old_vm_state == STOPPED else "running",
                                              **keys.tpm_secret_field(work)})
    note_agent_warnings(work, answer)
    return {"vm_state": STOPPED if old_vm_state == STOPPED else "active", "fault": None, "launched_at": utc_now(),
            "power_state": power_number(reply["resource"]["power_state"]),
            **machines.machine_type_column(work, reply["resource"])}


def _check_image(work: RunningAction) -> None:
    """Raise ``NoValidHost`` if the scheduler's filters do not allow the server on its host with the new image."""
    conductor, host = work.conductor, work.server.host
    spec, states = spec_of(work), conductor.states
    if why_not_image(states, host, spec):
        read_hosts(conductor.store.api, states)  # it may have been put into an aggregate a moment ago
        if why := why_not_image(states, host, spec):
            raise NoValidHost(explanation=why)
    if work.action.attempts == 1:  # a silent host is tried without limit
        work.notifications.selected(host)


def _reimage(work: RunningAction, client: Client, root: VolumeOfServer) -> None:
    """Power off the guest, and write the image to the root volume *root*. If an earlier attempt has already written the
    image, do not touch the guest, because that attempt may have started it."""
    if not work.conductor.services.volume.reimaged(root["volume_id"], work.idempotency_key):
        work.begin("The server was deleted, or its state was reset, before it was rebuilt.")
        work.confirm_lease()
        with work.guest(client) as watch:
            client.ensure("server", work.id, {"power": "off"}, progress=watch)
    block_devices.reimage_root_volume(work, root, work.args["image"])


def _rebuild_body(work: RunningAction) -> dict[str, Any]:
    """Return the body of the rebuild request to the agent. If the rebuild has a new public key or new files, save them
    in the server's row."""
    root_fields = {"image": work.args["image"]} if block_devices.root_volume_of(work) is None else {"keep_volume": True}
    args: dict[str, Any] = {**root_fields, "metadata": work.server.metadata,
                            "preserve_ephemeral": work.args["preserve_ephemeral"],
                            "hardware": {}, **requested_hardware(work.flavor, work.server.image),
                            **({"user_data": work.server.user_data} if work.server.user_data else {})}
    replaced = {name: work.args[name] for name in ("public_key", "personality") if name in work.args}
    if replaced:
        work.note(request=servers.json_text({**work.request, **replaced}))
    if "personality" in replaced:
        args["personality"] = replaced["personality"] or None
    return {**args, **guest_facts(work, work.server.host), **keys.renewed_disk_key_field(work),
            **keys.tpm_secret_field(work)}
