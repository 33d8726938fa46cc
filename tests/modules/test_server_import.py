# SPDX-License-Identifier: GPL-3.0-or-later
"""The module server_import against an agent."""

from __future__ import annotations

import importlib

import pytest

from magnetar_core.http.client import Client
from tests.support.agent.ova import archive, vmware_description
from tests.unit.core.images import sparse_vmdk

GIB = 1 << 30
ROOT, DATA = sparse_vmdk(capacity=2 * GIB // 512), sparse_vmdk(capacity=GIB // 512)


@pytest.fixture
def ova(module, agent):
    """``ova(disks, **described)``: the options of an import of an OVA with one or two disks, after it is written."""
    with Client(agent.endpoint) as client:
        client.ensure("network", "lan", {"cidr": "192.168.100.0/24"})

    def make(disks=1, way="host_path", **more):
        contents = {"root.vmdk": ROOT, "data.vmdk": DATA}
        named = dict(list(contents.items())[:disks])
        sizes = {name: (2, 1)[at] * GIB for at, name in enumerate(named)}
        ovf = vmware_description(sizes, **dict({"nics": {"VM Network": "VmxNet3"}}, **more))
        path = agent.folder / "shop.ova"
        path.write_bytes(archive(("shop.ovf", ovf), *named.items()))
        return {"name": "shop", way: str(path), "networks": {"VM Network": "lan"}}
    return make


def everything(agent):
    with Client(agent.endpoint) as client:
        return {noun: sorted(item["name"] for item in client.list(noun)) for noun in ("image", "server", "volume")}


@pytest.mark.parametrize("way", ["host_path", "filename"])
def test_check_import_again(module, agent, ova, way):
    options = ova(way=way)
    predicted = module("server_import", **options, check=True)
    assert predicted["changed"] and everything(agent) == {"image": [], "server": [], "volume": []}, predicted
    done = module("server_import", **options)
    assert done.get("changed"), done
    assert done["actions"] == predicted["actions"] and done["ovf"] == predicted["ovf"]
    server = done["server"]
    assert (server["status"], server["flavor"]["vcpus"], server["flavor"]["ram"], server["flavor"]["disk"]) == (
        "ACTIVE", 2, 2048, 2)
    assert [(nic["network"], nic["model"]) for nic in server["networks"]] == [("lan", "e1000e")]
    assert server["hardware"]["disk_bus"] == "scsi" and server["hardware"]["scsi_model"] == "vmpvscsi"
    assert "model of NIC 0 is vmxnet3" in str(done["warnings"]) and "assumes" not in str(predicted["warnings"])
    (agent.folder / "shop.ova").unlink()
    again = module("server_import", **options)
    assert not again["changed"] and again["server"]["id"] == server["id"] and again["ovf"] is None
    assert everything(agent) == {"image": ["shop"], "server": ["shop"], "volume": []}


@pytest.mark.parametrize("way", ["host_path", "filename"])
def test_further_disks_become_volumes(module, agent, ova, way):
    options = ova(2, way)
    predicted = module("server_import", **options, check=True)
    assert predicted["changed"] and everything(agent) == {"image": [], "server": [], "volume": []}, predicted
    done = module("server_import", **options, state="stopped", tags=["imported"], vcpus=1, properties={
        "hw_disk_bus": "virtio"})
    assert done.get("changed"), done
    assert done["volumes"] == predicted["volumes"] == ["shop-disk2"]
    assert everything(agent) == {"image": ["shop"], "server": ["shop"], "volume": ["shop-disk2"]}
    server = done["server"]
    assert (server["status"], server["tags"], server["flavor"]["vcpus"]) == ("SHUTOFF", ["imported"], 1)
    assert [volume["name"] for volume in server["volumes_attached"]] == ["shop-disk2"]
    with Client(agent.endpoint) as client:
        volume = client.get("volume", "shop-disk2")
        assert volume["size"] == 1 and volume["metadata"]["ova_disk"] == "data.vmdk"
    assert not module("server_import", **options)["changed"]


def test_an_interrupted_import_continues(module, agent, ova, monkeypatch):
    used = importlib.import_module("ansible_collections.magnetar.compute.plugins.module_utils.core.http.client").Client
    options, ensure = ova(2), used.ensure

    def dies(self, noun, key, *args, **more):
        if noun == "server" and not more["dry_run"]:
            raise RuntimeError("the process dies")
        return ensure(self, noun, key, *args, **more)

    monkeypatch.setattr(used, "ensure", dies)
    with pytest.raises(RuntimeError, match="the process dies"):
        module("server_import", **options)
    assert everything(agent) == {"image": ["shop"], "server": [], "volume": ["shop-disk2"]}
    monkeypatch.setattr(used, "ensure", ensure)
    done = module("server_import", **options)
    assert done["changed"] and done["server"]["status"] == "ACTIVE", done
    assert [action for action in done["actions"] if not action.startswith("server shop")] == []


def test_an_image_of_a_further_disk_that_others_made_stays(module, agent, ova):
    options = ova(2)
    made = module("image", name="shop-disk2", host_path=options["host_path"], ova_disk="data.vmdk",
                  properties={"os_distro": "debian"})["image"]
    for changed in (True, False):
        done = module("server_import", **options)
        assert done["changed"] == changed, done
        assert everything(agent) == {"image": ["shop", "shop-disk2"], "server": ["shop"], "volume": ["shop-disk2"]}
    module("server", name="shop", state="absent")
    assert module("server_import", **options)["changed"]
    with Client(agent.endpoint) as client:
        shown = client.get("image", "shop-disk2")
    assert (shown["id"], shown["properties"]) == (made["id"], {"os_distro": "debian"})


def test_an_interrupted_import_removes_its_image_later(module, agent, ova, monkeypatch):
    used = importlib.import_module("ansible_collections.magnetar.compute.plugins.module_utils.core.http.client").Client
    options, delete = ova(2), used.delete

    def dies(self, noun, *args, **more):
        raise RuntimeError("the process dies")

    monkeypatch.setattr(used, "delete", dies)
    with pytest.raises(RuntimeError, match="the process dies"):
        module("server_import", **options)
    assert everything(agent) == {"image": ["shop", "shop-disk2"], "server": [], "volume": ["shop-disk2"]}
    monkeypatch.setattr(used, "delete", delete)
    assert module("server_import", **options)["changed"]
    assert everything(agent) == {"image": ["shop"], "server": ["shop"], "volume": ["shop-disk2"]}


@pytest.mark.parametrize("check", [True, False])
def test_what_is_refused_changes_nothing(module, agent, ova, check):
    options = ova()
    unmapped = module("server_import", **{**options, "networks": {}}, check=check)
    assert unmapped["failed"] and "networks: must name a network of the host" in unmapped["msg"]
    assert "'VM Network'" in unmapped["msg"]
    if not check:
        gone = module("server_import", **{**options, "networks": {"VM Network": "nowhere"}})
        assert "networks: must name networks of the host, and there is none called 'nowhere'" in gone["msg"], gone
    (agent.folder / "plain.vmdk").write_bytes(ROOT)
    for way in ("host_path", "filename"):
        plain = module("server_import", name="shop", **{way: str(agent.folder / "plain.vmdk")}, check=check)
        assert plain["failed"] and f"{way}: must be an OVA with a disk" in plain["msg"], plain
    assert "filename: cannot be read" in module("server_import", name="x", filename="/nowhere", check=check)["msg"]
    nothing = module("server_import", **ova(vcpus="none"), check=check)
    assert "vcpus: is required: the OVA does not name it" in nothing["msg"]
    path = agent.folder / "shop.ova"
    path.write_bytes(path.read_bytes().replace(b"<Name>shop</Name>", b"<VirtualSystem/> "))
    assert "an OVA of one guest, and describes 2" in module("server_import", **options, check=check)["msg"]
    assert everything(agent) == {"image": [], "server": [], "volume": []}


@pytest.mark.parametrize("way", ["host_path", "filename"])
def test_names_of_others_are_refused(module, agent, ova, way):
    (agent.folder / "other").write_bytes(bytes(512))
    assert module("image", name="shop", host_path=str(agent.folder / "other"))["changed"]
    refused = module("server_import", **ova(2, way))
    assert refused["failed"] and "name: leads to the image shop, which exists" in refused["msg"], refused
    module("image", name="shop", state="absent")
    assert module("volume", name="shop-disk2", size=1)["changed"]
    refused = module("server_import", **ova(2, way))
    assert refused["failed"] and "name: leads to the volume shop-disk2" in refused["msg"], refused


def test_an_ova_of_several_disks_gives_one_image_of_each(module, agent, ova):
    path = ova(2)["host_path"]
    refused = module("image", name="data", host_path=path)
    assert refused["failed"] and "2 disks (root.vmdk, data.vmdk)" in refused["msg"] and "ova_disk" in refused["msg"]
    wrong = module("image", name="data", host_path=path, ova_disk="x.vmdk")
    assert "The OVA has no disk 'x.vmdk'. Its disks: root.vmdk, data.vmdk." in wrong["msg"]
    for name, size in (("data.vmdk", GIB), ("root.vmdk", 2 * GIB)):
        made = module("image", name=name, host_path=path, ova_disk=name)
        assert made["changed"] and made["image"]["virtual_size"] == size and made["image"]["ova_disk"] == name
        assert [disk["name"] for disk in made["image"]["ovf"]["disks"]] == ["root.vmdk", "data.vmdk"]
        for again in ({"ova_disk": name}, {}):
            assert not module("image", name=name, host_path=path, **again)["changed"]
    other = module("image", name="data.vmdk", host_path=path, ova_disk="root.vmdk")
    assert other["failed"] and "ova_disk cannot change" in other["msg"]
    (shown,) = module("image_info", name="data.vmdk")["images"]
    assert shown["ovf"]["nics"] == [{"network": "VM Network", "model": "vmxnet3"}]


def test_ova_disk_is_for_ovas(module, agent, ova):
    path = ova()["host_path"]
    made = module("image", name="root", host_path=path)
    assert made["changed"] and made["image"]["ova_disk"] is None
    assert not module("image", name="root", host_path=path, ova_disk="root.vmdk")["changed"]
    (agent.folder / "plain").write_bytes(bytes(512))
    for way in ("host_path", "filename"):
        plain = module("image", name="plain", ova_disk="x", **{way: str(agent.folder / "plain")})
        assert plain["failed"] and "ova_disk: is for an OVA, and the content is none" in plain["msg"]
