# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's life over HTTP, on fake hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .cloud import Cloud


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud() as made:
        yield made


def test_a_life(cloud: Cloud) -> None:
    admin = cloud.admin
    server = admin.boot("life")
    assert server["status"] == "ACTIVE" and server["OS-EXT-SRV-ATTR:host"] in cloud.hosts
    assert server["addresses"]["default"][0]["version"] == 4
    for action, args, status in (("pause", None, "PAUSED"), ("unpause", None, "ACTIVE"), ("suspend", None, "SUSPENDED"),
                                 ("resume", None, "ACTIVE"), ("os-stop", None, "SHUTOFF"), ("os-start", None, "ACTIVE"),
                                 ("reboot", {"type": "HARD"}, "ACTIVE"), ("rescue", None, "RESCUE"),
                                 ("unrescue", None, "ACTIVE"), ("rebuild", {"imageRef": admin.image()}, "ACTIVE")):
        reply = admin.act(server["id"], action, args)
        assert reply.status in (200, 202), (action, reply)
        found = admin.settled(server["id"])
        assert found and found["status"] == status, (action, found)
    assert admin.delete(f"/v2.1/servers/{server['id']}").status == 204
    assert admin.settled(server["id"]) is None
