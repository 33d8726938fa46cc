# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes take content over that lies in a pool, and leave their content there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.fake.disks import write_fake_disk
from magnetar_agent.host.storage import DiskSeen
from magnetar_agent.volumes.existing import list_content
from magnetar_agent.volumes.pools import orphan_volume_files
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, MagnetarError
from tests.support.agent.crash import lives
from tests.unit.agent.conftest import Host

GIB = 2**30


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Host]:
    """A host with a pool ``fast`` that has a raw file of 1.5 GiB and a qcow2 of 2 GiB, and a pool of LVM."""
    found = Host(tmp_path, pools={"fast": {"type": "dir", "path": str(tmp_path / "fast")},
                                  "lvm": {"type": "lvm", "libvirt_pool": "vg"}})
    found.fake.add_pool("vg")
    found.start()
    fill(tmp_path / "fast")
    yield found
    found.agent.close()


def fill(folder: Path) -> None:
    folder.mkdir()
    with (folder / "old.raw").open("wb") as stream:
        stream.write(b"kept")
        stream.truncate(GIB * 3 // 2)
    write_fake_disk(folder / "new.qcow2", DiskSeen("qcow2", 2 * GIB))


def manage(host: Host, name: str, id: str | None = None, format: str = "raw", pool: str = "fast", **want: Any) -> Any:
    id = id or str(uuid.uuid4())
    return host.ensure("volume", id, {"name": f"volume-{id}", "pool": pool, "existing": name, "format": format,
                                      **want}).resource


def unmanage(host: Host, id: str) -> None:
    host.ensure("volume", id, {"keep_content": True})
    host.ensure("volume", id, None)


def files(host: Host) -> list[str]:
    return sorted(path.name for path in (host.root / "fast").iterdir())


def test_a_file_becomes_a_volume_and_stays(place: Host) -> None:
    """Its size grows to whole GiB; as a volume it may be what volumes are."""
    assert list_content(place.agent.host, "fast") == [
        {"name": "new.qcow2", "size": 2, "format": "qcow2", "volume": None, "reason": None},
        {"name": "old.raw", "size": 2, "format": "raw", "volume": None, "reason": None}]
    raw, qcow2 = manage(place, "old.raw"), manage(place, "new.qcow2", format="qcow2", size=3)
    assert [(one["size"], one["status"]) for one in (raw, qcow2)] == [(2, "available"), (3, "available")]
    assert files(place) == sorted([raw["id"], qcow2["id"]])
    path = place.root / "fast" / raw["id"]
    assert path.stat().st_size == 2 * GIB and path.stat().st_mode & 0o777 == 0o640
    assert path.open("rb").read(4) == b"kept"
    assert {one["volume"]: one["reason"] for one in list_content(place.agent.host, "fast")} == {
        raw["id"]: "already managed", qcow2["id"]: "already managed"}
    assert not place.ensure("volume", raw["id"], {"size": 2}).changed
    place.restart()
    place.server()
    place.ensure("volume_attachment", f"web1:{raw['id']}", {"server": "web1", "volume": raw["id"]})
    with pytest.raises(MagnetarError, match="attached"):
        unmanage(place, raw["id"])
    place.ensure("volume_attachment", f"web1:{raw['id']}", None)
    unmanage(place, raw["id"]), unmanage(place, qcow2["id"])
    names = [f"volume-{raw['id']}.raw", f"volume-{qcow2['id']}.qcow2"]
    assert files(place) == sorted(names) and orphan_volume_files(place.agent.host) == []
    again = manage(place, names[0])
    place.ensure("volume", again["id"], None)
    assert files(place) == names[1:]


def test_logical_volumes_keep_their_names(place: Host) -> None:
    id = str(uuid.uuid4())
    place.fake.make_content("vg", id, GIB + 512)
    assert list_content(place.agent.host, "lvm") == [
        {"name": id, "size": 2, "format": "raw", "volume": None, "reason": None}]
    with pytest.raises(InvalidField, match="existing: must be the volume's uuid"):
        manage(place, id, pool="lvm")
    assert manage(place, id, id, pool="lvm")["size"] == 2
    unmanage(place, id)
    assert place.fake.content("vg", id).size == 2 * GIB
    with pytest.raises(InvalidField, match="whose name is a uuid"):
        manage(place, "root", pool="lvm")


@pytest.mark.parametrize(("name", "want", "why"), [
    ("none.raw", {}, "existing: must be a file in the pool 'fast'"), ("../x", {}, "must be the name of a file"),
    ("old.raw", {"format": "qcow2"}, "format: must be raw"), ("old.raw", {"size": 1}, "size: must be at least 2 GiB"),
    ("link", {}, "no symbolic link"), ("hard", {}, "hard links"),
    ("over.qcow2", {"format": "qcow2"}, "must stand alone"), ("x.luks", {}, "without encryption"),
    ("new.qcow2", {"format": "qcow2", "multiattach": True}, "must be raw"), ("old.raw", {"image": "img"}, "combined"),
], ids=str)
def test_refused(place: Host, name: str, want: dict[str, Any], why: str) -> None:
    folder = place.root / "fast"
    (folder / "link").symlink_to(folder / "old.raw")
    (folder / "target").write_bytes(bytes(512))
    os.link(folder / "target", folder / "hard")
    write_fake_disk(folder / "over.qcow2", DiskSeen("qcow2", GIB, Path("/etc/shadow")))
    before = files(place)
    with pytest.raises(MagnetarError, match=why):
        manage(place, name, **want)
    assert files(place) == before and not place.agent.host.documents.list("volume")


def test_content_of_others(place: Host) -> None:
    """What a domain of another program uses, or a document has, is not taken."""
    volume = place.ensure("volume", "mine", {"size": 1, "pool": "fast", "format": "raw"}).resource
    with pytest.raises(Conflict, match="belongs to a volume"):
        manage(place, volume["id"])
    place.server()
    place.ensure("volume_attachment", "web1:mine", {"server": "web1", "volume": "mine"})
    place.agent.host.documents.remove(place.agent.host.documents.find("volume", "mine"))
    with pytest.raises(MagnetarError, match="uses the content"):
        manage(place, volume["id"], format="raw")
    assert "uses it" in str(list_content(place.agent.host, "fast"))


def test_a_failure_gives_the_content_back(place: Host) -> None:
    place.fake.fail_next("grow_disk", HypervisorError("no"))
    with pytest.raises(HypervisorError):
        manage(place, "old.raw")
    assert files(place) == ["new.qcow2", "old.raw"]


@pytest.mark.slow
@pytest.mark.parametrize("late", [True, False], ids=["after", "before"])
def test_death_at_every_change(tmp_path: Path, late: bool) -> None:
    id = str(uuid.uuid4())
    for life in lives(tmp_path, late, more_than=1, pools={"fast": {"type": "dir", "path": str(tmp_path / "fast")}}):
        host = life.host
        host.root = tmp_path
        if not (tmp_path / "fast").exists():
            fill(tmp_path / "fast")
        life.ends_in(lambda host=host: (manage(host, "old.raw", id), unmanage(host, id)))
        host.root = tmp_path / str(life.number)
        host.restart()
        host.root = tmp_path
        kept = [name for name in files(host) if name != "new.qcow2"]
        assert len(kept) == 1 and (tmp_path / "fast" / kept[0]).open("rb").read(4) == b"kept"
        if host.agent.host.documents.get("volume", id):
            unmanage(host, id)
        [kept] = [name for name in files(host) if name != "new.qcow2"]
        Path(tmp_path / "fast" / kept).rename(tmp_path / "fast/old.raw")
