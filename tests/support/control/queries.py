# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of queries."""

import dataclasses

from sqlalchemy import insert

from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import flavors

IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
WANTED = {"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "networks": "none"}}


class Images:
    """An image service with one image that everybody may see."""

    def show(self, _context, id):
        return {"id": id, "status": "active", "size": 1, "properties": {}} if id == IMAGE else None


class Networks:
    """A network service without networks, for servers without NICs."""

    def check_requested(self, _context, _wishes, external=False):
        return []

    def groups(self, _context, names):
        return [{"name": name} for name in names]

    def floating(self, _server_ids):
        return {}


def furnished(compute):
    compute.cloud.settings = dataclasses.replace(compute.cloud.settings, quota_instances=10**6,
                                                 quota_cores=10**6, quota_ram=10**9)
    compute.cloud.services = dataclasses.replace(compute.cloud.services, image=Images(), network=Networks())
    compute.host()
    with compute.api.write() as connection:
        connection.execute(insert(flavors).values(id="1", name="tiny", vcpus=1, ram=64, disk=1, created_at=utc_now()))
    return compute
