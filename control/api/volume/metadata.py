# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of metadata, below a volume or a snapshot."""

from __future__ import annotations

from magnetar_control.services import Document
from magnetar_control.services.volume.snapshots import SnapshotStore
from magnetar_control.services.volume.volumes import VolumeStore
from magnetar_control.web import Answer, Request
from magnetar_core.errors import InvalidRequest, NotFound

from .values import METADATA, body


class MetadataRoutes:
    """What the routes do. *store*: of what has the metadata."""

    def __init__(self, store: VolumeStore | SnapshotStore) -> None:
        self.store = store

    def show(self, request: Request) -> Answer:
        """All."""
        return Answer({"metadata": self._read(request)})

    def show_one(self, request: Request) -> Answer:
        """One key."""
        key = request.params["key"]
        return Answer({"meta": {key: _value(self._read(request), key)}})

    def add(self, request: Request) -> Answer:
        """More keys."""
        given = body(request, "metadata", METADATA)
        return Answer({"metadata": self._change(request, given, keep=True)})

    def replace(self, request: Request) -> Answer:
        """These keys and no others."""
        given = body(request, "metadata", METADATA)
        return Answer({"metadata": self._change(request, given, keep=False)})

    def put(self, request: Request) -> Answer:
        """One key."""
        given = body(request, "meta", METADATA)
        if list(given) != [request.params["key"]]:
            raise InvalidRequest(f"meta must hold the key of the URL, {request.params['key']!r}, and no other.")
        self._change(request, given, keep=True)
        return Answer({"meta": given})

    def delete(self, request: Request) -> Answer:
        """Without one key."""
        key = request.params["key"]

        def without(old: Document) -> Document:
            _value(old, key)
            return {name: value for name, value in old.items() if name != key}

        self.store.change_metadata(request.context, request.params["id"], without)
        return Answer(None, 200)

    def _read(self, request: Request) -> Document:
        found: Document = self.store.show(request.context, request.params["id"])["metadata"]
        return found

    def _change(self, request: Request, given: Document, keep: bool) -> Document:
        return self.store.change_metadata(request.context, request.params["id"],
                                          lambda old: {**(old if keep else {}), **given})


def _value(have: Document, key: str) -> str:
    if key not in have:
        raise NotFound(f"Metadata key {key} is not found.")
    return str(have[key])
