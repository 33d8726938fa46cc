# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of images, and room on the file system: what passes them is refused, whichever way it comes."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import pytest

from magnetar_control.services.image import content, quotas
from magnetar_control.services.image.quotas import COUNT, SIZE
from magnetar_control.services.image.tables import uploads
from magnetar_core.errors import MagnetarError

from .glance import MIB, OCTETS, RAW, Glance

ANN = "project-ann"
#: Content that takes room.
FULL = b"\x01" * MIB


def limited(glance, project=ANN, **limits):
    with glance.service.database.write() as connection:
        glance.service.quota.set(connection, project, limits)


def used(glance):
    return {name: one["usage"] for name, one in glance.ann("GET", "/v2/info/usage", None, 200)["usage"].items()}


def holds(glance):
    with glance.service.database.read() as connection:
        return connection.execute(uploads.select()).all()


def test_a_project_has_no_more_images_than_its_quota(glance):
    limited(glance, **{COUNT: 2})
    mine = [glance.make("ann"), glance.make("ann", RAW)]
    refused = glance.ann("POST", "/v2/images", {"name": "x"}, 413)
    assert "[Resource image_count_total is over limit of 2 due to current usage 2 and delta 1]" in refused["message"]
    glance.make("bob")
    glance.admin("POST", "/v2/images", {"name": "theirs", "owner": ANN}, 413)
    glance.ann("DELETE", f"/v2/images/{mine[0]}", None, 204)
    glance.make("ann")


def test_usage_is_shown(glance):
    limited(glance, **{SIZE: 7})
    glance.make("ann", FULL + RAW)
    glance.make("bob", FULL)
    assert glance.ann("GET", "/v2/info/usage", None, 200)["usage"] == {
        COUNT: {"limit": 100, "usage": 1}, SIZE: {"limit": 7, "usage": 2}}


@pytest.mark.parametrize("way", ["file", "stage"])
def test_content_without_a_length_stops_where_the_quota_ends(glance, way):
    limited(glance, **{SIZE: 3})
    glance.make("ann", FULL)
    id, sent = glance.make("ann"), []

    def endless():
        while True:
            sent.append(1)
            yield FULL

    with pytest.raises(MagnetarError, match=r"image_size_total is over limit of 3 due to current usage 1 and delta 3") \
            as refused:
        glance.service.upload(id, endless(), "active" if way == "file" else "uploading")
    assert (refused.value.status, len(sent)) == (413, 3)
    assert glance.show(id)["status"] == "queued"
    assert (len(glance.files()), holds(glance), used(glance)[SIZE]) == (1, [], 1)
    glance.ann("PUT", f"/v2/images/{id}/{way}", FULL * 2, 204, content_type=OCTETS)  # just what is left
    assert used(glance)[SIZE] == 3


def test_content_that_says_its_length_is_refused_before_it_comes(small):
    limited(small, **{SIZE: 3})
    id = small.make("ann")

    def untouched():
        raise AssertionError("nothing is read")
        yield

    with pytest.raises(MagnetarError, match="over limit") as refused:
        small.service.upload(id, untouched(), size=4 * MIB)
    assert refused.value.status == 413 and small.show(id)["status"] == "queued"
    small.service.upload(id, [FULL] * 3, size=3 * MIB)


def test_no_limit_is_asked_about_once(small):
    limited(small, **{SIZE: -1})
    id = small.make("ann")
    small.service.upload(id, [FULL] * 3)
    assert holds(small) == [] and used(small)[SIZE] == 3


def test_many_uploads_at_once_stay_within_the_quota(glance, monkeypatch):
    monkeypatch.setattr(quotas, "STEP", 0)  # each piece asks
    limited(glance, **{SIZE: 8})
    ids, ready = [glance.make("ann") for _at in range(6)], Barrier(6)

    def two():
        ready.wait(120)
        yield FULL
        ready.wait(120)
        yield FULL

    def upload(id):
        try:
            glance.service.upload(id, two())
        except MagnetarError as error:
            assert error.status == 413
            return 0
        return 1

    with ThreadPoolExecutor(6) as threads:
        made = sum(threads.map(upload, ids))
    assert 2 <= made <= 4  # six have a MiB, and two get another; what others give back may let more in
    assert used(glance)[SIZE] == made * 2 and holds(glance) == []


def test_many_at_once_make_no_more_images_than_the_quota(glance):
    limited(glance, **{COUNT: 3})
    ready = Barrier(8)

    def make(_at):
        ready.wait(120)
        return glance.ann("POST", "/v2/images", {"name": "x"}).status

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(make, range(8))) == [201] * 3 + [413] * 5


def test_what_an_upload_took_is_free_when_it_ends_or_its_process(glance):
    limited(glance, **{SIZE: 20})
    id, gone = glance.make("ann"), glance.make("ann")

    def breaks(image):
        yield FULL
        assert used(glance)[SIZE] >= 16
        if image == gone:
            glance.ann("DELETE", f"/v2/images/{gone}", None, 204)
        yield FULL
        if image == id:
            raise OSError("gone")

    for image in (id, gone):
        with pytest.raises((OSError, MagnetarError)):
            glance.service.upload(image, breaks(image))
        assert (holds(glance), used(glance)[SIZE], glance.files()) == ([], 0, [])
    with glance.service.database.write() as connection:  # a crash leaves a hold and a part
        connection.execute(uploads.insert().values(image_id=id, size=5 * MIB))
    (glance.folder / f"{id}.part").write_bytes(b"x")
    assert used(glance)[SIZE] == 5
    glance.service.sweep()
    assert used(glance)[SIZE] == 0


def test_limits_of_the_settings(sqlite, tmp_path):
    glance = Glance(sqlite, tmp_path, limits={COUNT: 1, SIZE: 1})
    id = glance.make("ann")
    glance.ann("POST", "/v2/images", {"name": "x"}, 413)
    glance.put(glance.ann, id, FULL + RAW, 413)


# Room on the file system
def free(monkeypatch, reserve_mib):
    """As if the file system had so many MiB more than the reserve, less what is written."""
    written = []

    def fstatvfs(part):
        written.append(os.fstat(part).st_blocks * 512)
        return SimpleNamespace(f_frsize=1, f_bavail=(reserve_mib + 1024) * MIB - written[-1])

    monkeypatch.setattr(content.os, "fstatvfs", fstatvfs)


@pytest.mark.parametrize("way", ["file", "stage"])
def test_the_disk_is_never_filled(small, monkeypatch, way):
    id = small.make("ann")
    free(monkeypatch, 2)
    refused = small.ann("PUT", f"/v2/images/{id}/{way}", FULL * 2 + b"1", 413, content_type=OCTETS)
    assert refused["message"].startswith("Image storage media is full: ")
    assert (small.files(), small.show(id)["status"]) == ([], "queued")
    small.ann("PUT", f"/v2/images/{id}/{way}", FULL + RAW, 204, content_type=OCTETS)


def test_zeros_need_no_room(small, monkeypatch):
    free(monkeypatch, -1)
    small.service.upload(small.make("ann"), [bytes(MIB)] * 2)


def test_a_reserve_of_nothing_takes_the_whole_disk(sqlite, tmp_path, monkeypatch):
    glance = Glance(sqlite, tmp_path, reserve=0)
    free(monkeypatch, -1024 + 2)
    glance.make("ann", FULL)
