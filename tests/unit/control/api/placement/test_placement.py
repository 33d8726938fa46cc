# SPDX-License-Identifier: GPL-3.0-or-later
"""What Placement's API shows: ``tests/cases/scheduler/placement.yml``, and what openstacksdk and osc-placement
ask for."""

import os
import re
import shlex
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openstack
import orjson
import pytest
import yaml
from sqlalchemy import event

from magnetar_control.store.hosts.hosts import child_provider_id
from magnetar_core.hardware.standard import RESOURCE_CLASSES, TRAITS
from tests.support.control.cloud import Cloud
from tests.support.control.placement import FOLDER, OPENSTACK, filled, get, holds

pytestmark = pytest.mark.filterwarnings("ignore::Warning:openstack")
CASES = yaml.safe_load((FOLDER / "scheduler/placement.yml").read_text(encoding="utf-8"))
COMMANDS = yaml.safe_load((FOLDER / "clients/placement.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def cloud():
    with Cloud(hosts=2, heartbeat=0.5) as made:
        yield made


@pytest.fixture(scope="module")
def ids(cloud):
    """Uuids by name; the cloud is as the cases say."""
    admin, store = cloud.admin, cloud.parts.working.store
    server = admin.boot("web1", imageRef=admin.image(), host="kvm1", version="2.74")["id"]
    admin.settled(server)
    made = admin.post("/v2.1/os-aggregates", {"aggregate": {"name": "ssd"}}, "2.41").json["aggregate"]
    path = f"/v2.1/os-aggregates/{made['id']}/action"
    admin.post(path, {"add_host": {"host": "kvm1"}})
    admin.post(path, {"set_metadata": {"metadata": {"cpu_allocation_ratio": "2.0"}}})
    limit = 0
    deadline = time.monotonic() + 60
    while limit != 32 and time.monotonic() < deadline:  # the watch has seen the aggregate, and writes no more
        with store.api.read() as connection:
            limit = connection.exec_driver_sql("SELECT vcpus_limit FROM hosts WHERE name = 'kvm1'").scalar()
        time.sleep(0.1)
    assert limit == 32
    with store.api.write() as connection:
        hosts = {row.name: row for row in connection.exec_driver_sql("SELECT id, name, info FROM hosts")}
        info = orjson.loads(hosts["kvm1"].info)
        info["traits"] += ["CUSTOM_SSD"]
        connection.exec_driver_sql("UPDATE hosts SET info = ? WHERE name = 'kvm1'", (orjson.dumps(info).decode(),))
        connection.exec_driver_sql("UPDATE hosts SET disabled = 1 WHERE name = 'kvm2'")
    return {"server": server, "aggregate": made["uuid"], "project": admin.project_id, "user": admin.user_id,
            **{name: row.id for name, row in hosts.items()}}


@pytest.mark.parametrize("case", CASES, ids=[f"{case['get'][:60]} {case['version']}" for case in CASES])
def test_what_is_shown(cloud, ids, case):
    reply = get(cloud, filled(case["get"], ids), case["version"])
    assert reply.status == case.get("status", 200), reply
    if reply.status >= 400:
        [error] = reply.json["errors"]
        assert case["says"] in error["detail"] and error["status"] == reply.status
        return
    told = {name.lower(): value for name, value in reply.headers.items()}
    assert told["openstack-api-version"] == f"placement {case['version']}"
    if "providers" in case:
        assert [one["name"] for one in reply.json["resource_providers"]] == case["providers"]
    if "candidates" in case:
        names = {ids[name]: name for name in ("kvm1", "kvm2")}
        found = [names[id] for one in reply.json["allocation_requests"] for id in one["allocations"]]
        assert found == case["candidates"]
        below = {child_provider_id(ids[name], "NUMA0") for name in case["candidates"]}
        shown = [id for id in reply.json["provider_summaries"] if id not in below]
        assert [names[id] for id in shown] == case["candidates"]
    assert "shows" not in case or holds(filled(case["shows"], ids), reply.json), reply


def test_the_form_follows_the_version(cloud, ids):
    path = f"/resource_providers/{ids['kvm1']}"
    old, new = get(cloud, path, "1.0"), get(cloud, path, "latest")
    assert {one["rel"] for one in old.json["links"]} == {"self", "inventories", "usages"}
    assert {one["rel"] for one in new.json["links"]} == {
        "self", "inventories", "usages", "aggregates", "traits", "allocations"}
    assert new.json["root_provider_uuid"] == ids["kvm1"] and "root_provider_uuid" not in old.json
    told = [{name.lower() for name in one.headers} for one in (old, new)]
    assert ["last-modified" in one for one in told] == [False, True]
    for version, code in (("1.22", False), ("1.23", True)):
        [error] = get(cloud, "/traits/NO_SUCH", version).json["errors"]
        assert ("code" in error) is code


def test_it_is_for_administrators(cloud, ids):
    member = cloud.caller("mia", "red")
    assert member.get("/placement/resource_providers").status == 403
    assert member.get("/placement/").json["versions"][0]["max_version"] == "1.39"
    assert member.delete(f"/placement/allocations/{ids['server']}").status == 403
    assert member.call("PUT", "/placement/traits/CUSTOM_MINE").status == 403


@pytest.mark.parametrize(("version", "host", "request_"), [
    ("1.10", {"resources": {"VCPU": {"capacity": 32, "used": 1}}},
     {"allocations": [{"resource_provider": {"uuid": "{kvm1}"}, "resources": {"VCPU": 3}}]}),
    ("1.26", {"resources": {"VCPU": {"capacity": 32, "used": 1}}, "traits": None},
     {"allocations": {"{kvm1}": {"resources": {"VCPU": 3}}}}),
    ("1.39", {"resources": {"VCPU": {"capacity": 32, "used": 1}, "MEMORY_MB": None, "DISK_GB": None}, "traits": None,
              "parent_provider_uuid": None, "root_provider_uuid": "{kvm1}"},
     {"allocations": {"{kvm1}": {"resources": {"VCPU": 3}}}, "mappings": {"": ["{kvm1}"], "_b": ["{kvm1}"]}})])
def test_candidates_in_the_form_of_each_version(cloud, ids, version, host, request_):
    groups = "resources=VCPU:2&resources_b=VCPU:1" if version == "1.39" else "resources=VCPU:3"
    found = get(cloud, f"/allocation_candidates?{groups}", version).json
    assert found["allocation_requests"][0] == filled(request_, ids)
    summary, host = found["provider_summaries"][ids["kvm1"]], filled(host, ids)
    assert summary.keys() == host.keys() and summary["resources"].keys() == host["resources"].keys()
    assert summary["resources"]["VCPU"] == host["resources"]["VCPU"]
    assert "traits" not in host or "CUSTOM_SSD" in summary["traits"]
    assert summary.get("root_provider_uuid") == host.get("root_provider_uuid")


def test_groups_have_an_end(cloud, ids):
    """Each candidate tells of all of them."""
    for count, status in ((64, 200), (65, 400)):
        groups = "&".join(f"resources{number}=VCPU:1" for number in range(1, count + 1))
        assert get(cloud, f"/allocation_candidates?{groups}&group_policy=none", "1.39").status == status


def test_a_list_takes_few_queries_and_the_sdk_reads_it(cloud, ids):
    asked = []
    engine = cloud.parts.working.store.api.reading
    event.listen(engine, "before_cursor_execute", lambda *given: asked.append(given[2]))

    def queries(path):
        asked.clear()
        assert get(cloud, path, "1.39").status == 200
        return len([query for query in asked if "hosts" in query and query.startswith("SELECT")])

    for path in ("/resource_providers", "/allocation_candidates?resources=VCPU:1"):
        assert min(queries(path) for _time in range(3)) <= 2  # the conductor beside it asks now and then
    connection = openstack.connect(
        auth_url=f"http://127.0.0.1:{cloud.port}/identity/v3", username="admin", password=cloud.password,
        project_name="admin", user_domain_id="default", project_domain_id="default", region_name=None)
    placement = connection.placement
    assert [one.name for one in placement.resource_providers()] == [
        "kvm1", "kvm1_NUMA0", "kvm2", "kvm2_NUMA0"]
    assert {one.resource_class for one in placement.resource_provider_inventories(ids["kvm1"])} >= {"VCPU", "MEMORY_MB"}
    assert {one.name for one in placement.resource_classes()} == {*RESOURCE_CLASSES}
    assert {"CUSTOM_SSD", *TRAITS} <= {one.name for one in placement.traits()}
    connection.close()


@pytest.mark.slow
@pytest.mark.deep(shard="images and clients of one host")
def test_osc_placement_reads_it(cloud, ids, tmp_path):
    text = (Path(cloud.parts.settings.state_dir) / "clouds.yaml").read_text()
    (tmp_path / "clouds.yaml").write_text(text.replace("127.0.0.1:8774", f"127.0.0.1:{cloud.port}"))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "OS_CLOUD": "magnetar",
                   "OS_CLIENT_CONFIG_FILE": str(tmp_path / "clouds.yaml")}

    def wrong(step):
        words = [*OPENSTACK, "--os-placement-api-version", "1.39", *shlex.split(step["run"].format(**ids))]
        done = subprocess.run(words, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=environment, timeout=900)
        told = re.search((step.get("says") or step["refused"]).format(**ids), done.stdout)
        return None if told and bool(done.returncode) == ("refused" in step) else f"{step['run']}\n{done.stdout[-800:]}"

    with ThreadPoolExecutor(2) as threads:
        found = [one for one in threads.map(wrong, COMMANDS) if one]
    assert not found, "\n\n".join(found)
