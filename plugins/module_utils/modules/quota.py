# SPDX-License-Identifier: GPL-3.0-or-later
"""quota and quota_info: limits of a project, by its id or name."""

from __future__ import annotations

from ..core.kinds import Quota
from ..core.options import Option, collect, given
from ..core.values import Choices, Text
from .info import InfoModule
from .module import ABSENT, PRESENT
from .resource import ResourceModule


class QuotaModule(ResourceModule):
    """Each project has one: it is changed, or set back."""

    kind = Quota
    rules = {}
    own = collect(name=Option(Text(1, 255), "The project, by id or name.", required=True, aliases=("project",)))

    def common(self):
        return collect(state=Option(Choices(PRESENT, ABSENT), "V(present) sets the limits that are given. V(absent) "
                                    "has the defaults count for all of them.", default=PRESENT))

    def execute(self, params, check_mode, diff_mode, client):
        return super().execute(dict(params, id=None, on_immutable="fail"), check_mode, diff_mode, client)

    def want(self, params):
        return given(self.fields, params)


class QuotaInfoModule(InfoModule):
    """Reports that of one project."""

    kind = Quota

    def selecting(self):
        return collect(name=Option(Text(1, 255), "The project, by id or name; the login's own when omitted.",
                                   aliases=("project",)))

    def execute(self, params, check_mode, diff_mode, client):
        return {"changed": False, self.kind.plural: client.list(self.kind.noun, name=params["name"])}
