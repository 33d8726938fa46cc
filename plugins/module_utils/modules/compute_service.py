# SPDX-License-Identifier: GPL-3.0-or-later
"""The module compute_service, which changes operators' settings of a cloud's host."""

from __future__ import annotations

from ..core.kinds import ComputeService
from ..core.options import Option, name_options, requested_fields
from ..core.values import Text
from . import results
from .resource import ResourceModule


class ComputeServiceModule(ResourceModule):
    """The module compute_service, which changes the compute service of a host. The service exists as long as the host,
    so the module never creates or removes it.
    """

    kind = ComputeService
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
