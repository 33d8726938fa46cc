# SPDX-License-Identifier: GPL-3.0-or-later
"""os-hypervisors: each microversion's form, pages, patterns, servers of hosts."""

import json
import re
import threading
import uuid

import pytest

from magnetar_control.api.nova.hypervisors import version_number
from magnetar_control.compute import hypervisors
from magnetar_control.compute.hypervisors import address
from magnetar_control.store import allocations, hosts
from magnetar_core.errors import NotFound, Unreachable

from .compute import Agents, Teller

PATH = "/os-hypervisors"
BRIEF = {"id", "hypervisor_hostname", "state", "status"}
PLAIN = BRIEF | {"host_ip", "hypervisor_type", "hypervisor_version", "service"}
SIZES = {"vcpus", "vcpus_used", "memory_mb", "memory_mb_used", "free_ram_mb", "local_gb", "local_gb_used",
         "free_disk_gb", "disk_available_least", "running_vms", "current_workload", "cpu_info"}


CPU = {"arch": "unknown", "model": "EPYC", "vendor": "unknown", "features": [],
       "topology": {"sockets": 1, "cores": 8, "threads": 1}}


def names(reply):
    return [one["hypervisor_hostname"] for one in reply.json["hypervisors"]]


@pytest.mark.parametrize(("version", "keys"), [
    ("2.1", PLAIN | SIZES), ("2.53", PLAIN | SIZES), ("2.87", PLAIN | SIZES), ("2.88", PLAIN | {"uptime"})])
def test_what_each_version_shows(small, version, keys):
    small.host("kvm1")
    (one,) = small.admin.get(f"{PATH}/detail", version).json["hypervisors"]
    assert set(one) == keys
    assert small.admin.get(f"{PATH}/{one['id']}", version).json["hypervisor"] == one
    (brief,) = small.admin.get(PATH, version).json["hypervisors"]
    assert brief == {name: one[name] for name in BRIEF}


def test_what_a_host_has_and_what_is_used(compute):
    id = compute.host("kvm1", disk_gb_free=60)
    server = compute.server(host="kvm1", task_state="rebooting")
    compute.server(host="kvm1")
    with compute.api.write() as connection:
        hosts.set_host(connection, "kvm1", memory_mb_reserved=512, disabled=True, disabled_reason="new fan")
        assert allocations.claim(connection, server, server, id, allocations.Amounts(2, 1024, 10))
    shown = compute.admin.get(f"{PATH}/{id}", "2.53").json["hypervisor"]
    assert shown.pop("host_ip") == address("https://kvm1.example:6553")
    assert shown == {
        "id": id, "hypervisor_hostname": "kvm1", "state": "up", "status": "disabled", "hypervisor_type": "QEMU",
        "hypervisor_version": 7002022, "service": {"id": id, "host": "kvm1", "disabled_reason": "new fan"},
        "vcpus": 8, "vcpus_used": 2, "memory_mb": 16384, "memory_mb_used": 1536, "free_ram_mb": 14848,
        "local_gb": 100, "local_gb_used": 10, "free_disk_gb": 90, "disk_available_least": 60, "running_vms": 2,
        "current_workload": 1, "cpu_info": CPU}


def test_the_processor_is_text_before_2_28(small):
    small.host("kvm1")
    assert json.loads(small.admin.get(f"{PATH}/detail", "2.27").json["hypervisors"][0]["cpu_info"]) == CPU
    assert small.admin.get(f"{PATH}/detail", "2.28").json["hypervisors"][0]["cpu_info"] == CPU


def test_ids_are_numbers_before_2_53(small):
    id = small.host("kvm1")
    old = small.admin.get(PATH, "2.52").json["hypervisors"][0]["id"]
    assert isinstance(old, int)
    assert small.admin.get(f"{PATH}/{old}", "2.52").json["hypervisor"]["service"]["id"] == old
    for path, version, status in ((old, "2.53", 400), (id, "2.52", 404), (9999, "2.52", 404), ("x", "2.53", 400),
                                  (uuid.uuid4(), "2.53", 404)):
        assert small.admin.get(f"{PATH}/{path}", version).status == status


def test_pages(compute):
    ids = {name: compute.host(name) for name in ("kvm3", "kvm1", "kvm2")}
    assert names(compute.admin.get(f"{PATH}?limit=1", "2.32")) == ["kvm3", "kvm1", "kvm2"]
    page = compute.admin.get(f"{PATH}?limit=2", "2.33")
    assert names(page) == ["kvm3", "kvm1"]
    last = page.json["hypervisors"][-1]["id"]
    assert page.json["hypervisors_links"] == [
        {"rel": "next", "href": f"http://cloud/v2.1{PATH}?limit=2&marker={last}"}]
    assert names(compute.admin.get(f"{PATH}/detail?limit=2&marker={last}", "2.33")) == ["kvm2"]
    rest = compute.admin.get(f"{PATH}/detail?limit=2&marker={ids['kvm1']}", "2.53")
    assert names(rest) == ["kvm2"]
    assert "hypervisors_links" not in rest.json


@pytest.mark.parametrize(("query", "version", "status"), [
    ("marker=9999", "2.33", 400), ("marker=x", "2.53", 400),
    ("marker=00000000-0000-4000-8000-000000000000", "2.53", 400),
    ("limit=-1", "2.33", 400), ("with_servers=perhaps", "2.53", 400), ("colour=red", "2.53", 400),
    ("hypervisor_hostname_pattern=kvm&limit=1", "2.53", 400), ("hypervisor_hostname_pattern=zzz", "2.53", 404),
    ("colour=red", "2.52", 200), ("with_servers=perhaps", "2.52", 200)])
def test_questions(small, query, version, status):
    small.host("kvm1")
    assert small.admin.get(f"{PATH}?{query}", version).status == status
    assert small.admin.get(f"{PATH}/detail?{query}", version).status == status


def test_servers_of_hosts(compute):
    compute.host("kvm1")
    compute.host("kvm2")
    id = compute.server(host="kvm1", name="web1")
    compute.server(host="kvm1", deleted_at="2026-11-21T10:00:00.000000")
    found = [{"uuid": id, "name": "web1"}]

    def servers(path, version):
        return [one.get("servers") for one in compute.admin.get(PATH + path, version).json["hypervisors"]]

    assert servers("?with_servers=true", "2.53") == [found, None]
    assert servers("?with_servers=true", "2.75") == [found, []]
    assert servers("/detail?with_servers=true", "2.88") == [found, []]
    assert servers("?with_servers=false", "2.75") == [None, None]
    assert servers("?hypervisor_hostname_pattern=vm2&with_servers=1", "2.75") == [[]]
    assert servers("/kvm/servers", "2.52") == [found, None]
    host = compute.admin.get(PATH, "2.75").json["hypervisors"][1]["id"]
    assert compute.admin.get(f"{PATH}/{host}?with_servers=true", "2.75").json["hypervisor"]["servers"] == []


def test_search_until_2_52(small):
    small.host("kvm1")
    small.host("arm1")
    assert names(small.admin.get(f"{PATH}/kvm/search")) == ["kvm1"]
    none = small.admin.get(f"{PATH}/zzz/search")
    assert (none.status, none.message) == (404, "No hypervisor matching 'zzz' could be found.")
    assert small.admin.get(f"{PATH}/zzz/servers").status == 404
    assert small.admin.get(f"{PATH}/kvm/search", "2.53").status == 404
    assert small.admin.get(f"{PATH}/kvm/servers", "2.53").status == 404


def test_statistics_until_2_87(compute):
    compute.host("kvm1", disk_gb_free=7)
    compute.host("kvm2")
    compute.host("kvm3")
    with compute.api.write() as connection:
        hosts.set_host(connection, "kvm3", disabled=True)
    compute.server(host="kvm1")
    assert compute.admin.get(f"{PATH}/statistics", "2.87").json == {"hypervisor_statistics": {
        "count": 2, "vcpus": 16, "vcpus_used": 0, "memory_mb": 32768, "memory_mb_used": 0, "free_ram_mb": 32768,
        "local_gb": 200, "local_gb_used": 0, "free_disk_gb": 200, "disk_available_least": 7, "running_vms": 1,
        "current_workload": 0}}
    assert compute.admin.get(f"{PATH}/statistics", "2.88").status == 404


UP = {"time": "08:32:11", "uptime": 8101500, "users": 12, "load_average": [0.2, 0.12, 0.14]}
WORDS = " 08:32:11 up 93 days, 18:25, 12 users,  load average: 0.20, 0.12, 0.14"


def test_uptime_as_the_agent_tells_it(small):
    id, down = small.host("kvm1"), small.host("kvm2", seen=False)
    small.cloud.agents = Agents(kvm1=Teller(UP), kvm2=Teller(UP))
    assert small.admin.get(f"{PATH}/1/uptime").json["hypervisor"] == {
        "id": 1, "hypervisor_hostname": "kvm1", "state": "up", "status": "enabled", "uptime": WORDS}
    assert small.admin.get(f"{PATH}/{id}/uptime", "2.87").json["hypervisor"]["uptime"] == WORDS
    assert small.admin.get(f"{PATH}/{id}", "2.88").json["hypervisor"]["uptime"] == WORDS
    shown = small.admin.get(f"{PATH}/detail", "2.88").json["hypervisors"]
    assert [one["uptime"] for one in shown] == [WORDS, None]
    assert small.admin.get(f"{PATH}/{down}/uptime", "2.53").status == 400
    assert small.admin.get(f"{PATH}/{down}", "2.88").json["hypervisor"]["uptime"] is None
    assert small.admin.get(f"{PATH}/{id}/uptime", "2.88").status == 404


@pytest.mark.parametrize(("why", "status"), [(Unreachable(), 400), (NotFound(), 501)])
def test_uptime_of_a_host_that_does_not_tell(small, why, status):
    id = small.host("kvm1")
    small.cloud.agents = Agents(kvm1=Teller(why))
    assert small.admin.get(f"{PATH}/{id}/uptime", "2.53").status == status
    assert small.admin.get(f"{PATH}/{id}", "2.88").json["hypervisor"]["uptime"] is None


def test_a_list_does_not_wait_for_an_agent_that_hangs(small, monkeypatch):
    monkeypatch.setattr(hypervisors, "PATIENCE", 0.1)
    end = threading.Event()

    class Hangs:
        def uptime(self, patience):
            end.wait(30)
            return UP

    small.host("kvm1")
    small.host("kvm2")
    small.cloud.agents = Agents(kvm1=Hangs(), kvm2=Teller(UP))
    try:
        shown = small.admin.get(f"{PATH}/detail", "2.88").json["hypervisors"]
    finally:
        end.set()
    assert [one["uptime"] for one in shown] == [None, WORDS]


@pytest.mark.parametrize(("seconds", "users", "words"), [
    (8101500, 12, "up 93 days, 18:25, 12 users,"), (86400 + 3900, 1, "up 1 day,  1:05,  1 user,"),
    (172800, 0, "up 2 days, 0 min,  0 users,"), (3540, 2, "up 59 min,  2 users,"), (0, 0, "up 0 min,  0 users,")])
def test_words_of_uptime(seconds, users, words):
    found = hypervisors.uptime_text({**UP, "uptime": seconds, "users": users})
    assert found == f" 08:32:11 {words}  load average: 0.20, 0.12, 0.14"
    # How OpenStack's command-line client takes it apart.
    assert re.match(r"\s*(.+)\sup\s+(.+),\s+(.+)\susers?,\s+load average:\s(.+)", found)


def test_hypervisors_are_for_administrators(small):
    id = small.host("kvm1")
    for caller in (small.alice, small.rita):
        for path in ("", "/detail", "/statistics", f"/{id}", f"/{id}/uptime"):
            assert caller.get(PATH + path, "2.53").status == 403
        for path in ("/kvm/search", "/kvm/servers"):
            assert caller.get(PATH + path).status == 403


def test_versions_and_addresses():
    assert [version_number(text) for text in ("7.2.22", "10.0", "", "8.2.0-rc1")] == [7002022, 10000000, 0, 8002000]
    assert address("unix:/run/magnetar/agent.sock") == "127.0.0.1"
    assert address("https://192.0.2.7:6553") == "192.0.2.7"


def test_queries_do_not_grow(small):
    for at in range(6):
        small.host(f"kvm{at}")
        small.server(host=f"kvm{at}")
    with small.counted() as seen:
        assert len(names(small.admin.get(f"{PATH}/detail?with_servers=true", "2.87"))) == 6
    assert len(seen) <= 6
