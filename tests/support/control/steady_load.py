# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients that use a cloud all the time, and note each request that fails."""

from __future__ import annotations

import http.client
import json
import threading
import time
import uuid
from collections import Counter
from typing import Any, Self

from .cloud import Caller

#: Seconds that a server may take for each step of its life.
LIMIT = 300.0
#: What a client asks for between two looks at its server.
READS = ("/v2.1/servers", "/v2.1/servers/detail", "/v2.1/flavors/detail", "/v2.1/os-services", "/volume/v3/types",
         "/network/v2.0/networks", "/image/v2/images")


class UnexpectedAnswer(Exception):
    """A request failed, or a server did not do what a request wants."""


class SteadyLoad:
    """*clients* threads that create servers, look at them and at lists, move, resize and delete them. Each makes *rate*
    requests a second at most, over one connection. *flavors*: of new servers, and of resized ones."""

    def __init__(self, caller: Caller, image: str, flavors: tuple[str, str], clients: int = 5,
                 rate: float = 6.0) -> None:
        self.caller, self.image, self.flavors, self._pause = caller, image, flavors, 1 / rate
        self.failures: list[str] = []
        self.requests: Counter[str] = Counter()
        self.lives = 0
        self._over, self._began = threading.Event(), 0.0
        self._threads = [threading.Thread(target=self._run, args=(number,), name=f"client {number}", daemon=True)
                         for number in range(clients)]

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Let each client end the life of its server."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        self.rate = sum(self.requests.values()) / (time.monotonic() - self._began)

    def _run(self, number: int) -> None:
        client = _Client(self, number)
        while not self._over.is_set():
            try:
                client.one_life()
                self.lives += 1
            except (UnexpectedAnswer, OSError, http.client.HTTPException, AssertionError) as error:
                self.failures.append(f"client {number}: {type(error).__name__}: {error}")
                client.connect()


class _Client:
    """One client of a ``SteadyLoad``."""

    def __init__(self, load: SteadyLoad, number: int) -> None:
        self.load, self.number, self._next, self._reads = load, number, 0.0, number
        self.connect()

    def connect(self) -> None:
        """Begin another connection."""
        self.connection = http.client.HTTPConnection("127.0.0.1", self.load.caller.port, timeout=300)

    def ask(self, kind: str, method: str, path: str, body: Any = None, right: tuple[int, ...] = (200,)) -> Any:
        """Make a request, and return the answer's document."""
        time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = time.monotonic() + self.load._pause
        self.load.requests[kind] += 1
        self.connection.request(method, path, None if body is None else json.dumps(body).encode(), {
            "Content-Type": "application/json", "X-Auth-Token": str(self.load.caller.token),
            "OpenStack-API-Version": "compute 2.60"})
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status not in right:
            raise UnexpectedAnswer(f"{kind}: {method} {path}: {answer.status} {content[:500]!r}")
        return {"status": answer.status, **(json.loads(content) if content else {})}

    def one_life(self) -> None:
        """Create a server, move and resize it, and delete it."""
        small, large = self.load.flavors
        name = f"load-{self.number}-{uuid.uuid4().hex[:6]}"
        id = self.ask("create", "POST", "/v2.1/servers", {"server": {
            "name": name, "flavorRef": small, "imageRef": self.load.image, "networks": "auto"}}, (202,))["server"]["id"]
        host = self.wait(id, "create", "ACTIVE")
        action = {"os-migrateLive": {"host": None, "block_migration": "auto"}}
        if self.act(id, "live migration", action, "ACTIVE") == host:
            raise UnexpectedAnswer(f"live migration of {id}: is still on {host}. {self.story(id)}")
        self.act(id, "resize", {"resize": {"flavorRef": large}}, "VERIFY_RESIZE")
        self.act(id, "confirm", {"confirmResize": None}, "ACTIVE")
        self.ask("delete", "DELETE", f"/v2.1/servers/{id}", right=(204,))
        self.wait(id, "delete", "gone")

    def act(self, id: str, kind: str, action: dict[str, Any], state: str) -> str:
        """Request an action, wait until the server has the state, and return its host."""
        self.ask(kind, "POST", f"/v2.1/servers/{id}/action", action, (202, 204))
        return self.wait(id, kind, state)

    def wait(self, id: str, kind: str, state: str) -> str:
        """Read lists and the server until it has the state, and no task; return its host."""
        deadline, seen = time.monotonic() + LIMIT, ""
        while time.monotonic() < deadline:
            self._reads += 1
            self.ask("list", "GET", READS[self._reads % len(READS)])
            found = self.ask("show", "GET", f"/v2.1/servers/{id}", right=(200, 404))
            server = found.get("server", {})
            seen = "gone" if found["status"] == 404 else f"{server['status']} {server['OS-EXT-STS:task_state']}"
            if seen in (state, f"{state} None"):
                return str(server.get("OS-EXT-SRV-ATTR:host"))
            if seen in ("gone", "ACTIVE None", "ERROR None"):
                break
        raise UnexpectedAnswer(f"{kind} of {id}: {seen}, not {state}. {self.story(id)}")

    def story(self, id: str) -> str:
        """Return what the cloud tells of a server's actions, for an error."""
        path = f"/v2.1/servers/{id}/os-instance-actions"
        told = self.ask("story", "GET", path, right=(200, 404)).get("instanceActions", [])
        actions = [self.ask("story", "GET", f"{path}/{one['request_id']}")["instanceAction"] for one in told]
        return "; ".join(f"{one['action']}: {one['message']}, {one['events']}" for one in actions)
