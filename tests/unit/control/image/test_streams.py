# SPDX-License-Identifier: GPL-3.0-or-later
"""Content over a real connection."""

import http.client
from urllib.parse import urlsplit

import pytest

from tests.support.waiting import eventually
from tests.unit.control.identity.cloud import served

from .glance import MIB, OCTETS, RAW


@pytest.fixture
def connect(small):
    """Makes connections to a server that has one thread for requests."""
    with served(threads=1, image=small.application) as url:
        made = []

        def connect():
            made.append(http.client.HTTPConnection(urlsplit(url).netloc, timeout=10))
            return made[-1]

        yield connect
        for connection in made:
            connection.close()


def begin(connection, id, length=MIB):
    """Begin an upload, and send less than all of it."""
    connection.putrequest("PUT", f"/image/v2/images/{id}/file")
    for name, value in (("X-Auth-Token", "ann"), ("Content-Type", OCTETS), ("Content-Length", str(length))):
        connection.putheader(name, value)
    connection.endheaders()
    connection.send(RAW)


def test_a_slow_upload_keeps_nobody_waiting(small, connect):
    ids = [small.make("ann") for _one in range(3)]
    slow = [connect() for _id in ids]
    for connection, id in zip(slow, ids, strict=True):
        begin(connection, id, 2 * len(RAW))
    eventually(lambda: all(small.show(id)["status"] == "saving" for id in ids))
    quick = connect()
    quick.request("GET", "/image/v2/images", headers={"X-Auth-Token": "ann"})
    assert quick.getresponse().status == 200
    for connection in slow:
        connection.send(RAW)
        assert connection.getresponse().status == 204
    assert {small.show(id)["status"] for id in ids} == {"active"}


def test_a_connection_that_is_cut_leaves_the_image_queued(small, connect):
    id, connection = small.make("ann"), connect()
    begin(connection, id)
    eventually(lambda: small.show(id)["status"] == "saving")
    connection.close()
    eventually(lambda: small.show(id)["status"] == "queued")
    eventually(lambda: small.files() == [])  # which goes after the image is said to be queued


def test_content_goes_out_with_its_length(small, connect):
    data = bytes(range(256)) * 4096 * 3
    id, connection = small.make("ann", data), connect()
    connection.request("GET", f"/image/v2/images/{id}/file", headers={"X-Auth-Token": "ann"})
    answer = connection.getresponse()
    assert answer.getheader("Content-Length") == str(len(data))
    assert answer.getheader("Content-Type") == OCTETS
    assert answer.read() == data
