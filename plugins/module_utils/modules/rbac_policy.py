# SPDX-License-Identifier: GPL-3.0-or-later
"""rbac_policy: it has no name, and is known by what it says."""

from __future__ import annotations

from ..core.kinds import RbacPolicy
from ..core.options import Option, collect
from . import results
from .module import ABSENT
from .resource import ResourceModule

#: Options that each policy says.
SAID = ("object_type", "target_project", "object")


class RbacPolicyModule(ResourceModule):
    """Makes a project able to use a thing, or no more."""

    kind = RbacPolicy
    rules = {}
    replaced = SAID
    own = collect(**{name: Option(RbacPolicy.field(name).value, RbacPolicy.field(name).doc, required=True,
                                  aliases=RbacPolicy.field(name).aliases) for name in SAID})
    state_doc = "V(present) makes the project able to use it. V(absent) takes that back."

    def execute(self, params, check_mode, diff_mode, client):
        action = params["action"] or self.kind.field("action").default
        key = ":".join((params["object_type"], action, params["target_project"], params["object"]))
        waiting = {"dry_run": check_mode, "wait": params["wait"], "timeout": params["timeout"]}
        if params["state"] == ABSENT:
            answer = client.delete(self.kind.noun, key, **waiting)
        else:
            answer = client.ensure(self.kind.noun, key, {}, merge=[], **self.allowed(params), **waiting)
        return results.changed(self.kind.noun, key, answer, diff_mode)
