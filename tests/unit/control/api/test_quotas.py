# SPDX-License-Identifier: GPL-3.0-or-later
"""limits, os-quota-sets and os-quota-class-sets: what each microversion shows, who sets what, and that it binds."""

from types import SimpleNamespace

import pytest

from magnetar_control.compute import quotas
from magnetar_core.errors import MagnetarError

from .compute import WHO

NOW = {"cores": 20, "instances": 10, "key_pairs": 100, "metadata_items": 128, "ram": 51200, "server_groups": 10,
       "server_group_members": 10}
GROUPS = {"server_groups", "server_group_members"}
INJECTED = {"injected_file_content_bytes": 10240, "injected_file_path_bytes": 255, "injected_files": 5}
NETWORK = {"fixed_ips": -1, "floating_ips": -1, "security_groups": -1, "security_group_rules": -1}
OF_RED = "/os-quota-sets/red"


@pytest.mark.parametrize(("version", "more"), [
    ("2.1", {**INJECTED, **NETWORK}), ("2.35", {**INJECTED, **NETWORK}), ("2.36", INJECTED), ("2.56", INJECTED),
    ("2.57", {})])
def test_what_each_version_shows(small, version, more):
    whole = {**NOW, **more}
    assert small.rita.get(OF_RED, version).json == {"quota_set": {"id": "red", **whole}}
    assert small.rita.get(f"{OF_RED}/defaults", version).json == {"quota_set": {"id": "red", **whole}}
    assert small.rita.get(f"{OF_RED}/detail", version).json == {"quota_set": {"id": "red", **{
        name: {"limit": limit, "in_use": 0, "reserved": 0} for name, limit in whole.items()}}}
    assert small.admin.put(OF_RED, {"quota_set": {"cores": 20}}, version).json == {"quota_set": whole}


@pytest.mark.parametrize(("version", "shown"), [
    ("2.1", {**{name: limit for name, limit in NOW.items() if name not in GROUPS}, **INJECTED, **NETWORK}),
    ("2.50", {**NOW, **INJECTED}), ("2.57", NOW)])
def test_classes_at_each_version(small, version, shown):
    assert small.admin.get("/os-quota-class-sets/default", version).json == {
        "quota_class_set": {"id": "default", **shown}}
    assert small.admin.put("/os-quota-class-sets/default", {"quota_class_set": {}}, version).json == {
        "quota_class_set": shown}


ABSOLUTE = {"maxServerMeta", "maxTotalCores", "maxTotalInstances", "maxTotalKeypairs", "maxTotalRAMSize",
            "maxServerGroups", "maxServerGroupMembers", "totalCoresUsed", "totalInstancesUsed", "totalRAMUsed",
            "totalServerGroupsUsed"}
PERSONAL = {"maxPersonality", "maxPersonalitySize"}
FORMER = {"maxSecurityGroups", "maxSecurityGroupRules", "maxTotalFloatingIps", "totalFloatingIpsUsed",
          "totalSecurityGroupsUsed"}


@pytest.mark.parametrize(("version", "more"), [
    ("2.1", PERSONAL | FORMER | {"maxImageMeta"}), ("2.36", PERSONAL | {"maxImageMeta"}), ("2.39", PERSONAL),
    ("2.57", set())])
def test_limits_at_each_version(small, version, more):
    limits = small.alice.get("/limits", version).json["limits"]
    assert limits["rate"] == []
    assert set(limits["absolute"]) == ABSOLUTE | more


def test_limits_tell_what_is_used(compute):
    compute.server()
    compute.server(cell="cell0", user="rita")
    compute.server(project="blue", user="bob")
    compute.server(deleted_at="2026-11-21T10:00:00.000000")
    absolute = compute.alice.get("/limits").json["limits"]["absolute"]
    assert (absolute["totalInstancesUsed"], absolute["totalCoresUsed"], absolute["totalRAMUsed"]) == (2, 4, 1024)
    assert compute.alice.get("/limits?tenant_id=blue").status == 403
    other = compute.admin.get("/limits?tenant_id=blue").json["limits"]["absolute"]
    assert other["totalInstancesUsed"] == 1
    detail = compute.rita.get(f"{OF_RED}/detail").json["quota_set"]
    assert detail["cores"] == {"limit": 20, "in_use": 4, "reserved": 0}
    own = compute.rita.get(f"{OF_RED}/detail?user_id=rita").json["quota_set"]
    assert own["cores"]["in_use"] == 2


def test_limits_are_set_and_reset(compute):
    path = OF_RED
    assert compute.admin.put(path, {"quota_set": {"cores": "45", "ram": -1}}, "2.57").json == {
        "quota_set": {**NOW, "cores": 45, "ram": -1}}
    assert compute.alice.get(path, "2.57").json["quota_set"]["cores"] == 45
    assert compute.bob.get("/os-quota-sets/blue", "2.57").json["quota_set"]["cores"] == 20
    assert compute.alice.get("/limits").json["limits"]["absolute"]["maxTotalCores"] == 45
    gone = compute.admin.delete(path)
    assert (gone.status, gone.json) == (202, None)
    assert compute.alice.get(path, "2.57").json["quota_set"] == {"id": "red", **NOW}


def test_the_defaults_are_the_class_default(compute):
    compute.admin.put("/os-quota-class-sets/default", {"quota_class_set": {"cores": 7}})
    compute.admin.put("/os-quota-class-sets/gold", {"quota_class_set": {"cores": 99}})
    assert compute.alice.get(OF_RED).json["quota_set"]["cores"] == 7
    assert compute.alice.get(f"{OF_RED}/defaults").json["quota_set"]["cores"] == 7
    gold = compute.admin.get("/os-quota-class-sets/gold").json["quota_class_set"]
    assert (gold["id"], gold["cores"]) == ("gold", 99)
    compute.admin.put(OF_RED, {"quota_set": {"cores": 8}})
    assert compute.alice.get(OF_RED).json["quota_set"]["cores"] == 8
    assert compute.alice.get(f"{OF_RED}/defaults").json["quota_set"]["cores"] == 7


def test_a_user_may_have_limits_of_its_own(compute):
    compute.server(user="alice")
    path = f"{OF_RED}?user_id=alice"
    assert compute.admin.put(path, {"quota_set": {"instances": 9}}).json["quota_set"]["instances"] == 9
    assert compute.alice.get(path).json["quota_set"]["instances"] == 9
    assert compute.alice.get(OF_RED).json["quota_set"]["instances"] == 10
    high = compute.admin.put(path, {"quota_set": {"instances": 11}})
    assert (high.status, "less than or equal to 10" in high.message) == (400, True)
    assert compute.admin.put(path, {"quota_set": {"instances": -1}}).status == 400
    compute.admin.put(path, {"quota_set": {"key_pairs": 0}})
    assert compute.alice.post("/os-keypairs", {"keypair": {"name": "a"}}).status == 403
    compute.admin.delete(path)
    assert compute.alice.get(path).json["quota_set"]["instances"] == 10


def test_limits_bind_projects_and_users(compute):
    def room(who):
        call = SimpleNamespace(cloud=compute.cloud, settings=compute.cloud.settings, project="red", context=WHO[who])
        return quotas.check_servers(call, {"vcpus": 2, "ram": 512}, 1, 100)

    compute.server(user="alice")
    assert (room("alice"), room("rita")) == (9, 9)
    compute.admin.put(f"{OF_RED}?user_id=alice", {"quota_set": {"cores": 4}})
    assert (room("alice"), room("rita")) == (1, 9)
    compute.admin.put(OF_RED, {"quota_set": {"ram": 512}})
    with pytest.raises(MagnetarError) as refused:
        room("rita")
    assert (refused.value.status, refused.value.message) == (
        403, "Quota exceeded for ram: Requested 512, but already used 512 of 512 ram")


def test_limits_below_what_is_used_need_force(small):
    small.server()
    low = small.admin.put(OF_RED, {"quota_set": {"cores": 1}})
    assert low.status == 400
    assert "must be greater than or equal to already used and reserved 2" in low.message
    forced = small.admin.put(OF_RED, {"quota_set": {"cores": 1, "force": "True"}})
    assert forced.json["quota_set"]["cores"] == 1


@pytest.mark.parametrize(("body", "version"), [
    ({"cores": -2}, "2.1"), ({"cores": "many"}, "2.1"), ({"cores": 2**31}, "2.1"), ({"cores": None}, "2.1"),
    ({"colour": 1}, "2.1"), ({"force": "perhaps"}, "2.1"), ({"fixed_ips": 1}, "2.36"), ({"injected_files": 1}, "2.57"),
    ([], "2.1")])
def test_wrong_limits_are_refused(small, body, version):
    assert small.admin.put(OF_RED, {"quota_set": body}, version).status == 400
    assert small.alice.get(OF_RED, "2.57").json["quota_set"] == {"id": "red", **NOW}


def test_wrong_classes_are_refused(small):
    path = "/os-quota-class-sets/default"
    assert small.admin.put(path, {"quota_class_set": {"force": True}}).status == 400
    assert small.admin.put(path, {"quota_class_set": {"fixed_ips": 1}}, "2.49").status == 200
    assert small.admin.put(path, {"quota_class_set": {"fixed_ips": 1}}, "2.50").status == 400
    assert small.admin.put(path, {"quota_class_set": {"injected_files": 1}}, "2.57").status == 400


def test_who_may_look_and_who_may_set(small):
    for caller in (small.alice, small.rita):
        assert caller.put(OF_RED, {"quota_set": {"cores": 99}}).status == 403
        assert caller.delete(OF_RED).status == 403
        assert caller.get("/os-quota-class-sets/default").status == 403
        assert caller.put("/os-quota-class-sets/default", {"quota_class_set": {}}).status == 403
    for path in (OF_RED, f"{OF_RED}/detail"):
        assert small.bob.get(path).status == 403
        assert small.admin.get(path).status == 200
    assert small.bob.get(f"{OF_RED}/defaults").status == 200


def test_projects_that_are_none(small):
    for reply in (small.admin.get("/os-quota-sets/nobody"), small.admin.put("/os-quota-sets/nobody", {"quota_set": {}}),
                  small.admin.get("/os-quota-sets/nobody/detail"), small.admin.get("/os-quota-sets/nobody/defaults")):
        assert (reply.status, reply.message) == (400, "Project ID nobody is not a valid project.")


def test_unknown_parameters_are_refused_since_2_75(small):
    for path in (OF_RED, f"{OF_RED}/detail", "/limits"):
        assert small.alice.get(f"{path}?colour=red", "2.74").status == 200
        assert small.alice.get(f"{path}?colour=red", "2.75").status == 400


def test_queries_do_not_grow(small):
    for _at in range(5):
        small.server()
    with small.counted() as seen:
        small.alice.get("/limits")
    assert len(seen) == 4
