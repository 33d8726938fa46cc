# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``create`` in a cell: build the server on its host.

Every step is idempotent: ports, networks and images of the host, volumes, then the server itself. A build that fails is
tried again on another host of the cell, on at most ``max_attempts`` hosts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from magnetar_control.agents import user_message
from magnetar_control.conductor.steps import block_devices, images, keys, machines, nics
from magnetar_control.conductor.steps.guest_data import guest_facts
from magnetar_control.conductor.steps.schedule import host_search_pause, spec_of
from magnetar_control.conductor.worker.work import HostDown, RunningAction, WrongHost, leased_database
from magnetar_control.documents import ServerNic
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import place_server
from magnetar_control.store.actions import actions
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.servers import servers
from magnetar_core.errors import Cancelled, Conflict, MagnetarError
from magnetar_core.hardware.image_properties import shutdown_timeout
from magnetar_core.hardware.merge import requested_hardware
from magnetar_core.power import OFF, POWERS, RUNNING

from .server_adopt import run_adoption
from .server_resize import agent_flavor

log = logging.getLogger(__name__)


def run_server_build(work: RunningAction) -> None:
    """Build the server of the action *work* on the host that the scheduler has chosen. If this fails, queue the build
    for another host. If the server is to be made from an existing libvirt domain, call ``run_adoption`` instead."""
    if servers.is_adopted_server(work.server):
        run_adoption(work)
        return
    host = work.action.host or work.server.host
    if work.action.attempts > 1 and host not in (claimed_hosts := hosts_with_claims(work)):
        # Its build failed and was interrupted after the claim was released, or the server waits for a host.
        if not claimed_hosts:
            _search_again(work, host)
            return
        host = claimed_hosts[0]  # it was chosen, and not saved yet
        work.notifications.selected(host)
    try:
        new = work.server.vm_state == "building"
        with work.event(host=host, noted={"task_state": servers.build_task_state(work.request), "host": host} if new
                        else None):
            if host in work.args.get("broken", ()):  # remove the rest of an earlier try
                work.delete_on(host)
            ports = nics.allocate_nics(work, host)
            resource = make_server(work, host, ports)
    except Cancelled:
        work.failed(Conflict("The server was deleted while it was built."), vm_state="error")
        return
    except MagnetarError as error:
        work.conductor.states.count_build(host, well=False)
        _reschedule(work, host, error)
        return
    work.conductor.states.count_build(host, well=True)
    work.done(**nics.observed_columns(ports, resource), **machines.machine_type_column(work, resource), host=host,
              vm_state=POWERS[power_of(work)].vm_state, config_drive=True,
              launched_at=work.server.launched_at or utc_now(), availability_zone=work.server.availability_zone)


def make_server(work: RunningAction, host: str, ports: Sequence[ServerNic], power: str | None = None,
                former_owner: str | None = None) -> dict[str, Any]:
    """Create the server on *host* with the NICs *ports*, and return the server as its agent reports it. Also used for
    unshelving and evacuation. *power*: the final power state; by default ``power_of(work)``. *former_owner*: the
    previous host, if *host* takes over the server's existing disks on storage that both hosts share."""
    power, secret = power or power_of(work), keys.tpm_secret_field(work)
    with work.client(host) as client:
        nics.make_nic_networks(work, client, host, ports)
        document = {**server_document(work, host, ports), **guest_facts(work, host), **keys.disk_key_field(work),
                    **secret, "power": power, **({"adopt_disks": former_owner} if former_owner else {})}
        if document["image"] and (not former_owner or _needs_image_files(work, host)):
            images.deliver_image(work, client, host, document["image"])
        document["block_device_mapping"], remote_volumes = block_devices.prepare_volumes(work, host)
        ready = nics.ports_ready(work, host, ports)
        if remote_volumes or not ready:  # start it when these volumes and its ports are ready
            document["power"] = OFF
        answer = client.ensure("server", work.id, document, progress=work.progress, request_id=work.idempotency_key)
    note_agent_warnings(work, answer)
    # The OVN of SmartNICs plugs in the devices that it learns here.
    nics.bind_nics(work, host, answer["resource"], waits=not ready or nics.any_remote_managed(ports))
    return block_devices.finish_build(work, host, answer["resource"], remote_volumes, {"power": power, **secret},
                                      ports_pending=not ready)


def _needs_image_files(work: RunningAction, host: str) -> bool:
    """Return whether *host* needs the content of the server's image although it takes over the server's disks: the
    server boots from files of the image (an ISO image, or a kernel), and only the disks are in Ceph."""
    image: Mapping[str, Any] = work.server.image
    return bool(work.conductor.host(host).info.get("disk_pool")) and (
        image.get("disk_format") in ("iso", "ami") or bool((image.get("properties") or {}).get("kernel_id")))


def note_agent_warnings(work: RunningAction, answer: Mapping[str, Any]) -> None:
    """Append the warnings in the agent's *answer* to the message of the instance action, in the transaction that ends
    the action."""
    if warnings := answer.get("warnings"):
        text = " ".join(warnings)
        work.end_writes.append(lambda connection: actions.append_action_warning(connection, work.action.id, text))


def power_of(work: RunningAction) -> str:
    """Return the final power state of a server that is built: off if the request for a new server asks for that,
    otherwise running."""
    return OFF if work.request.get("off") and not work.server.launched_at else RUNNING


def server_document(work: RunningAction, host: str, ports: Sequence[ServerNic]) -> dict[str, Any]:
    """Return the JSON object that describes the desired server to the agent of *host*. *ports*: the server's NICs."""
    server, flavor, request = work.server, work.flavor, work.request
    root = next((block_device for block_device in request.get("blocks") or () if block_device["boot_index"] == 0), None)
    from_image = server.image_id and not (root and root["destination_type"] == "volume")
    image = server.image
    # For an image on the host, the agent knows the timeout.
    stop_timeout = None if from_image else shutdown_timeout(image.get("properties") or {})
    return {
        "name": server.hostname or server.name,
        "image": (server.shelved_image_id or server.image_id) if from_image else None, "flavor": agent_flavor(flavor),
        "networks": nics.nics_for_agent(work, host, ports), "user_data": server.user_data, "power": power_of(work),
        "metadata": server.metadata, **requested_hardware(flavor, image),
        **({"personality": request["personality"]} if request.get("personality") else {}),
        **({} if stop_timeout is None else {"shutdown_timeout": stop_timeout})}


def _reschedule(work: RunningAction, host: str, error: MagnetarError) -> None:
    """Handle a build that has failed with *error* on *host*: remove the server from *host*, and try another host of the
    cell. If no host or no attempt is left, set the server to error."""
    work.confirm_lease()  # another conductor may be building it
    tried = [*work.args.get("tried", []), host]
    work.conductor.delivery.forget(host)
    try:
        work.delete_on(host)
    except MagnetarError as why:
        log.warning("server %s: what is left of it on %s is removed later: %s", work.id, host, why.message)
    work.conductor.services.network.unbind(work.id, work.confirm_lease)  # otherwise OVN has its ports on 2 hosts
    last = len(tried) >= work.conductor.settings.max_attempts or refused_on_all_hosts(error)
    block_devices.give_back_volumes(work, everything=last)
    with leased_database(work.confirm_lease, work.conductor.store.api).write() as connection:
        allocations.release_consumer_claims(connection, work.id)
    work.conductor.read_host(host)
    work.note(host=None)
    if last:
        nics.free_reserved_ports(work)
        work.error(error)
        return
    broken = [*work.args.get("broken", []), *([host] if isinstance(error, HostDown) else [])]
    _try_another_host(work, Tries(tried, broken), error)


def refused_on_all_hosts(error: MagnetarError) -> bool:
    """Return whether every other host would refuse the server with *error* too, so that further attempts are useless.
    """
    if error.details.get("everywhere"):
        return True
    return error.status < 500 and not error.remote and not isinstance(error, WrongHost)


def hosts_with_claims(work: RunningAction) -> list[str]:
    """Return the names of the hosts on which the server has claimed resources."""
    with work.conductor.store.api.read() as connection:
        return [claim.host for claim in allocations.fetch_server_claims(connection, work.id)]


class Tries(NamedTuple):
    """The failed attempts to build a server. *tried*: the host of each attempt. *broken*: the hosts in *tried* whose
    agent or libvirt stopped answering; the build is repeated on these hosts if no other host is left."""

    tried: list[str]
    broken: list[str]

    def args(self, error: MagnetarError) -> dict[str, Any]:
        """Return the arguments of the action for its next attempt. *error*: the failure of the last attempt."""
        return {**self._asdict(), "why": [user_message(error), error.message]}


def _search_again(work: RunningAction, host: str | None) -> None:
    """Choose a new host for a server that has no claims, and queue the build there. *host*: the host where the build
    was interrupted; this host is not chosen again. ``None`` if no build was interrupted."""
    why = work.args.get("why") or ["The build was interrupted."]
    interrupted = [host] if host else []
    _try_another_host(work, Tries([*work.args.get("tried", []), *interrupted], work.args.get("broken", [])),
                      Conflict(why[0], explanation=why[-1]))


def _try_another_host(work: RunningAction, tries: Tries, error: MagnetarError) -> None:
    """Claim resources on another host, and queue the build there. Choose a host that was not tried before, otherwise a
    host in ``tries.broken`` that is up again. If no such host exists, but a host without heartbeats may return, search
    again later. Otherwise set the server to error."""
    none: NoValidHost | None = None
    for ignored in dict.fromkeys((frozenset(tries.tried), frozenset(tries.tried) - frozenset(tries.broken))):
        spec = spec_of(work, ignored=ignored, cell_id=work.conductor.cell.id)
        try:
            candidate = place_server(leased_database(work.confirm_lease, work.conductor.store.api),
                                     work.conductor.current_states(), spec)
        except NoValidHost as refused:
            none = refused
        else:
            work.notifications.selected(candidate.host)
            work.note(host=candidate.host, task_state="scheduling")
            work.put_back(0.0, host=candidate.host, args=servers.json_text({**work.args, **tries.args(error)}))
            return
    if work.conductor.awaits_host(spec):
        work.note(task_state="scheduling")
        work.put_back(host_search_pause(work), host=None, args=servers.json_text({**work.args, **tries.args(error)}))
        return
    block_devices.give_back_volumes(work, everything=True)
    nics.free_reserved_ports(work)
    why = error.details.get("explanation") or error.message
    work.error(NoValidHost(
        f"Exceeded maximum number of retries. Build of instance {work.id} failed; last exception: "
        f"{user_message(error)}",
        explanation=f"It failed on {', '.join(tries.tried)}: {why} {none.explanation if none else ''}".rstrip()))
