# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of attachments."""

from __future__ import annotations

MAC = "52:54:00:00:00:77"
CASES = {
    "volume_attachment": dict(server="s", volume="data", tag="logs"),
    "interface_attachment": dict(server="s", network="lan", mac=MAC, tag="back"),
}
