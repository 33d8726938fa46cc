# SPDX-License-Identifier: GPL-3.0-or-later
"""flavor: those of the cloud; admins make and remove them."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.compute import flavor_extra_specs, flavors
from magnetar_core.errors import Conflict
from magnetar_core.kinds import Flavor

from .asks import Asks, Document
from .driver import Driver
from .operations import Operation

SIZES = ("vcpus", "ram", "disk", "ephemeral", "swap")


def shown(row: Any, *, specs: bool) -> Document:
    """A flavor's row as the kind has it. *specs*: whether the caller may see the extra specs."""
    return {"id": row.id, "name": row.name, "description": row.description or "",
            **{name: getattr(row, name) for name in SIZES},
            "extra_specs": orjson.loads(row.extra_specs) if specs else {}}


class Flavors(Driver):
    """Seen by everybody; private ones by projects that have access."""

    kind = Flavor
    plain = True

    def every(self, asks: Asks) -> list[Document]:
        """All that the caller may see; for administrators the private ones too."""
        specs = asks.allows(f"{flavor_extra_specs.RULE}index")
        return [shown(row, specs=specs) for row in flavors.page(asks, public=None)]

    def complete(self, asks: Asks, want: Document, have: Document | None) -> Document:
        """Extra specs are set in a second step: what that would refuse is refused before the flavor is made."""
        if have is None or want["extra_specs"] != have["extra_specs"]:
            flavor_extra_specs.check(flavor_extra_specs.SPECS.check(want["extra_specs"], "extra_specs"))
        return want

    def make(self, asks: Asks, want: Document, operation: Operation) -> None:
        """The flavor, and then its extra specs."""
        made = flavors.create(asks, want["name"], want["ram"], want["vcpus"], want["disk"], id=want.get("id") or None,
                              ephemeral=want["ephemeral"], swap=want["swap"], description=want["description"] or None)
        if want["extra_specs"]:
            flavor_extra_specs.create(asks, made.id, want["extra_specs"])

    def change(self, asks: Asks, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Description and extra specs; nothing else of a flavor changes."""
        if "name" in names:
            raise Conflict("A flavor of a cloud cannot be renamed: make another one.", fields=["name"])
        if "description" in names:
            flavors.update(asks, have["id"], want["description"] or None)
        if "extra_specs" in names:
            for key in set(have["extra_specs"]) - set(want["extra_specs"]):
                flavor_extra_specs.delete(asks, have["id"], key)
            if want["extra_specs"]:
                flavor_extra_specs.create(asks, have["id"], want["extra_specs"])

    def remove(self, asks: Asks, have: Document, operation: Operation) -> None:
        """Servers keep their sizes."""
        flavors.delete(asks, have["id"])
