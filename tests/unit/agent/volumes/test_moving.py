# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of a volume moves to another pool of its fake host: done, refused, given up, and cut short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.reconcile import reconcile
from magnetar_agent.volumes import pools
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, MagnetarError
from magnetar_core.kinds import BY_NOUN
from tests.support.agent.crash import lives
from tests.support.file_modes import exposed
from tests.unit.agent.conftest import SMALL, Host

GIB = 2**30


def settings(root: Path) -> dict[str, Any]:
    """The settings of a host with three pools."""
    return {"pools": {"fast": {"type": "dir", "path": str(root / "fast")},
                      "lvm": {"type": "lvm", "libvirt_pool": "vg"}}}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Host]:
    """A running server, and a volume in the default pool that it does not have."""
    found = Host(tmp_path, **settings(tmp_path))
    found.fake.add_pool("vg")
    found.start()
    found.ensure("volume", "data", {"size": 1})
    found.server()
    yield found
    found.agent.close()
    assert exposed(tmp_path / "state") == []


def move(host: Host, pool: str, volume: str = "data") -> Any:
    return host.ensure("volume", volume, {"move_to": pool})


def moved(host: Host, pool: str, volume: str = "data") -> int:
    """Repeat the request as the control plane does; return how often."""
    for count in range(1, 12):
        if move(host, pool, volume).resource["pool"] == pool:
            return count
    pytest.fail("the volume does not arrive")


def attach(host: Host, server: str = "web1", volume: str = "data") -> Any:
    return host.ensure("volume_attachment", f"{server}:{volume}", {"server": server, "volume": volume})


def shown(host: Host, volume: str = "data") -> dict[str, Any]:
    return reconcile.show_resource(host.agent.drivers, BY_NOUN["volume"], volume)


def lies_in(host: Host) -> list[str]:
    """The pools with content of the volume. All that runs and is defined has it in its pool."""
    document = host.agent.host.documents.find("volume", "data")
    found = [pool.name for pool in pools.all_pools(host.agent.host) if document.id in
             {name.partition(".")[0] for name in pool.names()}]
    path = pools.find_pool(host.agent.host, document.want["pool"]).disk(document.id, document.want["format"]).path
    for uuid in host.fake._domains:
        for seen in (host.fake.running(uuid), host.fake.domain(uuid)):
            assert all(disk.path == path for disk in seen.disks if disk.path.name == document.id) if seen else True
    return found


@pytest.mark.parametrize(("pool", "format", "then"), [
    ("fast", "qcow2", "qcow2"), ("fast", "raw", "raw"), ("fast", "luks", "luks"), ("lvm", "raw", "raw"),
    ("lvm", "qcow2", "raw")])
def test_content_moves(place: Host, pool: str, format: str, then: str) -> None:
    place.ensure("volume", "data", None)
    place.ensure("volume", "data", {"size": 2, "format": format, "metadata": {"a": "b"}})
    before = shown(place)
    done = move(place, pool)
    assert [step.verb for step in done.steps] == ["record", "move"] and lies_in(place) == [pool]
    assert {**before, "pool": pool, "format": then, "updated_at": ""} == {**done.resource, "updated_at": ""}
    assert not move(place, pool).changed
    attach(place)
    place.restart()
    assert shown(place)["status"] == "in-use" and lies_in(place) == [pool]
    if format == "luks":
        with pytest.raises(Conflict, match="encrypted, so QEMU does not move it. Stop server 'web1'"):
            move(place, "default")
        place.server(power="off")
    moved(place, "default")
    assert lies_in(place) == ["default"]


@pytest.mark.parametrize("power", ["running", "paused", "off"])
@pytest.mark.parametrize("pool", ["fast", "lvm"])
def test_under_its_server(place: Host, power: str, pool: str) -> None:
    attach(place)
    place.server(power=power)
    assert moved(place, pool) == (1 if power == "off" else 3) and lies_in(place) == [pool]
    assert place.show()["power_state"] == {"off": "shutdown"}.get(power, power) or power == "off"
    for wanted in ("off", "running"):
        place.server(power=wanted)
    assert lies_in(place) == [pool]
    place.ensure("volume_attachment", "web1:data", None)
    place.ensure("volume", "data", None)
    assert not pools.find_pool(place.agent.host, pool).names()


def test_the_root_disk_moves_too(place: Host) -> None:
    (place.root / "image.raw").write_bytes(bytes(4096))
    place.ensure("image", "img", {"source": {"path": str(place.root / "image.raw")}, "disk_format": "raw"})
    place.ensure("server", "boot", {"flavor": {**SMALL, "disk": 1}, "block_device_mapping": [
        {"source_type": "image", "destination_type": "volume", "uuid": "img", "boot_index": 0, "volume_size": 1}]})
    root = place.show("boot")["volumes_attached"][0]["name"]
    moved(place, "fast", root)
    place.ensure("server", "boot", {"power": "off"})
    place.ensure("server", "boot", {"power": "running"})
    assert shown(place, root)["pool"] == "fast" and shown(place, root)["status"] == "in-use"


def test_refused(place: Host) -> None:
    with pytest.raises(InvalidField, match="move_to: must be a pool of this host, which has default, fast, lvm"):
        move(place, "none")
    with pytest.raises(InvalidField, match="move_to: is for a volume that exists"):
        place.ensure("volume", "new", {"size": 1, "move_to": "fast"})
    place.ensure("volume", "secret", {"size": 1, "format": "luks"})
    with pytest.raises(InvalidField, match="move_to: must be a pool with the format luks"):
        move(place, "lvm", "secret")
    attach(place, volume="secret")
    with pytest.raises(Conflict, match="encrypted"):
        move(place, "fast", "secret")
    attach(place)
    place.server(power="suspended")
    with pytest.raises(Conflict, match="suspended"):
        move(place, "fast")
    document = place.agent.host.documents.find("volume", "data")
    place.server(power="off")
    (place.root / "fast").mkdir()
    (place.root / "fast" / document.id).write_text("of somebody else")
    with pytest.raises(Conflict, match="content called"):
        move(place, "fast")
    assert (place.root / "fast" / document.id).read_text() == "of somebody else"
    assert "moving" not in place.agent.host.documents.find("volume", "data").state


def test_several_servers_with_one_volume(place: Host) -> None:
    place.ensure("volume", "data", None)
    place.ensure("volume", "data", {"size": 1, "multiattach": True})
    place.server("web2")
    attach(place), attach(place, "web2")
    with pytest.raises(Conflict, match="written to by 2 running servers"):
        move(place, "fast")
    place.server("web2", power="off")
    moved(place, "fast")
    assert lies_in(place) == ["fast"] and len(shown(place)["attachments"]) == 2


def test_what_is_refused_meanwhile_and_the_end_of_a_move(place: Host) -> None:
    attach(place)
    move(place, "fast")
    assert lies_in(place) == ["default", "fast"]
    for refused in (lambda: place.ensure("volume_attachment", "web1:data", None),
                    lambda: place.ensure("volume", "data", {"size": 2}),
                    lambda: place.ensure("volume", "copy", {"source_volume": "data"})):
        with pytest.raises(Conflict, match="is moving to pool 'fast'"):
            refused()
    place.restart()
    assert shown(place)["pool"] == "default"
    move(place, "default")
    assert lies_in(place) == ["default"] and not any(domain.mirrors for domain in place.fake._domains.values())
    place.ensure("volume", "data", {"size": 2})
    move(place, "fast")
    with pytest.raises(Conflict, match="is moving to pool 'fast'"):
        move(place, "lvm")
    move(place, "default")
    moved(place, "lvm")
    assert lies_in(place) == ["lvm"]


def test_the_server_goes_meanwhile(place: Host) -> None:
    attach(place)
    move(place, "fast")
    place.ensure("server", "web1", None)
    assert moved(place, "fast") == 1 and lies_in(place) == ["fast"]
    move(place, "default")
    assert lies_in(place) == ["default"]


def test_the_guest_ends_meanwhile(place: Host) -> None:
    attach(place)
    move(place, "fast")
    place.server(power="off")
    assert moved(place, "fast") == 1 and lies_in(place) == ["fast"]


def test_qemu_that_ends_the_copy_again_and_again(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    attach(place)
    monkeypatch.setattr(place.fake, "mirror", lambda *_args: None)
    for _attempt in range(3):
        move(place, "fast")
    with pytest.raises(Conflict, match="ended the copy of volume 'data' 3 times"):
        move(place, "fast")
    move(place, "default")
    assert lies_in(place) == ["default"]


def test_a_volume_is_deleted_in_the_middle(place: Host) -> None:
    place.fake.fail_next("copy_disk", HypervisorError("no"))
    with pytest.raises(HypervisorError):
        move(place, "fast")
    (place.root / "fast").mkdir(exist_ok=True)
    place.ensure("volume", "data", None)
    assert not [*(place.root / "fast").iterdir()] and not [*(place.root / "state/volumes").iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", ["nothing", "guest off", "host reboots", "server deleted"])
@pytest.mark.parametrize("late", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("pool", ["fast", "lvm"])
@pytest.mark.parametrize("power", ["off", "running"])
def test_death_at_every_change(tmp_path: Path, power: str, pool: str, late: bool, meanwhile: str) -> None:
    """Whatever becomes of the guest until the next agent comes, one pool has the content, and it arrives."""
    if power == "off" and meanwhile in ("guest off", "host reboots"):
        return
    for life in lives(tmp_path, late, more_than=3, prepared=lambda host: host.fake.add_pool("vg"),
                      pools={**settings(tmp_path / "x")["pools"]}):
        host = life.host
        host.ensure("volume", "data", {"size": 1, "format": "raw"})
        host.server(power=power)
        attach(host)
        id = host.show()["id"]
        life.ends_in(lambda host=host: moved(host, pool))
        if meanwhile == "guest off" and power == "running":
            host.fake.guest_powers_off(id)
        host.reboot() if meanwhile == "host reboots" else host.restart()
        if meanwhile == "server deleted":
            host.ensure("server", "web1", None)
        document = host.agent.host.documents.find("volume", "data")
        assert document.want["pool"] in lies_in(host)
        back = document.want["pool"] == "default" and life.number % 2
        with pytest.MonkeyPatch.context():
            moved(host, "default" if back else pool)
        assert lies_in(host) == ["default" if back else pool]
        assert not {"moving", "unfinished"} & set(host.agent.host.documents.find("volume", "data").state)
        if meanwhile != "server deleted":
            host.server(power="running")
            assert lies_in(host) == ["default" if back else pool]
            host.ensure("volume_attachment", "web1:data", None)
        try:
            host.ensure("volume", "data", None)
        except MagnetarError as error:
            pytest.fail(str(error))
