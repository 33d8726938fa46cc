# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server's flavor and image ask of its hardware: specs that nothing here acts on are refused, or warned of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from magnetar_core.errors import InvalidRequest
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES

from .caller import Caller


def check_specs(caller: Caller, flavor: Mapping[str, Any] | None, image: Mapping[str, Any] | None) -> str | None:
    """Raises ``InvalidRequest`` for extra specs of *flavor* and properties of *image* (as ``find_flavor`` and
    ``find_image`` return them) that would do nothing. Where the setting ``specs_without_effect`` is ``warn``, returns
    that as a warning, for the message of the server's action."""
    found = []
    if flavor:
        specs = flavor.get("extra_specs") or {}
        found += [f"flavor {flavor['name']}, {text}" for text in FLAVOR_SPECS.without_effect(specs)]
    if image:
        properties = {name: str(value) for name, value in (image.get("properties") or {}).items()}
        found += [f"image {image.get('name') or image['id']}, {text}"
                  for text in IMAGE_PROPERTIES.without_effect(properties)]
    if not found:
        return None
    told = f"What would do nothing here: {'; '.join(found)}."
    if caller.settings.specs_without_effect == "warn":
        return told
    raise InvalidRequest(f"{told} Remove it, or choose another flavor or image; an operator may let it pass with the "
                         "setting specs_without_effect: warn.")


def warning_of(caller: Caller, row: Mapping[str, Any]) -> str | None:
    """As ``check_specs``, for the *row* of a server that is to be."""
    image = {"id": row["image_id"], **orjson.loads(row["image"])} if row["image_id"] else None
    return check_specs(caller, orjson.loads(row["flavor"]), image)
