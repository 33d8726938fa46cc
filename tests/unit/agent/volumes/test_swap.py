# SPDX-License-Identifier: GPL-3.0-or-later
"""A volume takes the place of another one in a server of a fake host: done, refused, given up, and cut short."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.reconcile import reconcile
from magnetar_core.ensure import check_permissions
from magnetar_core.errors import Cancelled, Conflict, HypervisorError, InUse, InvalidField, MagnetarError
from magnetar_core.kinds import BY_NOUN
from magnetar_core.operations import Operation
from tests.support.agent.crash import lives
from tests.support.waiting import eventually
from tests.unit.agent.conftest import SMALL, Host

GIB = 2**30


def attach(host: Host, volume: str = "new", **want: Any) -> Any:
    return host.ensure("volume_attachment", f"web1:{volume}", {"server": "web1", "volume": volume, **want})


def swap(host: Host, **want: Any) -> Any:
    return attach(host, **{"replaces": "old", **want})


def shown(host: Host, noun: str, key: str) -> dict[str, Any]:
    return reconcile.show_resource(host.agent.drivers, BY_NOUN[noun], key)


def volumes(host: Host) -> list[str]:
    """What the server has, by its document, what runs and what is defined."""
    server = host.show()
    names = {one["id"]: one["name"] for one in (shown(host, "volume", name) for name in ("old", "new"))}
    found = [names[one["id"]] for one in server["volumes_attached"]]
    for seen in (host.fake.running(server["id"]), host.fake.domain(server["id"])):
        if seen is not None:
            assert [names[one.path.name] for one in seen.disks if one.path.name in names] == found
    return found


@pytest.fixture
def place(host: Host) -> Host:
    """A running server with a volume, and another volume."""
    host.ensure("volume", "old", {"size": 1})
    host.ensure("volume", "new", {"size": 1})
    host.server()
    attach(host, "old", tag="db", delete_on_termination=True)
    return host


@pytest.mark.parametrize("power", ["running", "paused"])
@pytest.mark.parametrize(("format", "size"), [("qcow2", 1), ("qcow2", 3), ("raw", 2)], ids=str)
def test_a_volume_takes_the_place_of_another(place: Host, format: str, size: int, power: str) -> None:
    """SM-27, SMD-27: the disk keeps its device, tag and serial number; a larger volume grows the disk."""
    place.ensure("volume", "new", None)
    place.ensure("volume", "new", {"size": size, "format": format})
    place.server(power=power)
    old = shown(place, "volume", "old")
    before = shown(place, "volume_attachment", "web1:old")
    dry = place.ensure("volume_attachment", "web1:new", {"server": "web1", "volume": "new", "replaces": "old"}, True)
    assert [one.verb for one in dry.steps] == ["record", "swap"] and volumes(place) == ["old"]
    done = swap(place)
    assert [one.verb for one in done.steps] == ["record", "swap"]
    keeps = ("device", "bus", "tag", "serial", "server")
    assert {name: done.resource[name] for name in keeps} == {name: before[name] for name in keeps}
    assert (done.resource["status"], done.resource["replaces"]) == ("attached", None)
    assert done.resource["delete_on_termination"] is False
    assert volumes(place) == ["new"] and place.show()["power_state"] == power
    assert place.fake.domain(place.show()["id"]).disks[1].serial == old["id"]
    assert [shown(place, "volume", name)["status"] for name in ("old", "new")] == ["available", "in-use"]
    assert shown(place, "volume", "new")["size"] == size
    disk = next(one for one in place.fake.running(place.show()["id"]).disks if one.target == "vdb")
    assert place.fake.disk(disk.path, format).virtual_size == size * GIB
    assert not swap(place).changed and not place.server().changed and not attach(place).changed
    place.restart()
    for wanted in ("off", "running"):
        place.server(power=wanted)
    assert volumes(place) == ["new"]
    place.ensure("volume_attachment", "web1:new", None)
    assert volumes(place) == []


def test_there_and_back(place: Host) -> None:
    """The serial number stays that of the first."""
    first = shown(place, "volume_attachment", "web1:old")["serial"]
    swap(place)
    back = attach(place, "old", replaces="new")
    assert back.resource["serial"] == first and volumes(place) == ["old"]
    attach(place, "new")
    assert volumes(place) == ["old", "new"]
    with pytest.raises(InvalidField, match="replaces: must name a volume that server 'web1' has"):
        place.ensure("volume", "third", {"size": 1})
        attach(place, "third", replaces="third")


@pytest.mark.parametrize(("want", "why"), [
    ({"replaces": "nope"}, "replaces: must name a volume that server 'web1' has"),
    ({"replaces": "new"}, "replaces: must name a volume that server 'web1' has"),
    ({"device": "vdc"}, "device: cannot differ"), ({"bus": "scsi"}, "bus: cannot differ"),
    ({"tag": "other"}, "tag: cannot differ"), ({"readonly": True}, "may only read cannot be swapped"),
    ({"volume": "small"}, "volume: must not be smaller than the volume that it replaces: it has 1 GiB, and that one 2"),
    ({"volume": "several"}, "multiattach cannot be swapped"), ({"volume": "used"}, "attached to server 'web2'"),
    ({"volume": "nope"}, "volume: must name a volume"),
], ids=str)
def test_refused(place: Host, want: dict[str, Any], why: str) -> None:
    place.ensure("volume", "old", {"size": 2})
    place.ensure("volume", "new", {"size": 2})
    place.ensure("volume", "small", {"size": 1})
    place.ensure("volume", "several", {"size": 2, "multiattach": True, "format": "raw"})
    place.ensure("volume", "used", {"size": 2})
    place.server("web2")
    place.ensure("volume_attachment", "web2:used", {"server": "web2", "volume": "used"})
    with pytest.raises(MagnetarError, match=why):
        swap(place, **want)
    assert volumes(place) == ["old"] and len(place.agent.host.documents.list("volume_attachment")) == 2


@pytest.mark.parametrize("power", ["off", "suspended"])
def test_only_of_servers_that_run(place: Host, power: str) -> None:
    place.server(power=power)
    with pytest.raises(Conflict):
        swap(place)
    assert [one["name"] for one in place.show()["volumes_attached"]] == ["old"]


def test_the_root_disk_stays(host: Host) -> None:
    (host.root / "image.raw").write_bytes(bytes(4096))
    host.ensure("image", "img", {"source": {"path": str(host.root / "image.raw")}, "disk_format": "raw"})
    host.ensure("volume", "new", {"size": 1})
    host.server(block_device_mapping=[{"source_type": "image", "destination_type": "volume", "uuid": "img",
                                       "boot_index": 0, "volume_size": 1}], flavor={**SMALL, "disk": 1})
    root = host.show()["volumes_attached"][0]["name"]
    with pytest.raises(Conflict, match="root disk"):
        swap(host, replaces=root)


class Held:
    """A swap whose copy does not become complete."""

    def __init__(self, host: Host, patch: pytest.MonkeyPatch) -> None:
        self.host, self.operation, self.failed = host, Operation("test"), list[BaseException]()
        looks = host.fake.mirror
        patch.setattr(host.fake, "mirror", lambda *args: (found := looks(*args)) and found._replace(ready=False))
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        eventually(lambda: self.operation.progress["total"] or self.failed)

    def _run(self) -> None:
        try:
            reconcile.ensure_resource(self.host.agent.drivers, BY_NOUN["volume_attachment"], "web1:new",
                                      {"server": "web1", "volume": "new", "replaces": "old"}, check_permissions({}),
                                      False, self.operation)
        except MagnetarError as error:
            self.failed.append(error)

    def error(self) -> BaseException:
        """What it failed with."""
        self.thread.join(30)
        return self.failed[0]


def free(host: Host) -> None:
    """The server is on its old volume, and the other is as if nobody had asked."""
    assert volumes(host) == ["old"]
    assert [shown(host, "volume", name)["status"] for name in ("old", "new")] == ["in-use", "available"]
    new = shown(host, "volume", "new")
    assert host.fake.disk(host.root / "state/volumes" / new["id"], "qcow2").virtual_size == new["size"] * GIB
    assert not any(one.mirrors for one in host.fake._domains.values())
    [left] = host.agent.host.documents.list("volume_attachment")
    assert not {"gives_way", "replaced", "unfinished"} & set(left.state)


def test_cancelled(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    place.ensure("volume", "new", {"size": 3})
    held = Held(place, monkeypatch)
    assert held.operation.progress["unit"] == "bytes" and volumes(place) == ["old"]
    held.operation.cancel()
    assert isinstance(held.error(), Cancelled)
    free(place)


def test_what_is_refused_meanwhile(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is not: the server may be changed, and keeps its old volume."""
    place.ensure("volume", "third", {"size": 1})
    held = Held(place, monkeypatch)
    assert shown(place, "volume_attachment", "web1:new")["status"] == "attaching"
    for refused, why in (
            (lambda: place.ensure("volume_attachment", "web1:old", None), "being swapped"),
            (lambda: attach(place, "third", replaces="old"), "being swapped already"),
            (lambda: place.ensure("volume", "old", {"size": 2}), "being swapped"),
            (lambda: place.ensure("volume", "new", {"size": 2}), "being swapped"),
            (lambda: place.ensure("volume", "copy", {"source_volume": "new"}), "being swapped")):
        with pytest.raises(Conflict, match=why):
            refused()
    with pytest.raises(InUse):
        place.ensure("volume", "new", None)
    place.server(description="changed")
    place.server(power="paused")
    assert volumes(place) == ["old"]
    place.server(power="off")
    assert "QEMU has stopped to copy" in str(held.error())
    free(place)


def test_the_server_is_deleted_meanwhile(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its volume goes with it where that is wanted, and the new one stays."""
    held = Held(place, monkeypatch)
    place.ensure("server", "web1", None)
    assert isinstance(held.error(), MagnetarError)
    assert [one.name for one in place.agent.host.documents.list("volume")] == ["new"]
    assert shown(place, "volume", "new")["status"] == "available"
    assert place.agent.host.documents.list("volume_attachment") == []


@pytest.mark.parametrize("call", ["begin_mirror", "mirror", "pivot"])
def test_a_failure_of_qemu(place: Host, call: str) -> None:
    place.ensure("volume", "new", {"size": 2})
    place.fake.fail_next(call, HypervisorError("QEMU refuses."))
    with pytest.raises(HypervisorError):
        swap(place)
    free(place)
    swap(place)
    assert volumes(place) == ["new"]


@pytest.mark.parametrize("restart", [True, False], ids=["agent starts again", "call repeated"])
def test_a_failure_when_the_guest_is_on_the_new_volume(place: Host, restart: bool) -> None:
    """There is no way back, and nothing is lost: it is carried on."""
    place.fake.fail_next("define", HypervisorError("libvirt refuses."))
    with pytest.raises(HypervisorError):
        swap(place)
    assert volumes(place) == ["new"] and shown(place, "volume_attachment", "web1:new")["fault"]
    with pytest.raises(Conflict, match="on the new volume already"):
        place.ensure("volume_attachment", "web1:new", None)
    if restart:
        place.restart()
    else:
        swap(place)
    place.server(description="changed")
    assert volumes(place) == ["new"]
    assert shown(place, "volume", "old")["status"] == "available"
    assert shown(place, "volume_attachment", "web1:new")["status"] == "attached"


@pytest.mark.slow
@pytest.mark.parametrize("repeat", [True, False], ids=["repeated", "left alone"])
@pytest.mark.parametrize("late", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("meanwhile", ["nothing", "guest off", "host reboots"])
def test_death_at_every_change(tmp_path: Path, late: bool, repeat: bool, meanwhile: str) -> None:
    """Whatever becomes of the guest until the next agent comes, it has one of the two, and what it wrote last."""
    seen = set()
    for life in lives(tmp_path, late, more_than=5):
        host = life.host
        host.ensure("volume", "old", {"size": 1})
        host.ensure("volume", "new", {"size": 2})
        host.server()
        attach(host, "old", delete_on_termination=True)
        id = host.show()["id"]
        life.ends_in(swap, host)
        on = host.fake.domain(id).disks[1].path.name
        if meanwhile == "guest off":
            host.fake.guest_powers_off(id)
        if meanwhile == "host reboots":
            host.reboot()
        else:
            host.restart()
        pivoted = on == shown(host, "volume", "new")["id"]
        if repeat and meanwhile != "guest off":
            swap(host)
            assert volumes(host) == ["new"]
        elif pivoted:
            assert volumes(host) == ["new"]
        if meanwhile == "guest off":
            assert [one["id"] for one in host.show()["volumes_attached"]] == [on]
            host.server(power="running")
            swap(host)
        if volumes(host) != ["new"]:
            host.ensure("volume_attachment", "web1:new", None)
            free(host)
        else:
            [left] = host.agent.host.documents.list("volume_attachment")
            assert not {"unfinished", "pivoting", "swapped"} & set(left.state) and left.want["replaces"] is None
            assert shown(host, "volume", "old")["status"] == "available"
            assert not swap(host).changed
            host.ensure("server", "web1", None)
            assert {one.name for one in host.agent.host.documents.list("volume")} == {"old", "new"}
        seen.add(pivoted)
    assert seen == {True, False}
