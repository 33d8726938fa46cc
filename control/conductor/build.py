# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``create`` in a cell: build the server on its host.

Every step is idempotent: ports, networks and images of the host, volumes, then the server itself. A build that fails is
tried on another host of the cell, on ``max_attempts`` hosts in all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import place
from magnetar_control.store import allocations, servers
from magnetar_control.store.database import now
from magnetar_core.errors import Cancelled, Conflict, MagnetarError, NotFound

from . import block_devices, delivery, nics
from .failures import message, user_message
from .lease import leased
from .placement import NoHost, spec_of
from .work import HostDown, Work, WrongHost

log = logging.getLogger(__name__)


def build(work: Work) -> None:
    """``create`` in the cell."""
    host = work.action.host or work.server.host
    try:
        new = work.server.vm_state == "building"
        with work.event(host=host, noted={"task_state": servers.SPAWNING, "host": host} if new else None):
            ports = nics.allocate(work)
            resource = make(work, host, ports)
    except Cancelled:
        work.failed(Conflict("The server was deleted while it was built."), vm_state="error")
        return
    except MagnetarError as error:
        work.conductor.states.built(host, well=False)
        _reschedule(work, host, error)
        return
    work.conductor.states.built(host, well=True)
    work.done(**nics.observed(ports, resource), launched_at=work.server.launched_at or now(), progress=100, host=host,
              config_drive=True, availability_zone=work.server.availability_zone)


def make(work: Work, host: str, ports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make the server with its NICs on *host*; returns the agent's resource."""
    with work.client(host) as client:
        delivery.networks(work, client, host, ports)
        document = document_of(work, ports)
        if document["image"]:
            delivery.image(work, client, host, document["image"])
        if document["key_name"]:
            document["key_name"] = delivery.keypair(work, client, host)
        document["block_device_mapping"], abroad = block_devices.prepare(work, host)
        if abroad:  # it is started when it has these volumes
            document["power"] = "off"
        answer = client.ensure("server", work.id, document, timeout=work.conductor.settings.action_timeout,
                               progress=work.progress, request_id=work.idempotency_key)
    work.conductor.services.network.bind(work.id, host)
    return block_devices.finish_build(work, host, answer["resource"], abroad)


def document_of(work: Work, ports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The document of kind ``server`` for the agent."""
    server, flavor, request = work.server, work.flavor, work.request
    root = next((block for block in request.get("blocks") or () if block["boot_index"] == 0), None)
    from_image = server.image_id and not (root and root["destination_type"] == "volume")
    return {
        "name": server.hostname or server.name, "flavor": {name: flavor[name] for name in (
            "vcpus", "ram", "disk", "ephemeral", "swap")},
        "image": server.image_id if from_image else None,
        "networks": [{**nic["on_host"], **({"tag": nic["tag"]} if nic.get("tag") else {})} for nic in ports],
        "key_name": server.key_name if request.get("public_key") else None, "user_data": server.user_data,
        **({"personality": request["personality"]} if request.get("personality") else {}),
        "metadata": orjson.loads(server.metadata), "power": "running",
        "availability_zone": server.availability_zone or work.conductor.settings.default_availability_zone}


def _reschedule(work: Work, host: str, error: Exception) -> None:
    """Try another host of the cell; when none is left, the server is in error."""
    work.confirm_lease()  # another conductor may be building it by now
    tried = [*work.args.get("tried", []), host]
    work.conductor.delivery.forget(host)
    clean(work, host)
    refused = isinstance(error, MagnetarError) and error.status < 500 and not (
        error.remote or isinstance(error, WrongHost))  # other hosts would be refused too
    if refused or len(tried) >= work.conductor.settings.max_attempts:
        block_devices.give_back(work, everything=True)
        _leave_host(work)
        work.error(error)
        return
    block_devices.give_back(work, everything=False)
    _leave_host(work)
    try:
        api = leased(work.confirm_lease, work.conductor.store.api)
        found = place(api, work.conductor.states, spec_of(
            work, ignored=frozenset(tried), cell_id=work.conductor.cell.id))
    except NoValidHost as none:
        block_devices.give_back(work, everything=True)
        work.error(NoHost(
            f"Exceeded maximum number of retries. Build of instance {work.id} failed; last exception: "
            f"{user_message(error)}",
            explanation=f"It failed on {', '.join(tried)}: {message(error)} {none.explanation.text()}"))
        return
    work.note(host=found.host, task_state="scheduling")
    work.put_back(0.0, host=found.host, args=servers.text({**work.args, "tried": tried}))


def clean(work: Work, host: str) -> None:
    """Delete the server from the host; a host that does not answer is cleaned when it is back."""
    try:
        with work.client(host) as client:
            client.delete("server", work.id, timeout=work.conductor.settings.action_timeout)
    except NotFound:
        pass
    except (HostDown, MagnetarError) as error:
        log.warning("server %s: what is left of it on %s is removed later: %s", work.id, host, error.message)


def _leave_host(work: Work) -> None:
    """Release the claims of the server; it is on no host."""
    with work.conductor.store.api.write() as connection:
        allocations.release(connection, work.id)
    work.conductor.read_hosts(with_aggregates=False)
    work.note(host=None)
