# SPDX-License-Identifier: GPL-3.0-or-later
"""os-instance-actions: what became of queued actions, and how many queries a list is."""

from sqlalchemy import insert, select, update

from magnetar_control.store.engine.tables import action_events, actions
from magnetar_control.store.servers import servers


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


def test_a_server_that_leaves_cell0_meanwhile_has_its_actions(small, monkeypatch):
    """It was found there, and is in its cell with its actions when these are read."""
    id = small.server()
    acted(small, id, 1)
    find = servers.find_server_row

    def found_before(store, server_id, **how):
        monkeypatch.setattr(servers, "find_server_row", find)
        return small.databases["cell0"], find(store, server_id, **how)[1]

    for rest in ((), (request(1),)):
        monkeypatch.setattr(servers, "find_server_row", found_before)
        reply = small.alice.get(path(id, *rest), "2.84")
        assert reply.status == 200 and request(1) in str(reply.json), reply


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
