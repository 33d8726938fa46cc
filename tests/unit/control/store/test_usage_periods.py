# SPDX-License-Identifier: GPL-3.0-or-later
"""Usage of a period has the same servers, whether they are few and found by their times, or a page of all."""

import random

from sqlalchemy import insert

from magnetar_control.store.engine.tables import servers
from magnetar_control.store.servers import usage
from magnetar_control.store.store import Store

ROW = {"user_id": "u", "name": "web", "flavor_id": "1", "flavor": "{}"}


def _moment(hour):
    return f"2026-11-{1 + hour // 24:02}T{hour % 24:02}:00:00.000000"


def _rows(drawn):
    """Yield servers of all kinds: never launched, running, and ended."""
    for at in range(120):
        created = drawn.randrange(200)
        launched = created + drawn.randrange(5) if drawn.random() < 0.9 else None
        ended = created + 5 + drawn.randrange(100) if drawn.random() < 0.5 else None
        yield {**ROW, "id": f"s{at:03}", "project_id": drawn.choice("aBc"), "created_at": _moment(created),
               "launched_at": None if launched is None else _moment(launched),
               "terminated_at": None if ended is None else _moment(ended),
               "deleted_at": None if ended is None else _moment(ended),
               "vm_state": "active" if ended is None else "deleted"}


def test_few_servers_of_a_period_are_those_of_a_page(database, monkeypatch):
    store, drawn, periods = Store(database), random.Random(3), {"few": 0, "all": 0}
    store.add_cell("cell1", database.url.render_as_string(hide_password=False))
    with database.write() as connection:
        connection.execute(insert(servers), list(_rows(drawn)))
    for _at in range(60):
        begin = drawn.randrange(250)
        question = {"begin": _moment(begin), "end": _moment(begin + 1 + drawn.randrange(60)),
                    "project": drawn.choice((None, "a", "B")), "limit": drawn.choice((5, 1000)),
                    "marker": drawn.choice((None, ("a", "s050"))), "timeout": 60.0}
        monkeypatch.setattr(usage, "MOST", 30)
        with database.read() as connection:
            few = usage._conditions_of_few(connection, question["begin"], question["end"]) is not None
        shown = [row.id for row in usage.fetch_servers_of_period(store, **question)]
        monkeypatch.setattr(usage, "MOST", -1)
        assert shown == [row.id for row in usage.fetch_servers_of_period(store, **question)], question
        periods["few" if few else "all"] += 1
    store.close()
    assert min(periods.values()) > 5
