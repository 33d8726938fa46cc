# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of config drives, read back by another part of the library that wrote them."""

from __future__ import annotations

import io

import pytest

from magnetar_agent.metadata.configdrive import config_drive_files
from magnetar_agent.metadata.guest_data import Guest, Key
from magnetar_agent.virt.disks import iso
from tests.support.agent.iso import read

GUEST = Guest(uuid="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", name="one", hostname="one", seed=b"\1" * 512)


def written(content: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    iso.write_iso(target, "config-2", content)
    return target.getvalue()


@pytest.mark.parametrize("names", ["rr_path", "joliet_path"])
@pytest.mark.parametrize("content", [
    {"a": b"1"}, {"a": b""}, {"a/b/c": b"", "a/b/d": b"x" * 2048, "a/e": b"", "f": b"y" * 2049, "g/h": b"x" * 2048},
    {"same": b"twice", "the/same": b"twice", "other": b"once"}, {f"of_many/{at:03}": bytes([at]) for at in range(200)},
], ids=["one", "empty", "sizes", "shared", "many"])
def test_what_was_written_is_read(content: dict[str, bytes], names: str) -> None:
    for _again in range(2):  # the second is filled into the first's layout
        assert read(written(content), names) == content


def test_a_layout_is_shared_and_nothing_of_another_guest_is_in_it() -> None:
    first, second = ({"secret": b"of the first", "same": b"1"}, {"secret": b"of second 12", "same": b"2"})
    images = [written(first), written(second), written(first)]
    assert images[0] == images[2]
    assert b"of the first" not in images[1]
    assert read(images[1], "rr_path") == second


def test_drives_of_guests_without_user_data_have_one_layout() -> None:
    iso._empty.cache_clear()
    for name, key in (("short", "a"), ("a-name-that-is-longer", "ssh-ed25519 " + "A" * 68)):
        written(config_drive_files(Guest(uuid=GUEST.uuid, name=name, hostname=name, seed=b"\2" * 512,
                                         keys=(Key("me", key),))))
    assert iso._empty.cache_info().misses == 1
