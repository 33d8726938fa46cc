# SPDX-License-Identifier: GPL-3.0-or-later
"""Resources of Cinder that the embedded volume service does not have: lists are empty; a creation is refused, and the
error names the alternative."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import InvalidRequest

#: Empty lists: path to key.
NONE_OF = {"groups": "groups", "group_snapshots": "group_snapshots",
           "consistencygroups": "consistencygroups", "cgsnapshots": "cgsnapshots"}
#: Empty lists without details, of resources that cannot be created.
FEW = {"clusters": "clusters", "extensions": "extensions", "group_types": "group_types", "qos-specs": "qos_specs"}
_GROUPS = "Embedded volumes belong to no groups. Take snapshots of the volumes one by one."
_MANAGED = ("Snapshots of embedded volumes are full copies. Bring the content in as a volume (openstack volume create "
            "--remote-source).")
#: Path of a POST to the reason of its refusal.
INSTEAD = {
    "groups": _GROUPS, "groups/action": _GROUPS, "group_snapshots": _GROUPS, "group_types": _GROUPS,
    "consistencygroups": _GROUPS, "consistencygroups/create_from_src": _GROUPS, "cgsnapshots": _GROUPS,
    "manageable_snapshots": _MANAGED,
    "qos-specs": "Embedded volumes have no QoS specs: hosts limit what a server does with its disks, by the flavor's "
                 "extra specs quota:disk_read_bytes_sec and the like."}


def absent_volume_routes() -> list[Guarded]:
    """Return routes, relative to ``/v3``, for Cinder resources that this service does not support, such as groups.
    Lists of such resources are empty, and creating one is refused."""
    lists = {**NONE_OF, **FEW, **{f"{path}/detail": key for path, key in NONE_OF.items()}}
    return [*(guarded_route(f"GET {path}", partial(_nothing, key)) for path, key in lists.items()),
            *(guarded_route(f"POST {path}", partial(_refuse, why)) for path, why in INSTEAD.items())]


def _nothing(key: str, _request: Request) -> Document:
    return {key: []}


def _refuse(why: str, _request: Request) -> NoReturn:
    raise InvalidRequest(why)
