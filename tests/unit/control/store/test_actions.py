# SPDX-License-Identifier: GPL-3.0-or-later
"""The queue: leases, one action of a server at a time, limits of hosts, fairness between projects; on both engines."""

import threading
from collections import Counter
from types import MappingProxyType

import pytest
from sqlalchemy import select, update

from magnetar_control.store.actions import actions as queue
from magnetar_control.store.actions import stopped_actions
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import action_events, actions
from magnetar_control.store.servers import servers

NO_LIMITS = MappingProxyType({})


def put(database, server, key="os-stop", project="p1", host=None):
    with database.write() as connection:
        return servers.insert_action_row(connection, server, key, f"req-{server}-{key}", "u1", project, host=host)


def taken(database, holder="one", count=10, limits=NO_LIMITS):
    return [row.server_id for row in queue.lease_next_actions(database, holder, count, limits).rows]


def expire(database):
    with database.write() as connection:
        connection.execute(update(actions).values(lease_until=database.clock(-1)))


def states(database):
    with database.read() as connection:
        return [row.state for row in connection.execute(select(actions.c.state).order_by(actions.c.id))]


def test_in_order_and_once(database):
    for name in ("s1", "s2", "s3"):
        put(database, name)
    assert taken(database, count=2) == ["s1", "s2"]
    assert taken(database, "two") == ["s3"]
    assert taken(database, "two") == []


def test_it_is_told_when_the_next_delayed_action_is_due(database):
    assert queue.seconds_until_due(database) is None
    first, second = put(database, "s1"), put(database, "s2")
    assert queue.seconds_until_due(database) is None
    taken(database)
    with database.write() as connection:
        queue.requeue_action_row(connection, first, "one", database.clock(30.0))
        queue.requeue_action_row(connection, second, "one", database.clock(20.0))
    assert 15 < queue.seconds_until_due(database) <= 20
    with database.write() as connection:
        connection.execute(update(actions).where(actions.c.id == second).values(not_before=database.clock(-1)))
    assert 25 < queue.seconds_until_due(database) <= 30, "the second is due already"


def test_one_action_of_a_server_at_a_time(database):
    first, _second = put(database, "s1", "os-stop"), put(database, "s1", "os-start")
    assert taken(database) == ["s1"]
    assert taken(database, "two") == []
    with database.write() as connection:
        assert queue.end_action_row(connection, first, "one")
    assert taken(database, "two") == ["s1"]
    assert states(database) == ["done", "running"]


def test_it_is_told_whether_something_is_left(database):
    assert not queue.lease_next_actions(database, "one", 2, NO_LIMITS).more
    first, _second = put(database, "s1", "os-stop"), put(database, "s1", "os-start")
    assert queue.lease_next_actions(database, "one", 2, NO_LIMITS).more, "the second waits for the first"
    assert queue.lease_next_actions(database, "one", 2, NO_LIMITS) == ([], True)
    with database.write() as connection:
        queue.end_action_row(connection, first, "one")
    assert not queue.lease_next_actions(database, "one", 1, NO_LIMITS, likely=True).more
    for name in ("s2", "s3", "s4"):
        put(database, name)
    assert queue.lease_next_actions(database, "one", 2, NO_LIMITS).more
    assert not queue.lease_next_actions(database, "one", 2, NO_LIMITS).more
    assert queue.lease_next_actions(database, "one", 2, NO_LIMITS, likely=True) == ([], False)


def test_who_looks_at_the_same_moment_takes_nothing_twice(database):
    names = [f"s{number}" for number in range(40)]
    for name in names:
        put(database, name)
    found, barrier = [], threading.Barrier(4)

    def look(holder):
        barrier.wait()
        for _turn in range(20):
            found.extend(taken(database, holder, 3))

    threads = [threading.Thread(target=look, args=(f"holder{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(names)


def test_what_a_dead_conductor_held_is_taken_over(database):
    number = put(database, "s1")
    assert taken(database, "dead") == ["s1"]
    assert taken(database, "two") == []
    expire(database)
    assert taken(database, "two") == ["s1"]
    with database.write() as connection:
        assert not queue.end_action_row(connection, number, "dead"), "who lost the lease cannot end the action"
        assert queue.end_action_row(connection, number, "two")


def test_a_heartbeat_keeps_leases_and_tells_what_is_cancelled(database):
    number = put(database, "s1")
    taken(database, "one")
    expire(database)
    assert queue.renew_action_leases(database, "one") == set()
    assert taken(database, "two") == []
    with database.write() as connection:
        stopped_actions.cancel_server_actions(connection, "s1")
    assert queue.renew_action_leases(database, "one") == {number}


def test_who_ends_gives_back(database):
    put(database, "s1")
    taken(database, "one")
    queue.requeue_held_actions(database, "one")
    assert taken(database, "two") == ["s1"]


def test_put_back_until_later(database):
    number = put(database, "s1")
    taken(database)
    with database.write() as connection:
        queue.requeue_action_row(connection, number, "one", database.clock(60))
    assert taken(database) == []
    with database.write() as connection:
        connection.execute(update(actions).values(not_before=database.clock(-1)))
    assert taken(database) == ["s1"]


def test_limits_of_a_host(database):
    for at in range(4):
        put(database, f"s{at}", "create", host="kvm1")
    put(database, "other", "create", host="kvm2")
    assert taken(database, limits={"build": 2}) == ["s0", "s1", "other"]
    assert taken(database, "two", limits={"build": 2}) == []


def test_projects_take_turns(database):
    for at in range(6):
        put(database, f"a{at}", project="many")
    put(database, "b0", project="few")
    assert "b0" in taken(database, count=2)


def test_deleted_servers_lose_what_is_queued(database):
    put(database, "s1")
    with database.write() as connection:
        stopped_actions.cancel_server_actions(connection, "s1")
    assert states(database) == ["failed"]


def test_the_event_of_an_attempt_that_was_cut_off_ends_with_the_action(database):
    """It is in the queue again, and is dropped there."""
    number = put(database, "s1")
    taken(database)
    with database.write() as connection:
        queue.insert_event_row(connection, number, "compute_stop_instance", "kvm1")
        queue.requeue_action_row(connection, number, "one", database.clock(60))
        stopped_actions.cancel_server_actions(connection, "s1")
        [event] = connection.execute(select(action_events.c.result, action_events.c.finish_time)).all()
    assert states(database) == ["failed"]
    assert event.result == "Error" and event.finish_time


@pytest.mark.parametrize("threads", [4])
def test_racing_conductors_take_each_action_once(database, threads):
    for at in range(40):
        put(database, f"s{at}")
    found, lock = [], threading.Lock()

    def race(name):
        while mine := taken(database, name, count=3):
            with lock:
                found.extend(mine)

    running = [threading.Thread(target=race, args=(f"c{at}",)) for at in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert sorted(found) == sorted(f"s{at}" for at in range(40))


def test_what_is_in_hand_from_the_start_counts_and_ends_like_what_was_taken(database):
    values = {"request_id": "req-1", "server_id": "s1", "action": "create", "project_id": "p1", "user_id": "u1",
              "start_time": utc_now(), "updated_at": utc_now(), "args": "{}", "host": "kvm1", "kind": "build",
              "holder": None, "lease_until": None}
    with database.write() as connection:
        assert queue.free_action_slots(database, connection, ["kvm1"], "build", {"build": 1}) == {"kvm1": 1}
        [begun] = queue.insert_running_actions(database, connection, "one", [values])
        assert queue.free_action_slots(database, connection, ["kvm1", "kvm2"], "build", {"build": 2}) == {"kvm1": 1,
                                                                                                          "kvm2": 2}
        assert queue.free_action_slots(database, connection, ["kvm1"], "live", {"build": 1, "live": 1}) == {"kvm1": 1}
        assert queue.free_action_slots(database, connection, ["kvm1"], "build", NO_LIMITS)["kvm1"] > 1000
    assert (begun.state, begun.holder, begun.attempts) == ("running", "one", 1)
    assert taken(database, "two") == []
    with database.write() as connection:
        assert queue.holds_action_lease(connection, begun.id, "one")
    expire(database)
    assert taken(database, "two") == ["s1"]
    with database.write() as connection:
        assert not queue.end_action_row(connection, begun.id, "one")
        assert queue.free_action_slots(database, connection, ["kvm1"], "build", {"build": 2}) == {"kvm1": 1}


def test_several_are_in_hand_from_the_start(database):
    values = [{"request_id": "req-1", "server_id": f"s{at}", "action": "create", "project_id": "p1", "user_id": "u1",
               "start_time": utc_now(), "updated_at": utc_now(), "args": "{}", "host": "kvm1", "kind": "build"}
              for at in range(3)]
    before = {"event": "schedule", "host": "conductor1", "start_time": "2026-11-22T00:00:00.000000"}
    with database.write() as connection:
        begun = queue.insert_running_actions(database, connection, "one", values)
        events = queue.advance_event_rows(connection, {row.id: "kvm1" for row in begun}, before, "build")
        assert queue.free_action_slots(database, connection, ["kvm1"], "build", {"build": 2}) == {"kvm1": -1}
    assert {row.server_id for row in begun} == {"s0", "s1", "s2"} and {row.holder for row in begun} == {"one"}
    assert taken(database, "two") == []
    with database.read() as connection:
        for row in begun:
            ended, last = connection.execute(select(action_events).where(
                action_events.c.action_id == row.id).order_by(action_events.c.id))
            assert (ended.event, ended.result, last.event, last.finish_time) == ("schedule", "Success", "build", None)
            assert last.id == events[row.id]


def test_a_long_queue_of_one_project_keeps_no_other_waiting(database):
    for at in range(60):
        put(database, f"a{at}", project="a")
    put(database, "b1", project="b")
    assert taken(database, count=1) == ["a0"]
    assert taken(database, count=1) == ["b1"]


def test_a_long_queue_for_one_host_keeps_no_other_waiting(database):
    for at in range(60):
        put(database, f"m{at}", "os-migrateLive", host="kvm1")
    put(database, "s1", project="b", host="kvm2")
    put(database, "s2", "create")
    limits = {"live": 1, "build": 1}
    assert sorted(taken(database, count=4, limits=limits)) == ["m0", "s1", "s2"]
    put(database, "s3", host="kvm1")
    assert taken(database, count=4, limits=limits) == ["s3"]
    assert queue.lease_next_actions(database, "one", 4, limits) == ([], True)


def test_what_is_beyond_a_hosts_share_waits_and_others_pass(database):
    for at in range(60):
        put(database, f"s{at}", host="kvm1")
    put(database, "t1", host="kvm2")
    put(database, "t2")

    def look(**held):
        return [row.server_id for row in queue.lease_next_actions(
            database, "one", 6, NO_LIMITS, share=queue.HostLimits(lambda _host: 3, Counter(held))).rows]

    assert sorted(look(kvm1=1)) == ["s0", "s1", "t1", "t2"]
    assert look(kvm1=3) == []
    put(database, "t3", host="kvm2")
    assert look(kvm1=3, kvm2=1) == ["t3"]
    assert look(kvm1=2) == ["s2"]


def test_who_waits_for_a_full_host_waits_and_others_of_its_servers_host_pass(database):
    numbers = [put(database, f"s{at}", host="kvm2") for at in range(60)]
    with database.write() as connection:
        connection.execute(update(actions).where(actions.c.id.in_(numbers)).values(waits_for="kvm1"))
    put(database, "t1", host="kvm2")
    put(database, "t2", host="kvm1")

    def look(held, guests):
        share = queue.HostLimits(lambda _host: 4, Counter(held), Counter(guests))
        return sorted(row.server_id for row in queue.lease_next_actions(database, "one", 6, NO_LIMITS,
                                                                        share=share).rows)

    assert look({"kvm2": 1, "kvm1": 2}, {"kvm1": 2}) == ["t1", "t2"], "guests have half of a share"
    assert look({"kvm1": 4}, {}) == []
    assert look({"kvm2": 3}, {}) == ["s0"], "it counts for both hosts"
    assert look({}, {}) == ["s1", "s2"]


def test_one_event_ends_and_the_next_begins(database):
    with database.write() as connection:
        number = servers.insert_action_row(connection, "s1", "create", "req-1", "u1", "p1")
        before = {"event": "schedule", "host": "conductor1", "start_time": "2026-11-22T00:00:00.000000"}
        begun = queue.advance_event_rows(connection, {number: "kvm1"}, before, "build")[number]
        queue.end_event_row(connection, begun, "Error", details="no disk")
    with database.read() as connection:
        ended, last = connection.execute(select(action_events).order_by(action_events.c.id))
    assert (ended.event, ended.host, ended.result, ended.action_id) == ("schedule", "conductor1", "Success", number)
    assert ended.start_time == before["start_time"] < ended.finish_time == last.start_time
    assert (last.id, last.event, last.host, last.result, last.details) == (begun, "build", "kvm1", "Error", "no disk")
