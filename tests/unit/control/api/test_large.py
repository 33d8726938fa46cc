# SPDX-License-Identifier: GPL-3.0-or-later
"""Bodies that are too large are refused before anybody reads them, by each API in its own form."""

import asyncio

import orjson
import pytest

from magnetar_control.api.image.app import image_application
from magnetar_control.api.nova.versions import NEWEST
from magnetar_control.api.v1 import V1Application
from magnetar_control.services.image import EmbeddedImages
from magnetar_control.web.asgi import AsgiServer
from magnetar_control.web.bodies import BODY_LIMIT
from tests.support.control.serving import authenticate

LARGE = 10 << 20


@pytest.fixture
def server(small, tmp_path):
    mounts = {"": small.application, "/image": image_application(EmbeddedImages(small.api, tmp_path), authenticate)}
    small.application.v1 = V1Application(small.cloud)
    return AsgiServer(mounts)


def posted(server, path, size, told=True, **headers):
    """Status, headers, document, and how much was read. *told*: the length is said beforehand."""
    read, sent = [0], []

    async def receive():
        read[0] = min(size, read[0] + 65536)
        return {"type": "http.request", "body": b" " * 65536, "more_body": read[0] < size}

    async def send(message):
        sent.append(message)

    given = {"x-auth-token": "admin", "content-type": "application/json", **headers,
             **({"content-length": str(size)} if told else {"transfer-encoding": "chunked"})}
    asyncio.run(server({
        "type": "http", "method": "POST", "path": path, "query_string": b"", "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()]}, receive, send))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, orjson.loads(sent[1]["body"]), read[0]


@pytest.mark.parametrize("told", [True, False])
def test_novas_form(server, told):
    status, headers, body, read = posted(server, "/v2.1/servers", LARGE, told, **{
        "openstack-api-version": f"compute 2.{NEWEST}"})
    assert (status, body["overLimit"]["code"]) == (413, 413) and str(BODY_LIMIT) in body["overLimit"]["message"]
    assert headers["openstack-api-version"] == f"compute 2.{NEWEST}"
    assert headers["x-openstack-nova-api-version"] == f"2.{NEWEST}"
    assert headers["x-compute-request-id"] == headers["x-openstack-request-id"]
    assert headers["content-type"] == "application/json" and "OpenStack-API-Version" in headers["vary"]
    assert read == 0 if told else read <= BODY_LIMIT + 65536


def test_without_a_good_version(server):
    for version in ("compute 2.9999", "compute x"):
        status, headers, body, _read = posted(server, "/v2.1/servers", LARGE, **{"openstack-api-version": version})
        assert (status, list(body), headers["openstack-api-version"]) == (413, ["overLimit"], "compute 2.1")


@pytest.mark.parametrize("told", [True, False])
def test_the_form_of_the_agents_protocol(server, told):
    mine = "req-8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
    status, headers, body, _read = posted(server, "/v1/server/web1", LARGE, told, **{"x-request-id": mine})
    assert (status, body["error"]["code"], body["error"]["request_id"]) == (413, "too-large", mine)
    assert headers["x-request-id"] == mine


def test_the_form_of_an_embedded_service(server):
    status, _headers, body, _read = posted(server, "/image/v2/images", LARGE)
    assert status == 413 and str(BODY_LIMIT) in str(body)


def test_what_is_as_large_as_may_be_is_read(server):
    status, _headers, body, read = posted(server, "/v2.1/servers", BODY_LIMIT)
    assert (status, list(body), read) == (400, ["badRequest"], BODY_LIMIT)
