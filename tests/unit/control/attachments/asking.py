# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user asks of a cloud about volumes and servers, and what its hosts say of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.control.cloud import Caller, Cloud, Reply
from tests.support.waiting import eventually

VOLUMES = "/volume/v3"
NETWORK = "/network/v2.0"


class Owner:
    """A caller with volumes. *cloud*: with two hosts that reach each other."""

    def __init__(self, cloud: Cloud, caller: Caller | None = None) -> None:
        self.cloud, self.call = cloud, caller or cloud.admin
        self.api = f"{VOLUMES}/{self.call.project_id}"

    def volume(self, size: int = 1, **more: Any) -> str:
        """A new volume that is available; *host* says where."""
        host = more.pop("host", None)
        if host:
            return self._at(host, size, more)
        reply = self.call.post(f"{self.api}/volumes", {"volume": {"size": size, **more}})
        assert reply.status == 202, reply
        id = str(reply.json["volume"]["id"])
        eventually(lambda: self.state(id) == "available")
        return id

    def _at(self, host: str, size: int, more: dict[str, Any]) -> str:
        from magnetar_control.services import Context

        context = Context(self.call.user_id, self.call.project_id, frozenset(["member"]))
        made = self.cloud.services.volume.create(context, size, host=host, **more)
        self.cloud.services.volume.wait(made["id"], 20)
        return str(made["id"])

    def seen(self, id: str) -> dict[str, Any] | None:
        """The volume."""
        reply = self.call.get(f"{self.api}/volumes/{id}")
        return None if reply.status == 404 else reply.json["volume"]

    def state(self, id: str) -> str | None:
        """The volume's status."""
        found = self.seen(id)
        return found["status"] if found else None

    def server(self, **more: Any) -> dict[str, Any]:
        """A server that runs; without a network unless one is named."""
        found = self.call.boot(**{"networks": "none", **more})
        assert found["status"] == "ACTIVE", found.get("fault")
        return found

    def attach(self, server: str, volume: str, version: str = "2.89", **more: Any) -> Reply:
        """Ask for it."""
        return self.call.post(f"/v2.1/servers/{server}/os-volume_attachments",
                              {"volumeAttachment": {"volumeId": volume, **more}}, version)

    def attached(self, server: str, version: str = "2.89") -> list[dict[str, Any]]:
        """The list of attachments."""
        found: list[dict[str, Any]] = self.call.get(f"/v2.1/servers/{server}/os-volume_attachments",
                                                    version).json["volumeAttachments"]
        return found

    def detach(self, server: str, volume: str) -> Reply:
        """Ask for it."""
        return self.call.delete(f"/v2.1/servers/{server}/os-volume_attachments/{volume}")

    def swap(self, server: str, volume: str, new: str, version: str = "2.89", **more: Any) -> Reply:
        """Ask for it."""
        return self.call.put(f"/v2.1/servers/{server}/os-volume_attachments/{volume}",
                             {"volumeAttachment": {"volumeId": new, **more}}, version)

    def on_host(self, noun: str, host: str) -> list[dict[str, Any]]:
        """What the agent of a host has of a kind."""
        with self.cloud.parts.agents.client(self.cloud.hosts[host]) as client:
            return list(client.list(noun))

    @contextmanager
    def lost(self, volume: str) -> Iterator[None]:
        """Within, the volume's content is gone from its host."""
        place = self.cloud.folder / self.cloud.services.volume.where(volume) / "state" / "volumes" / volume
        place.rename(place.with_name("aside"))
        try:
            yield
        finally:
            place.with_name("aside").rename(place)

    def host_of(self, server: str) -> str:
        """The host of a server."""
        return str(self.call.server(server)["OS-EXT-SRV-ATTR:host"])

    def other(self, host: str) -> str:
        """The other one."""
        return next(name for name in self.cloud.hosts if name != host)

    def clear(self) -> None:
        """Remove servers, then volumes; nothing of them is left on the hosts."""
        for one in self.call.get("/v2.1/servers").json["servers"]:
            self.call.delete(f"/v2.1/servers/{one['id']}")
        eventually(lambda: not self.call.get("/v2.1/servers").json["servers"])
        for one in self.call.get(f"{self.api}/snapshots").json["snapshots"]:
            self.call.delete(f"{self.api}/snapshots/{one['id']}")
        eventually(lambda: not self.call.get(f"{self.api}/snapshots").json["snapshots"])
        for one in self.call.get(f"{self.api}/volumes").json["volumes"]:
            eventually(lambda id=one["id"]: self.state(id) not in ("attaching", "detaching", "creating"))
            self.call.delete(f"{self.api}/volumes/{one['id']}")
        eventually(lambda: not self.call.get(f"{self.api}/volumes").json["volumes"])
        for host in self.cloud.hosts:
            for noun in ("volume_attachment", "volume_export", "volume"):
                eventually(lambda noun=noun, host=host: self.on_host(noun, host) == [], f"no {noun} on {host}")


def path(server: str, port: str = "") -> str:
    """The route."""
    return f"/v2.1/servers/{server}/os-interface" + (f"/{port}" if port else "")


def network(owner: Owner, name: str = "second", cidr: str = "198.18.0.0/24") -> str:
    """The uuid of a network with a subnet; made when there is none."""
    found = owner.call.get(f"{NETWORK}/networks?name={name}").json["networks"]
    if found:
        return str(found[0]["id"])
    id = owner.call.post(f"{NETWORK}/networks", {"network": {"name": name}}).json["network"]["id"]
    reply = owner.call.post(f"{NETWORK}/subnets", {"subnet": {"network_id": id, "cidr": cidr, "ip_version": 4}})
    assert reply.status == 201, reply
    return str(id)


def macs(owner: Owner, server: str) -> set[str]:
    """Of the NICs that the host has given it."""
    [shown] = [one for one in owner.on_host("server", owner.host_of(server)) if one["id"] == server]
    return {nic["mac"] for nic in shown["networks"]}


def ports(owner: Owner) -> list[str]:
    """All ports of the project."""
    return [one["id"] for one in owner.call.get(f"{NETWORK}/ports").json["ports"]]


def new_port(owner: Owner, network_id: str | None = None, **more: Any) -> str:
    """The uuid of a new port, on ``network`` where no other is named."""
    made = owner.call.post(f"{NETWORK}/ports", {"port": {"network_id": network_id or network(owner), **more}})
    assert made.status == 201, made
    return str(made.json["port"]["id"])


def server_on(owner: Owner, **more: Any) -> str:
    """A server with one NIC on the first network."""
    first = owner.call.get(f"{NETWORK}/networks?name=default").json["networks"][0]["id"]
    return str(owner.server(networks=[{"uuid": first}], **more)["id"])
