# SPDX-License-Identifier: GPL-3.0-or-later
"""What cases need: images, flavors, keypairs, servers in a state, volumes, ports; made on demand, removed later."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

from .transport import Cloud, Exchange


class Blocked(Exception):
    """A fixture could not be made: the case that needs it says nothing, and the reason is counted."""


def body_of(answer: Exchange, what: str) -> Any:
    """The answer's document; raises ``Blocked`` when it is a refusal."""
    if answer.status >= 300:
        raise Blocked(f"{what}: {answer.status} {answer.message[:200]}")
    return answer.body


#: How to bring an active server into a state: actions, each with the status that follows.
WAYS: dict[str, tuple[tuple[dict[str, Any], tuple[str, ...]], ...]] = {
    "active": (),
    "soft-delete": (),
    "reused": (),
    "stopped": (({"os-stop": None}, ("SHUTOFF",)),),
    "paused": (({"pause": None}, ("PAUSED",)),),
    "suspended": (({"suspend": None}, ("SUSPENDED",)),),
    "rescued": (({"rescue": None}, ("RESCUE",)),),
    "resized": (({"resize": {"flavorRef": "{larger}"}}, ("VERIFY_RESIZE",)),),
    "shelved": (({"shelve": None}, ("SHELVED", "SHELVED_OFFLOADED")),),
    "shelved_offloaded": (({"shelve": None}, ("SHELVED", "SHELVED_OFFLOADED")),),
    "error": (({"os-resetState": {"state": "error"}}, ("ERROR",)),),
    "migrated": (({"migrate": None}, ("VERIFY_RESIZE",)), ({"confirmResize": None}, ("ACTIVE",))),
}
PUBLIC_KEY = ("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDx8nkQv/zgGgB4rMYmIf+6A4l6Rr+o/6lHBQdW5aYd44bd8JttDCE/F/pNRr0lRE"
              "+PiqSPO8nDPHw0010JeMH9gYgnnFlyY3/OcJ02RhIPyyxYpv9FhY+2YiUkpwFOcLImyrxEsYXpD/0d3ac30bNH6Sw9JD9UZHYcpSxs"
              "IbECHw== conformance")


#: Seconds for what did not end before.
PATIENCE = 0.5


class Fixtures:
    """Makes things once, or anew where a case spends them."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.numbers = itertools.count(1)
        self.mark = f"{int(time.time()) % 1000000:06d}"
        #: How to remove what one case made, and what all share.
        self._undo: list[tuple[str, Callable[[], Any]]] = []
        self._lasting: list[tuple[str, Callable[[], Any]]] = []
        self._kept: dict[str, Any] = {}
        self.timeout = cloud.target.timeout
        #: Servers on which something did not end.
        self.stuck: set[str] = set()
        #: Servers that are removed by themselves.
        self.servers: set[str] = set()

    def name(self, what: str) -> str:
        """A name that nothing else has."""
        return f"conformance-{what}-{self.mark}-{next(self.numbers)}"

    def undo(self, what: str, how: Callable[[], Any]) -> None:
        """Remember how a thing is removed."""
        self._undo.append((what, how))

    def remember(self, key: str, make: Callable[[], Any]) -> Any:
        """What *make* made the first time; a failure is remembered too."""
        if key not in self._kept:
            before = self.made
            try:
                self._kept[key] = make()
            except Blocked as why:
                self._kept[key] = why
            self._lasting.extend(self._undo[before:])
            del self._undo[before:]
        there = self._kept[key]
        if isinstance(there, Blocked):
            raise Blocked(f"fixture {key}: {there}")
        return there

    def forget(self, key: str) -> None:
        """Create it again the next time."""
        self._kept.pop(key, None)

    def compute(self, method: str, path: str, body: Any = None, version: int = 1, what: str = "") -> Any:
        """Ask as the administrator; raises ``Blocked`` for a refusal."""
        return body_of(self.cloud.compute(method, path, body, version=version), what or f"{method} {path}")

    # ---- images, flavors, keys

    @property
    def image(self) -> str:
        """An active image."""
        return str(self.remember("image", self._image))

    def _image(self) -> str:
        if self.cloud.target.image:
            return self.cloud.target.image
        # The samples' image has these properties; the disk's configuration follows from one of them.
        made = body_of(self.cloud.service("image", "POST", "/v2/images", {
            "name": self.name("image"), "disk_format": "raw", "container_format": "bare", "visibility": "public",
            "auto_disk_config": "True", "architecture": "x86_64", **self.cloud.target.signature}), "image")
        self.undo("image", lambda: self.cloud.service("image", "DELETE", f"/v2/images/{made['id']}"))
        body_of(self.cloud.service("image", "PUT", f"/v2/images/{made['id']}/file", content=bytes(1024 * 1024),
                                   headers={"Content-Type": "application/octet-stream"}), "image content")
        return str(made["id"])

    def remove_images(self) -> None:
        """Remove the images and backups that servers left: a project may have so many."""
        found = self.cloud.service("image", "GET", "/v2/images?limit=1000").body or {}
        for one in found.get("images", []):
            if one.get("image_type") in ("snapshot", "backup"):
                self.cloud.service("image", "DELETE", f"/v2/images/{one['id']}")

    def flavor(self, key: str = "small", **more: Any) -> str:
        """A public flavor by what it is for: small, larger, specs."""
        def make() -> str:
            document = {"name": self.name("flavor"), "ram": 64, "vcpus": 1, "disk": 1, "id": "auto", **more}
            if key == "larger":
                document["ram"] = 96
            answer = self.cloud.compute("POST", "/flavors", {"flavor": document})
            if answer.status == 404 and key == "small" and self.cloud.target.flavor:
                return self.cloud.target.flavor
            id = str(body_of(answer, "flavor")["flavor"]["id"])
            self.undo("flavor", lambda: self.cloud.compute("DELETE", f"/flavors/{id}"))
            if key == "specs":
                self.compute("POST", f"/flavors/{id}/os-extra_specs", {"extra_specs": {"hw:numa_nodes": "1"}})
            return id
        return str(self.remember(f"flavor {key}", make))

    def spent_flavor(self, **more: Any) -> str:
        """A flavor of its own for one case."""
        document = {"name": self.name("flavor"), "ram": 64, "vcpus": 1, "disk": 1, "id": "auto", **more}
        id = str(self.compute("POST", "/flavors", {"flavor": document}, what="flavor")["flavor"]["id"])
        self.undo("flavor", lambda: self.cloud.compute("DELETE", f"/flavors/{id}"))
        return id

    def keypair(self, name: str = "") -> str:
        """The name of a keypair of the administrator."""
        wanted = name or self.name("key")

        def make() -> str:
            answer = self.cloud.compute("POST", "/os-keypairs", {"keypair": {"name": wanted, "public_key": PUBLIC_KEY}})
            if answer.status != 409:
                body_of(answer, "keypair")
            self.undo("keypair", lambda: self.cloud.compute("DELETE", f"/os-keypairs/{wanted}"))
            return wanted
        return str(self.remember(f"keypair {name or 'any'}", make))

    def group(self, policy: str = "affinity") -> str:
        """A server group of its own for one case."""
        body = {"server_group": {"name": "group", "policies": [policy]}}
        id = str(self.compute("POST", "/os-server-groups", body, what="server group")["server_group"]["id"])
        self.undo("server group", lambda: self.cloud.compute("DELETE", f"/os-server-groups/{id}"))
        return id

    # ---- hosts

    @cached_property
    def hosts(self) -> list[str]:
        """The names of the compute hosts."""
        if self.cloud.target.hosts:
            return self.cloud.target.hosts
        asked = self.cloud.compute("GET", "/os-services?binary=nova-compute")
        if asked.status == 200:
            found = [one["host"] for one in asked.body["services"] if one["state"] == "up"]
            if found:
                return found
        asked = self.cloud.compute("GET", "/os-hypervisors")
        body_of(asked, "hosts")
        return [one["hypervisor_hostname"] for one in asked.body["hypervisors"]]

    @cached_property
    def zone(self) -> str:
        """An availability zone with hosts."""
        return self.cloud.target.zone or "nova"

    # ---- servers

    def document(self, **more: Any) -> dict[str, Any]:
        """What a server is asked for."""
        server = {"name": self.name("server"), "imageRef": self.image, "flavorRef": self.flavor(),
                  "metadata": {"foo": "Foo"}, "accessIPv4": "192.0.2.4", "accessIPv6": "2001:db8::4",
                  "OS-DCF:diskConfig": "AUTO"}
        return {**server, **more}

    def create(self, version: int = 1, hints: dict[str, Any] | None = None, **more: Any) -> str:
        """A new server, active."""
        body: dict[str, Any] = {"server": self.document(**more)}
        if version >= 37:
            body["server"].setdefault("networks", self.networks())
        if hints:
            body["os:scheduler_hints"] = hints
        id = str(self.compute("POST", "/servers", body, version, what="server")["server"]["id"])
        self.servers.add(id)
        self.undo("server", lambda: self.delete(id))
        self.wait(id, ("ACTIVE",))
        return id

    def networks(self) -> Any:
        """What a server asks for from 2.37 on."""
        return [{"uuid": self.network}] if self.cloud.target.capabilities.get("network") else "none"

    def wait(self, id: str, statuses: tuple[str, ...]) -> dict[str, Any]:
        """The server when it is at rest in one of *statuses*."""
        until, pause = time.monotonic() + self.timeout, 0.005
        while True:
            answer = self.cloud.compute("GET", f"/servers/{id}")
            server = body_of(answer, f"server {id}")["server"]
            rest = server.get("OS-EXT-STS:task_state") is None
            if rest and server["status"] in statuses:
                return dict(server)
            if rest and server["status"] == "ERROR":
                raise Blocked(f"server went to ERROR: {str(server.get('fault', {}).get('message', ''))[:200]}")
            if time.monotonic() > until:
                task = server.get("OS-EXT-STS:task_state")
                self.stuck.add(id)
                raise Blocked(f"server is {server['status']} ({task}) instead of {'/'.join(statuses)}: {self.why(id)}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)

    def why(self, id: str) -> str:
        """What the server's newest action says that went wrong."""
        place = f"/servers/{id}/os-instance-actions"
        actions = (self.cloud.compute("GET", place, version=84).body or {}).get("instanceActions") or []
        if not actions:
            return "nothing is known"
        found = (self.cloud.compute("GET", f"{place}/{actions[0]['request_id']}", version=84).body or {})
        events = found.get("instanceAction", {}).get("events", [])
        said = [one["details"] for one in events if one.get("details")]
        return f"{actions[0]['action']}: {(said or [actions[0]['message']])[0]}"

    def settle(self, id: str, limit: float | None = None) -> str:
        """The server's status when nothing goes on any more; "" when it is gone, "STUCK" when that takes too long."""
        until = time.monotonic() + (self.timeout if limit is None else limit)
        while time.monotonic() < until:
            answer = self.cloud.compute("GET", f"/servers/{id}")
            if answer.status == 404:
                return ""
            server = (answer.body or {}).get("server", {})
            if server.get("OS-EXT-STS:task_state") is None and server.get("status") != "BUILD":
                return str(server.get("status"))
            time.sleep(0.01)
        self.stuck.add(id)
        return "STUCK"

    def server(self, state: str = "active") -> str:
        """A server that many cases look at."""
        return str(self.remember(f"server {state}", lambda: self.spent(state)))

    def spent(self, state: str = "active", **more: Any) -> str:
        """A server for one case that changes it."""
        id = self.create(**more)
        for action, statuses in WAYS[state]:
            name, value = next(iter(action.items()))
            if isinstance(value, dict) and value.get("flavorRef") == "{larger}":
                value = {"flavorRef": self.flavor("larger")}
            self.compute("POST", f"/servers/{id}/action", {name: value}, what=f"action {name}")
            if self.wait(id, statuses)["status"] == "SHELVED_OFFLOADED" and state == "shelved":
                raise Blocked("shelved servers are offloaded at once here")
        if state == "shelved_offloaded":
            self.offload(id)
        if state == "soft-delete":
            body_of(self.cloud.compute("DELETE", f"/servers/{id}"), "delete")
            self.wait(id, ("SOFT_DELETED",))
        return id

    def offload(self, id: str) -> None:
        """Take a shelved server off its host."""
        if self.settle(id) == "SHELVED":
            self.compute("POST", f"/servers/{id}/action", {"shelveOffload": None}, what="action shelveOffload")
            self.wait(id, ("SHELVED_OFFLOADED",))

    def delete(self, id: str) -> None:
        """Remove a server and wait until it is gone."""
        self.cloud.compute("POST", f"/servers/{id}/action", {"unlock": None})
        if self.cloud.target.capabilities.get("soft_delete"):
            self.cloud.compute("POST", f"/servers/{id}/action", {"forceDelete": None})
        else:
            self.cloud.compute("DELETE", f"/servers/{id}")
        until = time.monotonic() + (PATIENCE if id in self.stuck else self.timeout)
        while time.monotonic() < until and self.cloud.compute("GET", f"/servers/{id}").status == 200:
            time.sleep(0.01)

    # ---- networks and volumes

    @cached_property
    def network(self) -> str:
        """The id of a network."""
        if self.cloud.target.network:
            return self.cloud.target.network
        asked = body_of(self.cloud.service("network", "GET", "/v2.0/networks"), "networks")["networks"]
        if not asked:
            raise Blocked("there is no network")
        return str(asked[0]["id"])

    def port(self) -> dict[str, Any]:
        """A free port."""
        asked = {"port": {"network_id": self.network}}
        made = body_of(self.cloud.service("network", "POST", "/v2.0/ports", asked), "port")
        port: dict[str, Any] = made["port"]
        self.undo("port", lambda: self._remove_port(port["id"]))
        return port

    def _remove_port(self, id: str) -> None:
        """Detached first where a server has it: it cannot be deleted before."""
        path, until = f"/v2.0/ports/{id}", time.monotonic() + self.timeout
        there = self.cloud.service("network", "GET", path)
        if there.status == 200 and (server := there.body["port"]["device_id"]):
            self.cloud.compute("DELETE", f"/servers/{server}/os-interface/{id}")
        while self.cloud.service("network", "DELETE", path).status == 409 and time.monotonic() < until:
            time.sleep(0.05)

    def address(self) -> str:
        """An address of the network that nobody has: of a port that is gone again."""
        port = self.port()
        self.cloud.service("network", "DELETE", f"/v2.0/ports/{port['id']}")
        return str(port["fixed_ips"][0]["ip_address"])

    def volume(self) -> str:
        """An available volume."""
        path = f"/v3/{self.cloud.admin.project_id}/volumes"
        made = body_of(self.cloud.service("volume", "POST", path, {"volume": {"size": 1, "name": self.name("volume")}}),
                       "volume")["volume"]
        until = time.monotonic() + self.timeout
        while True:
            now = body_of(self.cloud.service("volume", "GET", f"{path}/{made['id']}"), "volume")["volume"]["status"]
            if now == "available":
                break
            if now == "error" or time.monotonic() > until:
                raise Blocked(f"volume is {now}")
            time.sleep(0.02)
        self.undo("volume", lambda: self.cloud.service("volume", "DELETE", f"{path}/{made['id']}"))
        return str(made["id"])

    @cached_property
    def volume_type(self) -> str:
        """The name of a volume type."""
        asked = self.cloud.service("volume", "GET", f"/v3/{self.cloud.admin.project_id}/types")
        found = body_of(asked, "volume types")["volume_types"]
        if not found:
            raise Blocked("there is no volume type")
        return str(found[0]["name"])

    def clean(self) -> list[str]:
        """Remove everything, last things first; what failed."""
        failed = []
        for what, how in reversed([*self._lasting, *self._undo]):
            try:
                how()
            except Exception as why:
                failed.append(f"{what}: {why}")
        self._undo.clear()
        self._lasting.clear()
        self._kept.clear()
        return failed

    def release(self, since: int) -> None:
        """Remove what was made after the mark *since* (``made``): servers and what hangs on them."""
        while len(self._undo) > since:
            _what, how = self._undo.pop()
            with contextlib.suppress(Exception):
                how()

    @property
    def made(self) -> int:
        """A mark for ``release``."""
        return len(self._undo)
