# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfers of volumes from project red (Alice) to project blue (Bob)."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import pytest
from sqlalchemy import select, update

from magnetar_control.api.v1.volume import VOLUMES
from magnetar_control.services.volume import tables
from magnetar_core.errors import MagnetarError
from tests.support.control.serving import ADMIN, ALICE, BOB, READER

from .conftest import IMAGE, work

PATHS = ("volume-transfers", "os-volume-transfer")
ABSENT = str(uuid.uuid4())


def made(ask, service, **fields):
    """Return the id of a new available volume."""
    id = ask("POST", "/v3/volumes", {"volume": {"size": 1, "name": "data", **fields}}, status=202)["volume"]["id"]
    work(service)
    return id


def snapped(ask, service, volume):
    body = {"snapshot": {"volume_id": volume, "name": "s"}}
    id = ask("POST", "/v3/snapshots", body, status=202)["snapshot"]["id"]
    work(service)
    return id


def offered(ask, volume, path="volume-transfers", status=202, **fields):
    return ask("POST", f"/v3/{path}", {"transfer": {"volume_id": volume, **fields}}, status=status)


def accepted(ask, transfer, status=202, path="volume-transfers", **fields):
    body = {"accept": {"auth_key": transfer["auth_key"], **fields}}
    return ask("POST", f"/v3/{path}/{transfer['id']}/accept", body, status=status)


def seen(ask, volume):
    return ask("GET", f"/v3/volumes/{volume}")["volume"]


def at(ask, minor):
    asker = ask.as_(ask.context)
    asker.headers["openstack-api-version"] = f"volume 3.{minor}"
    return asker


@pytest.mark.parametrize("path", PATHS)
def test_a_volume_moves_to_the_project_that_has_the_key(ask, service, cloud, path):
    volume, bob = made(ask, service), ask.as_(BOB)
    snapshot = snapped(ask, service, volume)
    transfer = offered(ask, volume, path, name=" gift ")["transfer"]
    assert (transfer["name"], transfer["volume_id"], len(transfer["auth_key"])) == ("gift", volume, 32)
    assert seen(ask, volume)["status"] == "awaiting-transfer"
    bob("GET", f"/v3/{path}/{transfer['id']}", status=404)
    assert bob("GET", f"/v3/{path}")["transfers"] == []
    answer = accepted(bob, transfer, path=path)["transfer"]
    assert answer == {"id": transfer["id"], "name": "gift", "volume_id": volume, "links": transfer["links"]}
    ask("GET", f"/v3/volumes/{volume}", status=404)
    ask("GET", f"/v3/snapshots/{snapshot}", status=404)
    moved = seen(bob, volume)
    assert (moved["status"], moved["user_id"], moved["os-vol-tenant-attr:tenant_id"]) == ("available", "bob", "blue")
    assert bob("GET", f"/v3/snapshots/{snapshot}")["snapshot"]["user_id"] == "bob"
    ask("GET", f"/v3/{path}/{transfer['id']}", status=404)
    accepted(bob, transfer, status=404)
    bob("DELETE", f"/v3/volumes/{volume}?cascade=true", status=202)
    work(service)
    assert cloud.on_host() == cloud.on_host("volume_snapshot") == {}


def test_the_key_is_in_the_answer_to_create_only(ask, service):
    transfer = offered(ask, made(ask, service))["transfer"]
    for path in ("volume-transfers/detail", "volume-transfers", f"volume-transfers/{transfer['id']}"):
        assert "key" not in str(ask("GET", f"/v3/{path}"))
    with service.database.read() as connection:
        (row,) = connection.execute(select(tables.transfers)).all()
    assert transfer["auth_key"] not in str(row) and len(row.key_hash) == 64


def test_a_withdrawn_offer_leaves_the_volume_available(ask, service):
    volume = made(ask, service)
    transfer = offered(ask, volume)["transfer"]
    ask.as_(BOB)("DELETE", f"/v3/volume-transfers/{transfer['id']}", status=404)
    ask.as_(READER)("DELETE", f"/v3/volume-transfers/{transfer['id']}", status=403)
    ask("DELETE", f"/v3/volume-transfers/{transfer['id']}", status=202)
    assert seen(ask, volume)["status"] == "available"
    accepted(ask.as_(BOB), transfer, status=404)
    ask("DELETE", f"/v3/volume-transfers/{transfer['id']}", status=404)


def test_snapshots_can_stay(ask, service):
    """They can be copied, and hold the volume until they are deleted."""
    volume, bob = made(ask, service, imageRef=IMAGE), ask.as_(BOB)
    snapshot = snapped(ask, service, volume)
    accepted(bob, offered(ask, volume, no_snapshots=True)["transfer"])
    assert ask("GET", f"/v3/snapshots/{snapshot}")["snapshot"]["volume_id"] == volume
    bob("POST", f"/v3/volumes/{volume}/action", {"os-set_image_metadata": {"metadata": {"secret": "of Bob"}}}, 200)
    copy = made(ask, service, snapshot_id=snapshot)
    image_metadata = seen(ask, copy)["volume_image_metadata"]
    assert image_metadata["image_id"] == IMAGE and "secret" not in image_metadata
    refusal = bob("DELETE", f"/v3/volumes/{volume}?cascade=true", status=400)
    assert "project that transferred it" in str(refusal)
    ask.as_(ADMIN)("DELETE", f"/v3/volumes/{volume}?cascade=true", status=202)
    work(service)
    bob("GET", f"/v3/volumes/{volume}", status=404)


def test_a_second_transfer_leaves_snapshots_of_the_first_project(ask, service):
    volume, bob = made(ask, service), ask.as_(BOB)
    kept = snapped(ask, service, volume)
    accepted(bob, offered(ask, volume, no_snapshots=True)["transfer"])
    own = snapped(bob, service, volume)
    accepted(ask.as_(ADMIN), offered(bob, volume)["transfer"])
    ask("GET", f"/v3/snapshots/{kept}", status=200)
    bob("GET", f"/v3/snapshots/{own}", status=404)


@pytest.mark.parametrize("key", ["0" * 32, 123, "é"])
def test_a_wrong_key_changes_nothing(ask, service, key):
    volume = made(ask, service)
    transfer = offered(ask, volume)["transfer"]
    assert "Invalid auth key" in str(accepted(ask.as_(BOB), {**transfer, "auth_key": key}, status=400))
    assert seen(ask, volume)["status"] == "awaiting-transfer"
    accepted(ask.as_(BOB), transfer)


@pytest.mark.parametrize("body, word", [
    ({}, "transfer"), ({"transfer": []}, "transfer"), ({"transfer": {}}, "volume_id"),
    ({"transfer": {"volume_id": "x"}}, "volume_id"), ({"transfer": {"volume_id": ABSENT, "colour": 1}}, "colour"),
    ({"transfer": {"volume_id": ABSENT, "name": "n" * 256}}, "name"),
    ({"transfer": {"volume_id": ABSENT, "no_snapshots": "perhaps"}}, "no_snapshots")])
def test_bodies_of_create_are_checked(ask, body, word):
    assert word in str(ask("POST", "/v3/volume-transfers", body, status=400))


@pytest.mark.parametrize("body, word", [
    ({}, "accept"), ({"accept": {}}, "auth_key"), ({"accept": {"auth_key": None}}, "auth_key"),
    ({"accept": {"auth_key": True}}, "auth_key"), ({"accept": {"auth_key": "a", "volume_id": ABSENT}}, "volume_id")])
def test_bodies_of_accept_are_checked(ask, body, word):
    assert word in str(ask("POST", f"/v3/volume-transfers/{ABSENT}/accept", body, status=400))


def test_leaving_snapshots_behind_came_with_3_55(ask, service):
    volume = made(ask, service)
    for asker, path in ((at(ask, 54), PATHS[0]), (ask, PATHS[1])):
        assert "no_snapshots" in str(offered(asker, volume, path, 400, no_snapshots=True))
    transfer = offered(at(ask, 54), volume)["transfer"]
    assert not {"no_snapshots", "accepted"} & transfer.keys()
    assert at(ask, 55)("GET", f"/v3/volume-transfers/{transfer['id']}")["transfer"]["no_snapshots"] is False
    shown = at(ask, 57)("GET", f"/v3/volume-transfers/{transfer['id']}")["transfer"]
    assert (shown["accepted"], shown["source_project_id"], shown["destination_project_id"]) == (False, "red", None)


def test_what_is_not_available_is_not_offered(ask, service):
    offered(ask, ABSENT, status=404)
    offered(ask.as_(BOB), made(ask, service), status=404)
    volume = made(ask, service)
    offered(ask.as_(READER), volume, status=403)
    body = {"attachment": {"volume_uuid": volume, "instance_uuid": ABSENT}}
    attachment = ask("POST", "/v3/attachments", body)["attachment"]["id"]
    assert "reserved" in str(offered(ask, volume, status=400))
    ask.as_(ADMIN)("POST", f"/v3/volumes/{volume}/action", {"os-reset_status": {"status": "available"}}, status=202)
    offered(ask, volume, status=400)
    ask("DELETE", f"/v3/attachments/{attachment}", status=200)
    ask("POST", "/v3/snapshots", {"snapshot": {"volume_id": volume}}, status=202)
    assert "Snapshot" in str(offered(ask, volume, status=400))
    offered(ask, volume, no_snapshots=True)
    assert "awaiting-transfer" in str(offered(ask, volume, status=400))


def test_an_offered_volume_stays_as_it_is(ask, service):
    volume = made(ask, service)
    offered(ask, volume)
    at_volume = f"/v3/volumes/{volume}"
    for method, path, body in (
            ("DELETE", at_volume, None), ("POST", f"{at_volume}/action", {"os-extend": {"new_size": 2}}),
            ("POST", "/v3/snapshots", {"snapshot": {"volume_id": volume}}),
            ("POST", "/v3/volumes", {"volume": {"size": 1, "source_volid": volume}}),
            ("POST", f"{at_volume}/action", {"os-reserve": {}}),
            ("POST", "/v3/attachments", {"attachment": {"volume_uuid": volume, "instance_uuid": ABSENT}})):
        assert "awaiting-transfer" in str(ask(method, path, body, status=400)), path
    caller = SimpleNamespace(context=ALICE)
    assert VOLUMES.as_document(caller, service.volumes.show(ALICE, volume))["status"] == "awaiting-transfer"
    ask.as_(ADMIN)("POST", f"{at_volume}/action", {"os-force_delete": {}}, status=202)
    work(service)
    assert ask("GET", "/v3/volume-transfers")["transfers"] == []


def test_an_offer_whose_volume_was_reset_is_accepted_by_nobody(ask, service):
    volume, admin = made(ask, service), ask.as_(ADMIN)
    first = offered(ask, volume)["transfer"]
    admin("POST", f"/v3/volumes/{volume}/action", {"os-reset_status": {"status": "available"}}, status=202)
    assert "awaiting-transfer" in str(accepted(ask.as_(BOB), first, status=400))
    second = offered(ask, volume)["transfer"]
    accepted(ask.as_(BOB), first, status=404)
    accepted(ask.as_(BOB), second)


def test_encrypted_volumes_go_with_their_snapshots_since_3_70(ask, service, cloud):
    body = {"volume_type": {"name": "secret"}}
    type_id = ask.as_(ADMIN)("POST", "/v3/types", body)["volume_type"]["id"]
    ask.as_(ADMIN)("POST", f"/v3/types/{type_id}/encryption", {"encryption": {"provider": "luks"}})
    volume = made(ask, service, volume_type="secret")
    for asker, path in ((at(ask, 69), PATHS[0]), (ask, PATHS[1])):
        assert "encrypted" in str(offered(asker, volume, path, 400))
    assert "snapshots" in str(offered(ask, volume, status=400, no_snapshots=True))
    bob, key = ask.as_(BOB), next((cloud.root / "keys").iterdir()).read_text()
    accepted(bob, offered(ask, volume)["transfer"])
    made(bob, service, source_volid=volume)
    assert {file.read_text() for file in (cloud.root / "keys").iterdir()} == {key}


@pytest.mark.parametrize("limits, word", [
    ({"volumes": 0}, "volumes"), ({"gigabytes": 1}, "gigabytes"), ({"snapshots": 0}, "snapshots"),
    ({"per_volume_gigabytes": 0}, "larger")])
def test_the_quota_of_the_accepting_project_counts(ask, service, limits, word):
    volume, admin, bob = made(ask, service), ask.as_(ADMIN), ask.as_(BOB)
    snapped(ask, service, volume)
    transfer = offered(ask, volume)["transfer"]
    admin("PUT", "/v3/os-quota-sets/blue", {"quota_set": limits}, 200)
    assert word in str(accepted(bob, transfer, status=413))
    assert seen(ask, volume)["status"] == "awaiting-transfer"
    admin("DELETE", "/v3/os-quota-sets/blue", status=200)
    accepted(bob, transfer)
    for project, used in (("red", (0, 0, 0)), ("blue", (1, 2, 1))):
        usage = admin("GET", f"/v3/os-quota-sets/{project}?usage=true")["quota_set"]
        assert tuple(usage[name]["in_use"] for name in ("volumes", "gigabytes", "snapshots")) == used


def test_its_own_project_may_accept_at_its_limit(ask, service):
    volume = made(ask, service)
    ask.as_(ADMIN)("PUT", "/v3/os-quota-sets/red", {"quota_set": {"volumes": 1}}, 200)
    accepted(ask, offered(ask, volume)["transfer"])
    assert seen(ask, volume)["status"] == "available"


def test_a_snapshot_that_is_deleted_meanwhile_holds_the_transfer(ask, service):
    volume, bob = made(ask, service), ask.as_(BOB)
    snapshot = snapped(ask, service, volume)
    transfer = offered(ask, volume)["transfer"]
    ask("DELETE", f"/v3/snapshots/{snapshot}", status=202)
    assert snapshot in str(accepted(bob, transfer, status=400))
    work(service)
    accepted(bob, transfer)


def test_lists_have_order_pages_and_filters(ask, service):
    volumes = [made(ask, service) for _ in range(3)]
    ids = [offered(ask, volume, name=name)["transfer"]["id"] for volume, name in zip(volumes, "abc", strict=True)]

    def listed(query="", ask=ask, path="volume-transfers"):
        return [one["id"] for one in ask("GET", f"/v3/{path}{query}", status=200)["transfers"]]

    assert listed() == listed("/detail") == ids[::-1]
    assert listed(ask=at(ask, 58)) == listed(path="os-volume-transfer/detail") == ids
    assert listed("?sort=name:asc&limit=2") == ids[:2]
    assert listed(f"?limit=1&marker={ids[2]}") == ids[1:2]
    assert "marker" in ask("GET", "/v3/volume-transfers?limit=1")["transfers_links"][0]["href"]
    assert listed("?name=b") == listed(f"?volume_id={volumes[1]}") == ids[1:2]
    assert listed("?all_tenants=1", ask.as_(BOB)) == []
    assert listed("?all_tenants=1", ask.as_(ADMIN)) == ids[::-1] and listed(ask=ask.as_(ADMIN)) == []
    ask("GET", "/v3/volume-transfers?colour=red", status=400)


def test_of_many_who_accept_at_once_one_gets_it(ask, service, database):
    volume = made(ask, service)
    transfer = offered(ask, volume)["transfer"]
    starting = Barrier(4)

    def take(number):
        starting.wait(60)
        try:
            service.transfers.accept(BOB if number % 2 else ADMIN, transfer["id"], transfer["auth_key"])
        except MagnetarError as error:
            return error.status
        return 202

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(take, range(4))) == [202, 404, 404, 404]


def test_a_key_of_before_moves_nothing_again(ask, service, monkeypatch):
    """Somebody who read the transfer before another accepted it does not get the next one."""
    volume = made(ask, service)
    transfer = offered(ask, volume)["transfer"]
    end = service.transfers._end

    def late(connection, row):
        connection.execute(tables.transfers.delete())
        connection.execute(update(tables.volumes).values(project_id="green"))
        end(connection, row)

    monkeypatch.setattr(service.transfers, "_end", late)
    with pytest.raises(MagnetarError, match="just accepted or deleted"):
        service.transfers.accept(BOB, transfer["id"], transfer["auth_key"])
    assert service.transfers.find(ALICE, transfer["id"])
