# SPDX-License-Identifier: GPL-3.0-or-later
"""Who waits for a host keeps nobody else waiting: neither others' requests nor the health of the cloud."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from itertools import islice

import pytest

from magnetar_control.compute import waiting
from magnetar_control.compute.attachments import interfaces
from magnetar_control.compute.waiting import Shares
from magnetar_core.errors import Unavailable
from tests.support.control.cloud import Caller, Cloud, Reply
from tests.support.silence import hanging

#: More than the API has threads for, and how many of these are refused.
MANY = 24
REFUSED = MANY - waiting.OF_HOST
#: What waits for the host, and how it is asked for.
ASKED = {"os-interface": {"interfaceAttachment": {}}, "diagnostics": None, "os-getConsoleOutput": {},
         "changePassword": {"adminPass": "x"}}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """One host, which does not count as down soon."""
    with Cloud(hosts=1, heartbeat=0.5, host_down_after=600.0) as made:
        yield made


@pytest.fixture
def server(cloud: Cloud) -> Iterator[str]:
    """A server that runs."""
    id = str(cloud.admin.boot(networks="none")["id"])
    yield id
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None


def ask(caller: Caller, server: str, what: str) -> Reply:
    """What waits for the server's host."""
    path, body = f"/v2.1/servers/{server}/{what}", ASKED[what]
    if body is None:
        return caller.get(path)
    return caller.post(path, body) if what == "os-interface" else caller.act(server, what, body)


def limits(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """So long who asks waits for the host."""
    monkeypatch.setattr(waiting, "ANSWER", seconds)
    monkeypatch.setattr(interfaces, "DONE", seconds)


@pytest.mark.parametrize("what", ASKED)
def test_many_wait_for_a_host_and_others_are_answered(
        cloud: Cloud, server: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some wait until the host is back; the rest are refused, and others answered, meanwhile."""
    limits(monkeypatch, 600.0)
    with ThreadPoolExecutor(MANY) as threads, hanging(cloud):
        asked = [threads.submit(ask, cloud.admin, server, what) for _number in range(MANY)]
        for one in islice(as_completed(asked, 60), REFUSED):
            reply = one.result()
            assert reply.status in (409, 503) and "Too many requests wait for the server's host" in str(reply.json)
            assert reply.status == 409 or reply.headers["retry-after"]
        assert cloud.admin.get("/healthz").status == 200
        assert cloud.admin.get(f"/v2.1/servers/{server}").status == 200
        assert cloud.admin.get("/v2.1/os-services").status == 200
        assert cloud.admin.act(server, "lock").status == 202
        assert sum(not one.done() for one in asked) == waiting.OF_HOST


@pytest.mark.parametrize("what", ASKED)
def test_nobody_waits_for_long(cloud: Cloud, server: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, 1.0)
    with hanging(cloud):
        reply = ask(cloud.admin, server, what)
    assert reply.status == 503 and reply.headers["retry-after"], reply
    assert "not answer" in str(reply.json) or "was cancelled" in str(reply.json), reply


def test_the_limits_are_below_ten_seconds() -> None:
    assert max(waiting.ANSWER, waiting.DONE) < 10


def test_a_share_of_a_host_and_of_a_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "TURN", 0.05)
    shares = Shares()
    with ExitStack() as taken:
        for number in range(waiting.OF_PROJECT):
            taken.enter_context(shares.of(f"kvm{number % 4}", "red"))
        with pytest.raises(Unavailable, match="of the project"), shares.of("kvm9", "red"):
            pass
        for _number in range(waiting.OF_HOST - waiting.OF_PROJECT // 4):
            taken.enter_context(shares.of("kvm0", "blue"))
        with pytest.raises(Unavailable, match="server's host"), shares.of("kvm0", "green"):
            pass
        with shares.of("kvm1", "green"):
            pass
    with shares.of("kvm0", "red"):
        assert shares._since
    assert not shares._since


def test_a_host_that_answers_lets_the_next_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "TURN", 60.0)
    shares, first = Shares(), ExitStack()
    for _number in range(waiting.OF_HOST):
        first.enter_context(shares.of("kvm1", "red"))

    def next_one() -> bool:
        with shares.of("kvm1", "red"):
            return True

    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(next_one)
        first.close()
        assert waits.result(30)
