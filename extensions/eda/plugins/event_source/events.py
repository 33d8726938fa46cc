# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The event source for Event-Driven Ansible: what happens on the host of an agent.

ansible-rulebook runs this file by its path, so it imports the collection's code from the folders next to it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
short_description: Events of the servers of an agent, or of a cloud
description:
  - Follows the agent of a host, and passes on changes of servers, events of their domains, and operations that ended.
  - With O(cloud), follows a cloud, and passes on what happens to the servers of the project, with O(all_projects) of
    all projects, flavors, hosts and other resources. The cloud needs the setting C(event_stream).
  - With O(cursor_file), changes of servers and operations that ended while the source did not run, or was cut off, are
    passed on when it is back, with C(replayed=true), after an event of the type C(gap). Of a cloud, all events are
    passed on, and C(gap) comes only if some are not kept any more.
options:
  cloud:
    description: The cloud, by its name in C(clouds.yaml), in place of O(endpoint).
    type: str
  all_projects:
    description: Pass on the events of all projects of the O(cloud); for administrators.
    type: bool
    default: false
  endpoint:
    description: The agent, as C(unix:///PATH), C(https://HOST[:PORT]) or C(ssh://[USER@]HOST[:PORT][/PATH]).
    type: str
    default: unix:///run/magnetar/agent.sock
  token:
    description: Bearer token for an C(https) endpoint.
    type: str
  ca_cert:
    description: File with the CA certificates that the agent's certificate is checked against.
    type: str
  client_cert:
    description: File with a client certificate, in place of a token.
    type: str
  client_key:
    description: File with the key of O(client_cert).
    type: str
  validate_certs:
    description: Whether the agent's certificate is checked.
    type: bool
    default: true
  ssh_private_key:
    description: File with the private key for an C(ssh) endpoint.
    type: str
  ssh_known_hosts:
    description: File with host keys for an C(ssh) endpoint.
    type: str
  cursor_file:
    description: File that remembers what was passed on. Each source needs a file of its own.
    type: str
  events:
    description:
      - Types of events to pass on, all by default. The types C(gap), C(unreachable) and C(connected) are always passed
        on.
      - Of a host, C(server), C(domain) and C(operation).
      - Of a cloud, C(server), C(flavor), C(keypair), C(aggregate), C(server_group), C(compute_service) and
        C(incident).
    type: list
    elements: str
  servers:
    description: Only events of servers with these names or uuids; patterns such as V(web*) are allowed.
    type: list
    elements: str
  interval:
    description: Seconds between two signs of life of the agent, from 1 to 60. After three missing ones it counts as
      unreachable.
    type: float
    default: 5
  retry:
    description: The most seconds between two attempts to reach the agent.
    type: float
    default: 30
  unreachable_after:
    description: Seconds for which the agent is not reached until an event of the type C(unreachable) says so. An agent
      that is updated is back within seconds.
    type: float
    default: 30
"""

EXAMPLES = r"""
- name: Servers of kvm1
  hosts: all
  sources:
    - magnetar.compute.events:
        endpoint: https://kvm1.example.org:6553
        token: "{{ kvm1_token }}"
        ca_cert: /etc/eda/magnetar-ca.pem
        cursor_file: /var/lib/eda/kvm1.json
        servers: ["web*"]
  rules:
    - name: A server has crashed
      condition: event.type == "server" and event.server.power_state == "crashed"
      action:
        run_playbook:
          name: start_again.yml

- name: Servers of a project of a cloud
  hosts: all
  sources:
    - magnetar.compute.events:
        cloud: mycloud
        cursor_file: /var/lib/eda/mycloud.json
        events: [server]
  rules:
    - name: A build has failed
      condition: event.event == "create" and event.phase == "error"
      action:
        debug:
          msg: "{{ event.server.name }}: {{ event.fault }}"
"""

import asyncio
import fnmatch
import importlib
import json
import logging
import os
import sys
import threading
import time
import types
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
#: The name under which the collection's ``module_utils`` are imported here.
PACKAGE = "magnetar_event_source"
TYPES = ("server", "domain", "operation")
CLOUD_TYPES = ("server", "flavor", "keypair", "aggregate", "server_group", "compute_service", "incident")
FILES = ("ca_cert", "client_cert", "client_key", "ssh_private_key", "ssh_known_hosts", "cursor_file")
#: Least and most of the arguments that are seconds.
SECONDS = {"interval": (1, 60), "retry": (1, 3600), "unreachable_after": (0, 86400)}
TEXTS = ("endpoint", "token", "cloud", *FILES)
#: Arguments that only a source of a cloud, and only one of a host has.
OF_CLOUDS, OF_HOSTS = ("all_projects",), ("endpoint", "token", "client_cert", "client_key", "ssh_private_key",
                                          "ssh_known_hosts")
#: Codes of errors that do not pass by themselves: at the start they end the source.
LASTING = ("invalid-field", "unauthenticated", "forbidden", "not-found", "conflict")
#: The operations that an agent remembers after their end.
LISTED = 1000
#: The fields of a server whose changes are events.
SERVER_FIELDS = ("name", "power_state", "status", "status_reason")


async def main(queue: asyncio.Queue, args: dict[str, Any]) -> None:
    """Pass on events until the task is cancelled. Raises ``ValueError`` for wrong arguments."""
    options = check_arguments(args)
    make = CloudFollower if options["cloud"] else HostFollower
    follower = make(options, asyncio.get_running_loop(), queue)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    thread = threading.Thread(target=follower.run, args=(ended,), name="magnetar-events", daemon=True)
    thread.start()
    try:
        await ended
    finally:
        follower.stop()


def check_arguments(args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the source with defaults. Raises ``ValueError`` that names the argument and its rule."""
    types = CLOUD_TYPES if args.get("cloud") else TYPES
    defaults: dict[str, Any] = {**dict.fromkeys(TEXTS), "validate_certs": True, "events": list(types), "servers": None,
                                "interval": 5.0, "retry": 30.0, "unreachable_after": 30.0, "all_projects": False}
    if unknown := sorted(set(args) - set(defaults)):
        raise _wrong(unknown[0], f"is not an argument of this source; arguments are {', '.join(sorted(defaults))}")
    options = {**defaults, **{name: value for name, value in args.items() if value is not None}}
    _check_texts(options)
    for name in ("validate_certs", "all_projects"):
        if not isinstance(options[name], bool):
            raise _wrong(name, "must be true or false")
    for name in OF_HOSTS if options["cloud"] else OF_CLOUDS:
        if options[name]:
            raise _wrong(name, "is for a host; leave it out, or cloud" if options["cloud"] else "needs cloud")
    if not isinstance(options["events"], list) or not options["events"] or not set(options["events"]) <= set(types):
        raise _wrong("events", f"must be a list of some of {', '.join(types)}")
    if options["servers"] is not None and (not isinstance(options["servers"], list) or not all(
            isinstance(pattern, str) for pattern in options["servers"])):
        raise _wrong("servers", "must be a list of names, uuids or patterns")
    for name, (least, most) in SECONDS.items():
        value = options[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise _wrong(name, f"must be a number of seconds from {least} to {most}")
    return options


def _check_texts(options: dict[str, Any]) -> None:
    for name in TEXTS:
        if options[name] is not None and (not isinstance(options[name], str) or not options[name]):
            raise _wrong(name, "must be a text that is not empty")
    for name in FILES:
        if options[name]:
            options[name] = os.path.expanduser(options[name])


def _wrong(name: str, rule: str) -> ValueError:
    return ValueError(f"magnetar.compute.events: {name} {rule}.")


def connect(options: dict[str, Any]) -> Any:
    """Return a client of the agent. Raises ``ValueError`` for an endpoint that makes no sense."""
    errors = _import("core.errors")
    arguments = {name: options[name] for name in (
        "endpoint", "token", "ca_cert", "client_cert", "client_key", "validate_certs")}
    try:
        if str(options["endpoint"]).startswith("ssh:"):
            arguments["dial"] = _import("ssh.dial").SshDial(options["endpoint"], options["ssh_private_key"],
                                                            options["ssh_known_hosts"])
        return _import("core.http.client").Client(**arguments)
    except errors.MagnetarError as error:
        raise ValueError(f"magnetar.compute.events: {error.message}") from None


def log_in(options: dict[str, Any]) -> Any:
    """Return a client of the cloud. Raises ``MagnetarError``."""
    described = _import("clouds").read_cloud_entry({**options, "endpoint": None})
    return _import("core.http.client").Client(login=_import("core.http.login").Login(described))


def _import(name: str) -> Any:
    """Import a part of the collection's ``module_utils``, from the folder of this collection."""
    if PACKAGE not in sys.modules:
        package = types.ModuleType(PACKAGE)
        package.__path__ = [str(Path(__file__).resolve().parents[4] / "plugins" / "module_utils")]
        sys.modules[PACKAGE] = package
    return importlib.import_module(f"{PACKAGE}.{name}")


class Follower:
    """The thread that follows an agent or a cloud and puts events into the queue of the rule engine."""

    #: The class of the cursor, and what is followed, for messages.
    cursor_class, followed = "HostCursor", "agent"

    def __init__(self, options: dict[str, Any], loop: asyncio.AbstractEventLoop, queue: asyncio.Queue) -> None:
        cursors = _import("eda.cursors")
        self._options, self._loop, self._queue = options, loop, queue
        self._client: Any = None
        self._seconds = cursors.seconds_of
        self._cursor = getattr(cursors, self.cursor_class)(options["cursor_file"])
        self._stopped = threading.Event()
        #: Since when the agent or cloud has not been reached, and whether that was passed on.
        self._lost_at: float | None = None
        self._unreachable = False
        self._greeted = False
        self._host: str | None = None
        self._errors = _import("core.errors")

    def stop(self) -> None:
        """End the thread at the next event or sign of life."""
        self._stopped.set()

    def run(self, ended: asyncio.Future[None]) -> None:
        """Follow the agent or cloud, and connect again whenever the connection breaks. Set *ended* at the end."""
        failure: BaseException | None = None
        pause = 1.0
        try:
            while not self._stopped.is_set():
                connected = self._follow()
                pause = 1.0 if connected else min(pause * 2, self._options["retry"])
                self._stopped.wait(pause)
        except Exception as error:  # noqa: BLE001 (the loop raises it)
            failure = error
        finally:
            self._cursor.write(now=True)
            if self._client is not None:
                self._client.close()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_end, ended, failure)

    def _follow(self) -> bool:
        """Pass on the events of one connection; return whether there was one. Raises an error that does not pass."""
        began = False
        try:
            for name, data in self._events():
                began = True
                self._take(name, data)
                if self._stopped.is_set():
                    return True
        except self._errors.MagnetarError as error:
            if not self._greeted and error.code in LASTING:
                raise ValueError(f"magnetar.compute.events: {error.message}") from None
            self._failed(error)
            return began
        self._lose(f"the {self.followed} closed the connection, as for a restart")
        return began

    def _failed(self, error: Any) -> None:
        """Note that the connection has ended with *error*."""
        self._lose(error.message)

    def _events(self) -> Any:
        """Connect, and yield the name and content of each event."""
        raise NotImplementedError

    def _take(self, name: str, data: dict[str, Any]) -> None:
        """Pass on one event of the agent or cloud."""
        raise NotImplementedError

    def _lose(self, reason: str) -> None:
        """Pass on that the agent or cloud is unreachable, once, when that has lasted: after a restart it is back soon.
        """
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
            log.warning("magnetar.compute.events: %s", reason)
        if not self._unreachable and now - self._lost_at >= self._options["unreachable_after"]:
            self._put("unreachable", reason=reason, since=self._cursor.time)
            self._unreachable = True

    def _connected(self) -> None:
        """Note that the agent or cloud is reached, and pass that on at the beginning and after ``unreachable``."""
        if self._unreachable or not self._greeted:
            self._put("connected")
        self._greeted, self._unreachable, self._lost_at = True, False, None

    def _wanted(self, *names: str | None) -> bool:
        """Return whether a server with one of these *names* (name or uuid) is to be passed on."""
        patterns = self._options["servers"]
        return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for name in names if name
                                       for pattern in patterns)

    @property
    def _endpoint(self) -> str | None:
        return None if self._client is None else str(self._client.endpoint)

    def _put(self, type: str, **more: Any) -> None:
        """Put an event into the queue, and wait while that is full."""
        if self._stopped.is_set():
            raise _Stopped
        event = {"type": type, "host": self._host, "endpoint": self._endpoint,
                 "time": datetime.now(UTC).isoformat(timespec="seconds"), **more}
        putting = asyncio.run_coroutine_threadsafe(self._queue.put(event), self._loop)
        while True:
            try:
                return putting.result(0.5)
            except TimeoutError:
                if self._stopped.is_set():
                    putting.cancel()
                    raise _Stopped from None


class HostFollower(Follower):
    """The thread that follows the agent of a host."""

    def __init__(self, options: dict[str, Any], loop: asyncio.AbstractEventLoop, queue: asyncio.Queue) -> None:
        super().__init__(options, loop, queue)
        self._client = connect(options)
        #: Whether the servers of the current connection have been compared with the cursor.
        self._compared = False

    def _events(self) -> Any:
        self._compared = False
        return self._client.watch(self._options["interval"], None, self._options["events"])

    def _take(self, name: str, data: dict[str, Any]) -> None:
        """Pass on one event of the agent."""
        if name == "hello":
            self._greet(data)
        elif name == "servers":
            self._compare(data)
        elif name == "heartbeat":
            self._seen(data.get("time"))
        elif name == "server":
            self._change(str(data["id"]), data, replayed=False)
        elif name == "domain":
            if self._wanted(data.get("id"), data.get("name")):
                self._put("domain", server={"id": data.get("id"), "name": data.get("name")}, what=data.get("what"),
                          reason=data.get("reason"), replayed=False)
            self._seen(data.get("time"))
        elif name == "operation":
            self._operation(data, replayed=False)

    def _greet(self, hello: dict[str, Any]) -> None:
        """Note whose agent it is, and pass on what is not known of the time before."""
        cursor, identity = self._cursor, str(hello.get("id") or hello.get("host"))
        self._host = hello.get("host")
        if cursor.problem:
            self._put("gap", reason=cursor.problem, since=None, until=hello.get("time"))
            cursor.problem = None
        elif cursor.host not in (None, identity):
            self._put("gap", reason=f"the cursor is of another host, {cursor.host}", since=None,
                      until=hello.get("time"))
            cursor.time, cursor.servers = None, {}
            cursor.operations.clear()
        cursor.host = identity
        self._connected()

    def _compare(self, everything: dict[str, Any]) -> None:
        """Pass on what changed since the cursor: servers, and at the beginning of a connection operations."""
        cursor, current = self._cursor, {str(server["id"]): server for server in everything["servers"]}
        known = cursor.time is not None
        first, self._compared = not self._compared, True
        operations = self._missed_operations(everything.get("at")) if known and first else []
        if not known:
            cursor.operations.extend(operation["id"] for operation in reversed(self._ended_operations(
                cursor.operations.maxlen)))
        for id in [id for id in cursor.servers if id not in current]:
            self._change(id, {"id": id, "removed": True}, replayed=True)
        for id, server in current.items():
            if known:
                self._change(id, server, replayed=True)
            else:
                cursor.servers[id] = _state(server)
        for operation in operations:
            self._operation(operation, replayed=True)
        self._seen(everything.get("at"), now=True)

    def _missed_operations(self, until: str | None) -> list[dict[str, Any]]:
        """Pass on that there was a gap, and return the operations that ended in it, oldest first."""
        since, reason = self._cursor.time, "the source was not connected: domain events of that time are missing"
        operations: list[dict[str, Any]] = []
        if "operation" in self._options["events"]:
            listed = self._ended_operations(LISTED)
            if len(listed) >= LISTED - 100 and self._seconds(listed[-1]["started_at"]) > self._seconds(since):
                reason += ", and the agent does not know all operations of that time any more"
            begin = self._seconds(since) - 1
            operations = [operation for operation in listed if self._seconds(operation["ended_at"]) >= begin]
            operations.sort(key=lambda operation: self._seconds(operation["ended_at"]))
        self._put("gap", reason=reason, since=since, until=until)
        return operations

    def _ended_operations(self, most: int) -> list[dict[str, Any]]:
        """Return the last operations of the agent that have ended, newest first."""
        return [operation for operation in self._client.list("operations", limit=most) if operation.get("ended_at")]

    def _change(self, id: str, server: dict[str, Any], replayed: bool) -> None:
        """Pass on a server that has changed. A replayed one that is as the cursor says has not."""
        servers = self._cursor.servers
        before, removed = servers.get(id), bool(server.get("removed"))
        state = None if removed else _state(server)
        if replayed and state == before:
            return
        name = (state or before or {}).get("name")
        if "server" in self._options["events"] and self._wanted(id, name):
            shown = {"id": id, **(state or before or {"name": name})}
            self._put("server", server={**shown, "removed": removed}, before=before, replayed=replayed)
        if state is None:
            servers.pop(id, None)
        else:
            servers[id] = state
        self._seen(server.get("at"))

    def _operation(self, operation: dict[str, Any], replayed: bool) -> None:
        """Pass on an operation that has ended, once."""
        id = str(operation.get("id"))
        if id in self._cursor.operations:
            return
        key = operation.get("key")
        if self._options["servers"] is None or (operation.get("kind") == "server" and self._wanted(
                key, (self._cursor.servers.get(str(key)) or {}).get("name"))):
            self._put("operation", operation=operation, replayed=replayed)
        self._cursor.operations.append(id)
        self._seen(operation.get("ended_at"))

    def _seen(self, moment: str | None, now: bool = False) -> None:
        """Note *moment* as the time up to which everything was passed on. Before the comparison with the cursor, there
        is a gap.
        """
        last = self._cursor.time
        if moment and self._compared and (last is None or self._seconds(moment) > self._seconds(last)):
            self._cursor.time = moment
        self._cursor.write(now)


class CloudFollower(Follower):
    """The thread that follows a cloud."""

    cursor_class, followed = "CloudCursor", "cloud"

    def __init__(self, options: dict[str, Any], loop: asyncio.AbstractEventLoop, queue: asyncio.Queue) -> None:
        super().__init__(options, loop, queue)
        #: Time of the cloud when the connection began: events from before are replayed.
        self._began = 0.0

    def _events(self) -> Any:
        if self._client is None:
            self._client = log_in(self._options)
        everything = set(self._options["events"]) == set(CLOUD_TYPES)
        return self._client.follow(
            self._cursor.cursor, self._options["interval"], kind=None if everything else self._options["events"],
            all_projects=self._options["all_projects"] or None)

    def _take(self, name: str, data: dict[str, Any]) -> None:
        """Pass on one event of the cloud, and note its cursor."""
        cursor = self._cursor
        if name == "hello":
            self._began = self._seconds(data["time"])
            if cursor.problem:
                self._put("gap", reason=cursor.problem, since=None, until=data["time"])
                cursor.problem = None
            self._connected()
        elif name == "error":
            self._failed(self._errors.error_from_dict(data["error"]))
            return  # the cursor is the expired one
        elif name in CLOUD_TYPES:
            self._pass_on(name, data)
        cursor.cursor = data["cursor"]
        cursor.time = data["time"]
        cursor.write()

    def _pass_on(self, kind: str, data: dict[str, Any]) -> None:
        """Pass on an event that did not come before."""
        if data["id"] in self._cursor.events:
            return
        server = data.get("server") or {}
        if self._options["servers"] is None or self._wanted(server.get("id"), server.get("name")):
            # Conditions of rulebooks ask `is defined`, which is true for null.
            fields = {name: value for name, value in data.items() if name not in ("kind", "cursor")
                      and value is not None}
            self._put(kind, **fields, replayed=self._seconds(data["time"]) < self._began)
        self._cursor.events.append(data["id"])

    def _failed(self, error: Any) -> None:
        if error.code != "cursor-expired":
            self._lose(error.message)
            return
        self._put("gap", reason="the cloud does not keep events for so long: some are missing",
                  since=self._cursor.time, until=datetime.now(UTC).isoformat(timespec="seconds"))
        self._cursor.cursor = "oldest"


class _Stopped(Exception):
    """The source is ending while an event waits; the cursor does not have it."""


def _end(ended: asyncio.Future[None], failure: BaseException | None) -> None:
    if ended.done():
        return
    if failure is None or isinstance(failure, _Stopped):
        ended.set_result(None)
    else:
        ended.set_exception(failure)


def _state(server: dict[str, Any]) -> dict[str, Any]:
    return {name: server.get(name) for name in SERVER_FIELDS}


if __name__ == "__main__":

    class _Printer:
        """A queue that prints, to try the source: ``python events.py '{"endpoint": "unix:///…"}'``."""

        async def put(self, event: dict[str, Any]) -> None:
            sys.stdout.write(json.dumps(event) + "\n")
            sys.stdout.flush()

    asyncio.run(main(_Printer(), json.loads(sys.argv[1]) if sys.argv[1:] else {}))  # type: ignore[arg-type]
