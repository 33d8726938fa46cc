# SPDX-License-Identifier: GPL-3.0-or-later
"""How volumes of a type are encrypted (Block Storage API v3, "Volume types (types)": encryption), and a volume."""

from __future__ import annotations

from magnetar_control.api.values import Number, record
from magnetar_control.services import Document
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.types import VolumeType
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound
from magnetar_core.values import Choices, Nullable

from .values import body

#: What there is: QEMU's own LUKS on the server's host, AES-256 in XTS mode. XTS has two keys of 256 bits.
PROVIDERS = ("luks", "nova.volume.encryptors.luks.LuksEncryptor")
DEFAULTS: Document = {"cipher": None, "key_size": None, "control_location": "front-end"}
FIELDS = {"provider": Choices(*PROVIDERS), "cipher": Nullable(Choices("aes-xts-plain64")),
          "key_size": Nullable(Number(256, 512)), "control_location": Choices("front-end")}
CREATE, UPDATE = record(FIELDS, "provider"), record(FIELDS)


class EncryptionRoutes:
    def __init__(self, service: EmbeddedVolumes) -> None:
        self.service, self.store = service, service.types

    def routes(self) -> list[Guarded]:
        """Where they are, below ``/v3``."""
        every = "types/{id}/encryption"
        one = f"{every}/{{encryption_id}}"
        return [route(f"GET {every}", self.show, who="admin"), route(f"POST {every}", self.create, who="admin"),
                route(f"GET {one}", self.part, who="admin"), route(f"PUT {one}", self.update, who="admin"),
                route(f"DELETE {one}", self.delete, 202, who="admin"),
                route("GET volumes/{id}/encryption", self.of_volume)]

    def show(self, request: Request) -> Document:
        """Empty where they are not encrypted."""
        one = self._type(request)
        return _shown(one) if one.encryption else {}

    def part(self, request: Request) -> Document:
        """One value of it; the URL has the name in the place of the id."""
        name, have = request.params["encryption_id"], self.show(request)
        if name not in have:
            raise NotFound(f"The encryption of the volume type has no {name[:80]}.")
        return {name: have[name]}

    def create(self, request: Request) -> Document:
        """Raises ``InvalidRequest`` where the type has one."""
        given = _checked(body(request, "encryption", CREATE))
        if self._type(request).encryption:
            raise InvalidRequest(f"Volume type encryption for type {request.params['id']} already exists.")
        return self._set(request, {**DEFAULTS, **given})

    def update(self, request: Request) -> Document:
        given, one = _checked(body(request, "encryption", UPDATE)), self._found(request)
        if not given:
            raise InvalidField("encryption", "must have one key at least")
        self._set(request, {**DEFAULTS, **(one.encryption or {}), **given})
        return {"encryption": given}  # as Cinder: what changed, and no ids

    def delete(self, request: Request) -> None:
        self._found(request)
        self.store.encrypt(request.context, request.params["id"], None)

    def of_volume(self, request: Request) -> Document:
        """What a volume is encrypted with, for who sees it; its key is nobody's to see."""
        volume = self.service.volumes.show(request.context, request.params["id"])
        if volume["encryption_key_id"] is None:
            return {"encryption_key_id": None}
        told = self.store.of(volume["volume_type"]).encryption or {**DEFAULTS, "provider": PROVIDERS[0]}
        return {"encryption_key_id": volume["encryption_key_id"], **{name: told[name] for name in FIELDS}}

    def _set(self, request: Request, values: Document) -> Document:
        return {"encryption": _shown(self.store.encrypt(request.context, request.params["id"], values))}

    def _type(self, request: Request) -> VolumeType:
        return self.store.find(request.context, request.params["id"])

    def _found(self, request: Request) -> VolumeType:
        one, id = self._type(request), request.params["encryption_id"]
        if not one.encryption or one.encryption["encryption_id"] != id:
            raise NotFound(f"Volume type {one.name} has no encryption {id[:80]}.")
        return one


def _shown(one: VolumeType) -> Document:
    return {"volume_type_id": one.id, **(one.encryption or {})}


def check_key_size(given: Document) -> None:
    """Raises ``InvalidField``."""
    if given.get("key_size") not in (None, 256, 512):
        raise InvalidField("encryption.key_size", "must be 256, or 512, which counts both keys of XTS",
                           given["key_size"])


def _checked(given: Document) -> Document:
    check_key_size(given)
    return given
