# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor may die anywhere while it rebuilds a server on a volume: another one brings it to its end."""

from __future__ import annotations

import pytest

from tests.support.control.crashes import until_none
from tests.unit.control.moves.clouds import flavors
from tests.unit.control.moves.dying import through
from tests.unit.control.moves.inside import Inside

from .rebuilding import ENGINES

pytestmark = ENGINES


@pytest.fixture(scope="module")
def cloud(databases):
    """Agents in this process."""
    with Inside(databases=databases) as found:
        flavors(found)
        yield found


@pytest.mark.parametrize("late", [False, True])
def test_a_rebuild_on_a_volume(owner, late):
    id = owner.on_volume()
    images, host = [owner.call.image(), owner.call.image("other")], owner.host_of(id)

    def again(fate):
        image = images[fate.number // 2 % 2]
        found = through(owner.cloud, id, "rebuild", fate, image=image, reimage=True, preserve_ephemeral=False)
        assert found.vm_state == "active", (fate.number, found.fault)
        owner.check_of(id, image, host)

    until_none(owner.cloud, id, late, (again,))


def test_one_that_was_deleted_meanwhile(owner):
    id, other = owner.on_volume(), owner.call.image("other")
    volume = owner.root(id)["id"]
    assert owner.rebuild(id, other).status == 202
    assert owner.call.delete(f"/v2.1/servers/{id}").status == 204
    assert owner.call.settled(id) is None
    assert owner.state(volume) in ("deleting", None)
