# SPDX-License-Identifier: GPL-3.0-or-later
"""External events: how many statements they take, and what is said of servers in a cell that does not answer."""

import pytest

from magnetar_control.store.servers import servers


def test_many_events_take_as_many_statements_as_one(small):
    ids = [small.server(host="kvm1") for _number in range(5)]

    def told(ids):
        with small.counted() as seen:
            reply = small.admin.post("/os-server-external-events", {"events": [
                {"server_uuid": id, "name": "network-changed"} for id in ids]})
        assert [one["code"] for one in reply.json["events"]] == [200] * len(ids)
        return len(seen)

    assert told(ids[:1]) == told(ids)


@pytest.mark.parametrize("database_kind", ["sqlite"])
def test_servers_of_a_cell_that_does_not_answer_cannot_be_told(computes, monkeypatch):
    compute = computes(2)
    near, far = compute.server(host="kvm1"), compute.server(host="kvm2", cell="cell2")
    ask = servers.scatter_gather_cells
    monkeypatch.setattr(servers, "scatter_gather_cells", lambda cells, question: {
        **ask(cells, question), **{cell.id: None for cell, _database in cells if cell.name == "cell2"}})
    reply = compute.admin.post("/os-server-external-events", {"events": [
        {"server_uuid": id, "name": "network-changed"} for id in (near, far)]})
    assert reply.status == 207 and [one["code"] for one in reply.json["events"]] == [200, 422]
