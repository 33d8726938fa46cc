# SPDX-License-Identifier: GPL-3.0-or-later
"""The one-shots of a server on the fake: what they do, what they refuse, and that each is done once, also when the
agent dies in the middle."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.reconcile import events
from magnetar_agent.servers import GIB, quiesce
from magnetar_core.errors import Cancelled, Conflict, HypervisorDown, HypervisorError, InvalidField
from magnetar_core.kinds import Server
from magnetar_core.operations import Operation
from tests.support.agent.crash import lives
from tests.support.agent.resize import folder, image
from tests.unit.agent.conftest import SMALL, Host

pytestmark = pytest.mark.slow


def nothing_left(host: Host) -> None:
    assert not [path for path in host.root.rglob("*") if path.name.startswith("snapshot") or path.suffix == ".part"]
    assert not host.fake.frozen and not host.fake._copies
    assert not any("imaging" in document.state for document in host.agent.host.documents.list("server"))


@pytest.fixture
def web(host: Host) -> Host:
    image(host, "system")
    host.ensure("image", "system", {"properties": {"os_distro": "none"}, "min_ram": 32})
    host.server(image="system", flavor={**SMALL, "disk": 1, "ephemeral": 1})
    return host


def noted(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the guest was frozen when each copy of a disk in use began."""
    found: list[bool] = []
    begin = host.fake.begin_copy

    def begun(*args: Any, **more: Any) -> None:
        found.append(bool(host.fake.frozen))
        begin(*args, **more)

    monkeypatch.setattr(host.fake, "begin_copy", begun)
    return found


@pytest.mark.parametrize(("power", "agent", "why"), [
    ("running", True, ""), ("running", False, "its guest agent does not freeze them"), ("paused", True, "it is paused"),
    ("suspended", False, ""), ("off", False, "")])
def test_who_requires_it_has_no_copy_that_is_not_frozen(host: Host, monkeypatch: pytest.MonkeyPatch, power: str,
                                                        agent: bool, why: str) -> None:
    host.ensure("volume", "data", {"size": 1})
    made = host.server(hardware={"require_quiesce": True}).resource
    assert made
    host.ensure("volume_attachment", "web1:data", {"server": "web1", "volume": "data"})
    host.ensure("server", "web1", {"power": power})
    host.fake.talking.update({made["id"]} if agent else ())
    froze = noted(host, monkeypatch)
    if why:
        refused = f"must be frozen for a copy of its disks .*os_require_quiesce.*{why}"
        with pytest.raises(Conflict, match=refused):
            host.event("create_image", "r", name="golden")
        with pytest.raises(Conflict, match=refused):
            host.ensure("volume_snapshot", "s", {"volume": "data"})
        assert not host.fake._copies and not host.agent.host.documents.list("volume_snapshot")
        host.ensure("server", "web1", {"power": "off"})
    host.event("create_image", "r", name="golden")
    host.ensure("volume_snapshot", "s", {"volume": "data"})
    assert not host.fake.frozen and froze == [True] * (2 if power == "running" and not why else 0)


def copied_volume(host: Host) -> str:
    """A volume of a running server with a guest agent, and the server's uuid."""
    made = host.server().resource
    assert made is not None
    host.fake.talking.add(made["id"])
    host.ensure("volume", "data", {"size": 1})
    host.ensure("volume_attachment", "web1:data", {"server": "web1", "volume": "data"})
    return str(made["id"])


def test_a_guest_that_libvirt_could_not_thaw_is_thawed_when_it_is_back(host: Host) -> None:
    """The copy failed and is gone, so nothing else would."""
    id = copied_volume(host)
    host.fake.fail_next("thaw", HypervisorDown())
    with pytest.raises(HypervisorDown):
        host.ensure("volume_snapshot", "s", {"volume": "data"})
    assert not host.agent.host.documents.list("volume_snapshot") and host.fake.frozen == {id}
    host.agent.power_sync.restore_power_states()
    assert not host.fake.frozen and not quiesce.frozen_servers(host.agent.host)


def test_a_guest_that_a_killed_agent_left_frozen_is_thawed_at_its_next_start(host: Host) -> None:
    id = copied_volume(host)
    frozen = quiesce.quiesced_guest(host.agent.host, host.agent.host.documents.get("server", id))
    assert frozen.__enter__() and host.fake.frozen == {id}
    host.agent.close()
    host.agent = host._agent()
    host.start()
    assert not host.fake.frozen and not quiesce.frozen_servers(host.agent.host)


def test_what_a_dead_agent_left_frozen_is_thawed_first(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    made = host.server(hardware={"require_quiesce": True}).resource
    assert made
    host.fake.talking.add(made["id"])
    answers, freeze = [False], host.fake.freeze  # libvirt refuses what is frozen, and it is thawed then
    monkeypatch.setattr(host.fake, "freeze", lambda uuid: answers.pop() if answers else freeze(uuid))
    assert host.event("create_image", "r", name="golden")["consistency"] == "frozen"


@pytest.mark.parametrize("agent", [True, False])
def test_without_it_a_guest_freezes_what_it_can(host: Host, monkeypatch: pytest.MonkeyPatch, agent: bool) -> None:
    host.ensure("volume", "data", {"size": 1})
    made = host.server().resource
    assert made
    host.ensure("volume_attachment", "web1:data", {"server": "web1", "volume": "data"})
    host.fake.talking.update({made["id"]} if agent else ())
    seen = noted(host, monkeypatch)
    host.ensure("volume_snapshot", "s", {"volume": "data"})
    assert seen == [agent] and not host.fake.frozen
    host.fake.fail_next("begin_copy", HypervisorError("no room"))
    with pytest.raises(HypervisorError):
        host.ensure("volume_snapshot", "t", {"volume": "data"})
    assert not host.fake.frozen


def test_who_requires_it_has_a_guest_agent(host: Host) -> None:
    with pytest.raises(InvalidField, match="hardware.require_quiesce: needs a guest agent"):
        host.server(hardware={"require_quiesce": True, "guest_agent": False})


@pytest.mark.parametrize(("power", "agent", "consistency"), [
    ("running", True, "frozen"), ("running", False, "crash-consistent"), ("paused", True, "crash-consistent"),
    ("suspended", True, "crash-consistent"), ("off", True, "stopped")])
def test_create_image(web: Host, power: str, agent: bool, consistency: str) -> None:
    shown = web.ensure("server", "web1", {"power": power}).resource
    assert shown
    if agent:
        web.fake.talking.add(shown["id"])
    answer = web.event("create_image", "r1", name="golden", metadata={"role": "web"})
    assert answer["consistency"] == consistency and answer["resource"]["power_state"] == power
    made = web.ensure("image", "golden", {}).resource
    assert made and made["id"] == answer["image"]["id"]
    assert (made["status"], made["disk_format"], made["virtual_size"]) == ("active", "qcow2", GIB)
    assert (made["min_ram"], made["min_disk"]) == (32, 1)
    assert made["properties"] == {
        "os_distro": "none", "role": "web", "image_type": "snapshot", "instance_uuid": shown["id"],
        "base_image_ref": shown["image"]["id"], "hw_machine_type": shown["machine"]}
    assert web.event("create_image", "r1", name="golden", metadata={"role": "web"}) == answer
    with pytest.raises(Conflict, match="Choose another name"):
        web.event("create_image", "r2", name="golden")
    nothing_left(web)
    web.server("next", image="golden", flavor={**SMALL, "disk": 1})
    web.ensure("image", "golden", None)
    web.restart()
    assert web.show("next")["power_state"] == "running"


def test_an_image_boots_as_its_server_does(web: Host) -> None:
    for name, format in (("vmlinuz", "aki"), ("initrd", "ari")):
        image(web, name)
        document = web.agent.host.documents.find("image", name)
        assert document is not None
        document.state["disk_format"] = document.want["disk_format"] = format
        web.agent.host.documents.write(document)
    (web.root / "rootfs").write_bytes(bytes(2**20))
    web.ensure("image", "rootfs", {"source": {"path": str(web.root / "rootfs")}, "disk_format": "raw",
                                   "kernel": "vmlinuz", "ramdisk": "initrd", "cmdline": "quiet"})
    for base in ("rootfs", "vmlinuz"):
        web.server(f"of-{base}", image=base, power="off")
        web.event("create_image", f"r-{base}", f"of-{base}", name=f"copy-of-{base}")
        web.server(f"again-{base}", image=f"copy-of-{base}")
        made = folder_of(web, f"again-{base}")
        assert (made / "kernel").exists() and (made / "base").exists()
    web.ensure("image", "copy-of-rootfs", None)
    web.ensure("server", "again-rootfs", None)
    web.ensure("image", "rootfs", None)
    with pytest.raises(Conflict, match="boots with a kernel"):
        web.event("create_image", "r3", "of-rootfs", name="none")


@pytest.mark.parametrize("bus", ["virtio", "scsi"])
def test_an_image_of_a_server_whose_root_disk_is_a_volume(web: Host, bus: str) -> None:
    web.server("vol", block_device_mapping=[{"source_type": "image", "destination_type": "volume", "uuid": "system",
                                             "boot_index": 0, "volume_size": 2, "disk_bus": bus}])
    for power in ("running", "off"):
        web.ensure("server", "vol", {"power": power})
        answer = web.event("create_image", power, "vol", name=f"of-{power}")
        made = web.ensure("image", answer["image"]["id"], {}).resource
        assert made and (made["status"], made["virtual_size"], made["min_disk"]) == ("active", 2 * GIB, 2)
        assert answer["consistency"] == ("stopped" if power == "off" else "crash-consistent")
    object.__setattr__(web.agent.host.settings, "image_max_virtual_bytes", GIB)
    with pytest.raises(Conflict, match="image_max_virtual_bytes"):
        web.event("create_image", "large", "vol", name="large")
    nothing_left(web)


@pytest.mark.parametrize("id", [".", "..", "", "a/b", "x" * 129])
def test_a_request_id_is_the_name_of_a_file(web: Host, id: str) -> None:
    with pytest.raises(InvalidField, match="request_id"):
        web.event("reboot", id, type="hard")


def folder_of(host: Host, name: str) -> Path:
    return host.root / "state/servers" / str(host.show(name)["id"])


def test_an_image_that_fails_or_is_cancelled_leaves_nothing(web: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    web.fake.talking.add(web.show()["id"])
    for method in ("begin_copy", "finish_copy"):
        web.fake.fail_next(method, HypervisorError("no"))
        with pytest.raises(HypervisorError, match="no"):
            web.event("create_image", f"r-{method}", name="golden")
        nothing_left(web)
    operation = Operation("test")
    monkeypatch.setattr(web.fake, "begin_copy", _then(web.fake.begin_copy, operation.cancel))
    with pytest.raises(Cancelled):
        events.perform_event(web.agent.drivers, Server, "web1", "create_image", {"name": "golden"}, "r", operation)
    nothing_left(web)
    assert [i.name for i in web.agent.host.documents.list("image")] == ["system"]
    assert web.event("create_image", "r", name="golden")["consistency"] == "frozen"


def test_libvirt_goes_while_an_image_is_made(web: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is taken away as soon as libvirt is back."""
    with monkeypatch.context() as patch:
        patch.setattr(web.fake, "begin_copy", _then(web.fake.begin_copy, web.fake.disconnect))
        with pytest.raises(HypervisorDown):
            web.event("create_image", "r1", name="golden")
    assert (folder_of_any(web) / "snapshot.part").exists()
    web.fake.reconnect()
    deadline = time.monotonic() + 120
    while web.fake._copies and time.monotonic() < deadline:
        time.sleep(0.01)
    web.settled()
    nothing_left(web)
    assert web.event("create_image", "r1", name="golden")["done"]


def folder_of_any(host: Host) -> Path:
    return next((host.root / "state/servers").iterdir())


def _then(first: Any, second: Any) -> Any:
    def both(*args: Any) -> None:
        first(*args)
        second()

    return both


@pytest.mark.parametrize("power", ["running", "off"])
@pytest.mark.parametrize("late", [True, False], ids=["after", "before"])
def test_death_while_an_image_is_made(tmp_path: Path, power: str, late: bool) -> None:
    for life in lives(tmp_path, late):
        host = life.host
        host.server(power=power)
        host.fake.talking.add(host.show()["id"])
        life.ends_in(host.event, "create_image", "r1", name="golden")
        host.restart()
        made = host.agent.host.documents.list("image")
        nothing_left(host)
        assert all(Path(one.state["file"]).is_file() for one in made)
        answer = host.event("create_image", "r1", name="golden")
        assert [one.id for one in host.agent.host.documents.list("image")] == [answer["image"]["id"]]
        assert made in ([], host.agent.host.documents.list("image")), "what was made is not made again"


@pytest.mark.parametrize("late", [True, False], ids=["after", "before"])
def test_death_during_a_rebuild_by_request(tmp_path: Path, late: bool) -> None:
    for life in lives(tmp_path, late):
        host = life.host
        image(host, "system")
        host.server(image="system")
        first = (folder(host) / "disk").stat().st_mtime_ns
        life.ends_in(host.event, "rebuild", "r1")
        host.restart()
        between = (folder(host) / "disk").stat().st_mtime_ns
        assert host.event("rebuild", "r1")["resource"]["power_state"] == "running"
        after = (folder(host) / "disk").stat().st_mtime_ns
        assert after != first and between in (first, after), "it is recreated once"


def test_rebuild(web: Host) -> None:
    other = image(web, "other")
    before = web.show()
    (folder(web) / "disk").write_bytes((folder(web) / "disk").read_bytes() + b"written by the guest")
    answer = web.event("rebuild", "r1")
    assert b"written" not in (folder(web) / "disk").read_bytes()
    web.event("rebuild", "r2", image="other", metadata={"a": "b"}, user_data="YQ==", preserve_ephemeral=True)
    after = web.show()
    assert (after["image"]["id"], after["metadata"]) == (other, {"a": "b"})
    assert {n: after[n] for n in ("id", "networks")} == {n: before[n] for n in ("id", "networks")}
    disk = (folder(web) / "disk").stat()
    web.event("rebuild", "r2", image="other", metadata={"a": "b"}, user_data="YQ==", preserve_ephemeral=True)
    assert (folder(web) / "disk").stat() == disk and answer["done"]
    kept = (web.root / "state/events/r2").read_text()
    assert "YQ==" not in kept and "other" in kept, "user data may hold secrets"


@pytest.mark.parametrize(("power", "event", "args", "message"), [
    ("suspended", "rebuild", {}, "lose its memory"), ("off", "crash_dump", {}, "needs a running server"),
    ("off", "change_password", {"password": "x"}, "running server only"),
    ("off", "reboot", {"type": "soft"}, "needs a running server"),
    ("suspended", "reboot", {"type": "soft"}, "reboot it hard")])
def test_refused(web: Host, power: str, event: str, args: dict[str, Any], message: str) -> None:
    web.ensure("server", "web1", {"power": power})
    for _time in range(2):  # nothing was done, so the request id is not used up
        with pytest.raises(Conflict, match=message):
            web.event(event, "r1", **args)
    assert web.show()["power_state"] == power


@pytest.mark.parametrize("power", ["running", "paused", "off", "suspended", "missing", "crashed"])
def test_a_hard_reboot_repairs(web: Host, power: str) -> None:
    """Whatever became of the domain, it is as the document says afterwards, and runs."""
    id = str(web.show()["id"])
    whole, happened = web.fake.xml(id), list[str]()
    if power == "crashed":
        web.fake.crash(id)
    elif power == "missing":
        web.fake.undefined_outside(id)
    else:
        web.ensure("server", "web1", {"power": power})
        web.fake.defined_outside(re.sub(r"(?s)<interface.*</interface>", "", whole), power)
    web.settled()
    web.fake.on_event(lambda event: happened.append(event.what))
    for request in ("r1", "r1"):
        assert web.event("reboot", request, type="hard")["resource"]["power_state"] == "running"
    assert happened.count("started") == 1, "once for each request"
    assert web.fake.xml(id) == whole
    assert web.ensure("server", "web1", {"power": "running"}).steps == []


@pytest.mark.parametrize("late", [True, False], ids=["after", "before"])
def test_death_during_a_hard_reboot(tmp_path: Path, late: bool) -> None:
    """The server runs when the agent is back, before anybody asks again."""
    for life in lives(tmp_path, late):
        host = life.host
        host.server()
        life.ends_in(host.event, "reboot", "r1", type="hard")
        host.restart()
        assert host.show()["power_state"] == "running"
        assert host.event("reboot", "r1", type="hard")["resource"]["power_state"] == "running"
        assert not {"unfinished"} & set(host.agent.host.documents.find("server", "web1").state)


def test_what_a_rescued_server_refuses(web: Host) -> None:
    web.ensure("server", "web1", {"rescue": {}})
    for event, args in (("rebuild", {}), ("create_image", {"name": "golden"})):
        with pytest.raises(Conflict, match="Unrescue"):
            web.event(event, f"r-{event}", **args)
    assert web.show()["status"] == "RESCUE"
    web.event("crash_dump", "r")


def test_crash_dump_is_sent_once(web: Host) -> None:
    for _time in range(2):
        web.event("crash_dump", "r1")
    assert web.fake.interrupted == [web.show()["id"]]


def test_change_password(web: Host) -> None:
    id = web.show()["id"]
    with pytest.raises(Conflict, match="qemu-guest-agent"):
        web.event("change_password", "r1", password="unspeakable")
    web.fake.talking.add(id)
    answer = web.event("change_password", "r1", password="unspeakable", user="me")
    assert web.fake.passwords == {(id, "me"): "unspeakable"} and "unspeakable" not in json.dumps(answer)
    for path in (web.root / "state").rglob("*"):
        assert not path.is_file() or b"unspeakable" not in path.read_bytes()
    web.event("change_password", "r3", password="")  # Nova's API takes it; whether the guest does is told
    assert web.fake.passwords[id, "root"] == ""
    for wrong in ({}, {"password": "a\nb"}, {"password": "a", "user": "a:b"}):
        with pytest.raises(InvalidField):
            web.event("change_password", "r2", **wrong)
