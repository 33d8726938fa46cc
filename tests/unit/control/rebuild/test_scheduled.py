# SPDX-License-Identifier: GPL-3.0-or-later
"""A rebuild with another image asks the scheduler whether the host may have that: else a user would get by it what a
create refuses."""

from __future__ import annotations

import pytest

from tests.unit.control.moves.clouds import claims

from .rebuilding import ENGINES

pytestmark = ENGINES


@pytest.fixture
def refused(owner):
    """An image that no host may have."""
    return owner.call.image("picky", **{"trait:CUSTOM_NOWHERE": "required"})


def test_an_image_that_the_host_may_not_have(owner, refused):
    """As Nova: the server is in error, with its disk as it was, and a hard reboot starts that."""
    server = owner.server(flavorRef="small")
    id, held = server["id"], claims(owner.cloud, server["id"])
    for _time in range(2):  # also when it is asked for again
        assert owner.rebuild(id, refused).status == 202
        found = owner.call.settled(id)
    assert found["image"] == server["image"]
    assert (found["status"], found["fault"]["message"]) == (
        "ERROR", "No valid host was found. There are not enough hosts available.")
    assert "TraitsFilter refuses" in found["fault"]["details"] and "CUSTOM_NOWHERE" in found["fault"]["details"]
    assert claims(owner.cloud, id) == held
    assert owner.call.act(id, "reboot", {"type": "HARD"}).status == 202
    assert owner.call.settled(id)["status"] == "ACTIVE"


def test_a_root_volume_too(owner, refused):
    id = owner.on_volume()
    assert owner.rebuild(id, refused).status == 202
    assert owner.call.settled(id)["status"] == "ERROR"
    assert owner.root(id)["volume_image_metadata"]["image_id"] == owner.call.image()


def test_an_image_that_it_may_have_and_the_same_one(owner):
    """Nothing is asked for the same image: a host that would not get the server now keeps it."""
    id = owner.server(flavorRef="small")["id"]
    for image in (owner.call.image("other"), owner.call.image("other")):
        assert owner.rebuild(id, image).status == 202
        assert owner.call.settled(id)["status"] == "ACTIVE"
