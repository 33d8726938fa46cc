# SPDX-License-Identifier: GPL-3.0-or-later
"""What a flavor's extra specs and an image's properties make of a server."""

from __future__ import annotations

import re
from typing import Collection, Iterator, Mapping

from ..errors import InvalidField
from . import EVERYWHERE
from .flavor_specs import FLAVOR_SPECS
from .image_properties import IMAGE_PROPERTIES

Specs = Mapping[str, str]


def without_effect(specs: Specs, properties: Specs, parts: Collection[str] = EVERYWHERE) -> list[str]:
    """A text for each spec of the flavor and property of the image that none of the *parts* acts on."""
    return [*FLAVOR_SPECS.without_effect(specs, parts), *IMAGE_PROPERTIES.without_effect(properties, parts)]


def hardware(specs: Specs, properties: Specs) -> dict[str, str]:
    """The specs that the host acts on, named as extra specs: what the server's ``hardware`` says. Usual values are left
    out. Raises ``InvalidField`` where flavor and image contradict each other."""
    found = {name: value for name, value in sorted(specs.items()) if _acts(name, value)}
    for name, value in sorted(properties.items()):
        row = IMAGE_PROPERTIES.find(name)
        if row is None or not row.like or not _acts(row.like, value):
            continue
        if specs.get(row.like, value) != value:
            raise InvalidField("image", "its property %s says %s, and the flavor's extra spec %s says %s; they must "
                               "agree" % (name, value, row.like, specs[row.like]))
        found[row.like] = value
    return found


def elements(hardware: Specs) -> Iterator[tuple[str, dict[str, str]]]:
    """Path below ``domain`` and attributes of each element that a server's *hardware* makes."""
    for name, value in sorted(hardware.items()):
        row = FLAVOR_SPECS.find(name)
        for element in row.elements if row else ():
            if re.fullmatch(element.of, value):
                yield element.path, {key: text.replace("{}", value) for key, text in element.attributes.items()}


def _acts(name: str, value: str) -> bool:
    row = FLAVOR_SPECS.find(name)
    return bool(row and row.elements and not (row.usual and re.fullmatch(row.usual, value)))
