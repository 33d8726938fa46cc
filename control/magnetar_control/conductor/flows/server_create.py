# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``create`` in a cell: build the server on its host.

Every step is idempotent: ports, networks and images of the host, volumes, then the server itself. A build that fails is
tried on another host of the cell, on ``max_attempts`` hosts in all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from magnetar_control.agents import plain
from magnetar_control.conductor.steps import block_devices, disk_keys, images, machines, nics, tpm_secrets
from magnetar_control.conductor.steps.guest_data import told
from magnetar_control.conductor.steps.schedule import pause, spec_of
from magnetar_control.conductor.worker.work import HostDown, Work, WrongHost, leased
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import place
from magnetar_control.store.actions import actions
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.database import now
from magnetar_control.store.servers import servers
from magnetar_core.errors import Cancelled, Conflict, MagnetarError
from magnetar_core.hardware.image_properties import shutdown_timeout
from magnetar_core.hardware.merge import asked_of
from magnetar_core.power import OFF, POWERS, RUNNING

from .server_resize import agent_flavor

log = logging.getLogger(__name__)


def build(work: Work) -> None:
    """``create`` in the cell."""
    host = work.action.host or work.server.host
    if work.action.attempts > 1 and host not in (held := claimed(work)):
        if not held:  # it failed there, and was interrupted when the claim had been given up; or it waits for a host
            _search_again(work, host)
            return
        host = held[0]  # which was chosen, and not noted yet
        work.notifications.selected(host)
    try:
        new = work.server.vm_state == "building"
        with work.event(host=host, noted={"task_state": servers.building(work.request), "host": host} if new else None):
            if host in work.args.get("broken", ()):  # what a try before has left there goes first
                work.delete_on(host)
            ports = nics.allocate(work, host)
            resource = make(work, host, ports)
    except Cancelled:
        work.failed(Conflict("The server was deleted while it was built."), vm_state="error")
        return
    except MagnetarError as error:
        work.conductor.states.built(host, well=False)
        _reschedule(work, host, error)
        return
    work.conductor.states.built(host, well=True)
    work.done(**nics.observed(ports, resource), **machines.recorded(work, resource), host=host,
              vm_state=POWERS[power_of(work)].vm_state, config_drive=True,
              launched_at=work.server.launched_at or now(), availability_zone=work.server.availability_zone)


def make(work: Work, host: str, ports: Sequence[Mapping[str, Any]], power: str | None = None) -> dict[str, Any]:
    """Make the server with its NICs on *host*, also one that was on a host before; returns the agent's resource.
    *power*: what it is to be, if not what follows from its request."""
    power, secret = power or power_of(work), tpm_secrets.given(work)
    with work.client(host) as client:
        nics.networks(work, client, host, ports)
        document = {**document_of(work, host, ports), **told(work, host), **disk_keys.given(work), **secret,
                    "power": power}
        if document["image"]:
            images.deliver(work, client, host, document["image"])
        document["block_device_mapping"], abroad = block_devices.prepare(work, host)
        ready = nics.ready(work, host, ports)
        if abroad or not ready:  # it is started when it has these volumes, and its ports
            document["power"] = OFF
        answer = client.ensure("server", work.id, document, progress=work.progress, request_id=work.idempotency_key)
    warned(work, answer)
    # The OVN of SmartNICs plugs in what it is told here.
    nics.bind(work, host, answer["resource"], waits=not ready or nics.any_remote_managed(ports))
    return block_devices.finish_build(work, host, answer["resource"], abroad, {"power": power, **secret},
                                      held=not ready)


def warned(work: Work, answer: Mapping[str, Any]) -> None:
    """What the agent warns of in its *answer* is in the action's message when that ends."""
    if said := answer.get("warnings"):
        text = " ".join(said)
        work.end_writes.append(lambda connection: actions.warned(connection, work.action.id, text))


def power_of(work: Work) -> str:
    """What a new server is to be: running, or off. One that was on a host before runs."""
    return OFF if work.request.get("off") and not work.server.launched_at else RUNNING


def document_of(work: Work, host: str, ports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The document of kind ``server`` for the agent of *host*."""
    server, flavor, request = work.server, work.flavor, work.request
    root = next((block for block in request.get("blocks") or () if block["boot_index"] == 0), None)
    from_image = server.image_id and not (root and root["destination_type"] == "volume")
    image = orjson.loads(server.image)
    # Of an image that the host gets, its agent knows it.
    said = None if from_image else shutdown_timeout(image.get("properties") or {})
    return {
        "name": server.hostname or server.name,
        "image": (server.shelved_image_id or server.image_id) if from_image else None, "flavor": agent_flavor(flavor),
        "networks": nics.placed(work, host, ports), "user_data": server.user_data, "power": power_of(work),
        "metadata": orjson.loads(server.metadata), **asked_of(flavor, image),
        **({"personality": request["personality"]} if request.get("personality") else {}),
        **({} if said is None else {"shutdown_timeout": said})}


def _reschedule(work: Work, host: str, error: MagnetarError) -> None:
    """Try another host of the cell; when none is left, the server is in error."""
    work.confirm_lease()  # another conductor may be building it by now
    tried = [*work.args.get("tried", []), host]
    work.conductor.delivery.forget(host)
    try:
        work.delete_on(host)
    except MagnetarError as why:
        log.warning("server %s: what is left of it on %s is removed later: %s", work.id, host, why.message)
    work.conductor.services.network.unbind(work.id, work.confirm_lease)  # else OVN would have its ports at both hosts
    last = len(tried) >= work.conductor.settings.max_attempts or for_all_hosts(error)
    block_devices.give_back(work, everything=last)
    with leased(work.confirm_lease, work.conductor.store.api).write() as connection:
        allocations.release(connection, work.id)
    work.conductor.read_host(host)
    work.note(host=None)
    if last:
        nics.free_reserved(work)
        work.error(error)
        return
    broken = [*work.args.get("broken", []), *([host] if isinstance(error, HostDown) else [])]
    _elsewhere(work, Tries(tried, broken), error)


def for_all_hosts(error: MagnetarError) -> bool:
    """Whether another host would refuse the same, so that it is not tried there."""
    if error.details.get("everywhere"):
        return True
    return error.status < 500 and not error.remote and not isinstance(error, WrongHost)


def claimed(work: Work) -> list[str]:
    """Hosts of which the server holds something."""
    with work.conductor.store.api.read() as connection:
        return [one["host"] for one in allocations.held(connection, work.id)]


class Tries(NamedTuple):
    """The hosts on which a build failed, once for each try. *broken*: those of them that only stopped to answer, or
    whose libvirt did: the build is repeated there when there is no other host."""

    tried: list[str]
    broken: list[str]

    def args(self, error: MagnetarError) -> dict[str, Any]:
        """The arguments with which the action goes on; *error*: of the last try."""
        return {**self._asdict(), "why": [plain(error), error.message]}


def _search_again(work: Work, host: str | None) -> None:
    """Go on with the search for a host. *host*: on which the build was interrupted, if it was on any."""
    why = work.args.get("why") or ["The build was interrupted."]
    interrupted = [host] if host else []
    _elsewhere(work, Tries([*work.args.get("tried", []), *interrupted], work.args.get("broken", [])),
               Conflict(why[0], explanation=why[-1]))


def _elsewhere(work: Work, tries: Tries, error: MagnetarError) -> None:
    """Find another host than those that were tried; else one that was broken, and is waited for a while. When there is
    none, the server is in error."""
    none: NoValidHost | None = None
    for ignored in dict.fromkeys((frozenset(tries.tried), frozenset(tries.tried) - frozenset(tries.broken))):
        spec = spec_of(work, ignored=ignored, cell_id=work.conductor.cell.id)
        try:
            found = place(leased(work.confirm_lease, work.conductor.store.api), work.conductor.current_states(), spec)
        except NoValidHost as refused:
            none = refused
        else:
            work.notifications.selected(found.host)
            work.note(host=found.host, task_state="scheduling")
            work.put_back(0.0, host=found.host, args=servers.text({**work.args, **tries.args(error)}))
            return
    if work.conductor.awaits_host(spec):
        work.note(task_state="scheduling")
        work.put_back(pause(work), host=None, args=servers.text({**work.args, **tries.args(error)}))
        return
    block_devices.give_back(work, everything=True)
    nics.free_reserved(work)
    why = error.details.get("explanation") or error.message
    work.error(NoValidHost(
        f"Exceeded maximum number of retries. Build of instance {work.id} failed; last exception: {plain(error)}",
        explanation=f"It failed on {', '.join(tries.tried)}: {why} {none.explanation if none else ''}".rstrip()))
