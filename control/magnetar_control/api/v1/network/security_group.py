# SPDX-License-Identifier: GPL-3.0-or-later
"""Security groups of the network service, with their rules."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import orjson

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_control.services.network.security.group_rules import ICMP
from magnetar_core.kinds import AddressGroup, SecurityGroup
from magnetar_core.reconcile import Document, is_uuid

from .networking import NOTHING, Networking, Row, of_project, reference

RULE = ("direction", "ethertype", "protocol", "port_range_min", "port_range_max", "remote_ip_prefix")


class SecurityGroups(Networking):
    """With their rules, all of which a wish says, or none."""

    kind, plural, body, held = SecurityGroup, "security_groups", attributes.SECURITY_GROUP, "rules"

    def shown(self, row: Row) -> Document:
        return {"stateful": row["stateful"], "rules": _sorted(
            {**{name: one[name] for name in RULE}, "remote_group": one["remote_group_id"],
             "remote_address_group": one["remote_address_group_id"], "description": one["description"] or ""}
            for one in row["rules"])}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        if want.get("rules") is None:
            return {name: value for name, value in want.items() if name != "rules"}
        return {**want, "rules": _sorted(self._rule(caller, want, have, at)
                                         for at in range(len(want["rules"])))}

    def _rule(self, caller: Caller, want: Document, have: Document | None, at: int) -> Document:
        """One rule in its normal form. A group may name itself, also before it is there."""
        path = f"rules[{at}]"
        rule = {"direction": "ingress", "ethertype": "IPv4", **want["rules"][at]}
        group = rule.pop("remote_group", None)
        if have is None and group is not None and group == want["name"]:
            pass
        elif group is not None:
            group = reference(caller, SecurityGroup, "security_groups", (f"{path}.remote_group", group),
                              lambda row: row["project_id"] == caller.project)
        addresses = rule.pop("remote_address_group", None)
        if addresses is not None:
            addresses = reference(caller, AddressGroup, "address_groups", (f"{path}.remote_address_group", addresses),
                                  of_project(caller))
        found = attributes.SECURITY_GROUP_RULE.check({**rule, "security_group_id": NOTHING}, path)
        least, most = found.get("port_range_min"), found.get("port_range_max")
        if most is None and found.get("protocol") not in ICMP:
            most = least
        return {**{name: found.get(name) for name in RULE}, "port_range_max": most, "remote_group": group,
                "remote_address_group": addresses, "description": found.get("description") or ""}

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """The rules of a new one that name itself have its name."""
        found = super().predicted(caller, want, have)
        return found if have or want.get("rules") is None else {**found, "rules": want["rules"]}

    def assumed(self, want: Document) -> bool:
        named = [(one["remote_group"], one["remote_address_group"]) for one in want.get("rules") or ()]
        return any(one not in (None, want["name"]) and not is_uuid(one) for pair in named for one in pair)

    def checked(self, want: Document) -> Document:
        """A rule may name the new group, so its uuid is drawn here."""
        return {**super().checked(want), "id": want["_id"]} if "_id" in want else super().checked(want)

    def create(self, caller: Caller, want: Document, dry: bool) -> Row:
        return super().create(caller, {**want, "_id": str(uuid.uuid4())}, dry)

    def parts(self, want: Document, id: str | None) -> list[Document] | None:
        """The rules; one may name the group by its name before it is there."""
        if want.get("rules") is None:
            return None
        id = id or want["_id"]
        return [{**{name: one[name] for name in RULE}, "description": one["description"],
                 "remote_address_group_id": one["remote_address_group"],
                 "remote_group_id": id if one["remote_group"] == want["name"] else one["remote_group"]}
                for one in want["rules"]]


def _sorted(rules: Iterable[Document]) -> list[Document]:
    """Each once, in an order that follows from what they say."""
    return [orjson.loads(text) for text in sorted({orjson.dumps(one) for one in rules})]
