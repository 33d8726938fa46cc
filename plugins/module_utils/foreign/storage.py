# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of openstack.cloud for volumes, snapshots and images."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.options import name_options
from ..core.values import Boolean, ListOf, MapOf, Text, Uuid, Value
from .words import ConvertedOption, FilterOption, IgnoredOption, RefusedOption

DETAILS = IgnoredOption(Boolean(), "Ignored: all fields are always reported, or those of O(fields).")
BOOTABLE = "a volume is bootable if it comes from an image; give image, snapshot or volume"


def _bootable(params):
    if params["is_bootable"] and not any(params.get(name) for name in ("image", "snapshot", "source_volume")):
        raise InvalidField("is_bootable", BOOTABLE)


def _public(params):
    """In the module parameters *params*, replace the option is_public of openstack.cloud by visibility."""
    if params.get("visibility") is None:
        params["visibility"] = "public" if params["is_public"] else "private"


STORAGE = {
    "volume": name_options(
        availability_zone=RefusedOption("the volume type chooses the hosts", harmless=("nova",)),
        is_bootable=ConvertedOption(Boolean(), "A volume is bootable if it comes from an image; V(true) is refused for "
                                    "an empty volume.", _bootable, aliases=("bootable",)),
        scheduler_hints=RefusedOption("the volume type chooses the hosts", MapOf(Text(), Value()), harmless=({},)),
    ),
    "volume_info": name_options(details=DETAILS, status=FilterOption(Text())),
    "volume_snapshot": name_options(
        force=IgnoredOption(Boolean(), "Ignored: volumes of running servers can always be snapshotted."),
    ),
    "volume_snapshot_info": name_options(
        details=IgnoredOption(Boolean(), DETAILS.doc.split(". ", 1)[1]), status=FilterOption(Text()),
        volume=FilterOption(Text(), convert=lambda value: Uuid().check(value, "volume")),
    ),
    "image": name_options(
        container_format=RefusedOption("the container is bare, or follows from disk_format", harmless=(
            "bare", "aki", "ari")),
        is_public=ConvertedOption(Boolean(), "V(true) is O(visibility=public), V(false) is O(visibility=private). "
                                  "O(visibility) wins.", _public),
        owner=RefusedOption("an image belongs to the project of the login; see image_member", aliases=("project",)),
        owner_domain=RefusedOption("an image belongs to the project of the login", aliases=("project_domain",)),
        tags=RefusedOption("use properties", ListOf(Text()), harmless=([],)),
        use_import=RefusedOption("the content is uploaded with filename", Boolean(), harmless=(False,)),
        import_method=RefusedOption("the content is uploaded with filename; see ansible.builtin.get_url"),
        uri=RefusedOption("the content is uploaded with filename; see ansible.builtin.get_url"),
    ),
}
