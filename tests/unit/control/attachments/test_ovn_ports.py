# SPDX-License-Identifier: GPL-3.0-or-later
"""A port of OVN that a server gets while it is on a host."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from magnetar_control import serve
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from tests.support.control.cloud import Cloud


@pytest.fixture(scope="module")
def cloud():
    with patch.object(serve, "engine_of", lambda _settings: FakeEngine()), Cloud(
            hosts=1, links=True, ovn_hosts_wait=0.0) as made:
        yield made


def test_it_is_written_with_its_host(cloud, monkeypatch):
    admin = cloud.admin
    server, prepare, seen = admin.boot("web1", "2.60"), EmbeddedNetworks.prepare, []

    def noted(service, server_id, *args, **more):
        seen.extend(one["host"] for one in service.ports(server_id))
        return prepare(service, server_id, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedNetworks, "prepare", noted)
        reply = admin.post(f"/v2.1/servers/{server['id']}/os-interface", {"interfaceAttachment": {}})
    assert reply.status == 200 and seen == [server["OS-EXT-SRV-ATTR:host"]] * 2
    admin.delete(f"/v2.1/servers/{server['id']}")
    assert admin.settled(server["id"]) is None
