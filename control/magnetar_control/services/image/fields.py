# SPDX-License-Identifier: GPL-3.0-or-later
"""The fields of an image and their checks (Image API v2, "Images"). Any other key is a property: a text in the document
``properties``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from magnetar_core.document import Document
from magnetar_core.errors import Forbidden, InvalidField, TooLarge
from magnetar_core.kinds.image import BOOT, FORMATS
from magnetar_core.values import Boolean, Choices, Integer, ListOf, Nullable, Text, Uuid, Value

VISIBILITIES = ("private", "shared", "community", "public")
LONGEST, MOST = 65_535, 128
#: The hash algorithm for content.
HASH = "sha512"
#: Fields that only the service sets.
READ_ONLY = frozenset({
    "status", "size", "virtual_size", "checksum", "os_hash_algo", "os_hash_value", "created_at", "updated_at", "self",
    "file", "schema", "direct_url", "locations", "stores", "deleted", "deleted_at"})
#: Names, which are also parts of paths and headers.
WORD = Text(1, 255, r"[^\x00-\x1f\x7f]*", "must have no control characters")
ID, PROPERTY_NAME, PROPERTY = Uuid(), WORD, Text(0, LONGEST)
TEXT, NUMBER = Nullable(Text(0, 255)), Integer(0, 2**31 - 1)
TAGS = ListOf(WORD, MOST, unique=True)
FIELDS: Mapping[str, Value] = {
    "name": TEXT, "visibility": Choices(*VISIBILITIES), "owner": TEXT, "min_disk": NUMBER, "min_ram": NUMBER,
    "disk_format": Nullable(Choices(*FORMATS)), "container_format": Nullable(Choices("bare", *BOOT)),
    "protected": Boolean(), "os_hidden": Boolean(), "tags": TAGS}


#: Properties that describe the signature of an image: the signature in base64, hash method, key type, and the
#: certificate's uuid in the key manager. An image made from a server does not get them, because its content differs.
SIGNATURE = ("img_signature", "img_signature_hash_method", "img_signature_key_type", "img_signature_certificate_uuid")


def is_read_only(name: str) -> bool:
    """Return whether only the service may set the field *name*."""
    return name in READ_ONLY or name.startswith("os_glance_")


def is_property(name: str) -> bool:
    """Return whether a caller may set a custom property called *name*: it is neither a field of Glance nor a name that
    only the service sets."""
    return not (is_read_only(name) or name in FIELDS or name == "id")


def check_properties(names: Iterable[str]) -> None:
    """Raise ``Forbidden`` if one of *names* is not allowed for a custom property of an image, such as the name of a
    field."""
    for name in names:
        _check_settable(name)
        if not is_property(name):
            raise Forbidden(f"Attribute '{name}' is a field of the image, and no property can be called so; choose "
                            "another name.")


def _check_settable(name: str) -> None:
    if is_read_only(name):
        raise Forbidden(f"Attribute '{name}' is set by the image service itself; leave it out.")


def check_image_values(body: Mapping[str, Any]) -> tuple[Document, dict[str, str]]:
    """Check the attributes of an image in a request *body*, and return (values of Glance's fields, custom properties).
    Raises ``InvalidField``, and ``Forbidden`` for fields that only the service sets."""
    values: Document = {}
    properties: dict[str, str] = {}
    for name, value in body.items():
        _check_settable(name)
        if name in FIELDS:
            values[name] = FIELDS[name].check(value, name)
        else:
            properties[PROPERTY_NAME.check(name, "name of a property")] = PROPERTY.check(value, name)
    return values, properties


def check_formats(image: Mapping[str, Any]) -> None:
    """Raise ``InvalidField`` if the container format is aki or ari (a kernel or ramdisk), and the disk format is
    different."""
    container, disk = image["container_format"], image["disk_format"]
    if container in BOOT and disk not in (None, container):
        raise InvalidField("container_format", f"must be bare, or {disk} where that is a kernel or ramdisk", container)


def sorted_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the custom *properties* of an image sorted by name, as they are stored in the database. Raises
    ``TooLarge`` when there are too many."""
    if len(properties) > MOST:
        raise TooLarge(f"An image may have {MOST} properties, and this would be {len(properties)}.")
    return dict(sorted(properties.items()))


def image_document(row: Mapping[Any, Any], names: Iterable[str]) -> Document:
    """Return an image in the form that ``services.Images`` returns. *row*: the image's row. *names*: its tags."""
    columns = {str(key): value for key, value in row.items()}
    return {**columns, "tags": list(names), "os_hash_algo": HASH if row["os_hash_value"] else None}
