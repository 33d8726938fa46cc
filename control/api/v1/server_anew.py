# SPDX-License-Identifier: GPL-3.0-or-later
"""A server in the place of another one, which goes before: what of the cloud is then free for it."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from magnetar_control.api.nova import server_create
from magnetar_control.api.nova.operation import Call
from magnetar_control.compute import quotas as quota
from magnetar_control.compute.cloud import Cloud
from magnetar_control.services import Context, Volumes

from .asks import Document


def rows_instead_of(call: Call, flavor: Document) -> list[dict[str, Any]]:
    """As ``prepared``, for a server in the place of one of *flavor*, which the quota counts no more."""
    wanted = server_create.checked(call)
    quota.check_flavor(call, flavor, wanted.flavor)
    return wanted.rows(1)


def kept(have: Document, want: Document) -> list[str]:
    """Volumes that go with the server, but that the one in its place is to have too."""
    named = {one.get("uuid") for one in want.get("block_device_mapping") or () if one["source_type"] == "volume"}
    return [one["id"] for one in have["volumes_attached"]
            if one["delete_on_termination"] and not named.isdisjoint((one["id"], one["name"]))]


def without(cloud: Cloud, server: str) -> Cloud:
    """The cloud, in which the volumes of *server* are free."""
    found = copy.copy(cloud)
    found.services = dataclasses.replace(cloud.services, volume=_Freed(cloud.services.volume, server))
    return found


class _Freed:
    """The volume service, when a server is gone."""

    def __init__(self, volumes: Volumes, server: str) -> None:
        self.volumes, self.server = volumes, server

    def show(self, context: Context, id: str) -> Document | None:
        """A volume that this server has alone is available."""
        found = self.volumes.show(context, id)
        alone = found is not None and {one["server_id"] for one in found["attachments"]} == {self.server}
        return {**found, "status": "available"} if found and alone and found["status"] == "in-use" else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.volumes, name)
