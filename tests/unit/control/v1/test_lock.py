# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks of servers of a cloud: by ``/v1`` and by the module ``server_action``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control.cloud import Cloud

from .play import play, prepared

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1) as found:
        found.admin.boot("web1")
        yield found


def test_by_module(cloud: Cloud, tmp_path: Path) -> None:
    lock, why, unlock = ({"server_action": {"name": "web1", **words}} for words in (
        {"action": "lock"}, {"action": "lock", "locked_reason": "audit"}, {"action": "unlock"}))
    folder = prepared(tmp_path, cloud)
    assert play(folder, [lock], {"cloud": "magnetar"}, "--check")[0]["changed"]
    assert not cloud.admin.get("/v1/server/web1").json["locked"]
    found = play(folder, [unlock, lock, lock, why, why, lock], {"cloud": "magnetar"})
    assert [one["changed"] for one in found] == [False, True, False, True, False, False]
    assert [one["server"]["locked_reason"] for one in found] == [None, None, None, "audit", "audit", "audit"]
    found = play(folder, [unlock, unlock], {"cloud": "magnetar"})
    assert [(one["changed"], one["server"]["locked"]) for one in found] == [(True, False), (False, False)]


def test_users_and_administrators(cloud: Cloud) -> None:
    ann = cloud.caller("ann", "red")
    cloud.admin.flavor("usual")
    server = ann.boot("mine", flavorRef="usual")
    events = f"/v1/server/{server['id']}/events"
    done = ann.post(events, {"event": "lock", "args": {"locked_reason": "mine"}})
    assert (done.json["resource"]["locked"], done.json["resource"]["locked_reason"]) == (True, "mine")
    reboot = {"event": "reboot", "args": {"type": "hard"}, "request_id": "one"}
    refused = ann.post(events, reboot)
    assert refused.status == 409 and "lock" in refused.json["error"]["message"]
    assert ann.post(events, {"event": "unlock"}).json["resource"]["locked"] is False
    assert ann.post(events, reboot).status == 200
    assert cloud.admin.act(server["id"], "lock").status == 202
    assert ann.post(events, {"event": "unlock"}).status == 403
    for args in ({"locked_reason": ""}, {"locked_reason": "x" * 256}, {"reason": "x"}):
        assert ann.post(events, {"event": "lock", "args": args}).status == 400
