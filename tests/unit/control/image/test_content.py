# SPDX-License-Identifier: GPL-3.0-or-later
"""Content: taken in whole or not at all, whatever it is and whenever something dies."""

import errno
import hashlib
import os
import shutil
import subprocess

import pytest

from magnetar_control.services.image import EmbeddedImages, content
from magnetar_core.errors import InvalidRequest, MagnetarError
from tests.unit.core.images import CPIO, iso, kernel, qcow2, sparse_vmdk, vmdk

from .glance import MIB, OCTETS, RAW, Glance, pieces

#: By what is refused: some of tests/cases/image_format.yml, and what differs from the claim.
HOSTILE = {
    "backing file": ("qcow2", qcow2(backing=200)), "dirty": ("qcow2", qcow2(features=1)), "empty": ("raw", b""),
    "vmdk": ("raw", vmdk("/etc/shadow")), "huge": ("qcow2", qcow2(size=2**60)), "claimed raw": ("raw", qcow2()),
    "claimed qcow2": ("qcow2", RAW), "claimed aki": ("aki", RAW), "claimed ari": ("ari", kernel())}


@pytest.mark.parametrize("claimed, data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_content_is_refused_and_leaves_nothing(small, claimed, data):
    id = small.make("ann", disk_format=claimed)
    assert small.put(small.ann, id, data, 400)["message"]
    assert small.show(id)["status"] == "queued"
    assert small.files() == []
    small.ann("GET", f"/v2/images/{id}/file", None, 204)


@pytest.mark.skipif(not shutil.which("qemu-img"), reason="qemu-img is not installed")
def test_what_qemu_makes(small, tmp_path):
    def made(name, *options):
        subprocess.run(["qemu-img", "create", "-q", *options, name, "10M"], check=True, cwd=tmp_path)
        return (tmp_path / name).read_bytes()

    good = made("good", "-f", "qcow2")
    id = small.make("ann", good, disk_format="qcow2")
    assert small.show(id)["virtual_size"] == 10 * MIB
    for options in (("-f", "qcow2", "-b", "good", "-F", "qcow2"), ("-f", "qcow2", "-o", "data_file=x"), ("-f", "vmdk")):
        bad = small.make("ann", disk_format="qcow2")
        small.put(small.ann, bad, made("bad", *options), 400)


@pytest.mark.parametrize("claimed, data", [
    ("raw", RAW), ("raw", bytes(MIB)), ("qcow2", qcow2()), ("aki", kernel()), ("ari", CPIO),
    ("ari", b"\x1f\x8bramdisk"), ("raw", b"\0" * 510 + b"\x55\xaa" + bytes(MIB)), ("iso", iso()),
    ("vmdk", sparse_vmdk())])
def test_good_content_comes_back_as_it_went(small, claimed, data):
    id = small.make("ann", data, disk_format=claimed)
    shown = small.show(id)
    got = small.ann("GET", f"/v2/images/{id}/file", None, 200)
    assert got.body == data
    assert got.headers == {"Content-Length": str(len(data)), "Content-MD5": hashlib.md5(data).hexdigest()}
    assert shown["checksum"] == hashlib.md5(data).hexdigest()
    assert shown["os_hash_value"] == hashlib.sha512(data).hexdigest()
    assert (small.folder / id).stat().st_mode & 0o777 == 0o600
    assert small.files() == [id]


def test_zeros_take_no_room(small):
    id = small.make("ann", None)
    small.service.upload(id, [bytes(65536)] * 32)
    assert (small.folder / id).stat().st_size == 2 * MIB
    assert (small.folder / id).stat().st_blocks < 64


def test_content_is_taken_once(glance):
    id = glance.make("ann", RAW)
    glance.put(glance.ann, id, RAW, 409)
    assert glance.ann("GET", f"/v2/images/{id}/file", None, 200).body == RAW
    bare = glance.ann("POST", "/v2/images", {"name": "x"}, 201)["id"]
    glance.put(glance.ann, bare, RAW, 400)
    glance.ann("PUT", f"/v2/images/{bare}/file", RAW, 415, content_type="text/plain")
    glance.patch(glance.ann, id, ("replace", "disk_format", "qcow2"), status=403)


def test_an_import_of_staged_content(glance):
    id = glance.make("ann")
    assert glance.ann("GET", "/v2/info/import", None, 200)["import-methods"]["value"] == ["glance-direct"]
    body = {"method": {"name": "glance-direct"}}
    glance.ann("POST", f"/v2/images/{id}/import", body, 409)
    glance.ann("PUT", f"/v2/images/{id}/stage", RAW + b"x", 400, content_type=OCTETS)
    glance.ann("PUT", f"/v2/images/{id}/stage", RAW, 204, content_type=OCTETS)
    assert glance.show(id)["status"] == "uploading"
    glance.ann("GET", f"/v2/images/{id}/file", None, 204)
    glance.bob("POST", f"/v2/images/{id}/import", body, 404)
    glance.ann("POST", f"/v2/images/{id}/import", {"method": {"name": "web-download"}}, 400)
    glance.ann("POST", f"/v2/images/{id}/import", body, 202)
    assert glance.ann("GET", f"/v2/images/{id}/file", None, 200).body == RAW


def test_the_upload_is_a_stream(small):
    assert small.application.streams("PUT", "/v2/images/x/file")
    assert small.application.streams("PUT", "/v2/images/x/stage")
    assert not small.application.streams("PUT", "/v2/images/x/tags/file")
    assert not small.application.streams("GET", "/v2/images/x/file")


def test_content_is_limited(small):
    id = small.make("ann")
    endless = iter(lambda: bytes(MIB), None)
    with pytest.raises(MagnetarError, match="more than") as caught:
        small.service.upload(id, endless)
    assert caught.value.status == 413
    assert small.files() == []
    assert small.show(id)["status"] == "queued"


def test_a_client_that_goes_away_leaves_nothing(small):
    def gone():
        yield RAW
        raise InvalidRequest("gone")

    id = small.make("ann")
    with pytest.raises(MagnetarError, match="gone"):
        small.service.upload(id, gone())
    assert (small.files(), small.show(id)["status"]) == ([], "queued")
    small.put(small.ann, id, RAW, 204)


def test_a_full_disk_is_said(small, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, "full")

    id = small.make("ann")
    monkeypatch.setattr(content.os, "write", full)
    assert "no room" in small.put(small.ann, id, RAW, 413)["message"]
    monkeypatch.undo()
    assert (small.files(), small.show(id)["status"]) == ([], "queued")


def test_two_uploads_do_not_mix(glance):
    id = glance.make("ann")

    def during():
        yield RAW
        assert glance.show(id)["status"] == "saving"
        glance.put(glance.ann, id, bytes(512), 409)
        glance.service.sweep()  # leaves what is on its way alone
        yield RAW

    glance.service.upload(id, during())
    assert glance.ann("GET", f"/v2/images/{id}/file", None, 200).body == RAW * 2


def test_an_image_removed_during_its_upload_stays_removed(glance):
    id = glance.make("ann")

    def during():
        yield RAW
        glance.ann("DELETE", f"/v2/images/{id}", None, 204)

    with pytest.raises(MagnetarError, match="removed while") as caught:
        glance.service.upload(id, during())
    assert caught.value.status == 410
    assert glance.files() == []
    glance.ann("GET", f"/v2/images/{id}", None, 404)


def test_a_removal_does_not_disturb_a_download(small):
    id = small.make("ann", RAW)
    got, _size = small.service.content(id)
    small.ann("DELETE", f"/v2/images/{id}", None, 204)
    assert b"".join(got) == RAW


@pytest.mark.parametrize("place", ["write", "keep"])
def test_an_upload_killed_at_any_moment_may_be_repeated(database, tmp_path, monkeypatch, place):
    """The process dies after content was written, or got its name: a fork shares nothing but files and database."""
    glance = Glance(database, tmp_path)
    id = glance.make("ann")
    database.engine.dispose()
    child = os.fork()
    if not child:
        original = getattr(content.Content, place)

        def dies(*args):
            original(*args)
            os._exit(0)

        monkeypatch.setattr(content.Content, place, dies)
        own = type(database)(database.url.render_as_string(hide_password=False))
        EmbeddedImages(own, glance.folder).upload(id, pieces(RAW))
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert glance.show(id)["status"] == "saving"
    assert f"{id}.part" in glance.files()
    if place == "write":
        glance.service.sweep()
        assert (glance.files(), glance.show(id)["status"]) == ([], "queued")
    glance.put(glance.ann, id, RAW * 2, 204)
    assert glance.ann("GET", f"/v2/images/{id}/file", None, 200).body == RAW * 2
    assert glance.files() == [id]


def test_a_crash_after_the_end_of_an_upload_harms_nothing(glance):
    id = glance.make("ann", RAW)
    (glance.folder / f"{id}.part").hardlink_to(glance.folder / id)  # it was not removed any more
    glance.put(glance.ann, id, bytes(512), 409)
    glance.service.sweep()
    assert glance.ann("GET", f"/v2/images/{id}/file", None, 200).body == RAW
    assert glance.files() == [id]


def test_a_sweep_removes_content_of_deleted_images_only(glance, monkeypatch, caplog):
    """An older or an empty database does not know the others: their content may be all that there is."""
    id, gone = glance.make("ann", RAW), glance.make("ann", RAW)
    with monkeypatch.context() as died:
        died.setattr(glance.service.files, "remove", lambda _id: None)
        glance.ann("DELETE", f"/v2/images/{gone}", None, 204)
    unknown = "6f8b1c8e-52c1-4b0f-8f68-4bbd8b4a8a11"
    (glance.folder / unknown).write_bytes(b"x")
    (glance.folder / "README").write_bytes(b"x")
    assert gone in glance.files()
    glance.service.sweep()
    assert glance.files() == sorted([id, unknown, "README"]) and unknown in caplog.text


def test_a_head_is_only_asked_about(small):
    id = small.make("ann", RAW)
    assert small.ann("HEAD", f"/v2/images/{id}/file", None, 200).body == b""
