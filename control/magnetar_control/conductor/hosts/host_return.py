# SPDX-License-Identifier: GPL-3.0-or-later
"""The return of a host after an evacuation: the evacuated servers are removed from it before it counts as up. Servers
that the host's boot has stopped are started if the database says that they still belong to the host:
docs/explanation/evacuation.md."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.steps import keys
from magnetar_control.conductor.steps.migration import remove_server_from_host
from magnetar_control.conductor.steps.shared_disks import confirm_disks
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.tables import servers as table
from magnetar_control.store.hosts import fencings
from magnetar_control.store.hosts.shared_disks import shared_disks_of
from magnetar_control.store.servers import migrations, servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.ensure import BATCH_MAX
from magnetar_core.errors import MagnetarError, NotFound
from magnetar_core.http.client import Client
from magnetar_core.power import LIVE, OFF

log = logging.getLogger(__name__)
#: Seconds between two looks whether a host that answers is still fenced.
FENCED_POLL_INTERVAL = 5.0


def complete_evacuations(conductor: Conductor, client: Client, host: str, completed_ids: Collection[str]) -> set[str]:
    """Clean up a host that returns after evacuations. Handle the evacuations from the host that have the status
    ``done``, and the running ones except *completed_ids* (uuids of the evacuations that were handled by earlier calls).

    For a running evacuation, only stop the guest, because the evacuation may still fail. For an evacuation with the
    status ``done``, set the status to completed, and remove the guest if the server is deleted or on another host now.
    Return *completed_ids* together with the uuids of the handled evacuations. Raises ``MagnetarError`` if the host
    cannot stop or remove a guest now.
    """
    with conductor.database.read() as connection:
        evacuations = [evacuation for evacuation in migrations.fetch_evacuation_rows(connection, host)
                       if evacuation.status == migrations.DONE or evacuation.uuid not in completed_ids]
        rows = servers.fetch_server_rows(connection, {evacuation.server_id for evacuation in evacuations})
    for evacuation in evacuations:
        if evacuation.status == migrations.LOST:
            _stop(client, evacuation.server_id)
            continue
        row = rows.get(evacuation.server_id)
        if row is not None and row.host not in (None, host) and not row.deleted_at and shared_disks_of(
                conductor.states.rows.get(host), row):
            confirm_disks(conductor, row.host, row.id, evacuation.uuid)  # a conductor may have died before it did
        if row is None or row.deleted_at or row.host != host:
            log.warning("server %s was evacuated while host %s was away; removed there now", evacuation.server_id, host,
                        extra={"server": evacuation.server_id, "host": host})
            remove_server_from_host(client, evacuation.server_id)
        free_evacuated_source(conductor, host, evacuation.uuid)
    return {*completed_ids, *(evacuation.uuid for evacuation in evacuations)}


def _stop(client: Client, id: str) -> None:
    with suppress(NotFound):
        if client.get("server", id)["power_state"] in LIVE:
            client.ensure("server", id, {"power": OFF})


def free_evacuated_source(conductor: Conductor, host: str, id: str) -> None:
    """Release the claims of an evacuated server on *host*, after its remains were removed from *host*, and set the
    evacuation *id* to completed."""
    with conductor.store.api.write() as connection:
        allocations.release_consumer_claims(connection, id)
    with conductor.database.write() as connection:
        migrations.update_migration_row(connection, id, expected_status=migrations.DONE, status="completed")
    conductor.read_host(host)


def _wait_until_unfenced(conductor: Conductor, host: str) -> bool:
    """Wait until the host is not fenced, and return ``True``. Return ``False`` if the conductor process ends before
    that."""
    warned = False
    while True:
        with conductor.store.api.read() as connection:
            if not fencings.is_host_held(connection, host):
                return True
        if not warned:
            log.warning("host %s is fenced, and its agent answers: its servers stay off until `magnetar host unfence "
                        "%s`", host, host, extra={"host": host})
            warned = True
        if conductor.over.wait(FENCED_POLL_INTERVAL):
            return False


def start_held_servers(conductor: Conductor, host: str, resources: Sequence[Mapping[str, Any]]) -> None:
    """Start the servers that the agent did not start itself after its host has booted, if the database still has them
    on *host*. *resources*: the host's servers as its agent reports them; the servers to start have the field ``held``.
    Servers with a running evacuation are not started. If the host is fenced, first wait until it is unfenced."""
    held_ids = [resource["id"] for resource in resources if resource.get("held")]
    if not held_ids:
        return
    try:
        if not _wait_until_unfenced(conductor, host):
            return
        with conductor.database.read() as connection:
            lost = {evacuation.server_id for evacuation in migrations.fetch_evacuation_rows(connection, host)}
            mine = ServerRow.several(connection.execute(select(
                table.c.id, table.c.flavor, table.c.image, table.c.user_id, table.c.project_id).where(
                    table.c.id.in_(held_ids), table.c.host == host, table.c.deleted_at.is_(None))))
        items = [{"key": server.id, "want": keys.after_boot(conductor, server)} for server in mine
                 if server.id not in lost]
        with conductor.agents.make(conductor.endpoint(host)) as client:
            for at in range(0, len(items), BATCH_MAX):
                for outcome in client.ensure_many("server", items[at:at + BATCH_MAX])["results"]:
                    if "error" in outcome:
                        log.warning("server %s does not start on host %s: %s", outcome["key"], host,
                                    outcome["error"]["message"], extra={"server": outcome["key"], "host": host})
    except (MagnetarError, DBAPIError) as error:
        log.warning("servers of host %s that its boot has stopped: %s", host, error, extra={"host": host})
