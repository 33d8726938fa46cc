# SPDX-License-Identifier: GPL-3.0-or-later
"""Another flavor and a rebuild, on the fake: what stays, what is new, and what is refused."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.servers import GIB, MIB
from magnetar_agent.servers.disks import image_links
from magnetar_agent.virt.disks.disks import flush_file
from magnetar_core.errors import Conflict, HypervisorError, Immutable, InvalidField
from tests.support.agent.pair import WAY, Pair
from tests.support.agent.resize import folder, image
from tests.unit.agent.conftest import SMALL, Host
from tests.unit.core.images import qcow2

BIG = {"vcpus": 2, "ram": 128, "disk": 2, "ephemeral": 2, "swap": 16}


def sizes(host: Host) -> dict[str, int]:
    return {path.name: host.fake.disk(path).virtual_size for path in folder(host).glob(
        "disk*")}  # type: ignore[union-attr]


def test_another_flavor_needs_leave_to_reboot(host: Host) -> None:
    host.server(flavor={**SMALL, "disk": 1, "ephemeral": 1, "swap": 8})
    with pytest.raises(Conflict, match="allow_reboot"):
        host.server(flavor=BIG)
    seen = host.ensure("server", "web1", {"flavor": BIG}, dry_run=True, allow_reboot=True)
    verbs = ["record", "stop", "drop_swap", "disks", "grow", "grow_ephemeral", "define", "start"]
    assert [step.verb for step in seen.steps] == verbs
    assert {"path": "flavor.ephemeral", "old": 1, "new": 2} in seen.diff
    assert {"path": "flavor.swap", "old": 8, "new": 16} in seen.diff
    inode = (folder(host) / "disk.ephemeral").stat().st_ino
    assert [s.verb for s in host.ensure("server", "web1", {"flavor": BIG}, allow_reboot=True).steps] == verbs
    assert sizes(host) == {"disk": 2 * GIB, "disk.ephemeral": 2 * GIB, "disk.swap": 16 * MIB}
    assert (folder(host) / "disk.ephemeral").stat().st_ino == inode
    assert not host.ensure("server", "web1", {"flavor": BIG}, allow_reboot=True).changed
    assert (host.show()["power_state"], host.show()["flavor"]) == ("running", BIG)


def test_disks_come_and_swap_goes(host: Host) -> None:
    host.server(power="off")
    domain = host.show()["id"]
    for flavor, disks in ((BIG, ["vda", "vdb", "vdc", "sdo"]), ({**BIG, "swap": 0}, ["vda", "vdb", "sdo"])):
        host.server(flavor=flavor, power="off")
        assert [disk.target for disk in host.fake.domains()[domain].disks] == disks
        assert not host.server(flavor=flavor, power="off").changed
    with pytest.raises(Immutable, match="ephemeral disk"):
        host.server(flavor={**BIG, "ephemeral": 1})
    assert sizes(host) == {"disk": 2 * GIB, "disk.ephemeral": 2 * GIB}


def test_a_server_of_an_older_agent_has_the_disks_of_its_document(host: Host) -> None:
    host.server(flavor={**BIG}, power="off")
    document = host.agent.host.documents.find("server", "web1")
    assert document is not None
    del document.state["sizes"]
    host.agent.host.documents.write(document)
    assert not host.server(flavor=BIG).changed
    host.server(flavor={**BIG, "swap": 0})
    assert "disk.swap" not in sizes(host) and "disk.ephemeral" in sizes(host)


def test_a_resize_to_another_host_stays_within_that_host_s_bounds(pair: Pair) -> None:
    pair.make(power="off")
    for sizes, why in (({"vcpus": 257}, "no more than 256 of vcpus"), ({"ram": 98305}, "ram_allocation_ratio"),
                       ({"disk": 100_000}, "disk_allocation_ratio")):
        with pytest.raises(InvalidField, match=why):
            pair.migrate(type="cold", becomes={"flavor": {"vcpus": 1, "ram": 64, "disk": 1, **sizes}})
    assert pair.two.agent.host.documents.list("server") == []


def test_its_disks_are_known_where_it_comes_with_another_flavor(pair: Pair) -> None:
    flavor = {"vcpus": 1, "ram": 64, "disk": 1, "ephemeral": 1, "swap": 16}
    id = pair.make(flavor=flavor, power="off")
    document = pair.one.agent.host.documents.get("server", id)
    assert document is not None
    del document.state["sizes"]
    pair.one.agent.host.documents.write(document)
    larger = {**flavor, "ephemeral": 2, "swap": 32}
    assert pair.migrate(type="cold", becomes={"flavor": larger}) == WAY
    assert pair.two.side().client.ensure("server", id, {"flavor": larger, "power": "running"})["changed"]
    document = pair.two.agent.host.documents.get("server", id)
    assert document is not None
    assert document.state["sizes"] == {"disk.ephemeral": 2 * GIB, "disk.swap": 32 * MIB}


@pytest.mark.parametrize("root_format", ["qcow2", "raw", "copy"])
def test_rebuild_from_another_image(host: Host, root_format: str) -> None:
    first, second = image(host, "first"), image(host, "second", 16)
    nic, more = {"bridge": "br0"}, {"metadata": {"a": "b"}, "root_format": root_format}
    before = host.server(image="first", networks=[nic], flavor={**SMALL, "ephemeral": 1}, **more).resource
    ephemeral = (folder(host) / "disk.ephemeral").stat().st_ino
    with pytest.raises(Immutable, match="rebuild"):
        host.server(image="second")
    asked = {"image": "second", "user_data": "YQ=="}
    seen = host.ensure("server", "web1", asked, dry_run=True, on_immutable="rebuild")
    assert {"path": "image", "old": first, "new": second} in seen.diff
    found = host.ensure("server", "web1", asked, on_immutable="rebuild", preserve_ephemeral=True)
    assert [s.verb for s in found.steps] == [s.verb for s in seen.steps] == [
        "record", "stop", "wipe", "disks", "define", "drive", "rebuilt", "start"]
    assert before and found.resource
    same = ("id", "name", "networks", "metadata", "created_at")
    assert {name: found.resource[name] for name in same} == {name: before[name] for name in same}
    assert found.resource["image"] == {"id": second, "name": "second"}
    if root_format == "qcow2":
        assert (folder(host) / "base").read_bytes().startswith(b"second")
    elif root_format == "raw":
        assert (folder(host) / "disk").read_bytes().startswith(b"second")
    else:
        assert (folder(host) / "disk").read_bytes().startswith(b"QFI") and not (folder(host) / "base").exists()
    assert (folder(host) / "disk.ephemeral").stat().st_ino == ephemeral
    assert not host.ensure("server", "web1", asked, on_immutable="rebuild").changed
    assert found.resource["power_state"] == "running"


def test_rebuild_keeps_the_power_and_the_ephemeral_disk_only_when_told(host: Host) -> None:
    host.server(flavor={**SMALL, "ephemeral": 2}, power="off")
    first = (folder(host) / "disk.ephemeral").stat()
    host.ensure("server", "web1", {"user_data": "YQ=="}, on_immutable="rebuild")
    assert (folder(host) / "disk.ephemeral").stat().st_mtime_ns != first.st_mtime_ns
    assert host.show()["power_state"] == "off"


def test_what_a_rebuild_refuses_changes_nothing(host: Host) -> None:
    image(host, "large", 8)
    host.ensure("image", "large", {"min_ram": 4096})
    host.server()
    with pytest.raises(InvalidField, match="4096 MiB"):
        host.ensure("server", "web1", {"image": "large"}, on_immutable="rebuild")
    with pytest.raises(Immutable, match="keypair"):
        host.ensure("keypair", "k", {"public_key": KEY})
        host.ensure("keypair", "k", {"public_key": KEY.replace("IO0V", "IO1V")}, on_immutable="rebuild")
    document = host.agent.host.documents.find("server", "web1")
    assert document is not None and "rebuild" not in document.state and document.want["image"] is None


def test_a_rebuild_that_fails_is_finished_by_the_next_call(host: Host) -> None:
    image(host, "first")
    host.server(image="first")
    host.fake.fail_next("make_disk", HypervisorError("no"))
    with pytest.raises(HypervisorError):
        host.ensure("server", "web1", {"user_data": "YQ=="}, on_immutable="rebuild")
    shown = host.show()
    assert shown["fault"]["message"] == "no" and shown["power_state"] == "off"
    verbs = [step.verb for step in host.server().steps]
    assert verbs == ["record", "wipe", "disks", "define", "drive", "rebuilt", "start"]
    assert (host.show()["fault"], host.show()["power_state"]) == (None, "running")


def test_a_rebuild_of_an_image_that_has_gone(host: Host) -> None:
    """A server that still holds the content may be recreated from it; one with a raw copy may not."""
    image(host, "first")
    host.server(image="first")
    host.server("raw", image="first", root_format="raw")
    host.ensure("image", "first", None)
    asked: dict[str, Any] = {"user_data": "YQ=="}
    host.ensure("server", "web1", asked, on_immutable="rebuild")
    assert host.show()["image"]["name"] == "first" and (folder(host) / "base").exists()
    with pytest.raises(Conflict, match="no longer on this host"):
        host.ensure("server", "raw", asked, on_immutable="rebuild")
    assert host.show("raw")["power_state"] == "running"


@pytest.mark.parametrize("how", [{"on_immutable": "recreate"}, {"on_immutable": "rebuild"}, {}], ids=str)
def test_an_image_that_waits_for_its_content(host: Host, how: dict[str, Any]) -> None:
    """The server is refused to be recreated from it, and stays as it is."""
    image(host, "first")
    host.server(image="first")
    host.ensure("image", "first", {"source": {"upload": True}, "checksum": "sha256:" + "0" * 64},
                on_immutable="recreate")
    before = {path.name: path.stat().st_ino for path in folder(host).iterdir()}
    asked = {"machine": "pc"} if "recreate" in how.values() else {"user_data": "YQ=="}
    with pytest.raises(Conflict, match="content"):
        host.ensure("server", "web1", asked, **how) if how else host.event("rebuild", "r1")
    assert {path.name: path.stat().st_ino for path in folder(host).iterdir()} == before and "base" in before
    assert host.show()["status"] == "ACTIVE"
    assert not host.server().changed


def test_an_image_whose_kernel_has_gone(host: Host) -> None:
    for name in ("vmlinuz", "first"):
        image(host, name)
    host.server(image="first")
    host.ensure("image", "second", {"source": {"path": str(host.root / "first")}, "disk_format": "raw"})
    second = host.agent.host.documents.find("image", "second")
    assert second is not None
    second.want["kernel"] = "gone"
    host.agent.host.documents.write(second)
    before = (folder(host) / "disk").stat().st_ino
    for how in ("rebuild", "recreate"):
        with pytest.raises(InvalidField, match="needs its kernel 'gone', which is not there"):
            host.ensure("server", "web1", {"image": "second"}, on_immutable=how)
    assert (folder(host) / "disk").stat().st_ino == before and host.show()["status"] == "ACTIVE"


def test_a_rescued_server_whose_rescue_image_has_gone_is_not_made_anew(host: Host) -> None:
    image(host, "tools")
    host.server()
    host.ensure("server", "web1", {"rescue": {"image": "tools"}})
    host.ensure("image", "tools", None)
    with pytest.raises(Conflict, match="rescue"):
        host.ensure("server", "web1", {"machine": "pc"}, on_immutable="recreate")
    assert host.show()["status"] == "RESCUE" and (folder(host) / "disk").exists()
    host.ensure("server", "web1", {"machine": "pc", "rescue": None}, on_immutable="recreate")
    assert host.show()["status"] == "ACTIVE"


def test_a_lost_disk_is_cured_by_a_rebuild(host: Host) -> None:
    host.server(power="off")
    (folder(host) / "disk").unlink()
    with pytest.raises(Conflict, match="rebuild the server"):
        host.server(power="running")
    host.ensure("server", "web1", {"user_data": "YQ==", "power": "running"}, on_immutable="rebuild")
    assert host.show()["power_state"] == "running"


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Zz5bBNJ me@example"


def test_what_a_server_stands_on_is_not_noted_anew(host: Host) -> None:
    """Its image may have other content by now; the server's own link has the old."""
    image(host, "system")
    host.server(image="system", flavor={**SMALL, "disk": 1}, power="off")
    id = host.show()["id"]
    before = host.agent.host.documents.get("server", id).state["base"]  # type: ignore[union-attr]
    (host.root / "new").write_bytes(qcow2(size=16 * MIB))
    host.ensure("image", "system", {"source": {"path": str(host.root / "new")}, "disk_format": "qcow2"},
                on_immutable="recreate")
    host.server(flavor={**SMALL, "disk": 1, "swap": 8}, power="off")
    after = host.agent.host.documents.get("server", id)
    assert after and after.state["base"] == before and before["format"] == "raw"
    assert (folder(host) / "base").read_bytes().startswith(b"system")


def test_what_a_crash_left_of_a_hold_is_not_taken_for_the_image(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    image(host, "system")
    real = host.fake.make_disk

    def dies(path: Path, *args: Any, **more: Any) -> None:
        if path.name == "disk" and (path.parent / "base").exists():
            (path.parent / "base").unlink()
            (path.parent / "base").write_bytes(b"left by a crash")
            monkeypatch.setattr(host.fake, "make_disk", real)
            raise SystemExit  # nothing undoes what was begun
        real(path, *args, **more)

    monkeypatch.setattr(host.fake, "make_disk", dies)
    with pytest.raises(SystemExit):
        host.server(image="system", flavor={**SMALL, "disk": 1})
    host.restart()
    assert (folder(host) / "base").read_bytes().startswith(b"system") and host.show()["status"] == "ACTIVE"


def test_a_raw_root_disk_is_what_it_was_made_as(host: Host) -> None:
    """Whatever header the guest writes into it."""
    host.server(flavor={**SMALL, "disk": 1}, root_format="raw", power="off")
    with (folder(host) / "disk").open("r+b") as file:
        file.write(qcow2(size=3 * GIB)[:512])
    host.server(flavor={**SMALL, "disk": 1, "swap": 8}, power="off")
    document = host.agent.host.documents.get("server", host.show()["id"])
    assert document and document.state["root_bytes"] == GIB
    assert not host.server(flavor={**SMALL, "disk": 1, "swap": 8}, power="off").changed


def test_an_image_on_another_file_system_is_copied_to_the_disk(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    image(host, "system")
    flushed: list[str] = []

    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(image_links.os, "link", link)
    monkeypatch.setattr(image_links, "flush_file", lambda path: (flushed.append(path.name), flush_file(path)))
    host.server(image="system", flavor={**SMALL, "disk": 1})
    assert flushed == ["base.part"] and (folder(host) / "base").read_bytes().startswith(b"system")
