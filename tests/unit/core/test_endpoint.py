# SPDX-License-Identifier: GPL-3.0-or-later
"""What an endpoint may look like."""

from __future__ import annotations

import pytest

from magnetar_core.errors import InvalidField
from magnetar_core.http.client import Client
from magnetar_core.http.endpoint import SOCKET, Endpoint, cloud_endpoint, parse_endpoint


@pytest.mark.parametrize(("text", "parts"), [
    ("unix:///run/x.sock", Endpoint("unix", "/run/x.sock")),
    ("https://kvm1", Endpoint("https", "", "kvm1", 6553)),
    ("https://[::1]:1/", Endpoint("https", "", "::1", 1)),
    ("ssh://kvm1", Endpoint("ssh", SOCKET, "kvm1")),
    ("ssh://me@KVM1:2222", Endpoint("ssh", SOCKET, "KVM1", 2222, "me")),
    ("ssh://a%40b@[fe80::1]:22/srv/a%20b.sock", Endpoint("ssh", "/srv/a b.sock", "fe80::1", 22, "a@b")),
    ("ssh://kvm1/", Endpoint("ssh", SOCKET, "kvm1")),
])
def test_parts(text, parts):
    assert parse_endpoint(text) == parts


@pytest.mark.parametrize("text", [
    "", "kvm1", "http://kvm1", "ftp://x", "unix://host/path", "unix:path", "https://", "https://h:port", "https://h:0",
    "https://h:70000", "https://h/path", "ssh://", "ssh:kvm1", "ssh://me@", "ssh://h:0", "ssh://h/p?x=1", "ssh://[::1",
])
def test_refused(text):
    with pytest.raises(InvalidField, match="endpoint: must"):
        parse_endpoint(text)


def test_a_password_is_refused_and_not_shown():
    with pytest.raises(InvalidField, match="ssh://me:...@kvm1") as caught:
        parse_endpoint("ssh://me:geheim@kvm1")
    assert "geheim" not in caught.value.message


def test_the_core_alone_knows_no_ssh():
    with pytest.raises(InvalidField, match="Ansible"):
        Client("ssh://kvm1")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "[::1]"])
def test_a_cloud_on_this_machine_may_be_reached_by_http(host):
    assert cloud_endpoint(f"http://{host}:8774/v2.1").scheme == "http"


@pytest.mark.parametrize("host", ["127.example.com", "127.0.0.1.example.com", "cloud.example.com", "192.0.2.1"])
def test_a_cloud_elsewhere_must_be_reached_by_https(host):
    with pytest.raises(InvalidField, match="must be an https URL"):
        cloud_endpoint(f"http://{host}:8774/v2.1")
