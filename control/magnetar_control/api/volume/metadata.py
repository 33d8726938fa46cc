# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of metadata, below a volume or a snapshot."""

from __future__ import annotations

from magnetar_control.services import Document
from magnetar_control.services.volume.snapshots import SnapshotStore
from magnetar_control.services.volume.volumes import VolumeStore
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import InvalidRequest, NotFound

from .values import METADATA, body


def routes(below: str, store: VolumeStore | SnapshotStore) -> list[Guarded]:
    """The routes *below* what has the metadata, of which *store* is."""
    def read(request: Request) -> Document:
        found: Document = store.show(request.context, request.params["id"])["metadata"]
        return found

    def changed(request: Request, given: Document, keep: bool) -> Document:
        return store.change_metadata(request.context, request.params["id"],
                                     lambda old: {**(old if keep else {}), **given})

    def many(request: Request, keep: bool) -> Document:
        return {"metadata": changed(request, body(request, "metadata", METADATA), keep)}

    def put(request: Request) -> Document:
        given = body(request, "meta", METADATA)
        if list(given) != [request.params["key"]]:
            raise InvalidRequest(f"meta must hold the key of the URL, {request.params['key']!r}, and no other.")
        changed(request, given, keep=True)
        return {"meta": given}

    def delete(request: Request) -> None:
        key = request.params["key"]

        def without(old: Document) -> Document:
            _value(old, key)
            return {name: value for name, value in old.items() if name != key}

        store.change_metadata(request.context, request.params["id"], without)

    every, one = f"{below}/metadata", f"{below}/metadata/{{key}}"
    return [route(f"GET {every}", lambda request: {"metadata": read(request)}),
            route(f"POST {every}", lambda request: many(request, keep=True)),
            route(f"PUT {every}", lambda request: many(request, keep=False)),
            route(f"GET {one}", lambda request: {"meta": {
                request.params["key"]: _value(read(request), request.params["key"])}}),
            route(f"PUT {one}", put), route(f"DELETE {one}", delete)]


def _value(have: Document, key: str) -> str:
    if key not in have:
        raise NotFound(f"Metadata key {key} is not found.")
    return str(have[key])
