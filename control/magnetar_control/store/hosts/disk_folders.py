# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared folders of servers' disks, as hosts report them (``disk_folder`` of ``kinds.Host``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .host_row import HostRow


def folder_of_host(row: HostRow | None) -> Mapping[str, Any]:
    """Return the host's report about its folder for servers' disks, if this folder is shared with other hosts. Return
    an empty mapping if the folder is not shared, or *row* is ``None``."""
    folder = row.info.get("disk_folder") if row is not None else None
    return folder if isinstance(folder, Mapping) and folder.get("id") else {}


def usable_folder_id(info: Mapping[str, Any]) -> str:
    """Return the id of the shared disk folder in *info*, a host's report, if the host can use the folder now; otherwise
    an empty string."""
    folder = info.get("disk_folder")
    return str(folder.get("id") or "") if isinstance(folder, Mapping) and not folder.get("reason") else ""


def do_hosts_share_disks(source: HostRow | None, target: HostRow | None) -> bool:
    """Return whether the host *target* can use the disks of the servers on *source* now, because both hosts share a
    folder."""
    id = folder_of_host(source).get("id")
    return bool(id) and target is not None and usable_folder_id(target.info) == id
