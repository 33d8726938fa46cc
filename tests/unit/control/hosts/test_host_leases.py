# SPDX-License-Identifier: GPL-3.0-or-later
"""Leases and heartbeats of many hosts in a few statements, on both engines."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import event, insert, select, update

from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import host_states, migrations
from magnetar_control.store.hosts.host_leases import REMOVING, renew_host_leases, take_host_leases
from magnetar_control.store.hosts.services import is_host_heard
from magnetar_control.store.servers.migrations import EVACUATION, LOST


def evacuated(database, host):
    """The uuid of a new evacuation from the host."""
    id = str(uuid.uuid4())
    with database.write() as connection:
        connection.execute(insert(migrations), {
            "uuid": id, "server_id": str(uuid.uuid4()), "project_id": "p", "user_id": "u", "type": EVACUATION,
            "status": LOST, "source": host, "created_at": utc_now()})
    return id


def rows(database):
    with database.read() as connection:
        return {row.host: row for row in connection.execute(select(host_states))}


def heard(database, host):
    with database.read() as connection:
        return is_host_heard(database, connection, host, 15.0)


def test_a_host_has_one_watcher(database):
    assert take_host_leases(database, "one", ["a", "b"]) == {"a", "b"}
    assert take_host_leases(database, "two", ["a", "b", "c"]) == {"c"}
    renewal = renew_host_leases(database, "two", {"a": (), "c": ()})
    assert renewal.up == {"c"} and renewal.lost == {"a"} and not renewal.evacuated
    assert heard(database, "c") and not heard(database, "a")
    with database.write() as connection:
        connection.execute(update(host_states).where(host_states.c.host == "a").values(
            lease_until=database.clock(-1)))
    assert take_host_leases(database, "two", ["a", "b"]) == {"a"}
    assert renew_host_leases(database, "one", {}, ["a", "b"]).lost == {"a"}


def test_a_host_is_not_up_while_servers_that_were_evacuated_are_on_it(database):
    take_host_leases(database, "one", ["a", "b"])
    first = evacuated(database, "a")
    renewal = renew_host_leases(database, "one", {"a": (), "b": ()})
    assert renewal.up == {"b"} and renewal.evacuated == {"a"}
    assert not heard(database, "a") and rows(database)["a"].problem == REMOVING
    second = evacuated(database, "a")
    assert renew_host_leases(database, "one", {"a": [first]}).evacuated == {"a"}
    assert renew_host_leases(database, "one", {"a": [first, second]}).up == {"a"}
    assert heard(database, "a") and rows(database)["a"].problem is None


def test_what_a_host_says_is_written_with_its_heartbeat(database):
    take_host_leases(database, "one", ["a", "b"])
    renew_host_leases(database, "one", {"a": ()}, ["b"], {"b": "It burns."}, {"a": "{}"})
    assert (rows(database)["a"].told, rows(database)["b"].problem) == ("{}", "It burns.")
    assert not heard(database, "b")
    renew_host_leases(database, "one", {"b": ()})
    assert rows(database)["b"].problem is None and heard(database, "b")


@pytest.mark.parametrize("count", [1, 300])
def test_the_number_of_statements_does_not_grow_with_the_hosts(database, count):
    names = [f"kvm{number}" for number in range(count)]
    take_host_leases(database, "one", names)
    statements = []
    event.listen(database.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert renew_host_leases(database, "one", dict.fromkeys(names, ())).up == set(names)
    assert len([text for text in statements if not text.startswith(("BEGIN", "COMMIT"))]) == 3
