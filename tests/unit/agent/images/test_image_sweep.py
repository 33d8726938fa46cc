# SPDX-License-Identifier: GPL-3.0-or-later
"""Content of images that nobody has is swept away, and nothing else is, whatever comes or goes meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_agent.host import inventory
from magnetar_agent.host.file_modes import make_state_folder
from tests.support.agent.image import GOOD, OTHER, file, kept, receive
from tests.unit.agent.conftest import Host

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_killed_upload_is_swept_and_repeated(host: Host) -> None:
    made = host.ensure("image", "img", {"source": {"upload": True}}).resource
    folder = host.root / "state" / "images" / made["id"]
    make_state_folder(folder, 0o700)
    (folder / "left.part").write_bytes(GOOD[:5000])  # its writer is dead: nobody locks it
    (folder / ("0" * 64)).write_bytes(GOOD)  # in place, but killed before the document knew it
    host.agent.drivers.by_noun["image"].sweep(host.agent.host)
    assert kept(host) == []
    receive(host, GOOD)
    host.agent.drivers.by_noun["image"].sweep(host.agent.host)
    assert len(kept(host)) == 2


def test_a_sweep_leaves_running_uploads_alone(host: Host) -> None:
    def pieces() -> Iterator[bytes]:
        yield GOOD[:100000]
        host.agent.drivers.by_noun["image"].sweep(host.agent.host)
        yield GOOD[100000:]

    host.ensure("image", "img", {"source": {"upload": True}})
    assert receive(host, GOOD, pieces=pieces()).resource["status"] == "active"


def test_content_that_comes_while_somebody_sweeps_stays(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.ensure("image", "first", file(host))
    real, making = host.agent.host.documents.list, []

    def listed(kind: str) -> Any:
        found = real(kind)
        if threading.current_thread().name == "sweeper" and not making:
            making.append(threading.Thread(target=host.ensure, args=("image", "second", file(host, OTHER))))
            making[0].start()
            making[0].join(0.5)  # it ends here only where a sweep lets it
        return found

    monkeypatch.setattr(host.agent.host.documents, "list", listed)
    sweep = host.agent.drivers.by_noun["image"].sweep
    sweeper = threading.Thread(target=sweep, args=(host.agent.host,), name="sweeper")
    sweeper.start()
    sweeper.join()
    making[0].join()
    assert len(kept(host)) == 4 and host.ensure("image", "second", {}).resource["status"] == "active"


def test_a_disk_that_becomes_an_image_is_never_without_its_writer(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.server(flavor={"vcpus": 1, "ram": 64, "disk": 1}, power="off")
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        found = real(self, target)
        if Path(target).suffix == ".part" and "images" in Path(target).parts:
            host.agent.drivers.by_noun["image"].sweep(host.agent.host)
        return found

    monkeypatch.setattr(Path, "rename", rename)
    host.event("create_image", "r1", name="golden")
    assert host.ensure("image", "golden", {}).resource["status"] == "active" and len(kept(host)) == 2


def test_a_part_that_is_swept_before_it_is_locked_is_made_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    from magnetar_agent.images import store

    real, swept = store.fcntl.flock, []

    def flock(descriptor: int, how: int) -> None:
        if how == store.fcntl.LOCK_EX and not swept:
            swept.append(descriptor)
            host.agent.drivers.by_noun["image"].sweep(host.agent.host)
        real(descriptor, how)

    monkeypatch.setattr(store.fcntl, "flock", flock)
    assert host.ensure("image", "img", file(host)).resource["status"] == "active"
    assert swept and len(kept(host)) == 2


def test_a_reader_removes_nothing(host: Host) -> None:
    folder = host.root / "state" / "images" / "left"
    make_state_folder(folder, 0o700)
    (folder / ("0" * 64)).write_bytes(GOOD)
    (folder / ("0" * 64)).chmod(0o440)
    assert inventory.host_resource(host.agent.drivers)["orphans"] == {"domains": [], "files": []}
    assert len(kept(host)) == 2


def test_a_folder_that_goes_during_a_sweep_is_fine(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = host.root / "state" / "images" / "gone"
    make_state_folder(gone, 0o700)
    real = Path.iterdir

    def iterdir(self: Path) -> Iterator[Path]:
        if self == gone:
            gone.rmdir()
        return real(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    host.agent.drivers.by_noun["image"].sweep(host.agent.host)
    assert kept(host) == []
