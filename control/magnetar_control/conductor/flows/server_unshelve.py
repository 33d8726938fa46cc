# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``unshelve``: start a server that is on its host still; build one that was offloaded anew, on any host of
its cell, from the image that it was shelved in.

A build that fails is tried on other hosts. When none is left, the server stays offloaded as it was: its image is
deleted only when it runs.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from magnetar_control.conductor.steps import machines, nics
from magnetar_control.conductor.steps.schedule import RANDOM, pause, spec_of
from magnetar_control.conductor.worker.retry import attempt
from magnetar_control.conductor.worker.work import Work, admin_message, leased
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import place
from magnetar_control.store.actions import actions
from magnetar_control.store.engine.database import now
from magnetar_control.store.servers import servers
from magnetar_core.errors import Cancelled, Conflict, MagnetarError
from magnetar_core.power import ACTIVE, OFFLOADED, number

from . import server_create_image
from .server_create import claimed, for_all_hosts, make
from .server_shelve import delete_image, give_back

log = logging.getLogger(__name__)
#: Columns of a server that is not shelved any more. Its image may be there still.
OVER = {"vm_state": ACTIVE, "shelved_at": None, "fault": None}


def unshelve(work: Work) -> None:
    """``args``: whether it is offloaded, and the host that it is to be on, if one is named."""
    if not work.args["offloaded"]:
        attempt(work, partial(_start, work), work.failed, event="compute_start_instance")
    elif work.server.shelved_at:
        _build(work)
    else:
        _end(work)


def _start(work: Work) -> dict[str, Any]:
    """Start the guest on its host."""
    work.begin("The server was deleted, or its state was reset, before it was unshelved.")
    with work.client() as client:
        found = client.ensure("server", work.id, {"power": "running"})["resource"]
    delete_image(work, work.server.shelved_image_id)
    return {**OVER, "shelved_image_id": None, "power_state": number(found["power_state"])}


def _build(work: Work) -> None:
    """Find a host, and build the server there. Each host is a turn of its own in the queue, for its limit of builds."""
    tried: list[str] = work.args.get("tried", [])
    host = next((name for name in claimed(work) if name not in tried), None)
    if work.action.cancel:
        _not_on(work, host, Cancelled("The server was deleted, or its state was reset, before it was unshelved."))
    elif host is None:
        _choose(work, tried)
    elif host != work.action.host:  # a conductor may have died after it had claimed it
        work.notifications.selected(host)
        work.put_back(0.0, host=host)
    else:
        _build_on(work, host)


def _choose(work: Work, tried: list[str]) -> None:
    """Claim a host; the action goes on there."""
    volumes, began = work.conductor.services.volume, now()
    root = next((one for one in work.volumes if one["boot_index"] == 0), None)
    try:
        spec = spec_of(work, host=work.args.get("host"), ignored=frozenset(tried), cell_id=work.conductor.cell.id,
                       volume_hosts=None if root is None else frozenset([volumes.where(root["volume_id"])]))
        found = place(leased(work.confirm_lease, work.conductor.store.api), work.conductor.current_states(), spec,
                      map_cell=False, random=RANDOM)
    except NoValidHost as none:
        if work.conductor.settling() or work.conductor.awaits_host(spec):
            work.put_back(pause(work))
            return
        why = admin_message(none)
        work.end_writes.append(lambda connection: actions.happened(
            connection, work.action.id, work.rule.event, work.conductor.name, began, "Error", why))
        work.failed(none, vm_state=OFFLOADED)
    except MagnetarError as error:  # its root volume is gone
        work.failed(error, vm_state=OFFLOADED)
    else:
        work.notifications.selected(found.host)
        work.put_back(0.0, host=found.host)


def _build_on(work: Work, host: str) -> None:
    ports = nics.current(work)
    try:
        with work.event(host=host, noted={"task_state": servers.SPAWNING, "host": host}):
            _check_image(work)
            resource = make(work, host, ports)
    except MagnetarError as error:
        if not isinstance(error, Cancelled):
            work.conductor.states.built(host, well=False)
        _not_on(work, host, error)
        return
    work.conductor.states.built(host, well=True)
    # Saved before its image goes: nothing is built from that again.
    work.note(**{**nics.observed(ports, resource), **machines.recorded(work, resource), **OVER}, host=host,
              launched_at=now())
    _end(work)


def _end(work: Work) -> None:
    """The server runs: its image goes."""
    if image := work.server.shelved_image_id:
        delete_image(work, image)
        _forget_content(work, work.server.host, image)
    work.done(shelved_image_id=None)


def _check_image(work: Work) -> None:
    """Raises ``Conflict`` when the content of the server is gone."""
    if image := work.server.shelved_image_id:
        found = server_create_image.image(work, image)
        if found is None or found["status"] != "active":
            raise Conflict(f"Image {image}, which has the root disk of the shelved server, was deleted or deactivated.")


def _forget_content(work: Work, host: str, image: str) -> None:
    """The server stands on the content that it was made from, and no other needs that: the host's image goes."""
    work.conductor.delivery.known.discard(("image", host, image))
    try:
        work.delete_on(host, "image", image)
    except MagnetarError as error:
        log.info("image %s stays on host %s for now: %s", image, host, error.message)


def _not_on(work: Work, host: str | None, error: MagnetarError) -> None:
    """It could not be built on *host*: give everything there back. Another host is tried, if there may be one."""
    work.confirm_lease()
    tried = [*work.args.get("tried", []), *([host] if host else [])]
    last = isinstance(error, Cancelled) or len(tried) >= work.conductor.settings.max_attempts or for_all_hosts(error)
    if host:
        work.conductor.delivery.forget(host)
        try:
            work.delete_on(host)
        except MagnetarError as why:
            log.warning("server %s: what is left of it on %s is removed later: %s", work.id, host, why.message)
    give_back(work)
    if last:
        work.failed(error, vm_state=OFFLOADED, host=None)
        return
    work.note(host=None, task_state="unshelving")
    work.put_back(0.0, host=None, args=servers.text({**work.args, "tried": tried}))
