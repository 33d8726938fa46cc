# SPDX-License-Identifier: GPL-3.0-or-later
"""What is accepted acts: filters, imports and members of images, and what is refused because nothing acts on it."""

import pytest

from .glance import RAW


def refused(answer, *words, status=400):
    assert answer.status == status, answer.body
    for word in words:
        assert word in answer.body["message"], answer.body


def names(glance, query):
    return sorted(one["name"] for one in glance.ann("GET", f"/v2/images?{query}", None, 200)["images"])


@pytest.mark.parametrize("query, found", [
    ("os_hash_algo=sha512", ["full"]), ("os_hash_algo=md5", []), (f"virtual_size={len(RAW)}", ["full"]),
    ("why=mine", ["empty"]), ("created_at=gt:2000-01-01T00:00:00Z", ["empty", "full"]),
    ("created_at=lt:2000-01-01T00:00:00%2B02:00", [])])
def test_filters_act(glance, query, found):
    glance.make("ann", name="empty", why="mine")
    glance.put(glance.ann, glance.make("ann", name="full", disk_format="raw", container_format="bare"), RAW, 204)
    assert names(glance, query) == found


@pytest.mark.parametrize("query, word", [
    ("created_at=soon", "created_at"), ("updated_at=gt:", "updated_at"), ("virtual_size=big", "virtual_size"),
    ("locations=x", "locations"), ("self=x", "self"), ("created_at=in:2026-01-01T00:00:00Z", "created_at")])
def test_what_is_no_filter_is_refused(small, query, word):
    refused(small.ann("GET", f"/v2/images?{query}"), word)


@pytest.mark.parametrize("body, words", [
    ({"method": {"name": "web-download", "uri": "http://x"}}, ("method.name", "downloaded")),
    ({"method": {"name": "copy-image"}, "stores": ["a"]}, ("one store",)),
    ({"method": {"name": "beam"}}, ("no such method",)), ({"method": {"name": 5}}, ("glance-direct",)),
    ({"method": {"name": "glance-direct"}, "stores": ["a"]}, ("stores", "one store")),
    ({"method": {"name": "glance-direct"}, "all_stores": True}, ("all_stores",)),
    ({"method": {"name": "glance-direct", "uri": "x"}}, ("uri",)),
    ({"method": {"name": "glance-direct"}, "colour": "red"}, ("colour",))])
def test_imports_that_are_not_there_say_why(small, body, words):
    id = small.make("ann", disk_format="raw", container_format="bare")
    refused(small.ann("POST", f"/v2/images/{id}/import", body), *words)
    refused(small.ann("POST", f"/v2/images/{id}/import", {"method": {"name": "glance-direct"}, "stores": [],
                                                          "all_stores_must_succeed": True}), "stage", status=409)


def test_content_goes_to_no_other_store(small):
    id = small.make("ann", disk_format="raw", container_format="bare")
    answer = small.ann("PUT", f"/v2/images/{id}/file", RAW, x_image_meta_store="far",
                       content_type="application/octet-stream")
    refused(answer, "X-Image-Meta-Store")
    assert small.ann("GET", f"/v2/images/{id}")["status"] == "queued"


def test_a_member_is_nothing_but_a_project(small):
    id = small.make("ann")
    refused(small.ann("POST", f"/v2/images/{id}/members", {"member": "project-bob", "status": "accepted"}), "status")
    small.ann("POST", f"/v2/images/{id}/members", {"member": "project-bob"}, 200)
    one = f"/v2/images/{id}/members/project-bob"
    refused(small.bob("PUT", one, {"status": "accepted", "colour": 1}), "colour")
    refused(small.bob("PUT", one, {"status": "accepted", "member": "project-ann"}), "member")
    told = {"status": "accepted", "member": "project-bob", "member_id": "project-bob", "image_id": id}
    assert small.bob("PUT", one, told, 200)["status"] == "accepted"


@pytest.mark.parametrize("disk, container", [("raw", "aki"), ("aki", "ari"), ("qcow2", "ari")])
def test_the_container_of_a_kernel_holds_a_kernel(small, disk, container):
    body = {"name": "one", "disk_format": disk, "container_format": container}
    refused(small.ann("POST", "/v2/images", body), "container_format")
    id = small.make("ann", disk_format=disk)
    refused(small.patch(small.ann, id, ("replace", "container_format", container)), "container_format")
    small.make("ann", disk_format="aki", container_format="aki")


@pytest.mark.parametrize("method, path, word", [
    ("GET", "/v2/info/stores", "one store"), ("GET", "/v2/cache", "no cache"), ("PUT", "/v2/cache/x", "no cache"),
    ("GET", "/v2/images/x/locations", "location"), ("GET", "/v2/metadefs/namespaces/x/objects", "namespace=x"),
    ("GET", "/v2/metadefs/namespaces/x/tags", "namespace=x")])
def test_what_is_not_there_says_why(small, method, path, word):
    refused(small.ann(method, path), word, status=404)


def test_an_image_has_no_tasks(small):
    id = small.make("ann")
    assert small.ann("GET", f"/v2/images/{id}/tasks", None, 200).body == {"tasks": []}
    small.bob("GET", f"/v2/images/{id}/tasks", None, 404)
