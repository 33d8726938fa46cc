# SPDX-License-Identifier: GPL-3.0-or-later
"""The fields of an image, checked (Image API v2, "Images"). A key that is no field is a property: text, kept in the
document ``properties``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from magnetar_control.services import Document
from magnetar_core.errors import Forbidden, InvalidField, TooLarge
from magnetar_core.kinds.image import BOOT, FORMATS
from magnetar_core.values import Boolean, Choices, Integer, ListOf, Nullable, Text, Uuid, Value

VISIBILITIES = ("private", "shared", "community", "public")
LONGEST, MOST = 65_535, 128
#: By what content is hashed.
HASH = "sha512"
#: Set by the service.
READ_ONLY = frozenset({
    "status", "size", "virtual_size", "checksum", "os_hash_algo", "os_hash_value", "created_at", "updated_at", "self",
    "file", "schema", "direct_url", "locations", "stores", "deleted", "deleted_at"})
#: Names, which are part of paths and headers too.
WORD = Text(1, 255, r"[^\x00-\x1f\x7f]*", "must have no control characters")
ID, PROPERTY_NAME, PROPERTY = Uuid(), WORD, Text(0, LONGEST)
TEXT, NUMBER = Nullable(Text(0, 255)), Integer(0, 2**31 - 1)
TAGS = ListOf(WORD, MOST, unique=True)
FIELDS: Mapping[str, Value] = {
    "name": TEXT, "visibility": Choices(*VISIBILITIES), "owner": TEXT, "min_disk": NUMBER, "min_ram": NUMBER,
    "disk_format": Nullable(Choices(*FORMATS)), "container_format": Nullable(Choices("bare", *BOOT)),
    "protected": Boolean(), "os_hidden": Boolean(), "tags": TAGS}


#: Properties that say how an image is signed: the signature in base64, hash method, key type, and the certificate's
#: uuid in the key manager. An image that is made of a server has other content, so it has them not.
SIGNATURE = ("img_signature", "img_signature_hash_method", "img_signature_key_type", "img_signature_certificate_uuid")


def is_read_only(name: str) -> bool:
    """Whether the service sets what is called so."""
    return name in READ_ONLY or name.startswith("os_glance_")


def is_property(name: str) -> bool:
    """Whether callers may call a property so: fields have rules of their own, and some the service sets."""
    return not (is_read_only(name) or name in FIELDS or name == "id")


def check_properties(names: Iterable[str]) -> None:
    """Raises ``Forbidden`` for what is no name of a property: whoever gives properties sets nothing else by them."""
    for name in names:
        _check_settable(name)
        if not is_property(name):
            raise Forbidden(f"Attribute '{name}' is a field of the image, and no property can be called so; choose "
                            "another name.")


def _check_settable(name: str) -> None:
    if is_read_only(name):
        raise Forbidden(f"Attribute '{name}' is set by the image service itself; leave it out.")


def checked(wanted: Mapping[str, Any]) -> tuple[Document, dict[str, str]]:
    """Fields and properties of what a caller wants. Raises ``InvalidField``, and ``Forbidden`` for what only the
    service sets."""
    found: Document = {}
    properties: dict[str, str] = {}
    for name, value in wanted.items():
        _check_settable(name)
        if name in FIELDS:
            found[name] = FIELDS[name].check(value, name)
        else:
            properties[PROPERTY_NAME.check(name, "name of a property")] = PROPERTY.check(value, name)
    return found, properties


def check_formats(image: Mapping[str, Any]) -> None:
    """Raises ``InvalidField`` for the container of a kernel or ramdisk around something else."""
    container, disk = image["container_format"], image["disk_format"]
    if container in BOOT and disk not in (None, container):
        raise InvalidField("container_format", f"must be bare, or {disk} where that is a kernel or ramdisk", container)


def as_json(properties: Mapping[str, str]) -> str:
    """Properties as the table keeps them. Raises ``TooLarge`` when there are too many."""
    if len(properties) > MOST:
        raise TooLarge(f"An image may have {MOST} properties, and this would be {len(properties)}.")
    return orjson.dumps(properties, option=orjson.OPT_SORT_KEYS).decode()


def document(row: Mapping[Any, Any], names: Iterable[str]) -> Document:
    """A row with its tags as ``services.Images`` has it."""
    found = {str(key): value for key, value in row.items()}
    return {**found, "properties": orjson.loads(row["properties"]), "tags": list(names),
            "os_hash_algo": HASH if row["os_hash_value"] else None}
