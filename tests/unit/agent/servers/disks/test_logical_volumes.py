# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers whose own disks are logical volumes (``root_format`` lvm), on fake hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.host import host_check, inventory, zeros
from magnetar_agent.migrations import source, transfer
from magnetar_agent.settings import AgentSettings
from magnetar_core.errors import Cancelled, Conflict, HypervisorError, InvalidField, InvalidSettings, NoSpace
from magnetar_core.flows.migrate import abort_host_migration
from magnetar_core.power import RUNNING
from tests.support.agent.pair import WAY, Kvm, Pair
from tests.unit.agent.conftest import SMALL, Host
from tests.unit.core.images import iso, qcow2

GIB, MIB = 2**30, 2**20
ALL = {**SMALL, "disk": 1, "ephemeral": 1, "swap": 8}
POOLS = {"vg": {"type": "lvm", "libvirt_pool": "vg0"}, "fast": {"type": "lvm", "libvirt_pool": "vg1"}}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host whose servers' disks lie in a volume group of 8 GiB."""
    made = Host(tmp_path / "host", pools=POOLS, root_format="lvm", root_pool="vg")
    made.fake.add_pool("vg0", room=8 * GIB)
    made.fake.add_pool("vg1")
    made.start()
    yield made
    made.agent.close()


def image(host: Host, format: str = "raw") -> None:
    content = {"raw": b"magnetar".ljust(MIB, b"\0"), "qcow2": qcow2(size=8 * MIB), "iso": iso()}[format]
    (host.root / format).write_bytes(content)
    host.ensure("image", format, {"source": {"path": str(host.root / format)}, "disk_format": format})


def sizes(host: Host, pool: str = "vg0") -> dict[str, int]:
    """Bytes of the logical volumes of web1, by file; there are no others."""
    found = host.fake.contents(pool)
    id = host.show()["id"] if found else ""
    assert all(name.startswith(f"{id}_") for name in found)
    return {name.removeprefix(f"{id}_"): one.size for name, one in found.items()}


def place(host: Host) -> Path:
    return host.root / "state/servers" / str(host.show()["id"])


def read(host: Host, file: str = "disk", count: int = 8) -> bytes:
    with (place(host) / file).open("rb") as disk:
        return disk.read(count)


# Life -------------------------------------------------------------------------------------------------------------
def test_made_and_removed(host: Host) -> None:
    image(host)
    shown = host.server(image="raw", flavor=ALL, config_drive=True).resource
    assert shown["root_format"] == "lvm" and shown["status"] == "ACTIVE"
    assert sizes(host) == {"disk": GIB, "disk.ephemeral": GIB, "disk.swap": 8 * MIB}
    assert read(host) == b"magnetar" and read(host, "disk.swap", 4) == b"swap"
    assert read(host, "disk.ephemeral", 10) == b"ephemeral0"
    assert not (place(host) / "base").exists()  # nothing stands on the image
    assert not host.server(image="raw", flavor=ALL).changed
    assert inventory.host_resource(host.agent.drivers)["orphans"]["files"] == []
    host.ensure("server", "web1", None)
    assert host.fake.contents("vg0") == {} and {name[37:] for name in host.fake.wiped} == {
        "disk", "disk.ephemeral", "disk.swap"}


@pytest.mark.parametrize("block", [True, False])
def test_what_libvirt_is_told(host: Host, block: bool) -> None:
    """Raw, whatever a guest writes there: nothing is looked for in the content."""
    host.server(flavor=ALL)
    document = host.agent.host.documents.find("server", "web1")
    assert document is not None and document.state["pool"] == {"name": "vg", "block": True}
    document.state["pool"]["block"] = block  # a pool of files stands for LVM
    host.agent.host.documents.write(document)
    host.server(description="another")
    root = ET.fromstring(host.fake.xml(document.id))
    for disk in root.findall("devices/disk")[:3]:
        kind, path = disk.get("type"), disk.find("source").get("dev" if block else "file")  # type: ignore[union-attr]
        assert kind == ("block" if block else "file") and Path(path or "").parent == place(host)
        assert disk.find("driver").get("type") == "raw"  # type: ignore[union-attr]
        assert len(disk.find("backingStore")) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(("format", "size"), [("qcow2", 8 * MIB), ("iso", MIB)])
def test_other_images(host: Host, format: str, size: int) -> None:
    image(host, format)
    host.server(image=format, flavor=SMALL)
    assert sizes(host) == {"disk": size}


def test_reshaped(host: Host) -> None:
    image(host)
    host.server(image="raw", flavor=ALL)
    larger = {**ALL, "disk": 2, "ephemeral": 2, "swap": 16}
    host.ensure("server", "web1", {"flavor": larger}, allow_reboot=True)
    assert sizes(host) == {"disk": 2 * GIB, "disk.ephemeral": 2 * GIB, "disk.swap": 16 * MIB}
    assert read(host) == b"magnetar"
    host.ensure("server", "web1", {"flavor": {**larger, "swap": 0}}, allow_reboot=True)
    assert sizes(host) == {"disk": 2 * GIB, "disk.ephemeral": 2 * GIB}
    assert not host.server(flavor={**larger, "swap": 0}).changed


def test_rebuilt(host: Host) -> None:
    image(host)
    host.server(image="raw", flavor=ALL)
    for file in ("disk", "disk.ephemeral"):
        with (place(host) / file).open("r+b") as disk:
            disk.write(b"of guest")
    host.ensure("server", "web1", {"user_data": "YQ=="}, on_immutable="rebuild", preserve_ephemeral=True)
    assert (read(host), read(host, "disk.ephemeral")) == (b"magnetar", b"of guest")
    host.ensure("server", "web1", {"user_data": "Yg=="}, on_immutable="rebuild")
    assert read(host, "disk.ephemeral") == b"ephemera"
    assert sizes(host) == {"disk": GIB, "disk.ephemeral": GIB, "disk.swap": 8 * MIB}


@pytest.mark.parametrize("power", ["running", "off"])
def test_an_image_of_it(host: Host, power: str) -> None:
    image(host)
    host.server(image="raw", flavor=ALL, power=power)
    with (place(host) / "disk").open("r+b") as disk:
        disk.write(b"QFI\xfb\0\0\0\3")  # a guest may write any header
    host.event("create_image", "r1", name="golden", metadata={})
    made = host.ensure("image", "golden", {}).resource
    assert (made["disk_format"], made["virtual_size"], made["min_disk"]) == ("qcow2", GIB, 1)


def test_rescued(host: Host) -> None:
    """The disk of the rescue stands on its image, and is a file."""
    image(host)
    host.server(image="raw", flavor=ALL)
    shown = host.ensure("server", "web1", {"rescue": {}}).resource
    root = ET.fromstring(host.fake.xml(shown["id"]))
    assert [(disk.get("type"), disk.find("driver").get("type"))  # type: ignore[union-attr]
            for disk in root.findall("devices/disk")[:2]] == [("file", "qcow2"), ("block", "raw")]
    host.ensure("server", "web1", {"rescue": None})
    assert sizes(host) == {"disk": GIB, "disk.ephemeral": GIB, "disk.swap": 8 * MIB}


def test_the_setting_is_for_new_servers(host: Host) -> None:
    host.server(flavor=ALL)
    host.settings.update(root_pool="fast", root_format="qcow2")
    host.restart()
    assert not host.server(flavor=ALL).changed and len(sizes(host)) == 3
    host.ensure("server", "web1", {"flavor": {**ALL, "disk": 2}}, allow_reboot=True)
    assert sizes(host)["disk"] == 2 * GIB
    other = host.server("other", flavor=ALL, root_format="lvm").resource
    assert {name[:36] for name in host.fake.contents("vg1")} == {other["id"]}
    assert host.server("third", flavor=ALL).resource["root_format"] == "qcow2"
    host.settings["pools"] = {"fast": POOLS["fast"]}
    host.restart()
    with pytest.raises(Conflict, match="of the pool 'vg', which the agent's settings do not have.*Put it back"):
        host.ensure("server", "web1", None)
    host.settings["pools"] = POOLS
    host.restart()
    host.ensure("server", "web1", None)
    assert host.fake.contents("vg0") == {}


def test_a_server_on_a_volume_has_no_root_disk(host: Host) -> None:
    image(host)
    host.server(flavor={**SMALL, "disk": 1, "swap": 8}, block_device_mapping=[
        {"source_type": "image", "destination_type": "volume", "uuid": "raw", "boot_index": 0}])
    assert {name[36:] for name in host.fake.contents("vg0")} == {"_disk.swap"}


@pytest.mark.parametrize(("settings", "wiped"), [
    ({}, {0}), ({"volume_clear_size": 4}, {4 * MIB}), ({"volume_clear": "none", "volume_clear_size": 4}, {None})])
def test_how_they_are_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any],
                              wiped: set[int | None]) -> None:
    host, seen = Host(tmp_path, pools=POOLS, root_pool="vg", **settings), []
    monkeypatch.setattr(host.fake, "remove_content", lambda _pool, _name, wipe: seen.append(wipe))
    host.fake.add_pool("vg0")
    host.start()
    try:
        host.server(flavor=ALL, root_format="lvm")
        host.ensure("volume", "data", {"size": 1, "pool": "vg"})
        host.ensure("server", "web1", None)
        host.ensure("volume", "data", None)
        assert len(seen) >= 4 and set(seen) == wiped
    finally:
        host.agent.close()


def test_a_server_of_files_asks_nothing_of_pools(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_given: Any) -> None:
        raise AssertionError("a pool was asked")
    for name in ("check_pool", "contents", "content", "pool_room", "make_content", "remove_content"):
        monkeypatch.setattr(host.fake, name, never)
    host.server(flavor=ALL, root_format="qcow2")
    host.ensure("server", "web1", {"flavor": {**ALL, "swap": 0}}, allow_reboot=True)
    host.ensure("server", "web1", None)


# What the host says -----------------------------------------------------------------------------------------------
def test_the_host_tells_the_volume_group(host: Host) -> None:
    host.server(flavor=ALL)
    seen = inventory.host_usage(host.agent.host)
    assert (seen["disk_gb"], seen["disk_gb_free"]) == (8, 5)
    assert seen["local_disks"] == {"format": "lvm", "pool": "vg", "reason": ""}
    assert seen["disk_encryption"] == [] and not any("ENCRYPTION" in trait for trait in seen["traits"])
    said = {name: (fine, text) for name, fine, text in host_check.host_findings(seen)}
    assert said["local_disks"] == (True, "root_format lvm in the pool vg, 5 of 8 GiB free")
    (host.root / "libvirt/pool-vg0").rename(host.root / "away")
    seen = inventory.host_usage(host.agent.host)
    assert (seen["disk_gb"], seen["disk_gb_free"]) == (0, 0)
    said = {name: (fine, text) for name, fine, text in host_check.host_findings(seen)}
    assert not said["local_disks"][0] and "libvirt has no storage pool 'vg0'" in said["local_disks"][1]
    host.fake.disconnect()
    assert inventory.host_usage(host.agent.host)["disk_gb"] is None
    host.fake.reconnect()


def test_images_do_not_take_room_of_it(host: Host) -> None:
    image(host)
    host.settings["reserve_disk_resource_for_image_cache"] = True
    host.restart()
    assert inventory.host_usage(host.agent.host)["image_cache_gb"] == 0


def test_what_no_document_knows_is_told(host: Host) -> None:
    gone = "5e8a0c54-6a0b-4d0e-9f43-2a2f3b1c0d9e"
    host.fake.make_content("vg0", f"{gone}_disk", MIB)
    host.fake.make_content("vg0", "of-somebody-else_disk", MIB)
    found = inventory.host_resource(host.agent.drivers)["orphans"]["files"]
    assert [Path(path).name for path in found] == [f"{gone}_disk"]


# What is refused --------------------------------------------------------------------------------------------------
def test_refused_settings(tmp_path: Path) -> None:
    def settings(**given: Any) -> AgentSettings:
        return AgentSettings(state_dir=tmp_path, **given)
    with pytest.raises(InvalidSettings, match="root_pool: is required where root_format is lvm"):
        settings(root_format="lvm")
    pools = {"vg": {"type": "lvm"}, "ceph": {"type": "rbd"}}
    for name in ("ceph", "away"):
        with pytest.raises(InvalidSettings, match=f"must be a pool of type lvm .got '{name}'.*has vg"):
            settings(root_format="lvm", root_pool=name, pools=pools)
    with pytest.raises(InvalidSettings, match="volume_clear: must be one of zero, none"):
        settings(volume_clear="shred")
    assert settings(root_format="lvm", root_pool="vg", pools=pools).volume_clear_size == 0


def test_refused_servers(host: Host) -> None:
    with pytest.raises(InvalidField, match="ephemeral_encryption.*logical volumes are not encrypted"):
        host.server(flavor=ALL, hardware={"ephemeral_encryption": True})
    with pytest.raises(InvalidField, match="no more than 8 GiB of disks: the host has 8 GiB"):
        host.server(flavor={**ALL, "disk": 8})
    host.server("one", flavor={**SMALL, "disk": 5})
    with pytest.raises(NoSpace):
        host.server("two", flavor={**SMALL, "disk": 5})
    assert len(host.fake.contents("vg0")) == 1  # nothing is left of it
    host.ensure("server", "two", None)
    host.settings.update(root_format="qcow2", root_pool=None)
    host.restart()
    with pytest.raises(InvalidField, match="root_format.*cannot be lvm.*setting root_pool names no pool"):
        host.server("two", flavor=ALL, root_format="lvm")


def test_a_pool_that_does_not_run(host: Host) -> None:
    (host.root / "libvirt/pool-vg0").rename(host.root / "away")
    with pytest.raises(Conflict, match="no storage pool 'vg0'"):
        host.server(flavor=ALL)
    assert host.agent.host.documents.list("server") == []


def test_a_disk_that_is_gone_is_not_made_anew(host: Host) -> None:
    shown = host.server(flavor=ALL, power="off").resource
    host.fake.remove_content("vg0", f"{shown['id']}_disk", None)
    with pytest.raises(Conflict, match="disk of server 'web1' is gone from the host"):
        host.server(power="running")


# What a killed or cancelled agent leaves ----------------------------------------------------------------------------
def test_a_copy_that_is_cancelled_is_taken_up_again(host: Host) -> None:
    image(host)
    host.fake.fail_next("copy_into", Cancelled("cancelled"))
    with pytest.raises(Cancelled):
        host.server(image="raw", flavor=ALL)
    found = host.agent.host.documents.list("server")
    assert not any((host.root / "state/servers" / one.id / "disk").exists() for one in found)
    assert not host.fake.contents("vg0")
    host.server(image="raw", flavor=ALL)
    assert read(host) == b"magnetar"


# Moves ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def moving(pair: Pair) -> Iterator[Pair]:
    """Two hosts with a volume group each, of other names."""
    for at, kvm in enumerate((pair.one, pair.two)):
        kvm.fake._folder = pair.root / f"libvirt{at}"
        kvm.fake.add_pool(f"vg{at}")
        kvm.more = {"pools": {f"pool{at}": {"type": "lvm", "libvirt_pool": f"vg{at}"}}, "root_pool": f"pool{at}",
                    "root_format": "lvm" if at == 0 else "qcow2"}
        kvm.restart()
    yield pair


def contents(kvm: Kvm) -> dict[str, bytes]:
    """What the logical volumes of a host hold, by file."""
    pool = kvm.fake.contents("vg0" if kvm.name == "kvm1" else "vg1")
    return {name[37:]: one.disk.path.read_bytes() for name, one in pool.items()}


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_all_of_its_disks_go(moving: Pair, kind: str) -> None:
    id = moving.make(flavor={**SMALL, "swap": 8}, config_drive=True)
    before = contents(moving.one)
    assert set(before) == {"disk", "disk.swap"}
    assert moving.migrate(type=kind) == WAY
    moving.check(id, moving.two)
    assert contents(moving.two) == before and contents(moving.one) == {}
    document = moving.two.agent.host.documents.get("server", id)
    assert document is not None and document.state["pool"]["name"] == "pool1"
    assert not moving.two.side().client.ensure("server", "web1", {"power": RUNNING})["changed"]
    links = {path.name for path in (moving.two.root / "kvm2/servers" / id).iterdir() if path.is_symlink()}
    assert links == set(before)
    moving.two.side().client.delete("server", "web1")
    assert contents(moving.two) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["live", "cold"])
def test_one_that_breaks_off_is_repeated(moving: Pair, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    id = moving.make(flavor={**SMALL, "swap": 8})
    whole: Callable[..., int] = source.send_file_frames
    if kind == "live":
        moving.one.fake.fail_next("migrate", HypervisorError("The link broke."))
    else:
        def breaks(_talk: Any, path: Path, *_given: Any) -> int:
            if path.name == "disk.swap":
                monkeypatch.setattr(source, "send_file_frames", whole)
                raise HypervisorError("The link broke.")
            return whole(_talk, path, *_given)
        monkeypatch.setattr(source, "send_file_frames", breaks)
    with pytest.raises(HypervisorError, match="The link broke"):
        moving.migrate(type=kind)
    assert moving.one.runs(id) and set(contents(moving.two)) == {"disk", "disk.swap"}
    with (moving.one.root / "kvm1/servers" / id / "disk").open("r+b") as disk:
        disk.write(b"newer")
    before = contents(moving.one)
    moving.migrate(type=kind)
    moving.check(id, moving.two)
    assert contents(moving.two) == before and contents(moving.one) == {}


@pytest.mark.slow
def test_one_that_is_given_up_leaves_nothing(moving: Pair) -> None:
    id = moving.make(flavor={**SMALL, "swap": 8})
    moving.one.fake.fail_next("migrate", HypervisorError("The link broke."))
    with pytest.raises(HypervisorError, match="The link broke"):
        moving.migrate(type="live")
    abort_host_migration(moving.one.side(), moving.two.side(), "web1")
    moving.check(id, moving.one)
    assert contents(moving.two) == {} and set(contents(moving.one)) == {"disk", "disk.swap"}


def test_a_host_without_a_pool_is_no_target(moving: Pair) -> None:
    moving.make(flavor=SMALL, power="off")
    moving.two.more = {}
    moving.two.restart()
    with pytest.raises(Conflict, match="are logical volumes.*setting root_pool names no pool.*choose another host"):
        moving.migrate()
    moving.two.more = {**moving.one.more, "root_format": "qcow2"}
    (moving.two.fake.add_pool("vg0") / "room").write_text(str(MIB // 2))
    moving.two.restart()
    with pytest.raises(NoSpace, match="the target's pool pool0 has 0.0 GiB left"):
        moving.migrate()


# Bytes ------------------------------------------------------------------------------------------------------------
def test_zeros(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    path.write_bytes(b"x" * (3 * MIB))
    with path.open("r+b") as file:
        zeros.write_zeros(file.fileno(), 5, 2 * MIB + 7)
        assert zeros.open_file_size(file.fileno()) == 3 * MIB
    assert path.read_bytes() == b"x" * 5 + bytes(2 * MIB + 2) + b"x" * (MIB - 7)
    assert zeros.is_zero(bytes(MIB)) and zeros.is_zero(b"") and not zeros.is_zero(bytes(9) + b"\1")
    assert transfer.stored_bytes(path) == path.stat().st_blocks * 512
