# SPDX-License-Identifier: GPL-3.0-or-later
"""The claim that is one statement of PostgreSQL does as ``allocations.claim_host_resources``."""

import threading

import pytest
from sqlalchemy import select

from magnetar_control.store.claims import allocations, host_counters
from magnetar_control.store.claims.allocations import Amounts, Claim, claim_by_single_statement
from magnetar_control.store.engine.tables import allocations as claimed
from magnetar_control.store.engine.tables import hosts as table
from magnetar_control.store.engine.tables import server_mappings
from magnetar_control.store.hosts import hosts
from tests.support.control.allocations import a_cell, a_host, claim
from tests.support.control.counting import counted

ONE = Amounts(1, 100, 1)


def with_room(database):
    """The id of a host with room for three such servers."""
    a_cell(database)
    return a_host(database, vcpus=3)


def at_once(database, server, host_id, amounts=ONE, cell="cell", **how):
    with database.single() as connection:
        return claim_by_single_statement(connection, Claim(server, "project", host_id, cell, amounts), **how)


def rows(database):
    """All allocations but for their moments, the cells of servers, and what the host counts."""
    with database.write() as connection:
        assert host_counters.audit_host_counters(connection) == []
        host = hosts.fetch_host_row(connection, "kvm1")
        mappings = select(server_mappings.c["server_id", "cell_id", "project_id", "deleted"])
        return (sorted(tuple(row)[:-2] for row in connection.execute(select(claimed))),
                sorted(map(tuple, connection.execute(mappings))),
                tuple(getattr(host, f"{name}_used") for name in allocations.RESOURCES), host.servers)


def test_it_writes_what_the_transaction_writes(postgres):
    host = with_room(postgres)
    with counted(api=postgres) as asked:
        assert at_once(postgres, "one", host, Amounts(2, 200, 3)) is True
    assert len(asked) == 1
    found = rows(postgres)
    assert found[1:] == ([("one", "cell", "project", False)], (2, 200, 3, 0), 1)
    with postgres.write() as connection:
        allocations.release_consumer_claims(connection, "one")
        connection.execute(server_mappings.delete())
    assert claim(postgres, "one", host, Amounts(2, 200, 3), project_id="project", cell_id="cell")
    assert rows(postgres) == found


@pytest.mark.parametrize("amounts", [ONE, Amounts(3, 100, 1)])
def test_what_a_server_holds_already_is_the_transactions(postgres, amounts):
    """All that the host has, too: a claim is tried again when its answer is lost, and is no second one then."""
    host = with_room(postgres)
    assert at_once(postgres, "one", host, amounts)
    found = rows(postgres)
    assert at_once(postgres, "one", host, amounts) is None
    assert rows(postgres) == found


def test_the_last_claim_says_which_cell_it_is(postgres):
    with postgres.write() as connection:
        connection.execute(server_mappings.insert().values(server_id="one", cell_id="other", project_id="project"))
    assert at_once(postgres, "one", with_room(postgres))
    assert rows(postgres)[1] == [("one", "cell", "project", False)]


@pytest.mark.parametrize(("column", "amounts"), [
    ("", Amounts(4, 100, 1)), ("", Amounts(1, 5000, 1)), ("", Amounts(1, 1, 101)), ("", Amounts(pcpus=1)),
    ("disabled", ONE), ("forced_down", ONE)])
def test_what_does_not_fit_changes_nothing(postgres, column, amounts):
    host = with_room(postgres)
    if column:
        with postgres.write() as connection:
            connection.execute(table.update().values({column: True}))
    assert at_once(postgres, "one", host, amounts) is False
    assert at_once(postgres, "one", "gone", amounts) is False
    assert rows(postgres) == ([], [], (0, 0, 0, 0), 0)
    assert at_once(postgres, "one", host, amounts, ignore_disabled=True) is bool(column)


def test_of_many_who_race_as_many_win_as_there_is_room_for(postgres):
    host, start, won = with_room(postgres), threading.Barrier(12), []

    def conduct(at):
        start.wait()
        won.append(at_once(postgres, f"s{at}", host) if at % 2 else claim(
            postgres, f"s{at}", host, ONE, project_id="project", cell_id="cell"))

    threads = [threading.Thread(target=conduct, args=(at,)) for at in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(won) == [False] * 9 + [True] * 3
    assert rows(postgres)[2:] == ((3, 300, 3, 0), 3)
