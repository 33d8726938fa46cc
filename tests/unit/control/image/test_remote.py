# SPDX-License-Identifier: GPL-3.0-or-later
"""The image service over HTTP, as a conductor uses it: the embedded one on another machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from magnetar_control.delivery import ITSELF, Delivery
from magnetar_control.services import Context
from magnetar_control.services.image.remote import Remote
from magnetar_core.errors import Forbidden, InvalidField, TooLarge, Unavailable
from tests.support.control.serving import served

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


@pytest.mark.parametrize(("shown", "found"), [
    ({"direct_url": "rbd://f/images/i/snap"}, "rbd://f/images/i/snap"), ({"direct_url": "file:///x"}, ""), ({}, ""),
    ({"locations": [{"url": "swift://x"}, {"url": "rbd://f/images/i/snap", "metadata": {}}]}, "rbd://f/images/i/snap"),
    ({"direct_url": None, "locations": None}, ""), ({"direct_url": ["rbd://f"], "locations": [{}]}, "")])
def test_where_glance_has_it(remote, monkeypatch, shown, found):
    """For hosts alone: an image as users see it does not have it."""
    image, asked = {"id": "i", "visibility": "private", "owner": "p"}, []
    monkeypatch.setattr(remote, "_json", lambda *args, **_more: asked.append(args) or {**image, **shown})
    assert remote.show_with_location(ITSELF, "i") == ({**image, "properties": {}}, found)
    assert len(asked) == 1
    assert "rbd://" not in str(remote.show(ITSELF, "i"))
    assert remote.show_with_location(Context("u", "another"), "i") == (None, "")


def test_an_image_that_glance_has_not(remote, monkeypatch):
    monkeypatch.setattr(remote, "_json", lambda *_args, **_more: None)
    assert remote.show_with_location(ITSELF, "i") == (None, "")


def test_the_embedded_service_has_it_nowhere_else(small, remote):
    id = small.make("ann", RAW)
    assert [one.show_with_location(ITSELF, id)[1] for one in (remote, small.service)] == ["", ""]


def test_a_host_gets_an_image_with_one_question_for_it(small, remote, monkeypatch):
    """Beside that for its content."""
    asked = []

    def noted(real):
        return lambda method, path, *args, **more: (
            asked.append((method, path)), real(method, path, *args, **more))[1]

    for name in ("_json", "_send"):
        monkeypatch.setattr(remote, name, noted(getattr(remote, name)))
    id, host = small.make("ann", RAW), Host("queued")
    Delivery(remote, 1.0).image(host, "kvm1", id)
    assert host.sent == [(RAW, len(RAW))] and asked == [("GET", f"/{id}"), ("GET", f"/{id}/file")]


class Host:
    """An agent that says, of one ensure after the other, which status the image has."""

    def __init__(self, *statuses):
        self.statuses, self.asked, self.sent = list(statuses), [], []

    def ensure(self, _noun, _id, want, *_args, **_more):
        self.asked.append(want["source"])
        status = self.statuses.pop(0)
        if status == "refused":
            raise InvalidField("source.location", "must begin with rbd://", want["source"]["location"])
        return {"resource": {"status": status}}

    def send(self, _noun, _id, chunks, size, **_more):
        self.sent.append((b"".join(chunks), size))


URL = "rbd://f/images/i/snap"


@pytest.mark.parametrize(("location", "statuses", "asked", "sent"), [
    (URL, ["active"], 1, False), (URL, ["queued", "active"], 2, False), (URL, ["queued", "queued"], 2, True),
    (URL, ["queued", "refused"], 2, True),
    ("", ["queued"], 1, True)])
def test_a_host_is_told_where_it_is_before_it_is_sent(location, statuses, asked, sent):
    service = SimpleNamespace(show_with_location=lambda *_args: ({}, location),
                              content=lambda _id: (iter([RAW]), len(RAW)))
    host = Host(*statuses)
    Delivery(service, 1.0).image(host, "kvm1", "i")
    assert host.asked == [{"upload": True}, {"upload": True, "location": URL}][:asked]
    assert host.sent == [(RAW, len(RAW))] * sent


def test_an_image_for_another_project(small, remote):
    made = remote.create(Context("u", "p"), "one", visibility="shared", share_with="project-bob", disk_format="raw",
                         container_format="bare")
    assert small.bob("GET", f"/v2/images/{made['id']}", None, 200)["name"] == "one"
    with pytest.raises(Forbidden):
        remote.create(Context("u", "p"), "two", visibility="private", share_with="project-bob")
    assert small.names(small.admin) == ["one"]
