# SPDX-License-Identifier: GPL-3.0-or-later
"""A server comes into being on its host: the flow of ``create`` in a cell, and what a host needs beforehand.

Everything is asked for as "be so": ports, networks and images of the host, volumes, at last the server itself. What
fails on one host is tried on another, ``max_attempts`` times.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import place
from magnetar_control.store import allocations, servers
from magnetar_control.store.database import Database, now
from magnetar_core.actions import POWER
from magnetar_core.errors import Cancelled, Conflict, MagnetarError, NotFound

from . import volumes
from .schedule import NoHost, wanted
from .work import Claims, HostDown, Work, WrongHost, for_users, said

log = logging.getLogger(__name__)


def build(work: Work) -> None:
    """``create`` in the cell."""
    host = work.action.host or work.server.host
    try:
        new = work.server.vm_state == "building"
        with work.event(host=host, noted={"task_state": servers.SPAWNING, "host": host} if new else None):
            nics = network(work)
            resource = make(work, host, nics)
    except Cancelled:
        work.failed(Conflict("The server was deleted while it was built."), vm_state="error")
        return
    except MagnetarError as error:
        work.conductor.states.built(host, well=False)
        _again(work, host, error)
        return
    work.conductor.states.built(host, well=True)
    work.done(**seen(nics, resource), launched_at=work.server.launched_at or now(), progress=100, host=host,
              config_drive=True, availability_zone=work.server.availability_zone)


def make(work: Work, host: str, nics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Have the server with its NICs on *host*; returns the agent's resource."""
    with work.client(host) as client:
        networks(work, client, host, nics)
        document = described(work, nics)
        if document["image"]:
            image(work, client, host, document["image"])
        if document["key_name"]:
            document["key_name"] = keypair(work, client, host)
        document["block_device_mapping"], abroad = volumes.prepared(work, host)
        if abroad:  # it starts when it has them
            document["power"] = "off"
        answer = client.ensure("server", work.id, document, timeout=work.conductor.settings.action_timeout,
                               progress=work.progress, request_id=work.once)
    work.conductor.services.network.bind(work.id, host)
    return volumes.built(work, host, answer["resource"], abroad)


def nics_of(work: Work) -> list[dict[str, Any]]:
    """The NICs that the server is known to have."""
    found: list[dict[str, Any]] = orjson.loads(work.server.interfaces)
    return found


def network(work: Work) -> list[dict[str, Any]]:
    """The server's NICs: allocated once, however often it is asked, and noted with what is written next."""
    nics = nics_of(work)
    wishes = work.request.get("networks")
    if wishes and not nics:
        groups = [one["name"] for one in orjson.loads(work.server.security_groups)]
        nics = work.conductor.services.network.allocate(work.context(), work.id, wishes, groups)
        work.soon(interfaces=servers.text(nics))
    return nics


def networks(work: Work, client: Any, host: str, nics: Sequence[Mapping[str, Any]]) -> None:
    """Have the networks of the NICs on the host."""
    for nic in nics:
        key = ("network", host, nic["network_id"])
        if key in work.conductor.delivery.known:
            continue
        wish = work.conductor.services.network.on_host(nic["network_id"])
        if wish:
            client.ensure("network", wish["name"], wish)
        work.conductor.delivery.known.add(key)


def described(work: Work, nics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The document of kind ``server`` for the agent."""
    server, flavor, request = work.server, work.flavor, work.request
    root = next((block for block in request.get("blocks") or () if block["boot_index"] == 0), None)
    from_image = server.image_id and not (root and root["destination_type"] == "volume")
    return {
        "name": server.hostname or server.name, "flavor": {name: flavor[name] for name in (
            "vcpus", "ram", "disk", "ephemeral", "swap")},
        "image": server.image_id if from_image else None,
        "networks": [{**nic["on_host"], **({"tag": nic["tag"]} if nic.get("tag") else {})} for nic in nics],
        "key_name": server.key_name if request.get("public_key") else None, "user_data": server.user_data,
        **({"personality": request["personality"]} if request.get("personality") else {}),
        "metadata": orjson.loads(server.metadata), "power": "running",
        "availability_zone": server.availability_zone or work.conductor.settings.default_availability_zone}


def image(work: Work, client: Any, host: str, id: str) -> None:
    """Have the image's content on the host."""
    work.conductor.delivery.image(client, host, id, work.context())


def keypair(work: Work, client: Any, host: str) -> str:
    """Have the public key on the host, under a name that no other key of that name can have; returns it."""
    public = str(work.request["public_key"])
    name = f"{work.server.key_name}-{hashlib.sha256(public.encode()).hexdigest()[:12]}"
    key = ("keypair", host, name)
    if key not in work.conductor.delivery.known:
        client.ensure("keypair", name, {"public_key": public})
        work.conductor.delivery.known.add(key)
    return name


def seen(nics: Sequence[Mapping[str, Any]], resource: Mapping[str, Any]) -> dict[str, Any]:
    """Columns that the agent's resource says of a server with these NICs."""
    return {"power_state": POWER.get(resource["power_state"], 0), "instance_name": resource["instance_name"],
            "addresses": servers.text(addresses(nics, resource.get("addresses") or {})),
            "fault": None}


def addresses(nics: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """As Nova shows them, by network name: those that the network service gave; else those that the host knows."""
    heard = {one["mac"]: one for found in known.values() for one in found}
    shown: dict[str, list[dict[str, Any]]] = {}
    for nic in nics:
        given = [ip["ip_address"] for ip in nic.get("fixed_ips") or ()]
        if not given and nic["mac"] in heard:
            given = [heard[nic["mac"]]["addr"]]
        shown.setdefault(nic["network"], []).extend(
            {"version": 6 if ":" in address else 4, "addr": address, "OS-EXT-IPS:type": "fixed",
             "OS-EXT-IPS-MAC:mac_addr": nic["mac"]} for address in given)
    return shown


def _again(work: Work, host: str, error: Exception) -> None:
    """Try another host of the cell; when none is left, the server is in error."""
    work.look()  # what is on the host may be another conductor's by now
    tried = [*work.args.get("tried", []), host]
    work.conductor.delivery.forget(host)
    clean(work, host)
    refused = isinstance(error, MagnetarError) and error.status < 500 and not (
        error.remote or isinstance(error, WrongHost))  # another host would be refused too
    if refused or len(tried) >= work.conductor.settings.max_attempts:
        volumes.give_back(work, everything=True)
        _gone(work)
        work.error(error)
        return
    volumes.give_back(work, everything=False)
    _gone(work)
    try:
        claims = Claims(work.look, work.conductor.store.api)
        found = place(cast(Database, claims), work.conductor.states, wanted(
            work, ignored=frozenset(tried), cell_id=work.conductor.cell.id))
    except NoValidHost as none:
        volumes.give_back(work, everything=True)
        work.error(NoHost(
            f"Exceeded maximum number of retries. Build of instance {work.id} failed; last exception: "
            f"{for_users(error)}",
            explanation=f"It failed on {', '.join(tried)}: {said(error)} {none.explanation.text()}"))
        return
    work.note(host=found.host, task_state="scheduling")
    work.later(0.0, host=found.host, args=servers.text({**work.args, "tried": tried}))


def clean(work: Work, host: str) -> None:
    """Nothing of the server is left on the host; a host that does not answer is cleaned when it is back."""
    try:
        with work.client(host) as client:
            client.delete("server", work.id, timeout=work.conductor.settings.action_timeout)
    except NotFound:
        pass
    except (HostDown, MagnetarError) as error:
        log.warning("server %s: what is left of it on %s is removed later: %s", work.id, host, error.message)


def _gone(work: Work) -> None:
    """The server holds nothing of the host any more, and is on none."""
    with work.conductor.store.api.write() as connection:
        allocations.release(connection, work.id)
    work.conductor.look(aggregates=False)
    work.note(host=None)
