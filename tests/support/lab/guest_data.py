# SPDX-License-Identifier: GPL-3.0-or-later
"""The guest data that a cloud sends to a server's host."""

from __future__ import annotations

from typing import Any

SIZES = {"vcpus": 1, "ram": 128, "disk": 1}
TOLD: dict[str, Any] = {
    "name": "Web Eins", "hostname": "web-eins.novalocal", "project_id": "p1", "launch_index": 3,
    "reservation_id": "r-1", "flavor": "m1.tiny", "availability_zone": "az2", "security_groups": ["default"],
    "keys": [{"name": "my key", "type": "ssh", "data": "ssh-ed25519 AAAA me"}]}
