# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The event source for Event-Driven Ansible: what happens on the host of an agent.

ansible-rulebook runs this file by its path, so it imports the collection's code from the folders next to it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
short_description: Events of the servers of an agent
description:
  - Follows the agent of a host, and passes on changes of servers, events of their domains, and operations that ended.
  - With O(cursor_file), changes of servers and operations that ended while the source did not run, or was cut off, are
    passed on when it is back, with C(replayed=true), after an event of the type C(gap).
options:
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
    description: Types of events to pass on. The types C(gap), C(unreachable) and C(connected) are always passed on.
    type: list
    elements: str
    choices: [server, domain, operation]
    default: [server, domain, operation]
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
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
#: The name under which the collection's ``module_utils`` are imported here.
PACKAGE = "magnetar_event_source"
TYPES = ("server", "domain", "operation")
FILES = ("ca_cert", "client_cert", "client_key", "ssh_private_key", "ssh_known_hosts", "cursor_file")
#: Least and most of the arguments that are seconds.
SECONDS = {"interval": (1, 60), "retry": (1, 3600), "unreachable_after": (0, 86400)}
TEXTS = ("endpoint", "token", *FILES)
#: Codes of errors that do not pass by themselves: at the start they end the source.
LASTING = ("invalid-field", "unauthenticated", "forbidden", "not-found")
#: The form of the cursor file; the operations that it remembers; seconds between two writes.
VERSION = 1
REMEMBERED = 500
#: The operations that an agent remembers after their end.
LISTED = 1000
WRITE_SECONDS = 0.5
#: The fields of a server whose changes are events.
SERVER_FIELDS = ("name", "power_state", "status", "status_reason")


async def main(queue: asyncio.Queue, args: dict[str, Any]) -> None:
    """Pass on events until the task is cancelled. Raises ``ValueError`` for wrong arguments."""
    options = check_arguments(args)
    follower = Follower(options, connect(options), asyncio.get_running_loop(), queue)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    thread = threading.Thread(target=follower.run, args=(ended,), name="magnetar-events", daemon=True)
    thread.start()
    try:
        await ended
    finally:
        follower.stop()


def check_arguments(args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the source with defaults. Raises ``ValueError`` that names the argument and its rule."""
    defaults: dict[str, Any] = {**dict.fromkeys(TEXTS), "validate_certs": True, "events": list(TYPES), "servers": None,
                                "interval": 5.0, "retry": 30.0, "unreachable_after": 30.0}
    if unknown := sorted(set(args) - set(defaults)):
        raise _wrong(unknown[0], f"is not an argument of this source; arguments are {', '.join(sorted(defaults))}")
    options = {**defaults, **{name: value for name, value in args.items() if value is not None}}
    _check_texts(options)
    if not isinstance(options["validate_certs"], bool):
        raise _wrong("validate_certs", "must be true or false")
    if not isinstance(options["events"], list) or not options["events"] or not set(options["events"]) <= set(TYPES):
        raise _wrong("events", f"must be a list of some of {', '.join(TYPES)}")
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


def _import(name: str) -> Any:
    """Import a part of the collection's ``module_utils``, from the folder of this collection."""
    if PACKAGE not in sys.modules:
        package = types.ModuleType(PACKAGE)
        package.__path__ = [str(Path(__file__).resolve().parents[4] / "plugins" / "module_utils")]
        sys.modules[PACKAGE] = package
    return importlib.import_module(f"{PACKAGE}.{name}")


class Cursor:
    """What was passed on: the servers as they were last seen, the time of the last sign of life, and the operations.

    *path*: its file; without one, it lasts as long as the source runs.
    """

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self.host: str | None = None
        self.time: str | None = None
        self.servers: dict[str, dict[str, Any]] = {}
        self.operations: deque[str] = deque(maxlen=REMEMBERED)
        #: Why the file could not be used.
        self.problem: str | None = None
        self._written_at = 0.0
        self._read()

    def _read(self) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            if content["version"] != VERSION:
                raise ValueError
            host, seen_at, servers, operations = (content[name] for name in ("host", "time", "servers", "operations"))
            if not isinstance(servers, dict) or not all(isinstance(server, dict) for server in servers.values()):
                raise TypeError
            _seconds(seen_at)
            self.operations.extend(map(str, operations))
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.problem = f"the cursor file {self._path} cannot be used ({type(error).__name__})"
            log.warning("magnetar.compute.events: %s; what happened before is not known", self.problem)
            return
        self.host, self.time, self.servers = host, seen_at, servers

    def write(self, now: bool = False) -> None:
        """Replace the file, at most every ``WRITE_SECONDS``, or *now*. A crash leaves the old content or the new."""
        if self._path is None or (not now and time.monotonic() - self._written_at < WRITE_SECONDS):
            return
        part = self._path.with_name(self._path.name + ".part")
        content = {"version": VERSION, "host": self.host, "time": self.time, "servers": self.servers,
                   "operations": list(self.operations)}
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
        except OSError as error:
            log.warning("magnetar.compute.events: the cursor file %s cannot be written: %s. After a restart, events "
                        "may come again", self._path, error.strerror)
        self._written_at = time.monotonic()


class Follower:
    """The thread that follows an agent and puts events into the queue of the rule engine."""

    def __init__(self, options: dict[str, Any], client: Any, loop: asyncio.AbstractEventLoop,
                 queue: asyncio.Queue) -> None:
        self._options, self._client, self._loop, self._queue = options, client, loop, queue
        self._cursor = Cursor(options["cursor_file"])
        self._stopped = threading.Event()
        #: Since when the agent has not been reached, and whether that was passed on.
        self._lost_at: float | None = None
        self._unreachable = False
        self._greeted = False
        #: Whether the servers of the current connection have been compared with the cursor.
        self._compared = False
        self._host: str | None = None
        self._errors = _import("core.errors")

    def stop(self) -> None:
        """End the thread at the next event or sign of life."""
        self._stopped.set()

    def run(self, ended: asyncio.Future[None]) -> None:
        """Follow the agent, and connect again whenever the connection breaks. Set *ended* at the end."""
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
            self._client.close()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_end, ended, failure)

    def _follow(self) -> bool:
        """Pass on the events of one connection; return whether there was one. Raises an error that does not pass."""
        self._compared = False
        began = False
        try:
            for name, data in self._client.watch(self._options["interval"], None, self._options["events"]):
                began = True
                self._take(name, data)
                if self._stopped.is_set():
                    return True
        except self._errors.MagnetarError as error:
            if not self._greeted and error.code in LASTING:
                raise ValueError(f"magnetar.compute.events: {error.message}") from None
            self._lose(error.message)
            return began
        self._lose("the agent closed the connection, as for a restart")
        return began

    def _lose(self, reason: str) -> None:
        """Pass on that the agent is unreachable, once, when that has lasted: an agent that restarts is back soon."""
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
            log.warning("magnetar.compute.events: %s", reason)
        if not self._unreachable and now - self._lost_at >= self._options["unreachable_after"]:
            self._put("unreachable", reason=reason, since=self._cursor.time)
            self._unreachable = True

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
        if self._unreachable or not self._greeted:
            self._put("connected")
        self._greeted, self._unreachable, self._lost_at = True, False, None

    def _compare(self, everything: dict[str, Any]) -> None:
        """Pass on what changed since the cursor: servers, and at the beginning of a connection operations."""
        cursor, current = self._cursor, {str(server["id"]): server for server in everything["servers"]}
        known = cursor.time is not None
        first, self._compared = not self._compared, True
        operations = self._missed_operations(everything.get("at")) if known and first else []
        if not known:
            cursor.operations.extend(operation["id"] for operation in reversed(self._ended_operations(REMEMBERED)))
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
            if len(listed) >= LISTED - 100 and _seconds(listed[-1]["started_at"]) > _seconds(since):
                reason += ", and the agent does not know all operations of that time any more"
            operations = [operation for operation in listed if _seconds(operation["ended_at"]) >= _seconds(since) - 1]
            operations.sort(key=lambda operation: _seconds(operation["ended_at"]))
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

    def _wanted(self, *names: str | None) -> bool:
        """Return whether a server with one of these *names* (name or uuid) is to be passed on."""
        patterns = self._options["servers"]
        return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for name in names if name
                                       for pattern in patterns)

    def _seen(self, moment: str | None, now: bool = False) -> None:
        """Note *moment* as the time up to which everything was passed on. Before the comparison with the cursor, there
        is a gap.
        """
        if moment and self._compared and (self._cursor.time is None or _seconds(moment) > _seconds(self._cursor.time)):
            self._cursor.time = moment
        self._cursor.write(now)

    def _put(self, type: str, **more: Any) -> None:
        """Put an event into the queue, and wait while that is full."""
        if self._stopped.is_set():
            raise _Stopped
        event = {"type": type, "host": self._host, "endpoint": self._client.endpoint,
                 "time": datetime.now(UTC).isoformat(timespec="seconds"), **more}
        putting = asyncio.run_coroutine_threadsafe(self._queue.put(event), self._loop)
        while True:
            try:
                return putting.result(0.5)
            except TimeoutError:
                if self._stopped.is_set():
                    putting.cancel()
                    raise _Stopped from None


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


def _seconds(moment: Any) -> float:
    """Return *moment* of the agent (ISO 8601) as seconds since the epoch; 0 for none."""
    return 0.0 if moment is None else datetime.fromisoformat(str(moment)).timestamp()


if __name__ == "__main__":

    class _Printer:
        """A queue that prints, to try the source: ``python events.py '{"endpoint": "unix:///…"}'``."""

        async def put(self, event: dict[str, Any]) -> None:
            sys.stdout.write(json.dumps(event) + "\n")
            sys.stdout.flush()

    asyncio.run(main(_Printer(), json.loads(sys.argv[1]) if sys.argv[1:] else {}))  # type: ignore[arg-type]
