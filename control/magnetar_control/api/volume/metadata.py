# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of metadata, below a volume or a snapshot."""

from __future__ import annotations

from magnetar_control.services.volume.snapshots import SnapshotStore
from magnetar_control.services.volume.volumes import VolumeStore
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import InvalidRequest, NotFound

from .values import METADATA, checked_body


def metadata_routes(below: str, store: VolumeStore | SnapshotStore) -> list[Guarded]:
    """Return the routes that read and change the metadata of volumes or snapshots. *below*: the URL path of the
    resource, such as ``volumes/{id}``. *store*: reads and writes the resources."""
    def read(request: Request) -> Document:
        metadata: Document = store.show(request.context, request.params["id"])["metadata"]
        return metadata

    def changed(request: Request, values: Document, keep: bool) -> Document:
        return store.change_metadata(request.context, request.params["id"],
                                     lambda old: {**(old if keep else {}), **values})

    def many(request: Request, keep: bool) -> Document:
        return {"metadata": changed(request, checked_body(request, "metadata", METADATA), keep)}

    def put(request: Request) -> Document:
        metadata = checked_body(request, "meta", METADATA)
        if list(metadata) != [request.params["key"]]:
            raise InvalidRequest(f"meta must hold the key of the URL, {request.params['key']!r}, and no other.")
        changed(request, metadata, keep=True)
        return {"meta": metadata}

    def delete(request: Request) -> None:
        key = request.params["key"]

        def without(old: Document) -> Document:
            _value(old, key)
            return {name: value for name, value in old.items() if name != key}

        store.change_metadata(request.context, request.params["id"], without)

    every, key_path = f"{below}/metadata", f"{below}/metadata/{{key}}"
    return [guarded_route(f"GET {every}", lambda request: {"metadata": read(request)}),
            guarded_route(f"POST {every}", lambda request: many(request, keep=True)),
            guarded_route(f"PUT {every}", lambda request: many(request, keep=False)),
            guarded_route(f"GET {key_path}", lambda request: {"meta": {
                request.params["key"]: _value(read(request), request.params["key"])}}),
            guarded_route(f"PUT {key_path}", put), guarded_route(f"DELETE {key_path}", delete)]


def _value(have: Document, key: str) -> str:
    if key not in have:
        raise NotFound(f"Metadata key {key} is not found.")
    return str(have[key])
