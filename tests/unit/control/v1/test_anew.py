# SPDX-License-Identifier: GPL-3.0-or-later
"""What is recreated is not lost when the new one cannot be made; and what is asked of a resource is told truly."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from magnetar_control.api.volume import nouns
from tests.support.control.cloud import Caller, Cloud, Reply
from tests.support.control.servers import WEB, ensure, verbs

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Zz5bBNJ me@example"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1) as made:
        made.admin.image()
        yield made


def removed(caller: Caller, *paths: str) -> None:
    for path in paths:
        assert caller.delete(f"/v1/{path}?wait=20").json["changed"], path


def refused_alike(caller: Caller, path: str, want: dict[str, Any], status: int, **query: Any) -> Reply:
    """It is refused, in check mode as well, and what was there is there still."""
    before = caller.get(f"/v1/{path}").json["id"]
    for dry in (True, False):
        found = ensure(caller, path, want, dry_run=dry, on_immutable="recreate", **query)
        assert found.status == status, (dry, found)
        assert caller.get(f"/v1/{path}").json["id"] == before, (dry, found)
    return found


def test_a_volume_that_cannot_be_made_anew_stays(cloud: Cloud) -> None:
    admin = cloud.admin
    ensure(admin, "volume/blank", {"size": 1})
    unknown = str(uuid.uuid4())
    for field in ("image", "source_volume", "snapshot"):
        refused = refused_alike(admin, "volume/blank", {field: unknown}, 400)
        assert refused.json["error"]["details"]["field"] == field, refused
    id = admin.get("/v1/volume/blank").json["id"]
    refused_alike(admin, "volume/blank", {"source_volume": id}, 400)
    refused_alike(admin, "volume/blank", {"pool": "none"}, 400)
    quota = f"/volume/v3/{admin.project_id}/os-quota-sets/{admin.project_id}"
    assert admin.put(quota, {"quota_set": {"gigabytes": 1}}).status == 200
    refused_alike(admin, "volume/blank", {"size": 2, "multiattach": True}, 409)
    assert admin.delete(quota).status == 200
    ensure(admin, "volume_snapshot/taken", {"volume": "blank"})
    assert "snapshots" in refused_alike(admin, "volume/blank", {"multiattach": True}, 409).json["error"]["message"]
    removed(admin, "volume_snapshot/taken")
    anew = ensure(admin, "volume/blank", {"multiattach": True}, on_immutable="recreate")
    assert anew.json["resource"]["multiattach"] and anew.json["resource"]["id"] != id, anew
    removed(admin, "volume/blank")


def test_a_copy_of_a_volume_of_an_image_is_made_anew(cloud: Cloud) -> None:
    admin = cloud.admin
    ensure(admin, "volume/base", {"size": 1, "image": "cirros"})
    snapshot = ensure(admin, "volume_snapshot/snap", {"volume": "base"}).json["resource"]["id"]
    made = ensure(admin, "volume/copy", {"snapshot": "snap"}).json["resource"]
    assert (made["image"], made["snapshot"], made["bootable"]) == (None, snapshot, True)
    anew = ensure(admin, "volume/copy", {"multiattach": True}, on_immutable="recreate")
    assert anew.status == 200 and anew.json["resource"]["snapshot"] == snapshot, anew
    other = ensure(admin, "volume/copy", {"source_volume": "base"}, on_immutable="recreate")
    assert other.status == 200 and other.json["resource"]["snapshot"] is None and verbs(other), other
    removed(admin, "volume/copy", "volume_snapshot/snap", "volume/base")


def test_a_dry_run_refuses_a_volume_that_could_not_be_made(cloud: Cloud) -> None:
    for want in ({"size": 1, "image": str(uuid.uuid4())}, {}, {"size": 1, "pool": "none"}):
        for dry in (True, False):
            assert ensure(cloud.admin, "volume/never", want, dry_run=dry).status in (400, 404), (want, dry)
    assert ensure(cloud.admin, "volume_snapshot/never", {"volume": str(uuid.uuid4())}, dry_run=True).status == 400
    assert ensure(cloud.admin, "volume/later", {"image": "made by an earlier task"}, dry_run=True).status == 200


def test_a_network_beyond_the_quota_is_refused_in_check_mode_too(cloud: Cloud) -> None:
    admin, quota = cloud.admin, f"/network/v2.0/quotas/{cloud.admin.project_id}"
    wants = [{"cidr": f"10.77.{number}.0/24"} for number in range(3)]
    assert ensure(admin, "network/first", wants[0]).status == 200
    assert admin.put(quota, {"quota": {"network": 1}}).status == 200
    for dry in (True, False):
        refused = ensure(admin, "network/second", wants[1], dry_run=dry)
        assert refused.status == 409 and "quota" in refused.json["error"]["message"], refused
    anew = ensure(admin, "network/first", wants[2], on_immutable="recreate")
    assert anew.json["resource"]["cidr"] == wants[2]["cidr"], anew
    admin.put(quota, {"quota": {"network": 0}})
    refused_alike(admin, "network/first", wants[0], 409)
    assert admin.delete(quota).status == 204
    removed(admin, "network/first")


def test_a_network_that_cannot_be_made_anew_stays(cloud: Cloud) -> None:
    admin, member = cloud.admin, cloud.caller("ann", "shop")
    taken = admin.get("/v1/network/default").json["cidr"]
    assert ensure(member, "network/lan", {"cidr": "10.81.0.0/24"}).json["changed"]
    assert ensure(admin, "network/hidden", {"cidr": "10.82.0.0/24"}).json["changed"]
    refused_alike(member, "network/lan", {"cidr": taken}, 400)
    refused_alike(member, "network/lan", {"cidr": "8.8.8.0/24"}, 400)
    refused_alike(member, "network/lan", {"mtu": 100}, 400)
    refused_alike(member, "network/lan", {"mode": "isolated"}, 403)
    hidden = ensure(member, "network/lan", {"cidr": "10.82.0.0/25"}, on_immutable="recreate")
    assert hidden.status == 409 and "there again" in hidden.json["error"]["message"], hidden
    assert member.get("/v1/network/lan").json["cidr"] == "10.81.0.0/24"
    anew = ensure(member, "network/lan", {"cidr": "10.81.0.0/25"}, on_immutable="recreate")
    assert anew.json["resource"]["cidr"] == "10.81.0.0/25", anew
    ensure(admin, "server/user", WEB | {"networks": [{"network": "hidden"}]})
    refused_alike(admin, "network/hidden", {"cidr": "10.83.0.0/24"}, 409)
    removed(admin, "server/user", "network/hidden")
    removed(member, "network/lan")


def test_what_holds_nothing_is_put_back(cloud: Cloud) -> None:
    admin = cloud.admin
    refused = ensure(admin, "flavor/odd", {"vcpus": 1, "ram": 64, "extra_specs": {"ä": "x"}})
    assert refused.status == 400 and admin.get("/v1/flavor/odd").status == 404, refused
    ensure(admin, "keypair/mine", {"public_key": KEY})
    refused_alike(admin, "keypair/mine", {"public_key": "ssh-ed25519 nothing at all"}, 400)
    removed(admin, "keypair/mine")


def test_a_server_that_cannot_be_made_anew_stays(cloud: Cloud) -> None:
    admin = cloud.admin
    ensure(admin, "server/stays", WEB)
    taken = admin.get("/v1/server/stays").json["networks"][0]["address"]
    refused_alike(admin, "server/stays", {"config_drive": False, "networks": [
        {"network": "default", "address": "192.0.2.7"}]}, 400)
    refused_alike(admin, "server/stays", {"availability_zone": "none"}, 400)
    ensure(admin, "compute_service/kvm1", {"status": "disabled"})
    cloud.parts.working.read_hosts()
    refused_alike(admin, "server/stays", {"config_drive": False}, 507)
    ensure(admin, "compute_service/kvm1", {"status": "enabled"})
    cloud.parts.working.read_hosts()
    same = ensure(admin, "server/stays", {"config_drive": False, "networks": [
        {"network": "default", "address": taken}]}, on_immutable="recreate")
    assert same.status == 200 and same.json["resource"]["networks"][0]["address"] == taken, same
    removed(admin, "server/stays")


@pytest.mark.parametrize("said", [True, False])
def test_a_server_made_anew_keeps_its_volumes(cloud: Cloud, said: bool) -> None:
    admin = cloud.admin
    volume = ensure(admin, "volume/keepme", {"size": 1}).json["resource"]["id"]
    blocks = {"block_device_mapping": [{"source_type": "volume", "destination_type": "volume", "uuid": "keepme",
                                        "delete_on_termination": True}]}
    script = "IyEvYmluL3NoCg=="
    old = ensure(admin, "server/srv", WEB | blocks | {"user_data": script}).json["resource"]["id"]
    want = {"config_drive": False, **(blocks if said else {})}
    planned = ensure(admin, "server/srv", want, on_immutable="recreate", dry_run=True)
    assert planned.status == 200, planned
    anew = ensure(admin, "server/srv", want, on_immutable="recreate")
    assert anew.status == 200 and anew.json["resource"]["id"] != old, anew
    assert [one["id"] for one in anew.json["resource"]["volumes_attached"]] == [volume], anew
    assert verbs(anew) == verbs(planned)
    assert not ensure(admin, "server/srv", {"user_data": script}).json["changed"]
    gone = admin.delete("/v1/server/srv?wait=20")
    assert "delete keepme" in next(step["text"] for step in gone.json["steps"] if step["verb"] == "free"), gone
    deadline = time.monotonic() + 60
    while admin.get("/v1/volume/keepme").status != 404:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_made_anew_boots_from_another_disk(cloud: Cloud) -> None:
    admin = cloud.admin
    ensure(admin, "volume/root", {"size": 1, "image": "cirros"})
    root = {"block_device_mapping": [{"source_type": "volume", "destination_type": "volume", "uuid": "root",
                                      "boot_index": 0}]}
    ensure(admin, "server/disk", WEB)
    anew = ensure(admin, "server/disk", root, on_immutable="recreate")
    assert anew.status == 200 and anew.json["resource"]["image"] is None, anew
    assert [one["name"] for one in anew.json["resource"]["volumes_attached"]] == ["root"], anew
    assert not ensure(admin, "server/disk", root).json["changed"]
    again = ensure(admin, "server/disk", {"config_drive": False}, on_immutable="recreate")
    assert [one["name"] for one in again.json["resource"]["volumes_attached"]] == ["root"], again
    back = ensure(admin, "server/disk", {"image": "cirros"}, on_immutable="recreate")
    assert back.status == 200 and back.json["resource"]["image"]["name"] == "cirros", back
    assert back.json["resource"]["volumes_attached"] == [] and admin.get("/v1/volume/root").status == 200
    removed(admin, "server/disk", "volume/root")


def test_a_server_on_a_volume_is_rebuilt(cloud: Cloud) -> None:
    admin = cloud.admin
    admin.image("newer")

    def boots(image: str) -> dict[str, Any]:
        return {"block_device_mapping": [{"source_type": "image", "destination_type": "volume", "uuid": image,
                                          "boot_index": 0, "volume_size": 1, "delete_on_termination": True}]}

    old = ensure(admin, "server/onvol", {**WEB, **boots("cirros"), "image": None}).json["resource"]
    refused = ensure(admin, "server/onvol", boots("newer"))
    assert refused.status == 409 and "on_immutable to rebuild" in refused.json["error"]["message"], refused
    planned = ensure(admin, "server/onvol", boots("newer"), on_immutable="rebuild", dry_run=True)
    anew = ensure(admin, "server/onvol", boots("newer"), on_immutable="rebuild")
    assert anew.status == 200 and verbs(anew) == verbs(planned) and "reimage" in verbs(anew), anew
    found = anew.json["resource"]
    assert (found["id"], found["volumes_attached"]) == (old["id"], old["volumes_attached"])
    assert not ensure(admin, "server/onvol", boots("newer"), on_immutable="rebuild").json["changed"]
    done = admin.post("/v1/server/onvol/events?wait=20", {"event": "rebuild", "args": {}})
    assert done.status == 200, done
    removed(admin, "server/onvol")


@pytest.mark.parametrize(("kind", "want"), [
    ("volume", {"size": 1}), ("network", {"cidr": "10.84.0.0/24"}), ("volume_snapshot", {"volume": "one"}),
    ("keypair", {"public_key": KEY})])
def test_a_uuid_that_the_service_would_not_take_makes_nothing(cloud: Cloud, kind: str, want: dict[str, Any]) -> None:
    admin = cloud.admin
    ensure(admin, "volume/one", {"size": 1})
    plural = {"volume": "volumes", "network": "networks", "volume_snapshot": "volume_snapshots",
              "keypair": "keypairs"}[kind]
    before = admin.get(f"/v1/{kind}").json[plural]
    id = str(uuid.uuid4())
    for key, more in ((id, {"name": "byid"}), ("byid", {"id": id})):
        for dry in (True, False):
            refused = ensure(admin, f"{kind}/{key}", {**want, **more}, dry_run=dry)
            assert refused.status == 400 and refused.json["error"]["details"]["field"] == "id", refused
    assert admin.get(f"/v1/{kind}").json[plural] == before
    removed(admin, "volume/one")


def test_a_uuid_that_the_service_takes_is_used(cloud: Cloud) -> None:
    id = str(uuid.uuid4())
    for changed in (True, False):
        made = ensure(cloud.admin, f"flavor/{id}", {"name": "byid", "vcpus": 1, "ram": 64})
        assert made.json["resource"]["id"] == id and made.json["changed"] is changed, made
    removed(cloud.admin, "flavor/byid")


def test_volumes_beyond_the_first_page(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = cloud.admin
    monkeypatch.setattr(nouns, "MOST", 2)
    for at in range(3):
        ensure(admin, f"volume/page{at}", {"size": 1})
    for at in range(3):
        ensure(admin, f"volume_snapshot/page{at}", {"volume": "page0"})
    names = [f"page{at}" for at in range(3)]
    assert [one["name"] for one in admin.get("/v1/volume").json["volumes"]] == names
    assert [one["name"] for one in admin.get("/v1/volume_snapshot").json["volume_snapshots"]] == names
    for at in range(3):
        assert not ensure(admin, f"volume/page{at}", {"size": 1}).json["changed"]
        assert not ensure(admin, f"volume_snapshot/page{at}", {"volume": "page0"}).json["changed"]
    removed(admin, *(f"volume_snapshot/{name}" for name in names), *(f"volume/{name}" for name in names))


@pytest.mark.parametrize(("kind", "path"), [("volume", "volumes"), ("volume_snapshot", "snapshots")])
def test_what_is_in_error_is_not_as_wanted(cloud: Cloud, kind: str, path: str) -> None:
    admin = cloud.admin
    ensure(admin, "volume/broken", {"size": 1})
    want = {"size": 1} if kind == "volume" else {"volume": "broken"}
    id = ensure(admin, f"{kind}/broken", want).json["resource"]["id"]
    url = f"/volume/v3/{admin.project_id}/{path}/{id}/action"
    for status, text in (("error", "Remove it"), ("deleting", "Wait until it is gone")):
        assert admin.post(url, {"os-reset_status": {"status": status}}).status == 202
        for dry in (True, False):
            refused = ensure(admin, f"{kind}/broken", want, dry_run=dry)
            assert refused.status == 409 and text in refused.json["error"]["message"], refused
    assert admin.post(url, {"os-reset_status": {"status": "available"}}).status == 202
    assert not ensure(admin, f"{kind}/broken", want).json["changed"]
    removed(admin, *([] if kind == "volume" else ["volume_snapshot/broken"]), "volume/broken")


def test_a_nic_with_another_tag(cloud: Cloud) -> None:
    admin = cloud.admin
    ensure(admin, "server/tagged", WEB)
    anew = ensure(admin, "interface_attachment/tagged:default", {"tag": "front"}, on_immutable="recreate")
    assert anew.status == 200 and anew.json["resource"]["tag"] == "front", anew
    removed(admin, "server/tagged")


def test_a_volume_is_attached_as_asked_or_not_at_all(cloud: Cloud) -> None:
    admin = cloud.admin
    for name in ("left", "right"):
        ensure(admin, f"volume/{name}", {"size": 1})
        ensure(admin, f"server/{name}", WEB)
    ensure(admin, "volume_attachment/left:left", {"device": "vdc"})
    for dry in (True, False):
        for device in ("vda", "vdc", "sdb"):
            refused = ensure(admin, "volume_attachment/left:right", {"device": device}, dry_run=dry)
            assert refused.status == 400 and refused.json["error"]["details"]["field"] == "device", refused
        busy = ensure(admin, "volume_attachment/right:left", {}, dry_run=dry)
        assert busy.status == 409 and "in-use" in busy.json["error"]["message"], busy
    ensure(admin, "volume_attachment/left:right", {"device": "vdd"})
    refused_alike(admin, "volume_attachment/left:right", {"device": "vdc"}, 400)
    anew = ensure(admin, "volume_attachment/left:right", {"device": "vde"}, on_immutable="recreate")
    assert anew.json["resource"]["device"] == "vde", anew
    removed(admin, *(f"{kind}/{name}" for name in ("left", "right") for kind in ("server", "volume")))


@pytest.mark.parametrize(("want", "field"), [
    ({"flavor": "thin"}, "fields"), ({"host": "nowhere"}, None),
    ({"networks": [{"network": "default", "address": "192.0.2.7"}]}, None),
    ({"networks": [{"network": "default", "mac": "02:00:00:00:00:07"}]}, "field"),
    ({"image": None, "rescue": {"image": "none"}}, "field")])
def test_a_change_that_would_be_refused_is_not_begun(cloud: Cloud, want: dict[str, Any], field: str | None) -> None:
    """Nothing is stopped or detached for it, and check mode says so."""
    admin = cloud.admin
    for name, disk in (("thin", 1), ("thick", 2)):
        ensure(admin, f"flavor/{name}", {"vcpus": 1, "ram": 64, "disk": disk})
    ensure(admin, "server/whole", WEB | {"flavor": "thick"})
    before = admin.get("/v1/server/whole").json
    for dry in (True, False):
        refused = ensure(admin, "server/whole", {"description": "changed", "power": "off", **want}, dry_run=dry,
                         on_immutable="ignore")
        if want.get("rescue") and dry:
            assert refused.status == 200 and "assumes" in str(refused.json["warnings"]), refused
            continue
        assert refused.status in (400, 409), (dry, refused)
        assert field is None or field in refused.json["error"]["details"], refused
        after = admin.get("/v1/server/whole").json
        assert {name: (before[name], after[name]) for name in before if before[name] != after[name]} == {}
    removed(admin, "server/whole", "flavor/thin", "flavor/thick")


def test_a_rescue_image_has_a_name(cloud: Cloud) -> None:
    ensure(cloud.admin, "server/saved", WEB)
    assert ensure(cloud.admin, "server/saved", {"rescue": {"image": "cirros"}}).json["resource"]["status"] == "RESCUE"
    assert not ensure(cloud.admin, "server/saved", {"rescue": {"image": "cirros"}}).json["changed"]
    removed(cloud.admin, "server/saved")


def test_a_uuid_that_was_another_servers_is_refused(cloud: Cloud) -> None:
    other = cloud.caller("ann", "shop")
    id = ensure(cloud.admin, "server/gone", WEB).json["resource"]["id"]
    removed(cloud.admin, "server/gone")
    for dry in (True, False):
        refused = ensure(other, f"server/{id}", WEB | {"name": "again", "image": None, "block_device_mapping": []},
                         dry_run=dry)
        assert refused.status in (400, 409), refused
        refused = ensure(cloud.admin, f"server/{id}", WEB | {"name": "again"}, dry_run=dry)
        assert refused.status == 409 and "Use another" in refused.json["error"]["message"], refused


def test_small_pages() -> None:
    """What the Compute API lists in pages is seen as a whole."""
    with Cloud(hosts=1, max_limit=2) as cloud:
        admin = cloud.admin
        for at in range(3):
            ensure(admin, f"keypair/k{at}", {"public_key": KEY})
            assert not ensure(admin, f"keypair/k{at}", {"public_key": KEY}).json["changed"]
        assert len(admin.get("/v1/keypair").json["keypairs"]) == 3
        admin.image()
        ensure(admin, "server/acts", WEB)
        for power in ("off", "running", "off"):
            ensure(admin, "server/acts", {"power": power})
        assert len(admin.get("/v1/instance_action?server=acts").json["instance_actions"]) == 4
