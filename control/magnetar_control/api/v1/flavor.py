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
    """The driver of the v1 API for flavors. All projects see public flavors; a private flavor is visible to the
    projects that have access to it."""

    kind = Flavor
    only_a_document = True

    def every(self, caller: Caller) -> list[Document]:
        """Return the flavors that the caller may see. Administrators see private flavors of all projects too."""
        specs = caller.allows(f"{flavor_extra_specs.RULE}index")
        return [{"id": row.id, "name": row.name, "description": row.description or "",
                 **{name: getattr(row, name) for name in SIZES},
                 "extra_specs": row.extra_specs if specs else {}, "is_public": row.is_public}
                for row in flavors.list_flavors(caller, public=None)]

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* after a check of its extra specs. They are checked here because they are set
        only after the flavor is created, when an error would come too late. A new flavor is public by default. Raises
        ``InvalidField``."""
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
        """Delete the flavor. Servers with this flavor keep their CPUs, memory and disks."""
        flavors.delete_flavor(caller, have["id"])
