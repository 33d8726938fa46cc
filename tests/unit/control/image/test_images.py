# SPDX-License-Identifier: GPL-3.0-or-later
"""Images: made, shown, listed, changed, shared, removed; and who may."""

import pytest

from magnetar_core.errors import Forbidden
from tests.support.control.counting import counted

from .glance import PATCH, RAW, USERS, Glance


def test_the_life_of_an_image(glance):
    made = glance.ann("POST", "/v2/images", {
        "name": "one", "disk_format": "raw", "container_format": "bare", "tags": ["b", "a", "b"],
        "os_distro": "debian"}, 201)
    id = made["id"]
    assert made.body.items() >= {
        "status": "queued", "visibility": "shared", "owner": "project-ann", "tags": ["a", "b"], "os_distro": "debian",
        "protected": False, "os_hidden": False, "min_disk": 0, "size": None, "checksum": None,
        "self": f"/v2/images/{id}", "file": f"/v2/images/{id}/file", "schema": "/v2/schemas/image"}.items()
    assert made.headers["Location"].endswith(f"/image/v2/images/{id}")
    glance.put(glance.ann, id, RAW, 204)
    shown = glance.ann("GET", f"/v2/images/{id}", None, 200)
    assert (shown["status"], shown["size"], shown["virtual_size"]) == ("active", len(RAW), len(RAW))
    assert shown["os_hash_algo"] == "sha512"
    assert glance.ann("GET", f"/v2/images/{id}/file", None, 200).body == RAW
    assert glance.ann("DELETE", f"/v2/images/{id}", None, 204).body == b""
    glance.ann("GET", f"/v2/images/{id}", None, 404)
    assert glance.files() == []


def test_changes(glance):
    id = glance.make("ann", name="one", os_distro="debian")
    changed = glance.patch(glance.ann, id, ("replace", "name", "two"), ("add", "hw_x", "1"), ("remove", "os_distro"),
                           ("replace", "tags", ["t"]), ("replace", "min_disk", 3), ("add", "a~1b", "c"), status=200)
    assert changed.body.items() >= {"name": "two", "hw_x": "1", "tags": ["t"], "min_disk": 3, "a/b": "c"}.items()
    assert "os_distro" not in changed.body
    assert glance.ann("GET", f"/v2/images/{id}").body == changed.body
    assert glance.patch(glance.ann, id, ("remove", "name"), status=200)["name"] is None


def test_patches_of_the_first_media_type(glance):
    """v2.0 names the operation as a key, with the path as its value."""
    id, old = glance.make("ann", name="one", os_distro="debian"), PATCH.replace("v2.1", "v2.0")
    body = [{"replace": "/name", "value": "two"}, {"add": "/a~1b", "value": "c"}, {"remove": "/os_distro"}]
    changed = glance.ann("PATCH", f"/v2/images/{id}", body, 200, content_type=old)
    assert (changed["name"], changed["a/b"], "os_distro" in changed.body) == ("two", "c", False)
    for kind, operation in ((old, {"op": "replace", "path": "/name", "value": "x"}), (old, {}), (old, 5),
                            (old, {"add": "/a", "remove": "/b", "value": "x"}), (old, {"add": "a", "value": "x"}),
                            (PATCH, {"replace": "/name", "value": "x"})):
        glance.ann("PATCH", f"/v2/images/{id}", [operation], 400, content_type=kind)
    glance.ann("PATCH", f"/v2/images/{id}", {}, 400, content_type=old)
    assert glance.ann("GET", f"/v2/images/{id}").body == changed.body


@pytest.mark.parametrize("operations, status", [
    ([("replace", "nothing", "x")], 409), ([("remove", "nothing")], 409), ([("replace", "status", "active")], 403),
    ([("replace", "id", "x")], 403), ([("add", "checksum", "x")], 403), ([("remove", "visibility")], 403),
    ([("add", "os_glance_x", "x")], 403), ([("move", "name", "x")], 400), ([("replace", "name")], 400),
    ([("replace", "name", 5)], 400), ([("replace", "name", "x" * 256)], 400), ([("add", "x", "a\0")], 400),
    ([("add", "x", 5)], 400), ([("add", "x", None)], 400), ([("add", "a/b", "x")], 400), ([("add", "", "x")], 400),
    ([("replace", "min_ram", -1)], 400), ([("replace", "min_ram", True)], 400), ([("replace", "protected", "no")], 400),
    ([("replace", "visibility", "all")], 400), ([("replace", "visibility", "public")], 403),
    ([("replace", "owner", "project-bob")], 403), ([("replace", "tags", "x")], 400), ([("replace", "tags", [1])], 400),
    ([("add", "good", "x"), ("add", "bad", 1)], 400), ([("add", f"p{n}", "x") for n in range(129)], 413)])
def test_bad_changes_change_nothing(small, operations, status):
    id = small.make("ann", name="one")
    before = small.show(id)
    assert small.patch(small.ann, id, *operations, status=status)["message"]
    assert small.show(id) == before


@pytest.mark.parametrize("body, kind, status", [
    (b"[", PATCH, 400), ({}, PATCH, 400), ([1], PATCH, 400), ([], "application/json", 415), ([], "", 415)])
def test_bad_patches(small, body, kind, status):
    small.ann("PATCH", f"/v2/images/{small.make('ann')}", body, status, content_type=kind)


@pytest.mark.parametrize("fields, status", [
    ({"id": "one"}, 400), ({"id": "../../etc/passwd"}, 400), ({"name": 1}, 400), ({"disk_format": "exe"}, 400),
    ({"container_format": "ovf"}, 400), ({"status": "active"}, 403), ({"visibility": "public"}, 403), ({"x": 1}, 400),
    ({"owner": "project-bob"}, 403), ({"min_disk": 2**31}, 400), ({"properties": {"a": "b"}}, 400),
    ({"tags": [""]}, 400), ({"tags": ["a\n"]}, 400), ({"a\r\nb": "c"}, 400)])
def test_bad_images(small, fields, status):
    assert small.ann("POST", "/v2/images", {"name": "one", **fields}, status)["message"]
    assert small.names(small.admin) == []


@pytest.mark.parametrize("name", ["visibility", "owner", "protected", "id", "status", "os_glance_import"])
def test_properties_set_no_fields(small, name):
    """Whoever makes images for callers hands over their properties, which they name as they like."""
    with pytest.raises(Forbidden, match=name):
        small.service.create(USERS["ann"], "one", visibility="private", properties={name: "public"})
    assert small.names(small.admin) == []


def test_who_makes_images_for_callers_gives_no_more_than_they_may(small):
    for given in ({"visibility": "public"}, {"owner": "project-bob"}):
        with pytest.raises(Forbidden):
            small.service.create(USERS["ann"], "one", **given)
    assert small.names(small.admin) == []


def test_an_id_may_be_given_once(glance):
    id = "6f8b1c8e-52c1-4b0f-8f68-4bbd8b4a8a11"
    assert glance.make("ann", id=id.upper()) == id
    glance.bob("POST", "/v2/images", {"id": id}, 409)


def test_the_id_of_a_deleted_image_is_not_given_again(glance):
    """Hosts may still have its content, and scripts its id: both would take the new image for the old one."""
    id = glance.make("ann", RAW, visibility="private")
    glance.ann("DELETE", f"/v2/images/{id}", None, 204)
    for who in (glance.bob, glance.ann, glance.admin):
        assert "deleted" in who("POST", "/v2/images", {"id": id.upper()}, 409)["message"]
    glance.ann("GET", f"/v2/images/{id}", None, 404)
    assert glance.make("ann") != id


def test_who_sees_what(glance):
    """Another project's image is not there; what is shown to all may still not be changed."""
    ids = {visibility: glance.make("ann", RAW, name=visibility, visibility=visibility)
           for visibility in ("private", "shared", "community")}
    ids["public"] = glance.make("admin", RAW, name="public", visibility="public")
    assert glance.names(glance.ann) == ["community", "private", "public", "shared"]
    assert glance.names(glance.bob) == ["public"]
    assert glance.names(glance.bob, "visibility=community") == ["community"]
    assert glance.names(glance.bob, "visibility=all") == ["community", "public"]
    assert glance.names(glance.bob, "visibility=private") == []
    assert glance.names(glance.admin) == ["community", "private", "public", "shared"]
    for visibility, id in ids.items():
        hidden = 404 if visibility in ("private", "shared") else None
        glance.bob("GET", f"/v2/images/{id}", None, hidden or 200)
        glance.bob("GET", f"/v2/images/{id}/file", None, hidden or 200)
        for status in (glance.bob("DELETE", f"/v2/images/{id}").status, glance.put(glance.bob, id, RAW).status,
                       glance.patch(glance.bob, id, ("replace", "name", "x")).status,
                       glance.bob("PUT", f"/v2/images/{id}/tags/x").status):
            assert status == (hidden or 403)
    assert glance.admin("GET", f"/v2/images/{ids['private']}/file", None, 200).body == RAW


def test_readers_only_read(glance):
    id = glance.make("ann", RAW)
    assert glance.rea("GET", f"/v2/images/{id}/file", None, 200).body == RAW
    glance.rea("POST", "/v2/images", {"name": "x"}, 403)
    glance.rea("DELETE", f"/v2/images/{id}", None, 403)
    glance.patch(glance.rea, id, ("replace", "name", "x"), status=403)
    glance.rea("POST", f"/v2/images/{id}/members", {"member": "x"}, 403)


def test_readers_accept_and_reject_nothing(glance):
    id, own = glance.make("bob"), USERS["rea"].project_id
    glance.bob("POST", f"/v2/images/{id}/members", {"member": own}, 200)
    glance.rea("PUT", f"/v2/images/{id}/members/{own}", {"status": "accepted"}, 403)
    glance.ann("PUT", f"/v2/images/{id}/members/{own}", {"status": "accepted"}, 200)


def test_who_is_no_reader_sees_no_images(glance):
    """Neither who has no project yet, nor a service: not even public ones."""
    id = glance.make("admin", RAW, visibility="public")
    glance.eve("GET", f"/v2/images/{id}", None, 200)
    for path in (f"/v2/images/{id}", f"/v2/images/{id}/file", f"/v2/images/{id}/members"):
        glance.svc("GET", path, None, 404)
    glance.svc("GET", "/v2/images", None, 403)


def test_without_a_token(small):
    got = small.ann.as_(None)("GET", "/v2/images", None, 401)
    assert got.headers["WWW-Authenticate"] == 'Keystone uri="http://cloud:8774/identity"'


def test_sharing(glance):
    id = glance.make("ann", RAW, name="one")
    path, bob = f"/v2/images/{id}/members", USERS["bob"].project_id
    assert glance.ann("POST", path, {"member": bob}, 200)["status"] == "pending"
    glance.ann("POST", path, {"member": bob}, 409)
    glance.ann("POST", path, {"member": 5}, 400)
    assert glance.names(glance.bob) == []
    assert glance.names(glance.bob, "member_status=pending&visibility=shared") == ["one"]
    assert glance.bob("GET", f"/v2/images/{id}", None, 200)["name"] == "one"
    glance.ann("PUT", f"{path}/{bob}", {"status": "accepted"}, 403)
    glance.bob("PUT", f"{path}/{bob}", {"status": "maybe"}, 400)
    assert glance.bob("PUT", f"{path}/{bob}", {"status": "accepted"}, 200)["status"] == "accepted"
    assert glance.names(glance.bob) == ["one"]
    assert glance.bob("GET", f"/v2/images/{id}/file", None, 200).body == RAW
    assert [found["member_id"] for found in glance.bob("GET", path, None, 200)["members"]] == [bob]
    glance.eve("GET", path, None, 404)
    glance.bob("POST", path, {"member": "project-eve"}, 403)
    glance.bob("DELETE", f"/v2/images/{id}", None, 403)
    glance.patch(glance.ann, id, ("replace", "visibility", "private"), status=200)
    glance.bob("GET", f"/v2/images/{id}", None, 404)
    glance.ann("POST", path, {"member": "project-eve"}, 403)
    glance.ann("DELETE", f"{path}/{bob}", None, 204)
    glance.ann("GET", f"{path}/{bob}", None, 404)


def test_an_image_is_shared_with_so_many(glance):
    id = glance.make("ann")
    path = f"/v2/images/{id}/members"
    for number in range(128):
        glance.ann("POST", path, {"member": f"project{number}"}, 200)
    assert "with 128 projects" in glance.ann("POST", path, {"member": "more"}, 413)["message"]
    assert len(glance.ann("GET", path, None, 200)["members"]) == 128
    glance.ann("POST", path, {"member": "project1"}, 409)
    glance.ann("DELETE", f"{path}/project1", None, 204)
    glance.ann("POST", path, {"member": "more"}, 200)


def test_tags(glance):
    id = glance.make("ann", name="one")
    for _twice in range(2):
        glance.ann("PUT", f"/v2/images/{id}/tags/red%20hat", None, 204)
    assert glance.show(id)["tags"] == ["red hat"]
    assert glance.names(glance.ann, "tag=red+hat") == ["one"]
    assert glance.names(glance.ann, "tag=red+hat&tag=blue") == []
    glance.ann("DELETE", f"/v2/images/{id}/tags/red%20hat", None, 204)
    glance.ann("DELETE", f"/v2/images/{id}/tags/red%20hat", None, 404)


def test_protected_images_stay(glance):
    id = glance.make("ann", RAW, protected=True)
    glance.ann("DELETE", f"/v2/images/{id}", None, 403)
    glance.admin("DELETE", f"/v2/images/{id}", None, 403)
    glance.patch(glance.ann, id, ("replace", "protected", False), status=200)
    glance.ann("DELETE", f"/v2/images/{id}", None, 204)


def test_deactivated_images_keep_their_content_back(glance):
    id, queued = glance.make("ann", RAW), glance.make("ann")
    glance.ann("POST", f"/v2/images/{id}/actions/deactivate", None, 403)
    glance.admin("POST", f"/v2/images/{queued}/actions/deactivate", None, 403)
    for _twice in range(2):
        glance.admin("POST", f"/v2/images/{id}/actions/deactivate", None, 204)
    glance.ann("GET", f"/v2/images/{id}/file", None, 403)
    assert glance.admin("GET", f"/v2/images/{id}/file", None, 200).body == RAW
    glance.admin("POST", f"/v2/images/{id}/actions/reactivate", None, 204)
    assert glance.ann("GET", f"/v2/images/{id}/file", None, 200).body == RAW


def test_filters(glance):
    glance.make("ann", RAW, name="a", os_type="linux", min_ram=5)
    glance.make("ann", name="b", os_type='li"nux', disk_format="qcow2")
    glance.make("ann", name="hidden", os_hidden=True)
    for query, names in {
            "": ["a", "b"], "name=a": ["a"], "name=A": [], "name=in:a,b,c": ["a", "b"], "status=active": ["a"],
            "status=queued": ["b"], "os_type=linux": ["a"], "os_type=LINUX": [], "os_type=li%22nux": ["b"],
            "os_type=l": [], "disk_format=qcow2": ["b"], "size_min=1": ["a"], "size_max=1": [], "min_ram=5": ["a"],
            "os_hidden=true": ["hidden"], "owner=project-ann": ["a", "b"], "owner=x": [],
            "protected=true": [], "created_at=gt:2020-01-01T00:00:00Z": ["a", "b"],
            "updated_at=lt:2020-01-01T00:00:00Z": []}.items():
        assert glance.names(glance.ann, query) == names, query


def test_a_filter_is_not_met_by_the_end_of_another_name(glance):
    glance.make("ann", name="a", **{'not "colour': "red"})
    assert glance.names(glance.ann, "colour=red") == []
    assert glance.names(glance.ann, "not%20%22colour=red") == ["a"]


@pytest.mark.parametrize("query", [
    "limit=x", "limit=-1", "sort=colour", "sort=name:up", "sort_key=x", "marker=x", "visibility=x", "member_status=x",
    "protected=maybe", "size_min=x", "name=%00", "sort=name,name:asc", "sort_key=id&sort=id",
    "sort_key=name&" * 200, "&".join(f"colour=c{number}" for number in range(101))])
def test_bad_queries(small, query):
    assert small.ann("GET", f"/v2/images?{query}", None, 400)["message"]


def test_a_filter_that_is_repeated_is_one(small):
    assert small.ann("GET", f"/v2/images?{'colour=red&' * 1500}name=a", None, 200)["images"] == []


@pytest.mark.parametrize("sort", ["", "sort=name:asc", "sort=size:desc,name:asc", "sort_key=name&sort_dir=desc",
                                  "sort=updated_at"])
def test_pages_show_each_image_once(glance, sort):
    made = {glance.make("ann", RAW if number % 2 else None, **({"name": "same"} if number < 3 else {}))
            for number in range(7)}
    seen, path = [], f"/v2/images?limit=2&{sort}"
    while path:
        got = glance.ann("GET", path, None, 200)
        assert len(got["images"]) <= 2
        seen += [found["id"] for found in got["images"]]
        path = got.body.get("next")
    assert len(seen) == 7
    assert set(seen) == made


def test_a_list_costs_two_queries(small):
    for number in range(5):
        small.make("ann", tags=[f"t{number}"])
    with counted(images=small.service.database) as seen:
        small.names(small.ann)
    assert len(seen) == 2


def test_versions_and_schemas(small):
    for path, status in (("/", 300), ("/versions", 200)):
        found = small.ann.as_(None)("GET", path, None, status)["versions"]
        assert found[0]["status"] == "CURRENT"
        assert found[0]["links"][0]["href"] == "http://cloud:8774/image/v2/"
    assert small.ann("GET", "/v2/schemas/image", None, 200)["properties"]["status"]["readOnly"]
    for name in ("images", "member", "members"):
        assert small.ann("GET", f"/v2/schemas/{name}", None, 200)["name"] == name
    small.ann("GET", "/v2/schemas/moon", None, 404)


def test_what_there_is_none_of(small):
    """In the form in which clients look for it."""
    namespaces = small.ann("GET", "/v2/metadefs/namespaces", None, 200).body
    assert namespaces == {"namespaces": [], "first": "/v2/metadefs/namespaces",
                          "schema": "/v2/schemas/metadefs/namespaces"}
    assert small.ann("GET", "/v2/metadefs/resource_types", None, 200).body == {"resource_types": []}
    assert small.admin("GET", "/v2/tasks", None, 200).body == {
        "tasks": [], "first": "/v2/tasks", "schema": "/v2/schemas/tasks"}
    definitions = ("namespace", "object", "property", "resource_type", "tag", "namespaces", "objects", "properties",
                   "resource_types", "tags")
    for name in ("task", "tasks", *(f"metadefs/{name}" for name in definitions)):
        assert small.ann("GET", f"/v2/schemas/{name}", None, 200)["properties"]
    small.ann("GET", "/v2/schemas/metadefs/moon", None, 404)
    small.ann("GET", "/v2/metadefs/namespaces/none", None, 404)
    small.ann("GET", "/v2/tasks", None, 403)
    small.admin("GET", "/v2/tasks/none", None, 404)
    small.admin("POST", "/v2/tasks", {"type": "import"}, 400)


def test_the_interface(database, tmp_path):
    """As Nova uses it: see ``services.Images``."""
    service, ann = Glance(database, tmp_path).service, USERS["ann"]
    made = service.create(ann, "snap", disk_format="raw", container_format="bare", properties={"k": "v"}, min_disk=2)
    assert made.items() >= {"status": "queued", "properties": {"k": "v"}, "min_disk": 2, "tags": []}.items()
    assert service.upload(made["id"], iter([RAW, RAW]))["status"] == "active"
    pieces, size = service.content(made["id"])
    assert (b"".join(pieces), size) == (RAW * 2, len(RAW) * 2)
    assert service.show(ann, made["id"])["properties"] == {"k": "v"}
    assert service.show(USERS["bob"], made["id"]) is None
    service.delete(USERS["bob"], made["id"])
    assert service.show(ann, made["id"])
    service.delete(ann, made["id"])
    service.delete(ann, made["id"])
    assert service.show(ann, made["id"]) is None
    lost = service.create(ann, "lost")
    service.fail(lost["id"], "the host is gone")
    assert service.show(ann, lost["id"])["status"] == "killed"
