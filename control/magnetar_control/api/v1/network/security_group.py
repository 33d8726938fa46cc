# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type security_group: security groups of the network service, with their rules."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import orjson

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_control.services.network.security.group_rules import ICMP
from magnetar_core.document import Document
from magnetar_core.kinds import AddressGroup, SecurityGroup
from magnetar_core.reconcile import is_uuid_key

from .networking import NOTHING, Networking, Row, resolve_reference, usable_by_project

RULE = ("direction", "ethertype", "protocol", "port_range_min", "port_range_max", "remote_ip_prefix")


class SecurityGroups(Networking):
    """The driver of the v1 API for security groups of the caller's project. The field ``rules`` of a request replaces
    all rules of the group; without this field, the rules stay unchanged."""

    kind, plural, body, held = SecurityGroup, "security_groups", attributes.SECURITY_GROUP, "rules"

    def as_document(self, row: Row) -> Document:
        return {"stateful": row["stateful"], "rules": _sorted(
            {**{name: rule[name] for name in RULE}, "remote_group": rule["remote_group_id"],
             "remote_address_group": rule["remote_address_group_id"], "description": rule["description"] or ""}
            for rule in row["rules"])}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        if want.get("rules") is None:
            return {name: value for name, value in want.items() if name != "rules"}
        return {**want, "rules": _sorted(self._rule(caller, want, have, at)
                                         for at in range(len(want["rules"])))}

    def _rule(self, caller: Caller, want: Document, have: Document | None, at: int) -> Document:
        """Return the rule with the index *at* in the desired state *want*, in normal form and with uuids of groups. If
        a rule of a new group refers to the group itself, that rule contains the group's name in place of a uuid. Raises
        ``InvalidField``."""
        path = f"rules[{at}]"
        rule = {"direction": "ingress", "ethertype": "IPv4", **want["rules"][at]}
        group = rule.pop("remote_group", None)
        if have is None and group is not None and group == want["name"]:
            pass
        elif group is not None:
            group = resolve_reference(caller, SecurityGroup, "security_groups", (f"{path}.remote_group", group),
                                      lambda row: row["project_id"] == caller.project)
        addresses = rule.pop("remote_address_group", None)
        if addresses is not None:
            addresses = resolve_reference(caller, AddressGroup, "address_groups",
                                          (f"{path}.remote_address_group", addresses), usable_by_project(caller))
        checked = attributes.SECURITY_GROUP_RULE.check({**rule, "security_group_id": NOTHING}, path)
        least, most = checked.get("port_range_min"), checked.get("port_range_max")
        if most is None and checked.get("protocol") not in ICMP:
            most = least
        return {**{name: checked.get(name) for name in RULE}, "port_range_max": most, "remote_group": group,
                "remote_address_group": addresses, "description": checked.get("description") or ""}

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Override ``Networking.predicted``: return the security group after the change, for a dry run. Rules of a new
        group that refer to the group itself contain the group's name, because the group has no uuid yet."""
        resource = super().predicted(caller, want, have)
        return resource if have or want.get("rules") is None else {**resource, "rules": want["rules"]}

    def assumed(self, want: Document) -> bool:
        named = [(rule["remote_group"], rule["remote_address_group"]) for rule in want.get("rules") or ()]
        return any(remote not in (None, want["name"]) and not is_uuid_key(remote) for pair in named for remote in pair)

    def checked(self, want: Document) -> Document:
        """Override ``Networking.checked``: for a new group, add the uuid that *want* contains as ``_id``. The driver
        has chosen this uuid in advance, because the group's rules may refer to the group."""
        return {**super().checked(want), "id": want["_id"]} if "_id" in want else super().checked(want)

    def create(self, caller: Caller, want: Document, dry: bool) -> Row:
        return super().create(caller, {**want, "_id": str(uuid.uuid4())}, dry)

    def parts(self, want: Document, id: str | None) -> list[Document] | None:
        """Override ``Networking.parts``: return the rules in *want* as rows of the network service. A rule that refers
        to the group itself contains the group's uuid in place of its name."""
        if want.get("rules") is None:
            return None
        id = id or want["_id"]
        return [{**{name: rule[name] for name in RULE}, "description": rule["description"],
                 "remote_address_group_id": rule["remote_address_group"],
                 "remote_group_id": id if rule["remote_group"] == want["name"] else rule["remote_group"]}
                for rule in want["rules"]]


def _sorted(rules: Iterable[Document]) -> list[Document]:
    """Return *rules* without duplicates, in an order that depends only on their content, so that lists of rules can be
    compared."""
    return [rule for _text, rule in sorted({orjson.dumps(rule): rule for rule in rules}.items())]
