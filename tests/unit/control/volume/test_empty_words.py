# SPDX-License-Identifier: GPL-3.0-or-later
"""What is accepted acts: filters, fields, hints and actions of volumes; what nothing acts on is refused."""

import uuid

import pytest

from tests.support.control.counting import counted
from tests.support.control.serving import ADMIN, BOB

from .conftest import IMAGE, work


def made(ask, **fields):
    return ask("POST", "/v3/volumes", {"volume": {"size": 1, **fields}}, status=202)["volume"]["id"]


def names(ask, query, noun="volumes"):
    return sorted(one["name"] for one in ask("GET", f"/v3/{noun}?{query}", status=200)[noun])


def refused(ask, method, path, body=None, word="", status=400):
    document = ask(method, path, body, status=status)
    assert word in str(document), document


@pytest.fixture
def three(ask, service):
    made(ask, name="a", metadata={"env": "prod", "x": "y\"z"})
    made(ask, name="b", metadata={"env": "test"}, volume_type="fast")
    made(ask, name="c", imageRef=IMAGE)
    work(service)
    return ask


@pytest.mark.parametrize("query, found", [
    ("metadata={'env': 'prod'}", ["a"]), ('metadata={"env":"prod"}', ["a"]), ("metadata={'env':'pro'}", []),
    ("metadata={'x': 'y\"z'}", ["a"]), ("metadata={}", ["a", "b", "c"]), ("volume_type=fast", ["b"]),
    ("glance_metadata={'image_name':'cirros'}", ["c"]), ("created_at=gt:2000-01-01T00:00:00", ["a", "b", "c"]),
    ("created_at=gt:2000-01-01,lt:2001-01-01", []), ("display_name=a", ["a"]), ("project_id=red", ["a", "b", "c"]),
    ("project_id=blue", [])])
def test_filters_of_volumes_act(three, query, found):
    assert names(three, query) == found


@pytest.mark.parametrize("query, word", [
    ("colour=red", "colour"), ("metadata=red", "metadata"), ("metadata=[1]", "metadata"),
    ("metadata=" + "(" * 300, "metadata"), ("created_at=soon", "created_at"), ("created_at=gt:", "created_at"),
    ("sort=name:up", "up"), ("status~=a", "status~")])
def test_what_is_no_filter_is_refused(ask, query, word):
    for noun in ("volumes", "snapshots", "attachments"):
        refused(ask, "GET", f"/v3/{noun}?{query}", word=word.split("=")[0])


@pytest.mark.parametrize("metadata", [{'of"env': "prod"}, {',"env': "prod"}, {"a": '{"env":"prod"'}, {"env": 'prod"'}])
def test_a_pair_is_not_found_inside_of_others(ask, metadata):
    made(ask, name="a", metadata=metadata)
    assert names(ask, "metadata={'env':'prod'}") == []
    assert names(ask, f"metadata={metadata}") == ["a"]


def test_hints_of_many_volumes_are_one_question(ask, service, cloud):
    cloud.up.clear()
    ids = [made(ask) for _ in range(5)]
    counts = []
    for hints in ({"same_host": ids[:1]}, {"same_host": ids, "different_host": ids}):
        with counted(api=service.database) as asked:
            refused(ask, "POST", "/v3/volumes", {"volume": {"size": 1}, "scheduler_hints": hints}, "No host")
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_hints_tell_nothing_of_volumes_of_others(ask):
    id = made(ask.as_(BOB))
    refused(ask, "POST", "/v3/volumes", {"volume": {"size": 1}, "scheduler_hints": {"different_host": id}}, id, 404)


def test_snapshots_are_listed_by_their_metadata(ask, service):
    volume = made(ask)
    work(service)
    for name in ("s1", "s2"):
        ask("POST", "/v3/snapshots", {"snapshot": {"volume_id": volume, "name": name, "metadata": {"of": name}}}, 202)
    assert names(ask, "metadata={'of':'s1'}", "snapshots") == ["s1"]


def test_types_have_pages_and_filters(ask, service):
    admin = ask.as_(ADMIN)
    admin("POST", "/v3/types", {"volume_type": {"name": "shared", "extra_specs": {"multiattach": "<is> True"}}})

    def listed(query):
        return [one["name"] for one in admin("GET", f"/v3/types?{query}", status=200)["volume_types"]]

    assert listed("extra_specs={'multiattach': '<is> True'}") == ["shared"]
    assert listed("limit=1&sort=name:desc") == ["shared"]
    assert listed("sort_key=name&sort_dir=asc") == ["default", "fast", "shared"]
    first = admin("GET", "/v3/types?limit=1")
    assert first["volume_types_links"][0]["rel"] == "next"
    assert listed(f"marker={first['volume_types'][0]['id']}") == ["fast", "shared"]
    for query in ("colour=red", "marker=none", "sort=colour"):
        refused(admin, "GET", f"/v3/types?{query}")


def test_services_pools_and_limits_are_those_asked_for(ask):
    admin = ask.as_(ADMIN)

    def services(query):
        return [one["host"] for one in admin("GET", f"/v3/os-services?{query}", status=200)["services"]]

    assert services("host=kvm1@magnetar") == services("host=kvm1") == ["kvm1@magnetar"]
    assert services("binary=cinder-backup") == []
    refused(admin, "GET", "/v3/os-services?colour=red", word="colour")
    refused(admin, "PUT", "/v3/os-services/disable", {"host": "kvm1"}, "compute service")
    pools = admin("GET", "/v3/scheduler-stats/get_pools?volume_type=fast")["pools"]
    assert [one["name"] for one in pools] == ["kvm1@magnetar#fast", "kvm2@magnetar#fast"]
    admin("PUT", "/v3/os-quota-sets/blue", {"quota_set": {"volumes": 3}}, 200)
    assert admin("GET", "/v3/limits?project_id=blue")["limits"]["absolute"]["maxTotalVolumes"] == 3
    refused(ask, "GET", "/v3/limits?project_id=blue", status=403)
    for query in ("tenant_id", "project_id=blue&tenant_id"):  # python-cinderclient, so Horizon
        assert admin("GET", f"/v3/limits?{query}=blue")["limits"]["absolute"]["maxTotalVolumes"] == 3
    refused(ask, "GET", "/v3/limits?tenant_id=blue", status=403)
    ask("GET", "/v3/limits?tenant_id=red", status=200)


def test_a_quota_below_what_is_there(ask):
    made(ask)
    admin, path = ask.as_(ADMIN), "/v3/os-quota-sets/red"
    refused(admin, "PUT", path, {"quota_set": {"volumes": 0, "skip_validation": False}}, "volumes")
    refused(admin, "PUT", f"{path}?skip_validation=False", {"quota_set": {"volumes": 0, "tenant_id": "red"}}, "volumes")
    assert admin("GET", path)["quota_set"]["volumes"] == 10
    refused(admin, "PUT", path, {"quota_set": {"backups": [], "groups": 0}}, "backups", 400)
    admin("PUT", path, {"quota_set": {"volumes": 0}}, 200)


def test_quotas_of_groups_are_kept_and_those_of_backups_limit(ask):
    """Clients set all quotas at once, compare what they set, and read the limits. Quotas of groups limit nothing."""
    admin, path, wish = ask.as_(ADMIN), "/v3/os-quota-sets/red", {"backups": 5, "backup_gigabytes": "-1", "groups": 10}
    for at in (path, "/v3/os-quota-class-sets/default"):
        noun = "quota_set" if at == path else "quota_class_set"
        assert [admin("GET", at)[noun][name] for name in wish] == [10, 1000, 0]
        for shown in (admin("PUT", at, {noun: wish}, 200), admin("GET", at)):
            assert [shown[noun][name] for name in wish] == [5, -1, 10]
    limits = ask("GET", "/v3/limits")["limits"]["absolute"]
    assert (limits["maxTotalBackups"], limits["maxTotalBackupGigabytes"], limits["totalBackupsUsed"]) == (5, -1, 0)
    assert admin("GET", f"{path}?usage=True")["quota_set"]["groups"] == {"limit": 10, "in_use": 0, "reserved": 0}
    admin("DELETE", path, status=200)
    assert admin("GET", path)["quota_set"]["backups"] == 5  # of the class


def test_the_quota_class_is_what_projects_have_without_their_own(ask):
    admin = ask.as_(ADMIN)
    admin("PUT", "/v3/os-quota-class-sets/default", {"quota_class_set": {"volumes": 7}}, 200)
    assert admin("GET", "/v3/os-quota-class-sets/default")["quota_class_set"]["volumes"] == 7
    assert ask("GET", "/v3/os-quota-sets/red")["quota_set"]["volumes"] == 7
    shown = admin("GET", "/v3/os-quota-class-sets/default")
    answer = admin("PUT", "/v3/os-quota-class-sets/default", shown, 200)["quota_class_set"]
    assert {"id": "default", **answer} == shown["quota_class_set"]
    refused(admin, "GET", "/v3/os-quota-class-sets/gold", status=404)


def test_messages_are_shown_and_forgotten(ask, service, cloud):
    cloud.up.clear()
    ids = [made(ask, name=name) for name in "ab"]
    with service.database.write() as connection:
        from magnetar_control.services.volume.tables import volumes
        connection.execute(volumes.update().values(fault="No room.", status="error"))
    shown = ask("GET", f"/v3/messages/{ids[0]}", status=200)["message"]
    assert (shown["user_message"], shown["resource_uuid"]) == ("No room.", ids[0])
    assert len(ask("GET", "/v3/messages?limit=1")["messages"]) == 1
    assert ask("GET", f"/v3/messages?resource_uuid={ids[1]}")["messages"][0]["id"] == ids[1]
    refused(ask, "GET", "/v3/messages?colour=red", word="colour")
    refused(ask.as_(BOB), "DELETE", f"/v3/messages/{ids[0]}", status=404)

    def told(ask, query=""):
        return [one["id"] for one in ask("GET", f"/v3/messages?{query}", status=200)["messages"]]

    assert told(ask) == told(ask, "all_tenants=1") == ids[::-1]
    assert told(ask.as_(BOB), "all_tenants=1") == told(ask.as_(BOB), "project_id=red") == []
    assert told(ask.as_(ADMIN), "project_id=red") == told(ask.as_(ADMIN), "all_tenants=1&limit=2") == ids[::-1]
    assert told(ask.as_(ADMIN), "project_id=blue") == []
    ask("DELETE", f"/v3/messages/{ids[0]}", status=204)
    refused(ask, "GET", f"/v3/messages/{ids[0]}", status=404)
    refused(ask, "DELETE", f"/v3/messages/{ids[0]}", status=404)


def test_filters_are_told(ask):
    found = ask("GET", "/v3/resource_filters?resource=snapshot", status=200)["resource_filters"]
    assert [one["resource"] for one in found] == ["snapshot"]
    assert "volume_id" in found[0]["filters"]


@pytest.mark.parametrize("fields", [
    {"status": "error"}, {"attach_status": "attached"}, {"project_id": "blue"}, {"user_id": "bob"}])
def test_what_is_said_of_a_new_volume_must_be_so(ask, fields):
    refused(ask, "POST", "/v3/volumes", {"volume": {"size": 1, **fields}}, next(iter(fields)))
    so = {"status": "creating", "attach_status": "detached", "project_id": "red", "user_id": "alice"}
    made(ask, **so)
    made(ask, **dict.fromkeys(so))


def test_hints_choose_the_host(ask, service, cloud):
    cloud.up.update(("kvm1", "kvm2"))
    admin = ask.as_(ADMIN)

    def hinted(status=202, source=None, **hints):
        body = {"volume": {"size": 1, "source_volid": source}, "OS-SCH-HNT:scheduler_hints": hints}
        told = admin("POST", "/v3/volumes", body, status=status)
        if status == 202:
            id = told["volume"]["id"]
            return id, admin("GET", f"/v3/volumes/{id}")["volume"]["os-vol-host-attr:host"].partition("@")[0]
        return told

    first, host = hinted()
    other, elsewhere = hinted(different_host=[first])
    assert {host, elsewhere} == {"kvm1", "kvm2"}
    assert hinted(same_host=other)[1] == elsewhere
    assert hinted(same_host=[first], different_host=other)[1] == host
    hinted(400, same_host=first, different_host=first)
    hinted(404, same_host=str(uuid.uuid4()))
    assert "local_to_instance" in str(hinted(400, local_to_instance=first))
    work(service)


def test_a_copy_lies_where_its_source_does(ask, service):
    source = made(ask)
    work(service)
    body = {"volume": {"size": 1, "source_volid": source}, "scheduler_hints": {"different_host": [source]}}
    refused(ask, "POST", "/v3/volumes", body, "source")


@pytest.mark.parametrize("given", [
    {"attach_status": "attached"}, {"attach_status": "broken"}, {"status": "error", "migration_status": "migrating"}])
def test_a_status_that_says_what_is_not_so(ask, service, given):
    volume = made(ask)
    work(service)
    refused(ask.as_(ADMIN), "POST", f"/v3/volumes/{volume}/action", {"os-reset_status": given})
    assert ask("GET", f"/v3/volumes/{volume}")["volume"]["status"] == "available"


def test_who_sees_an_image_is_said_from_3_1_on(ask, service):
    volume = made(ask)
    work(service)
    ask.headers["openstack-api-version"] = "volume 3.0"
    body = {"os-volume_upload_image": {"image_name": "golden", "visibility": "private"}}
    refused(ask, "POST", f"/v3/volumes/{volume}/action", body, "3.1")
    assert ask("GET", f"/v3/volumes/{volume}")["volume"]["status"] == "available"


@pytest.mark.parametrize("path", [
    "groups", "groups/action", "group_snapshots", "group_types", "consistencygroups", "cgsnapshots",
    "consistencygroups/create_from_src", "qos-specs", "manageable_snapshots"])
def test_what_there_is_none_of_says_why(ask, path):
    refused(ask, "POST", f"/v3/{path}", {"backup": {}}, "mbedded volumes")


@pytest.mark.parametrize("action", ["os-force_detach", "os-initialize_connection", "os-migrate_volume_completion"])
def test_actions_that_there_are_not_say_why(ask, service, action):
    refused(ask, "POST", f"/v3/volumes/{made(ask)}/action", {action: {}}, f"have no {action}: ")


@pytest.mark.parametrize("connector", [{"host": "kvm1", "initiator": "iqn"}, {}, None, "x"])
def test_no_connection_ends_without_a_word(ask, service, connector):
    """Clients end a connection that may never have been made."""
    volume = made(ask)
    work(service)
    at, body = f"/v3/volumes/{volume}", {"os-terminate_connection": {"connector": connector}}
    before = ask("GET", at)
    ask("POST", f"{at}/action", body, 202)
    assert ask("GET", at) == before
    refused(ask, "POST", f"{at}/action", {"os-terminate_connection": {}}, "connector")
    refused(ask.as_(BOB), "POST", f"{at}/action", body, status=404)


@pytest.mark.parametrize("nothing", [{}, None, ""])
def test_an_action_without_fields_has_nothing_in_it(ask, service, nothing):
    """gophercloud sends an empty text."""
    admin, volume = ask.as_(ADMIN), made(ask)
    work(service)
    taken = ask("POST", "/v3/snapshots", {"snapshot": {"volume_id": volume}}, status=202)["snapshot"]["id"]
    admin("POST", f"/v3/snapshots/{taken}/action", {"os-force_delete": nothing}, status=202)
    work(service)
    admin("POST", f"/v3/volumes/{volume}/action", {"os-force_delete": nothing}, status=202)
    refused(admin, "POST", f"/v3/volumes/{volume}/action", {"os-extend": nothing}, "new_size")
