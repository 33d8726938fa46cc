# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of tags and addresses follow the servers' documents, and addresses of filters are complete."""

import random
import re

from sqlalchemy import delete, insert, select

from magnetar_control.store.engine.tables import actions, server_addresses, server_tags, servers
from magnetar_control.store.servers import cell_moves
from magnetar_control.store.servers.server_candidates import address_prefixes
from magnetar_control.store.servers.servers import insert_server_rows, update_server_progress, update_server_row

ADDRESSES = '{"private": [{"addr": "10.0.0.7", "version": 4}, {"addr": "fd00::7", "version": 6}]}'
MOMENT = "2026-11-01T00:00:00.000000"
ROW = {"id": "s1", "project_id": "p", "user_id": "u", "name": "web", "vm_state": "active", "flavor_id": "1",
       "flavor": "{}", "created_at": MOMENT, "tags": '["a", "b"]', "addresses": "{}"}


def _texts(connection):
    return [sorted(connection.execute(select(column)).scalars()) for column in (
        server_tags.c.tag, server_addresses.c.address)]


def test_rows_follow_the_documents_of_a_server(database):
    with database.write() as connection:
        insert_server_rows(connection, [ROW, {**ROW, "id": "s2", "tags": "[]"}], "req-1")
        assert _texts(connection) == [["a", "b"], []]
        update_server_progress(connection, "s1", addresses=ADDRESSES)
        update_server_row(connection, "s1", tags='["c"]')
        assert _texts(connection) == [["c"], ["10.0.0.7", "fd00::7"]]
        update_server_row(connection, "s1", addresses=ADDRESSES, tags="[]", name="db")
        assert _texts(connection) == [[], ["10.0.0.7", "fd00::7"]]
        update_server_progress(connection, "s1", addresses="{}", deleted_at=MOMENT)
        assert _texts(connection) == [[], []]


def test_rows_leave_and_arrive_with_their_server(database):
    with database.write() as connection:
        insert_server_rows(connection, [ROW], "req-1")
        update_server_row(connection, "s1", addresses=ADDRESSES)
        leaving = cell_moves.fetch_moving_rows(connection, "s1")
        cell_moves.remove_moved_rows(connection, "s1")
        assert _texts(connection) == [[], []]
        assert cell_moves.insert_moving_rows(connection, leaving)
        assert _texts(connection) == [["a", "b"], ["10.0.0.7", "fd00::7"]]
        connection.execute(delete(servers))
        assert _texts(connection) == [[], []]


def test_creations_are_held_until_a_time_of_the_database(database):
    with database.write() as connection:
        insert_server_rows(connection, [ROW, {**ROW, "id": "s2"}], "req-1", not_before=database.clock(60))
        insert_server_rows(connection, [{**ROW, "id": "s3"}], "req-2", not_before=database.clock(60))
        insert_server_rows(connection, [{**ROW, "id": "s4"}], "req-3")
        held = connection.execute(select(actions.c.server_id).where(actions.c.not_before > database.clock(30)))
        assert sorted(held.scalars()) == ["s1", "s2", "s3"]


def test_a_new_server_is_unchanged_since_its_creation(database):
    with database.write() as connection:
        connection.execute(insert(servers), [ROW])
        assert connection.execute(select(servers.c.updated_at)).scalar() == MOMENT


def test_each_address_that_an_expression_accepts_begins_with_one_of_its_prefixes():
    drawn = random.Random(5)
    numbers = ("0", "1", "2", "5", "10", "11", "25", "55", "77", "100", "112", "152", "168", "192", "200", "255")
    addresses = [".".join(drawn.choices(numbers, k=4)) for _at in range(3000)]
    known = 0
    for _at in range(300):
        text = ".".join(drawn.choices(numbers, k=drawn.choice((2, 3, 3, 4, 4, 5))))
        pattern = f"{drawn.choice(('', '^', '.'))}{drawn.choice((text, re.escape(text)))}{drawn.choice(('', '$', '.'))}"
        prefixes = address_prefixes(pattern)
        if prefixes is not None:
            known += 1
            begun = {address for address in addresses if address.startswith(tuple(prefixes))}
            assert {address for address in addresses if re.search(pattern, address)} <= begun, pattern
    assert known > 150


def test_prefixes_are_few():
    assert address_prefixes("10.0.0.77") == ["10.0.0.77", "110.0.0.77", "210.0.0.77"]
    assert address_prefixes(r"^10\.0\.0\.7$") == ["10.0.0.7"]
    assert address_prefixes("^10.0.") == ["10.0"]
    assert address_prefixes("^192.168.1.5")[:3] == ["192.168.1.5", "192.168.105", "192.168.115"]
    assert len(address_prefixes("192.168.1.5")) == 1 + 10 + 256 * 10
    assert len(address_prefixes("10.0.77")) == 3 + 256 * 3
    assert len(address_prefixes("10.0.1.5")) == 3 * (1 + 10 + 256 * 10)
    for pattern in ("", "10.0", "10.1.5", "10.0.0.[0-9]", "fd00::1", "1.2.3.4.5.6"):
        assert address_prefixes(pattern) is None, pattern
    assert address_prefixes("^10.0$") == address_prefixes("300.1.77.3") == []
