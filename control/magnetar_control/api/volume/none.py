# SPDX-License-Identifier: GPL-3.0-or-later
"""What Cinder has and embedded volumes have none of: lists are empty, and making one is refused, saying what there is
instead."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from magnetar_control.services import Document
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import InvalidRequest

#: Lists that are empty: path to key.
NONE_OF = {"backups": "backups", "groups": "groups", "group_snapshots": "group_snapshots",
           "volume-transfers": "transfers", "os-volume-transfer": "transfers", "consistencygroups": "consistencygroups",
           "cgsnapshots": "cgsnapshots"}
#: Those that have no details, and nothing that could be made.
FEW = {"clusters": "clusters", "extensions": "extensions", "group_types": "group_types", "qos-specs": "qos_specs"}
_GROUPS = "Embedded volumes belong to no groups. Take snapshots of the volumes one by one."
_TRANSFERS = ("Embedded volumes stay in their project. Make an image of the volume (openstack image create --volume), "
              "and share that with the other project.")
_MANAGED = ("Embedded volumes are made here, and what a host has otherwise is not taken over. Bring content in as an "
            "image, and make a volume of that.")
#: What is asked for by POST, and why it is not there.
INSTEAD = {
    "backups": "Embedded volumes have no backups. Take a snapshot, or make an image of the volume (openstack image "
               "create --volume), which the image service keeps.",
    "groups": _GROUPS, "groups/action": _GROUPS, "group_snapshots": _GROUPS, "group_types": _GROUPS,
    "consistencygroups": _GROUPS, "consistencygroups/create_from_src": _GROUPS, "cgsnapshots": _GROUPS,
    "volume-transfers": _TRANSFERS, "os-volume-transfer": _TRANSFERS, "manageable_volumes": _MANAGED,
    "manageable_snapshots": _MANAGED,
    "qos-specs": "Embedded volumes have no QoS specs: hosts limit what a server does with its disks, by the flavor's "
                 "extra specs quota:disk_read_bytes_sec and the like."}


def routes() -> list[Guarded]:
    """Where they are, below ``/v3``."""
    lists = {**NONE_OF, **FEW, **{f"{path}/detail": key for path, key in NONE_OF.items()}}
    return [*(route(f"GET {path}", partial(_nothing, key)) for path, key in lists.items()),
            *(route(f"POST {path}", partial(_refuse, why)) for path, why in INSTEAD.items())]


def _nothing(key: str, _request: Request) -> Document:
    return {key: []}


def _refuse(why: str, _request: Request) -> NoReturn:
    raise InvalidRequest(why)
