# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of openstack.cloud for role assignments and quotas."""

from __future__ import annotations

from ..core.options import name_options
from ..core.values import Integer
from .words import RefusedOption

#: Limits that newer versions of the Compute API do not have, and limits of services that there are none of here.
NO_COMPUTE = "the Compute API has no such limit any more"
NO_BALANCERS = "this cloud has no load balancers"
NO_GROUPS = "volume groups are not counted"


def _limits(reason, **aliases):
    return {name: RefusedOption(reason, Integer(), aliases=tuple(others)) for name, others in aliases.items()}


IDENTITY = {
    "role_assignment": name_options(
        role_domain=RefusedOption("roles belong to no domain here", harmless=("default", "Default"))),
    "quota": name_options(
        **_limits(NO_COMPUTE, fixed_ips=(), injected_files=(), injected_file_content_bytes=("injected_file_size",),
                  injected_file_path_bytes=("injected_path_size",)),
        **_limits(NO_BALANCERS, health_monitors=(), l7_policies=(), listeners=(),
                  load_balancers=("loadbalancer",), members=(), pools=("pool",)),
        groups=RefusedOption(NO_GROUPS, Integer())),
}
