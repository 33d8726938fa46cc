# SPDX-License-Identifier: GPL-3.0-or-later
"""A volume changes its host while others do something with it: one of them is refused, and no host keeps what is not
its own."""

from __future__ import annotations

import contextlib
import uuid

import pytest
from sqlalchemy import delete, insert, select, update

from magnetar_control.services.volume.homes import VolumeHomes
from magnetar_control.services.volume.pools import pool_id_of, save_host_pools
from magnetar_control.services.volume.reach import Reach
from magnetar_control.services.volume.removal_rows import RECORD, VOLUME
from magnetar_control.services.volume.tables import attachments, snapshots, volumes
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import cells, host_removals, hosts
from magnetar_control.store.hosts.host_removals import insert_removal_row
from magnetar_core.errors import Conflict, InUse, NotFound, Unreachable

ID, SERVER = "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11", str(uuid.uuid4())
POOL = {"name": "team", "kind": "nfs", "identity": "nfs:nas:/team", "shared": True, "total_gb": 9, "free_gb": 9,
        "state": "up", "reason": ""}


class Client:
    """The agent of a host. *meanwhile* is called while it takes over a volume."""

    def __init__(self, meanwhile):
        self.meanwhile = meanwhile

    def ensure(self, _noun, _id, want, **_more):
        assert want["adopt"] and want["size"] == 1
        self.meanwhile()


class OneHost(Reach):
    """Access to a host whose agent is *agent*."""

    def client(self, _name):
        return contextlib.nullcontext(self.agents)


@pytest.fixture
def stored(database):
    """A volume of kvm1 in a pool that kvm2 and kvm3 reach too."""
    with database.write() as connection:
        connection.execute(insert(cells).values(id="c", name="cell1", database_url="", created_at=utc_now()))
        for number, name in enumerate(("kvm1", "kvm2", "kvm3")):
            connection.execute(insert(hosts).values(id=name, name=name, number=number, cell_id="c", endpoint="",
                                                    created_at=utc_now()))
            save_host_pools(connection, name, [POOL])
        connection.execute(insert(volumes).values(
            id=ID, project_id="p", user_id="u", size=1, status="available", volume_type="team", metadata={},
            availability_zone="nova", created_at=utc_now(), image_metadata={}, host="kvm1", pool_id=pool_id_of(
                POOL["identity"])))
    return database


@pytest.fixture
def moved(stored):
    """Moves the volume to kvm2, and does something *meanwhile*; returns the homes."""
    def move(meanwhile=lambda: None, host="kvm2", **more):
        homes = VolumeHomes(stored, OneHost(list, Client(meanwhile), lambda _host, _image: None))
        homes.move(ID, host, **more)
        return homes
    return move


def writes(database, *statements):
    """A function that does these writes."""
    def write():
        with database.write() as connection:
            for statement in statements:
                connection.execute(statement)
    return write


def state(database):
    """The volume's host, and the removals of its record by host: whether they are due."""
    with database.read() as connection:
        return connection.execute(select(volumes.c.host)).scalar(), {row.host: row.due for row in connection.execute(
            select(host_removals).where(host_removals.c.noun == RECORD))}


def attached(server):
    return insert(attachments).values(id=str(uuid.uuid4()), volume_id=ID, project_id="p", server_id=server,
                                      status="attached", created_at=utc_now())


def test_the_old_host_forgets_it(moved, stored):
    homes = moved()
    assert state(stored) == ("kvm2", {"kvm1": True})
    with pytest.raises(Conflict, match="has not given it up yet"):
        homes.move(ID, "kvm1")
    homes.move(ID, "kvm2")  # nothing to do
    assert homes.move_back(ID, "kvm1") and state(stored) == ("kvm1", {"kvm2": True})


def test_a_host_that_must_still_remove_content_of_it_gets_it_not(moved, stored):
    """Such content is left of a migration. The host would remove what has come back."""
    homes = moved()
    homes.move_back(ID, "kvm1")
    with stored.write() as connection:
        connection.execute(host_removals.delete())
        insert_removal_row(connection, "kvm2", VOLUME, ID, due=True)
    with pytest.raises(Conflict, match="has not given it up yet"):
        homes.move(ID, "kvm2")


def test_an_agent_that_does_not_answer_may_have_taken_it_over(moved, stored):
    def silent():
        raise Unreachable("The agent does not answer.")

    with pytest.raises(Unreachable):
        moved(silent)
    assert state(stored) == ("kvm1", {"kvm2": False})
    moved()  # again
    assert state(stored) == ("kvm2", {"kvm1": True})


def test_an_agent_that_refuses_forgets_it(moved, stored):
    def refuses():
        raise InUse("No.")

    with pytest.raises(InUse):
        moved(refuses)
    assert state(stored) == ("kvm1", {"kvm2": True})


@pytest.mark.parametrize(("meanwhile", "error", "host"), [
    ([delete(volumes)], NotFound, None),
    ([update(volumes).values(host="kvm3")], Conflict, "kvm3"),
    ([update(volumes).values(task="delete", status="deleting")], Conflict, "kvm1"),
    ([attached(SERVER)], Conflict, "kvm1"),
    ([insert(snapshots).values(id="s", project_id="p", user_id="u", size=1, status="creating", task="create",
                               volume_id=ID, volume_type="team", created_at=utc_now(), metadata={})], Conflict, "kvm1"),
])
def test_what_happens_meanwhile_wins(moved, stored, meanwhile, error, host):
    with pytest.raises(error):
        moved(writes(stored, *meanwhile))
    assert state(stored) == (host, {"kvm2": True})


def test_two_processes_may_move_it_to_one_host(moved, stored):
    moved(moved)
    assert state(stored) == ("kvm2", {"kvm1": True})


def test_a_process_that_fails_later_takes_nothing_from_the_faster_one(moved, stored):
    def refuses():
        moved()
        raise InUse("No.")

    with pytest.raises(InUse):
        moved(refuses)
    assert state(stored) == ("kvm2", {"kvm1": True})


def test_a_volume_that_several_servers_have_stays(moved, stored):
    writes(stored, attached(SERVER), attached(str(uuid.uuid4())))()
    with pytest.raises(Conflict, match="is attached to"):
        moved(server_id=SERVER)
    assert state(stored) == ("kvm1", {})
