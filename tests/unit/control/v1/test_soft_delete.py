# SPDX-License-Identifier: GPL-3.0-or-later
"""Deleted servers of a cloud that keeps them for a while: by the protocol, and by the modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control.cloud import Cloud, Reply
from tests.support.control.servers import MADE, WEB, ensure, verbs
from tests.support.waiting import eventually

from .play import play, prepared

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(reclaim_instance_interval=3600) as made:
        made.admin.image()
        yield made


def event(cloud: Cloud, key: str, name: str, args: object = None) -> Reply:
    return cloud.admin.post(f"/v1/server/{key}/events?wait=20", {"event": name, "args": args or {}})


def names(cloud: Cloud, query: str = "") -> list[str]:
    return sorted(one["name"] for one in cloud.admin.get(f"/v1/server{query}").json["servers"])


def clear(cloud: Cloud) -> None:
    for query in ("", "?status=SOFT_DELETED"):
        for one in cloud.admin.get(f"/v1/server{query}").json["servers"]:
            assert event(cloud, one["id"], "force_delete").status == 200
    assert names(cloud) == names(cloud, "?status=SOFT_DELETED") == []


def test_what_is_deleted_stays_for_a_while_and_its_name_is_free(cloud: Cloud) -> None:
    admin = cloud.admin
    first = ensure(admin, "server/web1", WEB).json["resource"]["id"]
    planned = admin.delete("/v1/server/web1?wait=20&dry_run=true")
    done = admin.delete("/v1/server/web1?wait=20")
    assert verbs(planned) == verbs(done) == ["soft_delete"]
    assert done.json["changed"] and not admin.delete("/v1/server/web1?wait=20").json["changed"]
    assert not admin.delete(f"/v1/server/{first}?wait=20").json["changed"]
    assert admin.get("/v1/server/web1").status == 404
    assert admin.get(f"/v1/server/{first}").json["status"] == "SOFT_DELETED"
    assert names(cloud) == [] and names(cloud, "?status=SOFT_DELETED") == names(cloud, f"?id={first}") == ["web1"]
    refused = ensure(admin, f"server/{first}", {"power": "running"})
    assert refused.status == 409 and "Restore it first" in refused.json["error"]["message"]
    second = ensure(admin, "server/web1", WEB)
    assert verbs(second) == MADE and second.json["resource"]["id"] != first
    assert event(cloud, first, "restore").json["resource"]["status"] == "ACTIVE"
    assert admin.get("/v1/server/web1").status == 409, "two have the name"
    assert event(cloud, first, "restore").status == 409
    assert event(cloud, first, "force_delete", {"why": "x"}).status == 400
    clear(cloud)
    assert event(cloud, first, "force_delete").json["done"] is False
    assert event(cloud, first, "restore").status == 404


def test_what_is_made_anew_takes_what_the_old_one_had(cloud: Cloud) -> None:
    admin = cloud.admin
    made = ensure(admin, "server/web1", WEB).json["resource"]
    address = made["networks"][0]["address"]
    want = {"user_data": "IyEvYmluL3NoCg==", "networks": [{"network": "default", "address": address}]}
    planned = ensure(admin, "server/web1", want, dry_run=True, on_immutable="recreate")
    done = ensure(admin, "server/web1", want, on_immutable="recreate")
    assert verbs(planned) == verbs(done)
    assert done.json["resource"]["networks"][0]["address"] == address and done.json["resource"]["id"] != made["id"]
    assert names(cloud, "?status=SOFT_DELETED") == [], "it would have the address"
    clear(cloud)


def test_by_modules(cloud: Cloud, tmp_path: Path) -> None:
    folder, at = prepared(tmp_path, cloud), {"cloud": "magnetar"}
    ensure(cloud.admin, "server/web1", WEB)
    absent = {"server": {"name": "web1", "state": "absent"}}
    restore, forced = ({"server_action": {"name": "web1", "action": word}} for word in ("restore", "force_delete"))
    listed = {"server_info": {"filters": {"status": "SOFT_DELETED"}}}
    [would, not_deleted] = play(folder, [absent, restore], at, "--check")
    assert would["changed"] and would["actions"] == ["soft_delete"] and not not_deleted["changed"]
    gone, again, soft = play(folder, [absent, absent, listed], at)
    assert [gone["changed"], again["changed"]] == [True, False] and gone["actions"] == ["soft_delete"]
    assert [one["name"] for one in soft["servers"]] == ["web1"]
    for task in (restore, forced):
        [would] = play(folder, [task], at, "--check")
        assert would["changed"] and would["server"]["status"] == "SOFT_DELETED"
    back, again = play(folder, [restore, restore], at)
    assert [back["changed"], again["changed"]] == [True, False] and back["server"]["status"] == "ACTIVE"
    _gone, over, again = play(folder, [absent, forced, forced], at)
    assert [over["changed"], again["changed"]] == [True, False]
    assert names(cloud, "?status=SOFT_DELETED") == []
    [missing] = play(folder, [{**restore, "ignore_errors": True}], at)
    assert missing["error"]["code"] == "not-found"
    for _each in range(2):
        ensure(cloud.admin, "server/web1", WEB)
        cloud.admin.delete("/v1/server/web1?wait=20")
    [several] = play(folder, [{**restore, "ignore_errors": True}], at)
    assert several["error"]["code"] == "ambiguous" and "use a uuid" in several["msg"]
    clear(cloud)


def test_a_request_that_waits_for_a_soft_deletion_makes_another(cloud: Cloud) -> None:
    """While it is under way the name is still taken."""
    admin = cloud.admin
    first = ensure(admin, "server/web1", WEB).json["resource"]["id"]
    assert admin.delete(f"/v2.1/servers/{first}").status == 204
    made = ensure(admin, "server/web1", WEB)
    assert made.json["changed"] and made.json["resource"]["id"] != first
    eventually(lambda: names(cloud, "?status=SOFT_DELETED") == ["web1"])
    clear(cloud)
