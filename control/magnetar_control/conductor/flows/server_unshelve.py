# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``unshelve``: start a server that is still on its host; build an offloaded one again, on any host of its
cell, from the image of its root disk.

A build that fails is tried on other hosts. When no host is left, the server stays offloaded, as it was: the image is
deleted only after the server has started.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from magnetar_control.conductor.steps import machines, nics
from magnetar_control.conductor.steps.schedule import RANDOM, host_search_pause, spec_of
from magnetar_control.conductor.steps.volume_homes import hosts_for_volumes
from magnetar_control.conductor.worker.retry import attempt_action
from magnetar_control.conductor.worker.work import RunningAction, admin_message, leased_database
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import place_server
from magnetar_control.store.actions import actions
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.servers import servers
from magnetar_core.errors import Cancelled, Conflict, MagnetarError
from magnetar_core.power import ACTIVE, OFFLOADED, power_number

from . import server_create_image
from .server_create import hosts_with_claims, make_server, refused_on_all_hosts
from .server_shelve import delete_image, release_host_resources

log = logging.getLogger(__name__)
#: Columns of a server that is not shelved any more. Its image may still exist.
OVER = {"vm_state": ACTIVE, "shelved_at": None, "fault": None}


def run_unshelve(work: RunningAction) -> None:
    """Unshelve the server of the action *work*. ``work.args`` has ``offloaded`` (whether the server has no host), and
    the requested host if there is one."""
    if not work.args["offloaded"]:
        attempt_action(work, partial(_start, work), work.failed, event="compute_start_instance")
    elif work.server.shelved_at:
        _build(work)
    else:
        _end(work)


def _start(work: RunningAction) -> dict[str, Any]:
    """Start the guest on its host, and delete the shelved image. Return the changed columns of the server's row."""
    work.begin("The server was deleted, or its state was reset, before it was unshelved.")
    with work.client() as client:
        resource = client.ensure("server", work.id, {"power": "running"})["resource"]
    delete_image(work, work.server.shelved_image_id)
    return {**OVER, "shelved_image_id": None, "power_state": power_number(resource["power_state"])}


def _build(work: RunningAction) -> None:
    """Choose a host for an offloaded server, and build the server there. The action is queued again for each host that
    is tried, because the number of parallel builds is limited for each host."""
    tried: list[str] = work.args.get("tried", [])
    host = next((name for name in hosts_with_claims(work) if name not in tried), None)
    if work.action.cancel:
        _undo_build(work, host, Cancelled("The server was deleted, or its state was reset, before it was unshelved."))
    elif host is None:
        _choose(work, tried)
    elif host != work.action.host:  # a conductor may have died after the claim
        work.notifications.selected(host)
        work.put_back(0.0, host=host)
    else:
        _build_on(work, host)


def _choose(work: RunningAction, tried: list[str]) -> None:
    """Claim a host that is not in *tried*, and queue the action for that host."""
    began = utc_now()
    try:
        spec = spec_of(work, keeps_reserve=True, host=work.args.get("host"), ignored=frozenset(tried),
                       cell_id=work.conductor.cell.id, volume_hosts=hosts_for_volumes(work))
        candidate = place_server(leased_database(work.confirm_lease, work.conductor.store.api),
                                 work.conductor.current_states(), spec, map_cell=False, random=RANDOM)
    except NoValidHost as none:
        if work.conductor.settling() or work.conductor.awaits_host(spec):
            work.put_back(host_search_pause(work))
            return
        why = admin_message(none)
        work.end_writes.append(lambda connection: actions.insert_ended_event(
            connection, work.action.id, work.rule.event, work.conductor.name, began, "Error", why))
        work.failed(none, vm_state=OFFLOADED)
    except MagnetarError as error:  # its root volume is gone
        work.failed(error, vm_state=OFFLOADED)
    else:
        work.notifications.selected(candidate.host)
        work.put_back(0.0, host=candidate.host)


def _build_on(work: RunningAction, host: str) -> None:
    ports = nics.current_nics(work)
    try:
        with work.event(host=host, noted={"task_state": servers.SPAWNING, "host": host}):
            _check_image(work)
            resource = make_server(work, host, ports)
    except MagnetarError as error:
        if not isinstance(error, Cancelled):
            work.conductor.states.count_build(host, well=False)
        _undo_build(work, host, error)
        return
    work.conductor.states.count_build(host, well=True)
    # Saved before the image is deleted: nothing is built from it again.
    work.note(**{**nics.observed_columns(ports, resource), **machines.machine_type_column(work, resource), **OVER},
              host=host, launched_at=utc_now())
    _end(work)


def _end(work: RunningAction) -> None:
    """Delete the shelved image, after the server was started successfully, and end the action."""
    if image := work.server.shelved_image_id:
        delete_image(work, image)
        _forget_content(work, work.server.host, image)
    work.done(shelved_image_id=None)


def _check_image(work: RunningAction) -> None:
    """Raise ``Conflict`` if the shelved image, which contains the server's root disk, was deleted."""
    if image := work.server.shelved_image_id:
        image_document = server_create_image.image_of_server(work, image)
        if image_document is None or image_document["status"] != "active":
            raise Conflict(f"Image {image}, which has the root disk of the shelved server, was deleted or deactivated.")


def _forget_content(work: RunningAction, host: str, image: str) -> None:
    """Delete the cached copy of *image* on *host*. The server has its own disk now, and no other server can use a
    shelved image."""
    work.conductor.delivery.known.discard(("image", host, image))
    try:
        work.delete_on(host, "image", image)
    except MagnetarError as error:
        log.info("image %s stays on host %s for now: %s", image, host, error.message)


def _undo_build(work: RunningAction, host: str | None, error: MagnetarError) -> None:
    """Release everything on *host* after a failed build, and try another host if another attempt is allowed. *host*:
    ``None`` if no host was claimed."""
    work.confirm_lease()
    tried = [*work.args.get("tried", []), *([host] if host else [])]
    last = isinstance(error, Cancelled) or len(tried) >= work.conductor.settings.max_attempts or refused_on_all_hosts(
        error)
    if host:
        work.conductor.delivery.forget(host)
        try:
            work.delete_on(host)
        except MagnetarError as why:
            log.warning("server %s: what is left of it on %s is removed later: %s", work.id, host, why.message)
    release_host_resources(work)
    if last:
        work.failed(error, vm_state=OFFLOADED, host=None)
        return
    work.note(host=None, task_state="unshelving")
    work.put_back(0.0, host=None, args=servers.json_text({**work.args, "tried": tried}))
