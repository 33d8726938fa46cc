# SPDX-License-Identifier: GPL-3.0-or-later
"""Images from files and uploads: what is taken in, what is refused, and that nothing half stays."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_agent.images import importing
from magnetar_core.errors import (
    Cancelled,
    Conflict,
    HypervisorError,
    ImageRefused,
    Immutable,
    InUse,
    InvalidField,
    InvalidRequest,
    MagnetarError,
    NoSpace,
    NotFound,
    TooLarge,
)
from tests.support.agent.image import GOOD, OTHER, digest, file, kept, put, receive
from tests.unit.agent.conftest import Host
from tests.unit.core.images import CPIO, iso, kernel, qcow2, sparse_vmdk, vmdk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def test_a_file_is_taken_in(host: Host) -> None:
    want = file(host)
    done = host.ensure("image", "img", want)
    shown = done.resource
    assert done.changed and shown["status"] == "active"
    assert (shown["disk_format"], shown["size"], shown["virtual_size"]) == ("qcow2", len(GOOD), 10 * 2**20)
    assert shown["checksum"] == digest(GOOD)
    path, format = importing.content_by_id(host.agent.host, shown["id"])  # type: ignore[attr-defined]
    assert path.read_bytes() == GOOD and format == "qcow2" and path.stat().st_mode & 0o777 == 0o440
    assert len(kept(host)) == 2
    assert not host.ensure("image", "img", want).changed
    assert not host.ensure("image", "img", want, dry_run=True).changed
    assert not host.ensure("image", "img", {"checksum": digest(GOOD, "sha512")}).changed
    assert host.ensure("image", "img", None).changed and kept(host) == []


def test_a_changed_file_never_passes_in_silence(host: Host) -> None:
    want = file(host)
    host.ensure("image", "img", want)
    put(host, OTHER)
    assert host.ensure("image", "img", {"properties": {"os": "x"}}).changed  # says nothing about the content
    with pytest.raises(Immutable, match="checksum"):
        host.ensure("image", "img", want)
    assert host.ensure("image", "img", want, on_immutable="ignore").warnings
    with pytest.raises(Immutable, match="checksum"):
        host.ensure("image", "img", want)
    made = host.ensure("image", "img", want, on_immutable="recreate").resource
    assert made["checksum"] == digest(OTHER) and made["virtual_size"] == 2**30 and len(kept(host)) == 2
    assert not host.ensure("image", "img", want).changed


def test_a_touched_file_is_the_same(host: Host) -> None:
    want = file(host)
    host.ensure("image", "img", want)
    put(host, GOOD)
    assert not host.ensure("image", "img", want).changed


def test_a_given_checksum_binds(host: Host) -> None:
    with pytest.raises(ImageRefused, match="checksum"):
        host.ensure("image", "img", file(host, checksum=digest(OTHER)))
    assert kept(host) == [] and host.agent.host.documents.list("image") == []
    host.ensure("image", "img", file(host, checksum=digest(GOOD, "sha512")))
    with pytest.raises(ImageRefused, match="Give the checksum of the new content"):
        host.ensure("image", "img", file(host, OTHER))


@pytest.mark.parametrize("bad", [
    qcow2(backing=512, backing_length=11)[:512] + b"/etc/passwd".ljust(262144, b"\0"), qcow2(size=2**62),
    vmdk("/etc/shadow"), b""], ids=["backing", "huge", "vmdk", "empty"])
def test_hostile_content_leaves_nothing(host: Host, bad: bytes) -> None:
    for dry_run in (True, False):
        with pytest.raises(ImageRefused):
            host.ensure("image", "img", file(host, bad), dry_run=dry_run)
    host.ensure("image", "img", {"source": {"upload": True}})
    with pytest.raises(ImageRefused):
        receive(host, bad)
    assert kept(host) == [] and host.agent.host.documents.list("image")[0].state.get("file") is None


@pytest.mark.parametrize("way", ["path", "upload"])
def test_of_a_vmdk_a_qcow2_is_made(host: Host, way: str) -> None:
    """It is known by what came: its format and digests."""
    data = sparse_vmdk(capacity=2**21)
    want = {"disk_format": "vmdk", "checksum": digest(data), **(
        {"source": {"path": put(host, data)}} if way == "path" else {"source": {"upload": True}})}
    host.ensure("image", "img", want)
    if way == "upload":
        assert receive(host, data).changed and not receive(host, data).changed
    shown = host.ensure("image", "img", want).resource
    assert (shown["status"], shown["disk_format"], shown["virtual_size"]) == ("active", "vmdk", 2**30)
    assert not host.ensure("image", "img", want).changed
    folder, name = kept(host)
    file = host.root / "state/images" / name
    assert name == f"{folder}/{digest(data)[7:]}" and file.read_bytes()[:4] == b"QFI\xfb"
    assert shown["size"] == file.stat().st_size and file.stat().st_mode & 0o777 == 0o440
    host.server(image="img", flavor={"vcpus": 1, "ram": 64, "disk": 1})
    overlay = host.fake.disk(host.root / "state/servers" / host.show()["id"] / "disk")
    assert overlay is not None and overlay.virtual_size == 2**30


@pytest.mark.parametrize("way", ["path", "upload"])
def test_a_conversion_that_fails_leaves_nothing(host: Host, way: str) -> None:
    data = sparse_vmdk()
    host.fake.fail_next("copy_disk", HypervisorError("qemu-img could not convert it."))
    with pytest.raises(HypervisorError):
        if way == "path":
            host.ensure("image", "img", file(host, data))
        else:
            host.ensure("image", "img", {"source": {"upload": True}})
            receive(host, data)
    assert kept(host) == []
    if way == "upload":
        assert receive(host, data).resource["status"] == "active"


def test_a_small_vmdk_does_not_fill_the_host(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its grains may be compressed, or one of them be everywhere. The conversion ends while it goes on."""
    most, reached = host.agent.host.settings.image_max_bytes, []

    def grows(_source: Path, _from: str, path: Path, _to: str, progress: Callable[[int, int], None]) -> None:
        with path.with_name(path.name + ".part").open("wb") as file:
            for done in range(3):
                file.truncate(most * done)
                reached.append(done)
                progress(done, 3)

    monkeypatch.setattr(host.fake, "copy_disk", grows)
    with pytest.raises(TooLarge, match="image_max_bytes"):
        host.ensure("image", "img", file(host, sparse_vmdk()))
    assert reached == [0, 1, 2] and kept(host) == []


def test_files_elsewhere_are_refused(host: Host, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret"
    outside.write_bytes(GOOD)
    (host.root / "link").symlink_to(outside)
    os.mkfifo(host.root / "fifo")
    for path in (outside, host.root / "link", host.root / "fifo", host.root / "none", host.root, Path("relative"),
                 host.root / ".." / outside.parent.name / "secret"):
        with pytest.raises(InvalidField, match="source.path"):
            host.ensure("image", "img", {"source": {"path": str(path)}})
    assert host.agent.host.documents.list("image") == []


def test_what_is_missing_is_named(host: Host) -> None:
    for want, field in (({}, "source"), ({"source": {"url": "http://127.0.0.1:1/x"}}, "checksum"),
                        ({"source": {"url": "http://u:p@127.0.0.1/x"}, "checksum": digest(b"")}, "user name"),
                        ({"source": {"upload": False}}, "source.upload"),
                        (file(host, disk_format="raw"), "disk_format says raw, and the content is qcow2"),
                        (file(host, kernel="none"), "kernel"),
                        (file(host, cmdline="x", disk_format="qcow2"), "cmdline")):
        with pytest.raises(MagnetarError, match=field):
            host.ensure("image", "img", want)
    assert host.agent.host.documents.list("image") == [] and kept(host) == []


def test_other_content_that_is_ignored_is_no_change(host: Host) -> None:
    first, second = ({"source": {"upload": True}, "checksum": digest(data)} for data in (GOOD, OTHER))
    host.ensure("image", "img", first)
    receive(host, GOOD)
    for dry_run in (True, False):
        ignored = host.ensure("image", "img", second, dry_run=dry_run, on_immutable="ignore")
        assert ignored.warnings and (ignored.changed, ignored.steps, ignored.diff) == (False, [], [])
    assert not host.ensure("image", "img", first).changed
    assert "source" not in host.agent.host.documents.find("image", "img").want


def test_an_image_is_made_anew_with_its_source(host: Host) -> None:
    """Also where the content stays, and where the new one has another format."""
    host.ensure("image", "vmlinuz", {"source": {"path": put(host, kernel(), "k")}})
    want = file(host)
    host.ensure("image", "img", want)
    made = host.ensure("image", "img", {**want, "kernel": "vmlinuz"}, on_immutable="recreate").resource
    assert (made["status"], made["checksum"]) == ("active", digest(GOOD)) and made["kernel"]
    raw = {"source": {"path": put(host, b"raw".ljust(4096), "raw")}, "checksum": digest(b"raw".ljust(4096))}
    made = host.ensure("image", "img", raw, on_immutable="recreate").resource
    assert (made["status"], made["disk_format"], made["checksum"]) == ("active", "raw", raw["checksum"])
    assert not host.ensure("image", "img", raw).changed


@pytest.mark.parametrize(("data", "more", "why"), [
    (vmdk("/etc/shadow"), {"checksum": digest(vmdk("/etc/shadow"))}, "VMDK"),
    (OTHER, {"checksum": digest(b"other")}, "checksum: the content has"),
    (OTHER, {"checksum": digest(OTHER), "disk_format": "raw"}, "the content is qcow2"),
], ids=["format", "checksum", "claim"])
def test_a_file_that_cannot_be_taken_in_leaves_what_is_there(host: Host, data: bytes, more: Any, why: str) -> None:
    host.ensure("image", "img", file(host))
    for dry_run in (True, False):
        with pytest.raises(MagnetarError, match=why):
            host.ensure("image", "img", file(host, data, **more), dry_run=dry_run, on_immutable="recreate")
    shown = host.ensure("image", "img", {}).resource
    assert (shown["status"], shown["checksum"]) == ("active", digest(GOOD)) and len(kept(host)) == 2


def test_an_upload_is_taken_in_and_may_be_repeated(host: Host) -> None:
    assert host.ensure("image", "img", {"source": {"upload": True}}).resource["status"] == "queued"
    assert not host.ensure("image", "img", {"source": {"upload": True}}).changed
    done = receive(host, GOOD)
    assert done.changed and done.resource["status"] == "active" and done.resource["checksum"] == digest(GOOD)
    assert not receive(host, GOOD).changed
    with pytest.raises(Immutable, match="other content"):
        receive(host, OTHER)
    assert not host.ensure("image", "img", {"source": {"upload": True}}).changed
    with pytest.raises(NotFound):
        receive(host, GOOD, key="none")
    host.ensure("image", "file", file(host))
    assert len(kept(host)) == 4


def test_a_broken_upload_leaves_the_image_queued(host: Host) -> None:
    def breaks() -> Iterator[bytes]:
        yield GOOD[:100000]
        raise Cancelled

    host.ensure("image", "img", {"source": {"upload": True}, "checksum": digest(GOOD)})
    for error, arguments in ((ImageRefused, {"data": OTHER}), (Cancelled, {"data": GOOD, "pieces": breaks()}),
                             (InvalidRequest, {"data": GOOD[:1000], "length": 2000}),
                             (InvalidRequest, {"data": GOOD, "length": 2000})):
        with pytest.raises(error):
            receive(host, **arguments)
        assert kept(host) == []
    assert receive(host, GOOD).resource["status"] == "active"


def test_an_image_without_content_takes_another_file(host: Host) -> None:
    """An upload that broke off says nothing about the next one."""
    want = {"source": {"upload": True}, "checksum": digest(GOOD), "disk_format": "qcow2"}
    host.ensure("image", "img", want)
    other = {"source": {"upload": True}, "checksum": digest(OTHER)}
    for dry_run in (True, False):
        changed = host.ensure("image", "img", other, dry_run=dry_run)
        assert changed.changed and changed.resource["status"] == "queued"
        assert (changed.resource["checksum"], changed.resource["disk_format"]) == (digest(OTHER), None)
    assert receive(host, OTHER).resource["status"] == "active"
    with pytest.raises(Immutable, match="checksum cannot change"):
        host.ensure("image", "img", {"checksum": digest(GOOD)})


def test_an_upload_that_there_is_no_room_for_is_refused_before(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    from magnetar_agent.images import store

    limit = host.agent.host.settings.image_max_bytes
    for dry_run in (True, False):
        with pytest.raises(TooLarge, match="longer than"):
            host.ensure("image", "img", {"source": {"upload": True, "size": 2**61}}, dry_run=dry_run)
        with monkeypatch.context() as patch, pytest.raises(NoSpace, match="needs up to 6 bytes, and 5 are free"):
            patch.setattr(store.shutil, "disk_usage", lambda _path: SimpleNamespace(free=5))
            host.ensure("image", "img", {"source": {"upload": True, "size": 6}}, dry_run=dry_run)
    assert host.ensure("image", "img", {"source": {"upload": True, "size": 5}}).changed
    receive(host, GOOD)
    for dry_run in (True, False):
        with pytest.raises(TooLarge):
            host.ensure("image", "img", {"source": {"upload": True, "size": limit + 1}, "checksum": digest(OTHER)},
                        dry_run=dry_run, on_immutable="recreate")
    assert host.ensure("image", "img", {"source": {"upload": True, "size": 2**61}}).changed is False, "none is needed"


def test_an_image_removed_during_its_upload_stays_removed(host: Host) -> None:
    def pieces() -> Iterator[bytes]:
        yield GOOD[:100000]
        host.ensure("image", "img", None)
        yield GOOD[100000:]

    host.ensure("image", "img", {"source": {"upload": True}})
    with pytest.raises(Conflict, match="removed during the upload"):
        receive(host, GOOD, pieces=pieces())
    assert kept(host) == []


def test_a_full_disk_leaves_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    from magnetar_agent.images import store

    real, left = os.write, [100000]

    def write(descriptor: int, data: Any) -> int:
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    noise = os.urandom(512 * 1024)
    host.ensure("image", "img", {"source": {"upload": True}})
    with monkeypatch.context() as patch:
        patch.setattr(store.os, "write", write)
        with pytest.raises(NoSpace, match="nothing of it was kept"):
            receive(host, noise)
        left[0] = 100000
        with pytest.raises(NoSpace):
            host.ensure("image", "other", file(host, noise))
    assert kept(host) == [] and [d.name for d in host.agent.host.documents.list("image")] == ["img"]
    with pytest.raises(NoSpace, match="are free"):
        receive(host, noise, length=2**60)
    assert receive(host, noise).resource["disk_format"] == "raw"


def test_content_is_limited(host: Host) -> None:
    object.__setattr__(host.agent.host.settings, "image_max_bytes", 2**20)
    host.ensure("image", "img", {"source": {"upload": True}})
    with pytest.raises(TooLarge, match="image_max_bytes"):
        receive(host, bytes(2**20 + 512))
    with pytest.raises(TooLarge, match="image_max_bytes"):
        host.ensure("image", "big", file(host, bytes(2**20 + 512)))


def test_zeros_are_not_written(host: Host) -> None:
    host.ensure("image", "img", file(host, bytes(8 * 2**20) + b"x" * 512))
    path = next((host.root / "state" / "images").glob("*/*"))
    assert path.stat().st_blocks * 512 < 2**20 and path.stat().st_size == 8 * 2**20 + 512


def test_kernels_are_held_by_images_that_boot_with_them(host: Host) -> None:
    host.ensure("image", "vmlinuz", {"source": {"path": put(host, kernel(), "k")}})
    host.ensure("image", "initrd", {"source": {"path": put(host, CPIO, "r")}})
    host.ensure("image", "cd", {"source": {"path": put(host, iso(), "i")}})
    with pytest.raises(InvalidField, match="format aki"):
        host.ensure("image", "img", file(host, kernel="initrd"))
    with pytest.raises(InvalidField, match="disks only"):
        host.ensure("image", "img", {"source": {"path": put(host, iso(), "i")}, "kernel": "vmlinuz"})
    want = file(host, kernel="vmlinuz", ramdisk="initrd", cmdline="quiet")
    assert host.ensure("image", "img", want).changed
    assert not host.ensure("image", "img", want).changed
    with pytest.raises(InUse, match="img"):
        host.ensure("image", "vmlinuz", None)
    host.ensure("image", "img", None)
    assert host.ensure("image", "vmlinuz", None).changed


def test_a_lost_file_is_taken_in_again(host: Host) -> None:
    host.ensure("image", "img", file(host))
    next((host.root / "state" / "images").glob("*/*")).unlink()
    assert host.ensure("image", "img", {}).changed
    assert not host.ensure("image", "img", {}).changed and len(kept(host)) == 2
