# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of openstack.cloud for servers, flavors, keypairs and services."""

from __future__ import annotations

from ..core.options import name_options
from ..core.values import Boolean, Text, Value
from .words import FilterOption, IgnoredOption, RefusedOption, RenamedOption

COMPUTE = {
    "server": name_options(
        image_exclude=RefusedOption("name the image exactly, or by uuid, in image", harmless=("(deprecated)",)),
    ),
    "server_info": name_options(
        detailed=IgnoredOption(Boolean(), "Ignored: servers are always reported with all fields, or with O(fields)."),
    ),
    "server_action": name_options(
        all_projects=RefusedOption("give the uuid of another project's server as name", Boolean(), harmless=(False,)),
    ),
    "keypair_info": name_options(
        user_id=RefusedOption("only the keys of the login's user are reported"),
        marker=RefusedOption("all keys are reported, or as many as limit says"),
    ),
    "compute_service_info": name_options(binary=FilterOption(Text()), host=RenamedOption(Text(), "name")),
    "flavor": name_options(
        rxtx_factor=RefusedOption("no network engine has used it since Nova 2.61", Value(),
                                  harmless=(1, 1.0, "1", "1.0")),
    ),
    "flavor_access": name_options(
        project_domain=RefusedOption("give the id of a project of another domain as project",
                                     harmless=("default", "Default")),
    ),
}
