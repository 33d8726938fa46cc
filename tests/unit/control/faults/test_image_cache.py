# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of an aggregate fetch images before a server needs them, whatever goes wrong meanwhile."""

import threading
from types import SimpleNamespace

import pytest
from sqlalchemy import select, update

from magnetar_control.conductor.hosts import image_cache
from magnetar_control.conductor.hosts.image_cache import ATTEMPTS, ImageCache
from magnetar_control.store.engine import tables
from magnetar_core.errors import Conflict, HypervisorDown
from magnetar_core.http.client import Client
from tests.support.control.cloud import Cloud
from tests.support.control.engines import engines
from tests.support.waiting import eventually

CACHE = "/v2.1/os-aggregates/{}/images"
pytestmark = engines("volumes and images, postgres")


@pytest.fixture(scope="module")
def cloud(databases):
    with Cloud(hosts=2, databases=databases) as made:
        yield made


@pytest.fixture
def aggregate(cloud):
    """The number of an aggregate of both hosts, whose conductor does nothing by itself meanwhile."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ImageCache, "start_if_due", lambda _self: None)
        made = cloud.admin.post("/v2.1/os-aggregates", {"aggregate": {"name": "fast"}}, "2.81").json["aggregate"]["id"]
        for host in cloud.hosts:
            cloud.admin.post(f"/v2.1/os-aggregates/{made}/action", {"add_host": {"host": host}}, "2.81")
        yield made
        for host in cloud.hosts:
            cloud.admin.post(f"/v2.1/os-aggregates/{made}/action", {"remove_host": {"host": host}}, "2.81")
        cloud.admin.delete(f"/v2.1/os-aggregates/{made}")
    assert waiting(cloud) == []


def waiting(cloud):
    """Host, image and attempts of what hosts are to have still."""
    with cloud.parts.working.database.read() as connection:
        return [(row.host, row.image_id, row.attempts) for row in connection.execute(
            select(tables.image_requests).order_by(tables.image_requests.c.host))]


def on(cloud, host):
    """The images that a host has whole."""
    with cloud.parts.agents.client(cloud.hosts[host]) as client:
        return {one["id"] for one in client.list("image") if one["status"] == "active"}


def look(cloud):
    """One look to its end."""
    cache = ImageCache(cloud.parts.working, threading.Event())
    with cloud.parts.working.database.read() as connection:
        rows = image_cache.image_requests.fetch_image_requests(connection, list(cloud.hosts), image_cache.BATCH_SIZE)
    cache._bring(rows)
    return cache


def ask(cloud, aggregate, *images):
    reply = cloud.admin.post(CACHE.format(aggregate), {"cache": [{"id": id} for id in images]}, "2.81")
    assert (reply.status, reply.content) == (202, b""), reply
    return reply


def test_a_conductor_brings_them_by_itself(cloud):
    made = cloud.admin.post("/v2.1/os-aggregates", {"aggregate": {"name": "own"}}, "2.81").json["aggregate"]["id"]
    cloud.admin.post(f"/v2.1/os-aggregates/{made}/action", {"add_host": {"host": "kvm2"}}, "2.81")
    image = cloud.admin.image("by-itself")
    ask(cloud, made, image)
    eventually(lambda: image in on(cloud, "kvm2") and not waiting(cloud))
    assert image not in on(cloud, "kvm1")
    cloud.admin.post(f"/v2.1/os-aggregates/{made}/action", {"remove_host": {"host": "kvm2"}}, "2.81")
    assert cloud.admin.delete(f"/v2.1/os-aggregates/{made}").status == 200


def test_each_host_gets_each_image_once(cloud, aggregate, monkeypatch):
    images, sent, send = [cloud.admin.image(name) for name in ("one", "two")], [], Client.send

    def counted(client, kind, key, *given, **more):
        sent.append(key)
        return send(client, kind, key, *given, **more)

    monkeypatch.setattr(Client, "send", counted)
    ask(cloud, aggregate, *images)
    ask(cloud, aggregate, *images)
    assert len(waiting(cloud)) == 4
    look(cloud)
    assert waiting(cloud) == [] and sorted(sent) == sorted(images * 2)
    assert all(set(images) <= on(cloud, host) for host in cloud.hosts)
    ask(cloud, aggregate, *images)
    look(cloud)
    assert len(sent) == 4, "it is there already"


def test_what_somebody_removed_from_a_host_comes_again(cloud, aggregate):
    image = cloud.admin.image("again")
    ask(cloud, aggregate, image)
    look(cloud)
    with cloud.parts.agents.client(cloud.hosts["kvm1"]) as client:
        client.delete("image", image)
    ask(cloud, aggregate, image)
    look(cloud)
    assert image in on(cloud, "kvm1")


def test_a_conductor_that_dies_in_the_middle_leaves_it_to_the_next(cloud, aggregate, monkeypatch):
    image, send = cloud.admin.image("cut"), Client.send

    def dies(*given, **more):
        send(*given, **more)
        raise SystemExit

    ask(cloud, aggregate, image)
    with monkeypatch.context() as patched:
        patched.setattr(Client, "send", dies)
        with pytest.raises(SystemExit):
            look(cloud)
    assert len(waiting(cloud)) == 2
    look(cloud)
    assert waiting(cloud) == [] and all(image in on(cloud, host) for host in cloud.hosts)


def test_a_silent_host_keeps_no_other_waiting(cloud, aggregate, monkeypatch):
    images, asked = [cloud.admin.image(name) for name in ("first", "second")], []
    ensure = Client.ensure

    def silent(client, kind, key, *given, **more):
        if client.endpoint == cloud.hosts["kvm1"]:
            asked.append(key)
            raise HypervisorDown("libvirt does not answer.")
        return ensure(client, kind, key, *given, **more)

    ask(cloud, aggregate, *images)
    with monkeypatch.context() as patched:
        patched.setattr(Client, "ensure", silent)
        look(cloud)
    assert len(asked) == 1, "not asked for the second image in the same look"
    assert {(host, attempts) for host, _image, attempts in waiting(cloud)} == {("kvm1", 0)}
    assert set(images) <= on(cloud, "kvm2")
    look(cloud)
    assert set(images) <= on(cloud, "kvm1")


def test_what_a_host_refuses_is_given_up_after_some_attempts(cloud, aggregate, monkeypatch):
    def refused(*_given, **_more):
        raise Conflict("No.")

    image = cloud.admin.image("refused")
    ask(cloud, aggregate, image)
    with monkeypatch.context() as patched:
        patched.setattr(Client, "ensure", refused)
        for attempt in range(1, ATTEMPTS):
            look(cloud)
            assert [attempts for _host, _image, attempts in waiting(cloud)] == [attempt, attempt]
        look(cloud)
    assert waiting(cloud) == []


def test_an_image_that_is_deleted_meanwhile_is_given_up(cloud, aggregate):
    image = cloud.admin.image("gone")
    ask(cloud, aggregate, image)
    assert cloud.admin.delete(f"/image/v2/images/{image}").status == 204
    look(cloud)
    assert waiting(cloud) == []
    with cloud.parts.agents.client(cloud.hosts["kvm1"]) as client:
        assert image not in {one["id"] for one in client.list("image")}


def test_a_host_that_stays_away_is_given_up_after_a_day(cloud, aggregate):
    image = cloud.admin.image("late")
    ask(cloud, aggregate, image)
    cache = ImageCache(cloud.parts.working, threading.Event())
    cache.forget()
    assert len(waiting(cloud)) == 2
    with cloud.parts.working.database.write() as connection:
        connection.execute(update(tables.image_requests).values(created_at="2026-01-01T00:00:00.000000"))
    cache.forget()
    assert waiting(cloud) == []


def test_a_look_begins_no_second_thread_while_one_is_at_work(cloud):
    cache = ImageCache(cloud.parts.working, threading.Event())
    cache._thread = SimpleNamespace(is_alive=lambda: True)
    cache.start_if_due()
    assert cache._thread.is_alive()
