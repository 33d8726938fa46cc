# SPDX-License-Identifier: GPL-3.0-or-later
"""flavors: who sees which, what each microversion shows and takes, pages, access and extra specs."""

import pytest

TINY = {"name": "tiny", "ram": 512, "vcpus": 1, "disk": 1, "id": "1"}


def made(compute, version="2.1", **more):
    reply = compute.admin.post("/flavors", {"flavor": {**TINY, **more}}, version)
    assert reply.status == 200, reply
    return reply.json["flavor"]


def test_a_flavor_is_made_shown_described_and_deleted(compute):
    flavor = made(compute, "2.61", description="for the shop", swap="64", **{"OS-FLV-EXT-DATA:ephemeral": 2})
    assert flavor == {
        "id": "1", "name": "tiny", "ram": 512, "vcpus": 1, "disk": 1, "OS-FLV-EXT-DATA:ephemeral": 2, "swap": 64,
        "os-flavor-access:is_public": True, "OS-FLV-DISABLED:disabled": False, "rxtx_factor": 1.0,
        "description": "for the shop", "extra_specs": {}, "links": [
            {"rel": "self", "href": "http://cloud/v2.1/flavors/1"},
            {"rel": "bookmark", "href": "http://cloud/flavors/1"}]}
    assert compute.alice.get("/flavors/1", "2.61").json["flavor"] == flavor
    reply = compute.admin.put("/flavors/1", {"flavor": {"description": None}}, "2.55")
    assert reply.json["flavor"]["description"] is None
    assert compute.admin.delete("/flavors/1").status == 202
    assert compute.alice.get("/flavors/1").message == "Flavor 1 could not be found."
    assert compute.admin.delete("/flavors/1").status == 404


@pytest.mark.parametrize(("version", "keys", "swap"), [
    ("2.1", {"OS-FLV-DISABLED:disabled", "rxtx_factor"}, ""),
    ("2.55", {"OS-FLV-DISABLED:disabled", "rxtx_factor", "description"}, ""),
    ("2.74", {"OS-FLV-DISABLED:disabled", "rxtx_factor", "description", "extra_specs"}, ""),
    ("2.75", {"OS-FLV-DISABLED:disabled", "rxtx_factor", "description", "extra_specs"}, 0),
    ("2.102", {"description", "extra_specs"}, 0)])
def test_what_each_version_shows(small, version, keys, swap):
    flavor = made(small, version)
    always = {"id", "name", "links", "ram", "vcpus", "disk", "swap", "OS-FLV-EXT-DATA:ephemeral",
              "os-flavor-access:is_public"}
    assert set(flavor) == always | keys
    assert flavor["swap"] == swap
    assert small.alice.get("/flavors/detail", version).json["flavors"] == [flavor]
    brief = small.alice.get("/flavors", version).json["flavors"]
    assert [set(one) for one in brief] == [{"id", "name", "links"} | keys & {"description"}]


def test_an_id_is_drawn_when_none_is_given(small):
    assert len(made(small, id="auto")["id"]) == 36
    assert len(made(small, id=None, name="other")["id"]) == 36
    assert made(small, id=42, name="third")["id"] == "42"


@pytest.mark.parametrize(("more", "message"), [
    ({"name": "other"}, "Flavor with ID 1 already exists."), ({"id": "2"}, "Flavor with name tiny already exists.")])
def test_id_and_name_are_unique(compute, more, message):
    made(compute)
    reply = compute.admin.post("/flavors", {"flavor": {**TINY, **more}})
    assert (reply.status, reply.message) == (409, message)


@pytest.mark.parametrize(("version", "more", "named"), [
    ("2.1", {"ram": 0}, "flavor.ram"), ("2.1", {"vcpus": 2**31}, "flavor.vcpus"), ("2.1", {"disk": -1}, "flavor.disk"),
    ("2.1", {"id": " x"}, "flavor.id"), ("2.1", {"name": "x" * 256}, "flavor.name"),
    ("2.1", {"name": " x"}, "flavor.name"),
    ("2.1", {"ram": "many"}, "flavor.ram"), ("2.1", {"rxtx_factor": 0}, "flavor.rxtx_factor"),
    ("2.102", {"rxtx_factor": 1.0}, "flavor.rxtx_factor"), ("2.54", {"description": "x"}, "flavor.description"),
    ("2.55", {"description": "x" * 65536}, "flavor.description"), ("2.1", {"colour": "red"}, "flavor.colour"),
    ("2.1", {"os-flavor-access:is_public": "perhaps"}, "flavor.os-flavor-access:is_public")])
def test_a_wrong_flavor_is_refused_by_name(small, version, more, named):
    reply = small.admin.post("/flavors", {"flavor": {**TINY, **more}}, version)
    assert reply.status == 400
    assert named in reply.message
    assert small.admin.get("/flavors").json == {"flavors": []}


def test_only_administrators_change_flavors(small):
    made(small)
    for caller in (small.alice, small.rita):
        assert caller.post("/flavors", {"flavor": TINY}).status == 403
        assert caller.put("/flavors/1", {"flavor": {"description": "x"}}, "2.55").status == 403
        assert caller.delete("/flavors/1").status == 403
    assert small.admin.put("/flavors/1", {"flavor": {"description": "x"}}, "2.54").status == 404
    assert small.admin.put("/flavors/1", {"flavor": {}}, "2.55").status == 400


def test_pages_and_order(compute):
    for number, (name, ram) in enumerate((("c", 512), ("a", 2048), ("b", 1024))):
        made(compute, id=str(number), name=name, ram=ram, disk=number)

    def ids(query, version="2.1"):
        return [one["id"] for one in compute.alice.get(f"/flavors?{query}", version).json["flavors"]]

    assert ids("") == ["0", "1", "2"]
    assert ids("sort_key=name") == ["1", "2", "0"]
    assert ids("sort_key=memory_mb&sort_dir=desc") == ["1", "2", "0"]
    assert ids("minRam=1024&minDisk=2") == ["2"]
    assert ids("sort_key=name&marker=1") == ["2", "0"]
    assert ids("sort_key=updated_at&sort_dir=desc&marker=1") == ["0"]
    assert ids("sort_key=description&marker=1") == ["2"]
    assert ids("name=^[ab]$", "2.102") == ["1", "2"]
    page = compute.alice.get("/flavors?limit=2&minRam=1").json
    assert page["flavors_links"] == [
        {"rel": "next", "href": "http://cloud/v2.1/flavors?limit=2&minRam=1&marker=1"}]
    assert "flavors_links" not in compute.alice.get("/flavors/detail?limit=2&marker=1").json
    assert compute.alice.get("/flavors?limit=0").json == {"flavors": []}


@pytest.mark.parametrize(("query", "version"), [
    ("limit=-1", "2.1"), ("limit=x", "2.1"), ("marker=none", "2.1"), ("minRam=much", "2.1"), ("minDisk=x", "2.1"),
    ("sort_key=colour", "2.1"), ("sort_dir=up", "2.1"), ("colour=red", "2.75"), ("sort_key=rxtx_factor", "2.102"),
    ("name=a", "2.75"), ("name=(", "2.102"), ("minRam=1%00", "2.1")])
def test_a_wrong_question_is_refused(small, query, version):
    assert small.alice.get(f"/flavors?{query}", version).status == 400
    assert small.alice.get(f"/flavors/detail?{query}", version).status == 400


def test_unknown_parameters_pass_before_they_are_refused(small):
    assert small.alice.get("/flavors?colour=red", "2.74").status == 200
    assert small.alice.get("/flavors?sort_key=rxtx_factor", "2.101").status == 200


def test_a_private_flavor_is_seen_by_its_projects_only(compute):
    flavor = made(compute, **{"os-flavor-access:is_public": False})
    assert flavor["os-flavor-access:is_public"] is False
    assert compute.alice.get("/flavors/1").status == 404
    assert compute.admin.get("/flavors/1").status == 200
    assert compute.admin.get("/flavors").json == {"flavors": []}
    listed = compute.admin.get("/flavors/1/os-flavor-access").json
    assert listed == {"flavor_access": []}
    reply = compute.admin.post("/flavors/1/action", {"addTenantAccess": {"tenant": "red"}})
    assert reply.json == {"flavor_access": [{"flavor_id": "1", "tenant_id": "red"}]}
    assert compute.alice.get("/flavors/1").status == 200
    assert [one["id"] for one in compute.alice.get("/flavors").json["flavors"]] == ["1"]
    assert compute.bob.get("/flavors").json == {"flavors": []}
    again = compute.admin.post("/flavors/1/action", {"addTenantAccess": {"tenant": "red"}})
    assert (again.status, again.message) == (
        409, "Flavor access already exists for flavor 1 and project red combination.")
    assert compute.admin.post("/flavors/1/action", {"removeTenantAccess": {"tenant": "red"}}).json == listed
    assert compute.alice.get("/flavors/1").status == 404
    assert compute.admin.post("/flavors/1/action", {"removeTenantAccess": {"tenant": "red"}}).status == 404


def test_administrators_say_which_flavors_they_mean(small):
    made(small)
    made(small, id="2", name="hidden", **{"os-flavor-access:is_public": False})

    def ids(who, query):
        return [one["id"] for one in who.get(f"/flavors?is_public={query}").json["flavors"]]

    assert ids(small.admin, "true") == ["1"]
    assert ids(small.admin, "false") == ["2"]
    assert ids(small.admin, "None") == ["1", "2"]
    assert ids(small.alice, "None") == ["1"]
    assert small.admin.get("/flavors?is_public=maybe").status == 400


def test_access_is_for_private_flavors_and_real_projects(small):
    made(small)
    assert small.admin.get("/flavors/1/os-flavor-access").status == 404
    assert small.admin.post("/flavors/1/action", {"addTenantAccess": {"tenant": "red"}}, "2.7").status == 409
    assert small.admin.post("/flavors/1/action", {"addTenantAccess": {"tenant": "red"}}, "2.6").status == 200
    assert small.admin.post("/flavors/1/action", {"addTenantAccess": {"tenant": "nobody"}}).status == 400
    assert small.admin.post("/flavors/1/action", {"addTenantAccess": {}}).status == 400
    assert small.admin.post("/flavors/9/action", {"addTenantAccess": {"tenant": "red"}}).status == 404
    assert small.admin.post("/flavors/1/action", {"paint": {}}).status == 400
    assert small.alice.post("/flavors/1/action", {"addTenantAccess": {"tenant": "red"}}).status == 403
    assert small.alice.get("/flavors/1/os-flavor-access").status == 403


def test_extra_specs_are_added_changed_and_removed(compute):
    made(compute)
    path = "/flavors/1/os-extra_specs"
    specs = {"hw:cpu_policy": "shared", "hw:numa_nodes": "1"}
    assert compute.admin.post(path, {"extra_specs": specs}).json == {"extra_specs": specs}
    assert compute.admin.put(f"{path}/hw:numa_nodes", {"hw:numa_nodes": "2"}).json == {"hw:numa_nodes": "2"}
    assert compute.alice.get(path).json == {"extra_specs": {**specs, "hw:numa_nodes": "2"}}
    assert compute.alice.get(f"{path}/hw:numa_nodes").json == {"hw:numa_nodes": "2"}
    assert compute.alice.get("/flavors/1", "2.61").json["flavor"]["extra_specs"]["hw:numa_nodes"] == "2"
    reply = compute.admin.delete(f"{path}/hw:numa_nodes")
    assert (reply.status, reply.json) == (200, None)
    assert compute.admin.delete(f"{path}/hw:numa_nodes").status == 404
    assert compute.alice.get(f"{path}/hw:numa_nodes").status == 404


def test_who_may_set_extra_specs(small):
    made(small)
    path = "/flavors/1/os-extra_specs"
    assert small.rita.get(path).json == {"extra_specs": {}}
    assert small.alice.post(path, {"extra_specs": {"a": "b"}}).status == 403
    assert small.alice.put(f"{path}/a", {"a": "b"}).status == 403
    assert small.alice.delete(f"{path}/a").status == 403
    assert small.admin.get("/flavors/9/os-extra_specs").status == 404


@pytest.mark.parametrize(("body", "version"), [
    ({"extra_specs": {"a/b": "c"}}, "2.1"), ({"extra_specs": {"a": 1}}, "2.1"),
    ({"extra_specs": {"a": "x" * 256}}, "2.1"),
    ({"extra_specs": []}, "2.1"), ({}, "2.1"), ({"extra_specs": {"x" * 256: "c"}}, "2.1"),
    ({"extra_specs": {"hw:numa_nodes": "some"}}, "2.86"), ({"extra_specs": {"hw:colour": "red"}}, "2.86"),
    ({"extra_specs": {"trait:CUSTOM_A": "wanted"}}, "2.86"), ({"extra_specs": {"resources:VCPU": "x"}}, "2.86")])
def test_wrong_extra_specs_are_refused(small, body, version):
    made(small)
    reply = small.admin.post("/flavors/1/os-extra_specs", body, version)
    assert reply.status == 400, reply
    assert small.admin.get("/flavors/1/os-extra_specs").json == {"extra_specs": {}}


@pytest.mark.parametrize("specs", [
    {"hw:colour": "red"}, {"hw:numa_nodes": "some"}])
def test_known_namespaces_are_free_before_they_are_checked(small, specs):
    made(small)
    assert small.admin.post("/flavors/1/os-extra_specs", {"extra_specs": specs}, "2.85").status == 200


@pytest.mark.parametrize("specs", [
    {"ours:colour": "red"}, {"trait:CUSTOM_A": "required"}, {"resources1:CUSTOM_A": "1"}, {"hw:mem_page_size": "2MB"},
    {"quota:disk_read_bytes_sec": "1000"}, {"hw:cpu_dedicated_mask": "1-3,^2"}, {"hw_rng:allowed": "True"},
    {"aggregate_instance_extra_specs:ssd": "true"}, {"hw:numa_cpus.0": "0-1"}, {"capabilities:cpu_info:vendor": "AMD"}])
def test_what_nova_knows_passes_the_check(small, specs):
    made(small)
    assert small.admin.post("/flavors/1/os-extra_specs", {"extra_specs": specs}, "2.86").status == 200


def test_an_extra_spec_must_be_that_of_the_path(small):
    made(small)
    path = "/flavors/1/os-extra_specs/a"
    assert small.admin.put(path, {"b": "c"}).status == 400
    assert small.admin.put(path, {"a": "c", "b": "c"}).status == 400
    assert small.admin.put(path, {}).status == 400


def test_a_list_is_one_query_however_long(small):
    for number in range(20):
        made(small, id=str(number), name=str(number))
    with small.counted() as seen:
        assert len(small.alice.get("/flavors/detail", "2.61").json["flavors"]) == 20
    assert len(seen) == 1
