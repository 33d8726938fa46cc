# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes from their making to their end, on the agent of a host."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread

import pytest

from magnetar_control.api.volume.app import VolumeApplication
from magnetar_control.services.volume import EmbeddedVolumes, embedded, worker
from magnetar_core.errors import Conflict, MagnetarError, Unreachable
from tests.support.control.counting import counted
from tests.support.control.serving import ADMIN, ALICE, BOB, READER, Asker, authenticate

from .conftest import IMAGE, Cloud, Images, work


def _volume(ask: Asker, **fields) -> dict:
    return ask("POST", "/v3/red/volumes", {"volume": {"size": 1, "name": "data", **fields}}, status=202)["volume"]


def _look(ask: Asker, volume: dict) -> dict:
    return ask("GET", f"/v3/red/volumes/{volume['id']}")["volume"]


def test_a_volume_is_made_and_goes(ask, service, cloud):
    volume = _volume(ask, description="mine", metadata={"a": "b"})
    assert (volume["status"], volume["bootable"]) == ("creating", "false")
    assert cloud.on_host() == {}
    assert work(service) == 1
    volume = _look(ask, volume)
    assert (volume["status"], volume["size"], volume["metadata"]) == ("available", 1, {"a": "b"})
    assert volume["volume_type"] == "default"
    assert cloud.on_host()[volume["id"]]["size"] == 1
    ask("DELETE", f"/v3/red/volumes/{volume['id']}", status=202)
    assert _look(ask, volume)["status"] == "deleting"
    work(service)
    ask("GET", f"/v3/red/volumes/{volume['id']}", status=404)
    assert cloud.on_host() == {}


def test_from_an_image_it_is_bootable_and_knows_it(ask, service, cloud):
    volume = _volume(ask, imageRef=IMAGE)
    work(service)
    volume = _look(ask, volume)
    assert (volume["status"], volume["bootable"]) == ("available", "true")
    assert volume["volume_image_metadata"]["hw_disk_bus"] == "virtio"
    assert volume["volume_image_metadata"]["image_id"] == IMAGE
    assert cloud.on_host()[volume["id"]]["bootable"]
    ask("POST", "/v3/red/volumes", {"volume": {"size": 1, "imageRef": str(uuid.uuid4())}}, status=400)


def test_copies_and_snapshots(ask, service, cloud):
    origin = _volume(ask, imageRef=IMAGE, size=2)
    work(service)
    snapshot = ask("POST", "/v3/red/snapshots", {"snapshot": {"volume_id": origin["id"], "name": "s"}},
                   status=202)["snapshot"]
    work(service)
    assert ask("GET", f"/v3/red/snapshots/{snapshot['id']}")["snapshot"]["status"] == "available"
    copies = [_volume(ask, size=None, source_volid=origin["id"]), _volume(ask, size=3, snapshot_id=snapshot["id"])]
    work(service)
    for copy, size in zip(copies, (2, 3), strict=True):
        seen = _look(ask, copy)
        assert (seen["status"], seen["bootable"], seen["size"]) == ("available", "true", size)
    ask("POST", "/v3/red/volumes", {"volume": {"size": 1, "source_volid": origin["id"]}}, status=400)
    assert "snapshots" in ask("DELETE", f"/v3/red/volumes/{origin['id']}", status=400)["badRequest"]["message"]
    ask("DELETE", f"/v3/red/volumes/{origin['id']}?cascade=true", status=202)
    work(service)
    assert set(cloud.on_host()) == {copy["id"] for copy in copies}
    assert cloud.on_host("volume_snapshot") == {}


def test_it_grows_and_does_not_shrink(ask, service, cloud):
    volume = _volume(ask, size=2)
    work(service)
    action = f"/v3/red/volumes/{volume['id']}/action"
    ask("POST", action, {"os-extend": {"new_size": 2}}, status=400)
    ask("POST", action, {"os-extend": {"new_size": 5}}, status=202)
    assert _look(ask, volume)["status"] == "extending"
    work(service)
    assert (_look(ask, volume)["status"], _look(ask, volume)["size"]) == ("available", 5)
    assert cloud.on_host()[volume["id"]]["size"] == 5


def test_the_work_of_a_process_that_died_is_gone_on_with(ask, service, cloud):
    volume = _volume(ask)
    taken = service.worker._take(*_table(), volume["id"])  # and then the process ends
    assert taken["task"] == "create"
    assert work(service) == 0
    again = EmbeddedVolumes(service.database, cloud.hosts, cloud.agents, cloud.ensure_image, Images())
    _lease_ends(service, volume["id"])
    assert work(again) == 1
    service.worker._do(*_table(), taken)  # the first was only slow: nothing is spoiled
    assert _look(ask, volume)["status"] == "available"


def _table():
    from magnetar_control.services.volume.tables import volumes
    return (volumes,)


def _lease_ends(service, id):
    (table,) = _table()
    with service.database.write() as connection:
        connection.execute(table.update().where(table.c.id == id).values(lease_until="2000-01-01T00:00:00.000000"))


def test_a_deletion_waits_for_a_making_of_many_leases(ask, service, cloud, monkeypatch):
    monkeypatch.setattr(worker, "LEASE", 0.3)
    other = EmbeddedVolumes(service.database, cloud.hosts, cloud.agents, cloud.ensure_image, Images())

    def slow(host, id):
        cloud.ensure_image(host, id)
        service.delete(ALICE, volume["id"])
        time.sleep(0.8)
        assert not other.worker.step()

    service.worker.reach = dataclasses.replace(service.worker.reach, ensure_image=slow)
    volume = _volume(ask, imageRef=IMAGE)
    assert service.worker.step() and cloud.on_host()
    work(other)
    ask("GET", f"/v3/red/volumes/{volume['id']}", status=404)
    assert cloud.on_host() == {}


def test_a_making_that_ends_within_a_deletion(ask, service, cloud, monkeypatch):
    """Its lease had ended. The deletion had found nothing on the host when it came."""
    other = EmbeddedVolumes(service.database, cloud.hosts, cloud.agents, cloud.ensure_image, Images())
    volume = _volume(ask)
    (table,) = _table()
    making = service.worker._take(table, None)
    service.delete(ALICE, volume["id"])
    _lease_ends(service, volume["id"])
    finish = other.worker._finish

    def made_first(*args):
        monkeypatch.setattr(other.worker, "_finish", finish)
        service.worker._do(table, making)
        return finish(*args)

    monkeypatch.setattr(other.worker, "_finish", made_first)
    assert work(other) >= 2
    ask("GET", f"/v3/red/volumes/{volume['id']}", status=404)
    assert cloud.on_host() == {}


def test_a_host_that_does_not_answer_is_asked_again_and_then_it_is_an_error(ask, service, cloud, monkeypatch):
    monkeypatch.setattr("magnetar_core.http.client.RETRY_FOR", 0.0)
    cloud.up = {"kvm2"}
    volume = _volume(ask)
    assert work(service) == 6
    assert _look(ask, volume)["status"] == "error"
    (message,) = ask("GET", "/v3/red/messages")["messages"]
    assert message["resource_uuid"] == volume["id"]
    with pytest.raises(MagnetarError, match="could not be made"):
        service.wait(volume["id"], 1)
    cloud.up = {"kvm1"}
    ask.as_(ADMIN)("POST", f"/v3/volumes/{volume['id']}/action", {"os-reset_status": {"status": "error"}}, status=202)


def test_a_deletion_waits_for_its_host(ask, service, cloud, monkeypatch):
    monkeypatch.setattr("magnetar_core.http.client.RETRY_FOR", 0.0)
    monkeypatch.setattr(service.worker, "pause", 0.05)
    volume = _volume(ask)
    work(service)
    right, cloud.endpoint = cloud.endpoint, f"unix:{cloud.root}/none"
    ask("DELETE", f"/v3/red/volumes/{volume['id']}", status=202)
    assert work(service) == 1
    assert _look(ask, volume)["status"] == "deleting"
    cloud.endpoint = right
    time.sleep(0.06)
    work(service)
    assert cloud.on_host() == {}
    ask("GET", f"/v3/red/volumes/{volume['id']}", status=404)


@pytest.mark.parametrize("ends", ["made", "refused", "host-away", "killed", "a-lease-later"])
def test_what_is_deleted_while_it_is_made_does_not_stay(ask, service, cloud, ends):
    """Its deletion begins when the making has ended, or with the lease of who died at it."""
    class Died(BaseException):
        pass

    raised = {"refused": Conflict("No."), "host-away": Unreachable("The agent does not answer.")}.get(ends)

    def deleted_meanwhile(host, id):
        cloud.ensure_image(host, id)
        service.delete(ALICE, volume["id"])
        assert not other.worker.step()
        if ends == "a-lease-later":
            _lease_ends(service, volume["id"])
            assert other.worker.step()
        if raised:
            raise raised

    def made(row, noun, want):
        found = ensure(row, noun, want)
        if ends == "killed":
            raise Died
        return found

    other = EmbeddedVolumes(service.database, cloud.hosts, cloud.agents, cloud.ensure_image, Images())
    service.worker.reach = dataclasses.replace(service.worker.reach, ensure_image=deleted_meanwhile)
    ensure, service.worker.ensure = service.worker.ensure, made
    volume = _volume(ask, imageRef=IMAGE)
    with pytest.raises(Died) if ends == "killed" else contextlib.nullcontext():
        service.worker.step()
    if ends == "killed":
        assert other.worker.step() is False and volume["id"] in cloud.on_host()
        _lease_ends(service, volume["id"])
    work(other)
    ask("GET", f"/v3/red/volumes/{volume['id']}", status=404)
    assert cloud.on_host() == {}


def test_a_lease_is_renewed_while_somebody_is_at_it(ask, service, cloud, monkeypatch):
    monkeypatch.setattr("magnetar_control.services.volume.worker.LEASE", 0.06)

    def slow(host, id):
        cloud.ensure_image(host, id)
        time.sleep(0.1)
        assert work(other) == 0

    other = EmbeddedVolumes(service.database, cloud.hosts, cloud.agents, cloud.ensure_image, Images())
    service.worker.reach = dataclasses.replace(service.worker.reach, ensure_image=slow)
    volume = _volume(ask, imageRef=IMAGE)
    assert work(service) == 1
    assert _look(ask, volume)["status"] == "available"


def test_an_agent_that_refuses_leaves_an_error_with_its_words(ask, service):
    volume = _volume(ask, volume_type="fast")
    work(service)
    assert _look(ask, volume)["status"] == "error"
    assert "fast" in ask("GET", "/v3/red/messages")["messages"][0]["user_message"]
    ask("DELETE", f"/v3/red/volumes/{volume['id']}", status=202)
    work(service)
    ask("GET", f"/v3/red/volumes/{volume['id']}", status=404)


def test_the_interface_makes_once_waits_and_tells_where(service, cloud):
    id = str(uuid.uuid4())
    first = service.create(ALICE, 1, id=id, name="root", image_id=IMAGE, host="kvm1")
    assert service.create(ALICE, 1, id=id)["created_at"] == first["created_at"]
    made = service.wait(id, 20)
    assert (made["status"], made["bootable"], service.where(id)) == ("available", True, "kvm1")
    assert service.show(BOB, id) is None
    service.delete(ALICE, id)
    service.delete(ALICE, id)
    work(service)
    assert service.show(ALICE, id) is None
    service.delete(ALICE, id)


def test_threads_do_it_by_themselves(service):
    service.worker.start(2)
    try:
        volume = service.create(ALICE, 1)
        assert service.wait(volume["id"], 20)["status"] == "available"
    finally:
        service.worker.stop()


def test_another_projects_volume_is_not_there(ask, service):
    volume = _volume(ask)
    work(service)
    other = ask.as_(BOB)
    url = f"/v3/blue/volumes/{volume['id']}"
    other("GET", url, status=404)
    other("DELETE", url, status=404)
    other("PUT", url, {"volume": {"name": "x"}}, status=404)
    other("POST", url + "/action", {"os-extend": {"new_size": 9}}, status=404)
    other("POST", "/v3/blue/snapshots", {"snapshot": {"volume_id": volume["id"]}}, status=404)
    other("POST", "/v3/blue/volumes", {"volume": {"size": 1, "source_volid": volume["id"]}}, status=404)
    assert other("GET", "/v3/blue/volumes?all_tenants=1")["volumes"] == []
    other("GET", f"/v3/blue/volumes?marker={volume['id']}", status=400)
    assert other("GET", f"/v3/red/volumes/{volume['id']}", status=400)
    assert len(ask.as_(ADMIN)("GET", "/v3/operators/volumes/detail?all_tenants=1")["volumes"]) == 1
    assert ask.as_(READER)("POST", "/v3/red/volumes", {"volume": {"size": 1}}, status=403)


@pytest.mark.parametrize(("body", "word"), [
    ({"size": 0}, "size"), ({"size": "x"}, "size"), ({"size": True}, "size"), ({}, "size"),
    ({"size": 1, "siez": 1}, "siez"),
    ({"size": 1, "name": "x" * 256}, "name"), ({"size": 1, "metadata": {"a": 1}}, "metadata"),
    ({"size": 1, "snapshot_id": "7"}, "snapshot_id"), ({"size": 1, "availability_zone": "moon"}, "moon"),
    ({"size": 1, "name": "a\0"}, "name"), ({"size": 1, "backup_id": "b"}, "backup_id"), ("text", "volume"),
    ({"size": 1, "snapshot_id": IMAGE, "source_volid": IMAGE}, "one thing")])
def test_bad_input_names_the_field_and_makes_nothing(ask, body, word):
    assert word in ask("POST", "/v3/red/volumes", {"volume": body}, status=400)["badRequest"]["message"]
    assert ask("GET", "/v3/red/volumes")["volumes"] == []


def test_quota(ask):
    for _number in range(10):
        _volume(ask)
    error = ask("POST", "/v3/red/volumes", {"volume": {"size": 1}}, status=413)["overLimit"]
    assert "volumes" in error["message"]
    absolute = ask("GET", "/v3/red/limits")["limits"]["absolute"]
    assert (absolute["totalVolumesUsed"], absolute["maxTotalVolumes"]) == (10, 10)
    ask("PUT", "/v3/red/os-quota-sets/red", {"quota_set": {"volumes": 11}}, status=403)
    admin = ask.as_(ADMIN)
    admin("PUT", "/v3/os-quota-sets/red", {"quota_set": {"volumes": -2}}, status=400)
    assert admin("PUT", "/v3/os-quota-sets/red", {"quota_set": {"volumes": 11}})["quota_set"]["volumes"] == 11
    _volume(ask)
    ask("POST", "/v3/red/volumes", {"volume": {"size": 1}}, status=413)
    admin("DELETE", "/v3/os-quota-sets/red")
    for length, status in ((255, 200), (256, 400)):
        admin("PUT", f"/v3/os-quota-sets/{'x' * length}", {"quota_set": {"volumes": 11}}, status=status)
        admin("GET", f"/v3/os-quota-sets/{'x' * length}", status=status)
    assert ask("GET", "/v3/red/os-quota-sets/red?usage=True")["quota_set"]["volumes"] == {
        "limit": 10, "in_use": 11, "reserved": 0}


def test_limits_of_the_settings_and_of_one_volume(database, cloud):
    limits = {"volumes": 2, "per_volume_gigabytes": 5}
    service = EmbeddedVolumes(database, cloud.hosts, cloud.agents, cloud.ensure_image, limits=limits)
    ask = Asker(VolumeApplication(service, authenticate), headers={"openstack-api-version": "volume latest"})
    shown = ask("GET", "/v3/red/os-quota-sets/red/defaults")["quota_set"]
    assert (shown["volumes"], shown["per_volume_gigabytes"], shown["snapshots"]) == (2, 5, 10)
    words = ask("POST", "/v3/red/volumes", {"volume": {"size": 6}}, status=413)["overLimit"]["message"]
    assert words == "Requested volume size 6G is larger than maximum allowed limit 5G."
    volume = _volume(ask, size=5)
    work(service)
    url = f"/v3/red/volumes/{volume['id']}/action"
    assert "than maximum" in ask("POST", url, {"os-extend": {"new_size": 6}}, status=413)["overLimit"]["message"]
    ask.as_(ADMIN)("PUT", "/v3/os-quota-sets/red", {"quota_set": {"per_volume_gigabytes": 6}})
    ask("POST", url, {"os-extend": {"new_size": 6}}, status=202)
    _volume(ask)
    ask("POST", "/v3/red/volumes", {"volume": {"size": 1}}, status=413)


def test_a_snapshot_of_a_volume_that_goes_at_the_same_moment(postgres, cloud, monkeypatch):
    """One of the two is refused. On PostgreSQL, as with SQLite one waits for the other."""
    service = EmbeddedVolumes(postgres, cloud.hosts, cloud.agents, cloud.ensure_image)
    volume = service.create(ALICE, 1, host="kvm1")["id"]
    work(service)
    refused, begin = [], embedded.begin_snapshot

    def delete():
        try:
            service.volumes.delete(ALICE, volume)
        except MagnetarError as error:
            refused.append(error.message)

    def meanwhile(*words, **more):
        other = Thread(target=delete)
        other.start()
        other.join(1.0)  # where it waits for us, it does
        begin(*words, **more)
        return other

    others = []
    monkeypatch.setattr(embedded, "begin_snapshot", lambda *words, **more: others.append(meanwhile(*words, **more)))
    service.create_snapshot(ALICE, volume, name="now")
    others[0].join()
    assert len(refused) == 1 and "must not be attached or have snapshots" in refused[0]
    assert service.volumes.show(ALICE, volume)["status"] == "available"


def test_a_list_asks_the_database_as_often_for_many_as_for_one(ask, service):
    counts = []
    for _number in range(2):
        for _volume_number in range(3):
            _volume(ask)
        for path in ("volumes", "volumes/detail", "snapshots/detail", "attachments/detail"):
            with counted(volumes=service.database) as asked:
                ask("GET", f"/v3/red/{path}")
            counts.append(len(asked))
    assert counts[:4] == counts[4:]
    assert max(counts) <= 3


def test_the_answer_to_a_creation_has_what_cinder_gives(ask):
    """Clients that check answers strictly refuse what only show and lists of details have."""
    later = {"os-vol-tenant-attr:tenant_id", "volume_image_metadata", "os-vol-host-attr:host",
             "os-vol-mig-status-attr:migstat", "os-vol-mig-status-attr:name_id"}
    for who in (ask, ask.as_(ADMIN)):
        made = who("POST", "/v3/volumes", {"volume": {"size": 3, "imageRef": IMAGE}}, status=202)["volume"]
        shown = who("GET", f"/v3/volumes/{made['id']}")["volume"]
        assert set(shown) - set(made) == (later if who is not ask else {
            "os-vol-tenant-attr:tenant_id", "volume_image_metadata"})


def test_what_dashboards_ask(ask):
    admin = ask.as_(ADMIN)
    one, *_others = ask("GET", "/v3/types")["volume_types"]
    assert admin("GET", f"/v3/types/{one['id']}/encryption") == {}
    admin("GET", "/v3/types/none/encryption", status=404)
    ask("GET", f"/v3/types/{one['id']}/encryption", status=403)
    for name in ("consistencygroups", "cgsnapshots"):
        assert ask("GET", f"/v3/{name}") == ask("GET", f"/v3/{name}/detail") == {name: []}
    up, down = admin("GET", "/v3/os-services")["services"]
    assert (up["state"], down["state"], up["status"]) == ("up", "down", "enabled")
    assert up["disabled_reason"] is None and (up["backend_state"], down["backend_state"]) == ("up", "down")


def test_pools_and_capabilities(ask):
    admin = ask.as_(ADMIN)
    first, *_others = names = [one["name"] for one in admin("GET", "/v3/scheduler-stats/get_pools")["pools"]]
    assert first == "kvm1@magnetar#default" and names[-1].startswith("kvm2@magnetar#")
    (pool,) = admin("GET", f"/v3/scheduler-stats/get_pools?detail=True&name={first.replace('#', '%23')}")["pools"]
    assert pool["name"] == first and pool["capabilities"].items() >= {
        "backend_state": "up", "total_capacity_gb": 80, "free_capacity_gb": 50, "pool_name": "default"}.items()
    admin("GET", "/v3/scheduler-stats/get_pools?detail=perhaps", status=400)
    told = admin("GET", "/v3/capabilities/kvm1@magnetar")
    assert told["namespace"] == "OS::Storage::Capabilities::kvm1@magnetar" and told["properties"] == {}
    admin("GET", "/v3/capabilities/kvm9@magnetar", status=404)
    ask("GET", "/v3/scheduler-stats/get_pools", status=403)


def test_lists_are_filtered_sorted_and_in_pages(ask):
    for number in range(5):
        _volume(ask, name=f"v{number}")
    path, names = "/v3/red/volumes?limit=2&sort=name:asc&with_count=true&no_migration_targets=True", []
    while path:
        page = ask("GET", path)
        assert page["count"] == 5
        names += [one["name"] for one in page["volumes"]]
        path = page.get("volumes_links", [{"href": ""}])[0]["href"].removeprefix("http://cloud")
    assert names == ["v0", "v1", "v2", "v3", "v4"]
    assert [one["name"] for one in ask("GET", "/v3/red/volumes/detail?name=v3")["volumes"]] == ["v3"]
    assert ask("GET", "/v3/red/volumes?status=error")["volumes"] == []
    for sort in ("name,name:asc", ",".join(["size"] * 200)):
        assert "each of them once" in ask("GET", f"/v3/red/volumes?sort={sort}", status=400)["badRequest"]["message"]


def test_metadata(ask):
    url = f"/v3/red/volumes/{_volume(ask)['id']}/metadata"
    assert ask("POST", url, {"metadata": {"a": "1", "b": "2"}}) == {"metadata": {"a": "1", "b": "2"}}
    assert ask("PUT", url + "/a", {"meta": {"a": "3"}}) == {"meta": {"a": "3"}}
    ask("DELETE", url + "/b")
    assert ask("GET", url) == {"metadata": {"a": "3"}}
    ask("GET", url + "/b", status=404)
    assert ask("PUT", url, {"metadata": {}}) == {"metadata": {}}


def test_metadata_has_an_end(ask, service):
    """However it comes: a row would grow until no list with it could be made."""
    volume = _volume(ask)["id"]
    work(service)
    url, body = f"/v3/red/volumes/{volume}", {"metadata": {f"k{at}": "v" for at in range(256)}}
    assert ask("POST", f"{url}/metadata", body) == body
    assert "256 keys at most" in str(ask("POST", f"{url}/metadata", {"metadata": {"more": "v"}}, status=400))
    ask("PUT", f"{url}/metadata/more", {"meta": {"more": "v"}}, status=400)
    body["metadata"]["more"] = "v"
    ask("PUT", url, {"volume": body}, status=400)
    del body["metadata"]["k0"]
    assert ask("POST", f"{url}/action", {"os-set_image_metadata": {"metadata": body["metadata"]}})
    ask("POST", f"{url}/action", {"os-set_image_metadata": {"metadata": {"k0": "v"}}}, status=400)


def test_multiattach_is_raw_on_the_host(ask, service, cloud: Cloud):
    volume = _volume(ask, multiattach=True)
    work(service)
    assert cloud.on_host()[volume["id"]]["format"] == "raw"


@pytest.mark.parametrize("what", ["volumes", "gigabytes", "snapshots"])
def test_many_at_once_do_not_exceed_a_quota(ask, service, what):
    first = service.create(ALICE, 1)["id"]
    work(service)
    quota, ready = {"volumes": 4, "gigabytes": -1, "snapshots": -1, what: 4}, Barrier(8)
    ask.as_(ADMIN)("PUT", "/v3/os-quota-sets/red", {"quota_set": quota})

    def more(_number):
        ready.wait(120)
        try:
            if what == "snapshots":
                service.create_snapshot(ALICE, first)
            else:
                service.create(ALICE, 1)
        except MagnetarError as fault:
            assert fault.status == 413
            return 0
        return 1

    with ThreadPoolExecutor(8) as threads:
        made = sum(threads.map(more, range(8)))
    assert made == (4 if what == "snapshots" else 3)
