# SPDX-License-Identifier: GPL-3.0-or-later
"""Query plans of statements, as each engine makes them for a filled database. No time is measured.

``with recorded_plans(database) as plans:`` explains each statement that is sent within the context. ``plan_faults``
returns the faults of a plan: it scans a table with many rows, uses an index that the test case does not name, sorts
many rows, or costs more than a page should.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
from sqlalchemy import inspect

from magnetar_control.store.engine.database import Database
from tests.support.control.counting import listening
from tools import postgres

#: Tables with fewer rows may be scanned, and fewer rows may be sorted.
MANY = 1000
#: Limits for a page: steps of SQLite's virtual machine; the cost that PostgreSQL estimates.
WORK = {"sqlite": 40000, "postgresql": 1500}
EXPLAINED = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
_ACCESS = re.compile(r"(SCAN|SEARCH) (\S+)(?: USING (?:COVERING )?INDEX (\S+)| USING ((?:INTEGER )?PRIMARY KEY))?")


@dataclass
class StatementPlan:
    """The plan of a *statement*. *accesses*: (table, index), without an index for a scan of the table. *sorted_rows*:
    the number of rows of each sort; SQLite does not report it. *work*: as in ``WORK``. *text*: the engine's own words.
    """

    kind: str
    statement: str
    text: str = ""
    accesses: list[tuple[str, str | None]] = field(default_factory=list)
    sorted_rows: list[float] = field(default_factory=list)
    work: float = 0.0


def new_database_url(request: Any, engine: str, name: str) -> str:
    """Return the URL of a new, empty database of this engine, for the fixture of *request*."""
    if engine == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path_factory').mktemp(name)}/plans.db"
    folder = request.getfixturevalue("cluster")
    with psycopg.connect(host=str(folder), user=postgres.USER, dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    return postgres.postgres_url(folder, name)


@contextlib.contextmanager
def recorded_plans(*databases: Database) -> Iterator[list[StatementPlan]]:
    """Yield a list that gets the plan of each statement sent to *databases* within the context."""
    plans: list[StatementPlan] = []
    with listening(*((database, _explainer(database.kind, plans)) for database in databases)):
        yield plans


def _explainer(kind: str, plans: list[StatementPlan]) -> Any:
    """Return a listener that explains a statement before it is executed."""
    explain = _explain_on_sqlite if kind == "sqlite" else _explain_on_postgresql

    def note(_connection: Any, cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if statement.lstrip("( ").upper().startswith(EXPLAINED) and "pg_notify" not in statement:
            plans.append(explain(cursor.connection, statement, parameters[0] if many else parameters))
    return note


def _explain_on_sqlite(raw: Any, statement: str, parameters: Any) -> StatementPlan:
    plan = StatementPlan("sqlite", statement)
    lines = [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()]
    names = dict(re.findall(r'(?:FROM|JOIN|,) "?(\w+)"? AS "?(\w+)"?', statement))
    aliases = {alias: table for table, alias in names.items()}
    for line in lines:
        if (access := _ACCESS.match(line)) and "VIRTUAL TABLE" not in line and "CONSTANT ROW" not in line:
            _word, table, index, key = access.groups()
            plan.accesses.append((aliases.get(table, table), index or (key and "PRIMARY KEY")))
        elif line.startswith("USE TEMP B-TREE FOR ORDER BY"):  # not: FOR RIGHT PART OF ORDER BY
            plan.sorted_rows.append(float("inf"))
    plan.text, plan.work = "\n".join(lines), _steps_on_sqlite(raw, statement, parameters)
    return plan


def _steps_on_sqlite(raw: Any, statement: str, parameters: Any) -> float:
    """Return how many steps of SQLite's virtual machine a query takes."""
    if not statement.lstrip("( ").upper().startswith("SELECT"):
        return 0.0
    calls: list[int] = []
    raw.set_progress_handler(lambda: calls.append(1), 100)
    try:
        raw.execute(statement, parameters).fetchall()
    finally:
        raw.set_progress_handler(None, 0)
    return 100.0 * len(calls)


def _explain_on_postgresql(raw: Any, statement: str, parameters: Any) -> StatementPlan:
    plan = StatementPlan("postgresql", statement)
    with raw.cursor() as cursor:
        document = cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters).fetchone()[0]
    root = (json.loads(document) if isinstance(document, str) else document)[0]["Plan"]
    plan.text, plan.work = json.dumps(root, indent=1), root["Total Cost"]
    _read_postgresql_node(root, plan)
    return plan


def _read_postgresql_node(node: dict[str, Any], plan: StatementPlan, table: str | None = None) -> None:
    table, children = node.get("Relation Name", table), node.get("Plans", ())
    if node["Node Type"] == "Seq Scan":
        plan.accesses.append((node["Relation Name"], None))
    elif "Index Name" in node:
        plan.accesses.append((table or "", node["Index Name"]))
    elif node["Node Type"] == "Sort":  # of an Incremental Sort only rows that are equal in the first columns
        plan.sorted_rows.append(children[0]["Plan Rows"])
    for child in children:
        _read_postgresql_node(child, plan, table)


def many_rows_tables(database: Database) -> set[str]:
    """Return the names of the tables with ``MANY`` rows or more."""
    with database.read() as connection:
        return {name for name in inspect(connection).get_table_names() if connection.exec_driver_sql(
            f'SELECT count(*) FROM (SELECT 1 FROM "{name}" LIMIT {MANY}) AS first_rows').scalar() == MANY}


def plan_faults(plan: StatementPlan, tables: Collection[str], indexes: Collection[str] | None = None, *,
                sorts: bool = False, work: float | None = None) -> list[str]:
    """Return the faults of a plan. *tables*: those with many rows. *indexes*: the indexes of these tables that the plan
    may use, or ``all of TABLE``; ``None``: any index. *sorts*: whether it may sort many rows. *work*: the limit of its
    cost, by default as in ``WORK``.
    """
    faults = []
    for table, index in plan.accesses:
        if table in tables and index is None:
            faults += [] if f"all of {table}" in (indexes or ()) else [f"scans the table {table}"]
        elif table in tables and indexes is not None and _index_name(index or "") not in indexes:
            faults.append(f"uses the index {index} of {table}")
    if not sorts and any(rows >= MANY for rows in plan.sorted_rows):
        faults.append(f"sorts {max(plan.sorted_rows):.0f} rows")
    limit = WORK[plan.kind] if work is None else work
    if plan.work > limit:
        faults.append(f"takes {plan.work:.0f} steps or cost, and may take {limit:.0f}")
    return [f"{plan.kind}: {fault}:\n{plan.statement}\n{plan.text}" for fault in faults]


def _index_name(name: str) -> str:
    """Return the name of an index; the names of primary keys, which differ between engines, become one word."""
    return "PRIMARY KEY" if name.endswith("_pkey") or name.startswith("sqlite_autoindex") else name
