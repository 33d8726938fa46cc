# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that change operators' settings of a cloud's host, and the module compute_service, which also removes the
host.
"""

from __future__ import annotations

from ..core.kinds import ComputeService
from ..core.options import Option, name_options, requested_fields
from ..core.values import Choices, Text
from . import results
from .module import ABSENT, PRESENT
from .resource import ResourceModule


class HostSettingsModule(ResourceModule):
    """The base class of modules that change a resource of a host or cell. The resource exists as long as the host or
    cell, so these modules neither create nor remove it. Only the module compute_service can remove its resource."""

    rules = {}
    replaced = ("name",)
    own = name_options(name=Option(Text(1, 255), "The host's name.", required=True, aliases=("host",)))

    def common(self):
        return ()

    def want(self, params):
        return requested_fields(self.fields, params)

    def execute(self, params, check_mode, diff_mode, client):
        answer = client.ensure(self.kind.noun, params["name"], self.want(params), dry_run=check_mode,
                               wait=params["wait"], timeout=params["timeout"])
        return results.module_result(self.kind.noun, params["name"], answer, diff_mode)


class ComputeServiceModule(HostSettingsModule):
    """The module compute_service, which changes the compute service of a host, or removes it. Conductors create it for
    the hosts in their settings.
    """

    kind = ComputeService
    own = HostSettingsModule.own + name_options(state=Option(
        Choices(PRESENT, ABSENT), "V(present) updates given options that differ, and fails for an unknown host. "
        "V(absent) removes the host from the cloud. It must have no servers, and conductors create its service again "
        "while their settings name it.", default=PRESENT))

    def execute(self, params, check_mode, diff_mode, client):
        if params["state"] != ABSENT:
            return super().execute(params, check_mode, diff_mode, client)
        answer = client.delete(self.kind.noun, params["name"], dry_run=check_mode, wait=params["wait"],
                               timeout=params["timeout"])
        return results.module_result(self.kind.noun, params["name"], answer, diff_mode)
