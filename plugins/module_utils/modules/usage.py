# SPDX-License-Identifier: GPL-3.0-or-later
"""The module usage_info, which reports the usage of projects of a cloud in a period."""

from __future__ import annotations

from ..core.kinds import Usage
from ..core.options import Option, name_options
from ..core.values import Boolean, Text
from .info import InfoModule


class UsageInfoModule(InfoModule):
    """The module usage_info, which reports the usage of the login's project, or of all projects."""

    kind = Usage

    def selecting(self):
        return name_options(
            begin=Option(Text(1, 64), "Begin of the period: a day or a moment in ISO 8601, in UTC unless it has a "
                         "time zone. Without it, the current usage.", aliases=("start",)),
            end=Option(Text(1, 64), "When it ends; now when left out.", aliases=("stop",)),
            all_projects=Option(Boolean(), "Whether the usage of all projects is reported, for administrators."))

    def execute(self, params, check_mode, diff_mode, client):
        query = {"begin": params["begin"], "end": params["end"],
                 "all_projects": "true" if params["all_projects"] else None}
        return {"changed": False, self.kind.plural: client.list(self.kind.noun, **query)}
