# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of guest data."""

from __future__ import annotations

import json
from typing import Any

from tests.support.agent.iso import read as files_of
from tests.support.agent.resize import folder
from tests.unit.agent.conftest import Host

MAC, SECRET = "52:54:00:00:00:42", "Sesame-42"
#: Guest data that a cloud sends for a server.
TOLD: dict[str, Any] = {
    "name": "Web Eins", "hostname": "web-eins.novalocal", "project_id": "p1", "launch_index": 2,
    "reservation_id": "r-abc", "flavor": "m1.tiny", "availability_zone": "az2", "security_groups": ["default", "web"],
    "keys": [{"name": "my key", "type": "ssh", "data": "ssh-ed25519 AAAA me"}]}


def drive(host: Host, path: str = "openstack/latest/meta_data.json", name: str = "config.iso") -> dict[str, Any]:
    content = files_of((folder(host) / name).read_bytes(), "rr_path")[path]
    found: dict[str, Any] = json.loads(content)
    return found


def kept(host: Host) -> str:
    """Return the text of the document that the agent stores of its server."""
    id = host.show()["id"]
    return (host.root / f"state/documents/server/{id}.json").read_text()
