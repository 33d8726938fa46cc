# SPDX-License-Identifier: GPL-3.0-or-later
"""The claim of a server that holds nothing yet, as one statement of PostgreSQL that is a transaction by itself: one
message instead of five, and the host's row is locked for no longer than the commit takes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CTE, BindParameter, Connection, Executable, Table, bindparam, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.schema import ScalarElementColumnDefault

from magnetar_control.store.engine.database import INSERT, TWICE, now
from magnetar_control.store.engine.tables import allocations, hosts, server_mappings

from .allocations import MAPPINGS, RAISE, RESOURCES, Claim, raised_by

_RAISED = RAISE.returning(hosts.c.id).cte("raised")


def _given(table: Table, *names: str) -> dict[str, BindParameter[Any]]:
    """Values of columns of *table*: of those *names*, given, and the defaults of others, which SQLAlchemy does not know
    here. Whatever has the name of a column of ``hosts`` it would set there, too."""
    defaults = {one.name: one.default.arg for one in table.c
                if isinstance(one.default, ScalarElementColumnDefault) and one.name not in names}
    return {**{name: bindparam(f"own_{name}", type_=table.c[name].type) for name in names},
            **{name: bindparam(None, value, type_=table.c[name].type) for name, value in defaults.items()}}


def _mapped() -> CTE:
    given = _given(server_mappings, "server_id", "cell_id", "project_id", "created_at")
    query = MAPPINGS["postgresql"].from_select(
        list(given), select(*given.values()).select_from(_RAISED), include_defaults=False)
    found: CTE = query.cte("mapped")
    return found


def _claimed() -> Executable:
    given = _given(allocations, "server_id", "created_at", *RESOURCES)
    query = INSERT["postgresql"](allocations).from_select(
        ["consumer_id", "host_id", *given], select(given["server_id"], _RAISED.c.id, *given.values()),
        include_defaults=False)
    made: Executable = query.add_cte(_mapped()).execution_options(preserve_rowcount=True)
    return made


_CLAIM = _claimed()
_HELD = select(allocations.c.host_id).where(
    allocations.c.consumer_id == bindparam("own_server_id"), allocations.c.host_id == bindparam("host"))


def claim_at_once(connection: Connection, claim: Claim, *, anyway: bool = False) -> bool | None:
    """As ``allocations.claim`` with a cell, of a server that is in no group and needs no devices and further resource
    classes, on a connection of PostgreSQL's ``Database.single``. ``None``, and nothing changed, where it holds
    something of the host already: ``allocations.claim`` is to decide then."""
    own = {"server_id": claim.server_id, "cell_id": claim.cell_id, "project_id": claim.project_id, "created_at": now(),
           **claim.amounts._asdict()}
    values = {f"own_{name}": one for name, one in own.items()} | raised_by(claim.host_id, claim.amounts, 1, anyway)
    try:
        if connection.execute(_CLAIM, values).rowcount:
            return True
    except IntegrityError as error:
        if getattr(error.orig, "sqlstate", None) != TWICE:
            raise
        return None
    # What it holds may be all that there was: a claim of before whose answer was lost.
    return None if connection.execute(_HELD, values).first() else False
