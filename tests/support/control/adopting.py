# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of adoptions in a cloud: domains of other programs on its hosts, and requests about them."""

from __future__ import annotations

import uuid as uuids
from typing import Any
from urllib.parse import quote

from magnetar_core.power import RUNNING
from tests.support.agent import foreign
from tests.support.control.cloud import Reply
from tests.support.control.servers import ensure
from tests.unit.control.moves.inside import Inside

MACS = (f"52:54:00:6b:3d:{number:02x}" for number in range(256))
#: Seconds that a request waits.
WAIT = 50
#: The libvirt network of the domains, which no cloud has made.
LAN = "lan"


def with_flavor(cloud: Inside) -> None:
    """Create the flavor ``equal``, which has the size of the domains."""
    reply = ensure(cloud.admin, "flavor/equal", {"vcpus": 2, "ram": 64, "disk": 1})
    assert reply.status == 200, reply


def define(cloud: Inside, name: str, state: str = RUNNING, host: str = "kvm1", nics: str | None = None,
           mac: str = "") -> str:
    """Define a domain as virt-install does on a host, and return its uuid. *nics*: their XML; by default one NIC with
    *mac* on ``LAN``."""
    uuid, fake = str(uuids.uuid4()), cloud.kvm[host].fake
    folder = cloud.folder / "images"
    folder.mkdir(exist_ok=True)
    fake.network_outside(LAN)
    devices = foreign.file_disk(foreign.raw(folder, f"{uuid}.img"), format="raw") + (
        foreign.network_nic(LAN, mac or next(MACS)) if nics is None else nics)
    fake.defined_outside(foreign.foreign_xml(name, devices, uuid), state)
    return uuid


def adopt(cloud: Inside, key: str, dry_run: bool = False, caller: Any = None, **want: Any) -> Reply:
    """Adopt a domain; without ports, unless *want* has ``networks``."""
    body = want if "networks" in want else {"without_ports": True, **want}
    return ensure(caller or cloud.admin, f"adoption/{quote(key)}", body, dry_run=dry_run, wait=WAIT)


def release(cloud: Inside, key: str, **query: str) -> Reply:
    """Release a domain."""
    more = "".join(f"&{name}={value}" for name, value in query.items())
    return cloud.admin.delete(f"/v1/adoption/{quote(key)}?wait={WAIT}{more}")


def reasons(reply: Reply) -> list[str]:
    """Return what hinders, of a refusal."""
    assert reply.status == 409, reply
    return [hindrance["reason"] for hindrance in reply.json["error"]["details"]["hindrances"]]


def network(cloud: Inside, name: str, cidr: str, **more: Any) -> str:
    """Create a network with a subnet, and return its uuid."""
    made = cloud.admin.post("/network/v2.0/networks", {"network": {"name": name, **more}})
    assert made.status == 201, made
    id = str(made.json["network"]["id"])
    subnet = cloud.admin.post("/network/v2.0/subnets", {"subnet": {"network_id": id, "cidr": cidr, "ip_version": 4}})
    assert subnet.status == 201, subnet
    return id


def undefine(cloud: Inside, host: str, uuid: str) -> None:
    """Remove a domain from a host, as another program may."""
    cloud.kvm[host].fake.undefined_outside(uuid)
