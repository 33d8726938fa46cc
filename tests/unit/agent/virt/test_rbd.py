# SPDX-License-Identifier: GPL-3.0-or-later
"""Ceph's tools: what they are asked, and what their answers mean (those of Ceph 16.2). The tests
of ``tests/lab/volumes/test_ceph.py`` ask real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.host.hypervisor import MigrationParams
from magnetar_agent.host.storage import NetworkSource
from magnetar_agent.virt.disks import rbd
from magnetar_agent.virt.domain import migrated_xml
from magnetar_agent.virt.tools.process import _failed
from magnetar_core.errors import Conflict, HypervisorError

PLACE = NetworkSource("rbd", "vms/", hosts=(("10.0.0.1", "6789"), ("fd00::1", None)), user="magnetar", secret="s")
WHO = ["--id", "magnetar", "-m", "10.0.0.1:6789,[fd00::1]"]


class Said:
    """What the tools say, by the first words of what they are asked: text, or an error with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[str]] = []
        self.answers: dict[str, list[str | int]] = {}
        monkeypatch.setattr(rbd, "run_program", self.run)

    def run(self, arguments: list[str], what: str, _limit: float) -> str:
        tool, words = arguments[0], [one for one in arguments[1:] if one not in WHO]
        self.asked.append([tool, *words])
        for begins, found in self.answers.items():
            if " ".join([tool, *words]).startswith(begins):
                text, code = (str(found[0]), int(found[1])) if len(found) > 1 else (str(found[0]), 0)
                if len(found) > 2:
                    del found[:2]
                if code:
                    raise _failed(tool, what, code, text)
                return text
        return ""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    return Said(monkeypatch)


def test_whom_they_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = rbd.RbdTools(PLACE)
    assert tools.source("a_disk") == NetworkSource("rbd", "vms/a_disk", hosts=PLACE.hosts, user="magnetar", secret="s")
    whole: list[list[str]] = []

    def run(arguments: list[str], *_more: object) -> str:
        whole.append(arguments)
        return '["b", "a"]'

    monkeypatch.setattr(rbd, "run_program", run)
    assert tools.names() == ["a", "b"]
    assert rbd.RbdTools(NetworkSource("rbd", "vms/")).names() == ["a", "b"]
    assert whole == [["rbd", *WHO, "ls", "--format=json", "--pool", "vms"],
                     ["rbd", "ls", "--format=json", "--pool", "vms"]]


def test_what_is_there(said: Said) -> None:
    tools = rbd.RbdTools(PLACE)
    said.answers["rbd info"] = [json.dumps({"name": "a", "size": 5 << 20})]
    assert tools.size("a") == 5 << 20
    said.answers["rbd info"] = said.answers["rbd snap ls"] = [
        "rbd: error opening image a: (2) No such file or directory", 2]
    assert tools.size("a") is None and not tools.is_base("a")
    said.answers["rbd info"] = ["rbd: error opening pool 'vms': (2) No such file or directory", 2]
    with pytest.raises(HypervisorError, match="rbd could not look at a in the pool 'vms' of Ceph: error opening pool"):
        tools.size("a")
    said.answers["rbd snap ls"] = [json.dumps([{"name": "magnetar", "protected": "false"}])]
    assert not tools.is_base("a")
    said.answers["rbd snap ls"] = [json.dumps([{"name": "magnetar", "protected": "true"}])]
    assert tools.is_base("a")


def test_what_is_there_already(said: Said) -> None:
    tools, there = rbd.RbdTools(PLACE), ["rbd: create error: (17) File exists", 17]
    said.answers.update({"rbd create": there, "rbd clone": there})  # type: ignore[dict-item]
    for work in (lambda: tools.make("a", 1), lambda: tools.clone("base", "a")):
        with pytest.raises(Conflict, match="has an image called a already"):
            work()
    said.answers.update({"rbd snap create": ["rbd: failed to create snapshot: (17) File exists", 17],
                         "rbd snap protect": ["rbd: snap is already protected", 16]})
    tools.protect("a")
    said.answers["rbd snap protect"] = ["rbd: protecting snap failed: (1) Operation not permitted", 1]
    with pytest.raises(HypervisorError, match="not permitted"):
        tools.protect("a")


def test_a_note_goes_with_the_name(said: Said) -> None:
    tools = rbd.RbdTools(PLACE)
    tools.rename("a", "b")
    tools.annotate("b", '{"owner": 1}')
    assert said.asked == [
        ["rbd", "rename", "--image", "a", "--dest-pool", "vms", "--dest", "b", "--pool", "vms"],
        ["rbd", "image-meta", "set", "--image", "b", "magnetar.owner", '{"owner": 1}', "--pool", "vms"]]
    said.answers["rbd image-meta list"] = [json.dumps({"magnetar.owner": "text", "conf_x": "y"})]
    assert tools.annotation("b") == "text"
    said.answers["rbd image-meta list"] = ["{}"]
    assert tools.annotation("b") is None
    said.answers["rbd image-meta list"] = ["rbd: error opening image b: (2) No such file or directory", 2]
    assert tools.annotation("b") is None
    said.answers["rbd rename"] = ["rbd: rename error: (17) File exists", 17]
    with pytest.raises(Conflict, match="has an image called b already"):
        tools.rename("a", "b")


def test_blocked_clients(said: Said) -> None:
    tools, address = rbd.RbdTools(PLACE), "10.0.0.7:0/3421"
    said.answers["rbd status"] = [json.dumps({"watchers": [{"address": address, "client": 4, "cookie": 1}]})]
    said.answers["rbd lock ls"] = [json.dumps([{"id": "auto 1", "locker": "client.5", "address": "10.0.0.8:0/1"}])]
    assert tools.block_clients("a") == [address, "10.0.0.8:0/1"]
    assert said.asked[-2:] == [["ceph", "osd", "blocklist", "add", one] for one in (address, "10.0.0.8:0/1")]
    said.answers["rbd lock ls"] = [json.dumps({"auto 1": {"locker": "client.5", "address": address}})]
    assert tools.block_clients("a") == [address]
    gone = ["rbd: error opening image a: (2) No such file or directory", 2]
    said.answers.update({"rbd status": gone, "rbd lock ls": gone})  # type: ignore[dict-item]
    assert tools.block_clients("a") == []


def test_grown(said: Said) -> None:
    tools = rbd.RbdTools(PLACE)
    said.answers["rbd info"] = [json.dumps({"size": 10})]
    tools.grow("a", 10)
    assert len(said.asked) == 1
    tools.grow("a", 11)
    assert said.asked[-1] == ["rbd", "resize", "--image", "a", "--size", "11B", "--no-progress", "--pool", "vms"]
    said.answers["rbd info"] = ["rbd: error opening image a: (2) No such file or directory", 2]
    with pytest.raises(HypervisorError, match="The image a is gone from the pool 'vms' of Ceph"):
        tools.grow("a", 12)


def test_removed(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    tools, waited = rbd.RbdTools(PLACE), []
    monkeypatch.setattr(rbd.time, "sleep", waited.append)
    said.answers["rbd rm"] = ["rbd: delete error: (2) No such file or directory", 2]
    tools.remove("a")
    said.answers["rbd rm"] = ["rbd: error: image still has watchers\nThis means the image is still open", 16, ""]
    tools.remove("a")
    assert waited == [rbd.AGAIN]
    monkeypatch.setattr(rbd, "OPEN", -1.0)
    said.answers["rbd rm"] = ["rbd: error: image still has watchers", 16]
    with pytest.raises(HypervisorError, match="still has watchers"):
        tools.remove("a")
    said.answers["rbd rm"] = ["rbd: error opening pool 'vms': (2) No such file or directory", 2]
    with pytest.raises(HypervisorError, match="opening pool"):
        tools.remove("a")


@pytest.mark.parametrize(("children", "verbs"), [
    ([{"image": "a"}], ["info", "snap ls", "children"]),
    ([], ["info", "snap ls", "children", "snap unprotect", "snap rm", "rm"])])
def test_a_base_goes_unless_it_has_clones(said: Said, children: list[Any], verbs: list[str]) -> None:
    said.answers.update({"rbd info": [json.dumps({"size": 1})], "rbd children": [json.dumps(children)],
                         "rbd snap ls": [json.dumps([{"name": "magnetar", "protected": "true"}])]})
    rbd.RbdTools(PLACE).remove_base("base")
    assert [" ".join(one[1:3 if one[1] == "snap" else 2]) for one in said.asked] == verbs


def test_a_base_whose_removal_or_making_was_cut_short_goes(said: Said) -> None:
    """Its snapshot is there, and is not protected: by that alone the image cannot be removed."""
    said.answers.update({"rbd info": [json.dumps({"size": 1})], "rbd children": ["[]"],
                         "rbd snap ls": [json.dumps([{"name": "magnetar", "protected": "false"}])],
                         "rbd snap unprotect": ["rbd: unprotecting snap failed: (22) Invalid argument", 22]})
    rbd.RbdTools(PLACE).remove_base("base")
    assert [one[1:3] for one in said.asked if one[1] in ("snap", "rm")][1:] == [["snap", "rm"], ["rm", "--image"]]


@pytest.mark.parametrize(("stops", "meanwhile"), [
    ("rbd snap unprotect", {"rbd children": ["[]", 0, '[{"image": "a"}]']}),
    ("rbd snap unprotect", {"rbd info": [json.dumps({"size": 1}), 0, "rbd: error opening image base: "
                                         "(2) No such file or directory", 2]}),
    ("rbd rm", {"rbd snap ls": ["[]", 0, json.dumps([{"name": "magnetar", "protected": "false"}])]}),
    ("rbd snap rm", {})], ids=["cloned", "removed", "filled", "else"])
def test_what_another_host_does_with_a_base_meanwhile(said: Said, stops: str, meanwhile: dict[str, Any]) -> None:
    said.answers.update({"rbd info": [json.dumps({"size": 1})], "rbd children": ["[]"],
                         "rbd snap ls": [json.dumps([{"name": "magnetar", "protected": "true"}])],
                         stops: ["rbd: failed: (16) Device or resource busy", 16], **meanwhile})
    if meanwhile:
        rbd.RbdTools(PLACE).remove_base("base")
    else:
        with pytest.raises(HypervisorError, match="busy"):
            rbd.RbdTools(PLACE).remove_base("base")


def test_room(said: Said) -> None:
    pools = [{"name": "other", "stats": {"stored": 9, "max_avail": 9}},
             {"name": "vms", "stats": {"stored": 10, "bytes_used": 30, "max_avail": 100}}]
    said.answers["ceph df"] = [json.dumps({"stats": {"total_bytes": 1000}, "pools": pools})]
    seen = rbd.RoomSeen.read("rbd0", rbd.RbdTools(PLACE))
    assert seen.total_and_free() == (110, 100) and seen.is_good("rbd0") and not seen.is_good("rbd1")
    said.answers["ceph df"] = [json.dumps({"pools": pools[:1]})]
    bad = rbd.RoomSeen.read("rbd0", rbd.RbdTools(PLACE))
    assert bad.is_good("rbd0")  # a cluster that does not answer is not asked each time
    with pytest.raises(HypervisorError, match="Ceph has no pool 'vms'"):
        bad.total_and_free()


def test_a_guest_that_moves_finds_its_images_as_the_target_does() -> None:
    def domain(secret: str, host: str, image: str = "vms/a_disk") -> str:
        return (f"<domain><devices><disk type='network'><driver name='qemu' type='raw'/><source protocol='rbd' "
                f"name='{image}'><host name='{host}'/><auth username='magnetar'><secret type='ceph' uuid='{secret}'/>"
                "</auth></source><backingStore/><target dev='vda'/></disk></devices></domain>")
    params: Callable[..., Any] = MigrationParams
    found = migrated_xml.target_domain_xml(domain("here", "mon1"), params(
        libvirt=Path("/l"), qemu=Path("/q"), disks=Path("/d"), persistent=domain("there", "mon2"),
        folder=(Path("/one"), Path("/two")), nics={}))
    source = ET.fromstring(found).find("devices/disk/source")
    assert source is not None and source.find("host").get("name") == "mon2"  # type: ignore[union-attr]
    assert source.find("auth/secret").get("uuid") == "there"  # type: ignore[union-attr]
    assert migrated_xml.migrated_disks(found, Path("/one")) == []
