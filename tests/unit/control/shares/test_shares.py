# SPDX-License-Identifier: GPL-3.0-or-later
"""Shares go to the host and come back from it, what a host lacks is said, and a conductor may die at any line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.iso import read
from tests.support.control.cloud import Cloud
from tests.support.control.servers import ensure, verbs
from tests.support.waiting import eventually
from tests.unit.control.attachments.dying import Fuse

FILES, MISSING, UNKNOWN = (f"{digit * 8}-447a-4376-a10a-4cd9122d7986" for digit in "abc")
VERSION = "2.97"


@pytest.fixture(scope="module")
def cloud(databases: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A host with one share, which also names a folder that is not there; on each engine."""
    files = tmp_path_factory.mktemp("files")
    with Cloud(hosts=1, databases=databases, folders={"files": str(files), "missing": f"{files}/missing"},
               shares={FILES: "files", MISSING: "missing", UNKNOWN: "unknown"}) as made:
        yield made


@pytest.fixture
def server(cloud: Cloud) -> Iterator[str]:
    """A server that is off."""
    id = str(cloud.admin.boot(networks="none")["id"])
    cloud.admin.act(id, "os-stop")
    found = cloud.admin.settled(id)
    assert found and found["status"] == "SHUTOFF"
    yield id
    cloud.admin.delete(f"/v2.1/servers/{id}")
    cloud.admin.settled(id)


def attach(cloud: Cloud, server: str, share: str, **more: str) -> None:
    reply = cloud.admin.post(f"/v2.1/servers/{server}/shares", {"share": {"share_id": share, **more}}, VERSION)
    assert reply.status == 201, reply


def shown(cloud: Cloud, server: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cloud.admin.get(f"/v2.1/servers/{server}/shares", VERSION).json["shares"]
    return found


def on_host(cloud: Cloud, server: str) -> list[dict[str, str]]:
    """What the agent's document has."""
    [path] = Path(cloud.folder / "kvm1" / "state").rglob(f"*server*/{server}.json")
    found: list[dict[str, str]] = json.loads(path.read_text())["state"].get("shares", [])
    return found


def told(cloud: Cloud, server: str) -> list[dict[str, Any]]:
    """The devices of which the config drive tells the guest."""
    [path] = cloud.folder.glob(f"kvm1/state/servers/{server}/config.iso")
    files = read(path.read_bytes(), "rr_path")
    found: list[dict[str, Any]] = json.loads(files["openstack/latest/meta_data.json"])["devices"]
    return found


def settled(cloud: Cloud, server: str) -> list[dict[str, Any]]:
    """The shares when nothing is done about them any more."""
    eventually(lambda: not any(one["status"].endswith("ing") for one in shown(cloud, server)))
    return shown(cloud, server)


def test_a_share_comes_and_goes(cloud: Cloud, server: str) -> None:
    attach(cloud, server, FILES, tag="files")
    assert settled(cloud, server) == [{"share_id": FILES, "status": "inactive", "tag": "files"}]
    assert on_host(cloud, server) == [{"share": "files", "tag": "files", "share_id": FILES}]
    assert told(cloud, server) == [{"type": "share", "share_id": FILES, "tag": "files", "bus": "none",
                                    "address": "none"}]
    path = f"/v2.1/servers/{server}/shares/{FILES}"
    assert cloud.admin.get(path, VERSION).json["share"]["export_location"].startswith("kvm1:/")
    cloud.admin.act(server, "os-start")
    cloud.admin.settled(server)
    assert shown(cloud, server)[0]["status"] == "active"
    assert cloud.admin.delete(path, VERSION).status == 409
    assert cloud.admin.act(server, "suspend").status == 409
    cloud.admin.act(server, "os-stop")
    cloud.admin.settled(server)
    assert cloud.admin.delete(path, VERSION).status == 200
    assert settled(cloud, server) == on_host(cloud, server) == told(cloud, server) == []


@pytest.mark.parametrize(("share", "says"), [(UNKNOWN, "has no share unknown"), (MISSING, "has no folder")])
def test_what_a_host_lacks_is_said(cloud: Cloud, server: str, share: str, says: str) -> None:
    attach(cloud, server, share)
    [one] = settled(cloud, server)
    assert one["status"] == "error" and on_host(cloud, server) == []
    actions = f"/v2.1/servers/{server}/os-instance-actions"
    [request] = [one["request_id"] for one in cloud.admin.get(actions, VERSION).json["instanceActions"]
                 if one["action"] == "attach_share"]

    def events() -> list[dict[str, Any]]:
        return cloud.admin.get(f"{actions}/{request}", VERSION).json["instanceAction"]["events"]

    eventually(lambda: events()[0]["result"])  # the event ends after the share's row says what became of it
    [event] = events()
    assert event["result"] == "Error" and says in event["details"]
    assert cloud.admin.delete(f"/v2.1/servers/{server}/shares/{share}", VERSION).status == 200
    assert settled(cloud, server) == []


def test_as_modules_ask(cloud: Cloud, server: str) -> None:
    key, list_ = f"share_attachment/{server}:files", f"share_attachment?server={server}"
    tag = {"tag": "docs"}
    predicted = ensure(cloud.admin, key, tag, dry_run=True)
    assert cloud.admin.get(f"/v1/{list_}").json["share_attachments"] == []
    made = ensure(cloud.admin, key, tag)
    assert verbs(predicted) == verbs(made) == ["record", "attach"]
    drawn = ("id", "export_location")
    assert {**predicted.json["resource"], **dict.fromkeys(drawn)} == {**made.json["resource"], **dict.fromkeys(drawn)}
    told = made.json["resource"]
    assert (told["share"], told["share_name"], told["tag"], told["status"]) == (FILES, "files", "docs", "inactive")
    assert told["export_location"].startswith("kvm1:/")
    assert on_host(cloud, server) == [{"share": "files", "tag": "docs", "share_id": FILES}]
    for again in (key, f"share_attachment/{server}:{FILES}"):
        assert verbs(ensure(cloud.admin, again, {})) == []
    assert cloud.admin.get(f"/v1/{list_}").json["share_attachments"] == [told]
    assert ensure(cloud.admin, key, {"tag": "other"}).status == 409  # it would have to be attached anew
    assert ensure(cloud.admin, f"share_attachment/{server}:none", {}).status == 400
    assert cloud.admin.delete(f"/v1/{key}").json["changed"] and not cloud.admin.delete(f"/v1/{key}").json["changed"]
    assert on_host(cloud, server) == []
    cloud.admin.act(server, "os-start")
    cloud.admin.settled(server)
    for dry_run in (True, False):
        refused = ensure(cloud.admin, key, tag, dry_run=dry_run)
        assert refused.status == 409 and "vm_state active" in refused.json["error"]["message"], refused


def test_what_failed_is_tried_again(cloud: Cloud, server: str) -> None:
    key = f"share_attachment/{server}:missing"
    failed = ensure(cloud.admin, key, {"tag": "late"})
    assert failed.status >= 400 and [one["status"] for one in shown(cloud, server)] == ["error"]
    folder = Path(cloud.shares["missing"])
    folder.mkdir()
    try:
        done = ensure(cloud.admin, key, {})
        assert verbs(done) == ["record", "detach", "attach"] and done.json["resource"]["status"] == "inactive"
        assert on_host(cloud, server) == [{"share": "missing", "tag": "late", "share_id": MISSING}]
        assert cloud.admin.delete(f"/v1/{key}").json["changed"]
    finally:
        folder.rmdir()


@pytest.mark.slow
def test_a_conductor_may_die_at_any_line(cloud: Cloud, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fuse, deaths = Fuse(cloud, monkeypatch), 0
    for at in range(1, 60):
        fuse.light(at)
        attach(cloud, server, FILES, tag="files")
        died = fuse.survive()
        assert shown(cloud, server) == [{"share_id": FILES, "status": "inactive", "tag": "files"}], at
        assert on_host(cloud, server) == [{"share": "files", "tag": "files", "share_id": FILES}]
        assert len(told(cloud, server)) == 1
        fuse.light(at)
        assert cloud.admin.delete(f"/v2.1/servers/{server}/shares/{FILES}", VERSION).status == 200
        died_again = fuse.survive()
        assert shown(cloud, server) == on_host(cloud, server) == told(cloud, server) == [], at
        deaths += died + died_again
        if not (died or died_again):
            break
    assert deaths > 8
