# SPDX-License-Identifier: GPL-3.0-or-later
"""compute_service: what operators decide about a host of a cloud."""

from __future__ import annotations

from ..core.kinds import ComputeService
from ..core.options import Option, collect, given
from ..core.values import Text
from . import results
from .resource import ResourceModule


class ComputeServiceModule(ResourceModule):
    """Each host has one: it is changed, never made or removed."""

    kind = ComputeService
    rules = {}
    replaced = ("name",)
    own = collect(name=Option(Text(1, 255), "The host's name.", required=True, aliases=("host",)))

    def common(self):
        return ()

    def want(self, params):
        return given(self.fields, params)

    def execute(self, params, check_mode, diff_mode, client):
        answer = client.ensure(self.kind.noun, params["name"], self.want(params), dry_run=check_mode,
                               wait=params["wait"], timeout=params["timeout"])
        return results.changed(self.kind.noun, params["name"], answer, diff_mode)
