# SPDX-License-Identifier: GPL-3.0-or-later
"""The NICs of servers: their ports, their networks on hosts, and the addresses that the API shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar_control.conductor.worker.work import Work
from magnetar_control.documents import ServerNic, nic_of_port
from magnetar_control.scheduler.request_spec import placed_hardware
from magnetar_control.store.claims import nic_bandwidth
from magnetar_control.store.hosts import host_removals
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.servers import addresses_of_nics
from magnetar_core.bandwidth import card_of_place
from magnetar_core.hardware.pci import REMOTE
from magnetar_core.http.client import Client
from magnetar_core.power import power_number

from . import host_groups


def allocate_nics(work: Work, host: str) -> Sequence[ServerNic]:
    """Return the NICs of the server for *host*. The first call allocates their ports, which are saved with the next
    write."""
    nics, wishes = work.nics, work.request.get("networks")
    if wishes and not nics:
        groups = [group.get("id") or group["name"] for group in work.server.security_groups]
        nics = work.conductor.services.network.allocate(
            work.context(), work.id, wishes, groups, hostname=work.server.hostname or "", host=host)
        work.defer(interfaces=servers.json_text(nics))
    return nics


def free_reserved_ports(work: Work) -> None:
    """Free the ports that the API has reserved for a server that was not built, unless the server has taken them."""
    if not work.nics and any(nic.get("port_id") for nic in work.request.get("networks") or ()):
        work.conductor.services.network.release(work.id, confirm=work.confirm_lease)


def current_nics(work: Work) -> Sequence[ServerNic]:
    """Return the NICs of a server that moves to another host, with the current state of their ports. The next write
    saves them."""
    nics_by_port = {port["port_id"]: nic_of_port(port) for port in work.conductor.services.network.ports(work.id)}
    nics = [nics_by_port.get(nic["port_id"], nic) for nic in work.nics]
    work.defer(interfaces=servers.json_text(nics))
    return nics


def ports_ready(work: Work, host: str, nics: Sequence[ServerNic]) -> bool:
    """Return whether the server can be started immediately when it is created on *host*. If ``False``, its ports may
    not be ready: create the server powered off, and start it after ``await_ports``.

    In a second attempt (the guest may run already), and when other actions need the worker, this function waits for
    the ports itself and returns ``True``, so that the host gets one request instead of two. For SmartNICs it waits
    only in a second attempt, since the host must first report the card.
    """
    if not any("port" in nic["on_host"] for nic in nics):
        return True
    if work.action.attempts > 1 or (work.conductor.places.others_wait() and not any_remote_managed(nics)):
        await_ports(work, host)
        return True
    return False  # its ports were allocated a moment ago


def any_remote_managed(nics: Sequence[ServerNic]) -> bool:
    """Return whether any of *nics* is a virtual function of a SmartNIC, which the SmartNIC's own OVN connects."""
    return any(nic["on_host"].get("vnic_type") == REMOTE for nic in nics)


def bind_started_devices(work: Work, resource: Mapping[str, Any]) -> None:
    """Report the virtual functions of a started guest to the OVN of its SmartNICs: the host may have replaced one that
    was gone. *resource*: the server as its agent reports it."""
    if work.rule.starts and any_remote_managed(work.nics):
        work.conductor.services.network.bind(work.id, work.server.host, work.confirm_lease, nic_devices(resource))


def await_ports(work: Work, host: str) -> None:
    """Wait until the server's ports are ready on *host*. Other actions can use the worker."""
    with work.resting():
        work.conductor.services.network.prepare(work.id, host, work.confirm_old_lease)


def bind_nics(work: Work, host: str, resource: Mapping[str, Any], *, waits: bool) -> None:
    """Bind the server's ports to *host*, with the host's devices that its NICs use. *resource*: the server as its
    agent reports it. *waits*: also wait until the ports are ready."""
    network, bound = work.conductor.services.network, (work.id, host, work.confirm_old_lease, nic_devices(resource))
    if not waits:
        network.bind(*bound)
        return
    with work.resting():
        network.bind_prepared(*bound)


def make_nic_networks(work: Work, client: Client, host: str, nics: Sequence[ServerNic]) -> None:
    """Make the networks of the NICs on the host, and send it their security groups."""
    host_groups.bring_security_groups(work.conductor, client, host, nics)
    for nic in nics:
        key = ("network", host, nic["network_id"])
        if key in work.conductor.delivery.known:
            continue
        wish = work.conductor.services.network.on_host(nic["network_id"])
        if wish:  # noted first, so that its deletion reaches the host
            with work.conductor.store.api.write() as connection:
                host_removals.insert_removal_row(connection, host, "network", wish["name"])
            client.ensure("network", wish["name"], wish)
        work.conductor.delivery.remember(key)


def nic_for_agent(nic: ServerNic, cards_by_mac: Mapping[str, str]) -> dict[str, Any]:
    """Return the NIC in the agent's form, with the facts about network and port for its guest. *cards_by_mac*:
    ``claimed_cards`` of its host."""
    network_facts = {"network_id": nic["network_id"], "port_id": nic["port_id"], **(nic.get("told") or {})}
    return {**nic["on_host"], **({"tag": nic["tag"]} if nic.get("tag") else {}), "told": network_facts,
            **({"card": cards_by_mac[nic["mac"]]} if nic["mac"] in cards_by_mac else {})}


def claimed_cards(work: Work, host: str, nics: Sequence[ServerNic]) -> dict[str, str]:
    """Return, by MAC of a NIC, the network card of *host* (its device name) on which the server has claimed bandwidth
    for the NIC. The NIC must be a virtual function of this card. The result is empty if no NIC is a virtual function
    with bandwidth."""
    mine = {asking_nic.id for asking_nic in nic_bandwidth.bandwidth_requests(nics) if asking_nic.devices}
    if not mine:
        return {}
    with work.conductor.store.api.read() as connection:
        cards = nic_bandwidth.fetch_card_places(connection, [work.id])
    return {nic["mac"]: card_of_place(place) for nic in nics if nic["port_id"] in mine and (
        place := cards.get((nic["port_id"], host)))}


def nics_for_agent(work: Work, host: str, nics: Sequence[ServerNic]) -> list[dict[str, Any]]:
    """Return the NICs of a new server in the agent's form. NICs with OVN ports also name the physical network that
    carries them, if the server has NUMA cells and the host's agent is recent enough to report the networks near its
    cells."""
    cards = claimed_cards(work, host, nics)
    agent_nics = [nic_for_agent(nic, cards) for nic in nics]
    near = [nic.get("network_affinity") if "port" in agent_nic else None for nic,
            agent_nic in zip(nics, agent_nics, strict=True)]
    if any(near) and placed_hardware(work.flavor, work.server.image):
        cells = work.conductor.host(host).info.get("numa_cells") or ()
        if any("networks" in cell for cell in cells):
            return [{**agent_nic, "network_affinity": name} if name else agent_nic for name,
                    agent_nic in zip(near, agent_nics, strict=True)]
    return agent_nics


def nic_devices(resource: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the host's device of each NIC, by MAC, from *resource*, the server as its agent reports it."""
    devices_by_mac: dict[str, dict[str, Any]] = resource.get("nic_devices") or {}
    return devices_by_mac


def nic_devices_on_host(work: Work, host: str) -> dict[str, dict[str, Any]]:
    """Return the host's device of each NIC, by MAC, for a server that has moved to *host*; empty, without a request to
    the agent, if no NIC has a device."""
    if not any(nic.get("devices") for nic in work.nics):
        return {}
    with work.client(host) as client:
        return nic_devices(client.get("server", work.id))


def observed_columns(nics: Sequence[ServerNic], resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns to save: power state, libvirt name, an empty fault, and the server's addresses, made from
    *nics* and *resource* (the server as its agent reports it)."""
    return {"power_state": power_number(resource["power_state"]), "instance_name": resource["instance_name"],
            "addresses": servers.json_text(addresses_of_nics(nics, resource.get("addresses") or {})), "fault": None}
