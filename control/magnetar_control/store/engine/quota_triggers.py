# SPDX-License-Identifier: GPL-3.0-or-later
"""The triggers that keep the table ``quota_usage``: every change of a server's row changes the usage of its project and
user in the same transaction, for any kind of statement.

On SQLite each user of a project has one row. On PostgreSQL there may be several: a transaction takes a row that no
other one has locked, or adds one (``slot``: the transaction's id). So transactions never wait for each other here, and
cannot deadlock.
"""

from __future__ import annotations

from typing import Final

from magnetar_core.power import SOFT_DELETED

#: The task_state of a soft-deleted server that is being restored. Quotas count it.
RESTORING: Final = "restoring"
#: The columns that decide whether and how much a server counts.
_DECIDING = ("project_id", "user_id", "vm_state", "task_state", "flavor", "leaving", "deleted_at")
_ADD = """ ON CONFLICT (project_id, user_id, slot) DO UPDATE SET instances = quota_usage.instances + excluded.instances,
 cores = quota_usage.cores + excluded.cores, ram = quota_usage.ram + excluded.ram"""
_COLUMNS = "quota_usage (project_id, user_id, slot, instances, cores, ram)"


def counted_condition(row: str) -> str:
    """Return the SQL condition that a server uses quota. *row*: the name of the server's row in SQL: a table, ``OLD``
    or ``NEW``."""
    return (f"({row}.deleted_at IS NULL AND ({row}.vm_state <> '{SOFT_DELETED}' "
            f"OR coalesce({row}.task_state, '') = '{RESTORING}'))")


def staying_condition(row: str) -> str:
    """Return the SQL condition that a server is counted in ``quota_usage``: it uses quota, and is not moving to another
    cell. Servers that are moving are counted separately, because the source cell and the target cell may both have the
    server's row. *row*: the name of the server's row in SQL: a table, ``OLD`` or ``NEW``."""
    return f"({counted_condition(row)} AND {row}.leaving IS NULL)"


def flavor_amount(kind: str, row: str, name: str) -> str:
    """Return the SQL expression for the amount *name* (``vcpus`` or ``ram``) in the flavor of a server. *kind*:
    ``sqlite`` or ``postgresql``. *row*: the name of the server's row in SQL: a table, ``OLD`` or ``NEW``."""
    amount = (f"CAST(CAST({row}.flavor AS jsonb) ->> '{name}' AS bigint)" if kind == "postgresql"
              else f"json_extract({row}.flavor, '$.{name}')")
    return f"coalesce({amount}, 0)"


def usage_triggers(kind: str) -> list[str]:
    """Return the SQL statements that create the triggers that update ``quota_usage``. *kind*: ``sqlite`` or
    ``postgresql``. Executing the statements again replaces the triggers."""
    return _sqlite_triggers() if kind == "sqlite" else _postgresql_triggers()


def _changed_condition() -> str:
    """Return the SQL condition that an UPDATE of a server's row changes ``quota_usage``: the server's project, user or
    flavor changes, or whether the server is counted."""
    old, new = staying_condition("OLD"), staying_condition("NEW")
    unequal = " OR ".join(f"OLD.{name} <> NEW.{name}" for name in ("project_id", "user_id", "flavor"))
    return f"({old} <> {new} OR ({new} AND ({unequal})))"


def _sqlite_triggers() -> list[str]:
    def add(row: str, sign: str) -> str:
        amounts = ", ".join(f"{sign}{flavor_amount('sqlite', row, name)}" for name in ("vcpus", "ram"))
        return (f"INSERT INTO {_COLUMNS} SELECT {row}.project_id, {row}.user_id, 0, {sign}1, {amounts} "
                f"WHERE {staying_condition(row)}{_ADD};")

    events = {"insert": ("INSERT", staying_condition("NEW"), add("NEW", "")),
              "delete": ("DELETE", staying_condition("OLD"), add("OLD", "-")),
              "update": (f"UPDATE OF {', '.join(_DECIDING)}", _changed_condition(), add("OLD", "-") + add("NEW", ""))}
    return [statement for name, (when, condition, body) in events.items() for statement in (
        f"DROP TRIGGER IF EXISTS servers_usage_{name}",
        f"CREATE TRIGGER servers_usage_{name} AFTER {when} ON servers WHEN {condition} BEGIN {body} END")]


#: Adds amounts to the usage of a project's user.
_POSTGRESQL_ADD = f"""CREATE OR REPLACE FUNCTION add_quota_usage(project text, owner text, more_instances bigint,
 more_cores bigint, more_ram bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE free bigint;
BEGIN
  SELECT slot INTO free FROM quota_usage WHERE project_id = project AND user_id = owner
    LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
  IF FOUND THEN
    UPDATE quota_usage SET instances = instances + more_instances, cores = cores + more_cores, ram = ram + more_ram
      WHERE project_id = project AND user_id = owner AND slot = free;
  ELSE
    INSERT INTO {_COLUMNS}
      VALUES (project, owner, txid_current(), more_instances, more_cores, more_ram){_ADD};
  END IF;
END $$"""  # noqa: S608 - our own words


def _postgresql_triggers() -> list[str]:
    """Return the statements that create PostgreSQL's triggers. Inserts and deletions call a function once for each
    statement; updates only for rows whose amounts change, because PostgreSQL tests ``WHEN`` before the call."""
    def amounts(row: str, sign: str) -> str:
        return ", ".join(sign + flavor_amount("postgresql", row, name) for name in ("vcpus", "ram"))

    rows = f"""CREATE OR REPLACE FUNCTION count_server_rows() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE sign bigint := CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END;
BEGIN
  PERFORM add_quota_usage(project_id, user_id, sign * instances, CAST(sign * cores AS bigint),
    CAST(sign * ram AS bigint)) FROM (
    SELECT project_id, user_id, count(*) AS instances, sum({flavor_amount("postgresql", "changed", "vcpus")}) AS cores,
      sum({flavor_amount("postgresql", "changed", "ram")}) AS ram
      FROM changed WHERE {staying_condition("changed")} GROUP BY project_id, user_id) AS usage;
  RETURN NULL;
END $$"""  # noqa: S608 - our own words
    row = f"""CREATE OR REPLACE FUNCTION count_changed_server() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF {staying_condition("OLD")} THEN
    PERFORM add_quota_usage(OLD.project_id, OLD.user_id, -1, {amounts("OLD", "-")});
  END IF;
  IF {staying_condition("NEW")} THEN
    PERFORM add_quota_usage(NEW.project_id, NEW.user_id, 1, {amounts("NEW", "")});
  END IF;
  RETURN NULL;
END $$"""
    events = {
        "insert": "INSERT ON servers REFERENCING NEW TABLE AS changed FOR EACH STATEMENT "
                  "EXECUTE FUNCTION count_server_rows()",
        "delete": "DELETE ON servers REFERENCING OLD TABLE AS changed FOR EACH STATEMENT "
                  "EXECUTE FUNCTION count_server_rows()",
        "update": f"UPDATE ON servers FOR EACH ROW WHEN ({_changed_condition()}) "
                  "EXECUTE FUNCTION count_changed_server()"}
    return [_POSTGRESQL_ADD, rows, row, *(statement for name, words in events.items() for statement in (
        f"DROP TRIGGER IF EXISTS servers_usage_{name} ON servers",
        f"CREATE TRIGGER servers_usage_{name} AFTER {words}"))]
