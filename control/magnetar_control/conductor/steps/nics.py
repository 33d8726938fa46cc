# SPDX-License-Identifier: GPL-3.0-or-later
"""The NICs of servers: their ports, their networks on hosts, and the addresses that the API shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from magnetar_control.conductor.worker.work import Work
from magnetar_control.scheduler.request_spec import placed_hardware
from magnetar_control.store.claims import nic_bandwidth
from magnetar_control.store.hosts import host_removals
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_addresses import addresses_of_nics
from magnetar_core.bandwidth import card_of
from magnetar_core.hardware.pci import REMOTE
from magnetar_core.http.client import Client
from magnetar_core.power import number

from . import host_groups


def allocate(work: Work, host: str) -> list[dict[str, Any]]:
    """The NICs of the server, which is to be on *host*. The first call allocates their ports, which are saved with the
    next write."""
    nics, wishes = work.nics, work.request.get("networks")
    if wishes and not nics:
        groups = [one.get("id") or one["name"] for one in orjson.loads(work.server.security_groups)]
        nics = work.conductor.services.network.allocate(
            work.context(), work.id, wishes, groups, hostname=work.server.hostname or "", host=host)
        work.defer(interfaces=servers.text(nics))
    return nics


def free_reserved(work: Work) -> None:
    """Free the ports that the API has reserved for a server which was not built, unless the server has taken them."""
    if not work.nics and any(nic.get("port_id") for nic in work.request.get("networks") or ()):
        work.conductor.services.network.release(work.id, sure=work.confirm_lease)


def current(work: Work) -> list[dict[str, Any]]:
    """The NICs of a server that goes to another host, with what was changed of their ports since; saved with the next
    write."""
    known = {one["port_id"]: {name: value for name, value in one.items() if name not in ("port_state", "host")}
             for one in work.conductor.services.network.ports(work.id)}
    found = [known.get(nic["port_id"], nic) for nic in work.nics]
    work.defer(interfaces=servers.text(found))
    return found


def ready(work: Work, host: str, nics: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the server may start on *host*: the engine of networks has its ports there. While it takes them, the host
    makes the server, which is started after ``await_ports``. This waits at a second attempt, at which the guest may run
    already, and where other actions have use for the worker: the host is asked once then, not twice. Of which card a
    port of a SmartNIC is, its host tells first."""
    if not any("port" in nic["on_host"] for nic in nics):
        return True
    if work.action.attempts > 1 or (work.conductor.others_wait() and not any_remote_managed(nics)):
        await_ports(work, host)
        return True
    return False  # its ports were allocated a moment ago


def any_remote_managed(nics: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some of the NICs are virtual functions of SmartNICs, whose OVN plugs them in."""
    return any(nic["on_host"].get("vnic_type") == REMOTE for nic in nics)


def follow(work: Work, resource: Mapping[str, Any]) -> None:
    """Tell the OVN of SmartNICs which functions the guest has been started with, as the agent's *resource* says: in the
    place of one that was gone it has another."""
    if work.rule.starts and any_remote_managed(work.nics):
        work.conductor.services.network.bind(work.id, work.server.host, work.confirm_lease, devices(resource))


def await_ports(work: Work, host: str) -> None:
    """Wait until the server may start on *host*. Others have the worker's place meanwhile."""
    with work.resting():
        work.conductor.services.network.prepare(work.id, host, work.confirm_old_lease)


def bind(work: Work, host: str, resource: Mapping[str, Any], *, waits: bool) -> None:
    """The server's ports are on *host*, as the agent's *resource* says. *waits*: as ``await_ports`` then."""
    network, bound = work.conductor.services.network, (work.id, host, work.confirm_old_lease, devices(resource))
    if not waits:
        network.bind(*bound)
        return
    with work.resting():
        network.bind_prepared(*bound)


def networks(work: Work, client: Client, host: str, nics: Sequence[Mapping[str, Any]]) -> None:
    """Make the networks of the NICs on the host, and have it know their security groups."""
    host_groups.bring(work.conductor, client, host, nics)
    for nic in nics:
        key = ("network", host, nic["network_id"])
        if key in work.conductor.delivery.known:
            continue
        wish = work.conductor.services.network.on_host(nic["network_id"])
        if wish:  # noted first, so that its deletion tells the host
            with work.conductor.store.api.write() as connection:
                host_removals.note(connection, host, "network", wish["name"])
            client.ensure("network", wish["name"], wish)
        work.conductor.delivery.remember(key)


def on_host(nic: Mapping[str, Any], cards: Mapping[str, str]) -> dict[str, Any]:
    """The NIC in the agent's form, with what its guest is told of network and port. *cards*: ``claimed_cards`` of its
    host."""
    told = {"network_id": nic["network_id"], "port_id": nic["port_id"], **(nic.get("told") or {})}
    return {**nic["on_host"], **({"tag": nic["tag"]} if nic.get("tag") else {}), "told": told,
            **({"card": cards[nic["mac"]]} if nic["mac"] in cards else {})}


def claimed_cards(work: Work, host: str, nics: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """MAC to the card of *host*, its network device, of which a NIC is to be a virtual function, as the server has
    claimed its bandwidth there. Nothing is read where no NIC can have one."""
    mine = {one.id for one in nic_bandwidth.asking(nics) if one.devices}
    if not mine:
        return {}
    with work.conductor.store.api.read() as connection:
        found = nic_bandwidth.cards_of(connection, [work.id])
    return {nic["mac"]: card_of(place) for nic in nics if nic["port_id"] in mine and (
        place := found.get((nic["port_id"], host)))}


def placed(work: Work, host: str, nics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """As ``on_host``, for a new server: ports of OVN with the network that they are over, where the server has NUMA
    cells and the host's agent is none of before it told what is near its own."""
    cards = claimed_cards(work, host, nics)
    found = [on_host(nic, cards) for nic in nics]
    near = [nic.get("network_affinity") if "port" in one else None for nic, one in zip(nics, found, strict=True)]
    if any(near) and placed_hardware(work.flavor, orjson.loads(work.server.image)):
        cells = orjson.loads(work.conductor.host(host)["info"]).get("numa_cells") or ()
        if any("networks" in cell for cell in cells):
            return [{**one, "network_affinity": name} if name else one for name, one in zip(near, found, strict=True)]
    return found


def devices(resource: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """MAC to the device of its host that a NIC is, as the agent's *resource* tells."""
    found: dict[str, dict[str, Any]] = resource.get("nic_devices") or {}
    return found


def devices_on(work: Work, host: str) -> dict[str, dict[str, Any]]:
    """The same of a server that has come to *host*, whose agent is asked only where there is something to tell."""
    if not any(nic.get("devices") for nic in work.nics):
        return {}
    with work.client(host) as client:
        return devices(client.get("server", work.id))


def observed(nics: Sequence[Mapping[str, Any]], resource: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the server that follow from its NICs and the agent's resource."""
    return {"power_state": number(resource["power_state"]), "instance_name": resource["instance_name"],
            "addresses": servers.text(addresses_of_nics(nics, resource.get("addresses") or {})), "fault": None}
