# SPDX-License-Identifier: GPL-3.0-or-later
"""One question to all cells."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from sqlalchemy.exc import OperationalError

from magnetar_control.store.engine.timeouts import CircuitBreaker
from magnetar_control.store.scatter_gather import scatter_gather
from magnetar_control.store.store import CELL0


def fake(kind, name):
    return SimpleNamespace(kind=kind, name=name, breaker=CircuitBreaker(), threads=ThreadPoolExecutor(4))


def cells(kind, **databases):
    found = [(SimpleNamespace(id=CELL0, name="cell0", disabled=False), fake(kind, "cell0"))]
    found += [(SimpleNamespace(id=name, name=name, disabled=disabled), fake(kind, name))
              for name, disabled in databases.items()]
    return SimpleNamespace(databases=lambda: found)


def test_every_cell_is_asked_also_a_disabled_one():
    for kind in ("sqlite", "postgresql"):
        store = cells(kind, one=False, two=False, off=True)
        answers = scatter_gather(store, lambda database: database.name.upper())
        assert answers == {"one": "ONE", "two": "TWO", "off": "OFF"}
        assert set(scatter_gather(store, lambda database: 1, cell0=True)) == {CELL0, "one", "two", "off"}


def test_a_cell_that_fails_is_none():
    def question(database):
        if database.name == "two":
            raise OperationalError("SELECT", {}, Exception("away"))
        return 1

    for kind in ("sqlite", "postgresql"):
        assert scatter_gather(cells(kind, one=False, two=False), question) == {"one": 1, "two": None}


def test_a_cell_that_takes_too_long_is_none():
    over = threading.Event()

    def question(database):
        return 1 if database.name == "one" else over.wait(5)

    assert scatter_gather(cells("postgresql", two=False, one=False), question, 0.05) == {"one": 1, "two": None}
    over.set()
