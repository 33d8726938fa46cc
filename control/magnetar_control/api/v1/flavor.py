# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type flavor: the flavors of the cloud; administrators create and remove them."""

from __future__ import annotations

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.flavors import flavor_extra_specs, flavors
from magnetar_core.document import Document
from magnetar_core.errors import Conflict
from magnetar_core.kinds import Flavor
from magnetar_core.operations import Operation

from .driver import CloudDriver

SIZES = ("vcpus", "ram", "disk", "ephemeral", "swap")


class CloudFlavors(CloudDriver):
    """The resource driver of flavors. All projects see public flavors; only projects with access see a private one."""

    kind = Flavor
    only_a_document = True

    def every(self, caller: Caller) -> list[Document]:
        """Return all flavors that the caller may see; administrators see the private ones too."""
        specs = caller.allows(f"{flavor_extra_specs.RULE}index")
        return [{"id": row.id, "name": row.name, "description": row.description or "",
                 **{name: getattr(row, name) for name in SIZES},
                 "extra_specs": row.extra_specs if specs else {}, "is_public": row.is_public}
                for row in flavors.list_flavors(caller, public=None)]

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the requested document *want* after a check of its extra specs, which are set only after the flavor is
        created. A new flavor is public by default. Raises ``InvalidField``."""
        if have is None or want["extra_specs"] != have["extra_specs"]:
            flavor_extra_specs.check_extra_specs(flavor_extra_specs.SPECS.check(want["extra_specs"], "extra_specs"))
        return {**want, "is_public": want.get("is_public") is not False}

    def make(self, caller: Caller, want: Document, operation: Operation) -> None:
        made = flavors.create_flavor(caller, want["name"], id=want.get("id") or None,
                                     description=want["description"] or None, is_public=want["is_public"] is not False,
                                     **{size: want[size] for size in SIZES})
        if want["extra_specs"]:
            flavor_extra_specs.create_extra_specs(caller, made.id, want["extra_specs"])

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        if "name" in names:
            raise Conflict("A flavor of a cloud cannot be renamed: make another one.", fields=["name"])
        if "description" in names:
            flavors.update_flavor(caller, have["id"], description=want["description"] or None)
        if "extra_specs" in names:
            for key in set(have["extra_specs"]) - set(want["extra_specs"]):
                flavor_extra_specs.delete_extra_spec(caller, have["id"], key)
            if want["extra_specs"]:
                flavor_extra_specs.create_extra_specs(caller, have["id"], want["extra_specs"])

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Delete the flavor. Servers keep their sizes."""
        flavors.delete_flavor(caller, have["id"])
