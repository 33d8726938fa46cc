# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of a cloud is to be shelved: by the protocol, and by the modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control.cloud import Cloud
from tests.support.control.servers import MADE, WEB, ensure, verbs

from .play import play, prepared


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=2) as made:
        made.admin.image()
        yield made


def test_shelved_is_a_power_state_of_a_cloud(cloud: Cloud) -> None:
    admin, shelved = cloud.admin, {"power": "shelved"}
    server = ensure(admin, "server/kept", WEB).json["resource"]
    planned, done = ensure(admin, "server/kept", shelved, dry_run=True), ensure(admin, "server/kept", shelved)
    assert verbs(planned) == verbs(done) == ["record", "shelve"]
    found = done.json["resource"]
    assert (found["status"], found["power"], found["power_state"], found["host"]) == (
        "SHELVED_OFFLOADED", "shelved", "off", None)
    assert planned.json["resource"]["status"] == "SHELVED_OFFLOADED"
    assert found["id"] == server["id"] and found["addresses"] == server["addresses"]
    assert found["image"] == server["image"]
    assert not ensure(admin, "server/kept", shelved).json["changed"]
    assert not ensure(admin, "server/kept", {"flavor": "tiny"}).json["changed"]
    refused = ensure(admin, "server/kept", {"metadata": {"a": "b"}})
    assert refused.status == 409 and "Unshelve it first" in refused.json["error"]["message"]
    assert ensure(admin, "server/kept", {"power": "running", "host": "none"}, dry_run=True).status == 409
    there = next(name for name in cloud.hosts if name != server["host"])
    back = {"power": "paused", "host": there, "metadata": {"a": "b"}}
    planned, done = ensure(admin, "server/kept", back, dry_run=True), ensure(admin, "server/kept", back)
    assert verbs(planned) == verbs(done) == ["record", "unshelve", "pause"]
    found = done.json["resource"]
    assert (found["status"], found["host"], found["metadata"]) == ("PAUSED", there, {"a": "b"})
    assert ensure(admin, "server/kept", {"power": "running"}).json["changed"]
    admin.delete("/v1/server/kept?wait=20")


def test_a_new_server_can_be_shelved_at_once(cloud: Cloud) -> None:
    want = {**WEB, "power": "shelved"}
    planned, made = ensure(cloud.admin, "server/new", want, dry_run=True), ensure(cloud.admin, "server/new", want)
    assert verbs(planned) == verbs(made) == [*MADE, "shelve"]
    assert made.json["resource"]["status"] == "SHELVED_OFFLOADED"
    assert cloud.admin.delete("/v1/server/new?wait=20").json["changed"]


def test_by_modules(cloud: Cloud, tmp_path: Path) -> None:
    ensure(cloud.admin, "server/web1", WEB)
    shelved, back = {"server": {"name": "web1", "state": "shelved"}}, {"server": {"name": "web1", "state": "running"}}
    offload = {"server_action": {"name": "web1", "action": "shelve_offload"}}
    shelve, unshelve = ({"server_action": {"name": "web1", "action": word}} for word in ("shelve", "unshelve"))
    folder = prepared(tmp_path, cloud)
    tasks = [shelved, shelved, offload, shelve, back, back, shelve, unshelve, unshelve]
    found = play(folder, tasks, {"cloud": "magnetar"})
    assert [one["changed"] for one in found] == [True, False, False, False, True, False, True, True, False]
    assert [one["server"]["status"] for one in found] == [*["SHELVED_OFFLOADED"] * 4, *["ACTIVE"] * 2,
                                                          "SHELVED_OFFLOADED", *["ACTIVE"] * 2]
    [would] = play(folder, [shelved], {"cloud": "magnetar"}, "--check", "--diff")
    assert would["changed"] and would["server"]["status"] == "SHELVED_OFFLOADED"
    assert cloud.admin.get("/v1/server/web1").json["status"] == "ACTIVE"
    cloud.admin.delete("/v1/server/web1?wait=20")


def test_a_shelved_server_is_offloaded_once(cloud: Cloud, tmp_path: Path) -> None:
    from tests.unit.control.shelve.shelving import settings

    folder, task = prepared(tmp_path, cloud), {"server_action": {"name": "web2", "action": "shelve_offload"}}
    ensure(cloud.admin, "server/web2", WEB)
    with settings(cloud, shelved_offload_time=-1):
        assert ensure(cloud.admin, "server/web2", {"power": "shelved"}).json["resource"]["status"] == "SHELVED"
        first, second = play(folder, [task, task], {"cloud": "magnetar"})
    assert (first["changed"], first["server"]["status"]) == (True, "SHELVED_OFFLOADED")
    assert not second["changed"]
    cloud.admin.delete("/v1/server/web2?wait=20")
