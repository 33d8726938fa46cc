# SPDX-License-Identifier: GPL-3.0-or-later
"""Repairs of what the audit finds. Each may run twice, and in several conductors at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from sqlalchemy import Connection, exists, select, update
from sqlalchemy.exc import DBAPIError

from magnetar_control.agents import AgentClient
from magnetar_control.store import allocations, migrations
from magnetar_control.store import servers as rows
from magnetar_control.store.database import now
from magnetar_control.store.tables import actions, servers
from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.power import BUILDING, ERROR

from .audit import Finding
from .audit_state import AuditState, deleted_servers
from .environment import Environment
from .host_watch import HostWatch

log = logging.getLogger(__name__)
FAULT = ("The control plane lost track of what was done to the server. See its actions; reboot it hard, reset its "
         "state, or delete it.")


class Repairer:
    """Repairs findings."""

    def __init__(self, conductor: Environment, watch: HostWatch) -> None:
        self.conductor, self.watch = conductor, watch

    def repair(self, state: AuditState, finding: Finding) -> None:
        """Repair a finding, where there is a repair for its kind."""
        repair = REPAIRS.get(finding.kind)
        if repair is None:
            return
        try:
            repair(self, state, finding)
        except (MagnetarError, DBAPIError) as error:
            log.warning("not repaired now (%s): %s", finding.text, error)
        else:
            log.warning("repaired: %s", finding.text)

    def client(self, host: str) -> AbstractContextManager[AgentClient]:
        """A client of a host's agent."""
        return self.conductor.agents.client(self.conductor.endpoint(host))

    def quiet(self, state: AuditState, id: str) -> bool:
        """Whether no action of the server waits or runs."""
        cell = state.cells.get(id)
        if cell is None:
            return True
        with self.conductor.store.cell(cell).read() as connection:
            return connection.execute(select(actions.c.id).where(
                actions.c.server_id == id, actions.c.state.in_(("queued", "running"))).limit(1)).first() is None


Repair = Callable[[Repairer, AuditState, Finding], None]


def _stuck(repairer: Repairer, _state: AuditState, finding: Finding) -> None:
    """The server goes to error: better than a task_state that never ends."""
    database = repairer.conductor.store.cell(finding.place)
    work = exists().where(actions.c.server_id == servers.c.id, actions.c.state.in_(("queued", "running")))
    fault = rows.text({"code": 500, "message": FAULT, "created": now(), "details": finding.text})
    with database.write() as connection:
        connection.execute(update(servers).where(
            servers.c.id == finding.id, ~work,
            servers.c.task_state.is_not(None) | (servers.c.vm_state == BUILDING)).values(
            vm_state=ERROR, task_state=None, fault=fault, updated_at=now()))
        database.ring(connection, rows.SERVERS_BELL)


def _copy(repairer: Repairer, _state: AuditState, finding: Finding) -> None:
    database = repairer.conductor.store.cell0
    with database.write() as connection:
        if not _busy(connection, finding.id):
            rows.leave(connection, [finding.id])


def _busy(connection: Connection, id: str) -> bool:
    return connection.execute(select(actions.c.id).where(
        actions.c.server_id == id, actions.c.state.in_(("queued", "running"))).limit(1)).first() is not None


def _counter(repairer: Repairer, _state: AuditState, _finding: Finding) -> None:
    with repairer.conductor.store.api.write() as connection:
        allocations.audit(connection, repair=True)
    repairer.conductor.read_hosts(with_aggregates=False)


def _claim(repairer: Repairer, state: AuditState, finding: Finding) -> None:
    claim = next(claim for claim in state.claims if claim.consumer_id == finding.id
                 and state.hosts[claim.host_id].name == finding.place)
    if repairer.quiet(state, claim.server_id):
        with repairer.conductor.store.api.write() as connection:
            allocations.release(connection, finding.id, claim.host_id)
        repairer.conductor.read_host(finding.place)


def _port(repairer: Repairer, state: AuditState, finding: Finding) -> None:
    if repairer.quiet(state, finding.place):
        repairer.conductor.services.network.release(finding.place, finding.id)


def _attachment(repairer: Repairer, state: AuditState, finding: Finding) -> None:
    if repairer.quiet(state, finding.place):
        repairer.conductor.services.volume.detached(finding.id)


def _move(repairer: Repairer, _state: AuditState, finding: Finding) -> None:
    """The migration ends in error. The next audit finds its claims."""
    for _cell, database in repairer.conductor.store.databases():
        with database.write() as connection:
            found = migrations.find(connection, finding.id)
            if found is not None and not _busy(connection, finding.place):
                migrations.change(connection, finding.id, status="error")


def _left(repairer: Repairer, _state: AuditState, finding: Finding) -> None:
    """Delete the guest from its host, after reading again that the server is deleted: no guest comes back."""
    if finding.id not in deleted_servers(repairer.conductor.store, [finding.id])[0]:
        raise Conflict(f"Nothing says any more that server {finding.id} was deleted.")
    with repairer.client(finding.place) as client:
        client.delete("server", finding.id)


def _power(repairer: Repairer, _state: AuditState, finding: Finding) -> None:
    """The server takes the state that its guest has."""
    with repairer.client(finding.place) as client:
        repairer.watch.follow(finding.place, [client.get("server", finding.id)])


def _network(repairer: Repairer, _state: AuditState, finding: Finding) -> None:
    if finding.id not in repairer.conductor.services.network.names():
        with repairer.client(finding.place) as client:
            client.delete("network", finding.id)


#: By kind of finding. Other kinds are only logged: an operator has to decide.
REPAIRS: Mapping[str, Repair] = {
    "stuck": _stuck, "copy": _copy, "counter": _counter, "orphan": _claim, "elsewhere": _claim, "port": _port,
    "attachment": _attachment, "move": _move, "left": _left, "power": _power, "network": _network}
