# SPDX-License-Identifier: GPL-3.0-or-later
"""The other kinds of the agents' protocol for a cloud. Images: ``test_images``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magnetar_control.api.v1 import usage
from magnetar_control.services.volume import worker as work
from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.http.client import new_request_id
from tests.support.control.cloud import Caller, Cloud
from tests.support.control.servers import WEB, ensure, verbs


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1, links=True) as made:
        made.admin.image()
        yield made


@pytest.mark.parametrize(("want", "field"), [
    ({"cidr": "10.9.0.0/31"}, "cidr"), ({"cidr": "10.9.0.1/32"}, "cidr"), ({"cidr": "0.0.0.0/4"}, "cidr"),
    ({"cidr": "127.0.0.0/24"}, "cidr"), ({"cidr": "10.9.0.0/33"}, "cidr"), ({}, "cidr"),
    ({"cidr": "10.9.0.0/24", "dhcp_start": "10.8.0.1"}, "dhcp_start"),
    ({"cidr": "10.9.0.0/24", "dhcp_start": "10.9.0.9", "dhcp_end": "10.9.0.5"}, "dhcp_start")])
def test_wrong_addresses_of_a_network(cloud: Cloud, want: dict[str, str], field: str) -> None:
    """They are refused as a host refuses them, in check mode too."""
    for dry in (True, False):
        refused = ensure(cloud.admin, "network/odd", want, dry_run=dry)
        assert refused.status == 400 and refused.json["error"]["details"]["field"] == field, refused
    assert cloud.admin.get("/v1/network/odd").status == 404


def test_a_network_has_the_normal_form_of_its_addresses(cloud: Cloud) -> None:
    made = ensure(cloud.admin, "network/odd", {"cidr": "10.97.0.3/24"})
    assert made.json["resource"]["cidr"] == "10.97.0.0/24"
    assert not ensure(cloud.admin, "network/odd", {"cidr": "10.97.0.3/24"}).json["changed"]
    assert cloud.admin.delete("/v1/network/odd").json["changed"]


def test_flavors_and_key_pairs(cloud: Cloud) -> None:
    admin = cloud.admin
    want = {"vcpus": 1, "ram": 64, "extra_specs": {"hw:cpu_policy": "shared"}, "description": "a"}
    assert ensure(admin, "flavor/f", want, dry_run=True).json["changed"] and admin.get("/v1/flavor/f").status == 404
    assert ensure(admin, "flavor/f", want).json["resource"]["extra_specs"] == {"hw:cpu_policy": "shared"}
    assert not ensure(admin, "flavor/f", want).json["changed"]
    assert ensure(admin, "flavor/f", {"extra_specs": {}, "description": ""}).json["resource"]["extra_specs"] == {}
    assert ensure(admin, "flavor/f", {"ram": 128}).json["error"]["code"] == "immutable"
    anew = ensure(admin, "flavor/f", {"ram": 128}, on_immutable="recreate")
    assert anew.json["resource"]["ram"] == 128, anew
    admin.delete("/v1/flavor/f")
    for dry in (True, False):  # before the flavor is made
        refused = ensure(admin, "flavor/f", {**want, "extra_specs": {"hw:colour": "red"}}, dry_run=dry)
        assert refused.status == 400 and "hw:colour" in refused.json["error"]["message"], refused
    assert admin.get("/v1/flavor/f").status == 404
    refused = ensure(admin, "keypair/k", {"public_key": "ssh-ed25519 nothing at all"})
    assert refused.status == 400


@pytest.mark.parametrize(("error", "status", "told"), [
    (Conflict("The host is full."), "available", "The host is full."),
    (MagnetarError("The disk /dev/sda broke."), "error", "The server's host failed to do it.")])
def test_a_volume_that_could_not_grow_is_kept(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, error: MagnetarError,
                                              status: str, told: str) -> None:
    def fails(_worker: object, _row: object) -> None:
        raise error

    admin = cloud.admin
    id = ensure(admin, "volume/kept", {"size": 1}).json["resource"]["id"]
    with monkeypatch.context() as patched:
        patched.setattr(work, "TASKS", {**work.TASKS, ("volumes", "extend"): fails})
        refused = ensure(admin, "volume/kept", {"size": 2})
    assert refused.status == 409 and told in refused.json["error"]["message"], refused
    found = admin.get("/v1/volume/kept").json
    assert (found["id"], found["size"], found["status"]) == (id, 1, status)
    assert admin.delete("/v1/volume/kept").json["changed"]


def test_volumes(cloud: Cloud) -> None:
    admin = cloud.admin
    made = ensure(admin, "volume/data", {"size": 1})
    assert verbs(made) == ["record", "make"] and made.json["resource"]["status"] == "available", made
    assert not ensure(admin, "volume/data", {"size": 1}).json["changed"]
    ensure(admin, "server/withvol", WEB)
    attached = ensure(admin, "volume_attachment/withvol:data", {})
    assert verbs(attached) == ["record", "attach"] and attached.json["resource"]["device"] == "vdb", attached
    assert not ensure(admin, "volume_attachment/withvol:data", {}).json["changed"]
    assert admin.get("/v1/volume/data").json["status"] == "in-use"
    assert admin.get("/v1/server/withvol").json["volumes_attached"][0]["name"] == "data"
    ensure(admin, "volume/faster", {"size": 1})
    for wrong, word in (({"replaces": "nope"}, "replaces"), ({"replaces": "data", "device": "vdc"}, "device")):
        refused = ensure(admin, "volume_attachment/withvol:faster", wrong)
        assert refused.status == 400 and word in refused.json["error"]["message"], refused
    swapped = ensure(admin, "volume_attachment/withvol:faster", {"replaces": "data"})
    assert verbs(swapped) == ["record", "swap"] and swapped.json["resource"]["device"] == "vdb", swapped
    assert not ensure(admin, "volume_attachment/withvol:faster", {"replaces": "data"}).json["changed"]
    assert [one["name"] for one in admin.get("/v1/server/withvol").json["volumes_attached"]] == ["faster"]
    assert verbs(ensure(admin, "volume_attachment/withvol:data", {"replaces": "faster"})) == ["record", "swap"]
    assert admin.delete("/v1/volume/faster").json["changed"]
    assert verbs(admin.delete("/v1/volume_attachment/withvol:data")) == ["detach", "forget"]
    snap = ensure(admin, "volume_snapshot/snap", {"volume": "data"})
    assert snap.json["resource"]["status"] == "available", snap
    assert not ensure(admin, "volume_snapshot/snap", {"volume": "data"}).json["changed"]
    grown = ensure(admin, "volume/data", {"size": 2})
    assert grown.json["resource"]["size"] == 2, grown
    assert admin.delete("/v1/volume_snapshot/snap").json["changed"] and admin.delete("/v1/volume/data").json["changed"]

    nic = ensure(admin, "interface_attachment/withvol:default", {})
    assert not nic.json["changed"], nic
    assert admin.delete("/v1/interface_attachment/withvol:default").json["changed"]
    assert admin.get("/v1/interface_attachment?server=none").json["interface_attachments"] == []
    assert ensure(admin, "interface_attachment/withvol:default", {}).json["changed"]
    assert len(admin.get("/v1/interface_attachment").json["interface_attachments"]) == 1
    admin.delete("/v1/server/withvol")


def test_a_server_with_everything(cloud: Cloud) -> None:
    admin = cloud.admin
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Zz5bBNJ me@example"
    assert ensure(admin, "keypair/me", {"public_key": key}).json["resource"]["fingerprint"].startswith("SHA256:")
    ensure(admin, "volume/extra", {"size": 1})
    want = {**WEB, "key_name": "me", "user_data": "I2Nsb3VkLWNvbmZpZwo=", "description": "all", "tags": ["a", "b"],
            "availability_zone": "nova", "flavor": {"vcpus": 1, "ram": 64}, "block_device_mapping": [
                {"source_type": "volume", "destination_type": "volume", "uuid": "extra"}]}
    made = ensure(admin, "server/all", want)
    assert made.status == 200 and [one["name"] for one in made.json["resource"]["volumes_attached"]] == ["extra"], made
    again = ensure(admin, "server/all", want)
    assert verbs(again) == [], again
    other = ensure(admin, "server/all", {**want, "user_data": "I2Nsb3VkLWNvbmZpZwoK"})
    assert other.json["error"]["code"] == "immutable" and "I2Ns" not in str(other.json), other
    assert ensure(admin, "server/all", {"virt_type": "kvm"}).status == 400
    assert "user_data" not in admin.get("/v1/server/all").json
    for path in ("server/all", "volume/extra", "keypair/me"):
        assert admin.delete(f"/v1/{path}").json["changed"], path


def test_what_operators_give_a_host(cloud: Cloud) -> None:
    """Each twice, and in a dry run before: the same steps and difference, and then nothing more to do."""
    admin, member, path = cloud.admin, cloud.caller("ann", "shop"), "resource_provider/kvm1"
    before = admin.get(f"/v1/{path}").json
    total = before["inventories"]["VCPU"]["total"]
    assert before["own_traits"] == [] and before["own_inventories"] == {}
    inventories = {"VCPU": {"allocation_ratio": 2}, "CUSTOM_V1": {"total": 8, "reserved": 1}}
    filled = {"total": 8, "reserved": 1, "min_unit": 1, "max_unit": 2147483647, "step_size": 1,
              "allocation_ratio": 1.0}
    for want, shown in (
            ({"own_traits": ["CUSTOM_V1", "COMPUTE_NODE"]}, {"own_traits": ["CUSTOM_V1"]}),
            ({"own_inventories": inventories}, {"own_inventories": {**inventories, "CUSTOM_V1": filled}}),
            ({"own_inventories": {"VCPU": {"reserved": 0}}, "own_traits": []},
             {"own_inventories": {"VCPU": {"reserved": 0}}, "own_traits": []}),
            ({"own_inventories": {}}, {"own_inventories": {}})):
        planned = ensure(admin, path, want, dry_run=True)
        assert admin.get(f"/v1/{path}").json["generation"] == before["generation"], "a dry run changes nothing"
        done = ensure(admin, path, want)
        assert planned.json["changed"] and done.json["changed"], want
        assert planned.json["diff"] == done.json["diff"] and verbs(planned) == verbs(done) == ["record"]
        before = done.json["resource"]
        assert {name: before[name] for name in shown} == shown
        assert not ensure(admin, path, want).json["changed"], want
    assert before["inventories"]["VCPU"] == {"total": total, "reserved": 0, "min_unit": 1, "max_unit": total,
                                             "step_size": 1, "allocation_ratio": 16.0}
    for want, status, words in (
            ({"own_inventories": {"VCPU": {"total": 1}}}, 400, "as the agent of kvm1 tells"),
            ({"own_inventories": {"CUSTOM_V1": {"reserved": 1}}}, 400, "CUSTOM_V1.total"),
            ({"own_inventories": {"VCPU": {"allocation_ratio": 0}}}, 400, "allocation_ratio: must be a number above 0"),
            ({"own_inventories": {"GOLD": {"total": 1}}}, 400, "Unknown resource class in inventory: GOLD"),
            ({"own_traits": ["GOLD"]}, 400, "No such trait(s): GOLD"), ({"traits": ["CUSTOM_A"]}, 400, "traits")):
        for dry_run in (True, False):
            refused = ensure(admin, path, want, dry_run=dry_run)
            assert refused.status == status and words in refused.json["error"]["message"], refused
    assert admin.get(f"/v1/{path}").json["generation"] == before["generation"]
    assert ensure(admin, "resource_provider/none", {"own_traits": []}).status == 404
    assert ensure(member, path, {"own_traits": []}).status == member.get("/v1/trait").status == 403
    assert admin.delete(f"/v1/{path}").status == 409
    found = {one["name"]: one for one in admin.get("/v1/trait").json["traits"]}
    assert found["COMPUTE_NODE"] == {"name": "COMPUTE_NODE", "custom": False, "hosts": ["kvm1"]}
    assert found["CUSTOM_V1"] == {"name": "CUSTOM_V1", "custom": True, "hosts": []}


def test_what_operators_steer(cloud: Cloud) -> None:
    admin, member = cloud.admin, cloud.caller("ann", "shop")
    found = ensure(admin, "compute_service/kvm1", {"status": "disabled", "disabled_reason": "repair"})
    assert found.json["changed"] and found.json["resource"]["status"] == "disabled", found
    assert not ensure(admin, "compute_service/kvm1", {"status": "disabled"}).json["changed"]
    cloud.parts.working.read_hosts()  # conductors see it within seconds by themselves
    refused = ensure(admin, "server/nowhere", WEB)
    assert refused.status == 507 and "No valid host" in refused.json["error"]["message"], refused
    assert admin.get("/v1/server/nowhere").status == 404
    planned = ensure(admin, "server/nowhere", WEB, dry_run=True)
    assert planned.status == 507 and "ComputeFilter" in planned.json["error"]["message"], planned
    assert ensure(admin, "compute_service/kvm1", {"status": "enabled"}).json["resource"]["disabled_reason"] is None
    cloud.parts.working.read_hosts()
    assert ensure(admin, "compute_service/none", {"status": "enabled"}).status == 404
    assert ensure(member, "compute_service/kvm1", {"status": "disabled"}).status == 403
    hypervisor = admin.get("/v1/hypervisor/kvm1").json
    assert hypervisor["up"] and hypervisor["vcpus"] and hypervisor["cell"]
    assert member.get("/v1/hypervisor").status == 403 and member.get("/v1/cell").status == 403
    assert admin.get("/v1/host").json["hosts"][0]["name"] == "kvm1"
    assert member.get("/v1/limits").json["limits"][0]["instances_used"] == 0
    assert member.get("/v1/capacity").status == 403
    (report,) = admin.get("/v1/capacity?zone=nova").json["capacities"]
    assert (report["scope"], report["zone"], report["aggregate"], report["hosts"]) == ("zone", "nova", None, 1)
    assert admin.get("/v1/capacity/cloud").json["scope"] == "cloud"
    wrong = admin.get("/v1/capacity?zone=hall9")
    assert wrong.status == 400 and "there is no availability zone of this name" in str(wrong.json)
    assert member.get("/v1/availability_zone").json["availability_zones"] == [
        {"name": "nova", "available": True, "hosts": []}]


def test_aggregates(cloud: Cloud) -> None:
    admin, member = cloud.admin, cloud.caller("ann", "shop")
    made = ensure(admin, "aggregate/fast", {"hosts": ["kvm1"], "metadata": {"ssd": "true"}}).json
    assert made["changed"] and made["resource"]["hosts"] == ["kvm1"] and made["resource"]["availability_zone"] is None
    assert not ensure(admin, "aggregate/fast", {"hosts": ["kvm1"]}).json["changed"]
    path = f"aggregate/{made['resource']['id']}"
    named = ensure(admin, path, {"name": "quick", "metadata": {"a": "b"}}).json["resource"]
    assert (named["name"], named["metadata"], named["number"]) == ("quick", {"a": "b"}, made["resource"]["number"])
    added = ensure(admin, path, {"metadata": {"c": "d"}}, merge="metadata")
    assert added.json["resource"]["metadata"] == {"a": "b", "c": "d"}, added
    for want, field in (({"hosts": ["kvm9"]}, "hosts[0]"), ({"metadata": {"availability_zone": "x"}},
                                                            "metadata.availability_zone"),
                        ({"name": "odd", "metadata": {"cpu_weight_multiplier": "nan"}},
                         "metadata.cpu_weight_multiplier")):
        refused = ensure(admin, path, want)
        assert (refused.status, refused.json["error"]["details"]["field"]) == (400, field), refused
    ensure(admin, "server/zoned", WEB)
    for dry_run in (True, False):
        zone = ensure(admin, path, {"availability_zone": "rack1"}, dry_run=dry_run)
        assert zone.status in (400, 409) and "contain instances" in zone.json["error"]["message"], zone
    admin.delete("/v1/server/zoned")
    assert admin.get("/v1/server/zoned").status == 404
    assert ensure(admin, path, {"availability_zone": "rack1"}).json["changed"]
    assert {"name": "rack1", "available": True, "hosts": ["kvm1"]} in (
        admin.get("/v1/availability_zone").json["availability_zones"])
    assert ensure(member, path, {"hosts": []}).status == 403 and member.get("/v1/aggregate").status == 403
    assert admin.delete(f"/v1/{path}").json["changed"] and admin.get(f"/v1/{path}").status == 404
    assert not admin.delete("/v1/aggregate/quick").json["changed"]


def test_volume_types(cloud: Cloud) -> None:
    """Made, changed and removed by administrators; the others see those that they may use."""
    admin, member = cloud.admin, cloud.caller("ann", "shop")
    want = {"description": "x", "is_public": False, "projects": [member.project_id],
            "extra_specs": {"multiattach": "<is> True", "pool_name": "default"}}
    planned = ensure(admin, "volume_type/fast", want, dry_run=True).json
    made = ensure(admin, "volume_type/fast", want).json
    assert planned["changed"] and made["changed"] and planned["diff"] == made["diff"]
    shown = made["resource"]
    assert {name: shown[name] for name in want} == want and shown["encryption"] == {}
    assert (shown["pool"], shown["multiattach"]) == ("default", True)
    assert not ensure(admin, "volume_type/fast", want).json["changed"]
    path = f"volume_type/{shown['id']}"
    seen = member.get(f"/v1/{path}").json
    assert seen["extra_specs"] == {"multiattach": "<is> True"} and seen["projects"] == [] and seen["name"] == "fast"
    for refused, status, word in (
            (ensure(member, path, {"description": "y"}), 403, "admin"),
            (ensure(member, "volume_type/other", {}), 403, "admin"), (member.delete(f"/v1/{path}"), 403, "admin"),
            (ensure(admin, path, {"is_public": True}), 400, "projects"),
            (ensure(admin, path, {"encryption": {"key_size": 256}}), 400, "encryption.provider"),
            (ensure(admin, path, {"encryption": {"provider": "luks", "key_size": 300}}), 400, "encryption.key_size"),
            (ensure(admin, path, {"name": "default"}), 409, "already exists"),
            (ensure(admin, "volume_type/default", {"description": "mine"}), 400, "stands for the pool"),
            (admin.delete("/v1/volume_type/default"), 400, "stands for the pool")):
        assert refused.status == status and word in str(refused.json["error"]), refused
    hidden = {"name": "hidden", "extra_specs": {}, "encryption": {"provider": "luks", "key_size": 512},
              "projects": []}
    changed = ensure(admin, path, hidden).json["resource"]
    assert {name: changed[name] for name in hidden} == hidden and changed["multiattach"] is False
    assert member.get(f"/v1/{path}").status == 404 and not ensure(admin, path, hidden).json["changed"]
    ensure(admin, path, {"is_public": True, "encryption": {}})
    assert ensure(admin, "volume/data", {"size": 1, "pool": "hidden"}).status == 200
    for dry_run in (True, False):
        used = ensure(admin, path, {"extra_specs": {"multiattach": "<is> True"}}, dry_run=dry_run)
        assert used.status == 400 and "still in use" in used.json["error"]["message"], used
    assert ensure(admin, path, {"description": "in use"}).json["changed"]
    assert admin.delete(f"/v1/{path}").status == 400
    admin.delete("/v1/volume/data")
    assert admin.delete(f"/v1/{path}").json["changed"] and admin.get(f"/v1/{path}").status == 404
    assert not admin.delete("/v1/volume_type/hidden").json["changed"]


def test_server_groups(cloud: Cloud) -> None:
    member, other = cloud.caller("ann", "shop"), cloud.caller("zoe", "other")
    made = ensure(member, "server_group/apart", {"policy": "anti-affinity"}).json
    assert made["changed"] and made["resource"]["members"] == [] and made["resource"]["rules"] == {}
    assert not ensure(member, "server_group/apart", {"policy": "anti-affinity"}).json["changed"]
    fixed = ensure(member, "server_group/apart", {"policy": "affinity"})
    assert fixed.status == 409 and "policy" in fixed.json["error"]["message"], fixed
    anew = ensure(member, "server_group/apart", {"policy": "affinity"}, on_immutable="recreate").json
    assert anew["resource"]["policy"] == "affinity" and anew["resource"]["id"] != made["resource"]["id"]
    assert other.get(f"/v1/server_group/{anew['resource']['id']}").status == 404
    for dry_run in (True, False):
        ruled = ensure(member, "server_group/soft", {"policy": "soft-affinity", "rules": {"max_server_per_host": 2}},
                       dry_run=dry_run)
        assert ruled.status == 400 and "Only anti-affinity" in ruled.json["error"]["message"], ruled
    assert member.delete("/v1/server_group/apart").json["changed"]
    assert not member.delete("/v1/server_group/apart").json["changed"]


def test_quotas(cloud: Cloud) -> None:
    admin, member = cloud.admin, cloud.caller("ann", "shop")
    (mine,) = member.get("/v1/quota").json["quotas"]
    path = f"quota/{mine['name']}"
    found = ensure(admin, path, {"instances": 12}).json
    assert found["changed"] and found["resource"]["instances"] == 12 and found["resource"]["cores"] == mine["cores"]
    assert not ensure(admin, path, {"instances": 12}).json["changed"]
    assert member.get(f"/v1/{path}").json["instances"] == 12 and member.get("/v1/quota/shop").json["instances"] == 12
    assert ensure(member, path, {"instances": 13}).status == 403
    assert member.get("/v1/quota/none-of-mine").status == 403 and admin.get("/v1/quota/none").status == 400
    assert admin.get(f"/v1/quota?name={mine['name']}").json["quotas"][0]["instances"] == 12
    wrong = ensure(admin, path, {"instances": -2})
    assert (wrong.status, wrong.json["error"]["details"]["field"]) == (400, "instances")
    assert admin.delete(f"/v1/{path}?dry_run=true").json["changed"]
    gone = admin.delete(f"/v1/{path}").json
    assert gone["changed"] and not admin.delete(f"/v1/{path}").json["changed"]
    assert member.get("/v1/quota").json["quotas"][0]["instances"] == mine["instances"]


def test_usage_and_topology(cloud: Cloud) -> None:
    admin, member = cloud.admin, cloud.caller("ann", "shop")
    made = ensure(admin, "server/used", WEB).json["resource"]
    (found,) = admin.get("/v1/usage?begin=2026-01-01").json["usages"]
    used = next(one for one in found["servers"] if one["id"] == made["id"])
    assert used["state"] == "active" and used["vcpus"] and found["begin"] == "2026-01-01T00:00:00Z"
    assert found["vcpu_hours"] == pytest.approx(sum(one["vcpus"] * one["hours"] for one in found["servers"]))
    every = admin.get("/v1/usage?begin=2026-01-01&all_projects=true").json["usages"]
    assert found["name"] in [one["name"] for one in every]
    assert member.get("/v1/usage?all_projects=true").status == 403
    assert made["id"] not in str(member.get("/v1/usage?begin=2026-01-01").json)
    wrong = admin.get("/v1/usage?begin=yesterday")
    assert (wrong.status, wrong.json["error"]["details"]["field"]) == (400, "begin")
    topology = admin.get("/v1/server_topology?server=used").json["server_topologies"]
    assert topology == [{"server": made["id"], "nodes": [], "pagesize_kb": None}]
    assert admin.get("/v1/server_topology/used").json == topology[0]
    assert admin.get("/v1/server_topology").status == 400 and member.get("/v1/server_topology/used").status == 404
    admin.delete("/v1/server/used")


def test_usage_is_counted_over_pages(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "PAGE", 2)
    for name in ("one", "two", "three"):
        ensure(cloud.admin, f"server/{name}", WEB)
    (found,) = cloud.admin.get("/v1/usage?begin=2026-01-01").json["usages"]
    assert {"one", "two", "three"} <= {one["name"] for one in found["servers"]}
    assert len({one["id"] for one in found["servers"]}) == len(found["servers"])
    for name in ("one", "two", "three"):
        cloud.admin.delete(f"/v1/server/{name}")


def test_cells(cloud: Cloud) -> None:
    admin, url = cloud.admin, f"sqlite:///{cloud.folder}/more.db"
    made = ensure(admin, "cell/more", {"database_url": url})
    assert made.json["changed"] and "more.db" not in str(made.json["diff"]), made
    assert not ensure(admin, "cell/more", {"database_url": url}).json["changed"]
    other = ensure(admin, "cell/more", {"database_url": url.replace("more", "other")}).json
    assert other["changed"] and "restart every API process" in other["warnings"][0]
    found = ensure(admin, "cell/more", {"disabled": True})
    assert found.json["resource"]["disabled"] is True and "database_url" not in found.json["resource"]
    assert admin.delete("/v1/cell/more").json["changed"] and admin.get("/v1/cell/more").status == 404
    assert ensure(admin, "cell/bad", {"database_url": "mysql://x"}).status == 400


def test_actions(cloud: Cloud) -> None:
    admin = cloud.admin
    ensure(admin, "server/acts", WEB)
    found = admin.get("/v1/instance_action?server=acts").json["instance_actions"]
    assert [one["action"] for one in found] == ["create"]
    one = admin.get(f"/v1/instance_action?server=acts&id={found[0]['id']}").json["instance_actions"][0]
    assert one["events"][-1]["result"] == "Success"
    for path in ("", f"/{found[0]['id']}"):
        refused = admin.get(f"/v1/instance_action{path}")
        assert (refused.status, refused.json["error"]["details"]["field"]) == (400, "server"), refused
    admin.delete("/v1/server/acts")


@pytest.mark.parametrize(("noun", "want"), [("server", WEB), ("volume", {"size": 1})])
def test_all_projects(cloud: Cloud, noun: str, want: dict[str, object]) -> None:
    """Administrators see what is of others where they ask for it; nobody else may ask."""
    name, listed = f"{noun}-of-another", f"/v1/{noun}?all_projects=true"
    member, boss = cloud.caller("ann", "shop"), cloud.caller("boss", "shop", "admin")
    made = ensure(cloud.admin, f"{noun}/{name}", {**want, "name": name})
    assert made.status == 200, made
    assert name not in [one["name"] for one in boss.get(f"/v1/{noun}").json[f"{noun}s"]]
    assert name in [one["name"] for one in boss.get(listed).json[f"{noun}s"]]
    assert [one["name"] for one in boss.get(f"{listed}&name={name}&fields=name").json[f"{noun}s"]] == [name]
    assert member.get(listed).status == 403
    assert boss.get("/v1/flavor?all_projects=true").status == 400


#: What members may do in /v1: a path, and a body for what is ensured.
CHANGES = {
    "image/new": {"source": {"upload": True}}, "image/there": {"description": "other"},
    "network/new": {"cidr": "10.30.0.0/24"},
    "volume/new": {"size": 1}, "volume/there": {"description": "other"}, "volume_snapshot/new": {"volume": "there"},
    "server/new": {"flavor": "tiny", "image": "there", "networks": []}, "server/there": {"description": "other"},
    "flavor/new": {"vcpus": 1, "ram": 64}}


@pytest.fixture(scope="module")
def reader(cloud: Cloud) -> Caller:
    """A reader of a project, in which somebody made an image, a volume, and a server."""
    member = cloud.caller("maker", "library")
    member.image("there")
    assert ensure(member, "volume/there", {"size": 1}).status == 200
    flavor = {"name": "small", "vcpus": 1, "ram": 64, "disk": 1}
    assert cloud.admin.post("/v2.1/flavors", {"flavor": flavor}).status == 200
    made = ensure(member, "server/there", {"flavor": "small", "image": "there", "networks": []})
    assert made.status == 200, made
    return cloud.caller("reader", "library", "reader")


@pytest.mark.parametrize("path", CHANGES)
def test_a_reader_changes_nothing(reader: Caller, path: str) -> None:
    refused = ensure(reader, path, CHANGES[path])
    assert refused.status == 403, refused
    if path.endswith("/there"):
        assert reader.get(f"/v1/{path}").status == 200
        assert reader.delete(f"/v1/{path}").status == 403
        assert reader.get(f"/v1/{path}").status == 200


def test_a_reader_sends_nothing(reader: Caller) -> None:
    sent = reader.call("PUT", "/v1/image/there/data", b"x", headers={"Content-Type": "application/octet-stream"})
    assert sent.status == 403, sent


@pytest.mark.parametrize(("event", "args"), [
    ("reboot", {"type": "hard"}), ("rebuild", {}), ("create_image", {"name": "copy"}), ("crash_dump", {})])
def test_a_reader_does_nothing_to_a_server(reader: Caller, event: str, args: dict[str, str]) -> None:
    refused = reader.post("/v1/server/there/events", {"event": event, "args": args, "request_id": new_request_id()})
    assert refused.status == 403, refused
