# SPDX-License-Identifier: GPL-3.0-or-later
"""Backups of volumes, over the agent of a fake host with a backup directory."""

from __future__ import annotations

import base64
import dataclasses
import json
import shutil
import uuid

import pytest
from sqlalchemy import delete, select, update

from magnetar_agent.volumes import backup_files
from magnetar_control.services.volume import tables
from magnetar_control.services.volume.pools import PoolOnHost, pool_id_of
from magnetar_core.errors import NoSpace
from tests.support.control.serving import ADMIN, BOB, READER

from .conftest import IMAGE, work

ABSENT = str(uuid.uuid4())


@pytest.fixture
def directory(cloud):
    """The backup directory of the host."""
    return cloud.root / "backups"


def volume(ask, service, size=1, **fields):
    body = {"volume": {"size": size, "name": "data", **fields}}
    id = ask("POST", "/v3/volumes", body, status=202)["volume"]["id"]
    work(service)
    return id


def begun(ask, volume_id, status=202, **fields):
    answer = ask("POST", "/v3/backups", {"backup": {"volume_id": volume_id, **fields}}, status=status)
    return answer["backup"] if status == 202 else answer


def made(ask, service, volume_id, **fields):
    id = begun(ask, volume_id, **fields)["id"]
    work(service)
    assert shown(ask, id)["status"] == "available", shown(ask, id)
    return id


def shown(ask, id, noun="backup"):
    return ask("GET", f"/v3/{noun}s/{id}")[noun]


def restored(ask, backup, status=202, **fields):
    return ask("POST", f"/v3/backups/{backup}/restore", {"restore": fields}, status=status)


def at(ask, minor):
    asker = ask.as_(ask.context)
    asker.headers["openstack-api-version"] = f"volume 3.{minor}"
    return asker


def test_a_backup_is_made_restored_and_deleted(ask, service, cloud, directory):
    id = volume(ask, service, imageRef=IMAGE)
    backup = begun(ask, id, name=" nightly ", description="d", container=None, metadata={"a": "b"}, snapshot_id=None)
    assert sorted(backup) == ["id", "links", "name"] and backup["name"] == "nightly"
    assert (shown(ask, backup["id"])["status"], shown(ask, id, "volume")["status"]) == ("creating", "backing-up")
    ask("DELETE", f"/v3/volumes/{id}", status=400)
    begun(ask, id, status=400)
    work(service)
    document = shown(ask, backup["id"])
    assert document == document | {
        "status": "available", "size": 1, "object_count": 0, "volume_id": id, "fail_reason": None, "snapshot_id": None,
        "is_incremental": False, "has_dependent_backups": False, "metadata": {"a": "b"}, "availability_zone": "nova",
        "container": None}
    assert shown(ask, id, "volume")["status"] == "available"
    catalogue = json.loads((directory / backup["id"] / "backup.json").read_text())
    assert catalogue["record"] == catalogue["record"] | {"name": "nightly", "project_id": "red", "bootable": True}
    answer = restored(ask, backup["id"])["restore"]
    assert (answer["backup_id"], answer["volume_name"]) == (backup["id"], f"restore_backup_{backup['id']}")
    assert (shown(ask, backup["id"])["status"], shown(ask, answer["volume_id"], "volume")["status"]) == (
        "restoring", "restoring-backup")
    work(service)
    new = shown(ask, answer["volume_id"], "volume")
    assert (new["status"], new["size"], new["bootable"], new["volume_image_metadata"]["image_id"]) == (
        "available", 1, "true", IMAGE)
    assert shown(ask, backup["id"])["status"] == "available"
    for volume_id in (id, new["id"]):
        ask("DELETE", f"/v3/volumes/{volume_id}", status=202)
    work(service)
    ask("DELETE", f"/v3/backups/{backup['id']}", status=202)
    work(service)
    ask("GET", f"/v3/backups/{backup['id']}", status=404)
    assert [*directory.iterdir()] == [] and cloud.on_host() == cloud.on_host("volume_backup") == {}


def test_incremental_backups_and_their_parents(ask, service, directory):
    id = volume(ask, service)
    assert "No backups available" in begun(ask, id, status=400, incremental=True)["badRequest"]["message"]
    first = made(ask, service, id)
    second = made(ask, service, id, incremental=True)
    third = made(ask, service, id, incremental=True)
    assert [shown(ask, one)["is_incremental"] for one in (first, second, third)] == [False, True, True]
    assert [shown(ask, one)["has_dependent_backups"] for one in (first, second, third)] == [True, True, False]
    assert json.loads((directory / third / "backup.json").read_text())["parent"] == second
    refused = ask("DELETE", f"/v3/backups/{first}", status=400)["badRequest"]["message"]
    assert "Incremental backups exist for this backup" in refused
    with service.database.write() as connection:
        connection.execute(update(tables.backups).where(tables.backups.c.id == third).values(status="error"))
    assert "must be available" in begun(ask, id, status=400, incremental=True)["badRequest"]["message"]
    for one in (third, second, first):
        ask("DELETE", f"/v3/backups/{one}", status=202)
        work(service)
    assert [*directory.iterdir()] == []


def test_of_a_snapshot(ask, service):
    id, other = volume(ask, service), volume(ask, service)
    made(ask, service, id)
    body = {"snapshot": {"volume_id": id, "name": "s"}}
    snapshot = ask("POST", "/v3/snapshots", body, status=202)["snapshot"]
    work(service)
    begun(ask, other, status=400, snapshot_id=snapshot["id"])
    backup = begun(ask, id, snapshot_id=snapshot["id"], incremental=True)["id"]
    assert (shown(ask, snapshot["id"], "snapshot")["status"], shown(ask, id, "volume")["status"]) == (
        "backing-up", "available")
    work(service)
    assert shown(ask, snapshot["id"], "snapshot")["status"] == "available"
    assert shown(ask, backup)["data_timestamp"] == snapshot["created_at"]


def test_a_volume_in_use_needs_force(ask, service):
    id = volume(ask, service)
    with service.database.write() as connection:
        connection.execute(update(tables.volumes).values(status="in-use"))
    assert "force flag" in begun(ask, id, status=400)["badRequest"]["message"]
    backup = begun(ask, id, force=True)["id"]
    work(service)
    assert (shown(ask, backup)["status"], shown(ask, id, "volume")["status"]) == ("available", "in-use")
    assert "must be available" in restored(ask, backup, 400, volume_id=id)["badRequest"]["message"]


def test_restored_over_a_volume(ask, service):
    id, small = volume(ask, service, 2), volume(ask, service, 1)
    backup = made(ask, service, id)
    assert "too small" in restored(ask, backup, 400, volume_id=small)["badRequest"]["message"]
    restored(ask, backup, 404, volume_id=ABSENT)
    restored(ask, backup, 400, volume_id="x")
    answer = restored(ask, backup, volume_id=id, name="ignored")["restore"]
    assert answer == {"backup_id": backup, "volume_id": id, "volume_name": "data"}
    restored(ask, backup, 400)
    ask("DELETE", f"/v3/backups/{backup}", status=400)
    work(service)
    assert (shown(ask, backup)["status"], shown(ask, id, "volume")["status"]) == ("available", "available")


def test_a_chain_without_a_link_leaves_the_volume(ask, service, directory):
    id = volume(ask, service)
    first = made(ask, service, id)
    second = made(ask, service, id, incremental=True)
    shutil.rmtree(directory / first)
    restored(ask, second, volume_id=id)
    new = restored(ask, second, 400)
    assert "must be available" in new["badRequest"]["message"]
    work(service)
    assert first in shown(ask, second)["fail_reason"] and shown(ask, second)["status"] == "available"
    assert shown(ask, id, "volume")["status"] == "available"
    new = restored(ask, second)["restore"]["volume_id"]
    work(service)
    assert shown(ask, new, "volume")["status"] == "error"
    (message,) = [one for one in ask("GET", "/v3/messages")["messages"] if one["resource_uuid"] == second]
    assert message["resource_type"] == "VOLUME_BACKUP"
    ask("DELETE", f"/v3/volumes/{new}", status=202)
    work(service)


def test_a_full_directory_and_no_directory(ask, service, cloud, directory, monkeypatch):
    id = volume(ask, service)

    def full(*_args):
        raise NoSpace("No room is left for the backup.")

    with monkeypatch.context() as broken:
        broken.setattr(backup_files, "_write_chunks", full)
        backup = begun(ask, id)["id"]
        work(service)
    document = shown(ask, backup)
    assert (document["status"], document["fail_reason"]) == ("error", "No room is left for the backup.")
    assert shown(ask, id, "volume")["status"] == "available" and [*directory.iterdir()] == []
    ask("DELETE", f"/v3/backups/{backup}", status=202)
    work(service)
    assert cloud.on_host("volume_backup") == {} and ask("GET", "/v3/backups")["backups"] == []
    cloud.agent.host.settings = dataclasses.replace(cloud.agent.host.settings, backup_directory=None)
    backup = begun(ask, id)["id"]
    work(service)
    assert "has no backup target" in shown(ask, backup)["fail_reason"]


def test_an_encrypted_volume_is_restored_with_its_key(ask, service, cloud, directory):
    admin = ask.as_(ADMIN)
    type_id = admin("POST", "/v3/types", {"volume_type": {"name": "secret"}})["volume_type"]["id"]
    admin("POST", f"/v3/types/{type_id}/encryption", {"encryption": {"provider": "luks"}})
    id = volume(ask, service, volume_type="secret")
    backup, plain = made(ask, service, id), volume(ask, service)
    assert json.loads((directory / backup / "backup.json").read_text())["key_hash"]
    stored = {path.name: path.read_text() for path in (cloud.root / "keys").iterdir()}
    assert len(stored) == 2 and len(set(stored.values())) == 1  # the backup has a copy of the volume's key
    other = volume(ask, service, volume_type="secret")
    for target in (plain, other):
        assert "another key" in str(restored(ask, backup, 400, volume_id=target))
    restored(ask, backup, volume_id=id)
    work(service)
    assert (shown(ask, id, "volume")["status"], shown(ask, backup)["fail_reason"]) == ("available", None)
    ask("DELETE", f"/v3/volumes/{id}", status=202)
    work(service)
    new = restored(ask, backup, name="again")["restore"]["volume_id"]
    work(service)
    document = shown(ask, new, "volume")
    assert (document["status"], document["encrypted"], document["volume_type"]) == ("available", True, "secret")
    assert cloud.on_host()[new]["format"] == "luks" and shown(ask, backup)["fail_reason"] is None
    ask("DELETE", f"/v3/backups/{backup}", status=202)
    ask("DELETE", f"/v3/volumes/{new}", status=202)
    work(service)
    assert len([*(cloud.root / "keys").iterdir()]) == 1  # of the other volume


def test_quotas(ask, service):
    id, admin = volume(ask, service, 2), ask.as_(ADMIN)
    made(ask, service, id)
    absolute = ask("GET", "/v3/limits")["limits"]["absolute"]
    assert [absolute[name] for name in ("maxTotalBackups", "totalBackupsUsed", "maxTotalBackupGigabytes",
                                        "totalBackupGigabytesUsed")] == [10, 1, 1000, 2]
    for limits in ({"backups": 1}, {"backups": 9, "backup_gigabytes": 3}):
        admin("PUT", "/v3/os-quota-sets/red", {"quota_set": limits})
        (name,) = [one for one in limits if limits[one] != 9]
        assert f"exceeded for {name}" in begun(ask, id, status=413)["overLimit"]["message"]
    assert shown(ask, id, "volume")["status"] == "available"
    usage = ask("GET", "/v3/os-quota-sets/red?usage=True")["quota_set"]
    assert (usage["backups"]["in_use"], usage["backup_gigabytes"]["in_use"]) == (1, 2)


def test_export_and_import_after_the_loss_of_the_database(ask, service):
    id, admin = volume(ask, service), ask.as_(ADMIN)
    first = made(ask, service, id, name="one")
    second = made(ask, service, id, name="two", incremental=True)
    ask("GET", f"/v3/backups/{first}/export_record", status=403)
    records = [admin("GET", f"/v3/backups/{one}/export_record")["backup-record"] for one in (second, first)]
    assert {record["backup_service"] for record in records} == {"magnetar"}
    assert "already exists" in admin("POST", "/v3/backups/import_record", {"backup-record": records[0]}, status=400)[
        "badRequest"]["message"]
    with service.database.write() as connection:
        connection.execute(delete(tables.backups))
    ask("POST", "/v3/backups/import_record", {"backup-record": records[0]}, status=403)
    for record in records:
        admin("POST", "/v3/backups/import_record", {"backup-record": record}, status=201)
    work(service)
    document = shown(admin, second)
    assert (document["status"], document["name"], document["is_incremental"], document["volume_id"]) == (
        "available", "two", True, id)
    assert shown(admin, first)["has_dependent_backups"] is True
    new = restored(admin, second)["restore"]["volume_id"]
    work(service)
    assert shown(admin, new, "volume")["status"] == "available"


@pytest.mark.parametrize("url", ["x", *(base64.b64encode(json.dumps(record).encode()).decode() for record in (
    [], {"id": "x"}, {"id": "x", "volume_id": ABSENT, "size": 1, "data_timestamp": "t"},
    *({"id": ABSENT, "volume_id": ABSENT, "size": 1, "data_timestamp": "t", **odd} for odd in (
        {"name": "a\0"}, {"data_timestamp": "t" * 27}, {"size": True, "volume_id": None}, {"size": 2**40},
        {"metadata": {"a": 1}}, {"parent_id": "x"}))))])
def test_a_record_that_is_none(ask, url):
    body = {"backup-record": {"backup_service": "magnetar", "backup_url": url}}
    answer = ask.as_(ADMIN)("POST", "/v3/backups/import_record", body, status=400)
    assert "no record of a backup" in answer["badRequest"]["message"]
    body["backup-record"]["backup_service"] = "cinder.backup.drivers.nfs"
    ask.as_(ADMIN)("POST", "/v3/backups/import_record", body, status=400)


def test_a_record_of_a_backup_that_no_host_has(ask, service):
    record = base64.b64encode(json.dumps({"id": ABSENT, "volume_id": ABSENT, "size": 1,
                                          "data_timestamp": "2026-11-30T00:00:00"}).encode()).decode()
    admin = ask.as_(ADMIN)
    body = {"backup-record": {"backup_service": "magnetar", "backup_url": record}}
    assert admin("POST", "/v3/backups/import_record", body, status=201)["backup"]["id"] == ABSENT
    work(service)
    document = shown(admin, ABSENT)
    assert document["status"] == "error" and "No host that is up has backup" in document["fail_reason"]
    admin("DELETE", f"/v3/backups/{ABSENT}", status=202)
    work(service)
    admin("GET", f"/v3/backups/{ABSENT}", status=404)


def test_admins_reset_and_force_delete(ask, service):
    id, admin = volume(ask, service), ask.as_(ADMIN)
    backup = begun(ask, id)["id"]
    path = f"/v3/backups/{backup}/action"
    ask("POST", path, {"os-force_delete": {}}, status=403)
    admin("POST", path, {"os-reset_status": {"status": "creating"}}, status=400)
    admin("POST", path, {"os-reset_status": {"status": "error"}}, status=202)
    assert (shown(ask, backup)["status"], shown(ask, id, "volume")["status"]) == ("error", "available")
    other = begun(ask, id)["id"]
    admin("POST", f"/v3/backups/{other}/action", {"os-force_delete": {}}, status=202)
    assert shown(ask, id, "volume")["status"] == "available"
    work(service)
    ask("GET", f"/v3/backups/{other}", status=404)


def test_versions_filters_and_other_projects(ask, service):
    id, bob, admin = volume(ask, service), ask.as_(BOB), ask.as_(ADMIN)
    backup = made(ask, service, id, name="one")
    for method, path, body in (("GET", "", None), ("DELETE", "", None), ("POST", "/restore", {"restore": {}}),
                               ("PUT", "", {"backup": {"name": "x"}})):
        bob(method, f"/v3/backups/{backup}{path}", body, status=404)
    reader = ask.as_(READER)
    for path, body in (("", {"backup": {"volume_id": id}}), (f"/{backup}/restore", {"restore": {}})):
        reader("POST", f"/v3/backups{path}", body, status=403)
    assert bob("GET", "/v3/backups")["backups"] == []
    assert [one["id"] for one in admin("GET", "/v3/backups/detail?all_tenants=1")["backups"]] == [backup]
    for query, count in ((f"volume_id={id}", 1), ("status=error", 0), ("name=one", 1), ("limit=1", 1)):
        assert len(ask("GET", f"/v3/backups/detail?{query}")["backups"]) == count
    assert ask("GET", "/v3/backups?with_count=true")["count"] == 1
    at(ask, 8)("PUT", f"/v3/backups/{backup}", {"backup": {"name": "new"}}, status=404)
    ask("PUT", f"/v3/backups/{backup}", {"backup": {}}, status=400)
    assert ask("PUT", f"/v3/backups/{backup}", {"backup": {"name": "new", "metadata": {"k": "v"}}})["backup"][
        "name"] == "new"
    for minor, has, lacks in ((0, "snapshot_id", "metadata"), (43, "metadata", "user_id"), (56, "user_id", "x")):
        document = shown(at(ask, minor), backup)
        assert has in document and lacks not in document
    assert shown(admin, backup)["os-backup-project-attr:project_id"] == "red"
    at(ask, 42)("POST", "/v3/backups", {"backup": {"volume_id": id, "metadata": {}}}, status=400)
    begun(ask, id, status=400, availability_zone="mars")
    begun(ask, id, status=400, incremental="perhaps")


def test_a_host_that_is_away_is_asked_again(ask, service):
    id, other, reach = volume(ask, service), volume(ask, service), service.worker.reach
    service.worker.reach = dataclasses.replace(reach, hosts=list)
    one = begun(ask, id)["id"]
    assert service.worker.step()
    assert shown(ask, one)["status"] == "creating"
    service.worker.reach = reach
    work(service)
    assert (shown(ask, one)["status"], shown(ask, other, "volume")["status"]) == ("available", "available")
    service.worker.reach = dataclasses.replace(reach, hosts=list)
    restored(ask, one, volume_id=id)
    two = begun(ask, other)["id"]
    work(service)
    assert (shown(ask, two)["status"], shown(ask, other, "volume")["status"]) == ("error", "available")
    assert (shown(ask, one)["status"], shown(ask, id, "volume")["status"]) == ("available", "error_restoring")


def test_which_hosts_reach_the_directory(ask, service, monkeypatch):
    id = volume(ask, service)
    pools = []
    monkeypatch.setattr(service.backups, "new", dataclasses.replace(service.backups.new, pools=lambda: pools))
    service.worker.reach = dataclasses.replace(service.worker.reach, pools=lambda: pools)
    backup = made(ask, service, id)
    with service.database.read() as connection:
        target = connection.execute(select(tables.backups.c.target_id)).scalar()

    def pool(host, name, kind="dir", id=ABSENT):
        return PoolOnHost(id, id, kind, False, 9, 5, host, name, "up", "")

    pools += [pool("kvm1", "default")]
    assert "has no backup target" in begun(ask, id, status=400)["badRequest"]["message"]
    pools += [pool("kvm1", "backup_directory", "backup")]
    restored(ask, backup, volume_id=id)
    work(service)
    assert "does not reach the target" in shown(ask, backup)["fail_reason"]
    assert shown(ask, id, "volume")["status"] == "available"
    pools[1] = pool("kvm1", "backup_directory", "backup", target)
    new = restored(ask, backup)["restore"]["volume_id"]
    work(service)
    assert shown(ask, new, "volume")["status"] == "available"
    with service.database.write() as connection:
        connection.execute(update(tables.backups).values(host="gone"))
    ask("DELETE", f"/v3/backups/{backup}", status=202)
    work(service)
    ask("GET", f"/v3/backups/{backup}", status=404)
    assert pool_id_of("x") != target


def test_a_new_volume_is_restored_where_the_backup_is(ask, service, cloud):
    """Another host has more room, and does not reach the backup directory."""
    id = volume(ask, service)
    backup = made(ask, service, id)
    cloud.up.add("kvm2")
    new = restored(ask, backup, name="again")["restore"]["volume_id"]
    work(service)
    document = ask.as_(ADMIN)("GET", f"/v3/volumes/{new}")["volume"]
    assert (document["status"], document["os-vol-host-attr:host"]) == ("available", "kvm1@magnetar#default")
