# SPDX-License-Identifier: GPL-3.0-or-later
"""Each module, in five steps: check, run, run again, check again, absent; what check mode predicts is what happens."""

from __future__ import annotations

import pytest

from tests.support.modules.states import CASES, UPDATES

#: Drawn or noted at the moment of the change, so that a prediction cannot know them.
DRAWN = {"id", "created_at", "updated_at", "instance_name", "console_log", "networks", "fingerprint", "virtual_size",
         "request_id", "bridge", "addresses", "virt_type", "status"}


def comparable(resource):
    return {name: value for name, value in resource.items() if name not in DRAWN}


@pytest.mark.parametrize("noun", CASES)
def test_five_steps(noun, world, disk):
    options = dict(CASES[noun])
    if "filename" in options:
        options["filename"] = str(disk)
    predicted = world(noun, check=True, **options)
    assert predicted["changed"], predicted
    assert world(noun + "_info", name=options["name"])[noun + "s"] == [], "check mode has changed something"
    done = world(noun, **options)
    assert done["changed"] and done["actions"] == predicted["actions"]
    assert done["diff"] == predicted["diff"] and done["changes"] == predicted["changes"]
    assert comparable(done[noun]) == comparable(predicted[noun])
    assert not world(noun, **options)["changed"]
    again = world(noun, check=True, **options)
    assert not again["changed"] and again["changes"] == {}
    update = dict(UPDATES[noun], name=options["name"])
    predicted = world(noun, check=True, **update)
    updated = world(noun, **update)
    assert updated["changed"] and updated["changes"] == predicted["changes"]
    assert not world(noun, **update)["changed"]
    assert world(noun, check=True, name=options["name"], state="absent")["changed"]
    gone = world(noun, name=options["name"], state="absent")
    assert gone["changed"] and gone[noun]["name"] == options["name"]
    assert not world(noun, name=options["name"], state="absent")["changed"]


def test_host_info(world):
    found = world("host_info")
    assert not found["changed"] and len(found["hosts"]) == 1


@pytest.mark.parametrize("state, power", [
    ("stopped", "off"), ("paused", "paused"), ("suspended", "suspended"), ("running", "running")])
def test_server_power(state, power, world):
    world("server", name="s", flavor="small", image="img")
    for check in (True, False):
        assert world("server", name="s", state=state, check=check)["changed"] is (state != "running")
    assert world("server_info", name="s")["servers"][0]["power_state"] == power
    assert not world("server", name="s", state=state)["changed"]
    assert not world("server", name="s", state="present")["changed"], "present leaves the power as it is"


def test_purge(world):
    world("server", name="s", flavor="small", image="none", metadata={"a": "1"}, tags=["a"])
    assert world("server", name="s", description="x")["server"]["metadata"] == {"a": "1"}, "omitted is untouched"
    merged = world("server", name="s", metadata={"b": 2}, purge_metadata=False, tags=["b"], purge_tags=False)["server"]
    assert merged["metadata"] == {"a": "1", "b": "2"} and merged["tags"] == ["a", "b"]
    exact = world("server", name="s", metadata={"c": True}, tags=[])["server"]
    assert exact["metadata"] == {"c": "true"} and exact["tags"] == []


@pytest.mark.parametrize("action, kind", [
    ({"action": "reboot"}, "soft"), ({"action": "reboot", "reboot_type": "hard"}, "hard"),
    ({"action": "reboot_soft"}, "soft"), ({"action": "reboot_hard"}, "hard")])
def test_server_action(action, kind, world):
    world("server", name="s", flavor="small", image="img")
    for check in (True, False):
        done = world("server_action", server="s", check=check, **action)
        assert done["changed"] and done["actions"] == ["reboot_" + kind] and done["server"]["name"] == "s"
    missing = world("server_action", name="other", **action)
    assert missing["failed"] and missing["error"]["code"] == "not-found" and "other" in missing["msg"]


def test_info_selects(world):
    for name in ("web1", "web2", "db1"):
        world("server", name=name, flavor="small", image="none", state="stopped" if name == "web2" else "present")

    def names(**options):
        return [server["name"] for server in world("server_info", **options)["servers"]]

    assert sorted(names()) == ["db1", "web1", "web2"]
    assert names(name="web1") == ["web1"] and names(name="missing") == []
    assert names(name="web*", sort="-name") == ["web2", "web1"]
    assert names(filters={"status": "SHUTOFF"}) == ["web2"]
    assert names(sort="name", limit=1) == ["db1"] and names(name="web*", sort="name", limit=1) == ["web1"]
    assert world("server_info", name="w*", fields=["status"], sort="name")["servers"] == [
        {"status": "ACTIVE"}, {"status": "SHUTOFF"}]
    assert "known are" in world("server_info", filters={"colour": "red"})["msg"]


def test_filters_are_those_of_the_inventory(world):
    """Patterns, metadata, tags, and the names of flavor, image and network."""
    world("server", name="web1", flavor="small", image="img", networks=["lan"], metadata={"role": "web"}, tags=["a"])
    world("server", name="db1", image="none", vcpus=1, ram=64, metadata={"role": "db", "tier": "1"}, tags=["a", "b"])
    for filters, found in (
            ({"name": "web*"}, ["web1"]), ({"metadata": {"role": "db"}}, ["db1"]), ({"metadata.role": "*b"}, [
                "db1", "web1"]), ({"metadata": {"role": ["db", "x"], "tier": 1}}, ["db1"]), ({"tags": "b"}, ["db1"]),
            ({"flavor": "small"}, ["web1"]), ({"image": "im?"}, ["web1"]), ({"network": ["lan", "x"]}, ["web1"]),
            ({"status": "ACTIVE", "tags": "a", "metadata.role": "web"}, ["web1"]), ({"flavor": "none"}, [])):
        for more in ({}, {"fields": ["name"]}):
            servers = world("server_info", filters=filters, **more)["servers"]
            assert sorted(one["name"] for one in servers) == found, filters
            assert not more or all(set(one) == {"name"} for one in servers)
    world("volume", name="more", size=1, metadata={"role": "db"})
    assert [one["name"] for one in world("volume_info", filters={"metadata.role": "db"})["volumes"]] == ["more"]
    assert world("volume_info", filters={"flavor": "small"})["failed"]
