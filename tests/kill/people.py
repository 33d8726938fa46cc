# SPDX-License-Identifier: GPL-3.0-or-later
"""People who use a cloud in trouble: each gives servers a life of things that are drawn from a seed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

from tests.support.control.cloud import Reply

from .world import World

#: What the API does by itself, in any state.
QUICK = ("metadata", "tags", "rename", "lock", "volume", "port", "keypair")
#: What else may be asked in a state, by the word that the API shows.
CHOICES: dict[str, tuple[str, ...]] = {
    "ACTIVE": ("os-stop", "pause", "suspend", "reboot", "resize", "migrate", "os-migrateLive", "attach", "detach",
               "interface", "rebuild", "rescue", "createImage", "shelve", "evacuate", "delete"),
    "SHUTOFF": ("os-start", "resize", "attach", "detach", "interface", "rebuild", "shelve", "evacuate", "delete"),
    "PAUSED": ("unpause", "shelve", "delete"), "SUSPENDED": ("resume", "shelve", "delete"),
    "RESCUE": ("unrescue", "delete"), "SHELVED": ("unshelve", "shelveOffload", "attach", "detach", "delete"),
    "SHELVED_OFFLOADED": ("unshelve", "unshelve", "attach", "detach", "delete"),
    "VERIFY_RESIZE": ("confirmResize", "revertResize", "delete"), "ERROR": ("reboot", "rebuild", "evacuate", "delete"),
}
ARGS: dict[str, Any] = {"reboot": {"type": "HARD"}, "resize": {"flavorRef": "2"}, "createImage": {"name": "copy"},
                        "os-migrateLive": {"host": None, "block_migration": "auto"}}
#: Of nobody.
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGfo21f1wZXq1plE67i0HTbFnDHacb2gpsjseQhC8mfx nobody"
#: What is no action of the API's by that name.
OWN = frozenset((*QUICK, "attach", "detach", "interface", "rebuild", "evacuate", "delete"))


class Budget:
    """How many changes people may ask for, together; and until when."""

    def __init__(self, operations: int) -> None:
        self._lock = threading.Lock()
        self.left = operations
        self.asked: Counter[str] = Counter()

    def spend(self, what: str) -> None:
        """One is asked for."""
        with self._lock:
            self.left -= 1
            self.asked[what] += 1


class Person(threading.Thread):
    """Has up to *most* servers, makes one after the other while there is *budget*, and does things to each: in the mean
    *quick* that the API does by itself for one that hosts do. Errors of HTTP are nothing to such a one: it asks again
    where that is safe, and looks for what it asked for where an answer was lost."""

    def __init__(self, world: World, seed: str, budget: Budget, most: int, image: str, quick: int = 5) -> None:
        super().__init__(name=f"person {seed}", daemon=True)
        self.world, self.seed, self.budget, self.most, self.image, self.quick = world, seed, budget, most, image, quick
        self.random = random.Random(seed)
        self.servers: list[str] = []
        #: Volumes of no server.
        self.kept: list[str] = []
        self.volumes = f"/volume/v3/{world.admin.project_id}/volumes"
        #: How a thread of this kind failed, and servers that did not settle in time.
        self.failed: list[str] = []

    def run(self) -> None:
        number = 0
        while self.budget.left > 0 and not self.failed:
            plan = [(self.random.random(), self.random.random()) for _step in range(self.random.randint(2, 10))]
            try:
                self._life(f"s{self.seed}-{number}".replace(" ", "-"), plan)
            except Exception as error:
                self.failed.append(f"{type(error).__name__}: {error}")
            number += 1

    def call(self, method: str, path: str, body: Any = None, version: str = "2.93") -> Reply | None:
        """An answer; ``None`` when it was lost."""
        try:
            return self.world.admin.call(method, path, body, version)
        except OSError:
            return None
        except Exception as error:
            if type(error).__module__ == "http.client":
                return None
            raise

    def change(self, what: str, method: str, path: str, body: Any = None) -> Reply | None:
        """``call`` what changes something."""
        self.budget.spend(what)
        return self.call(method, path, body)

    def surely(self, path: str, limit: float = 300.0) -> Reply:
        """GET until there is an answer of the API's own."""
        deadline, pause = time.monotonic() + limit, 0.1
        while (reply := self.call("GET", path)) is None or reply.status >= 500:
            assert time.monotonic() < deadline, f"{path}: {reply}"
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)
        return reply

    def settled(self, id: str, limit: float = 300.0) -> dict[str, Any] | None:
        """The server when nothing is done to it."""
        deadline, pause = time.monotonic() + limit, 0.05
        while time.monotonic() < deadline:
            reply = self.surely(f"/v2.1/servers/{id}")
            if reply.status == 404:
                return None
            server: dict[str, Any] = reply.json["server"]
            known = server["status"] != "UNKNOWN"  # its cell does not answer at the moment
            if known and server["OS-EXT-STS:task_state"] is None and server["status"] != "BUILD":
                return server
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)
        task = server.get("OS-EXT-STS:task_state")
        raise AssertionError(f"server {id} is {server['status']}, {task} for {limit:g} s")

    def _life(self, name: str, plan: list[tuple[float, float]]) -> None:
        while len(self.servers) >= self.most:
            self.change("delete", "DELETE", f"/v2.1/servers/{self.servers.pop(0)}")
        id = self._made(name)
        if id is None:
            return
        self.servers.append(id)
        for which, drawn in plan:
            server = self.settled(id)
            if server is None:
                self.servers.remove(id)
                return
            quick = which * (self.quick + 1) > 1
            choices = QUICK if quick else CHOICES.get(server["status"], ("delete",))
            self._do(choices[int(drawn * len(choices))], id, server)
        self.settled(id)

    def _do(self, what: str, id: str, server: dict[str, Any]) -> None:
        path = f"/v2.1/servers/{id}"
        if what in OWN:
            getattr(self, f"do_{what}")(path, server)
        else:
            self.change(what, "POST", f"{path}/action", {what: ARGS.get(what)})

    def _made(self, name: str) -> str | None:
        """A create whose answer is lost may have happened: whoever wants one server looks for its name first."""
        for _at in range(20):
            reply = self.change("create", "POST", "/v2.1/servers", {"server": {
                "name": name, "flavorRef": "1", "imageRef": self.image, "networks": "auto"}})
            if reply is not None and reply.status == 202:
                return str(reply.json["server"]["id"])
            found = self.surely(f"/v2.1/servers?name={name}").json["servers"]
            assert len(found) <= 1, found
            if found:
                return str(found[0]["id"])
            time.sleep(0.2)
        return None

    # What is done to servers -----------------------------------------------------------------------------------------
    def do_delete(self, path: str, _server: dict[str, Any]) -> None:
        self.change("delete", "DELETE", path)

    def do_rebuild(self, path: str, _server: dict[str, Any]) -> None:
        self.change("rebuild", "POST", f"{path}/action", {"rebuild": {"imageRef": self.image}})

    def do_evacuate(self, path: str, server: dict[str, Any]) -> None:
        """Its host is said to have failed, and then to be well again; one host at a time, where there are others."""
        host = server["OS-EXT-SRV-ATTR:host"]
        if not host or len(self.world.hosts) < 2 or not self.world.failed.acquire(blocking=False):
            return
        try:
            self._force_down(host, down=True)
            self.change("evacuate", "POST", f"{path}/action", {"evacuate": {}})
            self.settled(server["id"])
        finally:
            deadline = time.monotonic() + 300
            while not self._force_down(host, down=False):
                assert time.monotonic() < deadline, f"host {host} keeps what was evacuated from it"
                time.sleep(0.2)
            self.world.failed.release()

    def _force_down(self, host: str, *, down: bool) -> bool:
        reply = self.call("PUT", "/v2.1/os-services/force-down", {
            "host": host, "binary": "nova-compute", "forced_down": down}, "2.11")
        return reply is not None and reply.status == 200

    def do_metadata(self, path: str, _server: dict[str, Any]) -> None:
        self.change("metadata", "POST", f"{path}/metadata", {"metadata": {"drawn": str(self.random.random())}})

    def do_tags(self, path: str, _server: dict[str, Any]) -> None:
        self.change("tags", "PUT", f"{path}/tags/tag{self.random.randint(0, 9)}")

    def do_rename(self, path: str, server: dict[str, Any]) -> None:
        self.change("rename", "PUT", path, {"server": {"description": server["name"] + str(self.random.random())}})

    def do_lock(self, path: str, _server: dict[str, Any]) -> None:
        for what in ("lock", "unlock"):
            self.change(what, "POST", f"{path}/action", {what: None})

    def do_interface(self, path: str, _server: dict[str, Any]) -> None:
        """A NIC more; where there are two, one less."""
        found = self.surely(f"{path}/os-interface").json.get("interfaceAttachments") or []
        if len(found) > 1:
            self.change("detach NIC", "DELETE", f"{path}/os-interface/{found[-1]['port_id']}")
        else:
            self.change("attach NIC", "POST", f"{path}/os-interface", {})

    def do_detach(self, path: str, server: dict[str, Any]) -> None:
        for one in server["os-extended-volumes:volumes_attached"]:
            self.change("detach", "DELETE", f"{path}/os-volume_attachments/{one['id']}")

    def do_attach(self, path: str, _server: dict[str, Any]) -> None:
        reply = self.change("volume", "POST", self.volumes, {"volume": {"size": 1}})
        if reply is None or reply.status != 202:
            return
        volume, deadline = reply.json["volume"]["id"], time.monotonic() + 300
        while self.surely(f"{self.volumes}/{volume}").json["volume"]["status"] == "creating":
            assert time.monotonic() < deadline, f"volume {volume} is still being made"
            time.sleep(0.1)
        self.change("attach", "POST", f"{path}/os-volume_attachments", {"volumeAttachment": {"volumeId": volume}})

    # What is done beside them ----------------------------------------------------------------------------------------
    def do_volume(self, _path: str, _server: dict[str, Any]) -> None:
        """A volume is made; the next time it goes."""
        if self.kept:
            self.change("delete volume", "DELETE", f"{self.volumes}/{self.kept.pop()}")
        else:
            reply = self.change("volume", "POST", self.volumes, {"volume": {"size": 1}})
            self.kept += [reply.json["volume"]["id"]] if reply is not None and reply.status == 202 else []

    def do_port(self, _path: str, server: dict[str, Any]) -> None:
        networks = self.surely("/network/v2.0/networks").json["networks"]
        reply = self.change("port", "POST", "/network/v2.0/ports", {"port": {
            "network_id": networks[0]["id"], "name": server["name"]}}) if networks else None
        if reply is not None and reply.status == 201:
            self.change("delete port", "DELETE", f"/network/v2.0/ports/{reply.json['port']['id']}")

    def do_keypair(self, _path: str, server: dict[str, Any]) -> None:
        self.change("keypair", "POST", "/v2.1/os-keypairs", {"keypair": {
            "name": server["name"], "type": "ssh", "public_key": PUBLIC}})
        self.change("delete keypair", "DELETE", f"/v2.1/os-keypairs/{server['name']}")
