# SPDX-License-Identifier: GPL-3.0-or-later
"""The NICs of servers: their ports, their networks on hosts, and the addresses that the API shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from magnetar_control.store import servers
from magnetar_core.client import Client
from magnetar_core.power import number

from .work import Work


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


def current(work: Work) -> list[dict[str, Any]]:
    """The NICs of a server that goes to another host, with what was changed of their ports since; saved with the next
    write."""
    known = {one["port_id"]: {name: value for name, value in one.items() if name not in ("port_state", "host")}
             for one in work.conductor.services.network.ports(work.id)}
    found = [known.get(nic["port_id"], nic) for nic in work.nics]
    work.defer(interfaces=servers.text(found))
    return found


def networks(work: Work, client: Client, host: str, nics: Sequence[Mapping[str, Any]]) -> None:
    """Make the networks of the NICs on the host."""
    for nic in nics:
        key = ("network", host, nic["network_id"])
        if key in work.conductor.delivery.known:
            continue
        wish = work.conductor.services.network.on_host(nic["network_id"])
        if wish:
            client.ensure("network", wish["name"], wish)
        work.conductor.delivery.remember(key)


def on_host(nic: Mapping[str, Any]) -> dict[str, Any]:
    """The NIC in the agent's form, with what its guest is told of network and port."""
    told = {"network_id": nic["network_id"], "port_id": nic["port_id"], **(nic.get("told") or {})}
    return {**nic["on_host"], **({"tag": nic["tag"]} if nic.get("tag") else {}), "told": told}


def observed(nics: Sequence[Mapping[str, Any]], resource: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the server that follow from its NICs and the agent's resource."""
    return {"power_state": number(resource["power_state"]), "instance_name": resource["instance_name"],
            "addresses": servers.text(addresses(nics, resource.get("addresses") or {})), "fault": None}


def addresses(nics: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Addresses in Nova's form, by network name: those of the network service, else those that the host knows."""
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
