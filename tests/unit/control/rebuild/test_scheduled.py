# SPDX-License-Identifier: GPL-3.0-or-later
"""A rebuild with another image asks the scheduler whether the host may have that: else a user would get by it what a
create refuses."""

from __future__ import annotations

import pytest

from magnetar_control.store.servers import servers
from tests.unit.control.moves.clouds import claims, row
from tests.unit.control.moves.dying import Fate, ask, through

from .rebuilding import ENGINES

pytestmark = ENGINES


#: Columns that say of which image a server is.
OF_IMAGE = ("image_id", "image", "root_device_name")


def asked(owner, id, image):
    """What a rebuild of the server with *image* asks for: the arguments of its action, and columns of the server."""
    found = row(owner.cloud, id)
    return {"columns": {"image_id": image, "root_device_name": "/dev/sda",
                        "image": servers.json_text({"properties": {"trait:CUSTOM_NOWHERE": "required"}})},
            "image": image, "preserve_ephemeral": False, "before": {name: getattr(found, name) for name in OF_IMAGE}}


def made_of(owner, id):
    """The columns that say of which image the server is."""
    found = row(owner.cloud, id)
    return [getattr(found, name) for name in OF_IMAGE]


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


def test_a_conductor_that_dies_while_it_refuses(owner, refused):
    id = owner.server(flavorRef="small")["id"]
    before, fate = made_of(owner, id), Fate(0)
    while fate.died or not fate.number:
        fate = Fate(fate.number + 1)
        found = through(owner.cloud, id, "rebuild", fate, **asked(owner, id, refused))
        assert (found.vm_state, made_of(owner, id)) == ("error", before), fate.number


def test_one_that_is_dropped_before_it_began(owner, refused):
    """The next one asks whether the host may have the image, too."""
    id = owner.server(flavorRef="small")["id"]
    before = made_of(owner, id)
    ask(owner.cloud, id, "rebuild", **asked(owner, id, refused))
    assert made_of(owner, id) != before
    assert owner.call.act(id, "os-resetState", {"state": "active"}).status == 202
    assert (row(owner.cloud, id).vm_state, made_of(owner, id)) == ("active", before)


def test_what_follows_from_the_image_is_put_back(owner):
    id = owner.server(flavorRef="small")["id"]
    before = made_of(owner, id)
    other = owner.call.image("scsi", hw_disk_bus="scsi", **{"trait:CUSTOM_NOWHERE": "required"})
    assert owner.rebuild(id, other).status == 202
    assert owner.call.settled(id)["status"] == "ERROR"
    assert made_of(owner, id) == before


def test_a_root_volume_too(owner, refused):
    id = owner.on_volume()
    before = row(owner.cloud, id).request
    assert owner.rebuild(id, refused).status == 202
    assert owner.call.settled(id)["status"] == "ERROR"
    assert owner.root(id)["volume_image_metadata"]["image_id"] == owner.call.image()
    assert row(owner.cloud, id).request == before


def test_an_image_that_it_may_have_and_the_same_one(owner):
    """Nothing is asked for the same image: a host that would not get the server now keeps it."""
    id = owner.server(flavorRef="small")["id"]
    for image in (owner.call.image("other"), owner.call.image("other")):
        assert owner.rebuild(id, image).status == 202
        assert owner.call.settled(id)["status"] == "ACTIVE"
