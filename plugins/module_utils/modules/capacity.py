# SPDX-License-Identifier: GPL-3.0-or-later
"""The module capacity_info, which reports whether a cloud, zone or aggregate has room for the servers of any one host
that fails.
"""

from __future__ import annotations

from ..core.kinds import Capacity
from ..core.options import Option, name_options
from ..core.values import Text
from .info import InfoModule


class CapacityInfoModule(InfoModule):
    """The module capacity_info, which reports whether all servers of a host would have a place on other hosts if that
    host failed.
    """

    kind = Capacity

    def selecting(self):
        return name_options(
            zone=Option(Text(1, 255), "Report only the hosts of this availability zone.",
                        aliases=("availability_zone",)),
            aggregate=Option(Text(1, 255), "Report only the hosts of this aggregate, by name or uuid."))

    def execute(self, params, check_mode, diff_mode, client):
        return {"changed": False, self.kind.plural: client.list(self.kind.noun, zone=params["zone"],
                                                                aggregate=params["aggregate"])}
