# SPDX-License-Identifier: GPL-3.0-or-later
"""The NICs of servers: their ports, their networks on hosts, and the addresses that the API shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar_control.conductor.worker.work import RunningAction
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


def allocate_nics(work: RunningAction, host: str) -> Sequence[ServerNic]:
    """Return the NICs of the server for its build on *host*. The first call allocates the ports of the NICs; the
    action's next transaction saves the NICs in the server's row."""
    nics, wishes = work.nics, work.request.get("networks")
    if wishes and not nics:
        groups = [group.get("id") or group["name"] for group in work.server.security_groups]
        nics = work.conductor.services.network.allocate(
            work.context(), work.id, wishes, groups, hostname=work.server.hostname or "", host=host)
        work.defer(interfaces=servers.json_text(nics))
    return nics


def free_reserved_ports(work: RunningAction) -> None:
    """Release the ports that the API has reserved for a server that was not built. Do nothing if the server already has
    NICs."""
    if not work.nics and any(nic.get("port_id") for nic in work.request.get("networks") or ()):
        work.conductor.services.network.release(work.id, confirm=work.confirm_lease)


def current_nics(work: RunningAction) -> Sequence[ServerNic]:
    """Return the NICs of a server that moves to another host, read again from the network service. The action's next
    transaction saves these NICs in the server's row."""
    nics_by_port = {port["port_id"]: nic_of_port(port) for port in work.conductor.services.network.ports(work.id)}
    nics = [nics_by_port.get(nic["port_id"], nic) for nic in work.nics]
    work.defer(interfaces=servers.json_text(nics))
    return nics


def ports_ready(work: RunningAction, host: str, nics: Sequence[ServerNic]) -> bool:
    """Return whether the server can be created on *host* and started in the same request. If ``False``, the caller must
    create the server powered off, call ``await_ports``, and then start the server in a second request.

    At a second attempt of the action, or when queued actions wait for a free worker, this function itself calls
    ``await_ports`` and returns ``True``, which saves the second request. For a server with SmartNIC ports, this
    function does so only at a second attempt: the host must first report which SmartNIC the server uses.
    """
    if not any("port" in nic["on_host"] for nic in nics):
        return True
    if work.action.attempts > 1 or (work.conductor.slots.others_wait() and not any_remote_managed(nics)):
        await_ports(work, host)
        return True
    return False  # its ports were allocated a moment ago


def any_remote_managed(nics: Sequence[ServerNic]) -> bool:
    """Return whether any of *nics* is a virtual function of a SmartNIC (vnic_type remote-managed), which an OVN
    instance on the SmartNIC connects."""
    return any(nic["on_host"].get("vnic_type") == REMOTE for nic in nics)


def bind_started_devices(work: RunningAction, resource: Mapping[str, Any]) -> None:
    """After a start of the guest, bind its SmartNIC ports again with the virtual functions in use now, because the host
    may have replaced a missing virtual function. *resource*: the server as its agent reports it."""
    if work.rule.starts and any_remote_managed(work.nics):
        work.conductor.services.network.bind(work.id, work.server.host, work.confirm_lease, nic_devices(resource))


def await_ports(work: RunningAction, host: str) -> None:
    """Wait until the server's ports are ready on *host*. Meanwhile the action gives up its worker slot to other actions
    (see ``WorkerSlots.resting``)."""
    with work.resting():
        work.conductor.services.network.prepare(work.id, host, work.confirm_old_lease)


def bind_nics(work: RunningAction, host: str, resource: Mapping[str, Any], *, waits: bool) -> None:
    """Bind the server's ports to *host*, with the host devices that its NICs use. *resource*: the server as its agent
    reports it. *waits*: after binding, wait until the ports are ready."""
    network, bound = work.conductor.services.network, (work.id, host, work.confirm_old_lease, nic_devices(resource))
    if not waits:
        network.bind(*bound)
        return
    with work.resting():
        network.bind_prepared(*bound)


def make_nic_networks(work: RunningAction, client: Client, host: str, nics: Sequence[ServerNic]) -> None:
    """Create the networks of *nics* on *host* if they are missing there, and send the security groups of *nics* to
    *host*. *client*: calls the agent of *host*."""
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
    """Return *nic* as the agent expects it, with the data about its network and port that the guest's metadata
    contains. *cards_by_mac*: the result of ``claimed_cards`` for the host."""
    network_facts = {"network_id": nic["network_id"], "port_id": nic["port_id"], **(nic.get("told") or {})}
    return {**nic["on_host"], **({"tag": nic["tag"]} if nic.get("tag") else {}), "told": network_facts,
            **({"card": cards_by_mac[nic["mac"]]} if nic["mac"] in cards_by_mac else {})}


def claimed_cards(work: RunningAction, host: str, nics: Sequence[ServerNic]) -> dict[str, str]:
    """Return {MAC of the NIC: device name of a network card of *host*} for the NICs that are virtual functions with
    guaranteed bandwidth. The server has claimed the bandwidth on this card, so the virtual function must be one of this
    card."""
    mine = {asking_nic.id for asking_nic in nic_bandwidth.bandwidth_requests(nics) if asking_nic.devices}
    if not mine:
        return {}
    with work.conductor.store.api.read() as connection:
        cards = nic_bandwidth.fetch_card_places(connection, [work.id])
    return {nic["mac"]: card_of_place(place) for nic in nics if nic["port_id"] in mine and (
        place := cards.get((nic["port_id"], host)))}


def nics_for_agent(work: RunningAction, host: str, nics: Sequence[ServerNic]) -> list[dict[str, Any]]:
    """Return the NICs of a new server as the agent of *host* expects them. For a server with NUMA cells, NICs with OVN
    ports also name their physical network, unless the agent is too old to report the physical networks of each NUMA
    cell."""
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
    """Return {MAC of the NIC: PCI device of the host, such as a virtual function} from *resource*, the server as its
    agent reports it."""
    devices_by_mac: dict[str, dict[str, Any]] = resource.get("nic_devices") or {}
    return devices_by_mac


def nic_devices_on_host(work: RunningAction, host: str) -> dict[str, dict[str, Any]]:
    """Return the result of ``nic_devices`` for a server that has moved to *host*. If no NIC is a PCI device, return an
    empty mapping without a request to the agent."""
    if not any(nic.get("devices") for nic in work.nics):
        return {}
    with work.client(host) as client:
        return nic_devices(client.get("server", work.id))


def observed_columns(nics: Sequence[ServerNic], resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the server's row that follow from *resource*, the server as its agent reports it: power
    state, libvirt name, and the addresses of *nics*. The column ``fault`` is cleared."""
    return {"power_state": power_number(resource["power_state"]), "instance_name": resource["instance_name"],
            "addresses": servers.json_text(addresses_of_nics(nics, resource.get("addresses") or {})), "fault": None}
