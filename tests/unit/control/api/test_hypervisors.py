# SPDX-License-Identifier: GPL-3.0-or-later
"""os-hypervisors: what is claimed, agents that do not tell, words of uptime, and how many queries a list is."""

import json
import re
import threading

import pytest

from magnetar_control.compute.hosts import hypervisors
from magnetar_control.compute.hosts.hypervisors import agent_address
from magnetar_control.store.claims import allocations
from magnetar_control.store.hosts import hosts
from magnetar_core.errors import NotFound, Unreachable
from magnetar_core.version import version_number

from .compute import Agents, Teller

PATH = "/os-hypervisors"
CPU = {"arch": "unknown", "model": "EPYC", "vendor": "unknown", "features": [],
       "topology": {"sockets": 1, "cores": 8, "threads": 1}}


def names(reply):
    return [one["hypervisor_hostname"] for one in reply.json["hypervisors"]]


def test_what_a_host_has_and_what_is_used(compute):
    id = compute.host("kvm1", disk_gb_free=60)
    server = compute.server(host="kvm1", task_state="rebooting")
    compute.server(host="kvm1")
    with compute.api.write() as connection:
        hosts.update_host_row(connection, "kvm1", memory_mb_reserved=512, disabled=True, disabled_reason="new fan")
        assert allocations.claim_host_resources(connection, server, server, id, allocations.Amounts(2, 1024, 10))
    shown = compute.admin.get(f"{PATH}/{id}", "2.53").json["hypervisor"]
    assert shown.pop("host_ip") == agent_address("https://kvm1.example:6553")
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


UP = {"time": "08:32:11", "uptime": 8101500, "users": 12, "load_average": [0.2, 0.12, 0.14]}
WORDS = " 08:32:11 up 93 days, 18:25, 12 users,  load average: 0.20, 0.12, 0.14"


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
            end.wait(120)
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


def test_versions_and_addresses():
    assert [version_number(text) for text in ("7.2.22", "10.0", "", "8.2.0-rc1")] == [7002022, 10000000, 0, 8002000]
    assert agent_address("unix:/run/magnetar/agent.sock") == "127.0.0.1"
    assert agent_address("https://192.0.2.7:6553") == "192.0.2.7"


def test_queries_do_not_grow(small):
    for at in range(6):
        small.host(f"kvm{at}")
        small.server(host=f"kvm{at}")
    with small.counted() as seen:
        assert len(names(small.admin.get(f"{PATH}/detail?with_servers=true", "2.87"))) == 6
    assert len(seen) <= 6
