# SPDX-License-Identifier: GPL-3.0-or-later
"""Uploads and downloads over real connections: what one project may have of them, and how slow a client may be."""

import contextlib
import http.client
import threading
from urllib.parse import urlsplit

import orjson
import pytest

from magnetar_control.web.answer import Answer
from magnetar_control.web.application import Application
from magnetar_control.web.asgi import MORE
from magnetar_control.web.transfers import Clock, Pace, TransferLimit, Transfers
from magnetar_core.errors import TooManyRequests, TooSlow, Unavailable
from tests.support.waiting import eventually
from tests.unit.control.identity.cloud import served

from .glance import MIB, OCTETS, RAW, USERS

#: More than the sockets of both sides hold.
LARGE = 32 * MIB
PACE = Pace()


@pytest.fixture
def site(small):
    """Serves *small* within limits; gives what makes connections."""
    with contextlib.ExitStack() as stack:
        def serve(uploads=4, downloads=4, share=2, pace=PACE):
            limits = Transfers(TransferLimit("uploads", uploads, share), TransferLimit("downloads", downloads, share),
                               pace)
            url = stack.enter_context(served(threads=2, transfers=limits, image=small.application))

            def connect():
                return stack.enter_context(contextlib.closing(
                    http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)))

            return connect

        yield serve


def begin(connection, who, id, length=MIB):
    """Begin an upload, and send less than all of it."""
    connection.putrequest("PUT", f"/image/v2/images/{id}/file")
    for name, value in (("X-Auth-Token", who), ("Content-Type", OCTETS), ("Content-Length", str(length))):
        connection.putheader(name, value)
    connection.endheaders()
    connection.send(RAW)


def ask(connection, who, path):
    connection.request("GET", f"/image/v2/images{path}", headers={"X-Auth-Token": who})
    return connection.getresponse()


def read_nothing(connect, who, id):
    """Begin a download, and read its beginning only."""
    answer = ask(connect(), who, f"/{id}/file")
    assert answer.status == 200, answer.read()
    return answer


def large(small, who="ann"):
    """An image that no socket holds, without the content passing through a client."""
    id = small.make(who, RAW)
    path = small.folder / id
    path.unlink()
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(LARGE)
    with small.service.database.write() as connection:
        from magnetar_control.services.image import images
        images.update_image_row(connection, id, {"size": LARGE})
    return id


def test_uploads_of_one_project_leave_places_to_others(small, site):
    connect, who = site(), ["ann", "ann", "bob", "bob"]
    ids = [small.make(name) for name in who]
    slow = [connect() for _id in ids]
    for connection, name, id in zip(slow[:2], who, ids, strict=False):
        begin(connection, name, id, 2 * len(RAW))
    eventually(lambda: all(small.show(id)["status"] == "saving" for id in ids[:2]))
    refused, third = connect(), small.make("ann")
    begin(refused, "ann", third)
    answer = refused.getresponse()
    assert (answer.status, answer.getheader("Retry-After"), answer.getheader("Connection")) == (429, "10", "close")
    assert "A project may have 2 of the 4 uploads" in orjson.loads(answer.read())["message"]
    assert small.show(third)["status"] == "queued"
    for connection, id in zip(slow[2:], ids[2:], strict=True):
        begin(connection, "bob", id, 2 * len(RAW))
    eventually(lambda: all(small.show(id)["status"] == "saving" for id in ids))
    refused, fifth = connect(), small.make("eve")
    begin(refused, "eve", fifth)
    answer = refused.getresponse()
    assert (answer.status, answer.getheader("Retry-After")) == (503, "10")
    assert "All 4 uploads" in orjson.loads(answer.read())["message"]
    begin(own := connect(), "admin", admins := small.make("admin"), 2 * len(RAW))
    eventually(lambda: small.show(admins)["status"] == "saving")
    for connection in (*slow, own):
        connection.send(RAW)
        assert connection.getresponse().status == 204
    begin(again := connect(), "ann", third, 2 * len(RAW))
    again.send(RAW)
    assert again.getresponse().status == 204


def test_as_many_uploads_as_there_are_threads_stop_no_download(small, site):
    connect, data = site(2, 4, 2), RAW
    known = small.make("bob", data, visibility="community")
    slow = [(connect(), small.make("ann")) for _number in range(2 + MORE)]
    for connection, id in slow:
        begin(connection, "ann", id)
    assert ask(connect(), "bob", f"/{known}/file").read() == data
    assert ask(connect(), "bob", "").status == 200


def test_downloads_of_one_project_leave_places_to_others(small, site):
    connect, id = site(), large(small)
    small.patch(small.ann, id, ("replace", "visibility", "community"), status=200)
    reading = [read_nothing(connect, "ann", id) for _number in range(2)]
    answer = ask(connect(), "ann", f"/{id}/file")
    assert (answer.status, answer.getheader("Retry-After")) == (429, "10")
    assert "A project may have 2 of the 4 downloads" in orjson.loads(answer.read())["message"]
    assert ask(connect(), "bob", f"/{id}/file").status == 200
    small.put(small.ann, small.make("ann"), RAW, 204)
    assert [len(one.read()) for one in reading] == [LARGE, LARGE]
    eventually(lambda: ask(connect(), "ann", f"/{id}/file").status == 200)


def test_an_upload_that_is_too_slow_is_ended_and_may_come_again(small, site):
    connect, id = site(pace=Pace(MIB, 1.0)), small.make("ann")
    begin(connection := connect(), "ann", id)
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Connection")) == (408, "close")
    assert f"at least {MIB} a second" in orjson.loads(answer.read())["message"]
    assert small.show(id)["status"] == "queued" and small.files() == []
    begin(again := connect(), "ann", id, 2 * len(RAW))
    again.send(RAW)
    assert again.getresponse().status == 204


def test_a_download_that_nobody_reads_is_ended(small, site):
    connect, id = site(share=1, pace=Pace(LARGE, 1.0)), large(small)
    answer = read_nothing(connect, "ann", id)
    eventually(lambda: ask(connect(), "ann", f"/{id}/file").status == 200)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answer.read()


class Endless(Application):
    """Content without an end, which notes whether it was closed."""

    def __init__(self):
        self.closed = threading.Event()

    def handle(self, request):
        request.context = USERS["ann"]
        return Answer(request.download(self.content()), 200, {}, OCTETS)

    def content(self):
        try:
            while True:
                yield bytes(MIB)
        finally:
            self.closed.set()


@pytest.mark.parametrize("read", (0, 2 * LARGE), ids=("before it reads", "while it reads"))
def test_a_download_whose_client_goes_away_ends(read):
    limits, endless = Transfers(downloads=TransferLimit("downloads", 1, 1)), Endless()
    with served(transfers=limits, image=endless) as url:
        client = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        client.request("GET", "/image/x")
        if read:
            answer = client.getresponse()
            assert len(answer.read(read)) == read
            answer.close()
        client.close()
        assert endless.closed.wait(60)
        limits.downloads.take(USERS["ann"])


def test_who_keeps_up_is_never_ended():
    clock = Clock(Pace(10, 2.0))
    for _second in range(20):
        clock.note(1.0, 10)
    assert clock.left == 2.0
    clock.note(1.9, 0)
    with pytest.raises(TooSlow, match="Only 3 bytes came in 2 seconds; at least 10 a second"):
        clock.note(0.1, 3)


def test_a_place_is_given_back_once():
    limit = TransferLimit("uploads", 2, 1)
    free = limit.take(USERS["ann"])
    with pytest.raises(TooManyRequests):
        limit.take(USERS["rea"])  # of the same project
    limit.take(USERS["bob"])
    with pytest.raises(Unavailable):
        limit.take(USERS["eve"])
    for _number in range(3):
        limit.take(USERS["admin"])
    free()
    limit.take(USERS["ann"])
    assert not limit._taken["nobody"]
