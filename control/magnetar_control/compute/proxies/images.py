# SPDX-License-Identifier: GPL-3.0-or-later
"""Images as Nova passes them on (until 2.35, metadata until 2.38): the image service decides who may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.caller import Caller
from magnetar_control.services import Document, Documents
from magnetar_control.services.image.fields import check_properties
from magnetar_core.errors import InvalidRequest, NotFound

Metadata = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ImageQuery:
    """Which images: at most *limit* after the image *marker*, changed *since*, with these values of *fields* and
    *properties*."""

    limit: int
    marker: str | None = None
    since: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


def page(caller: Caller, query: ImageQuery) -> Documents:
    """The images of a list, newest first. Raises ``Forbidden``, ``InvalidRequest`` for a marker that is not there."""
    found = caller.cloud.services.image.list(caller.context)
    if query.marker is not None:
        ids = [image["id"] for image in found]
        if query.marker not in ids:
            raise InvalidRequest(f"marker [{query.marker[:80]}] not found")
        found = found[ids.index(query.marker) + 1:]
    return [image for image in found if _fits(image, query)][:query.limit]


def _fits(image: Document, query: ImageQuery) -> bool:
    if query.since is not None and (image["updated_at"] or image["created_at"]) < query.since:
        return False
    return all(image[name] == value for name, value in query.fields.items()) and all(
        image["properties"].get(name) == value for name, value in query.properties.items())


def show(caller: Caller, id: str) -> Document:
    """One. Raises ``NotFound``."""
    found = caller.cloud.services.image.show(caller.context, id)
    if found is None:
        raise NotFound("Image not found.")
    return found


def delete(caller: Caller, id: str) -> None:
    """Raises ``NotFound``, ``Forbidden``."""
    show(caller, id)
    caller.cloud.services.image.delete(caller.context, id)


def metadata(caller: Caller, id: str) -> Metadata:
    """The properties of an image. Raises ``NotFound``."""
    properties: Metadata = show(caller, id)["properties"]
    return properties


def item(caller: Caller, id: str, key: str) -> str:
    """One of them. Raises ``NotFound``."""
    return _item(metadata(caller, id), key)


def _item(properties: Metadata, key: str) -> str:
    if key not in properties:
        raise NotFound(f"Metadata item was not found: the image has no property {key[:255]}.")
    return properties[key]


def add(caller: Caller, id: str, metadata: Metadata) -> Metadata:
    """Set these properties; all of them then. Raises ``NotFound``, ``Forbidden``, also for the name of a field."""
    return _change(caller, id, lambda have: {**have, **metadata})


def replace(caller: Caller, id: str, metadata: Metadata) -> Metadata:
    """Have these properties and no others. Raises as ``add``."""
    return _change(caller, id, lambda _have: metadata)


def remove(caller: Caller, id: str, key: str) -> None:
    """Take a property away. Raises ``NotFound``, ``Forbidden``."""
    def without(have: Metadata) -> Metadata:
        _item(have, key)
        return {name: value for name, value in have.items() if name != key}

    _change(caller, id, without)


def _change(caller: Caller, id: str, change: Any) -> Metadata:
    most = quotas.limits(caller)["metadata_items"]

    def changed(image: Document) -> Document:
        wanted = change(image["properties"])
        check_properties(wanted)
        quotas.check_metadata(most, wanted)
        return {**dict.fromkeys(image["properties"].keys() - wanted.keys()), **wanted}

    show(caller, id)
    properties: Metadata = caller.cloud.services.image.update(caller.context, id, changed)["properties"]
    return properties
