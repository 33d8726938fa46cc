# SPDX-License-Identifier: GPL-3.0-or-later
"""An action that is held back while the API asks another service: what became of it meanwhile is not undone."""

import dataclasses

import orjson
import pytest
from sqlalchemy import select, update

from magnetar_control.store.engine.tables import actions, servers
from magnetar_core.errors import Conflict

VOLUME = "0f2f9f7e-3d7e-4c1b-a0c6-5be1fd1d7fb5"


class Volumes:
    """One volume; while it is to be reserved the action changes, and then it cannot be."""

    def __init__(self, compute, **values):
        self.compute, self.values = compute, values

    def show(self, _context, id):
        return {"id": id, "multiattach": False, "status": "available", "size": 1}

    def reserve(self, *_args, **_more):
        with self.compute.cell.write() as connection:
            connection.execute(update(actions).values(**self.values))
        raise Conflict("It is not to be had.")


@pytest.mark.parametrize(("state", "kept"), [("queued", []), ("running", [VOLUME]), ("done", [VOLUME]), ("failed", [])])
def test_only_what_nobody_has_taken_is_taken_back(small, state, kept):
    id = small.server(host="kvm1")
    small.cloud.services = dataclasses.replace(small.cloud.services, volume=Volumes(small, state=state))
    reply = small.alice.post(f"/servers/{id}/os-volume_attachments", {"volumeAttachment": {"volumeId": VOLUME}}, "2.60")
    assert reply.status == 409, reply
    with small.cell.read() as connection:
        states = connection.execute(select(actions.c.state).where(actions.c.server_id == id)).scalars().all()
        volumes = orjson.loads(connection.execute(select(servers.c.volumes).where(servers.c.id == id)).scalar_one())
    assert states == ([] if state == "queued" else [state])
    assert [one["volume_id"] for one in volumes] == kept
