# SPDX-License-Identifier: GPL-3.0-or-later
"""images, until 2.35, and their metadata, until 2.38: the API of the image service as Nova proxies it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.values import Anything, OneKey, Time, Wrapped, to_second
from magnetar_control.compute.proxies import images
from magnetar_control.compute.proxies.images import ImageQuery
from magnetar_core.document import Documents
from magnetar_core.errors import InvalidRequest

from .fields import ApiField, Fields, View
from .operation import Call, Query, body_as, operation_factory, shown_as
from .paging import Limit, next_link, page_size, paging_parameters
from .values import METADATA, PROXIES, TRUE

#: Statuses of the image service to Nova's, with the progress of such an image in percent.
STATUS = {"active": ("ACTIVE", 100), "saving": ("SAVING", 50), "queued": ("SAVING", 25), "killed": ("ERROR", 0)}
UNKNOWN = ("UNKNOWN", 0)
#: Properties that Nova shows as fields.
SERVER, DISK_CONFIG = "instance_uuid", "auto_disk_config"
#: Prefix of parameters that filter by a property.
PROPERTY = "property-"
METADATA_LAST = 38


def _links(view: View, image: Mapping[str, Any]) -> list[dict[str, str]]:
    return [*view.links("images", image["id"]), {
        "rel": "alternate", "type": "application/vnd.openstack.image",
        "href": f"{view.call.images}/v2/images/{image['id']}"}]


def _server(view: View, image: Mapping[str, Any]) -> dict[str, Any]:
    id = image["properties"][SERVER]
    return {"id": id, "links": view.links("servers", id)}


FIELDS = Fields(
    ApiField("id", shows="list show"),
    ApiField("name", shows="list show"),
    ApiField("links", shows="list show", show=_links),
    ApiField("metadata", name="properties", shows="show"),
    ApiField("minDisk", name="min_disk", shows="show"),
    ApiField("minRam", name="min_ram", shows="show"),
    ApiField("created", shows="show", show=lambda _view, image: to_second(image["created_at"])),
    ApiField("updated", shows="show", show=lambda _view, image: to_second(image["updated_at"] or image["created_at"])),
    ApiField("status", shows="show", show=lambda _view, image: STATUS.get(image["status"], UNKNOWN)[0]),
    ApiField("progress", shows="show", show=lambda _view, image: STATUS.get(image["status"], UNKNOWN)[1]),
    ApiField("OS-EXT-IMG-SIZE:size", shows="show", show=lambda _view, image: image["size"] or 0),
    ApiField("server", shows="show", show=_server, when=lambda _document, image: SERVER in image["properties"]),
    ApiField("OS-DCF:diskConfig", shows="show", when=lambda _document, image: DISK_CONFIG in image["properties"],
             show=lambda _view, image: "AUTO" if image["properties"][DISK_CONFIG] in TRUE else "MANUAL"),
    mapping=True)
#: Parameters to the fields, and to the properties, that they filter by.
BY_FIELD = {"name": "name", "status": "status", "minRam": "min_ram", "minDisk": "min_disk"}
BY_PROPERTY = {"server": SERVER, "type": "image_type"}
_WORD = Query(value=Anything())
QUERY = {**dict.fromkeys(("name", "status", "server", "type", "page_size", "offset"), _WORD), **paging_parameters(),
         **dict.fromkeys(("minRam", "minDisk"), Query(value=Limit())), "changes-since": Query(value=Time())}


def _query(call: Call) -> dict[str, ImageQuery]:
    """Return ``{"query": image_query}``, the keyword argument of the function that lists the images. The ``ImageQuery``
    contains the filters, limit and marker in the query string of the URL. The filter ``server`` accepts a server's uuid
    or URL."""
    query = {**call.query, **({"status": call.query["status"].lower()} if "status" in call.query else {})}
    properties = {BY_PROPERTY[name]: value.rpartition("/")[2] if name == "server" else value
                  for name, value in query.items() if name in BY_PROPERTY}
    properties.update((name.removeprefix(PROPERTY), value) for name, value in call.request.query
                      if name.startswith(PROPERTY))
    return {"query": ImageQuery(
        limit=page_size(call), marker=query.get("marker"), since=query.get("changes-since"), properties=properties,
        fields={BY_FIELD[name]: value for name, value in query.items() if name in BY_FIELD})}


def _listed(call: Call, image_documents: Documents, path: str, answer: str) -> dict[str, Any]:
    shown = {"images": [*map(View(call, FIELDS, answer).document, image_documents)]}
    more = "limit" in call.query and len(image_documents) >= page_size(call) > 0
    return {**shown, **({"images_links": next_link(call, path, image_documents[-1]["id"])} if more else {})}


def _update(call: Call) -> dict[str, Any]:
    """Set one property of an image, and return it as {meta: {key: value}}: PUT …/metadata/{id}. Raises
    ``InvalidRequest`` if the key in the body differs from the key in the URL."""
    if call.params["id"] not in call.body:
        raise InvalidRequest("Request body and URI mismatch: the key in meta must be that of the path.")
    images.add_image_metadata(call, call.params["image_id"], call.body)
    return {"meta": call.body}


_row = operation_factory("images", "/images", until=PROXIES)
_metadata = operation_factory("images.metadata", "/images/{image_id}/metadata", until=METADATA_LAST)
_ALL: Mapping[str, Any] = {"body": Wrapped("metadata", METADATA), "given": body_as("metadata"),
                           "shown": shown_as("metadata")}
OPERATIONS = (
    _row("GET", "", "list", images.list_images, given=_query, query=QUERY,
         shown=lambda call, image_documents: _listed(call, image_documents, "/images", "list")),
    _row("GET", "/detail", "detail.list", images.list_images, given=_query, query=QUERY,
         shown=lambda call, image_documents: _listed(call, image_documents, "/images/detail", "show")),
    _row("GET", "/{id}", "show", images.show_image, shown=FIELDS.one("image")),
    _row("DELETE", "/{id}", "delete", images.delete_proxied_image, status=204),
    _metadata("GET", "", "list", images.list_image_metadata, shown=shown_as("metadata")),
    _metadata("POST", "", "create", images.add_image_metadata, **_ALL),
    _metadata("PUT", "", "replace", images.replace_image_metadata, **_ALL),
    _metadata("GET", "/{id}", "show", images.show_image_metadata_item, shown=lambda call,
              value: {"meta": {call.params["id"]: value}}),
    _metadata("PUT", "/{id}", "update", images.add_image_metadata, handler=_update,
              body=Wrapped("meta", OneKey(METADATA))),
    _metadata("DELETE", "/{id}", "delete", images.delete_image_metadata_item, status=204),
)
