# SPDX-License-Identifier: GPL-3.0-or-later
"""Values that mean nothing fail with the name of their option, before anything is asked of the agent."""

from __future__ import annotations

import importlib

import pytest

from magnetar_core.http.client import Client
from magnetar_core.kinds import BY_NOUN
from magnetar_core.values import Boolean, Choices, Nullable

from .conftest import COLLECTION

NAMED = ("server", "flavor", "image", "keypair", "network", "volume", "volume_snapshot")
EMPTY = "must have 1 to 255 characters, and has 0"
NEEDED = "name: is required; give it, or id."
#: Module, its options, and what is said.
CASES = [
    *((noun, {"name": "", **more}, f"name: {EMPTY}.") for noun in NAMED for more in ({}, {"state": "absent"})),
    ("flavor", {"name": "", "vcpus": 1, "ram": 128, "check": True}, f"name: {EMPTY}."),
    ("server", {"name": None, "state": "absent"}, NEEDED), ("flavor", {"name": None, "vcpus": 1, "ram": 1}, NEEDED),
    ("server", {"id": ""}, f"id: {EMPTY}."), ("server", {"id": "", "name": "s"}, f"id: {EMPTY}."),
    ("server_action", {"name": "", "action": "reboot"}, f"name: {EMPTY}."),
    ("server_action", {"name": None, "action": "reboot"}, NEEDED),
    ("cell", {"name": ""}, f"name: {EMPTY}."), ("compute_service", {"name": None}, f"name: {EMPTY}."),
    ("balance", {"name": ""}, f"name: {EMPTY}."),
    ("host_maintenance", {"name": "", "state": "enabled"}, f"name: {EMPTY}."),
    ("host_fence", {"name": "", "state": "fenced"}, f"name: {EMPTY}."),
    ("volume_backup", {"name": "x", "volume": "data", "state": "present"}, "cloud: is required"),
    ("volume_transfer", {"name": "x", "volume": "", "state": "present"}, "cloud: is required"),
    ("instance_action_info", {"server": ""}, f"server: {EMPTY}."),
    ("migration", {"server": "", "destination": "unix:///x"}, f"server: {EMPTY}."),
    ("volume_attachment", {"server": "x", "volume": "", "state": "absent"}, f"volume: {EMPTY}."),
    ("volume_attachment", {"server": "", "volume": "x"}, f"server: {EMPTY}."),
    ("interface_attachment", {"server": None, "network": "x"}, f"server: {EMPTY}."),
    ("interface_attachment", {"server": "x", "network": ""},
     "port: or mac or network or bridge or physical_network is required."),
    ("server_action", {"name": "s", "action": "console_output", "length": 0}, "length: must be from 1 to 2147483647"),
    ("server_action", {"name": "s", "action": "console_output", "length": -3}, "length: must be from 1 to"),
    ("server_action", {"name": "s", "action": "create_image", "image_name": ""}, f"image_name: {EMPTY}."),
    ("server_action", {"name": "s", "action": "create_image", "image_name": " x"}, "image_name: must be printable"),
    ("server_action", {"name": "s", "action": "create_image", "image_name": None},
     "image_name: is required for action create_image."),
    ("flavor", {"name": "f", "timeout": 0}, "timeout: must be from 1 to 2147483647 (got 0)."),
    ("flavor", {"name": "f", "timeout": -1}, "timeout: must be from 1 to"),
    ("server_info", {"api_timeout": 0}, "api_timeout: must be from 1 to"),
    ("server_info", {"limit": 0}, "limit: must be from 1 to"),
    ("server_info", {"filters": {"status": []}}, "filters.status: must be a value, or a list of values"),
    ("server_info", {"filters": {"power": ["on", "off"]}}, "filters.power: must be one of running, off, paused"),
    ("flavor_info", {"filters": {"vcpus": [1, "many"]}}, "filters.vcpus: must be a whole number (got 'many')"),
    ("server_info", {"filters": {"status": None}}, "filters.status: must be a value, or a list of values"),
    ("server_info", {"filters": {"status": {"is": "ACTIVE"}}}, "filters.status: must be a value, or a list of values"),
    ("server", {"servers": [{"name": "a"}, {"name": "a"}], "vcpus": 1, "ram": 64},
     "servers[1].name: is that of servers[0] already"),
    ("server", {"servers": [{"id": "0B9F1A526EA04B9CA4F60E0F9F0C3C11"},
                            {"name": "x"}, {"id": "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"}], "vcpus": 1, "ram": 64},
     "servers[2].id: is that of servers[0] already"),
    ("server", {"servers": [{"name": ""}], "vcpus": 1, "ram": 64}, f"servers[0].name: {EMPTY}"),
    ("server", {"servers": [{"name": "x", "boot_from_volume": True, "volume_size": 0}]},
     "servers[0].volume_size: must be from 1 to"),
    ("server", {"servers": ["web1"]}, "servers[0]: must be a dictionary of options such as "),
    ("server", {"servers": [{"name": "a"}, "web1"]}, "; write - name: web1 (got 'web1')."),
    ("server", {"servers": {"name": "a"}}, "servers: must be a list (got {'name': 'a'})."),
    ("server", {"servers": [{"name": "a", "vcpus": "many"}]},
     "servers[0].vcpus: must be a whole number (got 'many')."),
    ("server", {"servers": [{"name": "a", "block_device_mapping": [None]}]},
     "servers[0].block_device_mapping[0]: must be a dictionary of options such as "),
    ("flavor", {"name": "f", "ram": "many"}, "ram: must be a whole number (got 'many')."),
    ("server", {"name": "s", "metadata": ["a"]}, "metadata: must be a dictionary (got ['a'])."),
    ("server", {"name": "s", "wait": "perhaps"}, "wait: must be yes or no (got 'perhaps')."),
]


@pytest.mark.parametrize(("noun", "options", "said"), CASES, ids=lambda value: str(value)[:60])
def test_refused(noun, options, said, module):
    done = module(noun, **options)
    assert done.get("failed") and said in done["msg"] and done.get("changed") is not True, done
    assert module("flavor_info")["flavors"] == module("server_info")["servers"] == []


@pytest.mark.parametrize("noun", ["server", "flavor", "volume", "interface_attachment", "network"])
def test_all_that_is_named_can_be_filtered_by(noun, module):
    """What the message calls known is known to the agent too."""
    known = module(f"{noun}_info", filters={"foo": 1})["msg"].partition("known are ")[2].rstrip(".").split(", ")
    assert "id" in known
    for name in known:
        fields = {field.name: field.value for field in BY_NOUN[noun].fields}
        value = sample(fields[name]) if name in fields else 1
        for asked in (value, [value, value]):
            done = module(f"{noun}_info", filters={name: asked})
            assert f"{noun}s" in done, done


def sample(value):
    """What a field of that type may have."""
    inner = value.value if isinstance(value, Nullable) else value
    return inner.words()[0] if isinstance(inner, Choices) else isinstance(inner, Boolean) or 1


def test_an_answer_that_says_nothing_is_no_success():
    results = importlib.import_module(f"{COLLECTION}.plugins.module_utils.modules.results")
    errors = importlib.import_module(f"{COLLECTION}.plugins.module_utils.core.errors")
    with pytest.raises(errors.MagnetarError, match="neither whether anything changed"):
        results.module_result("server", "s", {}, False)
    operation = {"id": "1", "status": "running"}
    assert results.module_result("server", "s", {"operation": operation}, False)["operation"] == operation


def test_null_takes_an_address_away(world):
    options = {"name": "s", "flavor": "small", "image": "none",
               "networks": [{"network": "lan", "address": "192.168.99.7"}]}
    assert world("server", **options)["server"]["networks"][0]["address"] == "192.168.99.7"
    assert not world("server", name="s", networks=[{"network": "lan"}])["changed"], "omitted is kept"
    for servers in (False, True):
        world("server", **options)
        nics = [{"network": "lan", "address": None, "tag": None}]
        asked = {"servers": [{"name": "s", "networks": nics}]} if servers else {"name": "s", "networks": nics}
        done = world("server", **asked)
        found = done["results"][0] if servers else done
        assert found["changed"] and found["server"]["networks"][0].get("address") is None, done
        assert not world("server", **asked)["changed"]


def test_filters_with_lists(world):
    for name, state in (("web1", "present"), ("web2", "stopped"), ("db1", "paused"), ("db2", "present")):
        world("server", name=name, flavor="small", image="img" if name == "web1" else "none", state=state)

    def names(**options):
        return [server["name"] for server in world("server_info", sort="name", **options)["servers"]]

    assert names(filters={"status": ["PAUSED", "SHUTOFF"]}) == ["db1", "web2"]
    assert names(filters={"status": ["PAUSED"]}) == ["db1"] and names(filters={"status": ["BUILD", "ERROR"]}) == []
    assert names(filters={"status": ["ACTIVE", "SHUTOFF"]}, name="web*") == ["web1", "web2"]
    assert names(filters={"status": ["ACTIVE", "SHUTOFF"], "name": ["web1", "db1"]}, name="*1") == ["web1"]
    assert names(filters={"status": ["ACTIVE", "SHUTOFF"], "power_state": "running"}, limit=1) == ["db2"]
    assert names(filters={"image": ["img", "other"]}) == ["web1"]
    assert names(filters={"restart_on_crash": [True, False]}) == ["db1", "db2", "web1", "web2"]
    assert world("server_info", filters={"status": ["PAUSED", "ERROR"]}, fields=["power"])["servers"] == [
        {"power": "paused"}]
    world("volume_attachment", server="web1", volume="data")
    assert len(world("volume_attachment_info", filters={"device": ["vda", "vdb"]})["volume_attachments"]) == 1
    assert world("volume_attachment_info", filters={"device": ["vdx", "vdy"]})["volume_attachments"] == []


def test_an_image_refused_for_its_file_does_not_stand_in_the_way(module, tmp_path, disk):
    """The task with the right file makes it."""
    bad = tmp_path / "bad.qcow2"
    bad.write_bytes(b"no qcow2 at all")
    refused = module("image", name="img", filename=str(bad), disk_format="qcow2")
    assert refused["failed"] and refused["error"]["code"] == "image-refused", refused
    assert module("image_info", name="img")["images"] == []
    made = module("image", name="img", filename=str(disk), disk_format="raw")
    assert made["changed"] and made["image"]["status"] == "active", made


def test_an_upload_that_broke_off_does_not_stand_in_the_way(module, agent, disk):
    """The image waits for its content, be that of another file than before."""
    with Client(agent.endpoint) as client:
        client.ensure("image", "img", {"source": {"upload": True}, "checksum": "sha256:" + "0" * 64,
                                       "disk_format": "qcow2"})
    checked = module("image", check=True, name="img", filename=str(disk))
    made = module("image", name="img", filename=str(disk))
    for found in (checked, made):
        assert found["changed"] and found["image"]["status"] == "active", found
        assert found["actions"] == ["record", "receive"], found
    assert made["image"]["disk_format"] == "raw"
    assert not module("image", name="img", filename=str(disk))["changed"]


@pytest.mark.parametrize(("noun", "options", "said"), [
    ("server", {"flavor": "small", "image": "none", "volumes": ["novol"]}, "volumes[0]: must name a volume"),
    ("server", {"flavor": "small", "boot_volume": "novol"}, "boot_volume: must name a volume"),
    ("server", {"flavor": "small", "image": "none", "nics": "net-name=nope"}, "nics[0]: must name a network"),
    ("server", {"flavor": "small", "image": "none", "network": "nope"}, "network: must name a network"),
    ("server", {"flavor": "small", "image": "none", "networks": ["nope"]}, "networks[0].network: must name a network"),
    ("network", {"bridge": "nobr0"}, "mode: must be bridge to use the bridge nobr0"),
    ("network", {"bridge": "nobr0", "mode": "bridge"}, "bridge: must be an existing bridge"),
    ("migration", {"name": None, "server": "s", "destination": "kvm2"}, "destination: must be unix:///path"),
    ("volume_attachment", {"name": None, "server": "s", "volume": "data", "volume_endpoint": "kvm2"},
     "volume_endpoint: must be unix:///path")], ids=str)
def test_the_option_that_was_given_is_blamed(noun, options, said, world):
    given = {key: value for key, value in {"name": "x", **options}.items() if value is not None}
    refused = world(noun, **given)
    assert refused["failed"] and refused["msg"].startswith(said), refused["msg"]
    assert refused["error"]["details"]["field"] == said.partition(":")[0]
