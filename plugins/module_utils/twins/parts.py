# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules server_metadata and group_assignment, which change a part of a server or of a group of users."""

from __future__ import annotations

from ..core.kinds.common import REFERENCE
from ..core.options import WAITING, Option, name_options
from ..core.values import Choices, MapOf, Text
from ..modules import results
from ..modules.module import ABSENT, PRESENT, Module, scalar_text
from .addresses import known_resource


class PartModule(Module):
    """The base class of modules that add items to a list or mapping field of an existing resource of the type *noun*,
    or remove items from it.
    """

    noun = ""

    def execute(self, params, check_mode, diff_mode, client):
        option, key = self.identified(params)
        resource = known_resource(client, self.noun, REFERENCE.check(key, option), option,
                                  check_mode or params["state"] == ABSENT)
        if resource is None:
            return {"changed": params["state"] == PRESENT, self.noun: None, "actions": [], "changes": {}}
        waiting = {"dry_run": check_mode, "wait": params["wait"], "timeout": params["timeout"]}
        field, value = self.part(client, params, resource)
        merge = [field] if params["state"] == PRESENT else []
        answer = client.ensure(self.noun, resource["id"], {field: value}, merge=merge, **waiting)
        return results.module_result(self.noun, resource["name"], answer, diff_mode)

    def identified(self, params):
        """Return the module option that contains the resource's name or uuid, and its value in *params*."""
        raise NotImplementedError

    def part(self, client, params, resource):
        """Return the name of the field to change, and a value: the items to add or, for O(state=absent), the remaining
        items. *resource*: the present fields.
        """
        raise NotImplementedError


class ServerMetadataModule(PartModule):
    """The module server_metadata, which sets metadata of a server or removes keys of it. Other keys stay."""

    name, noun = "server_metadata", "server"
    options = name_options(
        name=Option(REFERENCE, "The server, by name or uuid.", required=True, aliases=("server",)),
        metadata=Option(MapOf(Text(1, 255), Text(0, 255)), "Keys and values, as a mapping or as text such as "
                        "V(role=web,tier=1). With O(state=absent) the values do not matter.", required=True,
                        aliases=("meta",)),
        state=Option(Choices(PRESENT, ABSENT), "V(present) sets the keys. V(absent) removes them.", default=PRESENT),
    ) + WAITING

    def identified(self, params):
        return "name", params["name"]

    def part(self, client, params, resource):
        metadata = {str(key): scalar_text(value) for key, value in params["metadata"].items()}
        if params["state"] == ABSENT:
            metadata = {key: value for key, value in resource["metadata"].items() if key not in metadata}
        return "metadata", metadata


class GroupAssignmentModule(PartModule):
    """The module group_assignment, which puts a user into a group of users, or takes the user out."""

    name, noun, cloud_only = "group_assignment", "group", True
    options = name_options(
        group=Option(REFERENCE, "The group of users, by name or id.", required=True),
        user=Option(REFERENCE, "The user, by name or id.", required=True),
        state=Option(Choices(PRESENT, ABSENT), "V(present) puts the user into the group. V(absent) takes the user out.",
                     default=PRESENT),
    ) + WAITING

    def identified(self, params):
        return "group", params["group"]

    def part(self, client, params, resource):
        key = REFERENCE.check(params["user"], "user")
        user = known_resource(client, "user", key, "user", True) or {}
        if params["state"] == ABSENT:
            return "users", [name for name in resource["users"] if name not in (key, user.get("name"), user.get("id"))]
        return "users", [key]
