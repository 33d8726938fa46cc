# SPDX-License-Identifier: GPL-3.0-or-later
"""The order in which the audit reads a cell, or a whole cloud: pages of at most a thousand rows of one table.

Each server with a host is read with its host. The other sources skip these servers, so most of their pages are empty.
The position after each page is a string, from which another process can continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, bindparam, select

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import migrations, server_mappings, servers
from magnetar_control.store.servers.migrations import ENDED
from magnetar_control.store.store import CELL0, CellMapping

from .audit_reader import BUSY, AuditReader, split_ids
from .audit_state import AuditSubjects

#: Rows of a page. Migrations of a page: few of them are open.
PAGE, MIGRATIONS = 1000, 10_000
#: The subjects of a page, and the position after it; ``None`` at the end of the source.
Page = tuple[AuditSubjects, str | None]

_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_AFTER: BindParameter[Any] = bindparam("after")
_MOST: BindParameter[Any] = bindparam("most")
_LIVE = servers.c.deleted_at.is_(None)
_ROWS = select(servers.c.id, servers.c.host).where(servers.c.id > _AFTER, _LIVE).order_by(servers.c.id).limit(_MOST)
_PRESENT = select(servers.c.id).where(servers.c.id.in_(_IDS), _LIVE)
_MAPPED = select(server_mappings.c.server_id).where(
    server_mappings.c.server_id > _AFTER, server_mappings.c.cell_id == bindparam("cell"),
    ~server_mappings.c.deleted).order_by(server_mappings.c.server_id).limit(_MOST)
_MAPPINGS = select(*server_mappings.c["server_id", "cell_id", "deleted"]).where(server_mappings.c.server_id.in_(_IDS))
_OPEN_MOVES = select(migrations.c.server_id).where(
    migrations.c.id > _AFTER, migrations.c.id <= bindparam("last"), migrations.c.status.not_in(ENDED))
_LATER_MOVE = select(migrations.c.id).where(migrations.c.id > _AFTER).limit(1)
#: Servers with a task_state but no action. The comparison, unlike IS NOT NULL, uses SQLite's index.
_STUCK = select(servers.c.id).where(servers.c.task_state > "", _LIVE, ~BUSY).limit(_MOST)


class AuditSource(NamedTuple):
    """A source of subjects (servers and hosts to check) for the audit, such as a table, which is read in pages.
    ``read(position)`` returns the next page and the position after it; the position is an empty string for the first
    page."""

    name: str
    read: Callable[[str], Page]


def audit_sources(reader: AuditReader) -> list[AuditSource]:
    """Return all sources of servers and hosts that *reader* audits, in the order of one audit pass."""
    sources = []
    for cell, database in reader.cells:
        for name, read in (("servers", _read_rows), ("migrations", _read_migrations), ("mappings", _read_mappings)):
            if cell.id != CELL0 or name == "servers":  # others have neither mapping nor migration
                sources.append(AuditSource(f"{name}:{cell.id}", partial(read, reader, cell, database)))
    services = (("ports", reader.services.network), ("attachments", reader.services.volume))
    sources += [AuditSource(name, partial(_read_users, reader, service)) for name, service in services]
    if reader.cell_ids is None:  # conductors compare a few projects at a time: ``usage_check``
        sources.append(AuditSource("usage", lambda _after: (AuditSubjects(usage=True), None)))
    return [*sources, AuditSource("hosts", partial(_read_hosts, reader)),
            AuditSource("engine", lambda _after: (AuditSubjects(engine=True), None))]


def audit_pages(reader: AuditReader, position: str = "") -> Iterator[tuple[AuditSubjects, str]]:
    """Read all sources page by page: yield (servers and hosts of a page, position after the page) for each page after
    *position*. A position is a text that names the source and where to continue in it; it is an empty string at the
    beginning and after the last page. A page may have no servers and hosts."""
    sources = audit_sources(reader)
    name, _space, begin = position.partition(" ")
    first = next((number for number, source in enumerate(sources) if source.name == name), None)
    for number, source in enumerate(sources):
        if number < (first or 0):
            continue
        after: str | None = begin if number == first else ""
        while after is not None:
            subjects, after = source.read(after)
            following = sources[number + 1].name + " " if number + 1 < len(sources) else ""
            yield subjects, following if after is None else f"{source.name} {after}"


def merge_subjects(parts: Iterable[AuditSubjects]) -> list[AuditSubjects]:
    """Merge *parts*, sets of servers and hosts to check, and split the result into batches (pages) for the audit: at
    most a thousand servers in a page, each host in a page of its own, and one page for OVN and the quota usage."""
    whole = AuditSubjects()
    ids: set[str] = set()
    names: set[str] = set()
    for part in parts:
        ids |= part.ids
        names |= part.hosts
        whole = AuditSubjects(engine=whole.engine or part.engine, usage=whole.usage or part.usage)
    ordered = sorted(ids)
    return [*(AuditSubjects(frozenset(ordered[at:at + PAGE])) for at in range(0, len(ordered), PAGE)),
            *(AuditSubjects(hosts=frozenset((name,))) for name in sorted(names)), *([whole] if whole else ())]


def stuck_servers(reader: AuditReader) -> AuditSubjects:
    """Return the servers in the audited cells that have a task_state but no action, limited to one page for each cell.
    """
    ids: set[str] = set()
    for cell, database in reader.cells:
        ids.update(row.id for row in reader.ask_cell(cell, database, _STUCK, most=PAGE))
    return AuditSubjects(frozenset(ids))


def _read_rows(reader: AuditReader, cell: CellMapping, database: Database, after: str) -> Page:
    """Return the next page of servers with a row in *cell*, after the server id *after*. Servers on audited hosts are
    left out, because ``_read_hosts`` reads them."""
    rows = reader.ask_cell(cell, database, _ROWS, after=after, most=PAGE)
    reader.servers_seen += len(rows)
    ids = frozenset(row.id for row in rows if row.host not in reader.hosts or not reader.audits_cell(
        reader.hosts[row.host].cell_id))
    return AuditSubjects(ids), rows[-1].id if len(rows) == PAGE else None


def _read_migrations(reader: AuditReader, cell: CellMapping, database: Database, after: str) -> Page:
    """Return the next page of servers that have an open migration but no row in *cell*. *after*: the integer id of a
    migration, as text; only migrations with a larger id are read."""
    begin, end = int(after or 0), int(after or 0) + MIGRATIONS
    more = reader.ask_cell(cell, database, _LATER_MOVE, after=end)
    ids = {row.server_id for row in reader.ask_cell(cell, database, _OPEN_MOVES, after=begin, last=end)}
    return AuditSubjects(_absent(reader, cell, database, ids)), str(end) if more else None


def _read_mappings(reader: AuditReader, cell: CellMapping, database: Database, after: str) -> Page:
    """Return the next page of servers, after the server id *after*, that are mapped to *cell* but have no row in it."""
    with reader.store.api.read() as connection:
        ids = connection.execute(_MAPPED, {"after": after, "cell": cell.id, "most": PAGE}).scalars().all()
    return AuditSubjects(_absent(reader, cell, database, ids)), ids[-1] if len(ids) == PAGE else None


def _absent(reader: AuditReader, cell: CellMapping, database: Database, ids: Iterable[str]) -> frozenset[str]:
    """Return those of *ids* whose server has no row in *cell*. Return an empty set when the cell does not answer."""
    present = {row.id for row in reader.ask_cell_about(cell, database, _PRESENT, ids)}
    return frozenset() if cell.id in reader.silent_cells else frozenset(ids) - present


def _read_users(reader: AuditReader, service: Any, after: str) -> Page:
    """Return the next page of servers, after the server id *after*, that have ports or attachments in *service* (the
    network or volume service). Only servers that are mapped to no cell, or were deleted from an audited cell, are
    returned; all other servers are read with their hosts."""
    ids = service.user_ids(after, PAGE)
    elsewhere: set[str] = set()
    with reader.store.api.read() as connection:
        for some in split_ids(ids):
            elsewhere.update(row.server_id for row in connection.execute(_MAPPINGS, {"ids": some})
                             if not row.deleted or not reader.audits_cell(row.cell_id))
    return AuditSubjects(frozenset(ids) - elsewhere), ids[-1] if len(ids) == PAGE else None


def _read_hosts(reader: AuditReader, after: str) -> Page:
    """Return the next hosts after the host name *after*: as many hosts as together have at most ``PAGE`` servers, but
    at least one host."""
    names = sorted(host.name for host in reader.hosts.values() if host.name > after and reader.audits_cell(
        host.cell_id))
    count = 0
    page: list[str] = []
    for name in names:
        count += reader.hosts[name].servers + 1
        if page and count > PAGE:
            return AuditSubjects(hosts=frozenset(page)), page[-1]
        page.append(name)
    return AuditSubjects(hosts=frozenset(page)), None
