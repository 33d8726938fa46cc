# SPDX-License-Identifier: GPL-3.0-or-later
"""Small recorded clouds for tests of room to fail and balance: hosts and servers as rows, with their claims."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import insert

from magnetar_control.scheduler.request_spec import claimed_amounts
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.tables import server_group_members
from magnetar_control.store.hosts import aggregates, hosts
from magnetar_control.store.servers import server_groups


def recorded_server(cloud: Any, host: str, name: str, ram: int = 1024, vcpus: int = 1, group: str | None = None,
                    extra_specs: dict[str, str] | None = None, **columns: Any) -> str:
    """Add a server of *ram* MiB with its claim on *host*, in the server group *group*; return its uuid. *columns*: more
    columns of its row, documents as objects."""
    flavor = {"id": "1", "name": "tiny", "vcpus": vcpus, "ram": ram, "disk": 1, "ephemeral": 0, "swap": 0,
              "extra_specs": extra_specs or {}}
    values = {name: value if isinstance(value, str) or value is None else orjson.dumps(value).decode()
              for name, value in columns.items()}
    if group:
        values["hints"] = orjson.dumps({"group": group}).decode()
    id = str(cloud.server(host=host, name=name, flavor=orjson.dumps(flavor).decode(), **values))
    with cloud.api.write() as connection:
        row = hosts.fetch_host_row(connection, host)
        assert row is not None
        assert allocations.claim_host_resources(connection, id, id, row.id, claimed_amounts(flavor))  # type: ignore[arg-type]
        if group:
            connection.execute(insert(server_group_members).values(group_id=group, server_id=id))
    return id


def recorded_group(cloud: Any, id: str, policy: str) -> str:
    """Add a server group; return its id."""
    with cloud.api.write() as connection:
        server_groups.insert_server_group_row(connection, id=id, name=id, project_id="red", user_id="alice",
                                              policy=policy)
    return id


def recorded_aggregate(cloud: Any, name: str, names: list[str], **metadata: str) -> None:
    """Add an aggregate of the hosts *names*."""
    with cloud.api.write() as connection:
        id = aggregates.insert_aggregate_row(connection, name, metadata)
        for host in names:
            aggregates.insert_aggregate_host_row(connection, id, host)
