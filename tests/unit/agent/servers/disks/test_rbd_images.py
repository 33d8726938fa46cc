# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers whose own disks are RBD images of Ceph (``root_format`` rbd), on fake hosts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.host import host_check, inventory
from magnetar_agent.settings import AgentSettings
from magnetar_core.errors import Cancelled, Conflict, HypervisorError, InvalidField, InvalidSettings
from magnetar_core.flows.migrate import abort_host_migration
from magnetar_core.power import RUNNING
from tests.support.agent.ceph import POOLS, share_ceph
from tests.support.agent.pair import WAY, Pair
from tests.unit.agent.conftest import SMALL, Host
from tests.unit.core.images import iso, qcow2

GIB, MIB = 2**30, 2**20
ALL = {**SMALL, "disk": 1, "ephemeral": 1, "swap": 8}
CONTENT = b"magnetar".ljust(MIB, b"\0")
BASE = f"magnetar-base-{hashlib.sha256(CONTENT).hexdigest()}"
FILES = {"disk": GIB, "disk.ephemeral": GIB, "disk.swap": 8 * MIB}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host whose servers' disks lie in a pool of Ceph that has 8 GiB."""
    made = Host(tmp_path / "host", pools=POOLS, root_format="rbd", root_pool="ceph")
    made.fake.add_pool("rbd0", room=8 * GIB)
    made.start()
    yield made
    made.agent.close()


def image(host: Host, format: str = "raw") -> None:
    content = {"raw": CONTENT, "qcow2": qcow2(size=8 * MIB), "iso": iso()}[format]
    (host.root / format).write_bytes(content)
    host.ensure("image", format, {"source": {"path": str(host.root / format)}, "disk_format": format})


def pool(host: Host) -> Path:
    return host.root / "libvirt/pool-rbd0"


def images(host: Host) -> dict[str, int]:
    """Bytes of the images in the pool, by what follows server and mark, or by all of their names."""
    tools = host.fake.rbd_pool("rbd0")
    return {name.partition("_")[2][9:] or name: tools.size(name) or 0 for name in tools.names()}


def path_of(host: Host, file: str = "disk") -> Path:
    id = host.show()["id"]
    found, = (path for path in pool(host).iterdir() if path.name.startswith(id) and path.name.endswith(f"_{file}"))
    return found


def start_of(host: Host, file: str = "disk") -> bytes:
    return path_of(host, file).read_bytes()[:8]


def place(host: Host) -> Path:
    return host.root / "state/servers" / str(host.show()["id"])


# Its life ---------------------------------------------------------------------------------------------------------
def test_all_of_its_disks_are_images(host: Host) -> None:
    image(host)
    shown = host.server(image="raw", flavor=ALL, config_drive=True).resource
    assert shown["root_format"] == "rbd" and images(host) == {**FILES, BASE: MIB}
    assert (start_of(host), start_of(host, "disk.swap")[:4]) == (b"magnetar", bytes(4))  # the fake keeps no labels
    assert not host.server(image="raw", flavor=ALL, config_drive=True).changed
    root = ET.fromstring(host.fake.xml(shown["id"]))
    disks = root.findall("devices/disk")
    assert [disk.get("type") for disk in disks] == ["network", "network", "network", "file"]
    for disk, file in zip(disks, FILES, strict=False):
        source = disk.find("source")
        assert source is not None and source.get("protocol") == "rbd"
        assert source.get("name") == f"pool-rbd0/{path_of(host, file).name}"
        assert source.find("host").attrib == {"name": "ceph1", "port": "6789"}  # type: ignore[union-attr]
        assert source.find("auth").get("username") == "magnetar"  # type: ignore[union-attr]
        assert disk.find("driver").get("type") == "raw"  # type: ignore[union-attr]
        assert len(disk.find("backingStore")) == 0  # type: ignore[arg-type]
    assert not (place(host) / "base").exists()
    host.server("other", image="raw", flavor=SMALL)
    assert len([name for name in pool(host).iterdir() if name.name.endswith("@of")]) == 2  # of one base
    for name in ("web1", "other"):
        host.ensure("server", name, None)
    assert images(host) == {BASE: MIB}
    host.ensure("image", "raw", None)
    assert images(host) == {}


def test_a_base_stays_as_long_as_servers_stand_on_it(host: Host) -> None:
    image(host)
    host.server(image="raw", flavor=SMALL)
    host.ensure("image", "raw", None)
    assert BASE in images(host)
    host.ensure("server", "web1", None)
    assert images(host) == {}


def test_a_rebuild_leaves_the_base_of_an_image_that_is_gone(host: Host) -> None:
    for format in ("raw", "qcow2"):
        image(host, format)
    host.server(image="raw", flavor=SMALL)
    host.ensure("image", "raw", None)
    host.ensure("server", "web1", {"image": "qcow2"}, on_immutable="rebuild")
    assert BASE not in images(host) and len(images(host)) == 2


@pytest.mark.parametrize(("format", "size"), [("qcow2", 8 * MIB), ("iso", MIB)])
def test_other_images(host: Host, format: str, size: int) -> None:
    image(host, format)
    host.server(image=format, flavor=SMALL)
    assert images(host)["disk"] == size


def test_reshaped(host: Host) -> None:
    image(host)
    host.server(image="raw", flavor=ALL)
    larger = {**ALL, "disk": 2, "ephemeral": 2, "swap": 16}
    host.ensure("server", "web1", {"flavor": larger}, allow_reboot=True)
    assert images(host) == {"disk": 2 * GIB, "disk.ephemeral": 2 * GIB, "disk.swap": 16 * MIB, BASE: MIB}
    assert start_of(host) == b"magnetar"
    host.ensure("server", "web1", {"flavor": {**larger, "swap": 0}}, allow_reboot=True)
    assert images(host) == {"disk": 2 * GIB, "disk.ephemeral": 2 * GIB, BASE: MIB}
    assert not host.server(flavor={**larger, "swap": 0}).changed


def test_rebuilt(host: Host) -> None:
    image(host)
    host.server(image="raw", flavor=ALL)
    for file in ("disk", "disk.ephemeral"):
        with path_of(host, file).open("r+b") as disk:
            disk.write(b"of guest")
    host.ensure("server", "web1", {"user_data": "YQ=="}, on_immutable="rebuild", preserve_ephemeral=True)
    assert (start_of(host), start_of(host, "disk.ephemeral")) == (b"magnetar", b"of guest")
    host.ensure("server", "web1", {"user_data": "Yg=="}, on_immutable="rebuild")
    assert start_of(host, "disk.ephemeral") == bytes(8)
    assert images(host) == {**FILES, BASE: MIB}


@pytest.mark.parametrize("power", ["running", "off"])
def test_an_image_of_it(host: Host, power: str) -> None:
    image(host)
    host.server(image="raw", flavor=ALL, power=power)
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
            for disk in root.findall("devices/disk")[:2]] == [("file", "qcow2"), ("network", "raw")]
    host.ensure("server", "web1", {"rescue": None})
    assert images(host) == {**FILES, BASE: MIB}


def test_the_setting_is_for_new_servers(host: Host) -> None:
    host.server(flavor=ALL)
    host.settings.update(root_format="qcow2")
    host.restart()
    assert not host.server(flavor=ALL).changed and len(images(host)) == 3
    host.ensure("server", "web1", {"flavor": {**ALL, "swap": 0}}, allow_reboot=True)
    host.settings.update(pools={"vg": POOLS["vg"]}, root_pool="vg")
    host.restart()
    with pytest.raises(Conflict, match="RBD images of the pool 'ceph', which the agent's settings do not have"):
        host.ensure("server", "web1", None)
    host.settings.update(pools=POOLS, root_pool="ceph")
    host.restart()
    host.ensure("server", "web1", None)
    assert images(host) == {}


# What the host says -----------------------------------------------------------------------------------------------
def test_the_host_tells_the_pool(host: Host) -> None:
    host.server(flavor=ALL)
    seen = inventory.host_usage(host.agent.host)
    assert (seen["disk_gb"], seen["disk_gb_free"]) == (8, 5)
    assert seen["local_disks"] == {"format": "rbd", "pool": "ceph", "reason": ""} and seen["disk_encryption"] == []
    said = {name: (fine, text) for name, fine, text in host_check.host_findings(seen)}
    assert said["local_disks"] == (True, "root_format rbd in the pool ceph, 5 of 8 GiB free")
    pool(host).rename(host.root / "away")
    seen = inventory.host_usage(host.agent.host)
    assert (seen["disk_gb"], seen["disk_gb_free"]) == (0, 0) and "libvirt has no" in seen["local_disks"]["reason"]
    assert inventory.host_resource(host.agent.drivers)["orphans"] == {"domains": [], "files": [], "shared": []}


def test_images_that_this_host_does_not_know_are_told(host: Host) -> None:
    image(host)
    host.server(image="raw", flavor=ALL)
    strange = "5e8a0c54-6a0b-4d0e-9f43-2a2f3b1c0d9e_0123abcd_disk"
    old = path_of(host).name.replace(path_of(host).name[36:45], "_00000000")  # another making of the same server
    for name in (strange, old, "of-somebody-else_disk"):
        host.fake.rbd_pool("rbd0").make(name, MIB)
    found = inventory.host_resource(host.agent.drivers)["orphans"]
    assert found == {"domains": [], "files": [], "shared": sorted([strange, old])}


# What is refused --------------------------------------------------------------------------------------------------
def test_refused_settings(tmp_path: Path) -> None:
    def settings(**given: Any) -> AgentSettings:
        return AgentSettings(state_dir=tmp_path, pools=POOLS, **given)
    with pytest.raises(InvalidSettings, match="root_pool: is required where root_format is rbd"):
        settings(root_format="rbd")
    with pytest.raises(InvalidSettings, match="must be a pool of type rbd .got 'vg'.*has ceph"):
        settings(root_format="rbd", root_pool="vg")
    with pytest.raises(InvalidSettings, match="must be a pool of type lvm or rbd .got 'away'.*has ceph, vg"):
        settings(root_pool="away")
    assert settings(root_format="rbd", root_pool="ceph").root_pool == "ceph"


def test_refused_servers(host: Host) -> None:
    with pytest.raises(InvalidField, match="ephemeral_encryption.*RBD images are not encrypted"):
        host.server(flavor=ALL, hardware={"ephemeral_encryption": True})
    with pytest.raises(InvalidField, match="no more than 8 GiB of disks: the host has 8 GiB"):
        host.server(flavor={**ALL, "disk": 8})
    with pytest.raises(InvalidField, match="cannot be lvm.*setting root_pool names no pool of type lvm"):
        host.server(flavor=ALL, root_format="lvm")
    pool(host).rename(host.root / "away")
    with pytest.raises(Conflict, match="no storage pool 'rbd0'"):
        host.server(flavor=ALL)
    assert host.agent.host.documents.list("server") == []


# What a killed or cancelled agent leaves ----------------------------------------------------------------------------
@pytest.mark.parametrize("call", ["copy_into", "rbd_protect", "rbd_clone", "rbd_grow"])
def test_what_was_begun_is_taken_up_again(host: Host, call: str) -> None:
    image(host)
    host.fake.fail_next(call, Cancelled("cancelled"))
    with pytest.raises(Cancelled):
        host.server(image="raw", flavor=ALL)
    host.server(image="raw", flavor=ALL)
    assert start_of(host) == b"magnetar" and images(host) == {**FILES, BASE: MIB}
    host.ensure("server", "web1", None)
    assert images(host) == {BASE: MIB}


def test_a_swap_disk_whose_removal_failed_goes_later(host: Host) -> None:
    host.server(flavor=ALL)
    host.fake.fail_next("rbd_remove", HypervisorError("The cluster does not answer."))
    with pytest.raises(HypervisorError):
        host.ensure("server", "web1", {"flavor": {**ALL, "swap": 0}}, allow_reboot=True)
    host.ensure("server", "web1", {"flavor": {**ALL, "swap": 0}}, allow_reboot=True)
    assert set(images(host)) == {"disk", "disk.ephemeral"}
    assert not [path for path in place(host).iterdir() if path.name.endswith(".link")]


# Moves ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def moving(pair: Pair) -> Iterator[Pair]:
    """Two hosts with one pool of Ceph."""
    share_ceph(pair.root, (pair.one, pair.two))
    yield pair


def contents(pair: Pair) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (pair.root / "libvirt-kvm1/pool-rbd0").iterdir()}


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_its_disks_stay_where_they_are(moving: Pair, kind: str) -> None:
    id = moving.make(flavor={**SMALL, "swap": 8}, config_drive=True)
    before = contents(moving)
    assert {name.rpartition("_")[2] for name in before if name.startswith(id)} >= {"disk", "disk.swap"}
    assert moving.migrate(type=kind) == WAY
    moving.check(id, moving.two)
    assert contents(moving) == before
    assert not moving.two.side().client.ensure("server", "web1", {"power": RUNNING})["changed"]
    moving.two.side().client.delete("server", "web1")
    assert not [name for name in contents(moving) if name.startswith(id)]


@pytest.mark.slow
def test_one_that_is_given_up_keeps_its_disks(moving: Pair) -> None:
    id = moving.make(flavor={**SMALL, "swap": 8})
    before = contents(moving)
    moving.one.fake.fail_next("migrate", HypervisorError("The link broke."))
    with pytest.raises(HypervisorError, match="The link broke"):
        moving.migrate(type="live")
    abort_host_migration(moving.one.side(), moving.two.side(), "web1")
    moving.check(id, moving.one)
    assert contents(moving) == before


def test_what_may_be_the_targets_is_not_removed_at_the_source(moving: Pair) -> None:
    """The server has arrived, and the source's half is ended without a word to the target, and deleted."""
    id = moving.make(flavor={**SMALL, "swap": 8}, power="off")
    before = contents(moving)
    moving.one.fake.fail_next("undefine", HypervisorError("libvirt is busy."))
    with pytest.raises(HypervisorError):
        moving.migrate()
    assert moving.one.knows(id) and moving.two.knows(id)
    client = moving.one.side().client
    half, = client.list("migration")
    client.event("migration", half["id"], "discard", {}, request_id="r1")
    with pytest.raises(Conflict, match="may be another host's.*delete it here"):
        client.ensure("server", "web1", {"power": RUNNING})
    client.delete("server", "web1")
    assert not moving.one.knows(id) and contents(moving) == before


def test_what_was_never_given_away_stays_the_sources(moving: Pair) -> None:
    """The agent died on the way of a server that was off, before the target was told to take it; the half is ended."""
    id = moving.make(flavor={**SMALL, "swap": 8}, power="off")
    side = moving.one.side()
    moving.two.fake.fail_next("permit", HypervisorError("No."))
    with pytest.raises(HypervisorError):
        moving.migrate()
    half, = side.client.list("migration")
    documents = moving.one.agent.host.documents
    document = documents.get("migration", half["id"])
    assert document is not None
    document.state["tried"] = True  # as an agent that died leaves it
    documents.write(document)
    side.client.event("migration", half["id"], "discard", {}, request_id="r1")
    side.client.ensure("server", "web1", {"power": RUNNING})
    assert moving.one.fake.xml(id).count("protocol=\"rbd\"") == 2


def test_a_host_that_does_not_reach_them_is_no_target(moving: Pair) -> None:
    moving.make(flavor=SMALL, power="off")
    for more, said in (
            ({}, "are RBD images .root_format rbd., and stay so.*root_pool names no pool of type rbd"),
            ({"pools": {"other": POOLS["ceph"]}, "root_pool": "other"}, "no pool of type rbd of that name")):
        moving.two.more = more
        moving.two.restart()
        with pytest.raises(Conflict, match=said):
            moving.migrate()
    (moving.two.fake._folder / "pool-rbd0").unlink()  # type: ignore[operator]
    moving.two.fake.add_pool("rbd0")
    moving.two.more = moving.one.more
    moving.two.restart()
    with pytest.raises(Conflict, match="the target's pool 'ceph' has no .*_disk: it is another pool of Ceph"):
        moving.migrate()
