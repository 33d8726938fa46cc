# SPDX-License-Identifier: GPL-3.0-or-later
"""The image service with users that need no identity service, and content of all sorts."""

from __future__ import annotations

import io

from magnetar_control.api.image.app import image_application
from magnetar_control.services import Context, image
from magnetar_control.web.application import by_token
from tests.unit.control.identity.cloud import Client

MIB = 2**20
OCTETS = "application/octet-stream"
PATCH = "application/openstack-images-v2.1-json-patch"
RAW = bytes(range(256)) * 2 * 16


def user(name, *roles):
    return Context(user_id=name, project_id=f"project-{name}", roles=frozenset(roles), user_name=name)


USERS = {"admin": user("admin", "admin", "member", "reader"), "ann": user("ann", "member", "reader"),
         "bob": user("bob", "member", "reader"), "eve": user("eve", "member", "reader"), "rea": user("ann", "reader"),
         "svc": user("svc", "service")}


class Glance:
    """The service over a folder; ``ann`` and the others are clients."""

    def __init__(self, database, folder, **limits):
        self.folder = folder / "images"
        self.service = image.EmbeddedImages(database, self.folder, **limits)
        self.application = image_application(self.service, by_token(USERS.get))
        for name in USERS:
            setattr(self, name, Client(self.application, "/image", name))

    def make(self, who, data=None, **fields):
        """An image of somebody, with content when there is *data*; its id."""
        ask = getattr(self, who)
        fields = {"disk_format": "raw", "container_format": "bare", **fields}
        id = ask("POST", "/v2/images", fields, 201)["id"]
        if data is not None:
            self.put(ask, id, data, 204)
        return id

    def put(self, ask, id, data, status=None):
        return ask("PUT", f"/v2/images/{id}/file", data, status, content_type=OCTETS)

    def patch(self, ask, id, *operations, status=None):
        body = [{"op": op, "path": f"/{name}", **({"value": value[0]} if value else {})}
                for op, name, *value in operations]
        return ask("PATCH", f"/v2/images/{id}", body, status, content_type=PATCH)

    def show(self, id):
        return self.admin("GET", f"/v2/images/{id}", None, 200).body

    def names(self, ask, query=""):
        return [found["name"] for found in ask("GET", f"/v2/images?sort=name:asc&{query}", None, 200)["images"]]

    def files(self):
        return sorted(path.name for path in self.folder.glob("*"))


def pieces(data, size=1000):
    stream = io.BytesIO(data)
    return iter(lambda: stream.read(size), b"")
