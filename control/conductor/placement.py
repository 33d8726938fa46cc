# SPDX-License-Identifier: GPL-3.0-or-later
"""What the scheduler is asked for a server that is created, built again, moved or resized."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import orjson
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from magnetar_control.scheduler.request_spec import RequestSpec, of_server
from magnetar_control.store.tables import server_group_members
from magnetar_core.errors import Conflict

from .work import Work

RANDOM = Random()  # noqa: S311 - which of equals


class NoHost(Conflict):
    """No valid host was found. There are not enough hosts available."""

    code = "no-valid-host"
    status = 500


def spec_of(work: Work, flavor: Mapping[str, Any] | None = None, **over: Any) -> RequestSpec:
    """What the scheduler is asked for the server of an action; see ``request_spec.of_server``."""
    conductor = work.conductor
    _join(work, orjson.loads(work.server.hints).get("group"))
    row = work.server._mapping  # noqa: SLF001 - SQLAlchemy's name
    return of_server(conductor.store.api, conductor.services.volume, work.context(), row, flavor, **over)


def _join(work: Work, group: str | None) -> None:
    """Make the server a member of the group that its hint names."""
    if not group:
        return
    try:
        with work.conductor.store.api.write() as connection:
            connection.execute(insert(server_group_members).values(group_id=group, server_id=work.id))
    except IntegrityError:
        pass  # it is a member, or the group was deleted meanwhile
