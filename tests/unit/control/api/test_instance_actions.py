# SPDX-License-Identifier: GPL-3.0-or-later
"""os-instance-actions: who reads them, of which servers, what each microversion shows, pages and spans."""

import pytest
from sqlalchemy import insert, select, update

from magnetar_control.store.tables import action_events, actions


def request(number):
    return f"req-00000000-0000-0000-0000-{number:012d}"


def moment(number):
    return f"2026-11-21T10:00:{number:02d}.000000"


def acted(compute, id, number, key="os-stop", **values):
    with compute.cell.write() as connection:
        return connection.execute(insert(actions).values(
            request_id=request(number), server_id=id, action=key, project_id="red", user_id="alice", state="done",
            start_time=moment(number), updated_at=moment(number), **values)).inserted_primary_key[0]


def happened(compute, action, **values):
    with compute.cell.write() as connection:
        connection.execute(insert(action_events).values(**{
            "action_id": action, "event": "compute_stop_instance", "start_time": moment(1), "finish_time": moment(2),
            "result": "Error", "host": "kvm1", "traceback": "Traceback", "details": "no", **values}))


def path(id, *rest):
    return "/".join(("/servers", id, "os-instance-actions", *rest))


def numbers(reply):
    return [int(one["request_id"][-12:]) for one in reply.json["instanceActions"]]


def test_actions_are_listed_newest_first(compute):
    id = compute.server()
    acted(compute, id, 1, "create")
    acted(compute, id, 2, message="Error")
    acted(compute, id, 3, "os-resetState")  # not an action that users see
    reply = compute.rita.get(path(id))
    assert numbers(reply) == [2, 1]
    assert reply.json["instanceActions"][0] == {
        "action": "stop", "instance_uuid": id, "request_id": request(2), "user_id": "alice", "project_id": "red",
        "start_time": moment(2), "message": "Error"}
    assert compute.rita.get(path(id), "2.58").json["instanceActions"][0]["updated_at"] == moment(2)


EVENT = {"event", "start_time", "finish_time", "result"}


@pytest.mark.parametrize(("version", "user", "admin"), [
    ("2.1", None, {"traceback"}), ("2.50", None, {"traceback"}), ("2.51", set(), {"traceback"}),
    ("2.61", set(), {"traceback"}), ("2.62", {"hostId"}, {"traceback", "hostId", "host"}),
    ("2.84", {"hostId"}, {"traceback", "hostId", "host", "details"})])
def test_what_each_version_shows_of_events(small, version, user, admin):
    id = small.server()
    happened(small, acted(small, id, 1))
    for caller, more in ((small.alice, user), (small.admin, admin)):
        shown = caller.get(path(id, request(1)), version).json["instanceAction"]
        if more is None:
            assert "events" not in shown
        else:
            assert [set(event) for event in shown["events"]] == [EVENT | more]


def test_the_host_is_hidden_behind_a_name_of_the_project(small):
    id = small.server(host="kvm1")
    happened(small, acted(small, id, 1))
    event = small.alice.get(path(id, request(1)), "2.84").json["instanceAction"]["events"][0]
    assert event["hostId"] == small.alice.get(f"/servers/{id}").json["server"]["hostId"]
    assert small.admin.get(path(id, request(1)), "2.84").json["instanceAction"]["events"][0]["host"] == "kvm1"


def test_actions_of_deleted_servers_can_be_read_since_2_21(compute):
    id = compute.server(vm_state="deleted", deleted_at=moment(9))
    acted(compute, id, 1, "delete")
    for where in (path(id), path(id, request(1))):
        assert compute.alice.get(where, "2.20").status == 404
        assert compute.alice.get(where, "2.21").status == 200
        assert compute.bob.get(where, "2.21").status == 404


def test_actions_of_a_server_without_a_host_are_in_cell0(compute):
    id = compute.server(cell="cell0", vm_state="error")
    assert compute.alice.get(path(id)).json == {"instanceActions": []}


def test_pages_and_spans(compute):
    id = compute.server()
    for number in (1, 2, 3, 4):
        acted(compute, id, number)
    page = compute.alice.get(path(id) + "?limit=2", "2.58")
    assert numbers(page) == [4, 3]
    assert page.json["links"] == [
        {"rel": "next", "href": f"http://cloud/v2.1{path(id)}?limit=2&marker={request(3)}"}]
    rest = compute.alice.get(path(id) + f"?limit=3&marker={request(3)}", "2.58")
    assert numbers(rest) == [2, 1]
    assert "links" not in rest.json
    assert numbers(compute.alice.get(path(id) + f"?changes-since={moment(3)}", "2.58")) == [4, 3]
    assert numbers(compute.alice.get(path(id) + f"?changes-before={moment(2)}Z", "2.66")) == [2, 1]
    span = f"?changes-since={moment(2)}&changes-before={moment(3)}"
    assert numbers(compute.alice.get(path(id) + span, "2.66")) == [3, 2]


@pytest.mark.parametrize(("query", "version"), [
    ("marker=req-none", "2.58"), ("limit=-1", "2.58"), ("limit=a", "2.58"), ("changes-since=yesterday", "2.58"),
    ("changes-before=2026-11-21T10:00:00", "2.65"), ("colour=red", "2.58"),
    ("changes-since=2026-11-22T10:00:00&changes-before=2026-11-21T10:00:00", "2.66")])
def test_a_wrong_question_is_refused(small, query, version):
    assert small.alice.get(path(small.server()) + f"?{query}", version).status == 400


def test_parameters_are_ignored_before_2_58(small):
    id = small.server()
    for number in (1, 2):
        acted(small, id, number)
    assert numbers(small.alice.get(path(id) + "?limit=1&colour=red", "2.57")) == [2, 1]


def test_what_is_not_there(small):
    id = small.server()
    acted(small, id, 1, "os-resetState")
    for request_id in (request(1), request(2), "x"):
        reply = small.alice.get(path(id, request_id))
        assert (reply.status, reply.message) == (404, f"Action {request_id} not found")
    assert small.bob.get(path(id)).status == 404
    assert small.alice.get(path("x")).status == 404
    assert small.alice.get(path("0" * 36)).status == 404


def test_queries_do_not_grow(small):
    id = small.server()
    for number in range(10):
        happened(small, acted(small, id, number))
    with small.counted() as seen:
        assert len(numbers(small.alice.get(path(id), "2.84"))) == 10
    assert len(seen) == 3
    with small.counted() as seen:
        assert small.alice.get(path(id, request(1)), "2.84").status == 200
    assert len(seen) == 4


def test_what_was_queued_says_why_it_ended(compute):
    id = compute.server(task_state="powering-off", host="kvm1")
    acted(compute, id, 1)
    with compute.cell.write() as connection:
        connection.execute(update(actions).values(state="queued"))
    assert compute.admin.post(f"/servers/{id}/action", {"os-resetState": {"state": "active"}}).status == 202
    message = compute.rita.get(path(id)).json["instanceActions"][0]["message"]
    assert "reset" in message and "deleted" not in message
    acted(compute, id, 2)
    with compute.cell.write() as connection:
        connection.execute(update(actions).where(actions.c.request_id == request(2)).values(state="queued"))
    assert compute.alice.delete(f"/servers/{id}").status == 204
    with compute.cell.read() as connection:
        row = connection.execute(select(actions).where(actions.c.request_id == request(2))).one()
    assert (row.state, row.message) == ("failed", "The server was deleted meanwhile.")
