# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of the encryption of volume types (Block Storage API v3, "Volume types (types)"), and of a volume."""

from __future__ import annotations

from magnetar_control.api.values import Number, build_record
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.types import VolumeType
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound
from magnetar_core.values import Choices, Nullable

from .values import checked_body

#: The supported providers: QEMU's own LUKS on the server's host, AES-256 in XTS mode. XTS has two keys of 256 bits.
PROVIDERS = ("luks", "nova.volume.encryptors.luks.LuksEncryptor")
DEFAULTS: Document = {"cipher": None, "key_size": None, "control_location": "front-end"}
FIELDS = {"provider": Choices(*PROVIDERS), "cipher": Nullable(Choices("aes-xts-plain64")),
          "key_size": Nullable(Number(256, 512)), "control_location": Choices("front-end")}
CREATE, UPDATE = build_record(FIELDS, "provider"), build_record(FIELDS)


class EncryptionRoutes:
    def __init__(self, service: EmbeddedVolumes) -> None:
        self.service, self.store = service, service.types

    def routes(self) -> list[Guarded]:
        """Return the routes of the encryption of volume types and volumes, relative to ``/v3``."""
        every = "types/{id}/encryption"
        encryption_path = f"{every}/{{encryption_id}}"
        return [guarded_route(f"GET {every}", self.show, who="admin"),
                guarded_route(f"POST {every}", self.create, who="admin"),
                guarded_route(f"GET {encryption_path}", self.part, who="admin"),
                guarded_route(f"PUT {encryption_path}", self.update, who="admin"),
                guarded_route(f"DELETE {encryption_path}", self.delete, 202, who="admin"),
                guarded_route("GET volumes/{id}/encryption", self.of_volume)]

    def show(self, request: Request) -> Document:
        """Return the encryption settings of the volume type; an empty object if it has none."""
        volume_type = self._type(request)
        return _encryption_document(volume_type) if volume_type.encryption else {}

    def part(self, request: Request) -> Document:
        """Return one encryption setting of the volume type, such as ``cipher``: GET types/{id}/encryption/{name}.
        Raises ``NotFound`` for an unknown name."""
        name, have = request.params["encryption_id"], self.show(request)
        if name not in have:
            raise NotFound(f"The encryption of the volume type has no {name[:80]}.")
        return {name: have[name]}

    def create(self, request: Request) -> Document:
        """Create the encryption settings of the volume type, and return them. Raises ``InvalidRequest`` if it already
        has some."""
        encryption = _checked(checked_body(request, "encryption", CREATE))
        if self._type(request).encryption:
            raise InvalidRequest(f"Volume type encryption for type {request.params['id']} already exists.")
        return self._set(request, {**DEFAULTS, **encryption})

    def update(self, request: Request) -> Document:
        changes, volume_type = _checked(checked_body(request, "encryption", UPDATE)), self._found(request)
        if not changes:
            raise InvalidField("encryption", "must have one key at least")
        self._set(request, {**DEFAULTS, **(volume_type.encryption or {}), **changes})
        return {"encryption": changes}  # as Cinder: only the changes, without ids

    def delete(self, request: Request) -> None:
        self._found(request)
        self.store.encrypt(request.context, request.params["id"], None)

    def of_volume(self, request: Request) -> Document:
        """Return the encryption settings of a volume. They contain the id of the key, but not the key. Every caller who
        may see the volume gets them."""
        volume = self.service.volumes.show(request.context, request.params["id"])
        if volume["encryption_key_id"] is None:
            return {"encryption_key_id": None}
        encryption = self.store.of(volume["volume_type"]).encryption or {**DEFAULTS, "provider": PROVIDERS[0]}
        return {"encryption_key_id": volume["encryption_key_id"], **{name: encryption[name] for name in FIELDS}}

    def _set(self, request: Request, values: Document) -> Document:
        return {"encryption": _encryption_document(self.store.encrypt(request.context, request.params["id"], values))}

    def _type(self, request: Request) -> VolumeType:
        return self.store.find(request.context, request.params["id"])

    def _found(self, request: Request) -> VolumeType:
        volume_type, id = self._type(request), request.params["encryption_id"]
        if not volume_type.encryption or volume_type.encryption["encryption_id"] != id:
            raise NotFound(f"Volume type {volume_type.name} has no encryption {id[:80]}.")
        return volume_type


def _encryption_document(volume_type: VolumeType) -> Document:
    return {"volume_type_id": volume_type.id, **(volume_type.encryption or {})}


def check_key_size(encryption: Document) -> None:
    """Raise ``InvalidField`` if the key_size in *encryption*, the encryption settings of a request, is not supported.
    """
    if encryption.get("key_size") not in (None, 256, 512):
        raise InvalidField("encryption.key_size", "must be 256, or 512, which counts both keys of XTS",
                           encryption["key_size"])


def _checked(encryption: Document) -> Document:
    check_key_size(encryption)
    return encryption
