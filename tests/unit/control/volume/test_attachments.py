# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes kept for servers, had by them, and let go."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from magnetar_control.api.volume.app import VolumeApplication
from magnetar_control.services.volume import attachments
from magnetar_control.web.application import by_token
from magnetar_core.errors import MagnetarError
from tests.support.control.serving import ADMIN, ALICE, BOB, NOVA, WHO, Asker, authenticate, connected, served

from .conftest import work

ONE, TWO = str(uuid.uuid4()), str(uuid.uuid4())


@pytest.fixture
def volume(service):
    """One that is available, by its uuid."""
    made = service.create(ALICE, 1, name="data")
    work(service)
    return made["id"]


def _status(ask: Asker, id: str) -> str:
    return ask("GET", f"/v3/red/volumes/{id}")["volume"]["status"]


def test_the_interface(ask, service, volume):
    id = str(uuid.uuid4())
    kept = service.reserve(ALICE, volume, ONE, attachment_id=id)
    assert kept["id"] == service.reserve(ALICE, volume, ONE, attachment_id=id)["id"] == id
    assert service.reserve(ALICE, volume, ONE)["id"] == kept["id"]
    assert kept["volume"]["status"] == "reserved"
    with pytest.raises(MagnetarError, match="reserved"):
        service.reserve(ALICE, volume, TWO)
    with pytest.raises(MagnetarError, match="could not be found"):
        service.reserve(BOB, volume, TWO)
    service.attached(kept["id"], "kvm1", "/dev/vdb")
    (held,) = ask("GET", f"/v3/red/volumes/{volume}")["volume"]["attachments"]
    assert (held["server_id"], held["device"], held["host_name"]) == (ONE, "/dev/vdb", None)
    (held,) = ask.as_(ADMIN)("GET", f"/v3/volumes/{volume}")["volume"]["attachments"]
    assert held["host_name"] == "kvm1"
    assert _status(ask, volume) == "in-use"
    with pytest.raises(MagnetarError, match="must not be attached"):
        service.delete(ALICE, volume)
    service.detached(kept["id"])
    service.detached(kept["id"])
    assert _status(ask, volume) == "available"


@pytest.mark.parametrize("connector", [
    {"host": {"a": "b"}}, {"host": "x" * 256}, {"mountpoint": ["/dev/vdb"]}, {"mountpoint": "x" * 256},
    {f"k{at}": 1 for at in range(129)}, {"initiator": "x" * 20_000}], ids=lambda one: f"{len(str(one))}")
def test_what_a_connector_cannot_be(ask, volume, connector):
    """What is read of it is text, and all of it is kept."""
    body = {"attachment": {"volume_uuid": volume, "instance_uuid": ONE}}
    made = ask("POST", "/v3/red/attachments", body)["attachment"]
    for method, path in (("POST", "/v3/red/attachments"), ("PUT", f"/v3/red/attachments/{made['id']}")):
        refused = ask(method, path, {"attachment": {"connector": connector, **(
            body["attachment"] if method == "POST" else {})}}, status=400)
        assert "connector" in refused["badRequest"]["message"]
    assert len(ask("GET", "/v3/red/attachments")["attachments"]) == 1


def test_a_volume_has_so_many_attachments(ask, volume, monkeypatch):
    """One server may keep it more than once, for a move."""
    monkeypatch.setattr(attachments, "MOST", 2)
    body = {"attachment": {"volume_uuid": volume, "instance_uuid": ONE}}
    made = [ask("POST", "/v3/red/attachments", body)["attachment"]["id"] for _time in range(2)]
    assert "has 2 attachments" in str(ask("POST", "/v3/red/attachments", body, status=409))
    ask("DELETE", f"/v3/red/attachments/{made[0]}")
    ask("POST", "/v3/red/attachments", body)


def test_as_nova_attaches(ask, volume):
    body = {"attachment": {"volume_uuid": volume, "instance_uuid": ONE}}
    made = ask("POST", "/v3/red/attachments", body)["attachment"]
    assert (made["status"], made["instance"], made["connection_info"]) == ("reserved", ONE, {})
    url = f"/v3/red/attachments/{made['id']}"
    connected = ask("PUT", url, {"attachment": {"connector": {"host": "kvm1"}}})["attachment"]
    assert (connected["connection_info"]["volume_id"], connected["connection_info"]["host"]) == (volume, None)
    for who in (ADMIN, NOVA):
        told = ask.as_(who)("GET", url.replace("/red", ""))["attachment"]
        assert told["connection_info"]["host"] == "kvm1", who
    assert _status(ask, volume) == "attaching"
    ask("POST", url + "/action", {"os-complete": {}}, status=204)
    assert _status(ask, volume) == "in-use"
    assert len(ask("GET", f"/v3/red/attachments?instance_id={ONE}")["attachments"]) == 1
    ask.as_(BOB)("DELETE", url.replace("red", "blue"), status=404)
    assert ask("DELETE", url) == {"attachments": []}
    assert _status(ask, volume) == "available"


def test_a_service_asks_for_a_user(ask, service, volume):
    """Its own token beside the user's says so; a token that is none of a service says nothing."""
    id = service.reserve(ALICE, volume, ONE)["id"]
    service.attachments.used = lambda server, attachment: (server, attachment) == (ONE, id)
    application, latest = VolumeApplication(service, by_token(WHO.get)), {"openstack-api-version": "volume 3.70"}
    for beside in ("bob", "admin", "unknown", ""):
        asker = Asker(application, headers={"x-service-token": beside, **latest})
        assert asker.ask("DELETE", f"/v3/red/attachments/{id}")[0] == 409, beside
    Asker(application, headers={"x-service-token": "nova", **latest})("DELETE", f"/v3/red/attachments/{id}")
    assert _status(ask, volume) == "available"


@pytest.mark.parametrize("who", [ALICE, ADMIN])
def test_what_a_server_has_is_freed_by_services_only(ask, service, volume, who):
    id = service.reserve(ALICE, volume, ONE)["id"]
    service.attachments.used = lambda server, attachment: (server, attachment) == (ONE, id)
    act, asker = f"/v3/volumes/{volume}/action", ask.as_(who)
    asker("POST", act, {"os-unreserve": {}}, status=409)
    service.attached(id, "kvm1", "/dev/vdb")
    for method, path, body in (
            ("DELETE", f"/v3/attachments/{id}", None), ("POST", act, {"os-detach": {}}),
            ("POST", act, {"os-detach": {"attachment_id": id}})):
        refused = asker(method, path, body, status=409)["conflictingRequest"]["message"]
        assert refused == f"Detach volume from instance {ONE} using the Compute API"
    ask.as_(BOB)("POST", act, {"os-detach": {}}, status=404)
    assert _status(ask, volume) == "in-use"
    ask.as_(NOVA)("POST", act, {"os-detach": {"attachment_id": id}})
    assert _status(ask, volume) == "available"


def test_attachments_are_there_from_3_27_on(ask, volume):
    old = Asker(ask.application, headers={"openstack-api-version": "volume 3.26"})
    old("GET", "/v3/red/attachments", status=404)
    body = {"attachment": {"volume_uuid": volume, "instance_uuid": ONE}}
    made = ask("POST", "/v3/red/attachments", body)["attachment"]
    older = Asker(ask.application, headers={"openstack-api-version": "volume 3.43"})
    older("POST", f"/v3/red/attachments/{made['id']}/action", {"os-complete": {}}, status=404)


def test_multiattach_is_for_several(ask, service):
    many = service.create(ALICE, 1, multiattach=True)["id"]
    work(service)
    kept = [service.reserve(ALICE, many, server)["id"] for server in (ONE, TWO)]
    for id in kept:
        service.attached(id, "kvm1", "/dev/vdb")
    service.detached(kept[0])
    assert _status(ask, many) == "in-use"
    service.detached(kept[1])
    assert _status(ask, many) == "available"


@pytest.mark.parametrize("how", ["detached", "attached", "connected"])
def test_several_at_once_leave_the_status_that_follows(ask, service, how):
    """Each sees what the others did."""
    many = service.create(ALICE, 1, multiattach=True)["id"]
    work(service)
    with ThreadPoolExecutor(3) as threads:
        for _round in range(12):
            kept = [service.reserve(ALICE, many, str(uuid.uuid4()))["id"] for _one in range(3)]
            if how == "detached":
                for id in kept:
                    service.attached(id, "kvm1", "/dev/vdb")
            ready = Barrier(3)

            def act(id: str, last: str, ready: Barrier = ready) -> None:
                ready.wait(120)
                if how == "attached" and id == last:
                    service.attached(id, "kvm1", "/dev/vdb")
                elif how == "connected" and id == last:
                    ask("PUT", f"/v3/red/attachments/{id}", {"attachment": {"connector": {"host": "kvm1"}}})
                else:
                    service.detached(id)

            list(threads.map(act, kept, kept[-1:] * 3))
            assert _status(ask, many) == {"detached": "available", "attached": "in-use", "connected": "attaching"}[how]
            service.detached(kept[-1])
            assert _status(ask, many) == "available"


def test_a_server_that_lets_go_of_a_volume_while_it_grows(ask, service, volume, monkeypatch):
    held = service.reserve(ALICE, volume, ONE)["id"]
    service.attached(held, "kvm1", "/dev/vdb")
    ask("POST", f"/v3/red/volumes/{volume}/action", {"os-extend": {"new_size": 2}}, status=202)
    ensure = service.worker.ensure

    def meanwhile(*args):
        service.detached(held)
        return ensure(*args)

    monkeypatch.setattr(service.worker, "ensure", meanwhile)
    work(service)
    found = ask("GET", f"/v3/red/volumes/{volume}")["volume"]
    assert (found["status"], found["size"], found["attachments"]) == ("available", 2, [])


def test_a_volume_in_use_grows_from_3_42_on(ask, service, volume):
    service.attached(service.reserve(ALICE, volume, ONE)["id"], "kvm1", "/dev/vdb")
    url, body = f"/v3/red/volumes/{volume}/action", {"os-extend": {"new_size": 2}}
    Asker(ask.application, headers={"openstack-api-version": "volume 3.41"})("POST", url, body, status=400)
    ask("POST", url, body, status=202)
    work(service)
    assert _status(ask, volume) == "in-use"


def test_the_old_actions(ask, volume):
    url = f"/v3/red/volumes/{volume}/action"
    ask("POST", url, {"os-reserve": {}}, status=202)
    assert _status(ask, volume) == "reserved"
    ask("POST", url, {"os-unreserve": {}}, status=202)
    ask("POST", url, {"os-attach": {"instance_uuid": ONE, "mountpoint": "/dev/vdb"}}, status=202)
    assert _status(ask, volume) == "in-use"
    ask("POST", url, {"os-begin_detaching": {}}, status=202)
    assert _status(ask, volume) == "detaching"
    ask("POST", url, {"os-roll_detaching": {}}, status=202)
    ask("POST", url, {"os-detach": {}}, status=202)
    assert _status(ask, volume) == "available"


def test_other_actions(ask, volume):
    url = f"/v3/red/volumes/{volume}/action"
    ask("POST", url, {"os-set_bootable": {"bootable": True}})
    assert ask("GET", f"/v3/red/volumes/{volume}")["volume"]["bootable"] == "true"
    ask("POST", url, {"os-reset_status": {"status": "error"}}, status=403)
    ask.as_(ADMIN)("POST", f"/v3/volumes/{volume}/action", {"os-reset_status": {"status": "error"}}, status=202)
    assert _status(ask, volume) == "error"
    for body in ({"os-retype": {}}, {"os-nothing": {}}, {}, {"os-extend": {}}, {"os-extend": {"size": 1}}):
        ask("POST", url, body, status=400)


@pytest.mark.parametrize(("header", "status"), [
    ("volume 3.0", 200), ("volume 3.71", 200), ("compute 2.1", 200), ("volume 3.72", 406), ("volume 2.0", 406),
    ("volume three", 400), ("compute 2.1, volume 3.8", 200)])
def test_microversions(ask, header, status):
    asker = Asker(ask.application, headers={"openstack-api-version": header})
    assert asker.ask("GET", "/v3/red/volumes")[0] == status


def test_what_is_shown_follows_the_microversion(ask, volume):
    def keys(version: str) -> set[str]:
        asker = Asker(ask.application, headers={"openstack-api-version": f"volume {version}"})
        return set(asker("GET", f"/v3/red/volumes/{volume}")["volume"])

    assert keys("3.71") - keys("3.0") == {"group_id", "service_uuid", "shared_targets", "volume_type_id",
                                          "consumes_quota"}
    assert "volume_type_id" not in keys("3.62")
    (version,) = ask("GET", "/", status=300)["versions"]
    assert (version["min_version"], version["version"]) == ("3.0", "3.71")


def test_the_real_client(service, volume):
    service.worker.start(1)
    with (
        served(volume=VolumeApplication(service, authenticate)) as url,
        connected(url, "alice", block_storage_endpoint_override=f"{url}/volume/v3") as cloud,
    ):
        storage = cloud.block_storage
        made = storage.wait_for_status(storage.create_volume(name="new", size=1), "available", interval=0.05)
        storage.extend_volume(made, 2)
        assert storage.wait_for_status(storage.get_volume(made), "available", interval=0.05).size == 2
        taken = storage.create_snapshot(volume_id=made.id, name="s1")
        storage.wait_for_status(taken, "available", interval=0.05)
        assert [one.id for one in storage.snapshots()] == [taken.id]
        copy = storage.create_volume(name="copy", snapshot_id=taken.id, size=2)
        storage.wait_for_status(copy, "available", interval=0.05)
        assert storage.find_volume("copy").id == copy.id
        assert {one.name for one in storage.volumes()} == {"data", "new", "copy"}
        assert [one.name for one in storage.types()] == ["default", "fast"]
        assert storage.get_limits().absolute.total_volumes_used == 3
        storage.delete_snapshot(taken)
        storage.wait_for_delete(taken, interval=0.05)
        storage.delete_volume(made)
        storage.wait_for_delete(made, interval=0.05)
    service.worker.stop()
