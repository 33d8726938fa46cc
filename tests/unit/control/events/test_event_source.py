# SPDX-License-Identifier: GPL-3.0-or-later
"""The event source of Event-Driven Ansible at a cloud: what it passes on, over restarts and when events are gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_control.conductor.periodic.notification_sender import drop_old
from tests.support.control.cloud import Cloud
from tests.support.modules.event_source import Source
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1, event_stream=True) as found:
        yield found


@pytest.fixture(autouse=True)
def clouds_yaml(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"auth": {"auth_url": f"http://127.0.0.1:{cloud.port}/identity", "username": "admin",
                      "password": cloud.password, "project_name": "admin"}}
    (tmp_path / "clouds.yaml").write_text(json.dumps({"clouds": {"mine": entry}}))
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))


def source(tmp_path: Path, **args: Any) -> Source:
    return Source(cloud="mine", cursor_file=str(tmp_path / "cursor.json"), interval=1, **args)


def noted(tmp_path: Path, count: int) -> bool:
    """Whether the cursor file has so many events."""
    path = tmp_path / "cursor.json"
    return path.exists() and len(json.loads(path.read_text())["events"]) == count


def test_events_are_passed_on_and_not_lost_while_the_source_is_away(cloud: Cloud, tmp_path: Path) -> None:
    first = source(tmp_path, events=["server"], servers=["web*"]).start()
    first.wait("connected")
    server = cloud.admin.boot("web1")
    cloud.admin.boot("db1")
    made = first.wait("server", event="create", phase="end", replayed=False)[0]
    assert made["server"]["id"] == server["id"] and made["host"] == "kvm1"
    eventually(lambda: noted(tmp_path, 4))
    first.stop()
    assert cloud.admin.act(server["id"], "os-stop").status == 202
    cloud.admin.settled(server["id"])
    again = source(tmp_path, events=["server"], servers=[server["id"]]).start()
    missed = again.wait("server", 2, replayed=True)
    assert [(one["event"], one["phase"]) for one in missed] == [("power_off", "start"), ("power_off", "end")]
    assert cloud.admin.act(server["id"], "os-start").status == 202
    again.wait("server", event="power_on", phase="end", replayed=False)
    again.stop()
    assert {one["server"]["name"] for one in (*first.events, *again.events) if one["type"] == "server"} == {"web1"}
    assert "gap" not in {one["type"] for one in again.events}


def test_a_gap_is_told_when_events_are_gone(cloud: Cloud, tmp_path: Path) -> None:
    first = source(tmp_path).start()
    first.wait("connected")
    server = cloud.admin.boot("web2")
    first.wait("server", event="create", phase="end")
    eventually(lambda: noted(tmp_path, 2))
    first.stop()
    assert cloud.admin.act(server["id"], "os-stop").status == 202
    cloud.admin.settled(server["id"])
    object.__setattr__(cloud.parts.settings, "event_keep_hours", -1.0)
    try:
        drop_old(cloud.parts.working)
        for events in cloud.parts.v1.events.feed.sources().values():
            events._pages.clear()
    finally:
        object.__setattr__(cloud.parts.settings, "event_keep_hours", 24.0)
    again = source(tmp_path).start()
    assert "some are missing" in again.wait("gap")[0]["reason"]
    assert again.wait("server", event="power_off", phase="end", replayed=True)
    again.stop()


def test_all_projects_and_other_kinds(cloud: Cloud, tmp_path: Path) -> None:
    found = source(tmp_path, all_projects=True, events=["flavor"]).start()
    found.wait("connected")
    cloud.admin.flavor("big")
    assert found.wait("flavor", event="create")[0]["resource"]["id"] == "big"
    found.stop()


@pytest.mark.parametrize(("args", "word"), [
    ({"cloud": "other"}, "is not in"), ({"cloud": "mine", "endpoint": "https://kvm1:6553"}, "endpoint"),
    ({"all_projects": True}, "all_projects"), ({"cloud": "mine", "events": ["domain"]}, "events"),
    ({"cloud": "mine", "all_projects": "yes"}, "all_projects")])
def test_wrong_arguments_end_the_source(args: dict[str, Any], word: str) -> None:
    found = Source(**args).start()
    found._thread.join(60)
    assert isinstance(found.error, ValueError) and word in str(found.error)


def test_a_cloud_that_keeps_no_events_ends_the_source(cloud: Cloud, tmp_path: Path) -> None:
    object.__setattr__(cloud.parts.settings, "event_stream", False)
    try:
        found = source(tmp_path).start()
        found._thread.join(60)
        assert "event_stream: true" in str(found.error)
    finally:
        object.__setattr__(cloud.parts.settings, "event_stream", True)
