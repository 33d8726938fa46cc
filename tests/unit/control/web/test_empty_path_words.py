# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths with an empty name: no list or other resource is meant by it, as with the services that are stood in for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magnetar_control.web.routing import ANY_SLASH, Route, Router
from tests.support.control.cloud import Cloud


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1) as found:
        yield found


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/v2.1/servers/"), ("DELETE", "/v2.1/servers/"), ("GET", "/v2.1/os-simple-tenant-usage/"),
    ("GET", "/v2.1/flavors/"), ("GET", "/v2.1//servers"), ("GET", "/v2.1/servers//ips"),
    ("GET", "/v2.1/{project}/servers/"),
    ("DELETE", "/image/v2/images/"), ("GET", "/image/v2/images/"), ("GET", "/image/v2/images//members"),
    ("GET", "/volume/v3/{project}/volumes/"), ("DELETE", "/volume/v3/{project}/volumes/"),
    ("GET", "/placement/resource_providers/"), ("GET", "/v1/server/"), ("DELETE", "/v1/server/"),
    ("DELETE", "/network/v2.0/networks//"), ("GET", "/identity/v3/users//projects")])
def test_an_empty_name_is_nobody(cloud: Cloud, method: str, path: str) -> None:
    assert cloud.admin.call(method, path.replace("{project}", cloud.admin.project_id)).status == 404


@pytest.mark.parametrize("path", [
    "/v2.1", "/v2.1/", "/v2/", "/identity/v3", "/identity/v3/", "/volume/v3/", "/network/v2.0", "/network/v2.0/",
    "/placement", "/placement/", "/v1", "/v1/", "/v2.1/servers", "/identity/v3/users/", "/network/v2.0/networks/",
    "/image/v2/images"])
def test_versions_may_end_with_a_slash(cloud: Cloud, path: str) -> None:
    """And all that Keystone and Neutron have."""
    assert cloud.admin.get(path).status == 200


@pytest.mark.parametrize(("path", "slash", "found"), [
    ("/v3", 0, True), ("/v3/", 0, False), ("/v3/", 1, True), ("/v3//", 1, False), ("/v3/a/", 1, False),
    ("/v3/a/", ANY_SLASH, True), ("/v3/a//", ANY_SLASH, False), ("//v3", ANY_SLASH, False), ("/v3//b", 0, False),
    ("/v3/a/b", 0, True), ("/", 0, False), ("", 0, False)])
def test_words(path: str, slash: int, found: bool) -> None:
    routes = [Route(method="GET", path=where, handler=print) for where in ("/v3", "/v3/{id}", "/v3/{id}/b")]
    assert bool(Router(routes, slash).find(path)) is found
