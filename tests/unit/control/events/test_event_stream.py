# SPDX-License-Identifier: GPL-3.0-or-later
"""``/v1/events`` of a cloud with fake hosts: pages and streams, who sees what, restarts, slow readers, several API
processes."""

from __future__ import annotations

import contextlib
import json
import socket
import urllib.parse
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from magnetar_control import serve
from magnetar_control.api.v1 import event
from magnetar_control.compute.events.event_feed import PAGES
from magnetar_control.conductor.periodic.notification_sender import drop_old
from magnetar_control.store.actions import outbox
from magnetar_control.store.actions.event_rows import insert_event_rows
from magnetar_control.store.actions.outbox import Message
from magnetar_control.web.transfers import Pace, Transfers
from magnetar_core.errors import CursorExpired, Forbidden, InvalidField
from magnetar_core.http.client import Client
from magnetar_core.http.login import Login
from tests.support.control.cloud import Caller, Cloud, listening
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1, event_stream=True, event_streams=8, project_share=0.5) as found:
        found.admin.flavor("usual")
        yield found


@pytest.fixture(scope="module")
def owner(cloud: Cloud) -> Caller:
    return cloud.caller("ann", "red")


def page(caller: Caller, **query: Any) -> dict[str, Any]:
    reply = caller.get("/v1/events?" + urllib.parse.urlencode(query))
    assert reply.status == 200, reply
    found: dict[str, Any] = reply.json
    return found


def names(events: list[dict[str, Any]]) -> list[str]:
    return [f"{one['event']}.{one['phase']}" for one in events]


def client(cloud: Cloud, caller: Caller, port: int | None = None) -> Client:
    """A client with the token of *caller*, at any API process."""
    return Client(login=_Known(cloud, caller, port or cloud.port))


class _Known(Login):
    """A login that has its token already."""

    def __init__(self, cloud: Cloud, caller: Caller, port: int) -> None:
        super().__init__({"auth": {"auth_url": f"http://127.0.0.1:{port}/identity", "token": caller.token}})
        self.session = (caller.token or "", f"http://127.0.0.1:{port}/v2.1")

    def _session(self) -> tuple[str, str]:
        return self.session


def follow(cloud: Cloud, caller: Caller, count: int, port: int | None = None, **query: Any) -> list[dict[str, Any]]:
    """The first *count* events of a stream."""
    found = []
    with contextlib.closing(client(cloud, caller, port).follow(interval=0.5, timeout=60.0, **query)) as stream:
        for name, document in stream:
            if name not in ("hello", "heartbeat"):
                found.append(document)
            if len(found) >= count:
                return found
    raise AssertionError("the stream ended")


def test_a_project_sees_its_events_and_admins_all(cloud: Cloud, owner: Caller) -> None:
    start = page(owner, cursor="now")["cursor"]
    server = owner.boot("web1", flavorRef="usual")
    mine = page(owner, cursor=start)
    assert names(mine["events"]) == ["create.start", "create.end"]
    made = mine["events"][1]
    assert made["server"] == {"id": server["id"], "name": "web1", "project_id": owner.project_id, "status": "ACTIVE",
                              "power_state": "running", "task_state": None, "flavor": "usual", "removed": False}
    assert made["kind"] == "server" and made["request_id"].startswith("req-") and "host" not in made
    assert mine["cursor"] == made["cursor"] and page(owner, cursor=made["cursor"])["events"] == []
    assert page(owner, cursor=mine["events"][0]["cursor"])["events"] == [made]
    cloud.admin.flavor("small")
    assert page(cloud.caller("bob", "blue"), cursor=start)["events"] == []
    assert page(cloud.admin, cursor=start)["events"] == []  # of its own project
    everything = page(cloud.admin, cursor=start, all_projects="true")["events"]
    assert sorted(names(everything)) == ["create.", "create.end", "create.start"]
    assert {one["kind"]: one.get("host") for one in everything} == {"server": "kvm1", "flavor": None}
    assert names(page(cloud.admin, cursor=start, all_projects="true", kind="flavor")["events"]) == ["create."]
    assert len(page(cloud.admin, cursor=start, all_projects="true", server="web1", limit=1)["events"]) == 1
    assert page(owner, cursor=start, server="other,another")["events"] == []


def test_requests_that_are_refused(cloud: Cloud, owner: Caller) -> None:
    for query, status in (("cursor=elsewhere", 400), ("kind=volume", 400), ("limit=0", 400), ("interval=99", 400),
                          ("unknown=1", 400), ("all_projects=true", 403), ("cursor=api:999999999", 410)):
        reply = owner.get(f"/v1/events?{query}")
        assert (reply.status, bool(reply.json["error"]["message"])) == (status, True), query
    assert owner.post("/v1/events", {}).status == 405
    assert Caller(cloud.port).get("/v1/events").status == 401
    with pytest.raises(CursorExpired):
        follow(cloud, owner, 1, cursor="api:999999999")
    with pytest.raises(InvalidField):
        follow(cloud, owner, 1, cursor="yesterday")
    with pytest.raises(Forbidden):
        follow(cloud, owner, 1, all_projects=True)


def test_a_stream_continues_where_it_was_cut(cloud: Cloud, owner: Caller) -> None:
    server = owner.boot("web2", flavorRef="usual")
    start = page(owner, cursor="now")["cursor"]
    assert owner.act(server["id"], "reboot", {"type": "HARD"}).status == 202
    first = follow(cloud, owner, 1, cursor=start, server=["web2"])
    owner.settled(server["id"])
    assert owner.act(server["id"], "os-stop").status == 202
    found = first + follow(cloud, owner, 3, cursor=first[-1]["cursor"], server=[server["id"]])
    assert names(found) == ["reboot.start", "reboot.end", "power_off.start", "power_off.end"]
    assert len({one["id"] for one in found}) == 4


def test_another_api_process_serves_the_same_events(cloud: Cloud, owner: Caller) -> None:
    server = owner.boot("web3", flavorRef="usual")
    with contextlib.closing(serve.Parts(cloud.parts.settings)) as parts, listening(
            parts.server(parts.services())) as port:
        start = page(owner, cursor="now")["cursor"]
        assert owner.act(server["id"], "os-stop").status == 202
        found = follow(cloud, owner, 1, port, cursor=start)
        found += follow(cloud, owner, 1, cursor=found[-1]["cursor"])
    assert names(found) == ["power_off.start", "power_off.end"]


def test_a_guest_that_stops_by_itself_is_an_event(cloud: Cloud, owner: Caller) -> None:
    server = owner.boot("web4", flavorRef="usual")
    with contextlib.closing(client(cloud, owner).follow(interval=0.5, timeout=60.0)) as stream:
        assert next(stream)[0] == "hello"
        with Client(cloud.hosts["kvm1"]) as agent:
            agent.ensure("server", server["id"], {"power": "off"})
        document = next(document for name, document in stream if name == "server")
    assert document["event"] == "power_off" and document["user_id"] is None
    assert document["server"]["status"] == "SHUTOFF"


def write_many(cloud: Cloud, project: str, count: int) -> None:
    """Write events of a project, of one and a half KiB each."""
    with cloud.parts.api_database.write() as connection:
        insert_event_rows(connection, outbox.API, [Message(str(uuid.uuid4()), "server.test", json.dumps(
            {"kind": "server", "project_id": project, "filler": "x" * 1500, "event": "test", "phase": ""}))
            for _number in range(count)])


def test_slow_readers_hold_nothing(cloud: Cloud, owner: Caller) -> None:
    start = page(owner, cursor="now")["cursor"]
    write_many(cloud, owner.project_id, 4000)
    before = cloud.server.transfers
    cloud.server.transfers = Transfers(before.uploads, before.downloads, Pace(1 << 20, 2.0))
    feed, streams = cloud.parts.v1.events.feed, cloud.parts.v1.events.streams
    try:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", cloud.port))
            slow.sendall(f"GET /v1/events?cursor={start} HTTP/1.1\r\nHost: cloud\r\nAccept: text/event-stream\r\n"
                         f"X-Auth-Token: {owner.token}\r\n\r\n".encode())
            eventually(lambda: feed._followers == 1)
            assert len(follow(cloud, owner, 4000, cursor=start)) == 4000  # others are not delayed
            assert all(len(source._pages) <= PAGES for source in feed.sources().values())
            eventually(lambda: feed._followers == 0 and not streams._taken)  # it was cut off
    finally:
        cloud.server.transfers = before


def test_a_project_has_its_share_of_streams(cloud: Cloud, owner: Caller) -> None:
    with contextlib.ExitStack() as stack:
        for _number in range(4):
            stream = stack.enter_context(contextlib.closing(client(cloud, owner).follow(interval=0.5, timeout=60.0)))
            assert next(stream)[0] == "hello"
        reply = owner.call("GET", "/v1/events", headers={"Accept": "text/event-stream"})
        assert reply.status == 429 and "4 of the 8 streams of events" in reply.json["error"]["message"]
    eventually(lambda: not cloud.parts.v1.events.streams._taken)


def test_a_stream_ends_with_its_token(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = cloud.caller("eve", "green")
    monkeypatch.setattr(event, "CHECKED", 0.2)
    with contextlib.closing(client(cloud, caller).follow(interval=0.5, timeout=60.0)) as stream:
        assert next(stream)[0] == "hello"
        user = caller.user_id
        assert cloud.admin.call("PATCH", f"/identity/v3/users/{user}", {"user": {"enabled": False}}).status == 200
        assert {name for name, _document in stream} <= {"heartbeat"}


def test_old_events_are_dropped_and_readers_are_told(cloud: Cloud, owner: Caller) -> None:
    start = page(owner, cursor="oldest", limit=1)["cursor"]
    object.__setattr__(cloud.parts.settings, "event_keep_hours", -1.0)
    try:
        drop_old(cloud.parts.working)
        for source in cloud.parts.v1.events.feed.sources().values():
            source._pages.clear()  # with what they keep, nothing is lost yet
    finally:
        object.__setattr__(cloud.parts.settings, "event_keep_hours", 24.0)
    reply = owner.get(f"/v1/events?cursor={start}")
    assert (reply.status, reply.json["error"]["code"]) == (410, "cursor-expired")
    assert page(owner, cursor="now")["events"] == []


def test_without_the_setting_nothing_is_kept() -> None:
    with Cloud(hosts=1) as plain:
        plain.admin.boot("web1")
        reply = plain.admin.get("/v1/events")
        assert reply.status == 409 and "event_stream: true" in reply.json["error"]["message"]
