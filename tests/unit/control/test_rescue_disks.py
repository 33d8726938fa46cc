# SPDX-License-Identifier: GPL-3.0-or-later
"""A rescue disk counts on the server's host while the server is rescued. Without room the rescue is refused at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select, update

from magnetar_control.compute.servers import server_actions
from magnetar_control.compute.target import changed_meanwhile
from magnetar_control.conductor.periodic.audit import findings_of_checks
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.tables import hosts
from tests.support.control.audited import read_state
from tests.support.control.cloud import Cloud
from tests.unit.core.images import iso


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1) as made:
        yield made


def held(cloud: Cloud, server: str) -> int:
    """The GiB of disk that the server holds, which is all that is counted on the host."""
    with cloud.parts.api_database.read() as connection:
        used = connection.execute(select(hosts.c.disk_gb_used)).scalar_one()
        found = sum(one.disk_gb for one in allocations.fetch_server_claims(connection, server))
    assert found == used
    return found


def kinds(cloud: Cloud) -> list[str]:
    """What the audit finds."""
    return [one.kind for one in findings_of_checks(read_state(cloud.parts.store, cloud.parts.agents, cloud.services))]


def test_it_is_held_until_the_unrescue(cloud: Cloud) -> None:
    admin = cloud.admin
    id = admin.boot("web1")["id"]
    own = held(cloud, id)
    for _time in range(2):
        assert admin.act(id, "rescue", {}).status == 200
        assert held(cloud, id) == own + 1
        found = admin.settled(id)
        assert found and found["status"] == "RESCUE", found
        assert (held(cloud, id), kinds(cloud)) == (own + 1, [])
        assert admin.act(id, "unrescue").status == 202
        found = admin.settled(id)
        assert found and found["status"] == "ACTIVE", found
        assert (held(cloud, id), kinds(cloud)) == (own, [])
    assert admin.act(id, "rescue", {}).status == 200
    admin.settled(id)
    admin.delete(f"/v2.1/servers/{id}")
    assert admin.settled(id) is None
    assert held(cloud, id) == 0


def test_nothing_is_held_of_a_rescue_that_something_else_came_before(
        cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = cloud.admin
    id = admin.boot("web3")["id"]
    own = held(cloud, id)

    def late(_caller: Any, target: Any, key: str, *_args: Any, **_values: Any) -> None:
        raise changed_meanwhile(target, key)

    with monkeypatch.context() as patched:
        patched.setattr(server_actions, "enqueue_action", late)
        assert admin.act(id, "rescue", {}).status == 409
    assert (held(cloud, id), kinds(cloud)) == (own, [])
    admin.delete(f"/v2.1/servers/{id}")
    admin.settled(id)


def test_it_is_refused_where_the_host_has_no_room(cloud: Cloud) -> None:
    """A CD takes none."""
    admin = cloud.admin
    id = admin.boot("web2")["id"]
    own = held(cloud, id)
    with cloud.parts.api_database.write() as connection:
        limit = connection.execute(select(hosts.c.disk_gb_limit)).scalar_one()
        connection.execute(update(hosts).values(disk_gb_limit=own))
    try:
        refused = admin.act(id, "rescue", {})
        assert refused.status == 409 and "takes 1 GiB, and the server's host has less" in refused.json[
            "conflictingRequest"]["message"], refused
        assert (admin.server(id)["OS-EXT-STS:task_state"], held(cloud, id)) == (None, own)
        disc = admin.image("disc", iso(), disk_format="iso")
        assert admin.act(id, "rescue", {"rescue_image_ref": disc}, "2.60").status == 200
        assert held(cloud, id) == own
        admin.settled(id)
    finally:
        with cloud.parts.api_database.write() as connection:
            connection.execute(update(hosts).values(disk_gb_limit=limit))
        admin.delete(f"/v2.1/servers/{id}")
        admin.settled(id)
