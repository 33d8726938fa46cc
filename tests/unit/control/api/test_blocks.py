# SPDX-License-Identifier: GPL-3.0-or-later
"""The block device mapping that an image has among its properties: users write what they like there."""

import dataclasses

import orjson
import pytest
from sqlalchemy import insert

from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import flavors

IMAGE, OTHER = "70a599e0-31e7-49b7-b260-868f441e862b", "0f2f9f7e-3d7e-4c1b-a0c6-5be1fd1d7fb5"


class Images:
    """One image that everybody sees, with a mapping."""

    def __init__(self, mapping):
        self.mapping = mapping

    def show(self, _context, id):
        return {"id": id, "status": "active", "size": 1, "properties": {"block_device_mapping": self.mapping}}


class Networks:
    """None are wanted."""

    def check_requested(self, _context, _wishes, external=False):
        return []

    def groups(self, _context, names):
        return [{"name": name} for name in names]

    def floating(self, _server_ids):
        return {}


class Volumes:
    """One snapshot."""

    def snapshot(self, _context, id):
        return {"status": "available", "size": 1} if id == OTHER else None

    def show(self, _context, _id):
        return None

    def has_type(self, _context, _name):
        return True


@pytest.fixture
def boot(small):
    """Makes a server of an image with this mapping."""
    small.host()
    with small.api.write() as connection:
        connection.execute(insert(flavors).values(id="1", name="tiny", vcpus=1, ram=64, disk=1, created_at=utc_now()))

    def made(mapping):
        small.cloud.services = dataclasses.replace(small.cloud.services, image=Images(mapping), network=Networks(),
                                                   volume=Volumes())
        return small.alice.post("/servers", {"server": {
            "name": "web", "flavorRef": "1", "imageRef": IMAGE, "networks": "none"}}, "2.96")
    return made


@pytest.mark.parametrize(("mapping", "field"), [
    ([{"source_type": "foo", "uuid": OTHER}], "[0].source_type"),
    ([{"source_type": ["x"], "uuid": OTHER}], "[0].source_type"),
    ([{"source_type": "volume", "uuid": {"a": 1}}], "[0].uuid"),
    ([{"source_type": "snapshot", "snapshot_id": "x"}], "[0].snapshot_id"),
    ([{}, {"source_type": "blank", "volume_size": "huge", "destination_type": "volume"}], "[1].volume_size"),
    ([{"source_type": "blank", "destination_type": "nowhere", "volume_size": 1}], "[0].destination_type"),
    ([{"source_type": "snapshot", "uuid": OTHER, "boot_index": {"a": 1}}], "[0].boot_index"),
    ([{"source_type": "snapshot", "uuid": OTHER, "volume_type": 5}], "[0].volume_type"),
    ([{"source_type": "snapshot", "uuid": OTHER, "tag": ["a"]}], "[0].tag"),
    ([{"source_type": "snapshot", "uuid": OTHER, "delete_on_termination": {}}], "[0].delete_on_termination"),
    ([{}], ".uuid"), ([{"source_type": "snapshot"}], ".uuid")])
def test_what_is_wrong_in_it_is_named(boot, mapping, field):
    reply = boot(orjson.dumps(mapping).decode())
    assert reply.status == 400 and reply.message.startswith(f"image {IMAGE}: block_device_mapping{field}: "), reply


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", "null"])
def test_what_is_no_list_is_refused(boot, text):
    reply = boot(text)
    assert reply.status == 400 and "block_device_mapping" in reply.message, reply


def test_text_of_numbers_keys_without_value_and_unknown_keys_are_taken(boot):
    reply = boot(orjson.dumps([{"source_type": "snapshot", "destination_type": "volume", "snapshot_id": OTHER,
                                "volume_size": "5", "boot_index": "0", "delete_on_termination": "true",
                                "encryption_format": "luks", **dict.fromkeys((
                                    "disk_bus", "device_type", "device_name", "guest_format", "image_id", "volume_id",
                                    "no_device", "tag", "volume_type"))}]).decode())
    assert reply.status == 202, reply
