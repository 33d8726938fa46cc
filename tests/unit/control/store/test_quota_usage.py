# SPDX-License-Identifier: GPL-3.0-or-later
"""The counted quota usage is that of the servers, whatever changes them and however many do it at the same time."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import delete, func, insert, select, text, update

from magnetar_control.store.accounts import quota_usage
from magnetar_control.store.engine import schema
from magnetar_control.store.engine.database import insert_if_absent
from magnetar_control.store.engine.tables import CELL, servers
from magnetar_control.store.engine.tables import quota_usage as usage_table
from tests.support.control.quota_rows import SMALL, usage_row

LARGE = {"vcpus": 4, "ram": 2048}


def used(connection, project="red", user=None):
    """Instances, cores and RAM."""
    rows = quota_usage.fetch_quota_usage(connection, project, user)
    return tuple(sum(getattr(one, name) for one in rows) for name in quota_usage.COUNTED)


#: Changes of a server that counts, and what it uses then.
CHANGES = {
    "task": ({"task_state": "deleting"}, (1, 1, 512)),
    "shelved": ({"vm_state": "shelved_offloaded", "host": None}, (1, 1, 512)),
    "error": ({"vm_state": "error", "fault": "{}"}, (1, 1, 512)),
    "resized": ({"flavor": json.dumps(LARGE), "old_flavor": json.dumps(SMALL)}, (1, 4, 2048)),
    "soft-deleted": ({"vm_state": "soft-delete"}, (0, 0, 0)),
    "restoring": ({"vm_state": "soft-delete", "task_state": "restoring"}, (1, 1, 512)),
    "restoring larger": ({"vm_state": "soft-delete", "task_state": "restoring", "flavor": json.dumps(LARGE)},
                         (1, 4, 2048)),
    "deleted": ({"vm_state": "deleted", "deleted_at": "2026-01-01"}, (0, 0, 0)),
    "leaving": ({"leaving": "cell2"}, (1, 1, 512)),
    "leaving larger": ({"leaving": "cell2", "flavor": json.dumps(LARGE)}, (1, 4, 2048)),
    "leaving soft-deleted": ({"leaving": "cell2", "vm_state": "soft-delete"}, (0, 0, 0)),
    "no sizes": ({"flavor": "{}"}, (1, 0, 0)),
}


def test_each_change_is_counted_there_and_back(database):
    with database.write() as connection:
        server = usage_row()
        connection.execute(insert(servers), server)
        first = {name: server.get(name) for values, _amounts in CHANGES.values() for name in values}
        for words, (values, amounts) in CHANGES.items():
            for change, after in ((values, amounts), (first, (1, 1, 512))):
                connection.execute(update(servers).where(servers.c.id == server["id"]).values(change))
                assert used(connection) == used(connection, user="alice") == after, words
                assert quota_usage.find_wrong_usage(connection) == [], words
        assert used(connection, user="rita") == used(connection, "blue") == (0, 0, 0)


def test_all_ways_in_and_out_are_counted(database):
    with database.write() as connection:
        one, two, three = usage_row(), usage_row(user="rita", flavor=LARGE), usage_row("blue")
        connection.execute(insert(servers), [
            one, two, three, usage_row(vm_state="soft-delete"), usage_row(deleted_at="2026")])
        assert (used(connection), used(connection, "blue")) == ((2, 5, 2560), (1, 1, 512))
        assert not insert_if_absent(connection, servers, **one)
        connection.execute(update(servers).where(servers.c.id == one["id"]).values(project_id="blue", user_id="rita"))
        assert (used(connection), used(connection, "blue", "rita")) == ((1, 4, 2048), (1, 1, 512))
        gone = connection.execute(delete(servers).where(servers.c.id.in_([one["id"], two["id"]])).returning(servers))
        assert len(gone.all()) == 2
        assert (used(connection), used(connection, "blue")) == ((0, 0, 0), (1, 1, 512))
        assert quota_usage.find_wrong_usage(connection) == []


def test_what_is_rolled_back_is_not_counted(database):
    with pytest.raises(ZeroDivisionError), database.write() as connection:
        connection.execute(insert(servers), usage_row())
        raise ZeroDivisionError
    with database.read() as connection:
        assert used(connection) == (0, 0, 0)


def change_at_random(database, seed):
    """Insert, resize, soft-delete, restore and remove servers in small transactions."""
    dice, mine = random.Random(seed), []
    for _turn in range(25):
        with database.write() as connection:
            new = [usage_row(dice.choice(("red", "blue")), dice.choice(("alice", "rita")), dice.choice((SMALL, LARGE)))
                   for _one in range(dice.randrange(3))]
            if new:
                connection.execute(insert(servers), new)
            mine += [one["id"] for one in new]
            for id in dice.sample(mine, min(2, len(mine))):
                values, _amounts = dice.choice([*CHANGES.values(), ({"vm_state": "active", "leaving": None}, ())])
                connection.execute(update(servers).where(servers.c.id == id).values(values))
            if mine and dice.random() < 0.3:
                connection.execute(delete(servers).where(servers.c.id == mine.pop()))


def test_many_at_once_are_counted(database):
    with ThreadPoolExecutor(6) as threads:
        for future in [threads.submit(change_at_random, database, seed) for seed in range(6)]:
            future.result()
    with database.read() as connection:
        assert quota_usage.find_wrong_usage(connection) == []
        assert connection.execute(select(func.count()).select_from(servers)).scalar() > 30


def test_no_transaction_waits_for_another(postgres):
    """Two change servers of two users in turn: with one row each they would wait, and then be a deadlock."""
    with postgres.engine.connect() as first, postgres.engine.connect() as second:
        for connection in (first, second):
            connection.execute(text("SET lock_timeout = 50"))
        for user in ("alice", "rita"):
            first.execute(insert(servers), usage_row(user=user))
            second.execute(insert(servers), usage_row(user="rita" if user == "alice" else "alice"))
        first.commit()
        second.commit()
    with postgres.read() as connection:
        assert used(connection) == (4, 4, 2048)
        assert connection.execute(select(func.count()).select_from(usage_table)).scalar() == 4
    for _time in range(3):
        with postgres.write() as connection:
            connection.execute(insert(servers), usage_row())
    with postgres.read() as connection:  # rows of before are used again
        assert connection.execute(select(func.count()).select_from(usage_table)).scalar() == 4


@pytest.mark.parametrize("by_hand", [
    update(usage_table).where(usage_table.c.user_id == "alice").values(cores=7), delete(usage_table),
    insert(usage_table).values(project_id="red", user_id="nobody", slot=5, instances=1, cores=0, ram=-4)],
    ids=["changed", "removed", "added"])
def test_what_was_changed_by_hand_is_found_and_corrected(database, by_hand):
    with database.write() as connection:
        connection.execute(insert(servers), [
            usage_row(), usage_row(user="rita", flavor=LARGE), usage_row(leaving="cell2")])
        connection.execute(by_hand)
        found = quota_usage.find_wrong_usage(connection)
        assert found and all("project red" in one.text for one in found)
        assert quota_usage.repair_quota_usage(connection, "red") == found
        assert quota_usage.find_wrong_usage(connection) == []
        assert used(connection) == (3, 6, 3072)


def test_rows_of_users_without_servers_are_removed(database):
    with database.write() as connection:
        connection.execute(insert(servers), [usage_row(), usage_row(user="rita")])
        connection.execute(delete(servers).where(servers.c.user_id == "rita"))
        quota_usage.remove_empty_usage(connection, "red")
        assert connection.execute(select(usage_table.c.user_id)).scalars().all() == ["alice"]


def test_migrations_put_the_triggers_back(database):
    """A migration that changes the table ``servers`` on SQLite copies it, without its triggers."""
    with database.write() as connection:
        for name in ("insert", "update", "delete"):
            of = "" if database.kind == "sqlite" else " ON servers"
            connection.execute(text(f"DROP TRIGGER servers_usage_{name}{of}"))
        for _time in range(2):
            schema.create_triggers(connection, CELL)
        connection.execute(insert(servers), usage_row())
        assert used(connection) == (1, 1, 512)


def explained(connection, statement):
    """The plan, as text."""
    words = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
    parameters = {"project": "red", "user": "alice", "after": "red"}
    rows = connection.execute(text(words + statement.text), parameters).all()
    return "\n".join(str(one[-1]) for one in rows)


def test_usage_is_read_without_the_servers(database):
    """Of servers only those that leave are read, by an index that has no others."""
    with database.write() as connection:
        connection.execute(insert(servers), [usage_row(project) for project in ("red", "blue") for _one in range(400)])
        connection.execute(insert(servers), [usage_row(leaving="cell2")])
    with database.read() as connection:
        if database.kind == "postgresql":
            connection.execute(text("ANALYZE servers"))
        for of_user in (False, True):
            plan = explained(connection, quota_usage._usage_query(database.kind, of_user).query.element)
            assert "servers_leaving" in plan and "Seq Scan on servers" not in plan and "SCAN servers" not in plan, plan
            assert "servers_project" not in plan, plan
        plan = explained(connection, quota_usage._NEXT_PROJECT)
        assert "Seq Scan on servers" not in plan and "SCAN servers" not in plan, plan
