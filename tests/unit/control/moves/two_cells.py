# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of two cells, ``cell1`` with kvm1 and ``cell2`` with kvm2, each with a conductor, all in this process."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import select, update

from magnetar_control import serve
from magnetar_control.conductor.flows.flows import FLOWS
from magnetar_control.conductor.periodic import audit
from magnetar_control.conductor.worker.action_runner import ActionRunner
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.scheduler.request_spec import claimed_amounts
from magnetar_control.settings_file import make_settings
from magnetar_control.store.actions import actions
from magnetar_control.store.engine import schema
from magnetar_control.store.engine import tables as t
from magnetar_control.store.engine.tables import CELL
from magnetar_control.store.servers import servers
from tests.support.control.audited import read_state
from tests.support.control.cloud import Cloud

from .clouds import at, claims
from .dying import Died, Fate

RULE = '"compute:servers:resize:cross_cell": "rule:context_is_admin"\n'
#: The cell of each host.
CELLS = {"kvm1": "cell1", "kvm2": "cell2"}


class TwoCells(Cloud):
    """*second*: URL of the database of cell2; a SQLite file when left out."""

    def __init__(self, databases: Mapping[str, str] | None = None, second: str | None = None, **settings: Any) -> None:
        super().__init__(2, databases, links=True, **settings)
        self.second = {"cell_database_url": second} if second else {}

    def _link(self) -> None:
        super()._link()
        policy = self.folder / "policy.yaml"
        policy.write_text(RULE)
        self.settings = {**self.settings, "hosts": {"kvm1": self.hosts["kvm1"]}, "policy_file": str(policy)}

    def _hosts_up(self) -> None:
        first = self.parts.settings
        settings = make_settings({
            "state_dir": str(first.state_dir), "reserved_host_memory_mb": 0, "heartbeat": 1.0, **self.databases,
            **self.settings, **self.second, "hosts": {"kvm2": self.hosts["kvm2"]}, "cell": "cell2",
            "conductor_name": "two", "schedules": False})
        cell = self.parts.store.add_cell("cell2", settings.url("cell"))
        schema.upgrade_schema(self.parts.store.cell(cell.id), CELL)
        two = self._stack.enter_context(contextlib.closing(serve.Parts(settings)))
        two.work(two.services())
        assert self.parts.working and self.parts.runner and two.working and two.runner
        self.runners = self.parts.runner, two.runner
        self.conductors: dict[str, Conductor] = {"cell1": self.parts.working, "cell2": two.working}
        super()._hosts_up()
        deadline = time.monotonic() + 60
        while not all(one.is_up(host) for one in self.conductors.values() for host in self.hosts):
            assert time.monotonic() < deadline, "conductors do not see all hosts"
            time.sleep(0.02)

    def stop(self) -> None:
        """From now on ``drive`` does what conductors do."""
        for runner in self.runners:
            runner.stop()

    def place(self, id: str) -> dict[str, list[str]]:
        """By cell that has rows of a server: what they are of, each with its number where that is not 1."""
        found: dict[str, list[str]] = {}
        for name, conductor in self.conductors.items():
            with conductor.database.read() as connection:
                for table in (t.servers, t.actions, t.migrations):
                    column = table.c.id if table is t.servers else table.c.server_id
                    if connection.execute(select(column).where(column == id)).all():
                        found.setdefault(name, []).append(table.name)
        return found

    def row(self, id: str) -> Any:
        """The row that counts, where its mapping says."""
        found = servers.find_server_row(self.parts.store, id, deleted=True)
        assert found
        return found[1].stored

    def drive(self, fate: Fate | None = None, only: str | None = None, holder: str | None = None) -> None:
        """Do what waits, with a death in it; *only* in that cell; as another *holder*."""
        for _at in range(100):
            found = next(((one, row) for name, one in self.conductors.items() if only in (None, name)
                          for row in taken(one)), None)
            if found is None:
                return
            conductor, action = found
            if holder:
                conductor = copy.copy(conductor)
                conductor.holder = holder
                with conductor.database.write() as connection:
                    connection.execute(update(t.actions).where(t.actions.c.id == action.id).values(holder=holder))
            with contextlib.suppress(Died), fate.looms() if fate else contextlib.nullcontext():
                run_action(conductor, action)
        raise AssertionError("it has no end")


def run_action(conductor: Conductor, action: Any) -> None:
    """Do what the conductor does with a taken action."""
    ActionRunner(conductor, FLOWS)._act(conductor.database, action, None, None)


def taken(conductor: Conductor) -> list[Any]:
    """An action whose turn it is; no lease of before holds."""
    database = conductor.database
    with database.write() as connection:
        connection.execute(update(t.actions).where(t.actions.c.state == "running").values(
            lease_until=database.clock(-1)))
        connection.execute(update(t.actions).values(not_before=None))
    return actions.lease_next_actions(database, conductor.holder, 1, conductor.settings.limits()).rows


def check(cloud: TwoCells, id: str, host: str, waits: bool = False) -> Any:
    """The server is on *host* and in its cell, nowhere else; nothing is left to do, and the audit finds nothing.
    *waits*: for confirm or revert. Returns its row."""
    server, store = cloud.row(id), cloud.parts.store
    assert (server.host, server.task_state, server.leaving) == (host, None, None), server
    assert cloud.place(id).keys() == {CELLS[host]}, cloud.place(id)
    mapping = servers.fetch_server_mapping(store, id)
    assert mapping and mapping.cell_id == store.find_cell(CELLS[host]).id
    assert list(at(cloud, id)) == [host]
    held, flavor = claims(cloud, id), orjson.loads(server.flavor)
    assert held["server"] == (host, tuple(claimed_amounts(flavor)))
    assert ("migration" in held) is waits, held
    with cloud.conductors[CELLS[host]].database.read() as connection:
        assert connection.execute(select(t.actions.c.action).where(
            t.actions.c.server_id == id, t.actions.c.state.in_(("queued", "running")))).all() == []
        assert connection.execute(select(t.action_events.c.event).join(t.actions).where(
            t.actions.c.server_id == id, t.action_events.c.finish_time.is_(None))).all() == []
    state = read_state(store, cloud.parts.agents, cloud.services)
    assert audit.findings_of_checks(state) == []
    listed = cloud.admin.get("/v2.1/servers?all_tenants=1").json["servers"]
    assert [one["id"] for one in listed].count(id) == 1
    return server
