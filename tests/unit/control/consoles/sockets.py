# SPDX-License-Identifier: GPL-3.0-or-later
"""Consoles of a cloud over real WebSockets, in short words."""

from __future__ import annotations

import contextlib
import json
import re
import time

import pytest
from sqlalchemy import update
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from magnetar_control.compute.servers import consoles
from magnetar_control.store.engine.tables import console_tokens
from magnetar_core.http.endpoint import CONSOLE_ERROR
from tests.support.waiting import eventually

LIMIT = 120.0
VNC, SERIAL, SPICE = ("vnc", "novnc"), ("serial", "serial"), ("spice", "spice-html5")
ANYWHERE = {"host": None, "block_migration": "auto"}


def nothing_open(cloud):
    """Wait until no console is open."""
    eventually(lambda: cloud.server.mounts and not application(cloud).proxy.count())


def application(cloud):
    return dict(cloud.server.mounts)["/console"]


def url(cloud, server, kind=SERIAL, who=None):
    """The URL of the WebSocket of a new console."""
    protocol, type = kind
    body = {"remote_console": {"protocol": protocol, "type": type}}
    reply = (who or cloud.admin).post(f"/v2.1/servers/{server}/remote-consoles", body, "2.6")
    assert reply.status == 200, reply
    token = re.search(r"token(?:=|%3D)(.*)$", reply.json["remote_console"]["url"])[1]
    return f"ws://127.0.0.1:{cloud.port}/console/socket?token={token}"


@contextlib.contextmanager
def console(where, **more):
    with connect(where, subprotocols=["binary"], proxy=None, **more) as opened:
        yield opened


def refusal(where, **more):
    """Status and words."""
    with pytest.raises(InvalidStatus) as error, console(where, **more):
        pass
    response = error.value.response
    if CONSOLE_ERROR in response.headers:
        assert not response.body
        return response.status_code, response.headers[CONSOLE_ERROR]
    return response.status_code, json.loads(response.body)["error"]["message"]


def heard(opened, words):
    said, deadline = "", time.monotonic() + LIMIT
    while not re.search(words, said):
        said += opened.recv(deadline - time.monotonic()).decode()
    return said


def end(opened):
    """Code and reason."""
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            opened.recv(LIMIT)
    return closed.value.rcvd.code, closed.value.rcvd.reason


def expire(cloud, where):
    """The token of the URL has expired."""
    grant = consoles.resolve_console_token(application(cloud).proxy.cloud, token_of(where))
    with grant.database.write() as connection:
        connection.execute(update(console_tokens).where(console_tokens.c.hash == grant.token.hash).values(
            expires_at=grant.database.clock(-1)))


def token_of(where):
    """The token in the URL of a WebSocket."""
    return where.partition("token=")[2]


def host_of(cloud, server):
    return cloud.admin.get(f"/v2.1/servers/{server}").json["server"]["OS-EXT-SRV-ATTR:host"]
