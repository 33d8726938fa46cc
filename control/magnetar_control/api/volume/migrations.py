# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions that move a volume to another host or pool: ``os-migrate_volume`` and ``os-retype``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from magnetar_control.api.values import build_record
from magnetar_control.services.volume.migrations import NEVER, ON_DEMAND, MigrationStore
from magnetar_control.web import Answer, Request
from magnetar_core.errors import InvalidField
from magnetar_core.values import Choices, Nullable, Text

from .values import NAME, TRUTH

MIGRATE, RETYPE = "os-migrate_volume", "os-retype"
MIGRATE_BODY = build_record({"host": NAME, "cluster": NAME, "force_host_copy": TRUTH, "lock_volume": TRUTH})
RETYPE_BODY = build_record({"new_type": Text(1, 255), "migration_policy": Nullable(Choices(NEVER, ON_DEMAND))},
                           "new_type")


def migration_actions(migrations: MigrationStore) -> Mapping[str, Callable[[Request, Any], Answer]]:
    """Return the handlers of the volume actions os-migrate_volume and os-retype, by name. A handler takes the request
    and the fields of the action."""
    return {MIGRATE: partial(_migrate, migrations), RETYPE: partial(_retype, migrations)}


def _migrate(migrations: MigrationStore, request: Request, arguments: Any) -> Answer:
    """Handle os-migrate_volume: request that the volume is moved to another host. ``force_host_copy`` has no effect,
    because hosts always copy the content."""
    values = MIGRATE_BODY.check(arguments or {}, MIGRATE)
    if bool(values.get("host")) == bool(values.get("cluster")):
        raise InvalidField("host", "or cluster is required, and not both")
    target = values.get("host") or f"{values['cluster']}@cluster"
    migrations.migrate(*request.service_arguments(target), lock=bool(values.get("lock_volume")))
    return Answer(None, 202)


def _retype(migrations: MigrationStore, request: Request, arguments: Any) -> Answer:
    """Handle os-retype: request that the volume gets another type."""
    values = RETYPE_BODY.check(arguments or {}, RETYPE)
    migrations.retype(*request.service_arguments(values["new_type"], values.get("migration_policy") or NEVER))
    return Answer(None, 202)
