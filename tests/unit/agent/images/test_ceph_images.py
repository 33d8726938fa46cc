# SPDX-License-Identifier: GPL-3.0-or-later
"""Content of images straight out of Ceph: where it is taken from, and what becomes of an image when that fails."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.host.storage import CephImage
from magnetar_agent.settings import AgentSettings
from magnetar_agent.virt.disks import rbd_export
from magnetar_core.errors import HypervisorError, InvalidField, InvalidSettings
from magnetar_core.operations import Operation
from tests.support.agent.crash import lives
from tests.unit.agent.conftest import Host

FSID, ID = "6f1c7e1a-31d3-4d0b-8a55-3b7a1b1f6d10", "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"
OTHER = "cd9f6d46-4a3a-43ab-a466-994af9db96fc"
LOCATION = f"rbd://{FSID}/images/{ID}/snap"
CONTENT = b"a disk".ljust(3 * 2**20, b".")
SETTINGS = {"enable_rbd_download": True, "rbd_user": "glance", "rbd_pool": "images"}


def checksum(content: bytes = CONTENT) -> str:
    return f"sha512:{hashlib.sha512(content).hexdigest()}"


def cluster(host: Host, content: bytes = CONTENT, pool: str = "images", id: str = ID) -> None:
    path = host.root / f"libvirt/ceph/{FSID}/{pool}/{id}@snap"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path, **SETTINGS)
    found.start()
    cluster(found)
    yield found
    found.agent.close()


def ask(host: Host, location: str = LOCATION, **more: Any) -> dict[str, Any]:
    """What a conductor asks; the image as it is then."""
    want = {"id": ID, "name": ID, "source": {"upload": True, "location": location}, "checksum": checksum(), **more}
    return host.ensure("image", ID, {name: value for name, value in want.items()
                                     if value}).resource  # type: ignore[return-value]


def kept(host: Host) -> str:
    return (host.root / f"state/documents/image/{ID}.json").read_text()


def test_it_comes_at_once_and_the_place_is_not_kept(host: Host) -> None:
    first = host.ensure("image", ID, {"id": ID, "name": ID, "source": {"upload": True}, "checksum": checksum()})
    assert first.resource["status"] == "queued"  # type: ignore[index]
    shown = ask(host)
    assert (shown["status"], shown["size"], shown["disk_format"]) == ("active", len(CONTENT), "raw")
    assert "rbd://" not in json.dumps(shown) + kept(host)
    [content] = (host.root / "state/images" / ID).iterdir()
    assert content.read_bytes() == CONTENT and content.name == hashlib.sha256(CONTENT).hexdigest()
    again = host.ensure("image", ID, {"source": {"upload": True, "location": LOCATION}, "checksum": checksum()})
    assert again.steps == []
    assert host.server(image=ID).resource["status"] == "ACTIVE"  # type: ignore[index]


@pytest.mark.parametrize(("location", "why"), [
    (f"rbd://{OTHER}/images/{ID}/snap", "No such file"), (f"rbd://{FSID}/images/{ID}/other", "No such file"),
    (f"rbd://{FSID}/vms/{ID}/snap", "in the pool 'images'"), (f"rbd://{FSID}/images/{OTHER}/snap", "own uuid"),
    (f"rbd://{FSID}/images/--help/snap", "must be rbd"), (f"rbd://{FSID}/images/{ID}/-", "must be rbd"),
    (f"rbd://{FSID}/images/{ID}", "must be rbd"), (f"rbd://{FSID}/../{ID}/snap", "must be rbd"),
    (f"rbd://{FSID}/images/{ID}/snap/more", "must be rbd"), (f"rbd://{FSID}/images/{ID}%2F/snap", "must be rbd"),
    (f"rbd://{FSID}/images/{ID}/sn@ap", "must be rbd"), (f"rbd://u@{FSID}/images/{ID}/snap", "must be rbd"),
    (ID, ""), (f"file:///{FSID}/images/{ID}/snap", ""), (f"rbd://{FSID}/images/{ID}/snap\n", "")])
def test_other_places_are_not_read(host: Host, caplog: pytest.LogCaptureFixture, location: str, why: str) -> None:
    """It comes by HTTP then."""
    for pool, id in (("vms", ID), ("images", OTHER)):
        cluster(host, pool=pool, id=id)
    if not why:
        with pytest.raises(InvalidField, match="rbd://"):
            ask(host, location)
        return
    assert ask(host, location)["status"] == "queued" and why in caplog.text
    assert "comes by HTTP, not out of Ceph" in caplog.text and "rbd://" not in kept(host)
    done = host.agent.images.receive(host.agent.host, ID, [CONTENT], len(CONTENT), Operation("test"))
    assert done.resource["status"] == "active"  # type: ignore[index]


def test_other_content_is_not_taken(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    cluster(host, b"something else")
    assert ask(host)["status"] == "queued" and "checksum: the content has sha512:" in caplog.text
    assert not list((host.root / "state").rglob("*.part"))


@pytest.mark.parametrize("settings", [{}, SETTINGS])
def test_hosts_that_do_not_read_there_and_images_without_a_checksum_wait(tmp_path: Path,
                                                                         settings: dict[str, Any]) -> None:
    host = Host(tmp_path, **settings)
    host.start()
    cluster(host)
    assert ask(host, checksum="" if settings else checksum())["status"] == "queued"
    assert "rbd://" not in kept(host)
    host.agent.close()


@pytest.mark.parametrize("wrong", [
    {"rbd_user": None}, {"rbd_pool": None}, {"rbd_user": "-n"}, {"rbd_pool": "a/b"}, {"rbd_ceph_conf": "ceph.conf"},
    {"rbd_connect_timeout": 0}])
def test_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match="rbd_"):
        AgentSettings(**{**SETTINGS, **wrong})


@pytest.mark.parametrize("late", [True, False])
def test_death_at_every_change(tmp_path: Path, late: bool) -> None:
    for life in lives(tmp_path, late, most=20, **SETTINGS):
        host = life.host
        cluster(host)
        life.ends_in(ask, host)
        host.restart()
        assert ask(host)["status"] == "active" and "rbd://" not in kept(host)
        [content] = (host.root / "state/images" / ID).iterdir()
        assert content.read_bytes() == CONTENT


# Ceph's tools -------------------------------------------------------------------------------------------------------
TOOL = """#!/bin/sh
echo "$(id -u) $(basename $0) $*" >>{log}
while [ $# -gt 0 ]; do
    case $1 in --conf|--keyring) cat "$2" >>{log} || exit 9; shift;; fsid|info|export) word=$1;; esac
    shift
done
case $word in
    fsid) echo {fsid};;
    info) {info};;
    export) {export};;
esac
"""


class Tools:
    """Ceph's tools, in a folder of their own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.log = folder, folder / "log"
        (folder / "ceph.conf").write_text("[global]\n")
        (folder / "ceph.client.glance.keyring").write_text("[client.glance]\n")
        for name in ("ceph.conf", "ceph.client.glance.keyring"):
            (folder / name).chmod(0o600)
        self.log.touch()
        self.log.chmod(0o666)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        self.say("head -c 100000 /dev/zero")
        self.image = CephImage(folder / "ceph.conf", "glance", 5, FSID, "images", ID, "snap")

    def say(self, export: str, fsid: str = FSID, info: str = """echo '{"size": 100000}'""") -> None:
        for name in ("ceph", "rbd"):
            (self.folder / name).write_text(TOOL.format(log=self.log, export=export, fsid=fsid, info=info))
            (self.folder / name).chmod(0o755)

    def read(self, user: tuple[int, int] | None = None) -> bytes:
        with rbd_export.exported_image(self.image, user) as (size, pieces):
            assert size == 100000
            return b"".join(pieces)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tools]:
    with tempfile.TemporaryDirectory(prefix="ceph") as folder:  # where other users come to, too
        Path(folder).chmod(0o755)
        yield Tools(Path(folder), monkeypatch)


def test_what_the_tools_are_asked(tools: Tools) -> None:
    assert tools.read() == bytes(100000)
    lines = tools.log.read_text().splitlines()
    assert lines.count("[global]") == lines.count("[client.glance]") == 3
    asked = [line.partition(" ")[2] for line in lines if " --id glance --conf /dev/fd/" in line]
    assert [one.split()[0] for one in asked] == ["ceph", "rbd", "rbd"]
    assert asked[0].endswith("--connect-timeout 5 fsid")
    assert asked[2].endswith(f"--client-mount-timeout 5 export --no-progress --pool images --image {ID} --snap snap "
                             "--path -")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_they_run_as_another_user_who_cannot_read_the_key(tools: Tools) -> None:
    assert tools.read((65534, 65534)) == bytes(100000)
    text = tools.log.read_text()
    assert "65534 rbd" in text and "0 rbd" not in text and text.count("[client.glance]") == 3


@pytest.mark.parametrize(("export", "fsid", "said"), [
    ("head -c 5000 /dev/zero; echo rbd: error >&2; exit 2", FSID, "rbd could not read the image .* error"),
    ("sleep 30", FSID, "nothing came for 1 s"), ("true", OTHER, f"leads to {OTHER}"),
    ("while :; do echo rbd: hunting >&2; sleep 0.1; done", FSID, "nothing came for 1 s"),
    ("exec >&- 2>&-; sleep 30", FSID, "did not end"),
    ("head -c 3000000 /dev/zero >&2; exit 1", FSID, "rbd could not read")])
def test_what_goes_wrong(tools: Tools, monkeypatch: pytest.MonkeyPatch, export: str, fsid: str, said: str) -> None:
    tools.say(export, fsid)
    if "sleep" in export:
        monkeypatch.setattr(rbd_export, "SILENCE", 1.0)
    if "exec" in export:
        monkeypatch.setattr(subprocess.Popen, "wait", partialmethod(_soon, subprocess.Popen.wait))
    with pytest.raises(HypervisorError, match=said):
        tools.read()


def _soon(process: Any, wait: Any, timeout: float | None = None) -> int:
    return int(wait(process, timeout and 0.2))


@pytest.mark.parametrize("info", ["echo", "echo []", "echo '{}'", """echo '{"size": null}'""",
                                  """echo '{"size": "x"}'"""])
def test_an_image_of_no_size(tools: Tools, info: str) -> None:
    tools.say("true", info=info)
    with pytest.raises(HypervisorError, match="does not say its size"):
        tools.read()


def test_a_key_that_is_not_there(tools: Tools) -> None:
    (tools.folder / "ceph.client.glance.keyring").unlink()
    with pytest.raises(HypervisorError, match=r"keyring cannot be read.*rbd_user"):
        tools.read()
    assert not tools.log.read_text()


def test_who_stops_reading_ends_the_tool(tools: Tools) -> None:
    tools.say("while :; do head -c 100000 /dev/zero; done")
    with rbd_export.exported_image(tools.image, None) as (_size, pieces):
        assert next(pieces)
