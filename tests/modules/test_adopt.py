# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules adopt and adopt_info against an agent with domains of other programs."""

from __future__ import annotations

import pytest

from tests.support.agent import foreign

from .returned import check, check_actions

UUID = "5f0a2c1e-9d3b-4c55-8f51-0e6d1b7a9c20"


@pytest.fixture
def domains(agent, module):
    """A running domain old1, and old2, which has a snapshot inside of its disk."""
    agent.hypervisor.network_outside("default")
    for name, uuid in (("old1", UUID), ("old2", UUID[:-1] + "1")):
        disk = foreign.file_disk(foreign.overlay(agent.folder, f"{name}.qcow2"))
        nic = foreign.network_nic(mac=f"52:54:00:6b:3c:0{name[-1]}")
        agent.hypervisor.defined_outside(foreign.foreign_xml(name, disk + nic, uuid), "running")
    agent.hypervisor.snapshot_outside(UUID[:-1] + "1", "before")
    return module


def test_check_adopt_again_release(domains, agent):
    before = agent.hypervisor.xml(UUID)
    predicted = domains("adopt", name="old1", check=True)
    assert (predicted["changed"], predicted["adoption"]["status"]) == (True, "adopted")
    assert agent.hypervisor.xml(UUID) == before
    done = domains("adopt", name="old1")
    assert done["changed"] and {name: done[name] for name in ("adoption", "actions", "diff")} == {
        name: predicted[name] for name in ("adoption", "actions", "diff")}
    again = domains("adopt", id=UUID)
    assert not again["changed"] and again["adoption"] == done["adoption"]
    assert not domains("adopt", name="old1", check=True)["changed"]
    shown = domains("server_info", name="old1")["servers"][0]
    assert (shown["id"], shown["status"], shown["adopted"]["domain"]) == (UUID, "ACTIVE", "old1")
    assert not domains("server", name="old1", vcpus=2, ram=64, state="running")["changed"]
    assert domains("server", name="old1", state="stopped")["changed"]
    assert "flavor: not possible" in domains("server", name="old1", vcpus=4)["msg"]
    assert domains("server", name="old1", state="running", tags=["web"])["changed"]
    for result in (done, again, predicted):
        check("adopt", result)
    released = [domains("adopt", name="old1", state="released", check=check) for check in (True, False, False)]
    assert [one["changed"] for one in released] == [True, True, False] and agent.hypervisor.xml(UUID) == before
    check_actions("adopt", [done])
    check("adopt", released[1])
    assert agent.hypervisor.domain(UUID).state == "running"


def test_what_hinders_is_told(domains):
    found = domains("adopt_info")["adoptions"]
    assert [(one["name"], one["status"]) for one in found] == [("old1", "adoptable"), ("old2", "hindered")]
    check("adopt_info", {"adoptions": found})
    (hindered,) = domains("adopt_info", filters={"status": "hindered"}, fields=["name", "hindrances"])["adoptions"]
    for checked in (True, False):
        refused = domains("adopt", name="old2", check=checked)
        assert refused["failed"] and hindered["hindrances"][0]["message"] in refused["msg"]
        assert refused["error"]["details"]["hindrances"] == hindered["hindrances"]


@pytest.mark.parametrize(("options", "said"), [
    ({"name": "none"}, "There is no libvirt domain 'none' on this host"), ({"name": ""}, "name"),
    ({"name": "old1", "server_name": " x"}, "server_name: must be printable text"),
    ({"id": UUID, "name": "other"}, "name: differs from the domain's name 'old1'"),
    ({"name": "old1", "state": "absent"}, "state"),
    ({"name": "old1", "host": "kvm1"}, "host: is for a cloud"),
    ({"name": "old1", "project": "web"}, "project: is for a cloud"),
    ({"name": "old1", "networks": {"br0": "office"}}, "networks: is for a cloud"),
    ({"name": "old1", "endpoint": "http://127.0.0.1:1/"}, "endpoint")], ids=str)
def test_bad_input(domains, options, said):
    refused = domains("adopt", **options)
    assert refused["failed"] and said in refused["msg"]


def test_another_name(domains):
    assert domains("adopt", name="old1", server_name="shop")["adoption"]["server_name"] == "shop"
    assert not domains("adopt", name="old1", server_name="shop")["changed"]
    refused = domains("adopt", name="old1", server_name="web")
    assert "server_name: the domain 'old1' is adopted as server 'shop'" in refused["msg"]
    ignored = domains("adopt", name="old1", server_name="web", on_immutable="ignore")
    assert not ignored["changed"] and "server_name" in str(ignored["warnings"])
