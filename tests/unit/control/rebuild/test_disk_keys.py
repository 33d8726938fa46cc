# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor may die anywhere while it rebuilds a server with encrypted disks, also between the new disk and the end
of the old key: the key that is kept is the one that opens the disk, and no other is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import update

from magnetar_agent.servers.disks import encryption
from magnetar_control.store.engine import tables
from tests.unit.control.moves.clouds import flavors
from tests.unit.control.moves.dying import Died, Fate, through
from tests.unit.control.moves.inside import Inside

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cloud() -> Iterator[Inside]:
    with Inside(hosts=1) as found:
        flavors(found)
        with found.parts.api_database.write() as connection:
            connection.execute(update(tables.flavors).where(tables.flavors.c.id == "small").values(
                extra_specs='{"hw:ephemeral_encryption": "true"}'))
        yield found


class Keys:
    """Calls of the key manager are acts, too: death comes before one, or (*late*) after it."""

    def __init__(self, manager: Any, fate: Fate) -> None:
        self.manager, self.fate = manager, fate

    def _act(self, name: str, id: str) -> Any:
        dies = self.fate.step()
        if dies and not self.fate.late:
            raise Died
        found = getattr(self.manager, name)(id)
        if dies:
            raise Died
        return found

    def create_key(self, id: str) -> Any:
        return self._act("create_key", id)

    def delete_key(self, id: str) -> Any:
        return self._act("delete_key", id)


def _kept(cloud: Inside) -> dict[str, str]:
    """The keys that the key manager has, by uuid."""
    return {path.name: path.read_text() for path in (cloud.folder / "control/keys").iterdir()}


def _on_host(agent: Any, id: str) -> str:
    """The key with which a server's host opens its disks."""
    found = encryption.open_disk_key(agent.host, agent.host.documents.get("server", id))
    assert found is not None
    return found.secret


@pytest.mark.parametrize("late", [False, True])
def test_a_rebuild(cloud: Inside, late: bool) -> None:
    images = [cloud.admin.image(), cloud.admin.image("other")]
    made = cloud.admin.boot(f"hidden-{late}", flavorRef="small", imageRef=images[0], networks="none")
    id, seen, number, died = made["id"], [*_kept(cloud).values()], 0, True
    assert len(seen) == 1
    while died:
        number += 1
        fate, services = Fate(number, late), cloud.parts.working.services
        with patch.object(cloud.parts.working, "services", replace(services, key_manager=Keys(
                services.key_manager, fate))):
            found = through(cloud, id, "rebuild", fate, image=images[number % 2], reimage=True,
                            preserve_ephemeral=False)
        died = fate.died
        assert found.vm_state == "active", (number, found.fault)
        (kept,) = _kept(cloud).values()
        assert _on_host(cloud.kvm[found.host].agent, id) == kept, number
        assert kept not in seen, number
        seen.append(kept)
    assert number > (4 if late else 8)
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None and not _kept(cloud)
