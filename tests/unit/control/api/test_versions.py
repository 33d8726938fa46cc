# SPDX-License-Identifier: GPL-3.0-or-later
"""Microversions: what is negotiated, what comes back, and the version documents (API-001 and following rows)."""

import pytest

from magnetar_control.api.nova import versions
from magnetar_control.web import Fault, Request
from magnetar_core.errors import MagnetarError


def asked(small, headers, path="/v2.1/servers", token="alice", method="GET", content=b""):
    return small.application.handle(Request(method, path, "", {"x-auth-token": token, **headers}, content,
                                            "http://cloud"))


@pytest.mark.parametrize(("headers", "minor"), [
    ({}, 1),
    ({"openstack-api-version": "compute 2.53"}, 53),
    ({"openstack-api-version": "Compute 2.53"}, 53),
    ({"openstack-api-version": "volume 3.1, compute 2.9"}, 9),
    ({"openstack-api-version": "volume 3.1"}, 1),
    ({"openstack-api-version": "volume 3.1", "x-openstack-nova-api-version": "2.7"}, 7),
    ({"x-openstack-nova-api-version": "2.30"}, 30),
    ({"openstack-api-version": "compute latest"}, 104),
    ({"openstack-api-version": "compute 2.2", "x-openstack-nova-api-version": "2.9"}, 2),
])
def test_what_is_asked_for(headers, minor):
    assert versions.negotiate(headers) == minor


@pytest.mark.parametrize(("text", "status"), [
    ("2.105", 406), ("2.0", 406), ("3.1", 406), ("1.1", 406), ("2", 400), ("2.x", 400), ("", 400), ("2.1 2", 400),
    ("02.1", 400), ("2.01", 400), ("-2.1", 400), ("2.1.1", 400), ("latest!", 400), ("٢.1", 400),
])
def test_what_is_refused(small, text, status):
    for header in ("openstack-api-version", "x-openstack-nova-api-version"):
        value = f"compute {text}" if header.startswith("openstack") else text
        answer = asked(small, {header: value})
        assert answer.status == status, (header, text)
        with pytest.raises((Fault, MagnetarError)):
            versions.negotiate({header: value})


def test_headers_of_every_answer(small):
    for headers, path, token in (({"openstack-api-version": "compute 2.60"}, "/v2.1/servers", "alice"),
                                 ({"openstack-api-version": "compute 2.60"}, "/v2.1/servers/none", "alice"),
                                 ({"openstack-api-version": "compute 2.60"}, "/v2.1/servers", "nobody")):
        answer = asked(small, headers, path, token)
        assert answer.headers["openstack-api-version"] == "compute 2.60"
        assert answer.headers["x-openstack-nova-api-version"] == "2.60"
        assert "X-OpenStack-Nova-API-Version" in answer.headers["vary"]
        assert answer.headers["x-compute-request-id"].startswith("req-")


def test_v2_is_the_first_version_whatever_the_headers_say(small):
    answer = asked(small, {"openstack-api-version": "compute 2.60"}, "/v2/servers")
    assert answer.status == 200 and answer.headers["x-openstack-nova-api-version"] == "2.1"


def test_documents_need_no_token(small):
    root = asked(small, {}, "/", "nobody")
    assert root.status == 200
    assert [one["id"] for one in root.content["versions"]] == ["v2.0", "v2.1"]
    assert root.content["versions"][1]["version"] == f"2.{versions.NEWEST}"
    for path in ("/v2.1", "/v2.1/"):
        one = asked(small, {}, path, "nobody").content["version"]
        assert one["id"] == "v2.1" and one["min_version"] == "2.1" and one["links"][0]["href"].endswith("/v2.1/")
    assert asked(small, {}, "/elsewhere", "nobody").status == 300


def test_a_project_in_the_path_must_be_the_tokens(small):
    assert asked(small, {}, "/v2.1/red/servers").status == 200
    assert asked(small, {}, "/v2.1/blue0/servers").status == 400
