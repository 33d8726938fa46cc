# SPDX-License-Identifier: GPL-3.0-or-later
"""The module flavor_info, which also selects flavors by conditions such as ``>=1024``, as openstack.cloud does."""

from __future__ import annotations

import re

from ..core.errors import InvalidField
from ..core.kinds.flavor import Flavor
from ..core.options import Option, name_options
from ..core.values import Text
from ..modules.info import InfoModule

CONDITION = re.compile(r"(<=|>=|<|>)?\s*(\d+)")
TESTS = {"<": lambda size, limit: size < limit, "<=": lambda size, limit: size <= limit,
         ">": lambda size, limit: size > limit, ">=": lambda size, limit: size >= limit,
         None: lambda size, limit: size == limit}
EXTREMES = {"MIN": min, "MAX": max}
FORM = "A number, a number after V(<), V(<=), V(>) or V(>=), V(MIN) for the smallest or V(MAX) for the largest."
OWN = name_options(
    ram=Option(Text(1), "Only flavors with this memory in MiB. " + FORM),
    vcpus=Option(Text(1), "Only flavors with this number of CPUs, like O(ram)."),
    ephemeral=Option(Text(1), "Only flavors with this ephemeral disk in GiB, like O(ram)."),
)


class FlavorInfoModule(InfoModule):
    """The module flavor_info, which reports flavors."""

    kind = Flavor

    def __init__(self):
        super().__init__()
        self.options = self.options + OWN

    def execute(self, params, check_mode, diff_mode, client):
        conditions = {option.option: params[option.option].strip() for option in OWN
                      if params[option.option] is not None}
        if not conditions:
            return super().execute(params, check_mode, diff_mode, client)
        fields = params["fields"]
        result = super().execute(dict(params, fields=None, limit=None), check_mode, diff_mode, client)
        flavors = result["flavors"]
        for name, condition in conditions.items():
            flavors = _fitting(flavors, name, condition)
        flavors = sorted(flavors, key=lambda flavor: flavor["ram"]) if params["sort"] is None else flavors
        if fields:
            flavors = [{name: flavor[name] for name in fields if name in flavor} for flavor in flavors]
        return dict(result, flavors=flavors[:params["limit"]])


def _fitting(flavors, name, condition):
    """Return those *flavors* whose field *name*, such as ram, meets *condition*. *condition*: a number, optionally
    after ``<``, ``<=``, ``>`` or ``>=``; or MIN or MAX for the smallest or largest value of all *flavors*. Raises
    ``InvalidField``."""
    if condition.upper() in EXTREMES:
        extreme = EXTREMES[condition.upper()]((flavor[name] for flavor in flavors), default=None)
        return [flavor for flavor in flavors if flavor[name] == extreme]
    match = CONDITION.fullmatch(condition)
    if match is None:
        raise InvalidField(name, "must be a number, a number after <, <=, > or >=, MIN or MAX", condition)
    return [flavor for flavor in flavors if TESTS[match[1]](flavor[name], int(match[2]))]
