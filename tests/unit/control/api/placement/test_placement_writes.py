# SPDX-License-Identifier: GPL-3.0-or-later
"""What Placement's API changes (``tests/cases/scheduler/placement_writes.yml``), and that it acts: on where servers go,
what they claim, and what the audit finds when somebody changes that by hand."""

import os
import re
import shlex
import subprocess
import time
import uuid
from pathlib import Path

import pytest
import yaml

from magnetar_control.conductor.periodic import audit
from magnetar_control.conductor.periodic.periodic import Periodic
from magnetar_control.store.claims import allocations, host_counters, inventories
from magnetar_control.store.hosts import hosts
from tests.support.control.cloud import Cloud
from tests.support.control.placement import FOLDER, OPENSTACK, call, filled, holds

STEPS = yaml.safe_load((FOLDER / "scheduler/placement_writes.yml").read_text(encoding="utf-8"))
COMMANDS = yaml.safe_load((FOLDER / "clients/placement_writes.yml").read_text(encoding="utf-8"))
VERBS = ("get", "put", "post", "delete")


@pytest.fixture(scope="module")
def cloud():
    with Cloud(hosts=2, heartbeat=0.5) as made:
        yield made


@pytest.fixture(scope="module")
def ids(cloud):
    """Uuids by name."""
    made = cloud.admin.post("/v2.1/os-aggregates", {"aggregate": {"name": "ssd"}}, "2.41").json["aggregate"]
    return {**providers(cloud), "aggregate": made["uuid"], "consumer": str(uuid.uuid4())}


def providers(cloud):
    found = call(cloud, "GET", "/resource_providers").json["resource_providers"]
    return {one["name"]: one["uuid"] for one in found}


def test_who_would_make_or_rename_a_provider_reads_what_one_is(cloud, ids):
    for method, path in (("POST", ""), ("PUT", f"/{ids['kvm1']}"), ("DELETE", f"/{ids['kvm1']}")):
        reply = call(cloud, method, f"/resource_providers{path}", body={"name": "kvm9"} if method != "DELETE" else None)
        assert reply.status == 405 and "a resource provider is a host" in reply.json["errors"][0]["detail"], reply


def generation(cloud, id):
    return call(cloud, "GET", f"/resource_providers/{id}").json["generation"]


def put(cloud, path, **body):
    """Ask for a change of kvm1, of the generation that it has."""
    id = providers(cloud)["kvm1"]
    reply = call(cloud, "PUT", f"/resource_providers/{id}/{path}",
                 body={"resource_provider_generation": generation(cloud, id), **body})
    assert reply.status == 200, reply
    return reply.json


def whole(value, gen1):
    """Generations are numbers."""
    if isinstance(value, dict):
        return {key: whole(one, gen1) for key, one in value.items()}
    return gen1 if value == "{gen1}" else value


def test_what_is_changed(cloud, ids):
    names = {id: name for name, id in ids.items()}
    for at, step in enumerate(STEPS):
        [verb] = [one for one in VERBS if one in step]
        before = generation(cloud, ids["kvm1"])
        body = filled(whole(step["body"], before), ids) if "body" in step else None
        reply = call(cloud, verb.upper(), filled(step[verb], ids), body, step.get("version", "1.39"))
        assert reply.status == step["status"], (at, step, reply)
        if reply.status >= 400:
            [error] = reply.json["errors"]
            assert step.get("says", "").lower() in error["detail"].lower(), (at, step, error)
            assert step.get("code", error.get("code")) == error.get("code"), (step, error)
            assert generation(cloud, ids["kvm1"]) == before, step
        if step.get("rises"):
            assert generation(cloud, ids["kvm1"]) > before, step
        if "providers" in step:
            assert [one["name"] for one in reply.json["resource_providers"]] == step["providers"], step
        if "candidates" in step:
            found = [names[id] for one in reply.json["allocation_requests"] for id in one["allocations"]]
            assert found == step["candidates"], step
        assert "shows" not in step or holds(filled(step["shows"], ids), reply.json), (at, step, reply)
    with cloud.parts.api_database.write() as connection:
        assert host_counters.audit_host_counters(connection) == []
    assert call(cloud, "PUT", "/traits/CUSTOM_SSD").headers["location"] == "/placement/traits/CUSTOM_SSD"


def flavor(cloud, name, **specs):
    """A flavor with these extra specs."""
    made = cloud.admin.post("/v2.1/flavors", {"flavor": {
        "id": name, "name": name, "vcpus": 1, "ram": 64, "disk": 0}})
    assert made.status in (200, 409), made
    cloud.admin.post(f"/v2.1/flavors/{name}/os-extra_specs", {"extra_specs": specs})
    return name


def held(cloud, id):
    with cloud.parts.api_database.read() as connection:
        return {row.host_id: row.resources for row in allocations.fetch_consumer_claims(connection, id)}


def test_a_flavor_claims_a_custom_class(cloud):
    admin, kvm1 = cloud.admin, providers(cloud)["kvm1"]
    gold = flavor(cloud, "gold", **{"resources:CUSTOM_GOLD2": "1"})
    function = flavor(cloud, "function", **{"resources1:SRIOV_NET_VF": "1"})
    for name, words in ((gold, "no host has an inventory of that"), (function, "virtual functions by ports")):
        body = {"name": "none", "flavorRef": name, "imageRef": admin.image(), "networks": "none"}
        reply = admin.post("/v2.1/servers", {"server": body}, "2.60")
        assert reply.status == 400 and words in reply.json["badRequest"]["message"], reply
    assert call(cloud, "PUT", "/resource_classes/CUSTOM_GOLD2").status == 201
    put(cloud, "inventories/CUSTOM_GOLD2", total=1)
    made = admin.boot("rich", flavorRef=gold)
    assert (made["status"], made["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", "kvm1")
    assert held(cloud, made["id"]) == {kvm1: {"CUSTOM_GOLD2": 1}}
    poor = admin.boot("poor", flavorRef=gold)
    assert poor["status"] == "ERROR" and "CUSTOM_GOLD2 left for one server" in poor["fault"]["details"]
    plain = admin.boot("plain")
    assert admin.act(plain["id"], "resize", {"flavorRef": gold}).status == 202
    assert admin.settled(plain["id"])["status"] == "ACTIVE", "there is no second one"
    assert held(cloud, plain["id"]) != {}
    assert call(cloud, "DELETE", f"/resource_providers/{kvm1}/inventories/CUSTOM_GOLD2").status == 409
    for one in (made, poor, plain):
        admin.delete(f"/v2.1/servers/{one['id']}")
        assert admin.settled(one["id"]) is None
    assert call(cloud, "DELETE", f"/resource_providers/{kvm1}/inventories/CUSTOM_GOLD2").status == 204
    with cloud.parts.api_database.write() as connection:
        assert host_counters.audit_host_counters(connection) == []


def test_a_trait_that_an_operator_sets_places_servers(cloud):
    admin = cloud.admin
    assert call(cloud, "PUT", "/traits/CUSTOM_SHINY").status == 201
    put(cloud, "traits", traits=["CUSTOM_SHINY"])
    for word, host in (("required", "kvm1"), ("forbidden", "kvm2")):
        made = admin.boot(word, flavorRef=flavor(cloud, word, **{"trait:CUSTOM_SHINY": word}))
        assert (made["status"], made["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", host), made
        admin.delete(f"/v2.1/servers/{made['id']}")
    put(cloud, "traits", traits=[])


def test_ratios_and_reserved_amounts_act_and_stay(cloud):
    """Over the agent's next report too, whatever the settings say."""
    working, id = cloud.parts.working, providers(cloud)["kvm1"]
    have = call(cloud, "GET", f"/resource_providers/{id}/inventories/VCPU").json
    shown = put(cloud, "inventories/VCPU", total=have["total"], allocation_ratio=1.0, reserved=have["total"])
    assert shown["reserved"] == have["total"]
    with cloud.parts.api_database.write() as connection:
        row = hosts.fetch_host_row(connection, "kvm1")
        assert row.vcpus_limit == 0
        info = row.info
        hosts.save_host_inventory(connection, "kvm1", {**info, "agent_version": "next"}, working.ratios,
                                  working.reserved)
        assert hosts.fetch_host_row(connection, "kvm1").vcpus_limit == 0
    made = cloud.admin.boot("elsewhere")
    assert made["OS-EXT-SRV-ATTR:host"] == "kvm2"
    cloud.admin.delete(f"/v2.1/servers/{made['id']}")
    assert cloud.admin.settled(made["id"]) is None
    assert call(cloud, "DELETE", f"/resource_providers/{id}/inventories/VCPU").status == 204
    assert call(cloud, "GET", f"/resource_providers/{id}/inventories/VCPU").json["allocation_ratio"] == 16.0


def test_what_images_take_is_not_added_to_what_an_operator_has_set(cloud):
    """Whoever reads inventories and writes them with another ratio changes the ratio only."""
    working, path = cloud.parts.working, f"/resource_providers/{providers(cloud)['kvm1']}/inventories/DISK_GB"
    with cloud.parts.api_database.write() as connection:
        info = hosts.fetch_host_row(connection, "kvm1").info
        hosts.save_host_inventory(connection, "kvm1", {**info, "image_cache_gb": 2}, working.ratios, working.reserved)
    total = call(cloud, "GET", path).json["total"]
    assert put(cloud, "inventories/DISK_GB", total=total, reserved=3)["reserved"] == 3
    assert put(cloud, "inventories/DISK_GB", total=total, reserved=3, allocation_ratio=2.0)["reserved"] == 3
    assert put(cloud, "inventories/DISK_GB", total=total, reserved=4)["reserved"] == 4
    assert call(cloud, "DELETE", path).status == 204
    assert call(cloud, "GET", path).json["reserved"] == 2
    with cloud.parts.api_database.write() as connection:
        hosts.save_host_inventory(connection, "kvm1", info, working.ratios, working.reserved)


def test_aggregates_of_a_host_change_all_or_not(cloud, ids):
    """Those of one zone can be exchanged under servers; where one refuses it the host stays in the others."""
    zones = {"first": "hall1", "second": "hall1", "third": "hall2"}
    uuids = {name: cloud.admin.post("/v2.1/os-aggregates", {"aggregate": {
        "name": name, "availability_zone": zone}}, "2.41").json["aggregate"]["uuid"] for name, zone in zones.items()}
    uuids["ssd"] = ids["aggregate"]

    def change(host, *names):
        before = generation(cloud, ids[host])
        reply = call(cloud, "PUT", f"/resource_providers/{ids[host]}/aggregates", body={
            "resource_provider_generation": before, "aggregates": [uuids[name] for name in names]})
        now = call(cloud, "GET", f"/resource_providers/{ids[host]}/aggregates").json["aggregates"]
        assert (generation(cloud, ids[host]) > before) is (reply.status == 200), reply
        return reply.status, {name for name, id in uuids.items() if id in now}

    for host in ("kvm1", "kvm2"):
        assert change(host, "third") == (200, {"third"})
        assert change(host, "first", "ssd") == (200, {"first", "ssd"}), "without servers it may go to another zone"
    made = cloud.admin.boot("there")
    host = made["OS-EXT-SRV-ATTR:host"]
    for names in (["third"], ["ssd"], ["second", "third"], ["first", "third"]):
        assert change(host, *names) == (409, {"first", "ssd"}), names
    assert change(host, "second") == (200, {"second"})
    cloud.admin.delete(f"/v2.1/servers/{made['id']}")
    assert cloud.admin.settled(made["id"]) is None
    for name in ("kvm1", "kvm2"):
        assert change(name) == (200, set())


def findings(cloud):
    parts = cloud.parts
    return {one.kind for one in audit.run_with_state(parts.store, parts.agents, cloud.services, pause=0.1)[0]}


@pytest.mark.parametrize("change", ["gone", "more", "elsewhere", "a class"])
def test_allocations_that_were_changed_by_hand_are_seen_and_healed(cloud, change):
    admin, periodic, where = cloud.admin, Periodic(cloud.parts.working), providers(cloud)
    made = admin.boot("web1")
    mine = made["OS-EXT-SRV-ATTR:host"]
    other = next(name for name in where if not name.startswith(mine))
    before = call(cloud, "GET", f"/allocations/{made['id']}").json
    if change == "gone":
        assert call(cloud, "DELETE", f"/allocations/{made['id']}").status == 204
    else:
        call(cloud, "PUT", "/resource_classes/CUSTOM_HAND")
        with cloud.parts.api_database.write() as connection:
            inventories.save_operator_inventory(connection, where[mine], "CUSTOM_HAND", {"total": 1})
        resources = {**before["allocations"][where[mine]]["resources"],
                     **({"VCPU": 3} if change == "more" else {"CUSTOM_HAND": 1} if change == "a class" else {})}
        wrong = {where[other if change == "elsewhere" else mine]: {"resources": resources}}
        body = {name: before[name] for name in ("project_id", "user_id", "consumer_type", "consumer_generation")}
        refused = call(cloud, "PUT", f"/allocations/{made['id']}", body={**body, "allocations": wrong,
                                                                          "consumer_type": "MIGRATION"})
        assert refused.status == 400 and "is of type INSTANCE" in refused.json["errors"][0]["detail"]
        assert call(cloud, "PUT", f"/allocations/{made['id']}", body={**body, "allocations": wrong}).status == 204
    assert findings(cloud) == ({"unclaimed", "elsewhere"} if change == "elsewhere" else {"unclaimed"})
    for _look in range(3):
        periodic.audit()
    assert findings(cloud) == set()
    after = call(cloud, "GET", f"/allocations/{made['id']}").json["allocations"]
    assert {id: one["resources"] for id, one in after.items()} == {
        id: one["resources"] for id, one in before["allocations"].items()}
    admin.delete(f"/v2.1/servers/{made['id']}")
    assert admin.settled(made["id"]) is None


def test_an_instance_that_there_is_not_loses_what_it_holds(cloud):
    id, kvm1 = str(uuid.uuid4()), providers(cloud)["kvm1"]
    body = {"allocations": {kvm1: {"resources": {"VCPU": 1}}}, "project_id": "p", "user_id": "u",
            "consumer_generation": None, "consumer_type": "INSTANCE"}
    assert call(cloud, "PUT", f"/allocations/{id}", body=body).status == 204
    shown = call(cloud, "GET", f"/allocations/{id}").json
    assert (shown["project_id"], shown["user_id"], shown["consumer_type"]) == ("p", "u", "INSTANCE")
    usage = call(cloud, "GET", "/usages?project_id=p&consumer_type=INSTANCE").json["usages"]
    assert usage == {"INSTANCE": {"consumer_count": 1, "VCPU": 1}}
    assert findings(cloud) == {"orphan"}
    periodic = Periodic(cloud.parts.working)
    for _look in range(2):
        periodic.audit()
    assert call(cloud, "GET", f"/allocations/{id}").json["allocations"] == {} and findings(cloud) == set()


def test_a_consumer_is_one_however_its_uuid_is_written(cloud):
    id, kvm1 = str(uuid.uuid4()), providers(cloud)["kvm1"]
    used = call(cloud, "GET", f"/resource_providers/{kvm1}/usages").json["usages"]["VCPU"]
    body = {"allocations": {kvm1: {"resources": {"VCPU": 1}}}, "project_id": "p", "user_id": "u",
            "consumer_type": "TEST"}
    for at, written in enumerate((id, id.replace("-", ""), id.upper())):
        assert call(cloud, "PUT", f"/allocations/{written}", body={
            **body, "consumer_generation": at or None}).status == 204
        assert len(call(cloud, "GET", f"/allocations/{written}").json["allocations"]) == 1
    assert call(cloud, "GET", f"/resource_providers/{kvm1}/usages").json["usages"]["VCPU"] == used + 1
    twice = call(cloud, "POST", "/allocations", body={one: {**body, "consumer_generation": 3} for one in (
        id, id.replace("-", ""))})
    assert twice.status == 400 and "named twice" in twice.json["errors"][0]["detail"]
    assert call(cloud, "DELETE", f"/allocations/{id.replace('-', '')}").status == 204
    assert call(cloud, "GET", f"/allocations/{id}").json["allocations"] == {}


def test_standard_traits_and_classes_that_no_agent_tells_are_the_operators(cloud):
    admin, kvm1 = cloud.admin, providers(cloud)["kvm1"]
    assert call(cloud, "GET", "/traits/STORAGE_DISK_SSD").status == 204
    assert call(cloud, "GET", "/resource_classes/FPGA").status == 200
    put(cloud, "traits", traits=["STORAGE_DISK_SSD"])
    put(cloud, "inventories/FPGA", total=1)
    made = admin.boot("quick", flavorRef=flavor(cloud, "quick", **{
        "trait:STORAGE_DISK_SSD": "required", "resources:FPGA": "1"}))
    assert (made["status"], made["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", "kvm1")
    assert held(cloud, made["id"]) == {kvm1: {"FPGA": 1}}
    admin.delete(f"/v2.1/servers/{made['id']}")
    assert admin.settled(made["id"]) is None
    assert call(cloud, "DELETE", f"/resource_providers/{kvm1}/inventories/FPGA").status == 204
    put(cloud, "traits", traits=[])
    tape = admin.post(f"/v2.1/flavors/{flavor(cloud, 'tape')}/os-extra_specs", {
        "extra_specs": {"trait:STORAGE_DISK_TAPE": "required"}})
    assert tape.status == 200  # as in Nova, which asks Placement later
    refused = admin.post("/v2.1/servers", {"server": {
        "name": "none", "flavorRef": "tape", "imageRef": admin.image(), "networks": "none"}}, "2.60")
    assert refused.status == 400 and "there is no such trait" in refused.json["badRequest"]["message"]


def allocate(cloud, wanted, **generations):
    """Ask for what consumers are to hold of a class, by consumer and host; *generations* by consumer's last digit."""
    where = providers(cloud)
    return call(cloud, "POST", "/allocations", body={id: {
        "allocations": {where[host]: {"resources": {"CUSTOM_SHARE": n}} for host, n in held.items()},
        "project_id": "p", "user_id": "u", "consumer_type": "TEST",
        "consumer_generation": generations.get(f"of_{id[-1]}", consumer(cloud, id)[0])} for id, held in wanted.items()})


def consumer(cloud, id):
    """The generation of a consumer, and what it holds of the class by host."""
    found, names = call(cloud, "GET", f"/allocations/{id}").json, {id: name for name, id in providers(cloud).items()}
    return found.get("consumer_generation"), {
        names[id]: one["resources"]["CUSTOM_SHARE"] for id, one in found["allocations"].items()}


@pytest.fixture
def shares(cloud):
    """Two of a class at each host, and two consumers."""
    call(cloud, "PUT", "/resource_classes/CUSTOM_SHARE")
    with cloud.parts.api_database.write() as connection:
        for id in {one["root_provider_uuid"] for one in call(cloud, "GET", "/resource_providers").json[
                "resource_providers"]}:
            inventories.save_operator_inventory(connection, id, "CUSTOM_SHARE", {"total": 2})
    ids = [f"00000000-0000-4000-8000-00000000000{at}" for at in (1, 2)]
    yield ids
    for id in ids:
        call(cloud, "DELETE", f"/allocations/{id}")


def test_each_change_of_a_consumer_is_another_generation(cloud, shares):
    one, _two = shares
    for at, held in enumerate(({"kvm1": 1}, {"kvm2": 1}, {"kvm1": 1, "kvm2": 2}, {"kvm1": 1}, {"kvm1": 1}), start=1):
        seen = consumer(cloud, one)[0]
        assert allocate(cloud, {one: held}).status == 204 and consumer(cloud, one) == (at, held)
        refused = allocate(cloud, {one: {}}, of_1=seen)
        assert refused.status == 409 and "generation conflict" in refused.json["errors"][0]["detail"], held
        assert consumer(cloud, one) == (at, held)


@pytest.mark.parametrize("turned", [False, True])
def test_what_consumers_hold_is_handed_over_in_whatever_order(cloud, shares, turned):
    old, new = reversed(shares) if turned else shares
    assert allocate(cloud, {old: {"kvm1": 2}}).status == 204
    for held in ({old: {}, new: {"kvm1": 3}}, {old: {"kvm1": 1}, new: {"kvm1": 2}},
                 {old: {"kvm2": 3}, new: {"kvm1": 1}}):
        assert allocate(cloud, held).status == 409
        assert consumer(cloud, old) == (1, {"kvm1": 2}) and consumer(cloud, new)[1] == {}
    for held in ({old: {}, new: {"kvm1": 2}}, {new: {"kvm1": 1}, old: {"kvm1": 1}}, {new: {}, old: {"kvm1": 2}},
                 {old: {"kvm2": 2}, new: {"kvm1": 2}}, {old: {"kvm1": 2}, new: {"kvm2": 2}}):
        assert allocate(cloud, held).status == 204, held
        assert {id: consumer(cloud, id)[1] for id in held} == held
    with cloud.parts.api_database.write() as connection:
        assert host_counters.audit_host_counters(connection) == []


@pytest.mark.slow
@pytest.mark.deep(shard="images and clients of one host")
def test_osc_placement_drives_it(cloud, ids, tmp_path):
    text = (Path(cloud.parts.settings.state_dir) / "clouds.yaml").read_text()
    (tmp_path / "clouds.yaml").write_text(text.replace("127.0.0.1:8774", f"127.0.0.1:{cloud.port}"))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "OS_CLOUD": "magnetar",
                   "OS_CLIENT_CONFIG_FILE": str(tmp_path / "clouds.yaml")}
    for step in COMMANDS:
        words = [*OPENSTACK, "--os-placement-api-version", step.get("version", "1.39"),
                 *shlex.split(step["run"].format(**ids))]
        done = subprocess.run(words, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=environment, timeout=900)
        wanted = (step.get("says") or step.get("refused") or "").format(**ids)
        assert re.search(wanted, done.stdout) and bool(done.returncode) == ("refused" in step), (step, done.stdout)


def test_a_conductor_sees_it_within_seconds(cloud):
    """It reads hosts every three seconds."""
    put(cloud, "traits", traits=["CUSTOM_SHINY"])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if "CUSTOM_SHINY" in cloud.parts.working.states.hosts["kvm1"].profile.traits:
            break
        time.sleep(0.1)
    assert "CUSTOM_SHINY" in cloud.parts.working.states.hosts["kvm1"].profile.traits
