# SPDX-License-Identifier: GPL-3.0-or-later
"""flavor: those of the cloud; admins make and remove them."""

from __future__ import annotations

import orjson

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.flavors import flavor_extra_specs, flavors
from magnetar_core.errors import Conflict
from magnetar_core.kinds import Flavor
from magnetar_core.operations import Operation
from magnetar_core.reconcile import Document

from .driver import CloudDriver

SIZES = ("vcpus", "ram", "disk", "ephemeral", "swap")


class CloudFlavors(CloudDriver):
    """Seen by everybody; private ones by projects that have access."""

    kind = Flavor
    only_a_document = True

    def every(self, caller: Caller) -> list[Document]:
        """All that the caller may see; for administrators the private ones too."""
        specs = caller.allows(f"{flavor_extra_specs.RULE}index")
        return [{"id": row.id, "name": row.name, "description": row.description or "",
                 **{name: getattr(row, name) for name in SIZES},
                 "extra_specs": orjson.loads(row.extra_specs) if specs else {}}
                for row in flavors.page(caller, public=None)]

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Extra specs are set in a second step: what that would refuse is refused before the flavor is made."""
        if have is None or want["extra_specs"] != have["extra_specs"]:
            flavor_extra_specs.check_specs(flavor_extra_specs.SPECS.check(want["extra_specs"], "extra_specs"))
        return want

    def make(self, caller: Caller, want: Document, operation: Operation) -> None:
        made = flavors.create(caller, want["name"], id=want.get("id") or None,
                              description=want["description"] or None, **{size: want[size] for size in SIZES})
        if want["extra_specs"]:
            flavor_extra_specs.create(caller, made.id, want["extra_specs"])

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        if "name" in names:
            raise Conflict("A flavor of a cloud cannot be renamed: make another one.", fields=["name"])
        if "description" in names:
            flavors.update(caller, have["id"], description=want["description"] or None)
        if "extra_specs" in names:
            for key in set(have["extra_specs"]) - set(want["extra_specs"]):
                flavor_extra_specs.delete(caller, have["id"], key)
            if want["extra_specs"]:
                flavor_extra_specs.create(caller, have["id"], want["extra_specs"])

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Servers keep their sizes."""
        flavors.delete(caller, have["id"])
