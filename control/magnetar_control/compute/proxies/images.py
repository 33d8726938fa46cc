# SPDX-License-Identifier: GPL-3.0-or-later
"""Image requests that Nova forwards to the image service until 2.35 (metadata until 2.38). That service decides on
access."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.caller import Caller
from magnetar_control.services.image.fields import check_properties
from magnetar_core.document import Document, Documents
from magnetar_core.errors import InvalidRequest, NotFound

Metadata = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ImageQuery:
    """A query for images: at most *limit* images after the image *marker* that have changed after the time *since* and
    have the given values of *fields* and *properties*."""

    limit: int
    marker: str | None = None
    since: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


def list_images(caller: Caller, query: ImageQuery) -> Documents:
    """Return the images that match *query*, newest first. Raises ``Forbidden``, ``InvalidRequest`` for an unknown
    marker."""
    images = caller.cloud.services.image.list(caller.context)
    if query.marker is not None:
        ids = [image["id"] for image in images]
        if query.marker not in ids:
            raise InvalidRequest(f"marker [{query.marker[:80]}] not found")
        images = images[ids.index(query.marker) + 1:]
    return [image for image in images if _fits_query(image, query)][:query.limit]


def _fits_query(image: Document, query: ImageQuery) -> bool:
    if query.since is not None and (image["updated_at"] or image["created_at"]) < query.since:
        return False
    return all(image[name] == value for name, value in query.fields.items()) and all(
        image["properties"].get(name) == value for name, value in query.properties.items())


def show_image(caller: Caller, id: str) -> Document:
    """Return the image *id*. Raises ``NotFound``."""
    image = caller.cloud.services.image.show(caller.context, id)
    if image is None:
        raise NotFound("Image not found.")
    return image


def delete_proxied_image(caller: Caller, id: str) -> None:
    """Delete an image. Raises ``NotFound``, ``Forbidden``."""
    show_image(caller, id)
    caller.cloud.services.image.delete(caller.context, id)


def list_image_metadata(caller: Caller, id: str) -> Metadata:
    """Return the properties of an image. Raises ``NotFound``."""
    properties: Metadata = show_image(caller, id)["properties"]
    return properties


def show_image_metadata_item(caller: Caller, id: str, key: str) -> str:
    """Return the value of the property *key* of an image. Raises ``NotFound``."""
    return _metadata_item(list_image_metadata(caller, id), key)


def _metadata_item(properties: Metadata, key: str) -> str:
    if key not in properties:
        raise NotFound(f"Metadata item was not found: the image has no property {key[:255]}.")
    return properties[key]


def add_image_metadata(caller: Caller, id: str, metadata: Metadata) -> Metadata:
    """Add *metadata* to the properties of an image, and return all properties. Raises ``NotFound``, and ``Forbidden``,
    also when *metadata* has the name of a standard image field."""
    return _change_metadata(caller, id, lambda have: {**have, **metadata})


def replace_image_metadata(caller: Caller, id: str, metadata: Metadata) -> Metadata:
    """Replace all properties of an image with *metadata*, and return the new properties. Raises the errors of
    ``add_image_metadata``."""
    return _change_metadata(caller, id, lambda _have: metadata)


def delete_image_metadata_item(caller: Caller, id: str, key: str) -> None:
    """Remove the property *key* of an image. Raises ``NotFound``, ``Forbidden``."""
    def without(have: Metadata) -> Metadata:
        _metadata_item(have, key)
        return {name: value for name, value in have.items() if name != key}

    _change_metadata(caller, id, without)


def _change_metadata(caller: Caller, id: str, change: Any) -> Metadata:
    most = quotas.quota_limits(caller)["metadata_items"]

    def changed(image: Document) -> Document:
        desired = change(image["properties"])
        check_properties(desired)
        quotas.check_metadata_quota(most, desired)
        return {**dict.fromkeys(image["properties"].keys() - desired.keys()), **desired}

    show_image(caller, id)
    properties: Metadata = caller.cloud.services.image.update(caller.context, id, changed)["properties"]
    return properties
