# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that returns after servers were evacuated from it: what it has of them goes before the host counts as up, and
servers that a boot has stopped start when the cloud says that they are this host's still (docs/evacuate.md)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.steps import tpm_secrets
from magnetar_control.conductor.steps.migration_halves import remove
from magnetar_control.conductor.worker.environment import Environment
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.tables import servers as table
from magnetar_control.store.servers import migrations, servers
from magnetar_core.ensure import BATCH_MAX
from magnetar_core.errors import MagnetarError, NotFound
from magnetar_core.http.client import Client
from magnetar_core.power import LIVE, OFF

log = logging.getLogger(__name__)


def settle(conductor: Environment, client: Client, host: str, before: Collection[str]) -> set[str]:
    """See to all that was evacuated from the host, but for the evacuations *before* (uuids), for which it was done.
    Guests that are evacuated just now are stopped, and stay: that may fail still. Those that are on another host by now
    are removed, and their evacuations completed. Returns the uuids of these and of *before*. Raises ``MagnetarError``
    where the host cannot do it now."""
    with conductor.database.read() as connection:
        found = [one for one in migrations.evacuated(connection, host)
                 if one.status == migrations.DONE or one.uuid not in before]
        rows = servers.rows(connection, {one.server_id for one in found})
    for one in found:
        if one.status == migrations.LOST:
            _stop(client, one.server_id)
            continue
        row = rows.get(one.server_id)
        if row is None or row.deleted_at or row.host != host:
            log.warning("server %s was evacuated while host %s was away; removed there now", one.server_id, host,
                        extra={"server": one.server_id, "host": host})
            remove(client, one.server_id)
        complete(conductor, host, one.uuid)
    return {*before, *(one.uuid for one in found)}


def _stop(client: Client, id: str) -> None:
    with suppress(NotFound):
        if client.get("server", id)["power_state"] in LIVE:
            client.ensure("server", id, {"power": OFF})


def complete(conductor: Environment, host: str, id: str) -> None:
    """The host has nothing of the evacuated server any more: it is free for others."""
    with conductor.store.api.write() as connection:
        allocations.release(connection, id)
    with conductor.database.write() as connection:
        migrations.change(connection, id, was=migrations.DONE, status="completed")
    conductor.read_host(host)


def release(conductor: Environment, host: str, found: Sequence[Mapping[str, Any]]) -> None:
    """Start the servers of *found* that wait for the word of the cloud, and are on the host still. What an evacuation
    has begun with waits on."""
    held = [one["id"] for one in found if one.get("held")]
    if not held:
        return
    try:
        with conductor.database.read() as connection:
            lost = {one.server_id for one in migrations.evacuated(connection, host)}
            mine = connection.execute(select(
                table.c.id, table.c.flavor, table.c.image, table.c.user_id, table.c.project_id).where(
                    table.c.id.in_(held), table.c.host == host, table.c.deleted_at.is_(None))).all()
        items = [{"key": one.id, "want": tpm_secrets.after_boot(conductor, one)} for one in mine if one.id not in lost]
        with conductor.agents.make(conductor.endpoint(host)) as client:
            for at in range(0, len(items), BATCH_MAX):
                for one in client.ensure_many("server", items[at:at + BATCH_MAX])["results"]:
                    if "error" in one:
                        log.warning("server %s does not start on host %s: %s", one["key"], host,
                                    one["error"]["message"], extra={"server": one["key"], "host": host})
    except (MagnetarError, DBAPIError) as error:
        log.warning("servers of host %s that its boot has stopped: %s", host, error, extra={"host": host})
