# SPDX-License-Identifier: GPL-3.0-or-later
"""Metadata, tags and addresses of servers."""

import pytest

from .compute import Compute, emptied


def path(id, noun="metadata", *rest):
    return "/".join(("/servers", id, noun, *rest))


def test_metadata_is_added_replaced_and_removed(compute):
    id = compute.server(metadata='{"a":"1"}')
    assert compute.alice.post(path(id), {"metadata": {"b": "2"}}).json == {"metadata": {"a": "1", "b": "2"}}
    assert compute.alice.put(path(id, "metadata", "a"), {"meta": {"a": "3"}}).json == {"meta": {"a": "3"}}
    assert compute.rita.get(path(id)).json == {"metadata": {"a": "3", "b": "2"}}
    assert compute.rita.get(path(id, "metadata", "a")).json == {"meta": {"a": "3"}}
    assert compute.alice.put(path(id), {"metadata": {"c": "4"}}).json == {"metadata": {"c": "4"}}
    assert compute.alice.delete(path(id, "metadata", "c")).status == 204
    assert compute.alice.get(path(id)).json == {"metadata": {}}
    for reply in (compute.alice.get(path(id, "metadata", "c")), compute.alice.delete(path(id, "metadata", "c"))):
        assert (reply.status, reply.message) == (404, "Metadata item was not found")


@pytest.mark.parametrize("body", [
    {}, {"metadata": []}, {"metadata": {"a": 1}}, {"metadata": {"a": None}}, {"metadata": {"a/b": "1"}},
    {"metadata": {"": "1"}}, {"metadata": {"x" * 256: "1"}}, {"metadata": {"a": "x" * 256}},
    {"metadata": {"a": "b\u0000"}}, {"metadata": {}, "more": 1}, [], None])
def test_wrong_metadata_is_refused_and_changes_nothing(small, body):
    id = small.server(metadata='{"a":"1"}')
    assert small.alice.post(path(id), body).status == 400
    assert small.alice.put(path(id), body).status == 400
    assert small.alice.get(path(id)).json == {"metadata": {"a": "1"}}


@pytest.mark.parametrize("body", [{"meta": {}}, {"meta": {"b": "1"}}, {"meta": {"a": "1", "b": "2"}}, {"a": "1"}])
def test_one_item_is_that_of_the_path(small, body):
    id = small.server()
    assert small.alice.put(path(id, "metadata", "a"), body).status == 400


def test_the_longest_key_and_value_are_taken(small):
    id, long = small.server(), {"x" * 255: "y" * 255}
    assert small.alice.post(path(id), {"metadata": long}).json == {"metadata": long}


def test_no_more_items_than_the_quota(sqlite_three, tmp_path):
    api = Compute(sqlite_three, tmp_path, quota_metadata_items=1)
    id = api.server(metadata='{"a":"1"}')
    for reply in (api.alice.post(path(id), {"metadata": {"b": "2"}}),
                  api.alice.put(path(id, "metadata", "b"), {"meta": {"b": "2"}}),
                  api.alice.put(path(id), {"metadata": {"b": "2", "c": "3"}})):
        assert (reply.status, reply.message) == (403, "Maximum number of metadata items exceeds 1")
    assert api.alice.post(path(id), {"metadata": {"a": "2"}}).status == 200
    emptied(sqlite_three)


def changes(id):
    yield "POST", path(id), {"metadata": {"b": "2"}}
    yield "PUT", path(id), {"metadata": {"b": "2"}}
    yield "PUT", path(id, "metadata", "a"), {"meta": {"a": "2"}}
    yield "DELETE", path(id, "metadata", "a"), None
    yield "PUT", path(id, "tags"), {"tags": ["b"]}
    yield "PUT", path(id, "tags", "b"), None
    yield "DELETE", path(id, "tags", "a"), None
    yield "DELETE", path(id, "tags"), None


def test_who_may_change_them(small):
    id = small.server(metadata='{"a":"1"}', tags='["a"]')
    for method, where, body in changes(id):
        assert small.rita.call(method, where, body, "2.26").status == 403
        assert small.bob.call(method, where, body, "2.26").status == 404
    for noun in ("metadata", "tags", "ips"):
        assert small.bob.get(path(id, noun), "2.26").status == 404
        assert small.rita.get(path(id, noun), "2.26").status == 200
    assert small.alice.get(path(id)).json == {"metadata": {"a": "1"}}


@pytest.mark.parametrize("state", ["building", "rescued", "error", "shelved"])
def test_a_server_in_another_state_keeps_its_metadata_and_tags(small, state):
    id = small.server(metadata='{"a":"1"}', tags='["a"]', vm_state=state)
    for method, where, body in changes(id):
        reply = small.alice.call(method, where, body, "2.26")
        assert reply.status == 409
        assert f"vm_state {state}" in reply.message


def test_a_lock_keeps_metadata_from_the_owner_and_not_tags(small):
    id = small.server(locked_by="owner")
    reply = small.alice.post(path(id), {"metadata": {"a": "1"}})
    assert (reply.status, reply.message) == (409, f"Instance {id} is locked")
    assert small.admin.post(path(id), {"metadata": {"a": "1"}}).status == 200
    assert small.alice.put(path(id, "tags", "a"), None, "2.26").status == 201


def test_tags_are_set_added_and_removed(compute):
    id = compute.server()
    assert compute.alice.put(path(id, "tags"), {"tags": ["two", "one", "two"]}, "2.26").json == {"tags": ["one", "two"]}
    added = compute.alice.put(path(id, "tags", "three"), None, "2.26")
    assert (added.status, added.json) == (201, None)
    assert added.headers["location"] == f"http://cloud/v2.1/servers/{id}/tags/three"
    again = compute.alice.put(path(id, "tags", "three"), None, "2.26")
    assert (again.status, "location" in again.headers) == (204, False)
    assert compute.alice.get(path(id, "tags"), "2.26").json == {"tags": ["one", "three", "two"]}
    assert compute.alice.get(path(id, "tags", "one"), "2.26").status == 204
    assert compute.alice.delete(path(id, "tags", "one"), "2.26").status == 204
    gone = compute.alice.get(path(id, "tags", "one"), "2.26")
    assert (gone.status, gone.message) == (404, f"Server {id} has no tag 'one'")
    assert compute.alice.delete(path(id, "tags", "one"), "2.26").status == 404
    assert compute.alice.delete(path(id, "tags"), "2.26").status == 204
    assert compute.alice.get(f"/servers/{id}", "2.26").json["server"]["tags"] == []


def test_tags_exist_since_2_26(small):
    id = small.server()
    assert small.alice.get(path(id, "tags"), "2.25").status == 404
    assert small.alice.put(path(id, "tags", "a"), None, "2.25").status == 404


@pytest.mark.parametrize("body", [
    {}, {"tags": "a"}, {"tags": ["a,b"]}, {"tags": ["a/b"]}, {"tags": [""]}, {"tags": ["x" * 61]}, {"tags": [1]},
    {"tags": [str(number) for number in range(51)]}, {"tags": [], "more": 1}])
def test_wrong_tags_are_refused(small, body):
    id = small.server(tags='["a"]')
    assert small.alice.put(path(id, "tags"), body, "2.26").status == 400
    assert small.alice.get(path(id, "tags"), "2.26").json == {"tags": ["a"]}


@pytest.mark.parametrize("tag", ["a,b", "a%2Fb", "x" * 61])
def test_a_wrong_tag_is_refused(small, tag):
    assert small.alice.put(path(small.server(), "tags", tag), None, "2.26").status == 400


def test_a_server_has_fifty_tags_at_most(small):
    id = small.server()
    small.alice.put(path(id, "tags"), {"tags": [str(number) for number in range(50)]}, "2.26")
    assert small.alice.put(path(id, "tags", "49"), None, "2.26").status == 204
    reply = small.alice.put(path(id, "tags", "50"), None, "2.26")
    assert (reply.status, reply.message) == (400, "The number of tags exceeded the per-server limit 50")


def test_addresses_by_network(compute):
    shown = ('{"private":[{"addr":"10.0.0.3","version":4,"OS-EXT-IPS:type":"fixed",'
             '"OS-EXT-IPS-MAC:mac_addr":"52:54:00:00:00:01"}]}')
    id, plain = compute.server(addresses=shown), [{"addr": "10.0.0.3", "version": 4}]
    assert compute.rita.get(path(id, "ips")).json == {"addresses": {"private": plain}}
    assert compute.rita.get(path(id, "ips", "private")).json == {"private": plain}
    gone = compute.rita.get(path(id, "ips", "public"))
    assert (gone.status, gone.message) == (404, "Instance is not a member of specified network")
    assert compute.rita.get(path(id, "ips") + "?a=b", "2.102").status == 400
    assert compute.rita.get(path(id, "ips") + "?a=b", "2.101").status == 200


@pytest.mark.parametrize(("query", "names"), [
    ("tags=a", "both one"), ("tags=a,b", "both"), ("tags-any=a,b", "both one"), ("tags-any=z", ""),
    ("not-tags=a", "none"), ("not-tags=a,b", "none one"), ("not-tags-any=b", "none one"),
    ("not-tags-any=a,b", "none"), ("not-tags=b&tags=a", "one"), ("not-tags=z", "both none one")])
def test_lists_by_tags(compute, query, names):
    for name, tags in (("both", '["a","b"]'), ("one", '["a"]'), ("none", "[]")):
        compute.server(name=name, tags=tags)
    found = compute.alice.get(f"/servers?{query}", "2.26")
    assert found.status == 200, found.json
    assert " ".join(sorted(one["name"] for one in found.json["servers"])) == names
