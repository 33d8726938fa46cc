# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes of the cloud with what each announces: API processes, the conductors of all cells, and agents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Table, select
from sqlalchemy.exc import DBAPIError

from magnetar_control.store.engine.database import Database, is_database_unreachable
from magnetar_control.store.engine.tables import api_processes, conductors
from magnetar_control.store.scatter_gather import scatter_gather
from magnetar_control.store.store import Store
from magnetar_core.capabilities import SILENT_RELEASE
from magnetar_core.version import release_number

from . import hosts
from .conductors import FORGOTTEN, remove_process_row, write_process_heartbeat
from .host_leases import REFUSED
from .host_row import SizedHost
from .services import fetch_compute_services


@dataclass(frozen=True)
class ProcessRow:
    """A process of the cloud with its release and capabilities (features that older releases lack). *kind*: one of
    ``PROCESS_KINDS`` (API, conductor, agent). *cell*: the cell's name; empty for API processes. *version*: ``None`` for
    old releases, which do not announce their version. *up*: whether it sent a heartbeat recently. *refusal*: why
    conductors refuse the host of an agent; otherwise empty."""

    kind: str
    name: str
    cell: str
    version: str | None
    capabilities: frozenset[str]
    seen_at: str | None
    up: bool
    holder: str = ""
    refusal: str = ""

    @property
    def counts(self) -> bool:
        """Whether this process, if it lacks a capability (a feature that older releases lack), prevents the use of the
        capability. True for processes that are up, for all agents, and for processes of an old release that announces
        no version. False for other processes without a recent heartbeat, because they check the used capabilities when
        their heartbeats begin again."""
        return self.up or self.kind == "agent" or self.version is None

    @property
    def release(self) -> str:
        """The release of the process. ``SILENT_RELEASE`` for old releases that do not announce it; "unknown" for an
        agent that has never reported."""
        return self.version or ("unknown" if self.kind == "agent" else SILENT_RELEASE)

    @property
    def number(self) -> int | None:
        """The number of the release (see ``release_number``), for comparisons; ``None`` for a checkout without a
        release."""
        return release_number(self.release)

    def title(self) -> str:
        """Return kind, name and release of the process as a text for messages."""
        nouns = {"api": "API process", "conductor": "conductor", "agent": "agent of host"}
        return f"{nouns[self.kind]} {self.name} ({self.release})"


@dataclass(frozen=True)
class ProcessList:
    """The processes of the cloud. *silent_cells*: names of cells whose conductors could not be read, because the cell's
    database does not answer, or its tables are not upgraded yet."""

    processes: Sequence[ProcessRow]
    silent_cells: Sequence[str]


def write_api_heartbeat(database: Database, holder: str, name: str, version: str, capabilities: Sequence[str]) -> None:
    """Write the heartbeat of an API process, and remove the rows of API processes without a heartbeat for ``FORGOTTEN``
    seconds. *holder*: the id of the process. *name*, *version*: its name and release. *capabilities*: names of features
    that it has and older releases may lack."""
    write_process_heartbeat(database, api_processes, holder, name, version, capabilities)


def remove_api_process(database: Database, holder: str) -> None:
    """Remove the row of an API process that stops. *holder*: the id of the process."""
    remove_process_row(database, api_processes, holder)


def fetch_processes(store: Store, silence: float, *, agents: bool = True) -> ProcessList:
    """Return all processes: API processes, conductors, then agents unless *agents* is false. An agent counts as down
    after *silence* seconds without a heartbeat, other processes after ``FORGOTTEN`` seconds."""
    names = {cell.id: cell.name for cell in store.cells()}
    with store.api.read() as connection:
        announced_processes = _announced(connection, store.api, api_processes, "api")
    answers = scatter_gather(store, _read_conductors)
    for cell_id, rows in answers.items():
        announced_processes += [replace(row, cell=names[cell_id]) for row in rows or ()]
    if agents:
        announced_processes += _agents(store, silence, names)
    return ProcessList(announced_processes, sorted(names[cell_id] for cell_id, rows in answers.items() if rows is None))


def _read_conductors(database: Database) -> list[ProcessRow] | None:
    """Return the conductor processes of a cell; ``None`` if the cell's tables are not upgraded yet."""
    try:
        with database.read() as connection:
            return _announced(connection, database, conductors, "conductor")
    except DBAPIError as error:
        if is_database_unreachable(error):
            raise
        return None


def _announced(connection: Connection, database: Database, table: Table, kind: str) -> list[ProcessRow]:
    """Return the processes in *table*, ordered by name, with an empty cell name. *kind*: the kind of these processes.
    """
    seen_lately = (table.c.seen_at > database.clock(-FORGOTTEN)).label("up")
    rows = connection.execute(select(
        table.c.name, table.c.version, table.c.capabilities, table.c.seen_at, table.c.holder, seen_lately).order_by(
            table.c.name, table.c.holder))
    return [ProcessRow(kind, row.name, "", row.version, frozenset(json.loads(row.capabilities or "[]")), row.seen_at,
                       bool(row.up), row.holder) for row in rows]


def _agents(store: Store, silence: float, names: dict[str, str]) -> Iterator[ProcessRow]:
    with store.api.read() as connection:
        rows = hosts.fetch_every_host(connection, SizedHost)
    for row, service in zip(rows, fetch_compute_services(store, silence, rows), strict=True):
        version = row.info.get("agent_version")
        yield ProcessRow("agent", row.name, names.get(row.cell_id, ""), str(version) if version else None,
                         frozenset(map(str, row.info.get("capabilities") or ())), service.seen_at, service.up,
                         refusal=_refusal(service.disabled_reason or ""))


def _refusal(disabled_reason: str) -> str:
    """Return why conductors refuse a host: the part of *disabled_reason* after the prefix ``REFUSED``. Return an empty
    text if this prefix is missing. *disabled_reason*: why the host's compute service is disabled."""
    return disabled_reason.removeprefix(REFUSED) if disabled_reason.startswith(REFUSED) else ""
