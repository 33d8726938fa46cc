# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor may die anywhere while it builds, rebuilds or rescues with a password: the guest is told it, and only its
drive has it afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from sqlalchemy import select

from magnetar_control.store.engine import tables
from tests.support.agent.iso import read
from tests.support.control.crashes import until_none
from tests.unit.control.moves.clouds import check, flavors
from tests.unit.control.moves.dying import Fate, through
from tests.unit.control.moves.inside import Inside
from tests.unit.control.shelve.shelving import ENGINES

pytestmark = [ENGINES, pytest.mark.slow]


@pytest.fixture(scope="module")
def cloud(databases: dict[str, str]) -> Iterator[Inside]:
    """Agents in this process."""
    with Inside(databases=databases) as found:
        flavors(found)
        yield found


def told(cloud: Inside, id: str, name: str) -> str | None:
    """The password on a drive of the server."""
    (found,) = cloud.folder.glob(f"kvm*/**/servers/{id}/{name}")
    meta = json.loads(read(found.read_bytes(), "rr_path")["openstack/latest/meta_data.json"])
    return str(meta["admin_pass"]) if "admin_pass" in meta else None


def forgotten(cloud: Inside, id: str, password: str) -> bool:
    with cloud.parts.working.database.read() as connection:
        rows = connection.execute(select(tables.actions.c.args).where(tables.actions.c.server_id == id)).scalars().all()
    documents = [path.read_text() for path in cloud.folder.glob(f"kvm*/**/documents/server/{id}.json")]
    return bool(rows and documents) and not any(password in text for text in (*rows, *documents))


@pytest.mark.parametrize("late", [False, True])
def test_rebuild_and_rescue(cloud: Inside, late: bool) -> None:
    image = cloud.admin.image()
    id = cloud.admin.boot(networks="none")["id"]

    def rebuilt(fate: Fate) -> None:
        password = f"Rebuilt-{fate.number}-{late}"
        found = through(cloud, id, "rebuild", fate, image=image, preserve_ephemeral=False, admin_pass=password)
        assert found.vm_state == "active", (fate.number, found.fault)
        assert check(cloud, id)["power_state"] == "running", fate.number
        assert told(cloud, id, "config.iso") == password, fate.number
        assert forgotten(cloud, id, password), fate.number

    def rescued(fate: Fate) -> None:
        password = f"Rescued-{fate.number}-{late}"
        found = through(cloud, id, "rescue", fate, image=image, admin_pass=password)
        assert found.vm_state == "rescued", (fate.number, found.fault)
        assert told(cloud, id, "rescue.config.iso") == password, fate.number
        assert forgotten(cloud, id, password), fate.number

    def back(fate: Fate) -> None:
        assert through(cloud, id, "unrescue", fate).vm_state == "active", fate.number

    until_none(cloud, id, late, (rebuilt, rescued, back))
    cloud.admin.delete(f"/v2.1/servers/{id}")
    cloud.admin.settled(id)
