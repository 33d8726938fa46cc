# SPDX-License-Identifier: GPL-3.0-or-later
"""People who use a cloud while it is killed: each gives servers a life of things that are drawn from a seed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

from tests.unit.control.cloud import Reply

from .world import World

#: What may be asked in a state, by the word that the API shows.
CHOICES: dict[str, tuple[str, ...]] = {
    "ACTIVE": ("os-stop", "pause", "suspend", "reboot", "resize", "migrate", "os-migrateLive", "attach", "detach",
               "delete"),
    "SHUTOFF": ("os-start", "resize", "attach", "detach", "delete"),
    "PAUSED": ("unpause", "delete"), "SUSPENDED": ("resume", "delete"),
    "VERIFY_RESIZE": ("confirmResize", "revertResize", "delete"), "ERROR": ("reboot", "delete"),
}
ARGS: dict[str, Any] = {"reboot": {"type": "HARD"}, "resize": {"flavorRef": "2"},
                        "os-migrateLive": {"host": None, "block_migration": "auto"}}


class Person(threading.Thread):
    """Makes *count* servers one after the other, and does a few things to each. Errors of HTTP are nothing to such a
    one: it asks again where that is safe, and looks for what it asked for where an answer was lost."""

    def __init__(self, world: World, seed: str, count: int, image: str) -> None:
        super().__init__(name=f"person {seed}", daemon=True)
        self.world, self.seed, self.count, self.image = world, seed, count, image
        self.random = random.Random(seed)
        self.asked: Counter[str] = Counter()
        #: How a thread of this kind failed, and servers that did not settle in time.
        self.failed: list[str] = []

    def run(self) -> None:
        for number in range(self.count):
            plan = [self.random.random() for _step in range(self.random.randint(1, 4))]
            try:
                self._life(f"s{self.seed}-{number}".replace(" ", "-"), plan)
            except Exception as error:
                self.failed.append(f"{type(error).__name__}: {error}")

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

    def surely(self, path: str, limit: float = 120.0) -> Reply:
        """GET until there is an answer of the API's own."""
        deadline, pause = time.monotonic() + limit, 0.1
        while (reply := self.call("GET", path)) is None or reply.status >= 500:
            assert time.monotonic() < deadline, f"{path}: {reply}"
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)
        return reply

    def settled(self, id: str, limit: float = 180.0) -> dict[str, Any] | None:
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

    def _life(self, name: str, plan: list[float]) -> None:
        id = self._made(name)
        for drawn in plan if id else ():
            server = self.settled(id)
            if server is None:
                return
            choices = CHOICES.get(server["status"], ("delete",))
            what = choices[int(drawn * len(choices))]
            self.asked[what] += 1
            if what in ("attach", "detach"):
                self._volume(id, what, server)
            elif what == "delete":
                self.call("DELETE", f"/v2.1/servers/{id}")
            else:
                self.call("POST", f"/v2.1/servers/{id}/action", {what: ARGS.get(what)})
        if id:
            self.settled(id)

    def _made(self, name: str) -> str | None:
        """A create whose answer is lost may have happened: whoever wants one server looks for its name first."""
        for _at in range(20):
            self.asked["create"] += 1
            reply = self.call("POST", "/v2.1/servers", {"server": {
                "name": name, "flavorRef": "1", "imageRef": self.image, "networks": "auto"}})
            if reply is not None and reply.status == 202:
                return str(reply.json["server"]["id"])
            found = self.surely(f"/v2.1/servers?name={name}").json["servers"]
            assert len(found) <= 1, found
            if found:
                return str(found[0]["id"])
            time.sleep(0.2)
        return None

    def _volume(self, id: str, what: str, server: dict[str, Any]) -> None:
        have = server["os-extended-volumes:volumes_attached"]
        if what == "detach":
            for one in have:
                self.call("DELETE", f"/v2.1/servers/{id}/os-volume_attachments/{one['id']}")
            return
        volumes = f"/volume/v3/{self.world.admin.project_id}/volumes"
        reply = self.call("POST", volumes, {"volume": {"size": 1}})
        if reply is None or reply.status != 202:
            return
        volume, deadline = reply.json["volume"]["id"], time.monotonic() + 180
        while self.surely(f"{volumes}/{volume}").json["volume"]["status"] == "creating":
            assert time.monotonic() < deadline, f"volume {volume} is still being made"
            time.sleep(0.1)
        self.call("POST", f"/v2.1/servers/{id}/os-volume_attachments", {"volumeAttachment": {"volumeId": volume}})
