# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules quota and quota_info, which change and report the limits of a project, identified by id or name."""

from __future__ import annotations

from ..core.kinds import Quota
from ..core.options import Option, name_options, requested_fields
from ..core.values import Choices, Text
from .info import InfoModule
from .module import ABSENT, PRESENT
from .resource import ResourceModule


class QuotaModule(ResourceModule):
    """The module quota, which changes the quota of a project, or resets it to the defaults. Every project has a quota.
    """

    kind = Quota
    rules = {}
    own = name_options(name=Option(Text(1, 255), "The project, by id or name.", required=True, aliases=("project",)))

    def common(self):
        return name_options(state=Option(Choices(PRESENT, ABSENT),
                                         "V(present) sets the given limits. V(absent) restores all defaults.",
                                         default=PRESENT))

    def execute(self, params, check_mode, diff_mode, client):
        return super().execute(dict(params, id=None, on_immutable="fail"), check_mode, diff_mode, client)

    def want(self, params):
        return requested_fields(self.fields, params)


class QuotaInfoModule(InfoModule):
    """The module quota_info, which reports the quota of one project."""

    kind = Quota

    def selecting(self):
        return name_options(name=Option(Text(1, 255), "The project, by id or name; the login's own when omitted.",
                                        aliases=("project",)))

    def execute(self, params, check_mode, diff_mode, client):
        return {"changed": False, self.kind.plural: client.list(self.kind.noun, name=params["name"])}
