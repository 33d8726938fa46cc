# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of server, its batches, and what a wrong task is told."""

from __future__ import annotations

import json

import pytest

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Zz5bBNJ me@example"


def test_drop_in_words(world):
    nics = ["net-name=lan,tag=front", {"net-name": "lan"}]
    made = world("server", name="s", image="none", vcpus=1, ram=64, nics=nics)["server"]
    assert [(nic["network"], nic.get("tag")) for nic in made["networks"]] == [("lan", "front"), ("lan", None)]
    assert made["flavor"]["ram"] == 64
    made = world("server", name="t", flavor="small", image="none", network="lan")["server"]
    assert made["networks"][0]["network"] == "lan"
    nics = [{"name": "lan"}, {"bridge": "br0"}]
    assert world("server", name="u", flavor="small", image="none", networks=nics)["changed"]


def test_boot_volumes_in_drop_in_words(world):
    world("volume", name="data", size=1)
    options = dict(name="s", flavor="small", image="img", boot_from_volume=True, volume_size=2, terminate_volume=True,
                   volumes=["data"])
    done = world("server", **options)
    root, data = done["server"]["volumes_attached"]
    assert (root["device"], root["delete_on_termination"], data["device"], data["name"]) == ("vda", True, "vdb", "data")
    assert done["server"]["image"] is None and not world("server", **options)["changed"]
    assert not world("server", name="s")["changed"], "what is left out stays"
    kept = world("volume", name="boot", image="img")["volume"]["id"]
    on = world("server", name="t", flavor="small", boot_volume="boot")["server"]
    assert [one["id"] for one in on["volumes_attached"]] == [kept]
    many = world("server", flavor="small", image="img", servers=[
        {"name": "u", "boot_from_volume": True}, {"name": "v"}, {"name": "t", "boot_volume": "boot"}])
    assert [len(one["server"]["volumes_attached"]) for one in many["results"]] == [1, 0, 1]
    assert not many["results"][2]["changed"]


def test_block_device_mapping(world):
    items = [{"source_type": "image", "uuid": "img", "boot_index": 0, "tag": "root"},
             {"source_type": "blank", "destination_type": "volume", "volume_size": 1, "tag": "logs"}]
    done = world("server", name="s", flavor="small", image="img", block_device_mapping_v2=items)
    assert [one["device"] for one in done["server"]["volumes_attached"]] == ["vdb"]
    assert not world("server", name="s", flavor="small", image="img", block_device_mapping=items)["changed"]
    shown = done["server"]["block_device_mapping"]
    assert not world("server", name="s", block_device_mapping=shown)["changed"], "what is told can be asked for"
    failed = world("server", name="s", block_device_mapping=[])
    assert failed["error"]["code"] == "immutable" and "block_device_mapping" in failed["msg"]


def test_a_blank_root_disk_is_asked_for(world):
    """A forgotten image makes no server, in a batch too, and not in check mode."""
    for check in (True, False):
        for asked in ({"name": "s"}, {"servers": [{"name": "s"}]}):
            done = world("server", flavor="small", check=check, **asked)
            assert done["failed"] and "image: is required to make a server" in json.dumps(done), done
    made = world("server", name="s", flavor="small", image="none")
    assert made["server"]["image"] is None
    assert not world("server", name="s", flavor="small", image="none")["changed"]
    assert not world("server", name="s", flavor="small")["changed"], "omitted is untouched"


def test_by_uuid(world):
    made = world("server", name="s", flavor="small", image="none")["server"]
    assert world("server", id=made["id"], name="t")["server"]["name"] == "t"
    chosen = "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"
    assert world("server", id=chosen, name="new", flavor="small", image="none")["server"]["id"] == chosen


def test_unchanged_by_uuid(world):
    made = world("server", name="s", flavor="small", image="none")["server"]
    assert not world("server", id=made["id"])["changed"]
    assert not world("server", name=made["id"])["changed"], "a name that is a uuid means that server"


def test_on_immutable(world, disk):
    world("server", name="s", flavor="small", image="img")
    world("image", name="other", filename=str(disk), disk_format="raw")
    failed = world("server", name="s", image="other")
    assert failed["failed"] and failed["error"]["code"] == "immutable" and "image" in failed["msg"]
    ignored = world("server", name="s", image="other", on_immutable="ignore")
    assert not ignored["changed"] and any("image" in str(text) for text in ignored["warnings"])
    assert world("server", name="s", image="other", on_immutable="recreate")["server"]["image"]["name"] == "other"


def test_image_content(world, disk, tmp_path):
    other = tmp_path / "other.raw"
    other.write_bytes(b"x" * (2 << 20))
    assert not world("image", name="img", filename=str(disk))["changed"]
    assert world("image", name="img", filename=str(other))["error"]["code"] == "immutable"
    wrong = world("image", name="new", filename=str(disk), checksum="sha256:" + "0" * 64)
    assert wrong["failed"] and "sha256:" in wrong["msg"]
    assert "checksum" in world("image", name="new", url="https://example.org/x")["msg"]
    assert "cannot be read" in world("image", name="new", filename="/missing")["msg"]


def test_keypair_file(world, tmp_path):
    path = tmp_path / "id.pub"
    path.write_text(KEY + "\n")
    assert not world("keypair", name="me", public_key_file=str(path))["changed"]
    path.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n")
    failed = world("keypair", name="me", public_key_file=str(path))
    assert "private key" in failed["msg"] and "secret" not in json.dumps(failed)


def test_batch(world):
    items = [{"name": "a"}, {"name": "b", "state": "stopped"}, {"name": "c", "ram": 64, "vcpus": 1},
             {"name": "gone", "state": "absent"}]
    predicted = world("server", flavor="small", image="none", servers=items, check=True)
    done = world("server", flavor="small", image="none", servers=items)
    assert [item["name"] for item in done["results"]] == ["a", "b", "c", "gone"]
    assert [item["changed"] for item in done["results"]] == [True, True, True, False]
    assert [i["changes"] for i in done["results"]] == [i["changes"] for i in predicted["results"]]
    assert len(done["changed_ids"]) == 3 and done["failed_ids"] == [] and len(done["diff"]) == 4
    assert [item["server"]["power"] for item in done["results"][:3]] == ["running", "off", "running"]
    assert done["results"][2]["server"]["flavor"]["ram"] == 64
    assert not world("server", flavor="small", image="none", servers=items)["changed"]


def test_batch_with_failures(world):
    items = [{"name": "a"}, {"name": "b", "image": "missing"}, {"name": "c", "nics": ["colour=red"]}]
    failed = world("server", flavor="small", image="none", servers=items)
    assert failed["failed"] and "2 of 3 failed" in failed["msg"] and "b: " in failed["msg"]
    assert [item["failed"] for item in failed["results"]] == [False, True, True]
    assert failed["failed_ids"] == ["b", "c"] and failed["changed"]
    assert not world("server", flavor="small", image="none", servers=items, continue_on_error=True).get("failed")
    done = world("server", flavor="small", image="none", servers=items[1:], continue_on_error=True)
    assert done["failed"], "all have failed"


@pytest.mark.parametrize("options, words", [
    (dict(name="s", flavour="small"), "flavour"),
    (dict(flavor="small"), "one of the following is required: name, id, servers"),
    (dict(name="s", servers=[]), "mutually exclusive"),
    (dict(name="s", flavor="small", disk=3), "cannot be combined"),
    (dict(name="s", flavor="missing", image="none"), "missing"),
    (dict(name="s", flavor="small"), "image: is required to make a server"),
    (dict(name="s", vcpus=0, ram=64), "vcpus"),
    (dict(name="s", vcpus=1, ram=64, disk=-1), "disk"),
    (dict(name="s", flavor="small", image="missing"), "missing"),
    (dict(name="x" * 256, flavor="small"), "name"),
    (dict(name="s", flavor="small", image="none", userdata="x" * 65535), "user_data"),
    (dict(name="s", flavor="small", image="none", metadata={"k" * 256: "v"}), "metadata"),
    (dict(name="s", flavor="small", image="none", networks=[{"bridge": "missing0"}]), "missing0"),
    (dict(name="s", flavor="small", image="none", networks=[{"color": "x"}]), "networks[0].color"),
    (dict(name="s", flavor="small", image="none", networks=[
        {"physical_network": "physnet9", "vlan": 7, "port_security": False}]), "no virtual functions of physical"),
    (dict(name="s", flavor="small", image="none", nics=["colour=red"]), "colour"),
    (dict(name="s", flavor="small", image="none", nics=["port-id=x"]), "nics[0]: must be the uuid by which OVN knows"),
    (dict(name="s", flavor="small", boot_from_volume=True), "image: is required with boot_from_volume"),
    (dict(name="s", flavor="small", boot_volume="missing"), "must name a volume of this host"),
    (dict(name="s", flavor="small", boot_volume="x", boot_from_volume=True), "boot_volume: cannot be combined"),
    (dict(name="s", flavor="small", boot_volume="x", image="img"), "image: cannot be combined with boot_volume"),
    (dict(name="s", flavor="small", image="img", volume_size=3), "volume_size: is for a server that boots from a"),
    (dict(name="s", flavor="small", image="img", terminate_volume=True), "terminate_volume: is for a server"),
    (dict(name="s", flavor="small", image="none", volumes=["missing"]), "volumes[0]: must name a volume"),
    (dict(name="s", flavor="small", image="none", block_device_mapping=[{"uuid": "x"}]), "source_type"),
    (dict(name="s", flavor="small", image="none", block_device_mapping=[{"source_type": "tape"}]), "tape"),
    (dict(name="s", flavor="small", endpoint="http://localhost:1"), "must not be http"),
    (dict(name="s", flavor="small", endpoint="unix:///missing.sock"), "no such socket"),
    (dict(name="s", flavor="small", endpoint="https://127.0.0.1:1", api_timeout=1, timeout=1), "refused"),
])
def test_wrong_tasks(options, words, world):
    failed = world("server", **options)
    assert failed["failed"] and words in failed["msg"] and "\n" not in failed["msg"], failed
    assert "Traceback" not in json.dumps(failed)
    assert world("server_info")["servers"] == [], "nothing is left"


def test_userdata_is_hidden(world):
    data = {"password": "geheim", "hostname": "s", "n": 1}
    done = world("server", name="s", flavor="small", image="none", userdata=data)
    shown = json.dumps(done)
    assert "geheim" not in shown and done["server"]["name"] == "s"
    assert done["changes"]["user_data"]["new"] == "(hidden)"
    text = json.dumps(world("server", name="t", flavor="small", image="none", userdata="#!/bin/sh\necho geheim\n"))
    assert "geheim" not in text
    many = [{"name": "u", "userdata": {"p": "geheim"}}]
    assert "geheim" not in json.dumps(world("server", servers=many, image="none", vcpus=1, ram=64))


def test_libvirt_away(agent, world, monkeypatch):
    from ansible_collections.magnetar.compute.plugins.module_utils.core.http import client
    monkeypatch.setattr(client, "RETRY_FOR", 0.5)
    agent.hypervisor.disconnect()
    failed = world("server", name="s", flavor="small", image="none")
    assert failed["error"]["code"] == "hypervisor-down"
    agent.hypervisor.reconnect()
    assert world("server", name="s", flavor="small", image="none")["changed"]


def test_what_only_a_cloud_gives_is_refused_by_name(world):
    """Alone and in a batch, also of a server that exists; an option that asks for nothing passes."""
    options = {"flavor": "small", "image": "none"}
    assert world("server", name="s", scheduler_hints={}, security_groups=[], **options)["changed"]
    for more in ({"scheduler_hints": {"group": "apart"}}, {"security_groups": ["web"]}, {"host": "kvm1"},
                 {"hostname": "s1"}, {"access_ip_v4": "192.0.2.7"}, {"access_ip_v6": "2001:db8::7"},
                 {"disk_config": "AUTO"}, {"trusted_image_certificates": ["0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"]}):
        (name,) = more
        for failed in (world("server", name="s", **more), world("server", servers=[{"name": "s", **more}]),
                       world("server", name="new", check=True, **options, **more)):
            assert failed["failed"] and f"{name}: is for a cloud" in failed["msg"], failed
    failed = world("server", name="s", networks=[{"port": "door"}])
    assert "networks[0].port: must be the uuid by which OVN knows the port" in failed["msg"], failed


def test_admin_password_is_for_a_cloud(world):
    """The agent of one host would write the config drive again with each run."""
    options = {"flavor": "small", "image": "none"}
    alone = world("server", name="s", admin_password="a secret word", **options)
    batch = world("server", servers=[{"name": "s"}, {"name": "t", "admin_password": "a secret word"}], **options)
    for failed, where in ((alone, ""), (batch, "servers[1].")):
        assert failed["failed"] and failed["msg"].startswith(f"{where}admin_password: is for a cloud"), failed
        assert "a secret word" not in json.dumps(failed)


def test_one_port_is_for_one_server_of_a_batch(world):
    """The first has it; the others are refused by name and are not made. Also where the option is beside the list."""
    port = "7d3f7c0e-6c1c-5a39-9d0e-3f0f6f0c7a11"
    options = {"flavor": "small", "image": "none", "state": "stopped", "check": True}
    named = [{"name": name} for name in "abcd"]
    for many in (world("server", servers=named, networks=[{"port": port}], **options),
                 world("server", servers=[{**one, "networks": [{"port": port}]} for one in named], **options)):
        assert [one["msg"].partition(":")[0] for one in many["results"][1:]] == [
            f"servers[{at}].networks[0].port" for at in (1, 2, 3)], many
        assert all("is that of servers[0] already" in one["msg"] for one in many["results"][1:])
