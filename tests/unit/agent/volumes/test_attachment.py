# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes in servers on a fake host: attached, detached, kept over starts, and what is refused."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_agent.drivers.attachment import plan_attachment
from magnetar_agent.reconcile import reconcile
from magnetar_agent.volumes.attaching import attachment_id
from magnetar_core.errors import Conflict, Immutable, InUse, InvalidField, MagnetarError
from magnetar_core.kinds import BY_NOUN
from tests.unit.agent.conftest import Host

GIB = 2**30
CASES = yaml.safe_load((Path(__file__).parents[3] / "cases/plans/volume_attachment.yml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_plan(case: dict[str, Any]) -> None:
    if "refused" in case:
        with pytest.raises(MagnetarError, match=case["refused"]):
            list(plan_attachment(case["want"], case["have"]))
    else:
        assert [step.verb for step in plan_attachment(case["want"], case["have"])] == case["steps"]


def attach(host: Host, server: str = "web1", volume: str = "data", dry_run: bool = False, **want: Any) -> Any:
    return host.ensure("volume_attachment", f"{server}:{volume}", {"server": server, "volume": volume, **want},
                       dry_run=dry_run)


def detach(host: Host, server: str = "web1", volume: str = "data") -> Any:
    return host.ensure("volume_attachment", f"{server}:{volume}", None)


def shown(host: Host, noun: str, key: str) -> dict[str, Any]:
    return reconcile.show_resource(host.agent.drivers, BY_NOUN[noun], key)


def plugged(host: Host, name: str = "web1") -> list[str]:
    """Devices of the server's volumes: while it runs, and at its next start."""
    id = host.show(name)["id"]
    live, kept = host.fake.running(id), host.fake.domain(id)
    local = ("vda", "sdo")
    found = [d.target for d in kept.disks if d.target not in local]
    if live is not None:
        assert found == [d.target for d in live.disks if d.target not in local]
    return found


@pytest.fixture
def place(host: Host) -> Host:
    """A running server and a volume."""
    host.server()
    host.ensure("volume", "data", {"size": 1})
    return host


def test_attach_and_detach_while_it_runs(place: Host) -> None:
    """VOL-03, VOL-07, SM-03; asked for twice, it is attached once."""
    predicted = attach(place, dry_run=True)
    done = attach(place)
    assert [s.verb for s in predicted.steps] == [s.verb for s in done.steps] == ["record", "attach"]
    server, volume = place.show()["id"], shown(place, "volume", "data")
    assert done.resource["id"] == attachment_id(server, volume["id"])
    assert (done.resource["device"], done.resource["serial"], done.resource["status"]) == (
        "vdb", volume["id"][:20], "attached")
    assert plugged(place) == ["vdb"] and place.fake.domain(server).disks[1].serial == volume["id"]
    assert volume["status"] == "in-use" and volume["attachments"] == [
        {"id": done.resource["id"], "server": server, "server_name": "web1", "device": "vdb"}]
    assert not attach(place).changed and not place.server().changed
    by_uuid = {"server": server, "volume": volume["id"]}
    assert not place.ensure("volume_attachment", done.resource["id"], by_uuid).changed
    assert shown(place, "volume_attachment", f"{server}:data")["volume_name"] == "data"
    gone = detach(place)
    assert [s.verb for s in gone.steps] == ["detach", "forget"] and plugged(place) == []
    assert shown(place, "volume", "data")["status"] == "available" and not detach(place).changed


def test_cold_and_for_later_starts(place: Host) -> None:
    place.server(power="off")
    attach(place, bus="sata")
    assert plugged(place) == ["sda"]
    place.server(power="running")
    assert plugged(place) == ["sda"]
    place.server(power="off")
    detach(place)
    place.server(power="running")
    assert plugged(place) == []


def test_what_is_defined_anew_keeps_its_volumes(place: Host) -> None:
    attach(place)
    id = place.show()["id"]
    place.fake.undefined_outside(id)
    place.server(power="running")
    assert plugged(place) == ["vdb"]
    place.ensure("server", id, {"name": "web2"})
    place.server("web2", power="off", flavor={"vcpus": 2, "ram": 64})
    assert [d.target for d in place.fake.domain(id).disks] == ["vda", "vdb", "sdo"]
    place.goes_down()
    place.restart()


def test_devices_are_drawn_once_and_named(place: Host) -> None:
    """BDM-07, BDM-08; a name that is taken is refused."""
    for name in ("b", "c", "d"):
        place.ensure("volume", name, {"size": 1})
    assert attach(place, volume="b", device="/dev/vdb").resource["device"] == "vdb"
    assert attach(place, volume="c", tag="logs", readonly=True).resource["device"] == "vdc"
    with pytest.raises(Conflict, match="has a disk vdc already"):
        attach(place, volume="d", device="vdc")
    with pytest.raises(InvalidField, match="must begin with sd"):
        attach(place, volume="d", device="vdd", bus="scsi")
    with pytest.raises(Conflict, match="has a disk sdo already"):
        attach(place, volume="d", device="sdo", bus="scsi")
    detach(place, volume="b")
    assert attach(place, volume="d").resource["device"] == "vdb"
    with pytest.raises(Immutable, match="readonly"):
        attach(place, volume="c", readonly=False)
    assert attach(place, volume="c", delete_on_termination=True).changed
    assert {d.target: (d.tag, d.readonly) for d in place.fake.domain(place.show()["id"]).disks}["vdc"] == ("logs", True)


@pytest.mark.parametrize(("server", "volume", "want", "why"), [
    ("nope", "data", {}, "server: must name a server"),
    ("web1", "nope", {}, "volume: must name a volume"),
    ("web1", "data", {"bus": "ide"}, "bus: must be one of"),
    ("web1", "data", {"boot_index": 0}, "boot_index: must not be 0"),
    ("web1", "data", {"device": "xvda"}, "device: must be a device name"),
    ("web1", "data", {"bus": "sata"}, "cannot be plugged into a running server"),
], ids=str)
def test_refused(place: Host, server: str, volume: str, want: dict[str, Any], why: str) -> None:
    with pytest.raises(MagnetarError, match=why):
        attach(place, server, volume, **want)
    assert place.agent.host.documents.list("volume_attachment") == [] and plugged(place) == []


def test_check_mode_assumes_what_earlier_tasks_make(host: Host) -> None:
    found = attach(host, dry_run=True)
    assert found.changed and len(found.warnings) == 2
    assert not detach(host).changed


def test_one_server_at_a_time_unless_multiattach(place: Host) -> None:
    """VOL-01, VOL-06, ARC-19."""
    place.server("web2")
    attach(place)
    with pytest.raises(Conflict, match="attached to server 'web1'"):
        attach(place, "web2")
    place.ensure("volume", "both", {"size": 1, "multiattach": True})
    for server in ("web1", "web2"):
        attach(place, server, "both")
    assert all(d.shareable for name in ("web1", "web2") for d in place.fake.domain(place.show(name)["id"]).disks
               if d.serial == shown(place, "volume", "both")["id"])
    with pytest.raises(Conflict, match="2 running servers"):
        place.ensure("volume_snapshot", "s", {"volume": "both"})
    with pytest.raises(InUse, match="web1, web2"):
        place.ensure("volume", "both", None)


def test_two_at_once_are_one(place: Host) -> None:
    """Whoever comes second finds it done, or is refused; never two servers, never two devices."""
    place.server("web2")
    refused: list[Exception] = []

    def go(server: str) -> None:
        try:
            attach(place, server)
        except Conflict as error:
            refused.append(error)

    threads = [threading.Thread(target=go, args=(name,)) for name in ("web1", "web2") * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(place.agent.host.documents.list("volume_attachment")) == 1
    assert sorted(len(plugged(place, name)) for name in ("web1", "web2")) == [0, 1]
    assert len(refused) == 4


def test_a_guest_that_refuses_keeps_its_volume(place: Host) -> None:
    """SMD-03 does not say it; Nova gives up after some attempts too."""
    attach(place)
    id = place.show()["id"]
    place.agent.host.settings = dataclasses.replace(place.agent.host.settings, detach_timeout=0.1)
    place.fake.deaf.add(id)
    with pytest.raises(Conflict, match="did not let go of it within 0.1 s"):
        detach(place)
    assert plugged(place) == ["vdb"]
    found = shown(place, "volume_attachment", "web1:data")
    assert found["status"] == "attached" and "did not let go" in found["fault"]["message"]
    place.restart()
    assert plugged(place) == ["vdb"]
    place.fake.deaf.clear()
    detach(place)
    assert plugged(place) == []


def test_a_suspended_server_is_left_alone(place: Host) -> None:
    place.server(power="suspended")
    with pytest.raises(Conflict, match="suspended to disk"):
        attach(place)
    assert place.agent.host.documents.list("volume_attachment") == []
    place.server(power="running")
    attach(place)
    place.server(power="suspended")
    with pytest.raises(Conflict, match="suspended"):
        detach(place)
    with pytest.raises(Conflict, match="another size"):
        place.ensure("volume", "data", {"size": 2})
    place.server(power="running")
    assert plugged(place) == ["vdb"]


def test_a_rescued_server_is_without_its_volumes(place: Host) -> None:
    path = place.root / "rescue.raw"
    with path.open("wb") as stream:
        stream.truncate(1 << 20)
    place.ensure("image", "rescue", {"source": {"path": str(path)}, "disk_format": "raw"})
    place.ensure("volume", "other", {"size": 1})
    attach(place)
    place.server(power="off", rescue={"image": "rescue"})
    disks = place.fake.domain(place.show()["id"]).disks
    assert [disk.serial for disk in disks if disk.serial] == []
    assert not attach(place).changed
    with pytest.raises(Conflict, match="is rescued"):
        attach(place, volume="other")
    place.server(power="running", rescue=None)
    assert plugged(place) == ["vdb"]


def test_it_grows_while_a_server_runs(place: Host) -> None:
    attach(place)
    place.fake.fail_next("grow_disk", AssertionError("a disk in use is grown by QEMU"))
    assert place.ensure("volume", "data", {"size": 2}).resource["size"] == 2
    assert place.fake.disk(place.root / "state/volumes" / shown(place, "volume", "data")["id"]).virtual_size == 2 * GIB


def test_it_is_copied_while_a_server_runs(place: Host) -> None:
    attach(place)
    place.fake.fail_next("copy_disk", AssertionError("a disk in use is copied by QEMU"))
    assert place.ensure("volume_snapshot", "s", {"volume": "data"}).resource["size"] == 1
    assert place.ensure("volume", "copy", {"source_volume": "data", "size": 2}).resource["size"] == 2


def test_a_server_goes_with_its_volumes(place: Host) -> None:
    """ACT-011, BDM-10 (delete_on_termination)."""
    place.ensure("volume", "scratch", {"size": 1})
    attach(place)
    attach(place, volume="scratch", delete_on_termination=True)
    with pytest.raises(InUse, match="web1"):
        place.ensure("volume", "data", None)
    done = place.ensure("server", "web1", None)
    assert [s.verb for s in done.steps] == ["destroy", "undefine", "free", "erase", "forget"]
    assert [d.name for d in place.agent.host.documents.list("volume")] == ["data"]
    assert place.agent.host.documents.list("volume_attachment") == []
    assert len(list((place.root / "state/volumes").iterdir())) == 1
    assert place.ensure("volume", "data", None).changed


def test_an_attach_that_fails_leaves_nothing(place: Host) -> None:
    place.fake.fail_next("attach", Conflict("no more available PCI slots"))
    with pytest.raises(Conflict, match="PCI"):
        attach(place)
    assert place.agent.host.documents.list("volume_attachment") == [] and plugged(place) == []
    assert attach(place).changed
