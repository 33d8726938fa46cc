# SPDX-License-Identifier: GPL-3.0-or-later
"""usage_info: what projects of a cloud have used in a period."""

from __future__ import annotations

from ..core.kinds import Usage
from ..core.options import Option, collect
from ..core.values import Boolean, Text
from .info import InfoModule


class UsageInfoModule(InfoModule):
    """Reports that of the login's project, or of all."""

    kind = Usage

    def selecting(self):
        return collect(
            begin=Option(Text(1, 64), "When the period begins: a day or a moment in ISO 8601, in UTC unless it says "
                         "otherwise. Without it, the usage is that of this moment.", aliases=("start",)),
            end=Option(Text(1, 64), "When it ends; now when left out.", aliases=("stop",)),
            all_projects=Option(Boolean(), "Whether that of all projects is reported, for administrators."))

    def execute(self, params, check_mode, diff_mode, client):
        query = {"begin": params["begin"], "end": params["end"],
                 "all_projects": "true" if params["all_projects"] else None}
        return {"changed": False, self.kind.plural: client.list(self.kind.noun, **query)}
