# SPDX-License-Identifier: GPL-3.0-or-later
"""The record beside disks that several hosts reach: whoever can write to the storage can write it, so only facts about
disks are taken from it."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_agent.reconcile.documents import Document
from magnetar_agent.servers.disks.disk_record import check_disk_record, take_disk_facts
from magnetar_core.errors import Conflict

ID = "0d1c6a8e-0f0b-4f5a-9d3e-6a1f0c2b7e44"
STATE = {"made": ["disk", "disk.swap", "disk.ephemeral1", "config.iso"], "sizes": {"disk.swap": 1}, "root_bytes": 1}


def server() -> Document:
    return Document("server", ID, "web1", {"root_format": "qcow2", "power": "off"})


def test_only_facts_about_disks_are_taken() -> None:
    document = server()
    record = {"state": {**STATE, "held": True, "cloud": False, "pool": {"name": "other"}},
              "want": {"root_format": "raw", "power": "running", "user_data": "YQ=="}}
    check_disk_record(document, record, ["disk"])
    take_disk_facts(document, record)
    assert document.state == {**STATE, "made": ["disk", "disk.swap", "disk.ephemeral1"]}
    assert document.want == {"root_format": "raw", "power": "off"}


@pytest.mark.parametrize(("change", "files"), [
    ({"made": ["../other/disk"]}, []), ({"made": ["/etc/shadow"]}, []), ({"made": "disk"}, []),
    ({"sizes": {"../disk": 1}}, []), ({"sizes": ["disk"]}, []), ({"made": [["disk"]]}, []),
    ({}, ["disk/../../x"]), ({}, ["disk\n"]), ({}, "disk"), ({}, ["base"])])
def test_names_that_are_no_disks_are_refused(change: dict[str, Any], files: Any) -> None:
    with pytest.raises(Conflict, match="names that are not those of disks"):
        check_disk_record(server(), {"state": {**STATE, **change}, "want": {}}, files)


@pytest.mark.parametrize("record", [{"state": STATE}, {"state": [], "want": {}}, {"state": STATE, "want": "raw"}])
def test_a_record_without_facts_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(Conflict, match="lacks facts"):
        check_disk_record(server(), record)
