# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor's loop that follows one host, and a fake agent for it, without a database."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from types import SimpleNamespace

from magnetar_control.agents import Agents
from magnetar_control.conductor.hosts.watch_loop import WatchLoop
from magnetar_control.store.hosts.host_leases import Renewal

EVENTS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class FollowedHost:
    """The loop of a conductor that follows one host at *endpoint*, without a database."""

    def __init__(self, endpoint, patch, agents=None, heartbeat=1.0):
        self.saved, self.handled, self.problems, self.refused, self.attempts = [], [], [], [], []
        conductor = SimpleNamespace(
            agents=agents or Agents(), settings=SimpleNamespace(heartbeat=heartbeat), tell_action=lambda *_event: False,
            begin_settling=lambda: self.attempts.append(endpoint),
            states=SimpleNamespace(rows={"kvm1": SimpleNamespace(endpoint=endpoint, info={}), "kvm2": None},
                                   rules=SimpleNamespace(reads_reports=False), up=lambda *_args, **_more: None,
                                   set_refused=lambda name, **_more: self.refused.append(name)))
        self.loop = WatchLoop(conductor, lambda _name, event, document: self.handled.append((event, document)),
                              lambda _name, host: self.saved.append(host), lambda _name, report: "traits" not in report)
        patch.setattr(self.loop.heartbeats, "_write", self.write)
        self.loop.add(["kvm1"])

    def write(self, heard, problems, _silent):
        self.problems += problems.values()
        self.loop.soon(self.loop._written, Renewal(frozenset(heard), frozenset(), frozenset()))


@contextlib.contextmanager
def watched_agent(address, *, tls=None, frames=(), family=socket.AF_UNIX, host=None):
    """Run a fake agent that answers the two requests of each client, and sends *frames* until the client leaves."""
    over, content = threading.Event(), json.dumps(host or {"vcpus": 8}).encode()
    with socket.socket(family) as listening:
        listening.bind(address)
        listening.listen()

        def serve():
            while not over.is_set():
                with contextlib.suppress(OSError), listening.accept()[0] as plain, (
                        tls.wrap_socket(plain, server_side=True) if tls else plain) as client:
                    client.recv(65536)
                    client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content))
                    if not client.recv(65536):
                        continue
                    client.sendall(EVENTS + b"".join(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames))
                    client.settimeout(0.02)
                    while not over.is_set():
                        with contextlib.suppress(TimeoutError):
                            if not client.recv(1):
                                break

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield listening
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
