# SPDX-License-Identifier: GPL-3.0-or-later
"""The image service over HTTP, as a conductor uses it: the embedded one on another machine."""

from __future__ import annotations

import pytest

from magnetar_control.services import Context
from magnetar_control.services.image.remote import Remote
from magnetar_core.errors import Forbidden, TooLarge, Unavailable
from tests.unit.control.serving import served

from .glance import RAW


@pytest.fixture
def remote(small):
    with served(image=small.application) as url:
        yield Remote(f"{url}/image", lambda _fresh: "admin")


def test_properties_set_no_fields(small, remote):
    """The conductor's own token may set all of them."""
    with pytest.raises(Forbidden, match="owner"):
        remote.create(Context("u", "p"), "one", properties={"owner": "project-bob"})
    assert small.names(small.admin) == []


@pytest.mark.parametrize("status", ["queued", "active"])
def test_an_image_goes_when_its_content_will_not_come_and_stays_when_it_has_come(small, remote, status):
    id = small.make("ann", RAW if status == "active" else None)
    remote.fail(id, "It is not to be had.")
    remote.fail(id, "It is not to be had.")
    found = remote.show(Context("u", "p", frozenset(("admin",))), id)
    assert (found and found["status"]) == ("active" if status == "active" else None)


@pytest.mark.parametrize("size", [None, len(RAW) * 2])
def test_content_of_known_and_unknown_length(small, remote, size):
    id = small.make("ann")
    assert remote.upload(id, iter([RAW, RAW]), size=size)["size"] == len(RAW) * 2
    assert b"".join(remote.content(id)[0]) == RAW * 2
    with small.service.database.write() as connection:
        small.service.quota.set(connection, "project-ann", {"image_size_total": 0})
    refused = small.make("ann")
    # The service ends the connection once it has refused; what it said may be lost while we still send.
    with pytest.raises((TooLarge, Unavailable)):
        remote.upload(refused, iter([RAW, RAW]), size=size)
    assert small.show(refused)["status"] == "queued"


def test_an_image_for_another_project(small, remote):
    made = remote.create(Context("u", "p"), "one", visibility="shared", share_with="project-bob", disk_format="raw",
                         container_format="bare")
    assert small.bob("GET", f"/v2/images/{made['id']}", None, 200)["name"] == "one"
    with pytest.raises(Forbidden):
        remote.create(Context("u", "p"), "two", visibility="private", share_with="project-bob")
    assert small.names(small.admin) == ["one"]
