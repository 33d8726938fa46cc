# SPDX-License-Identifier: GPL-3.0-or-later
"""Exports of servers on a fake host: what is written, what is refused, repeats, failures and killed agents."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.reconcile import reconcile
from magnetar_agent.servers.exporting import export_writing
from magnetar_core.errors import Cancelled, Conflict, HypervisorError, Immutable, InvalidField, NoSpace
from magnetar_core.kinds import ServerExport
from magnetar_core.operations import Operation
from tests.support.agent.crash import lives
from tests.support.agent.resize import image
from tests.unit.agent.conftest import SMALL, Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host with a stopped server web1, which has a volume."""
    found = Host(tmp_path, export_paths=(tmp_path / "exports",))
    found.start()
    image(found, "system")
    found.ensure("network", "lan", {"cidr": "192.168.90.0/24"})
    found.server(image="system", flavor={**SMALL, "disk": 1}, networks=[{"network": "lan"}], config_drive=True)
    found.ensure("volume", "data", {"size": 1, "format": "raw"})
    found.ensure("volume_attachment", "web1:data", {"server": "web1", "volume": "data"})
    found.server(power="off")
    yield found
    found.agent.close()


def export(host: Host, name: str = "gone", dry_run: bool = False, **want: Any) -> dict[str, Any]:
    made = host.ensure("server_export", name, {"server": "web1", **want}, dry_run).resource
    assert made is not None
    return made


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_an_export_has_all_that_runs_elsewhere(host: Host) -> None:
    made, folder = export(host), host.root / "exports/gone"
    assert (made["status"], made["folder"], made["server_name"]) == ("available", str(folder), "web1")
    assert names(folder) == {"vda.qcow2", "vdb.qcow2", "sdo.iso", "domain.xml", "README.txt", "manifest.json",
                             "SHA256SUMS"}
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names(folder) - {
        "SHA256SUMS"}} == {file["name"]: file["sha256"] for file in made["files"]}
    root = ET.fromstring((folder / "domain.xml").read_text())
    assert root.findtext("name") == "web1" and root.findtext("uuid") == host.show()["id"]
    assert root.find("metadata") is None and "magnetar" not in (folder / "domain.xml").read_text().replace(
        str(folder), "")
    assert [(disk.get("type"), one.get("file")) for disk in root.iter("disk") if (one := disk.find("source")) is not
            None] == [("file", str(folder / name)) for name in ("vda.qcow2", "vdb.qcow2", "sdo.iso")]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["networks"] == ["network lan"] and manifest["server"]["name"] == "web1"
    assert "virsh define domain.xml && virsh start 'web1'" in (folder / "README.txt").read_text()
    assert {path.stat().st_mode & 0o077 for path in (folder, folder / "domain.xml")} == {0}


def test_a_repeated_export_changes_nothing(host: Host) -> None:
    first, folder = export(host), host.root / "exports/gone"
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = host.ensure("server_export", "gone", {"server": "web1"})
    assert again.resource == first and not again.steps
    host.server(power="running")
    assert not host.ensure("server_export", "gone", {"server": first["server"], "folder": str(folder)}).steps
    host.ensure("server", "web1", None)
    assert not host.ensure("server_export", "gone", {"server": "web1"}).steps
    assert times == {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(Immutable, match="folder"):
        export(host, folder=str(host.root / "exports/other"))


def test_another_export_under_the_same_name_is_written_if_allowed(host: Host) -> None:
    export(host)
    folder, other = host.root / "exports/gone", host.root / "exports/other"
    host.server("web2", image="system", flavor={**SMALL, "disk": 1})
    with pytest.raises(Immutable, match="server"):
        export(host, server="web2")
    with pytest.raises(Conflict, match="'web2' is running"):
        host.ensure("server_export", "gone", {"server": "web2"}, on_immutable="recreate")
    assert (folder / "SHA256SUMS").exists()
    host.server(power="off")
    moved = host.ensure("server_export", "gone", {"folder": str(other)}, on_immutable="recreate").resource
    assert moved is not None and moved["status"] == "available" and names(other) and not folder.exists()
    host.server("web2", power="off")
    changed = host.ensure("server_export", "gone", {"server": "web2"}, on_immutable="recreate").resource
    assert changed is not None and changed["server_name"] == "web2" and "vdb.qcow2" not in names(other)


def test_check_mode_writes_nothing(host: Host) -> None:
    predicted = host.ensure("server_export", "gone", {"server": "web1"}, dry_run=True)
    assert [step.verb for step in predicted.steps] == ["record", "write"]
    assert names(host.root / "exports") == set()


def test_removal_leaves_what_others_wrote(host: Host) -> None:
    export(host)
    folder = host.root / "exports/gone"
    (folder / "mine").write_text("x")
    assert host.ensure("server_export", "gone", None).steps
    assert names(folder) == {"mine"}
    export(host, "second", folder=str(host.root / "exports/deep/er"))
    host.ensure("server_export", "second", None)
    assert not (host.root / "exports/deep/er").exists()


def test_moved_files_are_reported_and_written_again(host: Host) -> None:
    export(host)
    folder = host.root / "exports/gone"
    shutil.move(folder, host.root / "elsewhere")
    assert reconcile.show_resource(host.agent.drivers, ServerExport, "gone")["status"] == "missing"
    assert [step.verb for step in host.ensure("server_export", "gone", {"server": "web1"}).steps] == ["write"]
    assert (folder / "SHA256SUMS").exists()


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(("power", "why"), [("running", "is running.*Stop it"), ("paused", "is paused.*Stop it"),
                                            ("suspended", "is suspended.*Start it, stop it")])
def test_a_server_that_is_not_stopped_is_refused(host: Host, power: str, why: str, dry_run: bool) -> None:
    host.server(power="running")
    host.server(power=power)
    with pytest.raises(Conflict, match=why):
        export(host, dry_run=dry_run)
    assert names(host.root / "exports") == set()


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_full_disk_is_refused_before_anything_is_written(host: Host, monkeypatch: pytest.MonkeyPatch,
                                                           dry_run: bool) -> None:
    usage = shutil.disk_usage(host.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    with pytest.raises(NoSpace, match="needs up to [0-9]+ bytes, and 1000 are free"):
        export(host, dry_run=dry_run)
    assert names(host.root / "exports") == set()


@pytest.mark.parametrize("folder", ["/etc/exported", "relative", "{root}/exports", "{root}/exports/../state",
                                    "{root}/exports/link/x", "{root}/exports/new\nline"])
def test_other_folders_are_refused(host: Host, folder: str) -> None:
    (host.root / "exports").mkdir()
    (host.root / "exports/link").symlink_to(host.root)
    with pytest.raises(InvalidField, match="folder"):
        export(host, folder=folder.replace("{root}", str(host.root)))


def test_a_folder_with_content_is_refused(host: Host) -> None:
    (host.root / "exports/gone").mkdir(parents=True)
    (host.root / "exports/gone/mine").write_text("x")
    with pytest.raises(Conflict, match="not empty: it has 'mine'"):
        export(host)
    assert names(host.root / "exports/gone") == {"mine"}
    (host.root / "exports/file").write_text("x")
    with pytest.raises(Conflict, match="cannot be used for an export"):
        export(host, folder=str(host.root / "exports/file"))


def test_an_encrypted_disk_is_refused(host: Host) -> None:
    host.server("safe", image="system", flavor={**SMALL, "disk": 1}, hardware={"ephemeral_encryption": True},
                power="off")
    with pytest.raises(Conflict, match="The disk vda of server 'safe' is encrypted"):
        export(host, server="safe")
    with pytest.raises(InvalidField, match="server: must name a server of this host"):
        export(host, server="nobody")


@pytest.mark.parametrize("error", [NoSpace("Full."), HypervisorError("Broken."), OSError(28, "No space left")])
def test_a_failure_leaves_nothing(host: Host, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    copy, count = host.fake.copy_disk, []

    def fails(*args: Any, **more: Any) -> None:
        count.append(1)
        if len(count) == 2:
            raise error
        copy(*args, **more)

    monkeypatch.setattr(host.fake, "copy_disk", fails)
    with pytest.raises(NoSpace if isinstance(error, OSError) else type(error)):
        export(host)
    assert names(host.root / "exports") == set()
    assert host.agent.host.documents.find("server_export", "gone") is None
    assert export(host)["status"] == "available"


def test_a_cancelled_export_leaves_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Operation.advance

    def cancelled(self: Operation, done: int, total: int | None = None, unit: str = "bytes",
                  phase: str | None = None) -> None:
        if phase == "copy disk vdb":
            self.cancel()
        advance(self, done, total, unit, phase)

    monkeypatch.setattr(Operation, "advance", cancelled)
    with pytest.raises(Cancelled):
        export(host)
    assert names(host.root / "exports") == set()


@pytest.mark.parametrize("late", [False, True])
def test_a_killed_agent_leaves_an_export_that_is_completed_or_removed(tmp_path: Path, late: bool) -> None:
    more = ((export_writing, ("write_atomically", "sync_folder", "remove_export_files", "prepare_export_folder")),)
    for life in lives(tmp_path, late, more=more, export_paths=(tmp_path / "exports",)):
        host, folder = life.host, tmp_path / "exports" / str(life.number)
        host.server(flavor={**SMALL, "disk": 1}, power="off")
        life.ends_in(export, host, folder=str(folder))
        host.restart()
        if life.number % 2:
            host.ensure("server_export", "gone", None)
            assert not folder.exists()
        else:
            assert export(host, folder=str(folder))["status"] == "available"
            assert len(names(folder)) == 6
